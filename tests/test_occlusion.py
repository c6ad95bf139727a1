"""The suite `occlusion`: squares against a slow loop, and rows that depend on no batch."""

import pytest
import torch
from small_models import find, make_set, make_standard
from torch import nn

import killick
from killick.corruptions.occlusion import COVERED, occlude
from killick.data.image_set import ImageSet
from killick.evaluation.image_blocks import BLOCK, block_generator

COLOR = (10, 128, 250)
COUNTS = {10: 6, 30: 19, 50: 32, 70: 45}  # of 64 squares


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_occlude(images, percent, color, generator):
    """Pixel by pixel: the squares with the lowest draws are covered."""
    found = images.clone()
    n, _, height, width = images.shape
    draws = torch.rand(n, 64, generator=generator).tolist()
    for image in range(n):
        lowest = sorted(range(64), key=lambda square: draws[image][square])[: COUNTS[percent]]
        for row in range(height):
            for column in range(width):
                square = (8 * row // height) * 8 + 8 * column // width
                if square in lowest:
                    for channel in range(3):
                        found[image, channel, row, column] = color[channel]
    return found


@pytest.mark.parametrize("shape", [(16, 16), (28, 20), (8, 8)])
@pytest.mark.parametrize("percent", COVERED)
def test_squares_are_those_of_a_loop(shape, percent):
    images = torch.randint(0, 256, (5, 3, *shape), dtype=torch.uint8, generator=seeded(1))
    found = occlude(images, percent, COLOR, generator=seeded())
    assert torch.equal(found, slow_occlude(images, percent, COLOR, seeded()))


def test_squares_are_whole_as_many_as_they_should_be_and_nested():
    images = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    before = torch.zeros(40, 8, 8, dtype=torch.bool)
    for percent in COVERED:
        found = occlude(images, percent, (9, 9, 9), generator=seeded())[:, 0]
        squares = found.unflatten(1, (8, 4)).unflatten(3, (8, 4)).transpose(2, 3).flatten(3)
        covered = (squares == 9).all(-1)
        assert torch.equal(covered, (squares == 9).any(-1))
        assert covered.sum((1, 2)).tolist() == [COUNTS[percent]] * 40
        assert bool((before <= covered).all())
        before = covered
    assert len(before.flatten(1).unique(dim=0)) == 40  # drawn for each image


def evaluate(**options):
    return killick.evaluate(make_standard(), make_tinted(), ("occlusion",), **options)


def make_tinted() -> ImageSet:
    """Images whose mean color is not gray."""
    data = make_set()
    tint = torch.tensor([0, 3, 6], dtype=torch.uint8).view(1, 3, 1, 1)
    return ImageSet.of("colours", data.images() + tint, data.labels, data.class_names)


def test_rows_are_those_of_a_loop_over_blocks():
    model, data = make_standard(), make_tinted()
    color = [round(float(data.images()[:, channel].double().mean())) for channel in range(3)]
    assert len(set(color)) == 3
    rows = evaluate(seed=7)
    for percent in COVERED:
        hits, surprise = 0, 0.0
        for number in range(0, len(data), BLOCK):
            generator = block_generator(7, "occlusion", 0, number // BLOCK, torch.device("cpu"))
            block = slice(number, number + BLOCK)
            images = slow_occlude(data.images()[block], percent, color, generator)
            logits, labels = model(images).detach(), data.labels[block]
            hits += int((logits.argmax(1) == labels).sum())
            surprise += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        place = {"suite": "occlusion", "corruption": "occlusion", "severity": percent}
        assert find(rows, "nll", **place)["value"] == pytest.approx(surprise / len(data), abs=1e-4)
        assert find(rows, "top1", **place)["value"] == pytest.approx(hits / len(data))


def test_no_number_depends_on_the_batch_size():
    usual = evaluate()
    for batch in (7, 333):
        for a, b in zip(usual, evaluate(batch=batch), strict=True):
            assert a["value"] == pytest.approx(b["value"], abs=4e-4), a
