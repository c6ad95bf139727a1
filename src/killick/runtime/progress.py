"""Progress of long work: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

SECONDS_BETWEEN_UPDATES = 0.2


class Display:
    """Receives the progress of a task. This one shows nothing."""

    def message(self, text: str) -> None:
        """Print a line."""

    def advance(self, done: int) -> None:
        """Set how much is done; cheap enough for every step."""

    def update(self, done: int, text: str, *, line: bool = False) -> None:
        """Set how much is done, and a short status; `line` prints it also without a terminal."""


class TerminalDisplay(Display):
    """A bar with a status and the time left; a line now and then where there is no terminal."""

    def __init__(
        self,
        title: str,
        total: int | None,
        done: int = 0,
        console: Console | None = None,
        *,
        unit: str = "step",
        seconds_between_lines: float = 30,
        delay: float = 0,  # seconds before the bar appears
    ) -> None:
        self._console = console or Console(highlight=False)
        self._title, self._total, self._before, self._unit = title, total, done, unit
        self._seconds_between_lines, self._delay = seconds_between_lines, delay
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._began = self._last_line = self._last_update = time.monotonic()

    def __enter__(self) -> Self:
        self._began = self._last_line = self._last_update = time.monotonic()
        if self._delay == 0:
            self._open()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_live(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    def message(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text, soft_wrap=True, markup=False)

    def advance(self, done: int) -> None:
        """Move the bar, if there is one, a few times a second."""
        now = time.monotonic()
        if now - self._last_update > SECONDS_BETWEEN_UPDATES:
            self._last_update = now
            if self._open():
                self._move("", self._title, done, None)

    def update(self, done: float, text: str, *, line: bool = False) -> None:
        """Move the bar; or print a line if `line`, or if the last one is long ago."""
        now = time.monotonic()
        if self._open():
            self._move("", self._title, done, text)
        elif not self._console.is_terminal and (
            line or now - self._last_line > self._seconds_between_lines
        ):
            self._last_line = now
            of = left = ""
            if self._total is not None:
                of = f"/{self._total}"
                if done > self._before:
                    rate = (now - self._began) / (done - self._before)
                    left = f" {timedelta(seconds=round(rate * (self._total - done)))} left"
            self.message(f"{self._title}: {self._unit} {int(done)}{of} {text}{left}")

    def update_part(self, name: str, fraction: float | None, text: str = "") -> None:
        """Show a bar of its own for a part of the work; None removes it. Only on a terminal."""
        if not self._open():
            return
        assert self._bar is not None
        if fraction is not None:
            self._move(name, name, fraction, text, total=1.0)
        elif name in self._tasks:
            self._bar.remove_task(self._tasks.pop(name))

    def _open(self) -> bool:
        """Whether there is a bar; it is made on a terminal when the delay is over."""
        waited = time.monotonic() - self._began >= self._delay
        if self._bar is None and self._console.is_terminal and waited:
            self._bar = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(None, table_column=Column(ratio=1, min_width=5)),
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
                TextColumn("left", table_column=Column(no_wrap=True)),
                console=self._console,
                expand=True,
                transient=True,
            )
            self._move("", self._title, self._before, "")
            self._bar.start()
        return self._bar is not None

    def _move(
        self, name: str, title: str, done: float, text: str | None, total: float | None = None
    ) -> None:
        assert self._bar is not None
        if name not in self._tasks:
            total = total if name else self._total
            # `completed` belongs to the task, so that the time left is that of this process.
            self._tasks[name] = self._bar.add_task(title, total=total, completed=done, text="")  # type: ignore[arg-type]
        self._bar.update(self._tasks[name], completed=done)
        if text is not None:
            self._bar.update(self._tasks[name], text=text)


# Makes a display from a title, how much there is to do, how much was done, and the unit.
DisplayFactory = Callable[[str, int, int, str], AbstractContextManager[Display]]


def choose_display(factory: DisplayFactory | None, quiet: bool) -> DisplayFactory:
    """None if `quiet`; else as given; by default a terminal."""
    if quiet:
        return lambda title, total, done, unit: nullcontext(Display())
    if factory is not None:
        return factory
    return lambda title, total, done, unit: TerminalDisplay(title, total, done, unit=unit)
