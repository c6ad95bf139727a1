"""The device that work runs on: a CPU with some threads, an NVIDIA GPU, or an Apple GPU (mps).

Code asks what a device can do, never whether it is one of two. Apple GPUs have no float64, and not
all operations of corruptions: both are done on the CPU.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from killick.errors import OptionError, check_least

_STATISTICS = Path("/proc/stat")
_MEMORY = Path("/proc/meminfo")
_SECONDS = 0.2  # over which busy cores are counted


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of a name; "auto" is an NVIDIA GPU if there is one, this process's own."""
    cuda = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if cuda else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise OptionError(
            f"expected a device such as auto, cpu, cuda, cuda:1 or mps, found {name!r}."
        )
    if device.type == "cuda" and not cuda:
        raise OptionError("expected a GPU for --device cuda, found none that torch can use.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError("expected an Apple GPU for --device mps, found none that torch can use.")
    return torch.device("cuda", local_rank) if name == "cuda" else device


def describe_device(device: torch.device) -> str:
    """A device in words: "cpu, 2 threads", or the name of a GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    words = f", {threads} thread{'' if threads == 1 else 's'}"
    return device.type + (words if device.type == "cpu" else "")


def precise_device(device: torch.device) -> torch.device:
    """Where float64 and every operation are to be had: the device, or the CPU in place of mps."""
    return torch.device("cpu") if device.type == "mps" else device


def wait_for(device: torch.device) -> None:
    """Until all work on the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def forked_random_state(device: torch.device) -> Iterator[None]:
    """Give back the global random state of CPU and device afterwards."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
    else:
        with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
            yield


def seed_random_state(seed: int, device: torch.device) -> None:
    """Seed the global random state of CPU and device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def count_cores() -> int:
    """The cores that this process may use."""
    return len(_own_cores()) or 1


def count_free_cores() -> int:
    """The number of idle cores that this process may use; at least 1."""
    idle = _measure_idle()
    if idle is None:  # no Linux: the load of the last minute, of all cores
        idle = (os.cpu_count() or 1) - os.getloadavg()[0]
    return min(max(1, round(idle)), count_cores())


def set_threads(given: int | None = None) -> None:
    """Use so many threads on the CPU; by default as many as cores are free.

    More threads than free cores wait for each other. The user's OMP_NUM_THREADS is left alone.
    """
    check_least("--threads", given)
    if given is not None:
        torch.set_num_threads(given)
    elif "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > 1:
        torch.set_num_threads(min(torch.get_num_threads(), count_free_cores()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Within this block torch uses one thread: for many small operations more only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory, or of the host's, that is free; 4 GiB if unknown."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        lines = _MEMORY.read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kilobytes) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return 4 * 2**30


def _own_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _measure_idle() -> float | None:
    """How many of this process's cores are idle, over a moment; None where it is not known."""
    before = _read_times()
    if before is None:
        return None
    time.sleep(_SECONDS)
    after = _read_times() or {}
    idle = 0.0
    for core, (rest, total) in before.items():
        later = after.get(core, (rest, total))
        passed = later[1] - total
        idle += (later[0] - rest) / passed if passed > 0 else 1.0
    return idle


def _read_times() -> dict[int, tuple[int, int]] | None:
    """For each of this process's cores the time it was idle, and all of its time."""
    try:
        lines = [line.split() for line in _STATISTICS.read_text().splitlines()]
    except OSError:
        return None
    own, found = _own_cores(), {}
    for name, *times in lines:
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in own:
            counts = [int(value) for value in times[:8]]
            found[int(name[3:])] = (sum(counts[3:5]), sum(counts))  # idle, and waiting for a disk
    return found or None
