"""Loggers of a run: `metrics.jsonl` always, and those that the recipe lists.

A logger is a subclass of `Logger` in one file that ends with `LOGGERS.register("mine", MyLogger)`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from killick.errors import OptionError, import_library, one_line
from killick.registry import Registry
from killick.results.rows import Row
from killick.results.run_folder import read_metrics
from killick.runtime.atomic_files import write_atomic
from killick.training.recipe import Recipe
from killick.training.recipe_files import recipe_of

IDS = "loggers.json"  # in a run folder: which run of each service it is
Values = Mapping[str, Any]


class Logger:
    """Receives what a run measures.

    Args:
        folder: Of the run.
        recipe: None for the evaluation of a model that Killick did not train.
        step: That of the checkpoint that a run resumes from; later steps are logged again.
    """

    library: ClassVar[str] = ""  # that it needs, which is also the name of the extra

    def __init__(self, folder: Path, recipe: Recipe | None, step: int | None) -> None:
        self.folder = folder

    def log(self, kind: str, step: int, values: Values) -> None:
        """Values after a step: kind "train", "validation", "day 0" or "test"."""

    def log_file(self, path: Path) -> None:
        """A file of results: `rows.csv` or a report."""

    def close(self) -> None:
        """The run ended or was interrupted."""


LOGGERS: Registry[type[Logger]] = Registry(
    "loggers", "logger", package="killick.integrations.loggers"
)


class JsonLogger(Logger):
    """`metrics.jsonl`: a line of JSON for each call.

    Going on from a checkpoint drops later lines, since their steps are done again.
    """

    def __init__(self, folder: Path, recipe: Recipe | None = None, step: int | None = None) -> None:
        self._path = folder / "metrics.jsonl"
        kept = [] if step is None else [e for e in read_metrics(self._path) if e["step"] <= step]
        write_atomic(self._path, "".join(json.dumps(entry) + "\n" for entry in kept))
        self._waiting = ""

    def log(self, kind: str, step: int, values: Values) -> None:
        """Add a line. On a full disk it is kept, and written when there is room."""
        if kind == "test":  # the rows have it
            return
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


def find_loggers(names: Iterable[str]) -> dict[str, type[Logger]]:
    """The loggers of these names; an unknown one or a missing library is an error."""
    found = {name: LOGGERS.find(name) for name in names}
    for name, kind in found.items():
        if kind.library:
            import_library(kind.library, kind.library, f"the logger {name}")
    return found


class RunLoggers:
    """Several loggers as one. One that fails later is dropped with a message; training continues."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe | None,
        step: int | None,
        kinds: Mapping[str, type[Logger]],
        tell: Callable[[str], None],
    ) -> None:
        self._folder, self._tell = folder, tell
        self._loggers: dict[str, Logger] = {}
        self.last: dict[str, float] = {}  # the last value of each number, by kind/name
        for name, make in kinds.items():
            try:
                self._loggers[name] = make(folder, recipe, step)
            except Exception as problem:
                self.close()
                raise OptionError(f"the logger {name} cannot start: {one_line(problem)}.") from None

    def log(self, kind: str, step: int, **values: Any) -> None:
        """Send values to all loggers, such as `log("train", 100, loss=1.2)`."""
        self.last |= numbers(kind, values)
        self._each(lambda logger: logger.log(kind, step, values))

    def log_rows(self, step: int, rows: Sequence[Row]) -> None:
        """Send a summary of results, and the file of the rows."""
        if rows:
            self.log("test", step, **summarize_rows(rows))
            self.log_file(self._folder / "rows.csv")

    def log_file(self, path: Path) -> None:
        """Send a file of results."""
        self._each(lambda logger: logger.log_file(path))

    def close(self) -> None:
        """The run ended or was interrupted."""
        self._each(lambda logger: logger.close())

    def _each(self, action: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                action(logger)
            except Exception as problem:  # of a service, such as a lost connection
                del self._loggers[name]
                self._tell(f"the logger {name} failed and is left out: {one_line(problem)}.")


def send_results(
    folder: Path,
    names: Sequence[str],
    *,
    rows: Sequence[Row] = (),
    file: Path | None = None,
    tell: Callable[[str], None],
) -> None:
    """Send results to the services that the run in `folder` was logged to, or to new runs there."""
    if not names:
        return
    recipe = recipe_of(folder) if (folder / "recipe.yaml").is_file() else None
    step = max((entry["step"] for entry in read_metrics(folder / "metrics.jsonl")), default=0)
    loggers = RunLoggers(folder, recipe, None, find_loggers(names), tell)
    loggers.log_rows(step, rows)
    if file is not None:
        loggers.log_file(file)
    loggers.close()


def summarize_rows(rows: Iterable[Row]) -> dict[str, float]:
    """The main numbers of an evaluation: `{"clean/top1": 0.93, "ood/noise/auroc": 0.9}`."""
    found = {}
    for row in rows:
        if row["inference"] not in ("", "single") or row["scaling"] or row["reference"] != "":
            continue
        name = str(row["suite"])
        if name in ("ood", "shift"):
            name = f"{name}/{row['set']}"
        whole = row["mean_of"] and row["severity"] in ("", "all")
        if whole or (row["suite"] in ("clean", "shift") and not row["score"]):
            found[f"{name}/{row['metric']}"] = float(row["value"])
        elif (row["suite"], row["score"], row["metric"]) == ("ood", "energy", "auroc"):
            found[f"{name}/auroc"] = float(row["value"])
    return found


def numbers(kind: str, values: Values) -> dict[str, float]:
    """The numbers among values, named kind/name.

    Example:
        >>> numbers("train", {"loss": 1.5, "losses": [1.0, 2.0]})
        {'train/loss': 1.5}
    """
    return {f"{kind}/{name}": v for name, v in values.items() if isinstance(v, int | float)}


def read_run_id(folder: Path, logger: str) -> str | None:
    """The id of the run of a service that a folder is; None if it has none yet."""
    try:
        found = json.loads((folder / IDS).read_text(encoding="utf-8"))[logger]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) and re.fullmatch(r"\w[\w.-]{0,199}", found) else None


def write_run_id(folder: Path, logger: str, run: str) -> None:
    """Store the id of the run of a service, so that it is the same run after a resume."""
    path = folder / IDS
    try:
        others = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        others = {}
    write_atomic(path, json.dumps({**others, logger: run}, indent=2) + "\n")
