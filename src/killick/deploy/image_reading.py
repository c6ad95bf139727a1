"""Reading pictures: by several threads, some batches ahead, in order; a broken one stops nothing.

Threads, not processes: decoding and resizing do not hold Python's lock, and nothing is copied.
"""

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
from killick.deploy.image_paths import Found, show_path
from killick.deploy.memory_budget import Place, Room
from killick.errors import DataError

BATCHES_AHEAD = 2
LARGEST_TASK = 16
PIXELS_AT_ONCE = 10**8  # eight photographs of a telephone, or one that is as large as may be
BYTES_AT_ONCE = PIXELS_AT_ONCE * PEAK_BYTES  # large files take of it what pixels would
_SECONDS_BETWEEN_LOOKS = 0.2
_ROOM = Room(BYTES_AT_ONCE)


@dataclass(frozen=True)
class Seen:
    """A picture that was read, or why it was not.

    Attributes:
        path: Where it is.
        image: What is shown of it, uint8 `(3, size, size)`.
        problem: In place of the image.
    """

    path: str
    image: Tensor | None = None
    problem: str | None = None


def read_batches(
    found: Iterable[Found], view: PlainView, *, batch: int, workers: int
) -> Iterator[list[Seen]]:
    """What `view` shows of all pictures, in order, `batch` at a time, broken ones among them.

    Args:
        found: Looked through while pictures are read; it may take its time, or never end.
        view: What is shown of a picture.
        batch: How many at a time.
        workers: Threads that read.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(
        workers, "killick-reading", initializer=torch.set_num_threads, initargs=(1,)
    )
    # Handing over small pictures one by one would take as long as reading them.
    task = max(1, min(LARGEST_TASK, batch // (2 * workers)))
    ahead: queue.Queue[_Coming] = queue.Queue(BATCHES_AHEAD * batch // task + workers)
    arguments = (_grouped(found, task), view, pool, ahead, stop)
    # A daemon: it may be waiting for a list that does not go on.
    threading.Thread(target=_feed, args=arguments, daemon=True, name="killick-finding").start()
    try:
        yield from _in_batches(ahead, batch)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        # The readers' one thread became what new threads of torch begin with.
        torch.set_num_threads(torch.get_num_threads())


def read_one(found: Found, view: PlainView) -> Seen:
    """What `view` shows of a picture, or what is wrong with it."""
    if found.problem is not None:
        return Seen(found.path, problem=found.problem)
    for_file = FILE_COPIES * _size_of(found.path)
    with _ROOM.taken(for_file) as place:
        seen = _look(found.path, view, place)
    if isinstance(seen, Seen):
        return seen
    # Others have the room. So this waits for all it needs at once, with nothing in its hands.
    with _ROOM.taken(for_file + seen):
        again = _look(found.path, view, None)
    assert isinstance(again, Seen)
    return again


def _look(path: str, view: PlainView, place: Place | None) -> Seen | int:
    """What `view` shows of a picture; or how many bytes its pixels need, if there is no room.

    All that was read is gone when this returns, before the place for it is given back.

    Args:
        path: Of the picture.
        view: What is shown of it.
        place: That for the file, to be made larger for the pixels; None if there is enough.
    """
    name = show_path(path)
    try:
        contents = read_file(path, name)
        height, width = measure_limited(contents, name)
        check_length(height, width, view.resize or view.size, name)
        for_pixels = PEAK_BYTES * height * width
        if place is not None and not place.grow(for_pixels):
            return for_pixels
        return Seen(path, view(decode_limited(contents, name)))
    except DataError as problem:
        return Seen(path, problem=str(problem))


def _size_of(path: str) -> int:
    """Bytes of a file that will be read; one that is not there, or too large, is refused later."""
    try:
        return min(os.stat(path).st_size, LARGEST_FILE)
    except (OSError, ValueError):
        return 0


def _read_some(found: list[Found], view: PlainView) -> list[Seen]:
    return [read_one(each, view) for each in found]


def _grouped(found: Iterable[Found], size: int) -> Iterator[list[Found]]:
    coming = iter(found)
    while group := list(itertools.islice(coming, size)):
        yield group


# Pictures that are being read; what went wrong while looking for more; or None, at the end.
_Coming = Future[list[Seen]] | BaseException | None


def _feed(
    groups: Iterable[list[Found]],
    view: PlainView,
    pool: ThreadPoolExecutor,
    ahead: "queue.Queue[_Coming]",
    stop: threading.Event,
) -> None:
    """Have pictures read as long as there is room for them."""

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
    except BaseException as problem:  # told where somebody listens
        put(problem)


def _in_batches(ahead: "queue.Queue[_Coming]", batch: int) -> Iterator[list[Seen]]:
    seen: list[Seen] = []
    while (coming := ahead.get()) is not None:
        if isinstance(coming, BaseException):
            raise coming
        seen += coming.result()
        if len(seen) >= batch:  # a task is at most a batch
            yield seen[:batch]
            seen = seen[batch:]
    if seen:
        yield seen
