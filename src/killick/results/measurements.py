"""Measurements of a job beside its evaluation, saved one by one, so that it can be resumed.

Measurements with different settings have different files `measured-DIGEST.jsonl`. The first line
has the settings; each line after it is a record. A line that was cut off by a kill is measured
again.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from killick.errors import CheckpointError
from killick.runtime.atomic_files import write_atomic
from killick.runtime.plain_files import read_plain

Record = dict[str, Any]


class Measured:
    """The records of a job, measured with some settings."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._path = find_measured(folder, settings)
        self.records = read_measured(folder, settings)
        self._known = set(map(_coordinates, self.records))
        lines = [_head(settings), *self.records]  # without what was cut off
        write_atomic(self._path, "".join(json.dumps(line) + "\n" for line in lines))

    def find(self, **known: Any) -> Record | None:
        """The first record with these values; None if there is none.

        Example:
            >>> import tempfile
            >>> kept = Measured(Path(tempfile.mkdtemp()), {})
            >>> kept.add({"x": 0.5, "top1": 0.9})
            >>> kept.find(x=0.5), kept.find(x=1.0)
            ({'x': 0.5, 'top1': 0.9}, None)
        """
        return next((record for record in self.records if known.items() <= record.items()), None)

    def add(self, *records: Mapping[str, Any]) -> None:
        """Keep some records, on disk at once; those that are there already are left out."""
        new = [record for record in records if _coordinates(record) not in self._known]
        lines = [json.dumps(dict(record), allow_nan=False) for record in new]
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))
        except OSError as problem:
            raise CheckpointError(f"cannot write {self._path}: {problem.strerror}.") from problem
        self.records += map(json.loads, lines)
        self._known |= set(map(_coordinates, new))


def find_measured(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The file for some settings, there or not."""
    text = json.dumps(_head(settings)["asked"], sort_keys=True)
    return folder / f"measured-{hashlib.sha256(text.encode()).hexdigest()[:6]}.jsonl"


def read_measured(folder: Path, settings: Mapping[str, Any]) -> list[Record]:
    """The records in the folder of a job; none if nothing was measured with these settings."""
    found = read_json_lines(find_measured(folder, settings))
    return found[1:] if found[:1] == [_head(settings)] else []


def read_json_lines(path: Path) -> list[Record]:
    """The objects in a file of JSON lines, without lines that were cut off by a kill."""
    found = []
    text = read_plain(path).decode("utf-8", "replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _coordinates(record: Mapping[str, Any]) -> str:
    """What a record is about: all but its value."""
    return json.dumps({k: v for k, v in record.items() if k != "value"}, sort_keys=True)


def _head(settings: Mapping[str, Any]) -> Record:
    """The first line of a file: the settings as JSON has them."""
    return {"asked": json.loads(json.dumps(dict(settings), default=str))}
