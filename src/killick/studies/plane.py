"""Accuracy over a plane through a network's weights, measured point by point.

Two random directions span the plane (Li et al. 2018, "Visualizing the loss landscape of neural
nets"). Each filter of a direction is as long as the same filter of the weights: what counts is by
which share a filter changes, since a network with BatchNorm computes the same with all filters
twice as long. So the unit of both axes is the length of the weights themselves, filter by filter.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.batchnorm import estimate, tracked_norms
from killick.core.references import random_cycle, take
from killick.core.standard import Standard
from killick.corruptions.corruption import SMALL, choose_table
from killick.corruptions.suites import list_corruptions
from killick.data.keyed_random import key
from killick.results.measurements import Measured
from killick.runtime.progress import DisplayFactory
from killick.studies.trained import Trained, corrupt_all, limited, open_trained
from killick.studies.width import ACCURACY, RADII, arrange, measure_widths

_BATCH_OF_STATISTICS = 250  # on every device, so that no number depends on it


def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: torch.device,
    show: DisplayFactory,
) -> None:
    """Accuracy at every point of the plane around a trained network, then the width of its optimum.

    Points come from the centre outwards, each is kept at once, and what is kept is not done again.

    Args:
        folder: Of the run.
        options: Of the study `landscape`.
        kept: Records `{"metric": "top1", "value", "batchnorm", "draw", "x", "y"}`, and one for each
            of `RADII`, with `"cut"` where the region reaches the edge.
        device: Where to work.
        show: Tells how it goes.
    """
    trained = open_trained(folder, device)
    places = order_points(options["points"], options["span"])
    kinds = [(how, draw) for how in options["batchnorm"] for draw in range(options["draws"])]
    known = {_place(record) for record in kept.records if record["metric"] == ACCURACY}
    todo = {kind: [xy for xy in places if (*kind, *xy) not in known] for kind in kinds}
    if any(todo.values()):
        images, labels = gather_pictures(
            trained, options["corruptions"], options["severities"], options["pictures"]
        )
        inputs = gather_inputs(trained, options["statistics"])
        done = len(known)
        with show(
            f"plane around {folder.name}", len(kinds) * len(places), done, "point"
        ) as display:
            for (how, draw), left in todo.items():
                plane = Plane(trained.model, options["directions"], draw)
                for x, y in left:
                    plane.move(x, y)
                    if how == "settled":
                        plane.settle(inputs)
                    value = share_right(plane.model, images, labels)
                    where = {"batchnorm": how, "draw": draw, "x": x, "y": y}
                    kept.add({"metric": ACCURACY, "value": value, **where})
                    done += 1
                    display.update(done, f"top-1 {100 * value:.1f} %")
    chance = 1 / trained.parts.train.classes
    for how, draw in kinds:
        if kept.find(metric=RADII[-1], batchnorm=how, draw=draw) is None:
            grid = arrange(kept.records, batchnorm=how, draw=draw)
            widths = measure_widths(grid, options["span"], chance)
            where = {"batchnorm": how, "draw": draw}
            kept.add(
                *(
                    {"metric": name, "value": width.radius, "cut": int(width.cut), **where}
                    for name, width in widths.items()
                )
            )


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record["batchnorm"], record["draw"], record["x"], record["y"]


# The plane


def order_points(points: int, span: float) -> list[tuple[float, float]]:
    """The places of a square grid from `-span` to `span`, from the centre outwards.

    Args:
        points: Of a side; odd, so that the centre is one of them.
        span: Half a side.

    Example:
        >>> order_points(3, 0.5)[:3]
        [(0.0, 0.0), (0.0, -0.5), (-0.5, 0.0)]
    """
    half = points // 2
    numbers = [(i, j) for j in range(-half, half + 1) for i in range(-half, half + 1)]
    numbers.sort(key=lambda place: place[0] ** 2 + place[1] ** 2)
    return [(span * (i / half), span * (j / half)) for i, j in numbers]


class Plane:
    """A copy of a network that is moved over the plane; the network itself stays as it is.

    Args:
        model: In the centre.
        seed: Of the directions.
        draw: Which pair of directions.

    Attributes:
        model: The copy, in eval mode.
    """

    def __init__(self, model: Anchored | Standard, seed: int, draw: int = 0) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        if isinstance(self.model, Anchored):
            self.model.recent = None  # or it would settle by itself wherever it is moved to
        moved = {name: p for name, p in self.model.named_parameters() if has_filters(p)}
        self._weights = list(moved.values())
        self._sizes = [p.numel() for p in self._weights]
        self._centre = torch.cat([p.flatten() for p in self._weights])
        self._first, self._second = (
            torch.cat(
                [draw_direction(p, name, seed, draw, axis).flatten() for name, p in moved.items()]
            )
            for axis in (0, 1)
        )

    def move(self, x: float, y: float) -> None:
        """Go to a point; BatchNorm's statistics stay as they are."""
        place = torch.add(self._centre, self._first, alpha=x).add_(self._second, alpha=y)
        for weight, part in zip(self._weights, place.split(self._sizes), strict=True):
            weight.copy_(part.view_as(weight))

    def settle(self, inputs: Sequence[tuple[Tensor, ...]]) -> None:
        """Estimate BatchNorm's statistics where the network is now."""
        if norms := tracked_norms(self.model):
            estimate(norms, self.model, (partial(self.model, *batch) for batch in inputs))


def has_filters(parameter: Tensor) -> bool:
    """Whether a parameter is moved: kernels and matrices are, biases and norms are not."""
    return parameter.ndim > 1


def draw_direction(weight: Tensor, name: str, seed: int, draw: int, axis: int) -> Tensor:
    """A Gaussian direction for one parameter, each filter as long as that of the weight.

    It depends on the parameter's name and shape alone, so that networks that differ in their first
    layer are moved alike everywhere else. There the filter over all six channels of a pair counts
    as one: as a whole it may be rescaled without a change of what the network computes, as the
    filter over three channels of an image may, but not one of its halves.

    Args:
        weight: The first axis numbers its filters; an embedding of positions is a single one.
        name: Of the parameter.
        seed: Of all directions.
        draw: Which pair of directions.
        axis: 0 or 1, which of the pair.
    """
    who = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    # On the CPU, as other devices draw other numbers from the same seed.
    generator = torch.Generator().manual_seed(key(seed, draw, axis, who) % 2**63)
    direction = torch.randn(weight.shape, generator=generator).flatten(1).double()
    wanted = weight.detach().cpu().flatten(1).double().norm(dim=1, keepdim=True)
    direction *= wanted / direction.norm(dim=1, keepdim=True)
    return direction.view(weight.shape).to(weight)


# What is shown at every point


def gather_pictures(
    trained: Trained,
    corruptions: Sequence[str] | None,
    severities: Sequence[int],
    count: int | None,
) -> tuple[Tensor, Tensor]:
    """Corrupted test pictures and their labels, on the device.

    Few pictures are shared out evenly: all corruptions and severities come equally often, and no
    test picture comes a second time before all others came once.

    Args:
        trained: Whose test set it is.
        corruptions: By default the 19 common ones.
        severities: Of each.
        count: Of corrupted pictures in all; None for every picture under every corruption.
    """
    images, labels = trained.test(count)
    names = corruptions or list_corruptions("c", choose_table(images.shape[-2:]))
    kinds = [(name, severity) for name in names for severity in severities]
    n = len(images)
    total = n * len(kinds) if count is None else count
    place = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    shown, theirs = [], []
    for number, (name, severity) in enumerate(kinds):
        # In its first round a picture is corrupted by the kind of its place, then by the next.
        turn = (number - place) % len(kinds)
        chosen = (place + n * turn < total).nonzero().flatten().to(images.device)
        if len(chosen):
            (made,) = corrupt_all(images[chosen], [name], [severity])
            shown.append(made.images)
            theirs.append(labels[chosen])
    return torch.cat(shown), torch.cat(theirs)


def gather_inputs(trained: Trained, count: int) -> list[tuple[Tensor, ...]]:
    """Batches for BatchNorm's statistics: training images, with references for who takes them."""
    images = trained.show(limited(trained.parts.train, count))
    batches = images.tensor_split(-(-len(images) // _BATCH_OF_STATISTICS))
    if isinstance(trained.model, Standard):
        return [(batch,) for batch in batches]
    generator = torch.Generator().manual_seed(0)
    return [
        (batch, take(batch, random_cycle(len(batch), batch.device, generator))) for batch in batches
    ]


@torch.no_grad()
def share_right(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy; waits for the device once."""
    small = max(images.shape[-2:]) <= SMALL
    batch = (100 if small else 25) if images.device.type == "cpu" else (1000 if small else 250)
    right = torch.zeros((), dtype=torch.long, device=images.device)
    for shown, wanted in zip(images.split(batch), labels.split(batch), strict=True):
        right += (model(shown).argmax(1) == wanted).sum()
    return int(right) / len(images)
