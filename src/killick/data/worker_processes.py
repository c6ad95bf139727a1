"""Worker processes that read images: how they start, and the error when one dies."""

import gc
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from killick.errors import DataError, KillickError

_END = object()


def begin_worker(worker: int) -> None:
    """What a worker does first.

    Signals to the group, such as Ctrl-C, are for the process that trains. What a worker inherited,
    such as the session of an inference engine, belongs to threads that the copy does not have: to
    free it would wait for them for ever, so it is never collected.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    gc.freeze()
    gc.enable()


def iterate(loader: Iterable[Any], name: str) -> Iterator[Any]:
    """What a loader yields; a worker that dies is an error of one line.

    Its workers are started now, and collect no garbage before `begin_worker`.
    """
    collecting = gc.isenabled()
    gc.disable()  # in the copies as well
    try:
        iterator = iter(loader)
    finally:
        if collecting:
            gc.enable()
    return _go_through(iterator, name)


def _go_through(iterator: Iterator[Any], name: str) -> Iterator[Any]:
    while True:
        try:
            with dead_workers_explained(name, iterator):
                item = next(iterator, _END)
        except KillickError:
            raise
        except Exception as problem:  # raised by the user's code, perhaps with a worker's traceback
            lines = [line for line in str(problem).splitlines() if line.strip()] or [""]
            kind = "" if lines[0].startswith("Caught ") else f"{type(problem).__name__}: "
            raise DataError(
                f"cannot read {name}: {kind}{lines[-1][:300].rstrip('. ')}."
            ) from problem
        if item is _END:
            return
        yield item


@contextmanager
def dead_workers_explained(name: str, iterator: object = None) -> Iterator[None]:
    """Turn the death of a worker into an error of one line.

    Torch raises it wherever the main process is at that moment, as a RuntimeError; or the iterator
    does, which finds a broken connection.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError) as problem:
        said = re.match(r"DataLoader worker .*?(?:signal: (\w+)|$)", str(problem))
        broken = isinstance(problem, ConnectionError | EOFError) and hasattr(iterator, "_workers")
        if said is None and (not broken or str(problem).startswith("Caught ")):
            raise
        _end_workers(iterator)
        how = f" ({said[1]})" if said and said[1] else ""
        raise DataError(
            f"a worker process that reads {name} died{how}: out of memory, or a crash in a decoder."
            " Use fewer workers; with 0 the crash shows where it is."
        ) from problem


def _end_workers(iterator: Any) -> None:
    """Wait until the worker is dead, which torch reports once more, and end the others."""
    workers = getattr(iterator, "_workers", ())
    until = time.monotonic() + 2
    with suppress(RuntimeError):
        while workers and all(worker.is_alive() for worker in workers):
            time.sleep(0.01)
            if time.monotonic() > until:
                break
    if workers:
        with suppress(Exception):
            iterator._shutdown_workers()
