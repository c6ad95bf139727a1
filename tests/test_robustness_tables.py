"""Occlusion, attacks and conformal sets in the report and on the terminal."""

import csv
import io

import pytest
from small_models import find, make_anchored, make_set, make_standard

import killick
from killick.cli.summaries import show_summary
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS
from killick.report.writer import write_report
from killick.results.run_folder import find_runs

SUITES = ("occlusion", "adversarial", "conformal", "corruptions", "multiplicity")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A folder with the rows of two models, and the rows by model."""
    folder, rows = tmp_path_factory.mktemp("evaluations"), {}
    held = make_set(120, seed=9)
    for name, model in (("plain", make_standard()), ("mine", make_anchored())):
        rows[name] = killick.evaluate(
            model,
            make_set(),
            SUITES,
            limit=60,
            corruptions=["contrast"],
            validation=held,
            name=name,
            folder=folder / name,
        )
    return folder, rows


def test_the_report_has_a_table_for_each_suite(evaluated, tmp_path):
    folder, rows = evaluated
    data = make_report_data(find_runs([folder]))
    tables = {table.name: table for table in SECTIONS.find("robustness").make(data).tables}
    assert list(tables) == [
        "robustness-occlusion",
        "robustness-adversarial",
        "robustness-conformal",
        "robustness-multiplicity",
    ]
    for suite, column, metric, where in (
        ("occlusion", "50 % covered", "top1", {"corruption": "occlusion", "severity": 50}),
        ("adversarial", "PGD20 2/255", "top1", {"corruption": "pgd20", "severity": 2}),
        ("conformal", "THR coverage %", "conformal_thr_coverage", {"suite": "clean"}),
    ):
        lines = list(csv.DictReader(io.StringIO(tables[f"robustness-{suite}"].csv)))
        for name in ("plain", "mine"):
            arm = f"{name}, clean" if suite == "conformal" else name
            (line,) = [line for line in lines if line["arm"] == arm]
            value = find(rows[name], metric, inference="single", **where)["value"]
            assert line[column] == f"{100 * value:.1f}"
    (line,) = csv.DictReader(io.StringIO(tables["robustness-multiplicity"].csv))
    for metric in ("ambiguity", "discrepancy"):
        value = find(rows["mine"], metric, suite="multiplicity")["value"]
        assert line[metric] == f"{100 * value:.1f}"
    page = write_report([], tmp_path, data=data)
    assert '<section id="robustness"' in page.read_text(encoding="utf-8")
    assert (tmp_path / "figures" / "robustness-conformal.csv").exists()


def test_a_report_without_them_has_no_such_section(report_page):
    assert '<section id="robustness"' not in report_page.read_text(encoding="utf-8")


def test_the_terminal_shows_them_apart_from_corruptions(evaluated, capsys):
    rows = evaluated[1]["mine"]
    show_summary(rows)
    blocks = [block.splitlines() for block in capsys.readouterr().out.split("\n\n")]
    tables = {block[0].split("  ")[0]: block for block in blocks}
    assert tables["top-1 %"][0].split()[2:] == ["1", "2", "3", "4", "5"]
    assert tables["top-1 %, % covered"][0].split()[-4:] == ["10", "30", "50", "70"]
    pgd = find(rows, "top1", corruption="pgd20", severity=8)["value"]
    assert tables["top-1 %, eps / 255"][2].split()[-1] == f"{100 * pgd:.1f}"
    assert len(tables["conformal sets"]) == 1 + 2 * 2  # clean and corrupted, two inferences
    disagree = [find(rows, key)["value"] for key in ("ambiguity", "discrepancy")]
    shown = [f"{100 * value:.1f}" for value in disagree]
    assert tables["members disagree"][1].split()[-2:] == shown
