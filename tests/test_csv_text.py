"""CSV that a spreadsheet can open: no text becomes a formula, no number becomes a text."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from killick.results.csv_text import csv_lines, harmless, original
from killick.results.rows import make_row, read_rows, write_rows


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1"]
)
def test_what_looks_like_a_formula_gets_an_apostrophe(text):
    shown = harmless(text)
    assert shown[0] == "'"
    assert shown.isprintable()


@pytest.mark.parametrize(
    "number", [-1, -0.5, "-0.5", "+3.1", "-1e-05", "0.5 -0.4 1e-3", None, True]
)
def test_numbers_stay_as_they_are(number):
    assert harmless(number) is number


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_every_line_is_read_as_it_was_written_and_no_cell_is_a_formula(cells):
    (found,) = csv.reader(io.StringIO(csv_lines([cells]), newline=""))
    assert found == [harmless(cell) for cell in cells]
    for cell in found:
        assert cell[:1] not in ("=", "@", "\t", "\r")
        assert cell[:1] not in ("+", "-") or [float(part) for part in cell.split()]


def test_rows_come_back_from_csv_as_they_were(tmp_path):
    row = make_row(
        model="=HYPERLINK(1)", data="-mine", metric="top1", value=-0.5, members="-0.5 0.1"
    )
    write_rows(tmp_path, [row])
    (tmp_path / "rows.jsonl").unlink()
    assert "'=HYPERLINK(1),," in (tmp_path / "rows.csv").read_text()
    (found,) = read_rows(tmp_path)
    assert found == row
    assert original("'tis") == "'tis"
