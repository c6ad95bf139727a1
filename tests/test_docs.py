"""README and docs: the site builds, tables are up to date, links lead somewhere, examples run."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import matplotlib
import pytest
import torch
from matplotlib import pyplot as plt
from PIL import Image

import killick
from killick.cli import main, make_parser, parse
from killick.training import shipped
from killick.training.recipe_files import settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import evidence_figures  # noqa: E402
import evidence_tables  # noqa: E402
import reference_parts  # noqa: E402
import timing_tables  # noqa: E402

PAGES = sorted(DOCS.rglob("*.md"))
EVERYWHERE = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]
# Commands that are parsed but not run here: they need files or services of the reader.
NOT_RUN = (
    r"^pip install|^docker|^torchrun|imagenet|cifar|imagefolder:|images:|images:|weights\.pth|net\.pth"
    r"|--corruption-files|--resume|from=runs/my-net|owner/name|--superlink|flower|--plugin|--pretrained|a1_in1k"
    r"|^killick play|^python space|^hf upload"
)
# What is run is made small: these come last, and the last option counts.
SMALLER = {
    "train": ["--epochs", "1", "--data.limit", "128", "--data.validation", "0", "--quiet"],
    "evaluate": ["--limit", "10", "--references", "2", "--severities", "3", "--quiet"],
    "corrupt": ["--limit", "1", "--quiet"],
    "compare": ["--dry-run"],
    "report": ["--quiet"],
    "study": ["--dry-run"],
    "federate": ["--rounds", "1", "--clients", "2", "--data.limit", "64", "--quiet"],
    "export": ["--limit", "20", "--calibration", "20", "--quiet"],
    "predict": ["--quiet"],
    "probe": ["--limit", "40", "--epochs", "1", "--quiet"],
    "publish": ["--quiet"],
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of each command of a page."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line for line in lines if line]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages_with(language: str) -> list[Path]:
    return [page for page in EVERYWHERE if blocks(page, language)]


@pytest.mark.parametrize("page", EVERYWHERE, ids=name)
def test_links_lead_to_files_and_make_targets_exist(page):
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), link
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {words[1] for words in commands(page) if words[0] == "make"} <= set(targets)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/evidence.md", "docs/evidence-details.md", *timing_tables.PAGES]
)
def test_generated_tables_are_up_to_date(page):
    text = (ROOT / page).read_text()
    assert evidence_tables.renew(text) == text, "run python docs/evidence_tables.py"
    renewed = timing_tables.renew(text, (ROOT / page).parent)
    assert renewed == text, "run python docs/timing_tables.py"


@pytest.mark.parametrize("figure", evidence_figures.FIGURES)
def test_figures_show_the_numbers_of_their_tables(figure):
    kept = (evidence_figures.RESULTS / figure).read_text()
    lines = [
        re.findall(r' d="([^"]+)"', text) for text in (evidence_figures.FIGURES[figure](), kept)
    ]
    drawn, kept = ([float(n) for n in re.findall(r"-?[\d.]+", " ".join(each))] for each in lines)
    assert drawn == pytest.approx(kept, abs=0.5), "run python docs/evidence_figures.py"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_parts_made_from_the_code_are_up_to_date(page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = page.read_text()
    assert reference_parts.renew(text) == text, "run make reference"


@pytest.mark.parametrize("page", pages_with("sh"), ids=name)
def test_every_command_is_understood(page, capsys, monkeypatch):
    monkeypatch.setattr(
        "killick.training.initial_weights.find_start", Path
    )  # the hub is not called
    for words in commands(page):
        if "killick" not in words or words[0] in ("pip", "docker"):
            continue
        words = words[words.index("killick") + 1 :]
        if words in ([], ["--version"]):
            continue
        known, _ = parse(words)  # refuses what it does not know
        if known.command == "train" and known.resume is None and known.plugin is None:
            assert main([*words, "--print-recipe"]) == 0, capsys.readouterr().err


def test_the_python_block_of_the_readme_runs_and_folding_is_exact(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(ROOT / "README.md", "python"):
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "my-model" / "config.json").is_file()
    with torch.no_grad():
        plain, anchored = (names[each](names["x"]) for each in ("plain", "model"))
    torch.testing.assert_close(plain, anchored, atol=1e-4, rtol=1e-4)


# The site -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Path]:
    """The built site; a warning of the build is an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that build it
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


class Html(HTMLParser):
    """Ids, links and what a page loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.ids |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "img", "link", "iframe", "source", "object"):
            self.loaded += [found[key] for key in ("src", "href", "data") if key in found]


def test_the_site_builds_strictly_and_documents_every_command_setting_and_public_name(site):
    pages = {path.resolve(): Html(path) for path in site.rglob("*.html") if path.stem != "404"}
    first = {link.split("#")[0] for link in Html(site / "index.html").links}
    assert first >= {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in PAGES}
    for path, page in pages.items():
        for source in page.loaded:
            assert not re.match(r"(https?:)?//", source), (path.name, source)
        for link in page.links:
            target, _, fragment = link.partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            assert re.match(r"\w+:", link) or there.is_file(), (path.name, link)
            if fragment and there in pages:
                assert fragment in pages[there].ids, (path.name, link)
    text = (site / "command-line.html").read_text()
    for command, parser in make_parser()[1].choices.items():
        assert f'id="killick-{command}"' in text
        for action in parser._actions:
            assert all(f"<code>{option}</code>" in text for option in action.option_strings)
    text = (site / "recipes.html").read_text()
    assert all(f">{recipe}</a>" in text for recipe in shipped())
    assert all(f"<code>{each}</code>" in text for each in settings() if each != "about")
    ids = {each.lower() for each in Html(site / "api.html").ids}
    for each in killick.__all__:
        assert {f"killick.{each}", f"killick{each}".lower()} & ids, each
    for each, value in vars(killick.metrics).items():
        if each[0] != "_" and callable(value) and not isinstance(value, ModuleType):
            assert f"killickmetrics{each}".lower() in ids, each


# Everything in the pages, at small size -----------------------------------------------------------


@pytest.fixture(scope="module")
def few_test_images() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("killick.data.sources.shapes.TEST_COUNT", 500)
        yield


@pytest.fixture(scope="module")
def small_runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("small")
    for protocol in ("standard", "masked"):
        words = ["--protocol", protocol, "--output", str(folder / protocol)]
        assert main(["train", *words, *SMALLER["train"]]) == 0
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("here", "few_test_images", "one_registry")
@pytest.mark.parametrize("page", [p for p in pages_with("python") if p.parent != ROOT], ids=name)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.slow
@pytest.mark.usefixtures("here", "few_test_images", "one_registry")
@pytest.mark.parametrize("page", [p for p in pages_with("sh") if p.parent != ROOT], ids=name)
def test_every_command_runs_at_small_size(page, small_runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for place in ("photo.jpg", "photos/one.png", "more/a/two.png"):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 50), 60).save(place)
    for words in commands(page):
        if words[0] == "make" or re.search(NOT_RUN, shlex.join(words)):
            continue
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
            continue
        for place in runs_needed(words[1:]):
            shutil.copytree(small_runs["standard" if "standard" in place.name else "masked"], place)
        smaller = [] if words == ["killick", "study"] else SMALLER.get(words[1], [])
        try:
            code = main([*words[1:], *smaller])
        except SystemExit as end:
            code = end.code
        assert code == 0, (words, capsys.readouterr().err)


def runs_needed(words: list[str]) -> list[Path]:
    """Run folders that a command reads and no command of the same page has made."""
    if words[0] == "--version":
        return []
    known = parse(words)[0]
    named = [known.model] if hasattr(known, "model") else getattr(known, "models", [])
    places = map(Path, [*named, *getattr(known, "runs", [])])
    return [place for place in places if not place.exists()]


def test_the_example_with_own_data_runs(tmp_path, monkeypatch, capsys):
    script = str(ROOT / "examples" / "own_data.py")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "run")])
    runpy.run_path(script, run_name="__main__")
    assert "clean DataLoader single top1" in capsys.readouterr().out
    assert (tmp_path / "run" / "model" / "config.json").is_file()


@pytest.mark.slow
def test_the_regression_example_finds_uncertainty_away_from_the_data(tmp_path, monkeypatch, capsys):
    script = str(ROOT / "examples" / "regression.py")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "figure.svg"), "400"])
    with matplotlib.rc_context():
        runpy.run_path(script, run_name="__main__")
        plt.close()
    assert float(re.search(r"(\d+) times", capsys.readouterr().out).group(1)) > 2
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
