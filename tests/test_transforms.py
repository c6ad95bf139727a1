"""Crops, flips and erasing: torchvision's image by image, drawn evenly, from the keys."""

import math

import numpy as np
import pytest
import torch
from oracles import transforms as oracle
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from killick.data.keyed_random import Stream, sample_keys, uniform
from killick.data.transforms import Shift, erase, gather

FILL = [3.2, 127.5, 254.7]


def some_images(n: int, height: int, width: int) -> Tensor:
    """Random ones, without black pixels, `(n, height, width, 3)`."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, 256, (n, height, width, 3), dtype=torch.uint8, generator=generator)


def keys_of(n: int, seed: int = 0) -> Tensor:
    return sample_keys(seed, 2, torch.arange(n))


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("flip_vertically", [False, True])
@pytest.mark.parametrize("side", [(8, 8), (6, 11), (11, 6), (1, 5), (5, 1)])
def test_images_are_padded_cropped_and_flipped_as_by_torchvision(
    padding, flip, flip_vertically, side
):
    pixels, numbers = some_images(20, *side), torch.arange(60) * 7 % 20
    draws = Shift(padding, flip, flip_vertically).draw(keys_of(60))
    found = gather(pixels, numbers, *draws)
    for i, (top, left, h, v) in enumerate(zip(*(d.tolist() for d in draws), strict=True)):
        image = pixels[numbers[i]].permute(2, 0, 1)
        assert torch.equal(found[i], oracle.move(image, padding, top, left, h, v))


def test_every_combination_of_offset_and_flips_is_drawn_and_none_beyond():
    top, left, flip, vertically = Shift(2, True, True).draw(keys_of(5000))
    seen = set(zip(*(d.tolist() for d in (top, left, flip, vertically)), strict=True))
    offsets, either = range(-2, 3), (False, True)
    assert seen == {(t, x, f, v) for t in offsets for x in offsets for f in either for v in either}


def test_without_padding_and_flips_images_are_taken_as_they_are():
    pixels, numbers = some_images(9, 5, 7), torch.tensor([8, 0, 3, 3])
    found = gather(pixels, numbers, *Shift().draw(keys_of(4)))
    assert torch.equal(found, pixels[numbers].permute(0, 3, 1, 2))


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("side", [(6, 6), (1, 6), (6, 1)])
def test_images_come_as_uint8_in_the_channels_last_layout(n, side):
    keys = keys_of(n)
    found = gather(some_images(5, *side), torch.arange(n), *Shift(1, True, True).draw(keys))
    for made in (found, erase(found, keys, 1.0, FILL)):
        assert made.dtype == torch.uint8
        assert made.shape == (n, 3, *side)
        assert made.permute(0, 2, 3, 1).is_contiguous()


@pytest.mark.parametrize("reference", [False, True])
def test_offsets_and_flips_are_drawn_evenly_and_independently(reference):
    draws = Shift(4, True, True, reference).draw(keys_of(200_000))
    top, left, flip, vertically = (d.long() for d in draws)
    cells = ((top + 4) * 9 + left + 4) * 4 + flip * 2 + vertically
    counts = cells.bincount(minlength=9 * 9 * 4).numpy()
    assert len(counts) == 324
    assert 1e-3 < stats.chisquare(counts).pvalue < 1 - 1e-3


def test_what_is_drawn_for_a_reference_is_independent_of_its_image():
    keys = keys_of(200_000)
    for image, reference in zip(
        Shift(4, True, True).draw(keys),
        Shift(4, True, True, reference=True).draw(keys),
        strict=True,
    ):
        counts = (image.long() * 9 + reference.long()).unique(return_counts=True)[1].numpy()
        assert len(counts) == len(image.unique()) ** 2
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("side", [(32, 32), (20, 45), (45, 20), (3, 3), (2, 9)])
def test_erased_images_are_those_of_the_slow_version(side):
    keys, n = keys_of(300), 300
    images = some_images(n, *side).permute(0, 3, 1, 2)
    found = erase(images, keys, 0.6, FILL)
    shapes = uniform(keys, Stream.ERASE_SHAPE, 20).tolist()
    places, chances = uniform(keys, Stream.ERASE_PLACE, 2).tolist(), uniform(keys, Stream.ERASE)
    for i in range(n):
        tries = list(zip(shapes[i][:10], shapes[i][10:], strict=True))
        box = oracle.erasing_box(tries, places[i], *side) if chances[i] < 0.6 else None
        assert torch.equal(found[i], oracle.paint(images[i], box, [3, 128, 255])), i


def erased_boxes(n: int, height: int, width: int) -> np.ndarray:
    """Top, left, height and width of what Killick erases in each of `n` images; zeros if none."""
    inside = erase(torch.zeros(n, 1, height, width, dtype=torch.uint8), keys_of(n), 1.0, [1.0])
    rows, columns = inside[:, 0].amax(2), inside[:, 0].amax(1)
    assert torch.equal(inside[:, 0], rows[:, :, None] * columns[:, None, :])  # rectangles
    starts = [side.argmax(1) for side in (rows, columns)]
    return torch.stack([*starts, rows.sum(1), columns.sum(1)], 1).numpy()


def torchvision_boxes(n: int, height: int, width: int) -> np.ndarray:
    """The same of torchvision's transform."""
    transform, image = v2.RandomErasing(p=1.0), torch.zeros(1, height, width)
    drawn = [transform.make_params([image]) for _ in range(n)]  # from the test's own seed
    boxes = [[d["i"], d["j"], d["h"], d["w"]] for d in drawn if d["v"] is not None]
    return np.array(boxes + [[0] * 4] * (n - len(boxes)))


@pytest.mark.parametrize("side", [(32, 32), (14, 60)])
def test_rectangles_are_distributed_as_torchvisions(side):
    ours, theirs = erased_boxes(40_000, *side), torchvision_boxes(4000, *side)
    areas = [boxes[:, 2] * boxes[:, 3] / math.prod(side) for boxes in (ours, theirs)]
    spread = areas[1].std() / 4000**0.5
    assert abs(areas[0].mean() - areas[1].mean()) < 4 * spread
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert abs(np.quantile(areas[0], level) - np.quantile(areas[1], level)) < 0.012
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert abs((areas[0] == 0).mean() - (areas[1] == 0).mean()) < 0.005


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.25, 1.0])
def test_as_many_images_are_erased_as_the_probability_says(probability):
    n = 20_000
    found = erase(torch.zeros(n, 1, 16, 16, dtype=torch.uint8), keys_of(n), probability, [9.0])
    share = float(found.flatten(1).any(1).float().mean())
    assert abs(share - probability) <= 4 * (probability * (1 - probability) / n) ** 0.5


def test_images_that_are_not_chosen_are_not_touched_and_the_given_ones_never_are():
    keys, images = keys_of(400), some_images(400, 12, 12).permute(0, 3, 1, 2)
    before = images.clone()
    found = erase(images, keys, 0.5, [0.0, 0.0, 0.0])
    touched = (found != images).flatten(1).any(1)
    assert torch.equal(images, before)
    assert torch.equal(touched, uniform(keys, Stream.ERASE) < 0.5)


def test_what_is_erased_depends_on_the_key_alone():
    keys, images = keys_of(50), some_images(50, 12, 12).permute(0, 3, 1, 2)
    whole = erase(images, keys, 0.5, FILL)
    parts = [erase(i, k, 0.5, FILL) for i, k in zip(images.split(7), keys.split(7), strict=True)]
    order = torch.arange(49, -1, -1)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(erase(images[order], keys[order], 0.5, FILL), whole[order])


def test_transforms_draw_nothing_from_the_global_state():
    before, keys = torch.get_rng_state(), keys_of(5)
    images = gather(some_images(5, 8, 8), torch.arange(5), *Shift(2, True, True).draw(keys))
    erase(images, keys, 1.0, FILL)
    assert torch.equal(before, torch.get_rng_state())
