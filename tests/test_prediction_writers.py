"""Records as JSON lines, CSV and a table; where they are written, and what is shown meanwhile."""

import csv
import io
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from killick.core.image_model import Threshold
from killick.deploy.prediction_records import ClassProbability, Record
from killick.deploy.prediction_writers import (
    Csv,
    JsonLines,
    RecordCounts,
    Table,
    choose_format,
    open_output,
)
from killick.errors import DataError, OptionError
from killick.results.csv_text import harmless

NAMES = ("cat", "dog, brown", "ünïcode")
TOP = (ClassProbability("dog, brown", 1, 0.75), ClassProbability("cat", 0, 0.2))
GOOD = Record(
    *("a/b.png", "dog, brown", 1, 0.75, 0.5, -3.25, 0.125, False),
    top=TOP,
    probabilities=(0.2, 0.75, 0.05),
)
PLAIN = Record("c.png", "cat", 0, 0.123456789, 1 / 3, 2.0, None, True)
UNKNOWN = Record("d.png", "cat", 0, 1.0, 0.0, -1e-9)
BROKEN = Record("x y.png", error="cannot read x y.png: it is empty. Replace it or leave it out.")


def classifier(names=NAMES, references=1, threshold=None) -> SimpleNamespace:
    return SimpleNamespace(classes=3, class_names=names, references=references, threshold=threshold)


JUDGING = classifier(threshold=Threshold(0.0, 0.95, 1, "some"))


def parsed(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


def test_json_lines_have_the_fields_by_name_and_leave_out_what_was_not_asked_for():
    text = JsonLines().lines([GOOD, PLAIN, UNKNOWN, BROKEN])
    assert text.endswith("}\n")
    good, plain, unknown, broken = (json.loads(line) for line in text.splitlines())
    assert good == {
        "image": "a/b.png",
        "label": "dog, brown",
        "index": 1,
        "confidence": 0.75,
        "uncertainty": 0.5,
        "energy": -3.25,
        "std": 0.125,
        "in_distribution": False,
        "top": [
            {"label": "dog, brown", "index": 1, "probability": 0.75},
            {"label": "cat", "index": 0, "probability": 0.2},
        ],
        "probabilities": [0.2, 0.75, 0.05],
    }
    assert list(plain)[-1] == "in_distribution"
    assert plain["in_distribution"] is True
    assert plain["confidence"] == 0.1234568
    assert plain["uncertainty"] == 0.3333333
    assert unknown["in_distribution"] is None
    assert unknown["energy"] == -1e-9
    assert "std" not in unknown
    assert broken == {"image": "x y.png", "error": BROKEN.error}


def test_csv_has_the_same_fields_and_numbered_ones_for_lists():
    form = Csv(classifier(references=3), 2, True)
    good, broken = parsed(form.head + form.lines([GOOD, BROKEN]))
    assert good == {
        "image": "a/b.png",
        "label": "dog, brown",
        "index": "1",
        "confidence": "0.75",
        "uncertainty": "0.5",
        "energy": "-3.25",
        "std": "0.125",
        "in_distribution": "false",
        "top_1": "dog, brown",
        "top_1_probability": "0.75",
        "top_2": "cat",
        "top_2_probability": "0.2",
        "probability_0": "0.2",
        "probability_1": "0.75",
        "probability_2": "0.05",
        "error": "",
    }
    assert broken.pop("image") == "x y.png"
    assert broken.pop("error") == BROKEN.error
    assert set(broken.values()) == {""}
    small = Csv(classifier(), 0, False)
    assert small.head == "image,label,index,confidence,uncertainty,energy,in_distribution,error\n"
    assert small.lines([PLAIN]).split(",")[-2:] == ["true", "\n"]
    assert "top_3" in Csv(classifier(), 9, False).head
    assert "top_4" not in Csv(classifier(), 9, False).head


@given(
    st.text(st.characters(exclude_characters="\r"), max_size=20) | st.text("a,\"\n ;'", max_size=6)
)
def test_any_path_survives_json_and_csv(path):
    record = Record(path, "cat", 0, 0.5, 0.5, 0.0)
    line = JsonLines().lines([record]).encode("utf-8", "backslashreplace")
    assert line.count(b"\n") == 1
    assert json.loads(line)["image"] == path
    form = Csv(classifier(), 0, False)
    text = form.head + form.lines([record])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[1][0] == harmless(path)
    assert len(rows) == 2


def test_a_path_that_is_no_utf8_comes_back_from_json_as_its_bytes():
    path = os.fsdecode(b"\xff\xfe.png")
    line = JsonLines().lines([Record(path, error="é")]).encode("utf-8", "backslashreplace")
    assert os.fsencode(json.loads(line)["image"]) == b"\xff\xfe.png"
    assert "ü" in JsonLines().lines([Record("ü")])


def table_lines(model, records, top=0) -> list[str]:
    form = Table(model, top)
    text = form.head + form.lines(records)
    assert text.endswith("\n")
    return text.splitlines()


def test_a_table_has_aligned_columns_in_words():
    model = classifier(references=3, threshold=JUDGING.threshold)
    head, first, second, broken = table_lines(model, [GOOD, PLAIN, BROKEN])
    assert head.split() == [
        *("label", "confidence", "uncertainty", "std", "distribution", "image"),
    ]
    assert first.split() == ["dog,", "brown", "75.0", "%", "0.500", "0.125", "out", "a/b.png"]
    assert second.split() == ["cat", "12.3", "%", "0.333", "in", "c.png"]
    assert first.index("out") == second.index("in") == head.index("distribution")
    assert first.index("a/b.png") == second.index("c.png") == head.index("image")
    assert broken.index("cannot read x y.png") == head.index("image")


def test_a_table_leaves_out_columns_without_content_and_shows_the_most_likely():
    head, line = table_lines(classifier(), [UNKNOWN])
    assert head.split() == ["label", "confidence", "uncertainty", "image"]
    assert line.split() == ["cat", "100.0", "%", "0.000", "d.png"]
    _, line = table_lines(classifier(), [GOOD], top=2)
    assert "dog, brown 75.0 %, cat 20.0 %" in line


@given(st.text(st.characters(), min_size=1, max_size=120))
def test_a_table_line_is_one_printable_line_whatever_the_path(path):
    record = Record(path, "cat", 0, 0.5, 0.5, 0.0, None, True)
    _, line = table_lines(JUDGING, [record])
    assert line.isprintable()


def test_a_long_label_is_cut():
    names = ("l" * 50, "b")
    _, line = table_lines(classifier(names), [Record("a.png", names[0], 0, 0.5, 0.5, 0.0)])
    assert line.startswith(f"{'l' * 23}… ")


def test_the_format_is_as_asked_or_by_extension_or_by_who_reads():
    assert choose_format("csv", Path("x.json"), True) == "csv"
    assert choose_format(None, Path("x.CSV"), True) == "csv"
    assert choose_format(None, Path("x.jsonl"), True) == "json"
    assert choose_format(None, Path("x.txt"), False) == "table"
    assert choose_format(None, None, True) == "table"
    assert choose_format(None, None, False) == "json"
    with pytest.raises(OptionError, match=r"x\.xls.*--format json"):
        choose_format(None, Path("x.xls"), True)


def test_a_file_is_there_whole_or_as_before(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")
    with open_output(path) as write:
        write("é\udcff\n")
        assert path.read_text() == "before"
    assert path.read_bytes() == "é\\udcff\n".encode()
    with pytest.raises(KeyboardInterrupt), open_output(path) as write:  # noqa: PT012
        write("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == "é\\udcff\n".encode()
    assert os.listdir(tmp_path) == ["out.csv"]


def test_a_link_stays_one_and_what_is_no_file_is_written_as_it_is(tmp_path):
    (tmp_path / "real.csv").write_text("before")
    (tmp_path / "link.csv").symlink_to("real.csv")
    with open_output(tmp_path / "link.csv") as write:
        write("after")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "after"
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with open_output(tmp_path / "pipe") as write:
        write("through")
    reader.join(10)
    assert read == [b"through"]
    assert (tmp_path / "pipe").is_fifo()


def test_what_cannot_be_written_is_told(tmp_path):
    with pytest.raises(DataError, match="Is a directory"), open_output(tmp_path):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(DataError, match=r"cannot write .*x\.csv: (Not a directory|File exists)\."),
        open_output(tmp_path / "file" / "x.csv"),
    ):
        pass
    with open_output(tmp_path / "new" / "folder" / "x.csv") as write:
        write("1")
    assert (tmp_path / "new" / "folder" / "x.csv").read_bytes() == b"1"
    full = Path("/dev/full")
    with (
        pytest.raises(DataError, match=r"cannot write /dev/full: No space left on device\."),
        open_output(full) as write,
    ):
        write("x")


def test_a_pipe_that_nobody_reads_is_no_mistake_of_the_user(monkeypatch):
    end, start = os.pipe()
    os.close(end)
    with open(start, "wb", buffering=0) as pipe, pytest.raises(BrokenPipeError):  # noqa: PT012
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=pipe))
        with open_output(None) as write:
            write("x")


def test_csv_says_what_the_threshold_was_fitted_on_and_refuses():
    threshold = Threshold(0.0, 0.95, 1, "validation (9)", {"digits": 0.25, "textures": 0.5})
    form = Csv(classifier(threshold=threshold), 0, False)
    record = replace(PLAIN, fitted_on=threshold.fitted_on, refused=threshold.refused)
    (found,) = parsed(form.head + form.lines([record]))
    assert found["in_distribution"] == "true"
    assert found["fitted_on"] == "validation (9)"
    assert (found["refused_digits"], found["refused_textures"]) == ("0.25", "0.5")


def test_counts_name_what_the_threshold_hardly_detects():
    some = {"near": 0.04, "far": 0.9}
    assert Threshold(0.0, 0.95, 1, "here", some).missed == ["near"]
    assert "hardly detects near" in RecordCounts(Threshold(0.0, 0.95, 1, "here", some)).describe()
    only = RecordCounts(Threshold(0.0, 0.95, 1, "here", {"far": 0.9})).describe()
    assert "90 % of far" in only
    assert "hardly" not in only


def test_counts_are_one_line():
    counts = RecordCounts(Threshold(0.0, 0.95, 1, "here"))
    counts.add([GOOD, PLAIN, BROKEN])
    counts.add([PLAIN] * 1201)
    words = counts.describe()
    assert words.startswith("1,204 images, 1 unreadable, 1 out of distribution (")
    assert words.endswith(" images/s")
