"""What a person sees while pictures are labelled, on stderr: how far it is, and what is broken."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from killick.deploy.prediction_records import Record

SECONDS_BETWEEN_LINES = 10
SECONDS_BEFORE_BAR = 1


class Totals:
    """Counts of all records so far, and the time since it was made.

    Args:
        judged: Whether in and out of distribution are told apart.
    """

    def __init__(self, judged: bool) -> None:
        self.pictures = self.broken = self.out = 0
        self._judged, self._began = judged, time.monotonic()

    def add(self, records: list[Record]) -> None:
        """Count some more."""
        self.pictures += len(records)
        self.broken += sum(record.error is not None for record in records)
        self.out += sum(record.in_distribution is False for record in records)

    @property
    def speed(self) -> float:
        """Pictures a second."""
        return self.pictures / max(1e-9, time.monotonic() - self._began)

    def describe(self) -> str:
        """All of it in a line."""
        parts = [f"{self.pictures:,} picture{'s' * (self.pictures != 1)}"]
        if self.broken:
            parts.append(f"{self.broken:,} broken")
        if self._judged:
            parts.append(f"{self.out:,} out of distribution")
        return ", ".join([*parts, _per_second(self.speed)])


class Watching:
    """A bar on a terminal, once a second is over; elsewhere a line every ten seconds.

    Args:
        total: How many pictures there are, if that is known.
        shown: Whether to show how far it is.
        console: Where to.
    """

    def __init__(self, total: int | None, *, shown: bool, console: Console | None = None) -> None:
        self._total, self._shown = total, shown
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> "Watching":
        self._began = self._last_line = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line, above the bar if there is one."""
        self._console.print(f"killick: {text}", soft_wrap=True)

    def tick(self, totals: Totals) -> None:
        """Show how far it is, if it is time to."""
        if not self._shown:
            return
        now = time.monotonic()
        if self._console.is_terminal:
            if self._bar is None and now - self._began > SECONDS_BEFORE_BAR:
                self._start()
            if self._bar is not None:
                text = f"{_count(totals.pictures, self._total)}, {_per_second(totals.speed)}"
                self._bar.update(self._task, completed=totals.pictures, text=text)
        elif now - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = now
            self.say(f"{_count(totals.pictures, self._total)}, {_per_second(totals.speed)}")

    def _start(self) -> None:
        self._bar = Progress(
            TextColumn("labelling"),
            BarColumn(None),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            transient=True,
        )
        self._task = self._bar.add_task("labelling", total=self._total, text="")
        self._bar.start()


def _count(done: int, total: int | None) -> str:
    return f"{done:,} pictures" if total is None else f"{done:,} of {total:,} pictures"


def _per_second(speed: float) -> str:
    return f"{speed:,.0f} pictures/s" if speed >= 10 else f"{speed:.1f} pictures/s"
