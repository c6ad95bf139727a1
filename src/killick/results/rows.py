"""Rows: every result is one line of one table, with all that it depends on.

`rows.jsonl` is what is read again, `rows.csv` the same for spreadsheets. A row that is measured
again replaces the old one. Rows of other weights under the same name are dropped, so that no table
mixes two runs.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from killick.errors import DataError, FileError, one_line, show
from killick.results.csv_text import original, to_csv
from killick.runtime.atomic_files import write_atomic
from killick.runtime.plain_files import read_text

Row = dict[str, Any]

# What the model is and how it was trained; `components` is JSON, settings by component; `name` is
# the one that the user gave it, if any.
MODEL = (
    *("model", "network", "data", "protocol", "target", "alpha", "scope", "references"),
    *("batchnorm", "components", "reference_policy", "start", "epochs", "seed", "name"),
)
# The test set: its suite and name; whether its images were made here ("generated") or read
# ("files"); textures of frost; digest of a class map; constants of the corruption; the corruption,
# or the suite that a mean is over (`mean_of`). Severity is 1 to 5, of occlusion the percentage that is
# covered, of an attack the radius in gray levels of 255.
SHOWN = (
    *("suite", "set", "source", "frost", "class_map", "table", "corruption", "mean_of"),
    *("severity", "view", "limit", "evaluation_seed"),
)
# How its images were read: "indexed", by number, or "stream", in an order of their own.
ACCESS = ("access",)
# Inference protocol, number of references, which one, temperature scaling, the set that temperature,
# threshold or conformal sets were fitted on, OOD score.
INFERENCE = ("inference", "k", "reference", "scaling", "fitted_on", "score", "precision")
# Where attention was measured: layer and head, both from 0; patches of the grid (or window) as
# "8x8", windows of an image; what distances are divided by; how prefix tokens are handled.
ATTENTION = ("layer", "head", "grid", "windows", "normalizer", "prefix")
# The number: of the first reference; its spread over them; an interval where there is one.
NUMBER = ("count", "metric", "estimator", "value", "std", "members", "low", "high")
# Forward and backward passes of the training, with that of a network of ours that it started from, and
# forward passes of a prediction, relative to one standard network that is trained for as many epochs.
COSTS = ("training_cost", "inference_cost")
# Digests of the weights and of the images: a row holds as long as they are the same.
DIGESTS = ("weights", "images")
COLUMNS = (*MODEL, *SHOWN, *ACCESS, *INFERENCE, *ATTENTION, *NUMBER, *COSTS, *DIGESTS)
_IDENTITY = (*MODEL[:3], *SHOWN, *INFERENCE, *ATTENTION, "metric", "estimator")
_NUMBERS = (
    *("alpha", "epochs", "seed", "severity", "limit", "evaluation_seed", "k", "reference"),
    *("layer", "head", "windows", "count", "value", "std", "low", "high", *COSTS),
)


def make_row(**values: Any) -> Row:
    """A row with every column; what is not given is empty."""
    unknown = values.keys() - set(COLUMNS)
    assert not unknown, unknown
    return {name: "" if values.get(name) is None else values.get(name, "") for name in COLUMNS}


def identify(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What was measured: rows of equal identity are measurements of the same thing."""
    return tuple(str(row.get(name, "")) for name in _IDENTITY)


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """`old` rows, added to or replaced by `new` ones, without rows of other weights."""
    new = list(new)
    weights = {str(row["model"]): str(row["weights"]) for row in new}
    kept = {
        identify(row): row
        for row in old
        if str(row.get("weights", "")) == weights.get(str(row["model"]), str(row.get("weights")))
    }
    return list({**kept, **{identify(row): row for row in new}}.values())


def read_rows(where: Path) -> list[Row]:
    """The rows in a folder, or in a `.jsonl` or `.csv` file; none if it is not there."""
    if where.is_dir():
        files = [where / "rows.jsonl", where / "rows.csv"]
        where = next((file for file in files if file.exists()), files[0])
    if not where.exists():
        return []
    try:
        text = read_text(where)
        if where.suffix == ".csv":
            found = [_typed(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
        else:
            found = [json.loads(line) for line in text.splitlines() if line]
        rows = [make_row(**{k: v for k, v in row.items() if k in COLUMNS}) for row in found]
        for row in rows:
            _check_types(row)
        return rows
    except FileError:
        raise
    except (ValueError, AttributeError, TypeError, csv.Error, RecursionError) as problem:
        raise DataError(
            f"cannot read the rows in {where}: {one_line(problem)}. Remove the file to start again."
        ) from None


def _check_types(row: Row) -> None:
    """Refuse a row whose numbers are not numbers, or whose texts are not texts."""
    for name, cell in row.items():
        if name not in _NUMBERS:
            fits = isinstance(cell, str)
        elif isinstance(cell, str):
            fits = name != "value" and cell in ("", "all")
        else:
            fits = isinstance(cell, int | float) and abs(cell) < 1e300 and type(cell) is not bool
        if not fits:
            raise ValueError(f"{name} is {show(cell)}")
    members_of(row)


def write_rows(folder: Path, rows: Iterable[Row], *, table: bool = True) -> None:
    """Write `rows.jsonl`, and with `table` also `rows.csv`, into a folder that exists."""
    rows = list(rows)
    lines = (json.dumps(row, allow_nan=False) + "\n" for row in rows)
    write_atomic(folder / "rows.jsonl", "".join(lines))
    if table:
        text = to_csv(COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
        write_atomic(folder / "rows.csv", text)


def members_of(row: Mapping[str, Any]) -> list[float]:
    """The value for each reference; the value itself where there is one."""
    members = str(row["members"]).split()
    return [float(member) for member in members] if members else [float(row["value"])]


def _typed(row: Mapping[str, str]) -> Row:
    """The numbers of a CSV file as such; a word such as "all" stays one."""
    typed: Row = {
        name: original(cell) if isinstance(cell, str) else cell for name, cell in row.items()
    }
    for name in _NUMBERS:
        with suppress(ValueError):
            typed[name] = json.loads(typed.get(name) or "")
    return typed
