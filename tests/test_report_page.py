"""The page of a report: what is on it, what is escaped, what is missing."""

import base64
import json
import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from report_grid import grid_runs, make_grid
from report_runs import LABEL, STANDARD

from killick.cli import main, parse
from killick.cli import report as reporting
from killick.errors import KillickError, OptionError
from killick.report.page import best_means, choose_columns
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS, Content, Section, provenance
from killick.report.tables import TextTable
from killick.report.writer import headline, write_report
from killick.results.predictions import prediction_files, read_predictions, write_predictions
from killick.results.run_folder import find_runs

ORDER = [
    *(
        "headline",
        "severity-difference",
        "arms",
        "severity",
        "corruptions",
        "reliability",
        "detection",
        "uncertainty",
    ),
    *("training", "examples", "provenance"),
]
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def text_of(page: Path) -> str:
    return re.sub(r"\s+", " ", "".join(read(page).text))


@pytest.fixture(scope="module")
def odd_page(report_data, tmp_path_factory) -> Path:
    """A page with all that is not on every page, over figures of an earlier one."""

    def make(data):
        rows = tuple((arm.name, str(len(arm.runs))) for arm in data.comparison.arms)
        return Content(tables=(TextTable("mine", "Runs", ("arm", "runs"), rows, "<my note>"),))

    less = {key: n for key, n in report_data.table["anchored"].items() if key != "clean_top1"}
    comparison = replace(report_data.comparison, notes=("<a note>",))
    table = {**report_data.table, "anchored": less}
    folder = tmp_path_factory.mktemp("odd") / "deep"
    (folder / "figures").mkdir(parents=True)
    for name in ("reliability-9.svg", "detection-roc.csv", "other.svg", "reliability-9.txt"):
        (folder / "figures" / name).write_text("old")
    SECTIONS.register("mine", Section("mine", "My section", 15, make))
    try:
        return write_report(
            [],
            folder / "mine.html",
            data=replace(report_data, comparison=comparison, table=table),
            failed=["<ran out of memory>"],
        )
    finally:
        SECTIONS.remove("mine")


def test_a_registered_section_is_on_the_page_in_its_order_and_saved(odd_page):
    text = odd_page.read_text()
    places = [text.index(f'<section id="{key}"') for key in ("severity", "mine", "corruptions")]
    assert places == sorted(places)
    assert "<my note>" in text_of(odd_page)
    table = odd_page.parent / "figures" / "mine.csv"
    assert table.read_text().splitlines()[1] == "standard,2"


def test_what_failed_and_notes_are_on_the_page(odd_page):
    text = text_of(odd_page)
    assert text.index("<ran out of memory>") < text.index("<a note>")


def test_an_arm_without_a_metric_has_an_empty_cell(odd_page):
    empty = [a for tag, a in read(odd_page).tags if tag == "td" and a.get("data-order") == ""]
    assert [cell["data-title"] for cell in empty] == ["clean accuracy"]


def test_figures_of_an_earlier_report_go_and_other_files_stay(odd_page, page):
    names = {path.name for path in (odd_page.parent / "figures").iterdir()}
    drawn = {path.name for path in (page.parent / "figures").iterdir()}
    assert names - drawn == {"other.svg", "reliability-9.txt", "mine.csv"}
    assert (odd_page.parent / "figures" / "detection-roc.csv").read_text() != "old"


@pytest.fixture
def page(report_page):
    return report_page


@pytest.fixture
def scene(report_data):
    return report_data


@pytest.fixture
def grid(report_folder):
    return report_folder


def test_all_sections_are_there_in_order(page):
    text = page.read_text()
    places = [text.index(f'<section id="{key}"') for key in ORDER]
    assert places == sorted(places)
    assert 'class="missing"' not in text
    assert "nan" not in text_of(page).lower().split()
    assert "None" not in text_of(page)


def test_it_needs_nothing_but_itself(page):
    for tag, attributes in read(page).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
        assert tag not in ("iframe", "object", "embed")
    style = re.search(r"<style>(.*?)</style>", page.read_text(), re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style
    assert "localStorage" not in page.read_text()
    assert "fetch(" not in page.read_text()


def test_ids_on_the_page_are_unique(page):
    ids = [attributes["id"] for _, attributes in read(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_figures_tables_and_summary_lie_beside_it(page, scene):
    assert page.name == "report.html"
    names = {path.name for path in (page.parent / "figures").iterdir()}
    tables = {"severity", "corruptions", "reliability", "detection-energy", "detection-roc"}
    tables |= {
        "severity-difference",
        "uncertainty",
        "training",
        "provenance-settings",
        "detection",
        "uncertainty-ranking",
    }
    assert {name for name in names if name.endswith(".csv")} == {f"{name}.csv" for name in tables}
    panels = re.findall(r'data-save="([^"]+)"', page.read_text())
    assert {name for name in names if name.endswith(".svg")} == {f"{p}.svg" for p in panels}
    assert len(panels) == len(set(panels)) == page.read_text().count('role="img"')
    assert (page.parent / "summary.csv").read_text().startswith("arm,measure,")
    assert not [name for name in names if name.startswith(".")]


def test_the_links_hold_the_same_numbers_as_the_files(page):
    links = [a for tag, a in read(page).tags if tag == "a" and "download" in a]
    assert len(links) == 11
    for link in links:
        kind, content = link["href"].split(";base64,")
        assert kind == "data:text/csv;charset=utf-8"
        file = page.parent / "figures" / link["download"]
        assert base64.b64decode(content) == file.read_bytes()


def test_it_is_the_same_file_when_it_is_made_again(page, grid, tmp_path):
    again = write_report(grid_runs(grid), tmp_path)
    assert again.read_bytes() == page.read_bytes()
    for path in sorted((page.parent / "figures").iterdir()):
        assert (tmp_path / "figures" / path.name).read_bytes() == path.read_bytes()


def test_the_headline_stands_first_and_unchanged(page, scene):
    words = [line.replace(" %", "\u00a0%") for line in headline(scene)]
    lines = re.findall(r'<p class="lead">(.*?)</p>', page.read_text())
    assert list(map(unescape, lines)) == [line.replace(" ± ", "\u00a0±\u00a0") for line in words]


def test_the_tables_have_the_main_columns_first_and_all_numbers(scene, page):
    first, *more = choose_columns(scene).items()
    assert first[0] == ""
    assert [metric.key for metric in first[1]][:3] == [
        *("clean_top1", "corrupted_top1", "severity5_top1"),
    ]
    assert len(more) == 2
    cells = [attributes for tag, attributes in read(page).tags if tag == "td"]
    orders = [cell["data-order"] for cell in cells if "data-order" in cell]
    wanted = [
        repr(scene.table[arm.name][metric.key].mean)
        for metrics in choose_columns(scene).values()
        for arm in scene.comparison.arms
        for metric in metrics
    ]
    assert orders == wanted


def test_the_best_mean_of_each_column_is_marked_in_its_direction(scene):
    for key, best in best_means(scene).items():
        means = [line[key].mean for line in scene.table.values()]
        assert best == (max(means) if "top1" in key or "auroc" in key else min(means))


NASTY = '<script>alert("1")</script>&$x_1$ {{ 7 * 7 }}'


def test_everything_from_files_is_escaped(tmp_path):
    arms = {"standard": STANDARD, NASTY: {**LABEL, "network": NASTY}}
    folder = make_grid(tmp_path / "grid", arms, (0,), n=20, limit=20)
    for run in folder.iterdir():
        for path in prediction_files(run):
            answers = read_predictions(path)
            write_predictions(run, replace(answers, class_names=(NASTY,) * 5))
        recipe = yaml.safe_load((run / "recipe.yaml").read_text())
        (run / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "about": NASTY}))
        environment = json.loads((run / "environment.json").read_text())
        environment |= {"system": NASTY, "versions": {NASTY: NASTY}, "command": ["killick", NASTY]}
        (run / "environment.json").write_text(json.dumps(environment))
    page = write_report(
        find_runs([folder]), tmp_path, title=NASTY, command=NASTY, failed=[f"failed: {NASTY}"]
    )
    text = page.read_text()
    assert "<script>alert" not in text
    assert "alert(&" in text
    assert [tag for tag, _ in read(page).tags].count("script") == 2
    assert "{{ 7 * 7 }}" in text_of(page)
    assert NASTY in "".join(read(page).text)


def test_the_page_names_the_method_of_its_intervals(page):
    assert "paired bootstrap over 60 images, 2 seeds" in text_of(page)


def test_rows_alone_give_tables_and_say_what_is_missing(grid, tmp_path):
    files = []
    for run in sorted(grid.iterdir()):
        (tmp_path / run.name).mkdir()
        files.append(tmp_path / run.name / "rows.csv")
        files[-1].write_bytes((run / "rows.csv").read_bytes())
    page = write_report(find_runs(files), tmp_path / "out")
    text = text_of(page)
    assert page.read_text().count('class="missing"') == 5
    assert {p.stem for p in (tmp_path / "out" / "figures").glob("*.csv")} == {
        "severity",
        "severity-difference",
        "corruptions",
    }
    assert "target label" in text


def test_one_run_has_a_page_of_its_own(grid, tmp_path):
    one = next(path for path in sorted(grid.iterdir()) if path.name.startswith("arm2"))
    page = write_report(find_runs([one]), tmp_path)
    text = text_of(page)
    assert "masked-label on shapes" in text
    assert "baseline" not in text
    assert not re.search('class="(difference|mark)', page.read_text())
    assert 'class="missing"' not in page.read_text()
    assert "Settings that differ" not in text


def test_another_baseline_can_be_chosen_and_a_wrong_one_is_refused(grid, tmp_path):
    scene = make_report_data(grid_runs(grid), "anchored")
    assert scene.comparison.arms[0].name == "anchored"
    assert scene.styles["anchored"].role == "arm-0"
    with pytest.raises(KillickError, match=r"'anchord'.*'anchored'"):
        write_report(grid_runs(grid), tmp_path, baseline="anchord")


def test_an_output_that_is_a_file_is_refused(grid, tmp_path):
    (tmp_path / "taken").write_text("")
    runs = find_runs([sorted(grid.iterdir())[0]])
    with pytest.raises(OptionError, match="taken"):
        write_report(runs, tmp_path / "taken")


def test_provenance_has_what_a_reader_needs_to_repeat_it(scene, page):
    facts = provenance.find_facts(scene.comparison)
    assert facts["versions"] == "killick 0.1.0, torch 2.9.9"
    assert (facts["python"], facts["system"], facts["cores"]) == ("3.11.1", "Somewhere", "2")
    assert facts["references (K)"] == "3"
    assert facts["test images"] == "60"
    assert (facts["corruptions"], facts["severities"]) == ("3", "1, 3, 5")
    assert (facts["source of corrupted images"], facts["corruption table"]) == (
        *("generated", "cifar"),
    )
    assert facts["seconds"] == "train 74, evaluate 123"
    text = text_of(page)
    assert "killick compare --title 'a b'" in text
    assert "Commands of single runs" not in text  # the comparison's command repeats them
    assert "target: label" in text


def test_provenance_of_single_runs_has_their_commands(grid):
    runs = [replace(run, job={}) for run in find_runs(sorted(grid.iterdir()))]
    assert "killick train --seed 0" in provenance.make(make_report_data(runs)).html


def test_settings_that_differ_between_arms_are_in_a_table(scene):
    (table,) = provenance.make(scene).tables
    assert table.columns == ("setting", "standard", "anchored", "masked-label")
    assert table.rows == (
        ("protocol.name", "standard", "anchored", "masked"),
        ("protocol.target", "–", "–", "label"),
    )


def test_the_page_stays_small(page):
    assert page.stat().st_size < 1_000_000


def test_the_command_writes_into_the_folder_it_was_given(grid, tmp_path, capsys):
    folder = make_grid(tmp_path / "grid", {"standard": STANDARD}, (0,), n=20, limit=20)
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").exists()
    assert str(folder / "report.html") in capsys.readouterr().out


def test_the_command_takes_several_places_a_title_and_silence(grid, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, *_, other = sorted(grid.iterdir())
    words = [
        str(one),
        str(other),
        "--title",
        "Two of them",
        "--baseline",
        "masked-label",
        "--quiet",
    ]
    assert main(["report", *words]) == 0
    assert capsys.readouterr().out == ""
    assert "<h1>Two of them</h1>" in (tmp_path / "report" / "report.html").read_text()


def test_jobs_without_results_are_named_on_the_page(tmp_path):
    folder = make_grid(tmp_path / "grid", {"standard": STANDARD}, (0,), n=20, limit=20)
    broken = folder / "anchored-seed7-fedcba"
    broken.mkdir()
    (broken / "job.json").write_text(json.dumps({"arm": "anchored", "seed": 7}))
    assert main(["report", str(folder), "--quiet"]) == 0
    assert "anchored, seed 7, has no results yet" in (folder / "report.html").read_text()


def test_the_help_has_examples_that_can_be_parsed():
    lines = [line.split("  ")[1] for line in reporting.EXAMPLES.splitlines() if "  killick" in line]
    for line in lines:
        options, _ = parse(shlex.split(line)[1:])
        assert options.runs
