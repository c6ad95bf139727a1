"""The page of a report: what is on it, what is escaped, what is said where something is missing."""

import argparse
import base64
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from report_grid import ARMS, grid_runs, make_grid
from report_runs import LABEL, STANDARD

from killick.cli import report as reporting
from killick.errors import KillickError, OptionError
from killick.report.headline import headline
from killick.report.page import make_tables
from killick.report.provenance import find_provenance
from killick.report.statistics import Interval
from killick.report.writer import make_scene, write_report
from killick.results.predictions import files_in, read_answers, write_answers
from killick.results.run_folder import find_runs

SECTIONS = [
    *("headline", "arms", "severity", "corruptions", "reliability", "detection", "uncertainty"),
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
def grid(tmp_path_factory) -> Path:
    return make_grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="module")
def page(grid, tmp_path_factory) -> Path:
    return write_report(grid_runs(grid), tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def scene(grid):
    return make_scene(grid_runs(grid))


def test_all_sections_are_there_in_order_each_with_a_sentence(page):
    text = page.read_text()
    places = [text.index(f'<section id="{key}"') for key in SECTIONS]
    assert places == sorted(places)
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        assert re.search(
            r'<p class="(says|lead)">[^<]{40,}</p>|<dl class="facts">', text[start:end]
        )
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
    figures = {"severity", "corruptions", "reliability", "energy", "roc", "uncertainty", "training"}
    assert {name for name in names if name.endswith(".csv")} == {f"{f}.csv" for f in figures}
    panels = re.findall(r'data-save="([^"]+)"', page.read_text())
    assert {name for name in names if name.endswith(".svg")} == {f"{p}.svg" for p in panels}
    assert len(panels) == len(set(panels)) == page.read_text().count('role="img"')
    assert (page.parent / "summary.csv").read_text().startswith("arm,measure,")
    assert not [name for name in names if name.startswith(".")]


def test_the_links_hold_the_same_numbers_as_the_files(page):
    links = [a for tag, a in read(page).tags if tag == "a" and "download" in a]
    assert len(links) == 7
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
    words = headline(scene.comparison, scene.table).replace(" %", "\u00a0%")
    lead = re.search(r'<p class="lead">(.*?)</p>', page.read_text()).group(1)
    assert unescape(lead) == words.replace(" ± ", "\u00a0±\u00a0")


def test_the_table_has_means_spreads_and_differences_with_intervals(scene):
    first, *more = make_tables(scene)
    assert [table.title for table in more] == [
        "More measures",
        "Asked from several references, in the mean",
    ]
    keys = [measure.key for measure in first.measures]
    assert keys[:3] == ["clean_top1", "corrupted_top1", "severity5_top1"]
    for table in (first, *more):
        for arm, cells in table.rows:
            for measure, cell in zip(table.measures, cells, strict=True):
                number = scene.table[arm.name][measure.key]
                assert float(cell.order) == number.mean
                shown = float(cell.mean.replace("−", "-"))
                assert shown == pytest.approx(
                    measure.factor * number.mean, abs=0.51 * 10**-measure.digits
                )
                spread = measure.factor * number.spread
                assert float(cell.spread) == pytest.approx(spread, abs=0.51 * 10**-measure.digits)
                assert cell.values.count("seed") == 2
                assert bool(cell.difference) == (arm.name != "standard")


def test_the_best_mean_of_each_column_is_marked_whichever_way_is_better(scene):
    for table in make_tables(scene):
        for column, measure in enumerate(table.measures):
            cells = [cells[column] for _, cells in table.rows]
            choose = max if measure.higher_is_better else min
            best = choose(float(cell.order) for cell in cells)
            assert [cell.best for cell in cells] == [float(cell.order) == best for cell in cells]


@pytest.mark.parametrize(
    ("key", "interval", "verdict"),
    [
        ("clean_top1", Interval(0.03, 0.01, 0.05, "h"), "better"),
        ("clean_top1", Interval(-0.03, -0.05, -0.01, "h"), "worse"),
        ("clean_top1", Interval(0.03, -0.01, 0.07, "h"), ""),
        ("clean_smooth_ece", Interval(0.03, 0.01, 0.05, "h"), "worse"),
        ("clean_smooth_ece", Interval(-0.03, -0.05, -0.01, "h"), "better"),
        ("clean_top1", Interval(0.03, None, None, "one seed, no interval"), ""),
    ],
)
def test_a_difference_is_called_better_or_worse_only_if_its_interval_leaves_out_zero(
    scene, key, interval, verdict
):
    line = scene.table["masked-label"]
    changed = {**line, key: replace(line[key], difference=interval)}
    table, *_ = make_tables(replace(scene, table={**scene.table, "masked-label": changed}))
    cells = dict(
        zip(
            [measure.key for measure in table.measures],
            next(cells for arm, cells in table.rows if arm.name == "masked-label"),
            strict=True,
        )
    )
    assert cells[key].verdict == verdict
    assert bool(cells[key].interval) == (interval.low is not None)
    assert cells[key].how == interval.how


def test_an_arm_without_a_measure_says_so_and_is_sorted_last(scene, tmp_path):
    less = {key: n for key, n in scene.table["anchored"].items() if key != "clean_top1"}
    table, *_ = make_tables(replace(scene, table={**scene.table, "anchored": less}))
    cell = next(cells for arm, cells in table.rows if arm.name == "anchored")[0]
    assert (cell.order, cell.mean, cell.best) == ("", "", False)


NASTY = '<script>alert("1")</script>&$x_1$ {{ 7 * 7 }}'


def test_everything_from_files_is_escaped(tmp_path):
    arms = {"standard": STANDARD, NASTY: {**LABEL, "network": NASTY}}
    folder = make_grid(tmp_path / "grid", arms, (0,), n=20, limit=20)
    for run in folder.iterdir():
        for path in files_in(run):
            answers = read_answers(path)
            write_answers(run, replace(answers, class_names=(NASTY,) * 5))
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


def test_what_failed_stands_on_top(grid, tmp_path):
    page = write_report(grid_runs(grid), tmp_path, failed=["anchored, seed 3, ran out of memory."])
    text = page.read_text()
    assert "anchored, seed 3, ran out of memory." in text
    assert text.index("ran out of memory") < text.index('id="headline"')


def test_notes_of_the_comparison_are_shown(page, scene):
    assert scene.comparison.notes
    for note in scene.comparison.notes:
        assert note in unescape(page.read_text())


def test_rows_alone_give_tables_and_say_what_is_missing(grid, tmp_path):
    files = []
    for run in sorted(grid.iterdir()):
        (tmp_path / run.name).mkdir()
        files.append(tmp_path / run.name / "rows.csv")
        files[-1].write_bytes((run / "rows.csv").read_bytes())
    page = write_report(find_runs(files), tmp_path / "out")
    text = text_of(page)
    assert page.read_text().count('class="missing"') == 6
    for words in (
        *("No reliability diagrams", "No histograms", "No ROC", "No errors against spread"),
        *("No training curves", "No examples"),
    ):
        assert words in text
    assert {p.stem for p in (tmp_path / "out" / "figures").glob("*.csv")} == {
        "severity",
        "corruptions",
    }
    assert "masked target" in text


def test_one_run_has_a_page_of_its_own(grid, tmp_path):
    one = next(path for path in sorted(grid.iterdir()) if path.name.startswith("arm2"))
    page = write_report(find_runs([one]), tmp_path)
    text = text_of(page)
    assert "Masked-label on shapes" in text
    assert "baseline" not in text
    assert not re.search('class="(difference|mark)', page.read_text())
    assert 'class="missing"' not in page.read_text()
    assert "What differs" not in text


def test_no_best_is_marked_where_there_is_one_arm(grid, tmp_path):
    scene = make_scene(find_runs([sorted(grid.iterdir())[0]]))
    assert not any(
        cell.best for table in make_tables(scene) for _, cells in table.rows for cell in cells
    )


def test_another_baseline_can_be_chosen_and_a_wrong_one_is_told(grid, tmp_path):
    scene = make_scene(grid_runs(grid), "anchored")
    assert scene.comparison.arms[0].name == "anchored"
    assert scene.styles["anchored"].role == "arm-0"
    with pytest.raises(KillickError, match=r"baseline.*found 'anchord'.*did you mean 'anchored'"):
        write_report(grid_runs(grid), tmp_path, baseline="anchord")


def test_figures_of_an_earlier_report_go_and_other_files_stay(grid, page, tmp_path):
    (tmp_path / "figures").mkdir()
    for name in ("reliability-9.svg", "roc.csv", "mine.svg", "reliability-9.txt"):
        (tmp_path / "figures" / name).write_text("old")
    write_report(grid_runs(grid), tmp_path)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    drawn = {path.name for path in (page.parent / "figures").iterdir()}
    assert names - drawn == {"mine.svg", "reliability-9.txt"}
    assert (tmp_path / "figures" / "roc.csv").read_text() != "old"


def test_an_html_file_can_be_named(grid, tmp_path):
    page = write_report(find_runs([sorted(grid.iterdir())[0]]), tmp_path / "deep" / "mine.html")
    assert page == tmp_path / "deep" / "mine.html"
    assert (tmp_path / "deep" / "figures" / "severity.svg").exists()


def test_a_place_that_is_a_file_is_told_in_one_line(grid, tmp_path):
    (tmp_path / "taken").write_text("")
    runs = find_runs([sorted(grid.iterdir())[0]])
    with pytest.raises(OptionError, match="expected a folder to write the report to, found"):
        write_report(runs, tmp_path / "taken")


def test_provenance_names_what_a_reader_needs_to_repeat_it(scene):
    found = find_provenance(scene.comparison)
    facts = dict(found.facts)
    assert facts["versions"] == "killick 0.1.0, torch 2.9.9, Python 3.11.1"
    assert facts["machine"] == "Somewhere, cpu, 2 cores, 1 thread"
    assert facts["seeds"] == "0, 1"
    assert facts["masked target"] == "masked, label: label"
    assert facts["share masked"] == "masked, label: 25 % by batch"
    assert facts["references"].startswith("anchored: clean in training, stored: random;")
    assert facts["references asked from (K)"] == "3"
    assert facts["corruptions"] == "3 at severity 1, 3 and 5, generated, constants of cifar"
    assert facts["data"] == "shapes, 60 test pictures, evaluation seed 0, seen at 32 px"
    assert facts["time"] == "train 74 s, evaluate 2.0 min"
    assert facts["start"] == "from scratch"
    assert found.command == "killick compare --title 'a b'"
    assert found.commands[0] == ("arm0-seed0-abcdef", "killick train --seed 0")
    assert (
        find_provenance(scene.comparison, "killick compare --mine").command
        == "killick compare --mine"
    )


def test_only_settings_that_mean_something_differ_between_arms(scene):
    found = dict(find_provenance(scene.comparison).differing)
    assert found == {
        "protocol.name": ("standard", "anchored", "masked"),
        "protocol.target": ("–", "–", "label"),
    }
    titles = [title for title, _ in find_provenance(scene.comparison).recipes]
    assert titles == ["standard", "anchored", "masked, label"]
    text = find_provenance(scene.comparison).recipes[2][1]
    assert yaml.safe_load(text)["protocol"] == {"name": "masked", "target": "label"}


def test_the_page_stays_small(page):
    assert page.stat().st_size < 1_000_000


def options_of(*words: str) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser()
    reporting.add(parser.add_subparsers(dest="command"), "report")
    return parser.parse_known_args(["report", *words])


def test_the_command_writes_into_the_folder_it_was_given(grid, tmp_path, capsys):
    folder = make_grid(tmp_path / "grid", {"standard": STANDARD}, (0,), n=20, limit=20)
    assert reporting.run(*options_of(str(folder))) == 0
    assert (folder / "report.html").exists()
    assert capsys.readouterr().out == (
        f"The report is in {folder / 'report.html'}, its figures and tables beside it.\n"
    )


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
    assert reporting.run(*options_of(*words)) == 0
    assert capsys.readouterr().out == ""
    assert "<h1>Two of them</h1>" in (tmp_path / "report" / "report.html").read_text()
    with pytest.raises(OptionError, match="found --colour"):
        reporting.run(*options_of(str(one), "--colour"))


def test_cells_without_results_are_named_on_the_page(tmp_path):
    folder = make_grid(tmp_path / "grid", ARMS, (0,), n=20, limit=20)
    broken = folder / "anchored-seed7-fedcba"
    broken.mkdir()
    (broken / "job.json").write_text(json.dumps({"arm": "anchored", "seed": 7}))
    reporting.run(*options_of(str(folder), "--quiet"))
    assert "anchored, seed 7, has no results yet" in (folder / "report.html").read_text()


def test_the_help_has_examples_that_can_be_parsed():
    lines = [line.split("  ")[1] for line in reporting.EXAMPLES.splitlines() if "  killick" in line]
    for line in lines:
        words = line.split()[2:]
        options, rest = options_of(*words)
        assert options.runs
