"""What `killick.data.mixing` should make of two images, number by number in float64."""

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray
Box = tuple[int, int, int, int]


def blend(own: Array, other: Array, share: float) -> Array:
    """Mixup: `share` of an image's own pixels and the rest of the other's, not rounded."""
    mixed = np.empty(own.shape)
    for place in np.ndindex(own.shape):
        mixed[place] = share * float(own[place]) + (1 - share) * float(other[place])
    return mixed


def cutting_box(share: float, place: Sequence[float], height: int, width: int) -> Box:
    """Top, left, bottom and right of CutMix's box, by its paper: around a centre, cut off at edges.

    Args:
        share: What would stay of the image, were the box wholly inside.
        place: Of the centre, in [0, 1).
        height: Of the image.
        width: Of the image.
    """
    y, x = math.floor(place[0] * height), math.floor(place[1] * width)
    tall = math.floor(0.5 * height * math.sqrt(1 - share))
    wide = math.floor(0.5 * width * math.sqrt(1 - share))
    return max(y - tall, 0), max(x - wide, 0), min(y + tall, height), min(x + wide, width)


def paste(own: Array, other: Array, box: Box) -> tuple[Array, float]:
    """CutMix: the other's pixels inside the box, and the share of the image that stayed."""
    top, left, bottom, right = box
    mixed, stayed = own.copy(), 0
    for y in range(own.shape[1]):
        for x in range(own.shape[2]):
            if top <= y < bottom and left <= x < right:
                mixed[:, y, x] = other[:, y, x]
            else:
                stayed += 1
    return mixed, stayed / (own.shape[1] * own.shape[2])


def mix_labels(own: int, other: int, share: float, classes: int) -> Array:
    """A distribution over classes: `share` for the own one, the rest for the other's."""
    probs = np.zeros(classes)
    probs[own] += share
    probs[other] += 1 - share
    return probs
