"""Room for pictures: several threads decode at once, but not several huge files or pictures."""

import contextlib
import threading
from collections.abc import Iterator


class Room:
    """So many bytes may be in it at a time; who needs more than there is has it alone.

    Args:
        size: How many bytes.
    """

    def __init__(self, size: int) -> None:
        self._limit, self._taken = size, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator["Place"]:
        """Wait until there is room for so many bytes, and take it meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._limit)
            self._taken += size
        place = Place(self, size)
        try:
            yield place
        finally:
            with self._changed:
                self._taken -= place.size
                self._changed.notify_all()

    def _extend(self, own: int, more: int) -> bool:
        with self._changed:
            if self._taken > own and self._taken + more > self._limit:
                return False
            self._taken += more
            return True


class Place:
    """What somebody has taken of a room.

    Attributes:
        size: How many bytes.
    """

    def __init__(self, room: Room, size: int) -> None:
        self._room, self.size = room, size

    def grow(self, more: int) -> bool:
        """Take so many bytes beside, if there is room for them now; else leave all as it is.

        It never waits: two that wait for each other, and give nothing back, would wait for ever.
        """
        fits = self._room._extend(self.size, more)
        self.size += more if fits else 0
        return fits
