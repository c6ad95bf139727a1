"""`killick check`: read every image of a set once; find broken ones, duplicates and leaks."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from killick.data.image_set import ImageSet
from killick.data.sample_loader import read_in_order
from killick.errors import KillickError

BATCH = 64


@dataclass(frozen=True)
class Checked:
    """What was found in a set; images are named by their files, or by their places in the set."""

    images: ImageSet
    names: list[str]
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # images by height and width
    broken: list[tuple[str, str]] = field(default_factory=list)  # names and problems
    digests: dict[int, bytes] = field(default_factory=dict)  # of the pixels, by number

    def contradictions(self) -> list[tuple[str, str]]:
        """Pairs of images with the same pixels and different labels."""
        first: dict[bytes, int] = {}
        pairs = ((first.setdefault(digest, n), n) for n, digest in self.digests.items())
        labels = self.images.labels
        return [(self.names[a], self.names[b]) for a, b in pairs if labels[a] != labels[b]]

    def shared(self, other: "Checked") -> list[tuple[str, str]]:
        """Images that are also in another set: their names here and there."""
        there = {digest: number for number, digest in reversed(other.digests.items())}
        return [
            (self.names[number], other.names[there[digest]])
            for number, digest in self.digests.items()
            if digest in there
        ]


def check_set(
    images: ImageSet, *, workers: int = 0, tick: Callable[[int], None] | None = None
) -> Checked:
    """Read all images of a set; `tick` gets the number read so far after every batch."""
    names = images.paths() or [f"{images.name}[{row}]" for row in images.rows.tolist()]
    checked, number = Checked(images, names), 0
    for batch in read_in_order(images, _look, 0 if images.in_memory else workers, BATCH, list):
        for found in batch:
            if isinstance(found, KillickError):
                checked.broken.append((names[number], str(found)))
            else:
                size, checked.digests[number] = found[0]
                checked.sizes[size] += 1
            number += 1
        if tick is not None:
            tick(number)
    return checked


def _look(image: Tensor, key: int) -> tuple[tuple[int, int], bytes]:
    """Height and width, and a digest of the pixels."""
    height, width = image.shape[-2:]
    digest = hashlib.sha256(f"{height} {width} ".encode())
    digest.update(image.contiguous().numpy().data)
    return (height, width), digest.digest()[:16]
