"""The sitting that runs all benchmarks of a GPU, and how its figures get into the pages."""

import csv
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
for folder in ("benchmarks", "docs"):
    sys.path.insert(0, str(ROOT / folder))
import gpu  # noqa: E402
import timed  # noqa: E402


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    """Three made-up benchmarks, of which the second fails."""
    (tmp_path / "results").mkdir()
    (tmp_path / "good.py").write_text(
        "import sys, pathlib\npathlib.Path(__file__).with_name('asked').write_text(str(sys.argv))"
    )
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    made = {"first": ["good.py", "DATA", "--more"], "second": ["bad.py"], "third": ["good.py"]}
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "BENCHMARKS", made)
    monkeypatch.setattr(gpu, "record", lambda line: recorded(line, tmp_path / "gpu.csv"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return tmp_path


recorded = gpu.record


def lines_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_what_fails_is_told_and_the_others_run(sitting, capfd):
    assert gpu.main(["--data", "pack:mine.npz"]) == 1
    lines = lines_of(sitting / "gpu.csv")
    assert [line["benchmark"] for line in lines] == ["first", "second", "third"]
    assert [line["exit_code"] for line in lines] == ["0", "3", "0"]
    assert {line["code"] for line in lines} == {gpu.digest_code()}
    assert lines[0]["command"] == "python benchmarks/good.py pack:cifar10.npz --more"
    assert capfd.readouterr().err == "failed: second\n"


def test_some_alone_take_the_place_of_their_lines(sitting):
    gpu.main(["--data", "pack:mine.npz"])
    (sitting / "bad.py").write_text("")
    assert gpu.main(["--data", "pack:mine.npz", "--only", "second"]) == 0
    assert [line["exit_code"] for line in lines_of(sitting / "gpu.csv")] == ["0", "0", "0"]
    assert gpu.main(["--data", "pack:mine.npz", "--only", "first"]) == 0
    assert "'pack:mine.npz', '--more'" in (sitting / "asked").read_text()


def test_without_a_gpu_nothing_runs(sitting, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--data", "pack:mine.npz"])
    assert "expected a GPU, found none" in capsys.readouterr().err
    assert not (sitting / "gpu.csv").exists()


def test_the_code_is_that_of_every_file_wherever_it_lies(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name / "recipes").mkdir(parents=True)
        (tmp_path / name / "a.py").write_text("a = 1\n")
        (tmp_path / name / "recipes" / "b.yaml").write_text("epochs: 1\n")
    here, there = tmp_path / "here", tmp_path / "there"
    first = gpu.digest_code(here)
    assert gpu.digest_code(there) == first
    (there / "__pycache__").mkdir()
    (there / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert gpu.digest_code(there) == first
    (there / "recipes" / "b.yaml").write_text("epochs: 2\n")
    assert gpu.digest_code(there) != first
    (here / "a.py").rename(here / "c.py")
    assert gpu.digest_code(here) != first


@pytest.mark.parametrize("name", gpu.BENCHMARKS)
def test_each_benchmark_is_there_and_on_the_page(name):
    script, *words = gpu.BENCHMARKS[name]
    text = (ROOT / "benchmarks" / script).read_text()
    assert all(f'"{word}"' in text for word in words if word.startswith("--"))
    assert f"python benchmarks/{script}" in (ROOT / "benchmarks" / "README.md").read_text()


def test_all_figures_of_a_gpu_are_of_one_code():
    lines = lines_of(gpu.RECORD)
    assert [line["benchmark"] for line in lines] == list(gpu.BENCHMARKS)
    assert {line["exit_code"] for line in lines} == {"0"}
    assert len({line["code"] for line in lines}) == 1
    for line in lines:
        words = gpu.BENCHMARKS[line["benchmark"]]
        words = ["pack:cifar10.npz" if word == "DATA" else word for word in words]
        assert line["command"] == f"python benchmarks/{' '.join(words)}"


@pytest.mark.parametrize("page", timed.PAGES)
def test_rows_of_timings_are_renewed_and_nothing_else(page):
    text, folder = (ROOT / page).read_text(), (ROOT / page).parent
    assert timed.renew(text, folder) == text
    rows = timed.ROW.findall(text)
    assert len(rows) == len(re.findall(r"^\| .+ \| \(.+ to .+\) \| \[", text, re.MULTILINE)) >= 9
    old = re.sub(r"(\| )[\d.]+( \| \()[\d.]+ to [\d.]+(\) \| \[)", r"\g<1>9.999\g<2>0 to 1\3", text)
    assert old.count("| 9.999 | (0 to 1) |") == len(rows)
    assert timed.renew(old, folder) == text


def test_a_row_that_was_not_measured_is_refused(tmp_path):
    head = "setting,contender,baseline,ratio,ratio_p10,ratio_p90\n"
    (tmp_path / "a.csv").write_text(f"{head}s,x,b,1.5,1,2\ns,b (control),b,1,0.9,1.1\n")
    row = "| {} | s | 1.0 | (1 to 2) | [a](a.csv) |"
    assert (
        timed.renew(row.format("x"), tmp_path) == "| x | s | 1.500 | (0.90 to 1.10) | [a](a.csv) |"
    )
    with pytest.raises(SystemExit, match="expected 'y' with 's' in a.csv, found no such line"):
        timed.renew(row.format("y"), tmp_path)
