"""Worker processes that read pictures: what they do first, and what they leave alone.

They are copies of the process that trains, made while it has threads. What these hold exists in the
copy too, without the threads: to free the session of an inference engine there, say, is to wait for
ever for threads that are not there. So workers never collect what they inherited.
"""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


def begin_worker(worker: int) -> None:
    """What a worker does first (`worker_init_fn`).

    Signals to the whole group, such as Ctrl-C, are for the process that trains to act on. Whatever
    is here by now is none of the worker's garbage; its own it collects as ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    gc.freeze()
    gc.enable()


def start_workers(loader: DataLoader[Any]) -> Iterator[Any]:
    """`iter(loader)`; its workers collect no garbage before `begin_worker`."""
    collecting = gc.isenabled()
    gc.disable()  # in the copies as well
    try:
        return iter(loader)
    finally:
        if collecting:
            gc.enable()
