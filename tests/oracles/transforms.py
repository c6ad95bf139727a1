"""What `killick.data.transforms` should make, one image and one pixel at a time."""

import math

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

Box = tuple[int, int, int, int]


def move(
    image: Tensor, padding: int, top: int, left: int, flip: bool, flip_vertically: bool
) -> Tensor:
    """An image `(3, height, width)` padded, cropped at (top, left) and flipped by torchvision."""
    height, width = image.shape[1:]
    padded = functional.pad(image, [padding] * 4)
    moved: Tensor = functional.crop(padded, top + padding, left + padding, height, width)
    if flip:
        moved = functional.horizontal_flip(moved)
    if flip_vertically:
        moved = functional.vertical_flip(moved)
    return moved


def erasing_box(
    shapes: list[tuple[float, float]], place: tuple[float, float], height: int, width: int
) -> Box | None:
    """Top, left, height and width of what is erased, from numbers in [0, 1); None if none fits.

    Args:
        shapes: For each try the numbers that area and ratio are made of.
        place: The numbers that top and left are made of.
        height: Of the image.
        width: Of the image.
    """
    for for_area, for_ratio in shapes:
        area = height * width * (0.02 + (0.33 - 0.02) * for_area)
        ratio = math.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * for_ratio)
        tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if tall < height and wide < width:
            tops, lefts = height - tall + 1, width - wide + 1
            return math.floor(place[0] * tops), math.floor(place[1] * lefts), tall, wide
    return None


def paint(image: Tensor, box: Box | None, colour: list[int]) -> Tensor:
    """The image `(3, height, width)` with the box in that colour."""
    painted = image.clone()
    if box is not None:
        top, left, tall, wide = box
        for y in range(top, top + tall):
            for x in range(left, left + wide):
                painted[:, y, x] = torch.tensor(colour)
    return painted
