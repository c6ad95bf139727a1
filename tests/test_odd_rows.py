"""Rows with odd fields are one clear error."""

import json

import pytest

from killick.errors import DataError
from killick.results.rows import make_row, read_rows
from killick.results.run_folder import read_metrics


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *(("model", 3), ("data", None), ("data", ["a"]), ("metric", {"a": 1})),
        *(("severity", "high"), ("seed", [1]), ("k", True), ("count", "many"), ("std", 1e308)),
        *(("value", ""), ("value", float("nan")), ("value", 10**400), ("members", "0.5 x")),
    ],
)
def test_a_row_with_an_odd_field_is_refused(tmp_path, column, cell):
    row = make_row(model="a", data="b", metric="top1", value=0.5, severity="all", seed=0)
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert read_rows(tmp_path) == [row]
    text = json.dumps({**row, column: cell})
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n{text}\n")
    if cell is None:  # as an empty one
        assert len(read_rows(tmp_path)) == 2
    else:
        with pytest.raises(DataError, match="cannot read the rows"):
            read_rows(tmp_path)


def test_lines_of_metrics_without_numbers_are_left_out(tmp_path):
    good = {"kind": "train", "step": 1, "loss": 0.5}
    odd = [{**good, "loss": "low"}, {**good, "epoch": None}, {**good, "lr": 10**400}, {"step": "1"}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in [*odd, good]))
    assert read_metrics(path) == [good]
