"""Several processes that train one model: started by torchrun, one for each GPU."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from killick.errors import OptionError, ProcessError, find_reason
from killick.runtime.devices import choose_device as choose_device
from killick.runtime.devices import count_cores as count_cores


@dataclass(frozen=True)
class Processes:
    """The rank of this process among those that train together, their count, and its device."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over all processes."""
        if self.count > 1:
            distributed.all_reduce(values)
        return values

    def highest(self, values: Tensor) -> Tensor:
        """The largest of `values` over all processes."""
        if self.count > 1:
            distributed.all_reduce(values, distributed.ReduceOp.MAX)
        return values

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the first one's BatchNorm statistics, so that all evaluate the same model."""
        if self.count > 1:
            for buffer in model.buffers():
                if buffer.numel():
                    distributed.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            distributed.barrier()


@contextmanager
def joined(device: str = "auto") -> Iterator[Processes]:
    """Join the other processes, if torchrun started this one.

    They stay together until this one ends: joined again, they would not find each other.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    place = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if place.type == "mps" and count > 1:
        raise OptionError(f"--device mps takes one process, found {count}. Start without torchrun.")
    if count == 1:
        yield Processes(0, 1, place)
        return
    if not distributed.is_initialized():
        cuda = place.type == "cuda"
        distributed.init_process_group(
            "nccl" if cuda else "gloo", device_id=place if cuda else None
        )
        atexit.register(distributed.destroy_process_group)
    rank = distributed.get_rank()
    try:
        yield Processes(rank, distributed.get_world_size(), place)
    except RuntimeError as problem:
        # NCCL has a class of errors of its own; gloo has only the text.
        if isinstance(problem, distributed.DistError) or "gloo" in str(problem):
            raise ProcessError(
                f"process {rank} lost another process of this run ({find_reason(problem)[-100:]})."
                " Its last checkpoint is kept: resume it with killick train --resume FOLDER."
            ) from None
        raise


def usual_workers() -> int:
    """How many processes or threads read images: one for each core of this process's share."""
    return min(16, count_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
