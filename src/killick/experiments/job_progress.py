"""What a person sees of a comparison: one live display for all cells, with the time left."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from killick.experiments.job_runner import PROGRESS, Result
from killick.experiments.jobs import Job
from killick.results.rows import read_rows
from killick.results.run_folder import read_job

SECONDS_BETWEEN_LINES = 30
# Share of a cell's time that training takes, until one has shown it.
_USUAL_SHARE = 0.5


class Watch:
    """A bar for the whole grid and one for each cell that runs; plain lines when piped.

    Args:
        cells: All of them.
        jobs: How many run at once; None if it is not known.
        quiet: Show nothing.
        console: Where to write.
    """

    def __init__(
        self,
        cells: Sequence[Job],
        *,
        jobs: int | None,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(highlight=False, quiet=quiet)
        self._cells, self._jobs = list(cells), jobs
        self._ended: dict[Path, float] = {}  # seconds of each cell that ended
        self._begun: dict[Path, tuple[float, float]] = {}  # when it was first seen, and how far
        self._bars: dict[Path, TaskID] = {}
        self._progress: Progress | None = None
        self._whole = TaskID(0)
        self._problems: dict[str, str] = {}  # and the title of the first cell that had it
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> "Watch":
        self._began = self._last_line = time.monotonic()
        if self._console.is_terminal and not self._console.quiet:
            self._progress = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(None, table_column=Column(ratio=1, min_width=5)),
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
                console=self._console,
                expand=True,
                transient=True,
            )
            self._whole = self._progress.add_task("all cells", total=1.0, text="")
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, text: str) -> None:
        """A line, above the bars if there are some."""
        self._console.print(text, soft_wrap=True, markup=False)

    def end(self, cell: Job, result: Result) -> None:
        """A cell ended."""
        seen = time.monotonic() - self._begun.get(cell.folder, (self._began, 0.0))[0]
        # It knows better: until it first says how far it is, it has read its data.
        self._ended[cell.folder] = float(result.get("seconds") or seen)
        if self._progress is not None and cell.folder in self._bars:
            self._progress.remove_task(self._bars.pop(cell.folder))
        count = f"{len(self._ended)}/{len(self._cells)}"
        if result["status"] == "finished":
            took = f"{self._ended[cell.folder]:.0f} s"
            self.say(f"{count} {cell.title}: {in_short(cell)} ({took}){self._left_words()}")
        elif result["status"] == "failed":
            problem = str(result["problem"])
            first = self._problems.setdefault(problem, cell.title)
            told = problem if first == cell.title else f"as {first}"
            self.say(f"{count} {cell.title}: failed: {told}")

    def look(self) -> None:
        """Bring the display up to date with what cells have written."""
        now = time.monotonic()
        shares: dict[Path, float] = {}
        running: list[str] = []
        for cell in self._cells:
            if cell.folder in self._ended:
                continue
            note = _read_note(cell.folder)
            if not note:
                continue
            shares[cell.folder] = share = _share(note, self._training_share())
            self._begun.setdefault(cell.folder, (now, share))
            text = str(note.get("text") or note["stage"])
            running.append(f"{cell.title} {note['stage']} {100 * share:.0f} %")
            if self._progress is not None:
                if cell.folder not in self._bars:
                    self._bars[cell.folder] = self._progress.add_task(
                        f"{cell.title}, {note['stage']}", total=1.0, text=""
                    )
                self._progress.update(
                    self._bars[cell.folder],
                    completed=share,
                    text=text,
                    description=f"{cell.title}, {note['stage']}",
                )
        done = len(self._ended) + sum(shares.values())
        self._left = self._seconds_left(shares)
        if self._progress is not None:
            words = f"{len(self._ended)} of {len(self._cells)} cells{self._left_words()}"
            self._progress.update(self._whole, completed=done / len(self._cells), text=words)
        elif now - self._last_line > SECONDS_BETWEEN_LINES and running:
            self._last_line = now
            self.say("; ".join(running) + self._left_words())

    _left: float | None = None

    def _left_words(self) -> str:
        if self._left is None or len(self._ended) == len(self._cells):
            return ""
        minutes, seconds = divmod(round(self._left), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {hours}:{minutes:02}:{seconds:02} left"

    def _training_share(self) -> float:
        """Of a cell's time, as those that ended have shown."""
        taken = [read_job(folder).get("seconds", {}) for folder in self._ended]
        train = sum(float(each.get("train", 0)) for each in taken)
        whole = train + sum(float(each.get("evaluate", 0)) for each in taken)
        return train / whole if whole else _USUAL_SHARE

    def _seconds_left(self, shares: dict[Path, float]) -> float | None:
        """From what cells of the same arm took; else from those that run."""
        now = time.monotonic()
        took: dict[str, list[float]] = {}
        for cell in self._cells:
            if cell.folder in self._ended:
                took.setdefault(cell.arm, []).append(self._ended[cell.folder])
        guesses = [t for times in took.values() for t in times]
        for folder, share in shares.items():
            since, at = self._begun[folder]
            if share - at > 0.1:
                guesses.append((now - since) / (share - at))
        if not guesses:
            return None
        left = 0.0
        for cell in self._cells:
            if cell.folder in self._ended:
                continue
            times = took.get(cell.arm, guesses)
            left += sum(times) / len(times) * (1 - shares.get(cell.folder, 0.0))
        waiting = len(self._cells) - len(self._ended)
        return left / max(1, min(self._jobs or len(shares) or 1, waiting))


def in_short(cell: Job) -> str:
    """The first numbers of a cell."""
    found = {}
    for row in read_rows(cell.folder):
        if row["metric"] != "top1" or row["inference"] != "single":
            continue
        if row["suite"] == "clean":
            found["clean"] = 100 * float(row["value"])
        elif str(row["corruption"]).startswith("mean of") and row["severity"] == "all":
            found.setdefault("corrupted", 100 * float(row["value"]))
    return ", ".join(f"{name} {value:.1f} %" for name, value in found.items()) or "done"


def _share(note: dict[str, object], training: float) -> float:
    """How much of a cell is done."""
    number, stages = int(str(note["number"])), int(str(note["stages"]))
    within = float(str(note["done"])) / float(str(note["total"]))
    if number == stages - 1:
        return training + (1 - training) * within
    return training * (number + within) / (stages - 1)


def _read_note(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
