"""Accuracy over a plane through a network's weights, and the width of the optimum in it.

Two random directions span the plane (Li et al. 2018, "Visualizing the loss landscape of neural
nets"). Each filter of a direction has the norm of the same filter of the weights, since a network
with BatchNorm computes the same with all filters scaled. So the unit of both axes is the norm of
the weights, filter by filter.
"""

import copy
import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.batchnorm import estimate, tracked_norms
from killick.core.references import random_cycle, take
from killick.core.standard import Standard
from killick.corruptions.corruption import choose_table
from killick.corruptions.suites import list_corruptions
from killick.data.keyed_random import key
from killick.data.splits import limit_images
from killick.results.measurements import Measured, Record
from killick.runtime.progress import DisplayFactory
from killick.studies.trained_job import TrainedJob, corrupt_images, open_job

ACCURACY = "top1"
# Names of the radii of the regions in which accuracy falls by at most so much.
RADII = ("radius_10_points", "radius_90_percent", "radius_half")
_POINT = ("batchnorm", "draw", "x", "y")
Grid = NDArray[np.float64]
_BATCH_OF_STATISTICS = 250  # on every device, so that no number depends on it


def measure(
    folder: Path, options: Record, kept: Measured, *, device: torch.device, show: DisplayFactory
) -> None:
    """Accuracy at every point of the plane around a trained network, then the width of its optimum.

    A record is kept for each point at once, from the center outwards, then one for each of `RADII`,
    with `"cut"` where the region reaches the edge.
    """
    job = open_job(folder, device)
    places = order_points(options["points"], options["span"])
    kinds = list(itertools.product(options["batchnorm"], range(options["draws"])))
    known = {tuple(record.get(name) for name in _POINT) for record in kept.records}
    points = [(*kind, *place) for kind in kinds for place in places]
    left = [point for point in points if point not in known]
    if left:
        images, labels = gather_images(
            job, options["corruptions"], options["severities"], options["images"]
        )
        inputs = gather_inputs(job, options["statistics"])
        done = len(points) - len(left)
        with show(f"plane around {folder.name}", len(points), done, "point") as display:
            for (how, draw), group in itertools.groupby(left, lambda point: point[:2]):
                plane = Plane(job.model, options["directions"], draw)
                for point in group:
                    plane.move(*point[2:])
                    if how == "settled":
                        plane.settle(inputs)
                    value = compute_accuracy(plane.model, images, labels)
                    where = dict(zip(_POINT, point, strict=True))
                    kept.add({"metric": ACCURACY, "value": value, **where})
                    done += 1
                    display.update(done, f"top-1 {100 * value:.1f} %")
    chance = 1 / job.parts.train.classes
    for how, draw in kinds:
        where = {"batchnorm": how, "draw": draw}
        widths = measure_widths(arrange(kept.records, **where), options["span"], chance)
        for name, width in widths.items():
            kept.add({"metric": name, "value": width.radius, "cut": int(width.cut), **where})


# The plane


def order_points(points: int, span: float) -> list[tuple[float, float]]:
    """The places of a square grid from `-span` to `span`, from the center outwards."""
    half = points // 2
    numbers = [(i, j) for j in range(-half, half + 1) for i in range(-half, half + 1)]
    numbers.sort(key=lambda place: place[0] ** 2 + place[1] ** 2)
    return [(span * (i / half), span * (j / half)) for i, j in numbers]


class Plane:
    """A copy of a network that is moved over the plane; the network itself stays as it is."""

    def __init__(self, model: Anchored | Standard, seed: int, draw: int = 0) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        if isinstance(self.model, Anchored):
            self.model.recent = None  # or it would settle by itself wherever it is moved to
        # Kernels and matrices are moved, biases and norms are not.
        moved = {name: p for name, p in self.model.named_parameters() if p.ndim > 1}
        self._weights = list(moved.values())
        self._sizes = [p.numel() for p in self._weights]
        self._center = torch.cat([p.flatten() for p in self._weights])
        self._first, self._second = (
            torch.cat(
                [draw_direction(p, name, seed, draw, axis).flatten() for name, p in moved.items()]
            )
            for axis in (0, 1)
        )

    def move(self, x: float, y: float) -> None:
        """Go to a point; BatchNorm statistics stay as they are."""
        place = torch.add(self._center, self._first, alpha=x).add_(self._second, alpha=y)
        for weight, part in zip(self._weights, place.split(self._sizes), strict=True):
            weight.copy_(part.view_as(weight))

    def settle(self, inputs: Sequence[tuple[Tensor, ...]]) -> None:
        """Estimate BatchNorm statistics at this point."""
        if norms := tracked_norms(self.model):
            estimate(norms, self.model, (partial(self.model, *batch) for batch in inputs))


def draw_direction(weight: Tensor, name: str, seed: int, draw: int, axis: int) -> Tensor:
    """A Gaussian direction for one parameter, each filter as long as that of the weight.

    It depends on the parameter's name and shape alone, so that networks that differ in their first
    layer are moved alike everywhere else. There the filter over all six channels of a pair counts
    as one: as a whole it may be rescaled without a change of what the network computes, as the
    filter over three channels of an image may, but not one of its halves.
    """
    who = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    # On the CPU, as other devices draw other numbers from the same seed.
    generator = torch.Generator().manual_seed(key(seed, draw, axis, who) % 2**63)
    direction = torch.randn(weight.shape, generator=generator).flatten(1).double()
    wanted = weight.detach().cpu().flatten(1).double().norm(dim=1, keepdim=True)
    direction *= wanted / direction.norm(dim=1, keepdim=True)
    return direction.view(weight.shape).to(weight)


# The images at every point


def gather_images(
    job: TrainedJob, corruptions: Sequence[str] | None, severities: Sequence[int], count: int | None
) -> tuple[Tensor, Tensor]:
    """Corrupted test images and their labels, on the device.

    With few images, all corruptions and severities come equally often, and no test image is used
    a second time before all others were used once.
    """
    images, labels = job.load_test(count)
    names = corruptions or list_corruptions("c", choose_table(images.shape[-2:]))
    kinds = [(name, severity) for name in names for severity in severities]
    n = len(images)
    total = n * len(kinds) if count is None else count
    place = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    shown, theirs = [], []
    for number, (name, severity) in enumerate(kinds):
        # In its first round a image is corrupted by the kind of its place, then by the next.
        turn = (number - place) % len(kinds)
        chosen = (place + n * turn < total).nonzero().flatten().to(images.device)
        if len(chosen):
            shown.append(corrupt_images(images[chosen], name, severity))
            theirs.append(labels[chosen])
    return torch.cat(shown), torch.cat(theirs)


def gather_inputs(job: TrainedJob, count: int) -> list[tuple[Tensor, ...]]:
    """Batches for BatchNorm statistics: training images, with references if anchored."""
    images = job.load_images(limit_images(job.parts.train, count))
    batches = images.tensor_split(-(-len(images) // _BATCH_OF_STATISTICS))
    if isinstance(job.model, Standard):
        return [(batch,) for batch in batches]
    generator = torch.Generator().manual_seed(0)
    return [
        (batch, take(batch, random_cycle(len(batch), batch.device, generator))) for batch in batches
    ]


@torch.no_grad()
def compute_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy; waits for the device once."""
    small = max(images.shape[-2:]) <= 64
    batch = (100 if small else 25) if images.device.type == "cpu" else (1000 if small else 250)
    right = torch.zeros((), dtype=torch.long, device=images.device)
    for shown, wanted in zip(images.split(batch), labels.split(batch), strict=True):
        right += (model(shown).argmax(1) == wanted).sum()
    return int(right) / len(images)


# The width of the optimum


class Width(NamedTuple):
    """The size of a region."""

    radius: float  # of the disc with the same area
    cut: bool  # whether it reaches the edge of the plane: then the radius is a lower bound


def arrange(records: Iterable[Mapping[str, Any]], **known: Any) -> Grid:
    """Accuracies as `(y, x)`, both ascending, from records; the mean, where there are several."""
    wanted = {"metric": ACCURACY, **known}.items()
    found: dict[tuple[float, float], list[float]] = {}
    for record in records:
        if all(record.get(name) == value for name, value in wanted):
            found.setdefault((record["y"], record["x"]), []).append(record["value"])
    side = math.isqrt(len(found))
    return np.array([np.mean(found[place]) for place in sorted(found)]).reshape(side, side)


def measure_widths(grid: Grid, span: float, chance: float) -> dict[str, Width]:
    """The widths of the optimum for each of `RADII`; the last two between chance and the center."""
    center = middle_of(grid)
    levels = (center - 0.1, *(chance + share * (center - chance) for share in (0.9, 0.5)))
    return {
        name: measure_width(grid, span, level) for name, level in zip(RADII, levels, strict=True)
    }


def middle_of(grid: Grid) -> float:
    """Accuracy with the weights as they are."""
    return float(grid[len(grid) // 2, len(grid) // 2])


def measure_width(grid: Grid, span: float, level: float) -> Width:
    """The region around the center in which accuracy is at least `level`.

    Between the points accuracy is interpolated: each square of the grid is cut into four triangles
    that meet in its middle, and over a triangle accuracy is linear, so that the area is exact.
    """
    middle = (grid[:-1, :-1] + grid[:-1, 1:] + grid[1:, :-1] + grid[1:, 1:]) / 4
    inside = _connected(grid >= level, middle >= level)
    side = len(grid) - 1
    step = 2 * span / side
    corners, middles = inside[::2, ::2], inside[1::2, 1::2]
    area = 0.0
    around = [(0, 0), (0, 1), (1, 1), (1, 0), (0, 0)]
    for (i, j), (k, m) in zip(around, around[1:], strict=False):
        first, second = np.s_[i : i + side, j : j + side], np.s_[k : k + side, m : m + side]
        part = _share_above(np.stack([grid[first], grid[second], middle]), level)
        area += float(part[corners[first] | corners[second] | middles].sum()) * step**2 / 4
    edge = np.concatenate([inside[0], inside[-1], inside[:, 0], inside[:, -1]])
    return Width(math.sqrt(area / math.pi), bool(edge.any()))


def _connected(corners: NDArray[np.bool_], middles: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which corners (even places) and middles (odd ones) are connected with the center.

    Over a triangle accuracy is linear, so what is above a level contains a corner: two corners are
    connected if both are above and share a side. A side of the grid is the place between its ends.
    """
    places = np.zeros([2 * n - 1 for n in corners.shape], dtype=bool)
    places[::2, ::2], places[1::2, 1::2] = corners, middles
    places[::2, 1::2] = corners[:, :-1] & corners[:, 1:]
    places[1::2, ::2] = corners[:-1] & corners[1:]
    found, _ = ndimage.label(places, structure=np.ones((3, 3)))
    own = found[len(found) // 2, len(found) // 2]
    return np.asarray((found == own) & (found > 0))


def _share_above(values: Grid, level: float) -> Grid:
    """Of triangles with these values at their corners, `(3, …)`: what share is above a level."""
    low, mid, high = np.sort(values, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = (level - low) ** 2 / ((mid - low) * (high - low))
        above = (high - level) ** 2 / ((high - mid) * (high - low))
    return np.select([level <= low, level > high, level <= mid], [1.0, 0.0, 1 - below], above)
