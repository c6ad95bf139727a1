"""What is measured of a cell is kept as it comes, and only as long as it is what was asked for."""

import json

import pytest

from killick.errors import CheckpointError
from killick.results.measurements import Measured, find_measured, read_measured


def test_records_are_on_disk_at_once_and_found_again(tmp_path):
    kept = Measured(tmp_path, {"points": 3})
    kept.add({"x": 0, "value": 0.5}, {"x": 1, "value": 0.25})
    found = read_measured(tmp_path, {"points": 3})
    assert found == [{"x": 0, "value": 0.5}, {"x": 1, "value": 0.25}]
    again = Measured(tmp_path, {"points": 3})
    assert again.records == kept.records
    assert again.find(x=1) == {"x": 1, "value": 0.25}
    assert again.find(x=2) is None
    assert again.find(y=1) is None
    again.add({"x": 2, "value": 0.0})
    assert len(read_measured(tmp_path, {"points": 3})) == 3


def test_what_was_measured_otherwise_is_neither_used_nor_lost(tmp_path):
    Measured(tmp_path, {"points": 3}).add({"x": 0})
    other = Measured(tmp_path, {"points": 5})
    assert other.records == []
    other.add({"x": 1})
    assert read_measured(tmp_path, {"points": 3}) == [{"x": 0}]
    assert read_measured(tmp_path, {"points": 5}) == [{"x": 1}]
    assert read_measured(tmp_path, {"points": 7}) == []


def test_tuples_and_lists_ask_for_the_same(tmp_path):
    Measured(tmp_path, {"sets": ("fog",)}).add({"x": 0})
    assert Measured(tmp_path, {"sets": ["fog"]}).records == [{"x": 0}]


def test_a_line_that_was_cut_off_is_measured_again(tmp_path):
    Measured(tmp_path, {}).add({"x": 0}, {"x": 1})
    file = find_measured(tmp_path, {})
    file.write_text(file.read_text()[:-4])
    kept = Measured(tmp_path, {})
    assert kept.records == [{"x": 0}]
    kept.add({"x": 1})
    assert [json.loads(line) for line in file.read_text().splitlines()[1:]] == [{"x": 0}, {"x": 1}]


@pytest.mark.parametrize("text", ["", "no JSON\n", '["a list"]\n', '{"x": 1}\n'])
def test_a_file_of_something_else_is_begun_anew(tmp_path, text):
    find_measured(tmp_path, {}).write_text(text)
    assert read_measured(tmp_path, {}) == []
    kept = Measured(tmp_path, {})
    kept.add({"x": 0})
    assert read_measured(tmp_path, {}) == [{"x": 0}]


def test_what_is_no_number_is_refused_before_it_is_kept(tmp_path):
    kept = Measured(tmp_path, {})
    with pytest.raises(ValueError, match="JSON compliant"):
        kept.add({"value": float("nan")})
    assert kept.records == []
    assert read_measured(tmp_path, {}) == []


def test_a_folder_that_is_gone_is_told_in_a_line(tmp_path):
    folder = tmp_path / "cell"
    folder.mkdir()
    kept = Measured(folder, {})
    find_measured(folder, {}).unlink()
    folder.rmdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        kept.add({"x": 0})
