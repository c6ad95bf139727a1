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
from dataclasses import replace

import torch

from killick.data.decoding import printable
from killick.data.preprocessing import PlainView, check_length
from killick.deploy.decoding_limits import (
    FILE_COPIES,
    LARGEST_FILE,
    PEAK_BYTES,
    decode_limited,
    measure_limited,
    read_file,
)
from killick.deploy.image_paths import InputImage
from killick.errors import DataError

BATCHES_AHEAD = 2
LARGEST_TASK = 16
PIXELS_AT_ONCE = 10**8  # eight photographs of a telephone, or one that is as large as may be


class MemoryBudget:
    """A memory budget that threads share; one that needs more than all of it gets it alone."""

    def __init__(self, size: int) -> None:
        self._limit, self._taken = size, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free, and hold them meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._limit)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


_BUDGET = MemoryBudget(PIXELS_AT_ONCE * PEAK_BYTES)


def read_batches(
    images: Iterable[InputImage], view: PlainView, *, batch: int, workers: int
) -> Iterator[list[InputImage]]:
    """All images as `view` shows them, in order, `batch` at a time, unreadable ones among them.

    `images` may be slow, or never end: it is read from while others are decoded.
    """
    pool = ThreadPoolExecutor(
        workers, "killick-reading", initializer=torch.set_num_threads, initargs=(1,)
    )
    # Handing over small images one by one would take as long as reading them.
    task = max(1, min(LARGEST_TASK, batch // (2 * workers)))
    free = threading.Semaphore(BATCHES_AHEAD * batch // task + workers)
    # Images that are being read; at the end what went wrong while looking for more, or None.
    ahead: queue.SimpleQueue[Future[list[InputImage]] | BaseException | None] = queue.SimpleQueue()

    def read_some(group: list[InputImage]) -> list[InputImage]:
        return [read_one(each, view) for each in group]

    def submit_all() -> None:
        end: BaseException | None = None
        coming = iter(images)
        try:
            while group := list(itertools.islice(coming, task)):
                free.acquire()
                ahead.put(pool.submit(read_some, group))
        except BaseException as problem:  # raised again below, or the pool was shut down there
            end = problem
        ahead.put(end)

    # A daemon: it may be waiting for a list that does not go on.
    threading.Thread(target=submit_all, daemon=True, name="killick-finding").start()
    try:
        loaded: list[InputImage] = []
        while isinstance(found := ahead.get(), Future):
            loaded += found.result()
            free.release()
            if len(loaded) >= batch:  # a task is at most a batch
                yield loaded[:batch]
                loaded = loaded[batch:]
        if found is not None:
            raise found
        if loaded:
            yield loaded
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        free.release()
        # New threads of torch would begin with the readers' one thread.
        torch.set_num_threads(torch.get_num_threads())


def read_one(image: InputImage, view: PlainView) -> InputImage:
    """An image as `view` shows it, or what is wrong with it.

    The file is read twice: how much memory its pixels take is known once it was read, and a thread
    that waits for memory must not hold any.
    """
    if image.problem is not None:
        return image
    path, name, for_file = image.path, printable(image.path), 0
    with contextlib.suppress(OSError, ValueError):  # one that is not there is refused below
        for_file = FILE_COPIES * min(os.stat(path).st_size, LARGEST_FILE)
    try:
        with _BUDGET.reserve(for_file):
            height, width = measure_limited(read_file(path, name), name)
        if not view.squash:
            check_length(height, width, view.resize or view.size, name)
        with _BUDGET.reserve(for_file + PEAK_BYTES * height * width):
            return replace(image, pixels=view(decode_limited(read_file(path, name), name)))
    except DataError as problem:
        return replace(image, problem=str(problem))
