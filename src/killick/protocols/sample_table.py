"""Probabilities that a component keeps for every training sample, on the device."""

from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.protocols.base import RunContext, components_of

if TYPE_CHECKING:
    from torch import Tensor

    from killick.data.batches import Batch

_MOST_BYTES = 2**30  # they are part of every checkpoint


class SampleTable:
    """A row of float16 for each sample; equal on all processes after every step."""

    def __init__(self, run: RunContext, name: str) -> None:
        import torch

        size = (len(run.train), run.classes)
        if run.train.access == "stream":
            raise OptionError(
                f"{name} keeps predictions of each sample, and {run.train.name}, a stream, has no"
                " numbers. Give a map-style data set."
            )
        if 2 * size[0] * size[1] > _MOST_BYTES:
            raise OptionError(
                f"{name} would keep {size[0]:,} x {size[1]:,} numbers in every checkpoint. Leave it"
                " out for data of this size."
            )
        self.values = torch.zeros(size, dtype=torch.float16, device=run.device)

    def read(self, numbers: "Tensor") -> "Tensor":
        """The rows of some samples, as float32."""
        return self.values.index_select(0, numbers).float()

    def update(self, batch: "Batch", rows: "Tensor", masked: "Tensor | None") -> "Tensor":
        """New rows of some samples; mixed or with a masked reference, a sample keeps its own."""
        import torch

        keeps = either(masked, batch.mixed)
        if keeps is None:
            return rows
        return torch.where(keeps.view(-1, 1), self.read(batch.numbers), rows)

    def write(self, numbers: "Tensor", rows: "Tensor") -> None:
        """Set the rows of some samples."""
        import torch
        from torch import distributed

        rows = rows.to(self.values.dtype)
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            count = distributed.get_world_size()
            parts = [torch.empty_like(numbers) for _ in range(count)]
            others = [torch.empty_like(rows) for _ in range(count)]
            distributed.all_gather(parts, numbers.contiguous())
            distributed.all_gather(others, rows.contiguous())
            numbers, rows = torch.cat(parts), torch.cat(others)
        self.values.index_copy_(0, numbers, rows)

    def state_dict(self) -> dict[str, Any]:
        """All rows."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        self.values.copy_(state["values"])


def either(first: "Tensor | None", second: "Tensor | None") -> "Tensor | None":
    """Which samples are in one of two sets; None is the empty set."""
    if first is None or second is None:
        return first if second is None else second
    return first | second


def check_labels(name: str, recipe: Any) -> list[str]:
    """A problem, if every label is mixed: then no prediction is that of one sample."""
    return [
        f"components: {name} pauses for mixed labels, and {each.name} mixes all of them; set a"
        " probability below 1, as in mixup:cutmix=1,probability=0.5"
        for each in components_of(recipe)
        if each.mixes_all
    ]
