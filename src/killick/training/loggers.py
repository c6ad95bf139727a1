"""Loggers of a run: `metrics.jsonl` always, and those that the recipe lists.

A logger is a class like `Logger`, made as `MyLogger(folder, recipe, step)`, in one file that ends
with `LOGGERS.register("mine", MyLogger)`. `step` is that of the checkpoint that a run goes on from,
else None.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from killick.registry import Registry
from killick.results.run_folder import read_metrics
from killick.runtime.atomic_files import write_atomic
from killick.training.recipe import Recipe


class Logger(Protocol):
    """Receives what a run measures."""

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Values after a step: kind "train", "validation" or "day 0"."""
        ...

    def close(self) -> None:
        """The run ended or was interrupted."""
        ...


LOGGERS: Registry[Callable[[Path, Recipe, int | None], Logger]] = Registry(
    "loggers", "logger", package="killick.integrations.loggers"
)


class JsonLogger:
    """`metrics.jsonl`: a line of JSON for each call.

    Going on from a checkpoint drops later lines, since their steps are done again.
    """

    def __init__(self, folder: Path, recipe: Recipe | None = None, step: int | None = None) -> None:
        self._path = folder / "metrics.jsonl"
        kept = [] if step is None else [e for e in read_metrics(self._path) if e["step"] <= step]
        write_atomic(self._path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._waiting = ""

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line. On a full disk it is kept, and written when there is room."""
        self._waiting += json.dumps({"kind": kind, "step": step, **values}) + "\n"
        self.close()

    def close(self) -> None:
        """Write what waits."""
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(self._waiting)
            self._waiting = ""
        except OSError:
            self._waiting = "\n" + self._waiting.lstrip()  # what was half written ends its line


class RunLoggers:
    """All loggers of a run; none in processes other than the first."""

    def __init__(self, folder: Path, recipe: Recipe, step: int | None, *, first: bool) -> None:
        kinds = [JsonLogger, *(LOGGERS.find(name) for name in recipe.loggers)] if first else []
        self._loggers: list[Logger] = [make(folder, recipe, step) for make in kinds]

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Send values to all loggers, such as `log("train", 100, loss=1.2)`."""
        for each in self._loggers:
            each.log(kind, step, values)

    def close(self) -> None:
        """The run ended or was interrupted."""
        for each in self._loggers:
            each.close()
