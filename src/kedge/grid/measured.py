"""What was measured of a cell beside its evaluation, kept as it comes: it goes on where it stopped.

`measured.jsonl` begins with a line that says what was asked for; each line after it is a record. A
file of other wishes is begun anew, a line that was cut off by a kill is measured again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.errors import CheckpointError
from kedge.files import write_whole

MEASURED = "measured.jsonl"
Record = dict[str, Any]


class Measured:
    """The records of a cell.

    Args:
        folder: Of the cell.
        asked: What is measured and how, as plain values; records of anything else are dropped.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        self._path = folder / MEASURED
        self._head = {"asked": json.loads(json.dumps(dict(asked), default=str))}
        head, self._records = _read(self._path)
        if head != self._head:
            self._records = []
        self._write_all()  # without what was cut off

    @property
    def records(self) -> list[Record]:
        """All of them, in the order in which they came."""
        return list(self._records)

    def find(self, **known: Any) -> Record | None:
        """The first record with these values; None if there is none.

        Example:
            >>> import tempfile
            >>> kept = Measured(Path(tempfile.mkdtemp()), {})
            >>> kept.add({"x": 0.5, "top1": 0.9})
            >>> kept.find(x=0.5), kept.find(x=1.0)
            ({'x': 0.5, 'top1': 0.9}, None)
        """
        for record in self._records:
            if all(name in record and record[name] == value for name, value in known.items()):
                return record
        return None

    def add(self, *records: Mapping[str, Any]) -> None:
        """Keep some records, on disk at once."""
        plain = [json.loads(json.dumps(dict(record), allow_nan=False)) for record in records]
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(record) + "\n" for record in plain))
        except OSError as problem:
            raise CheckpointError(f"cannot write {self._path}: {problem.strerror}.") from problem
        self._records += plain

    def _write_all(self) -> None:
        lines = [self._head, *self._records]
        write_whole(self._path, "".join(json.dumps(line) + "\n" for line in lines))


def read_measured(folder: Path) -> list[Record]:
    """The records in the folder of a cell; none if nothing was measured there."""
    return _read(folder / MEASURED)[1]


def _read(path: Path) -> tuple[Record, list[Record]]:
    if not path.exists():
        return {}, []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    if not found or set(found[0]) != {"asked"}:
        return {}, []
    return found[0], found[1:]
