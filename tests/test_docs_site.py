"""The pages in docs/: their blocks run, the site builds without a warning, and needs no network."""

import csv
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import killick
from killick.cli import COMMANDS, main, make_parser, parse
from killick.core.inference import PROTOCOLS
from killick.data import decoding
from killick.deploy import image_reading as reading
from killick.deploy.deployed_net import OUTPUTS
from killick.labelling import Record, label
from killick.results.rows import COLUMNS
from killick.storage.export_metadata import PRECISIONS, About
from killick.training import shipped
from killick.training.recipe import Protocol
from killick.training.recipe_files import settings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = sorted(DOCS.rglob("*.md"))
CARDS = [page for page in PAGES if page.parent.name == "protocols" and page.stem != "index"]
HEADINGS = ["What", "Formula", "Use", "Good values", "Cost", "When it fails", "Evidence"]
LANGUAGES = {"python", "sh", "yaml", "text"}

# Commands that are understood by the parser but not run here, and why not.
NOT_RUN = {
    r"^pip install": "it would change the environment that the tests run in",
    r"^torchrun|imagenet": "needs ImageNet",
    r"cifar": "needs CIFAR",
    r"imagefolder:|pictures:|weights\.pth|net\.pth": "needs files of the reader's",
    r"--corruption-files": "needs the published files",
    r"--resume": "needs a run that was interrupted; test_resume.py has some",
    r"from=runs/my-net": "needs a network of the reader's",
    r"owner/name": "needs the hub; test_hub.py and test_publishing.py have one of their own",
}
# What is run is made small: these come last, and the last word counts.
SMALLER = {
    "train": ["--epochs", "1", "--data.limit", "128", "--data.validation", "0", "--quiet"],
    "evaluate": ["--limit", "10", "--references", "2", "--severities", "3", "--quiet"],
    "corrupt": ["--limit", "1", "--quiet"],
    "compare": [
        "--dry-run"
    ],  # test_grid_comparing.py runs some, and the Python block of comparing.md
    "report": ["--quiet"],
    "study": ["--size", "smoke", "--dry-run"],  # test_studies*.py run all of them
    "export": ["--limit", "20", "--calibration", "20", "--quiet"],
    "predict": ["--quiet"],
    "publish": ["--quiet"],
}


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path, *languages: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(*each) for each in found if not languages or each[0] in languages]


def commands(page: Path) -> list[str]:
    """The commands of a page, each in one line and without its comment."""
    text = "\n".join(block.text for block in blocks(page, "sh")).replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [shlex.join(line) for line in words if line]


def arguments(command: str) -> list[str]:
    """What `killick` is given, also under torchrun."""
    words = shlex.split(command)
    return words[words.index("killick") + 1 :]


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


@pytest.fixture(autouse=True, scope="module")
def _few_tests() -> Iterator[None]:
    """Every run is tested on all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("killick.data.sources.SHAPES_TEST", 500)
        yield


@pytest.fixture(autouse=True)
def _quickly(here, one_registry) -> None:
    """Jobs run in this process."""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_block_escapes_the_tests(page):
    text = page.read_text()
    assert {block.language for block in blocks(page)} <= LANGUAGES
    assert len(re.findall("```", text)) == 2 * len(blocks(page))  # none indented, none open
    assert "~~~" not in text


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_every_python_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(page, "python"):
        exec(compile(block.text, name(page), "exec"), names)
    check = AFTERWARDS.get(name(page))
    if check is not None:
        check(names, tmp_path)


def check_training(names: dict, folder: Path) -> None:
    assert (folder / "my-run" / "model" / "config.json").is_file()


def check_evaluation(names: dict, folder: Path) -> None:
    assert {row["suite"] for row in names["rows"]} == {"clean", "corruptions", "ood"}
    assert names["foggy"].shape == (500, 3, 32, 32)


def check_formats(names: dict, folder: Path) -> None:
    """Every file of a run, every array of the answers and every file of a model is on the page."""
    text = (DOCS / "formats.md").read_text()
    here = {path.name for path in (folder / "my-run").iterdir() if path.name[0] != "."}
    assert here >= {"recipe.yaml", "rows.csv", "answers", "model", "metrics.jsonl"}
    for each in here:
        assert f"`{each}`" in text or f"`{each}/`" in text, each
    for path in (folder / "my-run" / "model").iterdir():
        assert re.sub(r"-\w+\.", "-….", path.name) in text
    (answers,) = (folder / "my-run" / "answers").iterdir()
    with np.load(answers, allow_pickle=False) as file:
        for array in file.files:
            known = array.replace("marginal_", "single_") if array != "marginal_spread" else array
            assert f"`{known}`" in text, array


def check_quickstart(names: dict, folder: Path) -> None:
    text = (DOCS / "quickstart.md").read_text()
    first, second = (block.text for block in blocks(DOCS / "quickstart.md", "python"))
    lines = first.split("# yours\n")[-1].strip().splitlines()
    assert len(lines) <= 10
    assert "Ten lines" in text
    assert len(re.findall(r"# \d\. ", second)) == 3
    assert "Three lines" in text


def check_folding(names: dict, folder: Path) -> None:
    torch.testing.assert_close(
        names["plain"](names["x"]), names["model"](names["x"]), atol=1e-4, rtol=1e-4
    )


def check_deploying(names: dict, folder: Path) -> None:
    """Plain onnxruntime says what `killick predict` says, and what is named on the pages is there."""
    (said,) = label("exports/mine", "photo.jpg", probabilities=True)
    assert names["found"]["probabilities"][0] == pytest.approx(said.probabilities, abs=0.01)
    assert names["found"]["in_distribution"].shape == (1,)
    pages = {each: (DOCS / each).read_text() for each in ("deploying.md", "formats.md")}
    for file in (folder / "exports" / "mine").iterdir():
        assert all(f"`{file.name}`" in text for text in pages.values()), file.name
    for file in (folder / "published" / "mine").iterdir():
        assert all(f"`{file.name}`" in text for text in pages.values()), file.name
    assert killick.load("my-model").reference_policy.startswith("synthetic")


AFTERWARDS = {
    "deploying.md": check_deploying,
    "training.md": check_training,
    "evaluation.md": check_evaluation,
    "formats.md": check_formats,
    "quickstart.md": check_quickstart,
    "protocols/folded.md": check_folding,
}


@pytest.mark.parametrize("page", pages_with("sh"), ids=name)
def test_every_command_is_understood(page, capsys, monkeypatch):
    monkeypatch.setattr("killick.training.source_run.find_start", Path)  # nor is the hub asked
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands(page):
        first = command.split()[0]
        if first == "make":
            assert command.split()[1] in targets
        elif first == "python":
            assert command.endswith("/check.py"), f"nothing here checks {command!r}"  # is run below
        elif first != "pip":
            assert first in ("killick", "torchrun"), f"nothing here checks {command!r}"
            understand(arguments(command))


def understand(words: list[str]) -> None:
    if words in ([], ["--version"]):
        return
    assert words[0] in COMMANDS, words
    known, _ = parse(words)  # refuses what it does not know
    if known.command == "train" and known.resume is None:
        assert main([*words, "--print-recipe"]) == 0


@pytest.fixture(scope="module")
def small_runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("small")
    for protocol in ("standard", "masked"):
        words = ["--protocol", protocol, "--output", str(folder / protocol)]
        assert main(["train", *words, *SMALLER["train"]]) == 0
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("page", pages_with("sh"), ids=name)
def test_every_command_runs_at_small_size(page, small_runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for place in ("photo.jpg", "photos/one.png", "more/a/two.png"):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 50), 60).save(place)
    for command in commands(page):
        words = shlex.split(command)
        if words[0] == "make" or reason_not_to_run(command):
            continue
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
            continue
        for place in runs_needed(words[1:]):
            protocol = "standard" if "standard" in place.name else "masked"
            shutil.copytree(small_runs[protocol], place)
        try:
            smaller = [] if words == ["killick", "study"] else SMALLER.get(words[1], [])
            code = main([*words[1:], *smaller])
        except SystemExit as end:
            code = end.code
        assert code == 0, (command, capsys.readouterr().err)


def runs_needed(words: list[str]) -> list[Path]:
    """Run folders that a command reads and no command of the same page has made."""
    known = None if words[0] == "--version" else parse(words)[0]
    if known is None:
        return []
    if known.command in ("evaluate", "export", "predict", "publish"):
        places = [Path(known.model)]
    else:
        places = known.runs if known.command == "report" else []
    return [place for place in places if not place.exists()]


def reason_not_to_run(command: str) -> str | None:
    return next((why for what, why in NOT_RUN.items() if re.search(what, command)), None)


def test_every_exception_is_needed_and_most_commands_run():
    every = [command for page in PAGES for command in commands(page)]
    for what in NOT_RUN:
        assert any(re.search(what, command) for command in every), what
    run = [command for command in every if not reason_not_to_run(command)]
    assert len(run) >= 25
    made = ("compare", "train", "evaluate", "report", "corrupt", "list")
    for kind in (*made, "export", "predict", "publish"):
        assert any(command.startswith(f"killick {kind}") for command in run), kind


# What the pages say ------------------------------------------------------------------------------


@pytest.mark.parametrize("card", CARDS, ids=name)
def test_a_card_has_all_its_parts_in_order(card):
    text = card.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert '<p class="formula">' in text
    for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        assert len(part.split()) >= 4, "an empty part"


def test_every_protocol_has_a_card():
    protocols = Protocol.__dataclass_fields__["name"].metadata["among"]
    targets = Protocol.__dataclass_fields__["target"].metadata["among"]
    wanted = {p for p in protocols if p != "masked"} | {f"masked-{target}" for target in targets}
    assert {card.stem for card in CARDS} == {*wanted, "finetuning", *PROTOCOLS, "folded"}


def test_the_columns_that_are_explained_are_those_there_are():
    text = (DOCS / "formats.md").read_text().split("## Rows")[1].split("## Answers")[0]
    cells = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(cells)) == list(COLUMNS)


def test_the_outputs_fields_and_precisions_that_are_explained_are_those_there_are():
    text = (DOCS / "deploying.md").read_text()

    def first_cells(heading: str) -> list[str]:
        table = text.split(f"| {heading} |")[1].split("\n\n")[0]
        return re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)))

    assert tuple(first_cells("output")) == OUTPUTS
    assert tuple(first_cells("`--precision`")) == PRECISIONS
    assert first_cells("field") == list(Record.__dataclass_fields__)
    keys = (DOCS / "formats.md").read_text().split("## Exported folder")[1].split("## Hub")[0]
    told = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.+?) \|", keys, re.MULTILINE)))
    assert set(told) == {"format", "version", *About.__dataclass_fields__}


def test_the_limits_on_pictures_are_those_of_the_code():
    text = " ".join((DOCS / "deploying.md").read_text().split())
    text = text.split("## Pictures from")[1].split("## Fuzzing")[0]
    for told in (
        f"files of more than {decoding.LARGEST_FILE // 2**20} MiB",
        f"more than {Image.MAX_IMAGE_PIXELS // 10**6} million pixels",
        f"more than {decoding.MOST_SCANS} scans",
        f"at most {decoding.FILE_COPIES} times its file, {decoding.PEAK_BYTES} bytes for each",
        f"{decoding.SPARE_BYTES // 2**20} MiB: 2.1 GB",
        f"no more than {reading.PIXELS_AT_ONCE // 10**6} million pixels at a time",
    ):
        assert told in text, told
    most = decoding.PEAK_BYTES * Image.MAX_IMAGE_PIXELS + decoding.SPARE_BYTES
    assert f"{most / 1e9:.1f}" == "2.1"


def test_the_accuracies_are_those_of_the_result_files():
    row = r"^\| (\w+) \| (.+?) \| ([\d.]+) \| \[.+?\]\((\S+?csv)\) \|$"
    rows = re.findall(row, (DOCS / "protocols" / "index.md").read_text(), re.MULTILINE)
    assert len(rows) == 6
    for protocol, setting, told, path in rows:
        with open(DOCS / "protocols" / path) as file:
            (found,) = [
                each["test_accuracy"]
                for each in csv.DictReader(file)
                if (each["protocol"], each["setting"]) == (protocol, setting)
            ]
        assert f"{100 * float(found):.1f}" == told, (protocol, setting)


def test_the_other_numbers_are_those_of_the_result_files():
    text = (DOCS / "protocols" / "index.md").read_text()
    printed = (RESULTS / "demo-cpu.txt").read_text()
    cells = re.findall(r"[\d.]+ ± [\d.]+", text)
    assert len(cells) == 8
    assert all(cell in printed for cell in cells)
    with open(RESULTS / "shapes-small-cpu.csv") as file:
        clean = [100 * float(row["test_accuracy"]) for row in csv.DictReader(file)]
    told = f"five seeds, {min(clean):.1f} to {max(clean):.1f} % clean"
    assert len(clean) == 5
    assert told in (DOCS / "protocols" / "standard.md").read_text()
    with open(RESULTS / "transduction-cpu.csv") as file:
        ratio = float(next(csv.DictReader(file))["ratio"])
    assert f"{ratio:.0f} times as fast" in (DOCS / "protocols" / "transductive.md").read_text()


def test_the_words_are_those_of_the_house():
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
        if page.stem != "concepts":  # which says that the word is not used so
            assert not re.search(r"\b(the|an|each|every|random) anchors?\b", text), page
        american = r"\b(color|normaliz|behavior|gray|center(?!ed)|labeled|optimiz|neighbor)\w*"
        assert not re.search(american, text, re.IGNORECASE), page


# What is made when the site is built --------------------------------------------------------------


@pytest.fixture
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("made", DOCS / "made.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_part_that_is_made_is_asked_for_and_the_other_way_round(made):
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"<!-- made: (.+?) -->", text)) == set(made.PARTS)


def test_a_kept_comparison_becomes_a_table(made, tmp_path, monkeypatch):
    (tmp_path / "compare-cpu.csv").write_text(
        "arm,measure,seed 0,seed 1,mean,spread,difference,low,high,how\n"
        "standard,clean_top1,0.9,0.92,0.91,0.0141,,,,\n"
        "masked-label,clean_top1,0.9,0.9,0.9,0,-0.01,-0.023,0.003,bootstrap\n"
        "masked-label,corrupted_smooth_ece,0.05,0.05,0.05,,,,,\n"
    )
    monkeypatch.setattr(made, "RESULTS", tmp_path)
    table = made.describe_comparisons()
    assert "[compare-cpu.csv](../../benchmarks/results/compare-cpu.csv)" in table
    assert "| standard | 91.0 ± 1.4 |  |  |  |" in table
    assert "| masked-label | 90.0 ± 0.0 (-1.0; -2.3 to +0.3) |  | 0.050 |  |" in table


# The site ----------------------------------------------------------------------------------------


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


def test_every_page_is_built_and_reached_from_the_first(site):
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert built >= {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES}
    links = {link.split("#")[0] for link in Html(site / "index.html").links}
    for page in PAGES:
        assert page.relative_to(DOCS).with_suffix(".html").as_posix() in links, page


def test_every_link_of_the_site_leads_somewhere(site):
    pages = {path.resolve(): Html(path) for path in site.rglob("*.html") if path.stem != "404"}
    count = 0
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, fragment = link.partition("#")
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            assert there.is_file(), (path.name, link)
            if fragment and there in pages:
                assert fragment in pages[there].ids, (path.name, link)
            count += 1
    assert count > 500


def test_the_site_loads_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        for source in Html(path).loaded:
            assert not re.match(r"(https?:)?//", source), (path.name, source)
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//", path.read_text(encoding="utf-8"))


def test_every_command_and_option_is_in_the_command_line_page(site):
    text = (site / "command-line.html").read_text()
    ids = Html(site / "command-line.html").ids
    _, parsers = make_parser()
    for kind, parser in parsers.choices.items():
        assert f"killick-{kind}" in ids
        for action in parser._actions:
            for option in action.option_strings:
                assert f"<code>{option}</code>" in text, option


def test_every_recipe_and_setting_is_in_the_recipes_page(site):
    text = (site / "recipes.html").read_text()
    for recipe, path in shipped().items():
        copied = site / "files" / path.relative_to(ROOT)
        assert f">{recipe}</a>" in text
        assert copied.read_text() == path.read_text()
    for setting in settings():
        assert setting == "about" or f"<code>{setting}</code>" in text, setting


def test_every_public_name_is_in_the_api_page(site):
    ids = Html(site / "api.html").ids
    same = {
        "standard": "killick.core.standard.standard",
        "predict": "killick.core.inference.predict",
        "export": "killick.deploy.exporter.export",
    }
    for each in killick.__all__:
        place = same.get(each, f"killick.{each}")
        assert {place, place.replace(".", "")} & ids, each
    for each in vars(killick.metrics):
        if each[0] != "_" and not isinstance(vars(killick.metrics)[each], ModuleType):
            assert f"killick.metrics.{each}" in ids, each
    assert {"killick.training.loop.train", "killick.training.recipe_files.load_recipe"} <= ids
    assert {"killick.grid.compare", "killick.report.writer.write_report"} <= ids


def test_the_examples_of_docstrings_are_shown_as_code(site):
    text = (site / "api.html").read_text()
    assert '<details class="example"' not in text
    assert text.count("&gt;&gt;&gt;") > 10


def test_the_pages_are_legible_on_a_phone_and_quiet_in_a_browser(site):
    sync = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    if found is None and not os.environ.get("CI"):
        pytest.skip("no browser is installed")
    noise: list[str] = []
    with sync.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda each: noise.append(each.url) if "://" in each.url[5:] else None)
        for path in sorted(site.rglob("[!4]*.html")):  # 404.html is for servers
            page.goto(path.as_uri())
            assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, path.name
        browser.close()
    assert [each for each in noise if not each.startswith("file:")] == []
