"""The time of each part of a command, in seconds; on a GPU, of the device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the seconds of parts. On a GPU nothing is waited for until `seconds`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._began = time.perf_counter()

    @contextmanager
    def host(self, part: str) -> Iterator[None]:
        """Time of this process, such as waiting for files."""
        began = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - began
            self._seconds[part] = self._seconds.get(part, 0.0) + passed

    @contextmanager
    def device(self, part: str) -> Iterator[None]:
        """Time of the work that is given to the device."""
        if not self._cuda:
            with self.host(part):
                yield
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._events.append((part, start, end))

    def seconds(self) -> dict[str, float]:
        """Seconds by part, and all others since this began (waits for the device)."""
        if self._events:
            self._events[-1][2].synchronize()
        found = dict(self._seconds)
        for part, start, end in self._events:
            found[part] = found.get(part, 0.0) + start.elapsed_time(end) / 1000
        found["other"] = max(0.0, time.perf_counter() - self._began - sum(found.values()))
        return found

    def describe(self) -> str:
        """All parts in a line.

        Example:
            >>> Stopwatch(torch.device("cpu")).describe()
            'time: other 0.0 s'
        """
        parts = [f"{name} {value:.1f} s" for name, value in self.seconds().items()]
        return f"time: {', '.join(parts)}"
