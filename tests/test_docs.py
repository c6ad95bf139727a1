"""What README and the other pages say is true: blocks run, files exist, figures have a source."""

import argparse
import csv
import re
import runpy
import sys
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt

from killick.cli import COMMANDS, main
from killick.evaluation.plan import SUITES
from killick.training import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += [ROOT / "docs" / "training.md", ROOT / "docs" / "evaluation.md"]
LINKING = sorted({*PAGES, *(ROOT / "docs").rglob("*.md")})  # whose blocks test_docs_site.py runs
RESULTS = ROOT / "benchmarks" / "results"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_every_python_block_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "README.md", "python")
    assert len(found) == 1
    for block in found:
        exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "my-model" / "config.json").is_file()


def test_the_example_of_the_readme_says_the_truth_about_folding(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(blocks(ROOT / "README.md", "python")[0], names)
    x, model, plain = names["x"], names["model"], names["plain"]
    with torch.no_grad():
        torch.testing.assert_close(plain(x), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_commands_and_linked_files_exist(page):
    text = page.read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [line for block in blocks(page, "sh") for line in block.splitlines()]
    for name in re.findall(r"^make (\w+)", "\n".join(commands), re.MULTILINE):
        assert name in targets
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / link).exists(), link


def test_every_training_command_of_the_pages_is_understood(capsys, monkeypatch):
    monkeypatch.setattr("killick.training.source_run.find_start", Path)  # nor is the hub asked
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [re.sub(r"#.*", "", line).split() for line in lines if "killick train" in line]
    assert len(commands) >= 10
    for words in commands:
        words = words[words.index("train") :]
        if "--resume" not in words:
            assert main([*words, "--print-recipe"]) == 0, capsys.readouterr().err


def test_the_recipe_of_the_training_page_works(tmp_path):
    page = ROOT / "docs" / "training.md"
    (tmp_path / "mine.yaml").write_text(blocks(page, "yaml")[0])
    assert load_recipe(tmp_path / "mine.yaml").data.size == 64


def test_every_command_after_training_of_the_pages_is_understood():
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    kinds = ("evaluate", "corrupt", "export", "predict", "publish")
    asked = [line for line in lines if re.match(rf"killick ({'|'.join(kinds)})\b", line)]
    commands = [re.sub(r"#.*", "", line).split() for line in asked]
    assert len(commands) >= 8
    assert {words[1] for words in commands} == set(kinds)
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(dest="command")
    for name in kinds:
        COMMANDS[name].add(subparsers, name)
    for words in commands:
        words = words[words.index("killick") + 1 :]
        parser.parse_args(words)  # exits where an option is unknown


def test_the_suites_of_the_evaluation_page_are_those_there_are():
    text = (ROOT / "docs" / "evaluation.md").read_text().split("## Suites")[1].split("**Anch")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == SUITES


def test_the_speeds_in_the_readme_are_those_of_the_result_files():
    row = r"^\| ([^|]+?) \| ([\d.]+) \| ([^|]+?) \| \[.+?\]\((.+?)\)"
    rows = re.findall(row, (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) >= 4
    for what, times, than, path in rows:
        with open(ROOT / path) as file:
            found = list(csv.DictReader(file))
        if "corruptions" in path:
            setting = f"peer, {what.split(', ')[1]}"
            (value,) = [
                r["times_as_fast"]
                for r in found
                if (r["setting"], r["corruption"]) == (setting, "all 19")
            ]
        else:
            (value,) = [r["ratio"] for r in found if (r["setting"], r["contender"]) == (what, than)]
        assert float(f"{float(value):.2g}") == float(times), what
    (whole,) = re.findall(r"takes ([\d.]+) core-minutes", (ROOT / "README.md").read_text())
    assert f"{whole} core-minutes in all" in (RESULTS / "corruptions-cpu.csv").read_text()
    with open(RESULTS / "corruptions-h200.csv") as file:
        seconds = {row["setting"]: float(row["seconds"]) for row in csv.DictReader(file)}
    text = (ROOT / "README.md").read_text()
    told = re.search(
        r"in ([\d.]+) s, in bfloat16 in ([\d.]+) s; making them is ([\d.]+) s of it;"
        r" the first time, compiling, it takes ([\d.]+) s",
        text,
    )
    settings = [f"made and classified, {p}, second time" for p in ("float32", "bfloat16")]
    settings += ["made: all 29", "made and classified, float32, first time"]
    for setting, said in zip(settings, told.groups(), strict=True):
        assert f"{seconds[setting]:.1f}" == said


@pytest.mark.parametrize("page", ["README.md", "docs/protocols/index.md"])
def test_the_costs_are_those_of_the_result_files(page):
    row = r"^\| (.+?) \| (.+?) \| ([\d.]+) \| \((.+?) to (.+?)\) \| \[.+?\]\((.+?)\)"
    rows = re.findall(row, (ROOT / page).read_text(), re.MULTILINE)
    assert len(rows) >= 9
    for what, setting, ratio, low, high, path in rows:
        with open((ROOT / page).parent / path) as file:
            measured = {
                row["contender"]: row for row in csv.DictReader(file) if row["setting"] == setting
            }
        found = measured[what]
        control = measured[f"{found['baseline']} (control)"]
        assert f"{float(found['ratio']):.3f}" == ratio, (what, setting)
        noise = (f"{float(control['ratio_p10']):.2f}", f"{float(control['ratio_p90']):.2f}")
        assert noise == (low, high), (what, setting)


def test_the_comparison_in_the_readme_is_that_of_the_result_file():
    with open(RESULTS / "compare-cpu.csv") as file:
        rows = {(row["arm"], row["measure"]): row for row in csv.DictReader(file)}
    text = (ROOT / "README.md").read_text().split("What it found")[1].split("A toy")[0]
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    measures = ("clean_top1", "corrupted_top1", "severity5_top1", "corrupted_smooth_ece")
    measures += ("ood_auroc",)
    arms = ("standard", "anchored", "masked-uniform", "masked-label", "finetuned")
    told = {cells[0]: cells[1:] for cells in table if cells[0] in arms}
    assert set(told) == set(arms)
    for arm, cells in told.items():
        for measure, cell in zip(measures, cells, strict=True):
            row = rows[arm, measure]
            factor, digits = (1, 3) if measure.endswith("ece") else (100, 1)
            names = [
                "mean",
                "spread",
                *(["difference", "low", "high"] if row["difference"] else []),
            ]
            expected = [round(factor * float(row[name]), digits) for name in names]
            found = [float(n.replace("−", "-")) for n in re.findall(r"[−+]?\d+\.\d+", cell)]
            assert found == expected, (arm, measure)


def test_the_cost_of_fewer_bits_is_that_of_the_result_file():
    with open(RESULTS / "precisions-cpu.csv") as file:
        rows = {row["precision"]: row for row in csv.DictReader(file)}
    text = (ROOT / "docs" / "deploying.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert [name for name, *_ in told] == list(rows)
    for name, *cells in told:
        row = rows[name]
        shares = [f"{100 * float(row[column]):.2f}" for column in ("accuracy", "same label")]
        ratio = "1" if name == "float32" else f"{float(row['time over float32']):.2f}"
        assert cells == [row["kilobytes"], *shares, ratio], name
    noise = f"float32 against itself measured {float(row['control']):.2f}"
    assert noise in " ".join(text.split())


def test_the_cost_of_other_references_is_that_of_the_result_file():
    with open(RESULTS / "references-cifar-h200.csv") as file:
        rows = {row["references"]: row for row in csv.DictReader(file)}
    text = (ROOT / "docs" / "deploying.md").read_text()
    table = text.split("**What they cost.**")[1].split("The same networks")[0]
    told = dict(
        re.findall(r"^\| (?!references|---)(.+?) (?:\(.+?\) )?\| (.+) \|$", table, re.MULTILINE)
    )
    assert set(told) == set(rows)
    measures = ("clean top1", "corrupted top1", "corrupted smooth ECE", "OOD AUROC")
    for name, cells in told.items():
        for measure, cell in zip(measures, cells.split(" | "), strict=True):
            factor, digits = (1, 3) if measure.endswith("ECE") else (100, 1)
            both = (rows[name][measure], rows[name][f"{measure}, std"])
            expected = " ± ".join(f"{factor * float(value):.{digits}f}" for value in both)
            assert cell == expected, (name, measure)
    text = " ".join(text.split())
    anchored, standard = (
        f"{100 * float(rows[name]['OOD AUROC']):.1f} %" for name in ("mean image", "none")
    )
    assert f"{anchored} against {standard}" in text
    with open(RESULTS / "references-shapes-cpu.csv") as file:
        rows = {row["references"]: row for row in csv.DictReader(file)}
    for name, what in {
        "training image, each of 10": "a training image is",
        "mean image": "the mean image",
        "synthetic, each of 10": "a synthetic one",
        "black": "a black one",
    }.items():
        clean, corrupted = (
            100 * float(rows[name][f"{kind} top1"]) for kind in ("clean", "corrupted")
        )
        assert f"with {what} {clean:.1f} and {corrupted:.1f} %" in text, name
    with open(RESULTS / "compare-cpu.csv") as file:
        means = {(row["arm"], row["measure"]): row["mean"] for row in csv.DictReader(file)}
    for arm, what in (("standard", "the standard network"), ("masked-label", "the one masked")):
        assert f"{100 * float(means[arm, 'ood_auroc']):.1f} % for {what}" in text


def test_the_regression_example_finds_uncertainty_away_from_the_data(tmp_path, monkeypatch, capsys):
    script = str(ROOT / "examples" / "regression.py")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "figure.svg"), "400"])
    with matplotlib.rc_context():
        runpy.run_path(script, run_name="__main__")
        plt.close()
    times = float(re.search(r"(\d+) times", capsys.readouterr().out).group(1))
    assert times > 2
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_the_demo_trains_and_tests_at_small_size(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import demo

    monkeypatch.setattr(demo, "EPOCHS", 1)
    small = [part[:128] for part in demo.digits()]
    monkeypatch.setattr(demo, "digits", lambda: small)
    demo.main()
    printed = capsys.readouterr().out
    assert "Accuracy on 128 digits" in printed
    assert "difference" in printed


def test_what_other_days_gave_is_that_of_the_files_and_ends_with_the_newest():
    def read(name):
        with open(RESULTS / name, newline="") as file:
            return list(csv.DictReader(file))

    days = read("folded-days-h200.csv")
    told = " ".join((ROOT / "README.md").read_text().split())
    ratios = [f"{float(row['ratio']):.3f}" for row in days]
    assert "at batch 64 took {}, {} and, in the table, {} of the plain".format(*ratios) in told
    (newest,) = [
        row["ratio"]
        for row in read("folded-h200.csv")
        if (row["setting"], row["contender"]) == (days[-1]["setting"], "folded")
    ]
    assert f"{float(newest):.3f}" == ratios[-1]
    *earlier, last = (
        [
            f"{100 * float(row['test_accuracy']):.1f}"
            for row in read("training-runs-days-h200.csv")
            if row["commit"] == commit
        ]
        for commit in dict.fromkeys(r["commit"] for r in read("training-runs-days-h200.csv"))
    )
    now = [f"{100 * float(r['test_accuracy']):.1f}" for r in read("training-runs-h200.csv")]
    assert last == now
    assert earlier[0][:2] == earlier[1][:2]
    low, high = sorted(day[2] for day in earlier)
    page = " ".join((ROOT / "docs/protocols/index.md").read_text().split())
    assert "were {}, {} and {} or {}".format(*earlier[0][:2], low, high) in page
