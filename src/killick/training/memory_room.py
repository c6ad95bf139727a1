"""The memory that image sets may use on the device of a run."""

import torch

from killick.runtime.devices import free_memory, precise_device
from killick.runtime.processes import Processes

SHARE = 0.4  # of the free memory; the rest is for the network


class MemoryRoom:
    """A share of the memory that is free when a run begins; its image sets take from it.

    `resident` is the recipe's: "always" and "never" ignore the free memory. All processes decide
    alike; those on a CPU share its memory.
    """

    def __init__(self, processes: Processes, resident: str) -> None:
        free, device = float(free_memory(processes.device)), processes.device
        if device.type == "cpu":
            free /= processes.count
        place = precise_device(device)
        least = -processes.highest(torch.tensor(-free, dtype=torch.float64, device=place))
        self.total = self.left = SHARE * float(least)
        self.resident = resident

    def take(self, size: int) -> bool:
        """Whether so many bytes are kept on the device."""
        fits = size <= self.left if self.resident == "auto" else self.resident == "always"
        self.left -= size if fits else 0
        return fits
