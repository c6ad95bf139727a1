"""Reading images with several threads, some batches ahead, in order, within a memory budget.

Threads, not processes: decoding and resizing do not hold Python's lock, and nothing is copied.
"""

import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from killick.data.preprocessing import PlainView, check_length
from killick.deploy.decoding_limits import (
    FILE_COPIES,
    LARGEST_FILE,
    PEAK_BYTES,
    decode_limited,
    measure_limited,
    read_file,
)
from killick.deploy.image_paths import ImagePath, show_path
from killick.errors import DataError

BATCHES_AHEAD = 2
LARGEST_TASK = 16
PIXELS_AT_ONCE = 10**8  # eight photographs of a telephone, or one that is as large as may be
BYTES_AT_ONCE = PIXELS_AT_ONCE * PEAK_BYTES  # large files count like pixels
_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class LoadedImage:
    """An image that was read, or why it was not.

    Attributes:
        path: Where it is.
        image: Resized and cropped, uint8 `(3, size, size)`.
        problem: In place of the image.
    """

    path: str
    image: Tensor | None = None
    problem: str | None = None


class MemoryBudget:
    """Bytes that threads share; whoever needs more than all of it has it alone.

    Args:
        size: How many bytes.
    """

    def __init__(self, size: int) -> None:
        self._limit, self._taken = size, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator["Reservation"]:
        """Wait until so many bytes are free, and hold them meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._limit)
            self._taken += size
        reservation = Reservation(self, size)
        try:
            yield reservation
        finally:
            with self._changed:
                self._taken -= reservation.size
                self._changed.notify_all()

    def _extend(self, own: int, more: int) -> bool:
        with self._changed:
            if self._taken > own and self._taken + more > self._limit:
                return False
            self._taken += more
            return True


class Reservation:
    """A part of a budget that somebody holds, of `size` bytes."""

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self._budget, self.size = budget, size

    def grow(self, more: int) -> bool:
        """Take so many more bytes if they are free now; else change nothing.

        It never waits: two that hold something and wait for each other would wait forever.
        """
        fits = self._budget._extend(self.size, more)
        self.size += more if fits else 0
        return fits


_BUDGET = MemoryBudget(BYTES_AT_ONCE)


def read_batches(
    paths: Iterable[ImagePath], view: PlainView, *, batch: int, workers: int
) -> Iterator[list[LoadedImage]]:
    """All images as `view` shows them, in order, `batch` at a time, unreadable ones among them.

    Args:
        paths: Read from while images are decoded; it may be slow, or never end.
        view: Resizes and crops.
        batch: How many at a time.
        workers: Threads that read.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(
        workers, "killick-reading", initializer=torch.set_num_threads, initargs=(1,)
    )
    # Handing over small images one by one would take as long as reading them.
    task = max(1, min(LARGEST_TASK, batch // (2 * workers)))
    ahead: queue.Queue[_Coming] = queue.Queue(BATCHES_AHEAD * batch // task + workers)
    arguments = (_grouped(paths, task), view, pool, ahead, stop)
    # A daemon: it may be waiting for a list that does not go on.
    threading.Thread(target=_feed, args=arguments, daemon=True, name="killick-finding").start()
    try:
        yield from _in_batches(ahead, batch)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        # New threads of torch would begin with the readers' one thread.
        torch.set_num_threads(torch.get_num_threads())


def read_one(found: ImagePath, view: PlainView) -> LoadedImage:
    """An image as `view` shows it, or what is wrong with it."""
    if found.problem is not None:
        return LoadedImage(found.path, problem=found.problem)
    for_file = FILE_COPIES * _size_of(found.path)
    with _BUDGET.reserve(for_file) as reservation:
        loaded = _load(found.path, view, reservation)
    if isinstance(loaded, LoadedImage):
        return loaded
    # Others hold the budget. So this waits for all it needs at once, while it holds nothing.
    with _BUDGET.reserve(for_file + loaded):
        again = _load(found.path, view, None)
    assert isinstance(again, LoadedImage)
    return again


def _load(path: str, view: PlainView, reservation: Reservation | None) -> LoadedImage | int:
    """An image as `view` shows it; or how many bytes its pixels need, if they are not free.

    All that was read is gone when this returns, before its reservation is given back.

    Args:
        path: Of the image.
        view: Resizes and crops.
        reservation: For the file, to grow for the pixels; None if it is large enough.
    """
    name = show_path(path)
    try:
        contents = read_file(path, name)
        height, width = measure_limited(contents, name)
        check_length(height, width, view.resize or view.size, name)
        for_pixels = PEAK_BYTES * height * width
        if reservation is not None and not reservation.grow(for_pixels):
            return for_pixels
        return LoadedImage(path, view(decode_limited(contents, name)))
    except DataError as problem:
        return LoadedImage(path, problem=str(problem))


def _size_of(path: str) -> int:
    """Bytes of a file that will be read; one that is not there, or too large, is refused later."""
    try:
        return min(os.stat(path).st_size, LARGEST_FILE)
    except (OSError, ValueError):
        return 0


def _read_some(paths: list[ImagePath], view: PlainView) -> list[LoadedImage]:
    return [read_one(each, view) for each in paths]


def _grouped(paths: Iterable[ImagePath], size: int) -> Iterator[list[ImagePath]]:
    coming = iter(paths)
    while group := list(itertools.islice(coming, size)):
        yield group


# Images that are being read; what went wrong while looking for more; or None, at the end.
_Coming = Future[list[LoadedImage]] | BaseException | None


def _feed(
    groups: Iterable[list[ImagePath]],
    view: PlainView,
    pool: ThreadPoolExecutor,
    ahead: "queue.Queue[_Coming]",
    stop: threading.Event,
) -> None:
    """Submit images to the pool as long as the queue takes them."""

    def put(coming: _Coming) -> None:
        while not stop.is_set():
            try:
                ahead.put(coming, timeout=_SECONDS_BETWEEN_LOOKS)
                return
            except queue.Full:
                continue

    try:
        for group in groups:
            if stop.is_set():
                return
            put(pool.submit(_read_some, group, view))
        put(None)
    except BaseException as problem:  # raised again by the thread that reads the queue
        put(problem)


def _in_batches(ahead: "queue.Queue[_Coming]", batch: int) -> Iterator[list[LoadedImage]]:
    loaded: list[LoadedImage] = []
    while (coming := ahead.get()) is not None:
        if isinstance(coming, BaseException):
            raise coming
        loaded += coming.result()
        if len(loaded) >= batch:  # a task is at most a batch
            yield loaded[:batch]
            loaded = loaded[batch:]
    if loaded:
        yield loaded
