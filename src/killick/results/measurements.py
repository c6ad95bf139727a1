"""What was measured of a cell beside its evaluation, kept as it comes: it goes on where it stopped.

A file `measured-DIGEST.jsonl` is named after what was asked for, so that measurements of several
kinds stand side by side. It begins with a line that says it; each line after it is a record. A line
that was cut off by a kill is measured again.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from killick.errors import CheckpointError
from killick.runtime.atomic_files import write_atomic

Record = dict[str, Any]


class Measured:
    """The records of a cell.

    Args:
        folder: Of the cell.
        asked: What is measured and how, as plain values.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        self._path = find_measured(folder, asked)
        self._head = {"asked": _plain(asked)}
        self._records = read_measured(folder, asked)
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
        write_atomic(self._path, "".join(json.dumps(line) + "\n" for line in lines))


def find_measured(folder: Path, asked: Mapping[str, Any]) -> Path:
    """The file for what is asked, there or not."""
    text = json.dumps(_plain(asked), sort_keys=True)
    return folder / f"measured-{hashlib.sha256(text.encode()).hexdigest()[:6]}.jsonl"


def read_measured(folder: Path, asked: Mapping[str, Any]) -> list[Record]:
    """The records in the folder of a cell; none if nothing was measured so."""
    path = find_measured(folder, asked)
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found[1:] if found and found[0] == {"asked": _plain(asked)} else []


def _plain(asked: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(asked), default=str))
