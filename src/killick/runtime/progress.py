"""What a person sees of a run: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

SECONDS_BETWEEN_LINES = 30
SECONDS_BETWEEN_TICKS = 0.2


class Display(Protocol):
    """Whoever wants to be told how a run goes."""

    def say(self, text: str) -> None:
        """Something worth a line."""
        ...

    def tick(self, step: int) -> None:
        """Where the run is; after every step."""
        ...

    def show(self, step: int, text: str, *, epoch_done: bool = False) -> None:
        """Where the run is, and how it does."""
        ...


class Silent:
    """Tells nothing: for all processes but the first, and for tests."""

    def say(self, text: str) -> None:
        """Nothing."""

    def tick(self, step: int) -> None:
        """Nothing."""

    def show(self, step: int, text: str, *, epoch_done: bool = False) -> None:
        """Nothing."""


class Terminal:
    """A bar with epoch, speed, loss and time left; or, when piped, a line now and then.

    Args:
        title: Of the bar.
        steps: Of the run.
        done: Steps that were done before.
        console: Where to write.
        what: Is counted.
    """

    def __init__(
        self,
        title: str,
        steps: int,
        done: int = 0,
        console: Console | None = None,
        *,
        what: str = "step",
    ) -> None:
        self._console = console or Console(highlight=False)
        self._title, self._steps, self._done, self._what = title, steps, done, what
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._began = self._last_line = self._ticked = time.monotonic()

    def __enter__(self) -> "Terminal":
        self._began = self._last_line = time.monotonic()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(None, table_column=Column(ratio=1, min_width=5)),  # gives way
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True)),
                TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
                TextColumn("left", table_column=Column(no_wrap=True)),
                console=self._console,
                expand=True,
                transient=True,  # what is said stays, and the result comes last
            )
            self._task = self._bar.add_task(
                self._title, total=self._steps, completed=self._done, text=""
            )
            self._bar.start()
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
        console = self._bar.console if self._bar is not None else self._console
        console.print(text, soft_wrap=True, markup=False)

    def tick(self, step: int) -> None:
        """Move the bar, if there is one, a few times a second."""
        if self._bar is not None and time.monotonic() - self._ticked > SECONDS_BETWEEN_TICKS:
            self._ticked = time.monotonic()
            self._bar.update(self._task, completed=step)

    def show(self, step: int, text: str, *, epoch_done: bool = False) -> None:
        """Move the bar; or write a line, at the end of an epoch or when half a minute is over."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
            return
        if epoch_done or now - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._began) / max(1, step - self._done) * (self._steps - step)
            self.say(f"{self._title}: {self._what} {step}/{self._steps} {text} {_clock(left)} left")


# Makes a display: from a title, how much there is to do, how much was done, and what is counted.
Showing = Callable[[str, int, int, str], AbstractContextManager[Display]]


def chosen(show: Showing | None, quiet: bool) -> Showing:
    """Who is told: nobody if `quiet`; else as given; by default a terminal."""
    if quiet:
        return lambda title, steps, done, what: nullcontext(Silent())
    if show is not None:
        return show
    return lambda title, steps, done, what: Terminal(title, steps, done, what=what)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
