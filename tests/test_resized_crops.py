"""Resized crops of batches: torchvision's boxes and torchvision's pixels, decided by each key."""

import pytest
import torch
from scipy import stats
from test_augment_operations import make_images
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from killick.data.augment.resized_crops import Boxes, ResizedCrop, draw_boxes, resize_crops
from killick.data.batches import Cut, Resident
from killick.data.keyed_random import sample_keys
from killick.data.transforms import Shift

SHAPES = [(32, 32, 32), (64, 48, 32), (90, 130, 100), (40, 30, 100)]  # height, width, to which size


def keys_of(n: int) -> Tensor:
    return sample_keys(0, 0, torch.arange(n))


def none(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.bool)


def pixels_of(n: int, height: int, width: int) -> Tensor:
    return make_images(n, width, height).permute(0, 2, 3, 1).contiguous()


def planes(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2)


def torchvision(pixels: Tensor, boxes: Boxes, size: int, interpolation: str) -> Tensor:
    """Each image alone."""
    how = InterpolationMode(interpolation)
    images = pixels.permute(0, 3, 1, 2).contiguous()
    return torch.stack(
        [
            functional.resized_crop(
                image, *(int(side) for side in box), [size, size], how, antialias=True
            )
            for image, box in zip(images, zip(*boxes, strict=True), strict=True)
        ]
    )


@pytest.mark.parametrize(("height", "width"), [(32, 32), (375, 500), (60, 100), (16, 40)])
def test_boxes_have_torchvisions_distribution(height, width):
    ours = torch.stack(draw_boxes(keys_of(6000), height, width), 1)
    transform, image = v2.RandomResizedCrop(8), torch.zeros(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = [transform.make_params([image]) for _ in range(6000)]
    names = ("top", "left", "height", "width")
    theirs = torch.tensor([[params[name] for name in names] for params in drawn])
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    for derive in (lambda box: box[:, 2] * box[:, 3], lambda box: box[:, 3] / box[:, 2]):
        assert stats.ks_2samp(derive(ours), derive(theirs)).pvalue > 1e-3
    top, left, tall, wide = ours.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()


@pytest.mark.parametrize(("height", "width"), [(1000, 6), (6, 1000), (3, 40), (1, 1)])
def test_where_no_box_fits_the_middle_is_taken(height, width):
    """In long strips most tries fail; then torchvision always takes the same box."""
    boxes = torch.stack(draw_boxes(keys_of(2000), height, width), 1)
    transform, image = v2.RandomResizedCrop(8), torch.zeros(3, height, width)
    transform.scale = (2.0, 2.0)  # nothing fits
    params = transform.make_params([image])
    middle = torch.tensor([params[name] for name in ("top", "left", "height", "width")])
    share = (boxes == middle).all(1).double().mean()
    assert share > (0.02 if height != width else 0.99)


def test_sizes_may_differ_between_images():
    heights, widths = torch.tensor([32, 100, 7]), torch.tensor([32, 20, 90])
    together = torch.stack(draw_boxes(keys_of(3), heights, widths), 1)
    for row in range(3):
        alone = draw_boxes(keys_of(3)[row : row + 1], int(heights[row]), int(widths[row]))
        assert torch.equal(torch.stack(alone, 1)[0], together[row])


@pytest.mark.parametrize(("height", "width", "size"), [*SHAPES, (375, 500, 224), (300, 260, 20)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_torchvisions(height, width, size, interpolation):
    """Equal; to one level where images shrink much, since torchvision's weights are finer then."""
    n = 8 if size == 224 else 40
    pixels, boxes = pixels_of(n, height, width), draw_boxes(keys_of(n), height, width)
    ours = resize_crops(planes(pixels), boxes, size, interpolation, none(n), none(n))
    difference = (ours.int() - torchvision(pixels, boxes, size, interpolation).int()).abs()
    shrinks = max(height, width) > 2 * size
    assert difference.max() <= (1 if shrinks else 0)
    assert (difference > 0).double().mean() < 0.01


def test_all_of_an_image_at_its_own_size_is_the_image():
    pixels, zero, side = pixels_of(10, 32, 32), torch.zeros(10).long(), torch.full((10,), 32)
    for how in ("bilinear", "bicubic"):
        found = resize_crops(
            planes(pixels), Boxes(zero, zero, side, side), 32, how, none(10), none(10)
        )
        assert torch.equal(found.permute(0, 2, 3, 1), pixels)


def test_images_may_be_padded_to_a_common_size():
    pixels, boxes = pixels_of(20, 40, 50), draw_boxes(keys_of(20), 40, 50)
    padded = torch.nn.functional.pad(pixels, (0, 0, 0, 13, 0, 7), value=99)
    found = [
        resize_crops(planes(p), boxes, 24, "bicubic", none(20), none(20)) for p in (pixels, padded)
    ]
    assert torch.equal(*found)


def test_flips_are_those_of_the_result():
    pixels, boxes, keys = pixels_of(20, 40, 50), draw_boxes(keys_of(20), 40, 50), torch.arange(20)
    across, down = keys % 2 == 1, keys % 3 == 1
    found = resize_crops(planes(pixels), boxes, 24, "bilinear", across, down)
    plain = resize_crops(planes(pixels), boxes, 24, "bilinear", none(20), none(20))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for row in range(20):
        expected = plain[row].flip(2) if across[row] else plain[row]
        assert torch.equal(found[row], expected.flip(1) if down[row] else expected)


@pytest.mark.parametrize(("height", "width", "size"), SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_sample_depends_on_its_key_alone(height, width, size, interpolation):
    crop, pixels, keys = ResizedCrop(size, interpolation), pixels_of(30, height, width), keys_of(30)
    state = torch.get_rng_state()
    whole = crop(pixels, keys, keys > 0, none(30))
    assert torch.equal(state, torch.get_rng_state())
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    found = crop(pixels[order], keys[order], keys[order] > 0, none(30))
    assert torch.equal(found, whole[order])
    for one in (slice(row, row + 1) for row in range(30)):
        assert torch.equal(crop(pixels[one], keys[one], keys[one] > 0, none(1)), whole[one])


def test_the_crop_is_one_graph_without_breaks_and_the_same_under_autocast():
    crop, pixels, keys = ResizedCrop(32, "bilinear"), pixels_of(20, 40, 50), keys_of(20)
    whole = crop(pixels, keys, keys > 0, none(20))
    torch.compiler.reset()
    graph = torch.compile(crop, fullgraph=True, dynamic=False, backend="eager")
    assert torch.equal(graph(pixels, keys, keys > 0, none(20)), whole)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(crop(pixels, keys, keys > 0, none(20)), whole)


def test_resident_samples_do_not_depend_on_how_a_step_is_cut():
    pixels = pixels_of(48, 40, 50)

    def run(cut: Cut) -> Tensor:
        crop = ResizedCrop(32, "bilinear")
        batches = Resident(pixels, torch.arange(48), Shift(0, True), cut, seed=0, resized=crop)
        batches.begin(1, 0)
        parts = []
        for _ in range(2):
            parts += [batches.batch(number).images for number in range(cut.passes)]
            batches.advance()
        return torch.stack(parts)

    ranks = torch.stack([run(Cut(24, rank, 2, 3)) for rank in (0, 1)], 1)
    assert torch.equal(ranks.flatten(0, 2), run(Cut(24)).flatten(0, 1))
