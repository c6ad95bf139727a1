"""Room for pixels: several threads decode at once, but not several huge pictures."""

import contextlib
import threading
from collections.abc import Iterator


class Room:
    """So many pixels may be in it at a time; a larger picture has it alone.

    Args:
        pixels: How many.
    """

    def __init__(self, pixels: int) -> None:
        self._limit, self._taken = pixels, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for so many, and take it meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + pixels <= self._limit)
            self._taken += pixels
        try:
            yield
        finally:
            with self._changed:
                self._taken -= pixels
                self._changed.notify_all()
