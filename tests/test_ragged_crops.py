"""Images of several sizes in one buffer: torchvision's crops and resizes, decided by each key."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from killick.data.augment import ragged_crops
from killick.data.augment.ragged_crops import RaggedCrop
from killick.data.augment.resized_crops import Boxes, draw_boxes
from killick.data.keyed_random import sample_keys
from killick.data.preprocessing import PlainView
from killick.data.ragged_images import RaggedImages
from killick.data.transforms import Shift

CPU = torch.device("cpu")
# Usual ones, smaller than the crop, of one pixel each way, one pixel, strips, and of the crop's size.
SHAPES = [
    *((60, 80), (150, 100), (375, 500), (20, 30), (24, 9)),
    *((1, 60), (60, 1), (1, 1), (5, 300), (300, 7), (32, 32), (33, 31)),
]


def make_images() -> list[Tensor]:
    """Noise, half of it smoothed."""
    g = torch.Generator().manual_seed(0)
    found = [torch.randint(256, (3, *shape), dtype=torch.uint8, generator=g) for shape in SHAPES]
    small = [min(shape) < 5 for shape in SHAPES]
    return [
        image if n % 2 or small[n] else functional.gaussian_blur(image, [5, 5])
        for n, image in enumerate(found)
    ]


IMAGES = make_images()


def keys_of(n: int) -> Tensor:
    return sample_keys(0, 0, torch.arange(n))


def ragged(*parts: int, capacity: int = 0) -> RaggedImages:
    """All images, appended in parts."""
    found, done = RaggedImages(CPU, capacity), 0
    for part in parts or (len(IMAGES),):
        found.append(IMAGES[done : done + part])
        done += part
    return found


def differences(found: Tensor, expected: list[Tensor]) -> Tensor:
    return (found.int() - torch.stack(expected).int()).abs().flatten(1).amax(1)


@pytest.mark.parametrize("capacity", [0, 100_000, 10**7])
@pytest.mark.parametrize("parts", [(12,), (5, 1, 6)])
def test_boxes_are_cut_from_the_right_images(capacity, parts):
    images, numbers = ragged(*parts, capacity=capacity), torch.randperm(len(IMAGES))
    heights, widths = images.shapes(numbers)
    assert list(zip(heights.tolist(), widths.tolist(), strict=True)) == [SHAPES[n] for n in numbers]
    boxes = draw_boxes(keys_of(len(IMAGES)), heights, widths)
    found = images.cut(numbers, boxes)
    assert found.shape[2:] == (boxes.height.max(), boxes.width.max())
    for row, (n, top, left, tall, wide) in enumerate(zip(numbers, *boxes, strict=True)):
        part = IMAGES[n][:, top : top + tall, left : left + wide]
        assert torch.equal(found[row, :, :tall, :wide], part)


@pytest.mark.parametrize(("size", "at_once"), [(32, 2**26), (32, 2**17), (100, 2**26)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resized_crops_are_torchvisions(size, interpolation, at_once, monkeypatch):
    """To one level where images shrink much, see `test_resized_crops`; else equal."""
    monkeypatch.setattr(ragged_crops, "PIXELS", at_once)
    numbers, keys = torch.arange(len(IMAGES)).repeat(3), keys_of(3 * len(IMAGES))
    images = ragged()
    found = RaggedCrop(size, interpolation, True, Shift())(images, numbers, keys)
    boxes = draw_boxes(keys, *images.shapes(numbers))
    expected = [
        functional.resized_crop(
            *(IMAGES[n], *map(int, box), [size, size], InterpolationMode(interpolation)),
            antialias=True,
        )
        for n, *box in zip(numbers, *boxes, strict=True)
    ]
    shrinks = (boxes.height > 2 * size) | (boxes.width > 2 * size)
    assert (differences(found, expected) <= shrinks.int()).all()


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_middle_of_an_image_is_that_of_the_plain_view(squash, interpolation):
    """To one level where images shrink much, and two where a bicubic one shrinks tenfold."""
    numbers = torch.arange(len(IMAGES))
    crop = RaggedCrop(32, interpolation, False, Shift(0, True, True), squash)
    found = crop(ragged(), numbers, keys_of(len(IMAGES)))
    view = PlainView(32, None, interpolation, squash)
    levels = differences(found, [view(image) for image in IMAGES]).tolist()
    for (height, width), level in zip(SHAPES, levels, strict=True):
        shrinks = max(height, width) / 32
        assert level <= (0 if shrinks <= 2 else 1 if shrinks <= 9 else 2)


def test_a_sample_depends_on_its_key_and_image_alone(monkeypatch):
    crop, images, keys = (
        RaggedCrop(32, "bicubic", True, Shift(0, True, True)),
        ragged(),
        keys_of(24),
    )
    numbers, state = torch.arange(24) % len(IMAGES), torch.get_rng_state()
    whole = crop(images, numbers, keys)
    assert torch.equal(state, torch.get_rng_state())
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(crop(images, numbers[order], keys[order]), whole[order])
    monkeypatch.setattr(ragged_crops, "PIXELS", 1)  # each alone
    assert torch.equal(crop(images, numbers, keys), whole)
    assert whole.is_contiguous(memory_format=torch.channels_last)


def test_crops_are_flipped_as_drawn():
    keys, numbers = keys_of(48), torch.arange(48) % len(IMAGES)
    plain = RaggedCrop(32, "bilinear", True, Shift())(ragged(), numbers, keys)
    shift = Shift(0, True, True)
    found = RaggedCrop(32, "bilinear", True, shift)(ragged(), numbers, keys)
    _, _, across, down = shift.draw(keys)
    assert 0 < across.sum() < 48
    assert 0 < down.sum() < 48
    for row in range(48):
        expected = plain[row].flip(2) if across[row] else plain[row]
        assert torch.equal(found[row], expected.flip(1) if down[row] else expected)


def test_memory_is_bounded_by_splitting_at_similar_widths(monkeypatch):
    widths = torch.tensor([10, 1000, 20, 1000, 10, 30])
    boxes = Boxes(widths * 0, widths * 0, torch.full((6,), 90), widths)
    monkeypatch.setattr(ragged_crops, "PIXELS", 3 * 100 * 1010)
    parts = list(ragged_crops._split(boxes, 10))
    assert sorted(torch.cat(parts).tolist()) == list(range(6))
    for part in parts:
        assert len(part) * 100 * (10 + int(widths[part].max())) <= 3 * 100 * 1010
    monkeypatch.setattr(ragged_crops, "PIXELS", 1)
    assert sorted(map(len, ragged_crops._split(boxes, 10))) == [1] * 6


BY_KERNEL = """
import torch
from test_ragged_crops import IMAGES, RaggedCrop, Shift, keys_of, ragged, ragged_crops

numbers, keys, small = torch.arange(24) % len(IMAGES), keys_of(24), Shift(0, True, True)
for interpolation, resized, squash in (
    ("bilinear", True, False), ("bicubic", True, False), ("bilinear", False, False),
    ("bilinear", False, True),
):
    crop = RaggedCrop(13, interpolation, resized, small, squash)
    expected = crop(ragged(), numbers, keys)
    ragged_crops.has_kernel = lambda device: True
    found = crop(ragged(), numbers, keys)
    ragged_crops.has_kernel = lambda device: False
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, expected), (interpolation, resized, squash)
    print("equal")
"""


def test_the_kernel_makes_the_same_images():
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", BY_KERNEL], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["equal"] * 4, done.stderr
