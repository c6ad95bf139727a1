"""Loggers of a run: `metrics.jsonl` always, and those that the recipe lists.

A logger in one file:

    class MyLogger:
        def __init__(self, folder, recipe, step): ...
        def log(self, kind, step, values): ...
        def close(self): ...

    LOGGERS.register("mine", MyLogger)
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class LoggerFactory(Protocol):
    """Makes a logger."""

    def __call__(self, folder: Path, recipe: Recipe, step: int | None) -> Logger:
        """Of the run folder; `step` is that of the checkpoint a run goes on from, else None."""
        ...


LOGGERS: Registry[LoggerFactory] = Registry(
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
        self._waiting: list[str] = []

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line. On a full disk it is kept, and written when there is room."""
        self._waiting.append(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._flush()

    def close(self) -> None:
        """Write what is left."""
        if self._waiting:
            self._flush()

    def _flush(self) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(self._waiting))
        except OSError:
            if not self._waiting[0].startswith("\n"):  # what was half written ends its line
                self._waiting.insert(0, "\n")
            return
        self._waiting = []


class RunLoggers:
    """All loggers of a run; none in processes other than the first."""

    def __init__(self, loggers: list[Logger]) -> None:
        self._loggers = loggers

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Send values to all loggers, such as `log("train", 100, loss=1.2)`."""
        for each in self._loggers:
            each.log(kind, step, values)


@contextmanager
def open_loggers(
    folder: Path, recipe: Recipe, step: int | None, *, first: bool
) -> Iterator[RunLoggers]:
    """The loggers of a run, closed at the end."""
    loggers: list[Logger] = []
    if first:
        made = [JsonLogger, *(LOGGERS.find(name) for name in recipe.loggers)]
        loggers = [make(folder, recipe, step) for make in made]
    try:
        yield RunLoggers(loggers)
    finally:
        for each in loggers:
            each.close()
