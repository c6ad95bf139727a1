"""Ctrl-C and termination: noted, and acted on between two steps."""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM only sets `asked`; a second one interrupts.

    In another thread than the main one, where signals do not come, it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
