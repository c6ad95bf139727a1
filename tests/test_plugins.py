"""A package outside the tree adds one entry of each kind, made from the files in CONTRIBUTING.md."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from killick.cli import main

ROOT = Path(__file__).parent.parent
PLUGIN = ["--plugin", "killick-extra"]
TRAIN = [
    *["train", "--data", "stripes", "--network", "killick:linear_net", "--epochs", "1"],
    *["--protocol", "softened", "--protocol.temperature", "3", "--loggers", "[lines]"],
    *["--components", "[{name: logit_penalty, strength: 0.1}]", "--output", "run", "--quiet"],
    *["--data.validation", "20", "--data.limit", "null", "--batch", "32"],
]
SCRIPT = """
import json, sys
import killick
from killick.cli import main

results = []
for words in json.loads(sys.argv[1]):
    if words[0] == "load":
        try:
            killick.load(words[1])
            results.append(0)
        except killick.errors.KillickError:
            results.append(2)
    else:
        results.append(main(words))
imported = any(name.startswith("killick_extra") for name in sys.modules)
print(json.dumps([results, imported]))
"""


def read_blocks(language: str) -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the installed package."""
    folder = tmp_path_factory.mktemp("plugins")
    for block in read_blocks("python"):
        path = folder / re.match(r"# (killick_extra/\w+\.py)\n", block).group(1)
        path.parent.mkdir(exist_ok=True)
        path.write_text(block)
    (folder / "killick_extra" / "__init__.py").touch()
    (metadata := folder / "killick_extra-1.0.dist-info").mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: killick-extra\nVersion: 1.0\n")
    (toml,) = read_blocks("toml")
    lines = []
    for group, points in tomllib.loads(toml)["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder


def run_commands(place: Path, *commands: list[str]) -> tuple[list[int], bool, list[str]]:
    """Exit codes, whether the package was imported, and the lines of stdout and stderr."""
    env = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=place,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    codes, imported = json.loads(last)
    return codes, imported, [*lines, *done.stderr.splitlines()]


@pytest.fixture(scope="module")
def enabled(place) -> list[str]:
    """What the commands print that use every entry."""
    evaluate = ["evaluate", "run", "--suite", "clean,corruptions,calibration", "--severities", "1"]
    codes, imported, lines = run_commands(
        place,
        [*TRAIN, *PLUGIN],
        [*evaluate, "--corruptions", "darkness", *PLUGIN],
        ["report", "run", "--quiet", *PLUGIN],
        ["study", "learning-rate", "--rates", "0.1,0.2,0.3", "--dry-run", *PLUGIN],
        ["list", *PLUGIN],
    )
    assert codes == [0] * 5, lines[-12:]
    assert imported
    return lines


def test_every_entry_of_an_enabled_package_is_listed(enabled):
    names = ("darkness", "overconfidence", "softened", "logit_penalty", "learning-rate", "runs")
    for name in (*names, "stripes", "lines", "killick:linear_net"):
        assert any(line.split()[:1] == [name] for line in enabled), name


def test_a_run_uses_every_entry(enabled, place):
    run = place / "run"
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]
    assert {"overconfidence", "top1"} <= {row["metric"] for row in rows}
    assert "darkness" in {row["corruption"] for row in rows}
    assert {row["network"] for row in rows} == {"killick:linear_net"}
    assert {row["protocol"] for row in rows} == {"softened"}
    assert (run / "log.txt").read_text().startswith("train ")
    assert "Runs per arm" in (run / "report.html").read_text()
    assert any("overconfidence" in line for line in enabled)
    assert any("lr0.3" in line for line in enabled)


def test_nothing_of_it_is_imported_unless_it_is_enabled(enabled, place):
    (place / "named.yaml").write_text("base: shapes-small\ncomponents: [{name: logit_penalty}]\n")
    for name in ("run", "other"):
        (place / name).mkdir(exist_ok=True)
    refused = [
        *([*TRAIN[:-1], "--output", "other"],),
        ["train", "--recipe", "named.yaml", "--print-recipe"],
        ["train", "--data", "stripes", "--output", "other"],
        ["train", "--network", "killick:linear_net", "--output", "other"],
        ["train", "--loggers", "[lines]", "--output", "other"],
        ["train", "--resume", "run"],
        ["evaluate", "run", "--data", "stripes"],
        ["evaluate", "run", "--data", "shapes", "--corruptions", "darkness"],
        ["study", "learning-rate", "--dry-run"],
        ["load", "run/model"],
    ]
    codes, imported, lines = run_commands(place, *refused, ["report", "run"], ["list"])
    assert codes == [2] * len(refused) + [0, 0], lines
    assert not imported
    assert any("--plugin killick-extra" in line for line in lines)
    assert not any("linear_net" in line.split()[:1] for line in lines)


def test_a_package_that_offers_nothing_is_one_line(capsys):
    assert main(["list", "--plugin", "torch"]) == 2
    error = capsys.readouterr().err
    assert "'torch' extends Killick" in error
    assert error.count("\n") == 1
