"""What a run writes down as it goes, and where it ran."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from killick.results.run_folder import read_metrics
from killick.runtime.atomic_files import write_atomic


class Metrics:
    """`metrics.jsonl`: a line of JSON for each look at the run; TensorBoard where it is installed.

    Args:
        folder: Of the run.
        step: Of the checkpoint one goes on from: lines after it are dropped, since those steps are
            done again. None begins anew.
    """

    def __init__(self, folder: Path, step: int | None = None) -> None:
        self._path = folder / "metrics.jsonl"
        kept = [] if step is None else [e for e in read_metrics(self._path) if e["step"] <= step]
        write_atomic(self._path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._waiting: list[str] = []
        self._board = _tensorboard(folder / "tensorboard", step)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Add a line, such as `write("train", 100, loss=1.2)`.

        On a full disk it is kept, and written when there is room.
        """
        self._waiting.append(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def _flush(self) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(self._waiting))
        except OSError:
            if not self._waiting[0].startswith("\n"):  # what was half written ends its line
                self._waiting.insert(0, "\n")
            return
        self._waiting = []

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._waiting:
            self._flush()
        if self._board is not None:
            self._board.close()


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and command, so that a run can be understood later."""
    names = ("killick", "torch", "torchvision", "timm", "numpy")
    cuda = device.type == "cuda"
    started = Path(sys.argv[0]).name
    return {
        "versions": {name: metadata.version(name) for name in names if _installed(name)},
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": ["killick" if started == "__main__.py" else started, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _tensorboard(folder: Path, step: int | None) -> Any:
    if not _installed("tensorboard"):
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=None if step is None else step + 1)
