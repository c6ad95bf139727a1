"""Ctrl-C and termination: handled between two steps."""

import signal
import threading
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP is sent by a closed terminal


def handle(number: int, handler: Any) -> Any:
    """Set a signal's handler and return the one before; `nohup` stays in force, also for SIGTERM."""
    before = signal.getsignal(number)
    if number == signal.SIGINT or before != signal.SIG_IGN:
        signal.signal(number, handler)
    return before or signal.SIG_DFL  # None: not set from Python


class Interrupts:
    """While it is entered, the first SIGINT, SIGTERM or SIGHUP only sets `asked`; a second one interrupts.

    In another thread than the main one, where signals do not come, it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *ENDING):
                self._before[number] = handle(number, self._note)
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
