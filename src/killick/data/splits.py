"""Stratified splits, and label noise."""

import heapq

import torch
from torch import Tensor

from killick.data.image_set import ImageSet
from killick.errors import OptionError


def stratified(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of the kept images and of the `count` cut off, each in ascending order.

    Every class is cut in proportion, to within one image, and the total is exact. A class loses
    its last image only if there is no other way to that total. The seed decides which images of a
    class, and which class gives one more where they tie.

    Example:
        >>> kept, cut = stratified(torch.tensor([0, 0, 0, 0, 1, 1]), 3, seed=0)
        >>> torch.tensor([0, 0, 0, 0, 1, 1])[cut].tolist()
        [0, 0, 1]
    """
    if not 0 <= count < len(labels):
        raise OptionError(f"cannot cut {count} of {len(labels)} images off.")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    _, members, sizes = torch.unique(labels.cpu()[order], return_inverse=True, return_counts=True)
    shares = torch.tensor(_apportion(sizes.tolist(), count, generator), dtype=torch.long)
    by_class = members.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(labels)) - starts[members[by_class]]  # 0 1 2 … anew in each class
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[order[by_class]] = rank < shares[members[by_class]]
    return (~chosen).nonzero().squeeze(1), chosen.nonzero().squeeze(1)


def limit_images(images: ImageSet, limit: int | None, seed: int = 0) -> ImageSet:
    """At most `limit` images, of every class in proportion, the same for the same seed."""
    if limit is None or limit >= len(images):
        return images
    return images.part(stratified(images.labels, limit, seed)[1])


def flip_labels(labels: Tensor, share: float, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """The labels with exactly `round(share * n)` of them wrong, and the mask of those.

    A wrong label is any of the other classes, each as often. With one seed, a larger share flips
    what a smaller one flips, to the same classes, and more.

    Example:
        >>> wrong, flipped = flip_labels(torch.tensor([0, 1, 1, 0]), 0.5, classes=2, seed=0)
        >>> int(flipped.sum()), bool((wrong[flipped] != torch.tensor([0, 1, 1, 0])[flipped]).all())
        (2, True)
    """
    n = len(labels)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    flipped = torch.zeros(n, dtype=torch.bool)
    flipped[order[: round(share * n)]] = True
    # Drawn for all labels, flipped or not, so that the share does not change what is drawn.
    step = torch.randint(1, max(classes, 2), (n,), generator=generator)
    flipped, step = flipped.to(labels.device), step.to(labels.device)
    wrong = ((labels + step) % classes).to(labels.dtype)  # step is int64, so nothing overflows
    return torch.where(flipped, wrong, labels), flipped


def _apportion(sizes: list[int], count: int, generator: torch.Generator) -> list[int]:
    """How many of each class make `count` together: largest remainders, in whole numbers."""
    total = sum(sizes)
    parts = [size * count // total for size in sizes]
    ties = torch.randperm(len(sizes), generator=generator).tolist()

    def turn(kind: int) -> tuple[bool, int, int, int]:
        emptied = parts[kind] + 1 >= sizes[kind]  # last, as a class should keep an image
        return emptied, parts[kind] * total - sizes[kind] * count, ties[kind], kind

    queue = [turn(kind) for kind in range(len(sizes))]
    heapq.heapify(queue)
    for _ in range(count - sum(parts)):
        kind = heapq.heappop(queue)[-1]
        parts[kind] += 1
        if parts[kind] < sizes[kind]:
            heapq.heappush(queue, turn(kind))
    return parts
