"""Operations on batches: those of torchvision on single images, whatever else is in the batch."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from killick.data.augment import operations
from killick.data.augment.operations import OPERATIONS, WARPS, apply, number_of

REACH = {"Rotate": 135.0, "TranslateX": 40.0, "TranslateY": 40.0}
COLOR = [12.0, 200.0, 77.0]


def make_images(n: int, size: int, height: int | None = None) -> Tensor:
    """Noise, smooth images, flat ones, and images of few values, by turns."""
    g = torch.Generator().manual_seed(size)
    shape = (height or size, size)
    images = torch.randint(256, (n, 3, *shape), dtype=torch.uint8, generator=g)
    smooth = interpolate(255 * torch.rand(n, 3, 5, 5, generator=g), shape, mode="bicubic")
    images[1::4] = smooth.clamp(0, 255).to(torch.uint8)[1::4]
    images[2::4] = images[2::4, :, :1, :1]
    images[3::4] = images[3::4] // 100 * 100
    return images


def magnitudes_of(name: str, n: int) -> Tensor:
    """The whole range of an operation with its ends and 0, in another order than the images."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    if name == "Posterize":
        return order.float() % 9
    if name == "Solarize":
        return torch.linspace(0, 1, n)[order]
    reach = REACH.get(name, 0.99)
    return torch.cat((torch.zeros(1), torch.linspace(-reach, reach, n - 1)))[order]


def torchvision(images: Tensor, name: str, magnitudes: Tensor, interpolation: str, fill) -> Tensor:
    """Each image alone, as torchvision's policies do it."""
    policy = v2.TrivialAugmentWide(interpolation=interpolation, fill=fill)
    done = [
        policy._apply_image_or_video_transform(
            image, name, float(magnitude), interpolation, policy._fill
        )
        for image, magnitude in zip(images, magnitudes, strict=True)
    ]
    return torch.stack(done)


def assert_equal_but_for_rounding(ours: Tensor, theirs: Tensor, share: float) -> None:
    """At most one level apart, in at most `share` of all values."""
    difference = (ours.int() - theirs.int()).abs()
    assert difference.max() <= (1 if share else 0)
    assert (difference > 0).double().mean() <= share


@pytest.mark.parametrize(("n", "size", "height"), [(200, 32, 32), (16, 224, 224), (40, 30, 17)])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in WARPS])
def test_colors_are_torchvisions(name, n, size, height):
    images, magnitudes = make_images(n, size, height), magnitudes_of(name, n)
    ours = apply(images, torch.full((n,), number_of(name)), magnitudes)
    theirs = torchvision(images, name, magnitudes, "nearest", None)
    rounded = {"Color": 1e-3, "Contrast": 1e-3, "Sharpness": 1e-3}  # fused products of theirs
    assert_equal_but_for_rounding(ours, theirs, rounded.get(name, 0))


@pytest.mark.parametrize("fill", [None, COLOR], ids=["black", "color"])
@pytest.mark.parametrize(("n", "size", "height"), [(200, 32, 32), (16, 224, 224), (40, 30, 17)])
@pytest.mark.parametrize("name", WARPS)
def test_bilinear_warps_are_torchvisions(name, n, size, height, fill):
    images, magnitudes = make_images(n, size, height), magnitudes_of(name, n)
    ours = apply(images, torch.full((n,), number_of(name)), magnitudes, fill=fill)
    theirs = torchvision(images, name, magnitudes, "bilinear", fill)
    assert_equal_but_for_rounding(
        ours, theirs, 1e-2
    )  # positions are rounded; how depends on the CPU


@pytest.mark.parametrize("fill", [None, COLOR], ids=["black", "color"])
@pytest.mark.parametrize(("n", "size", "height"), [(200, 32, 32), (16, 224, 224), (40, 30, 17)])
@pytest.mark.parametrize("name", WARPS)
def test_nearest_warps_are_torchvisions_but_for_ties(name, n, size, height, fill):
    """A pixel that comes from the middle between two may take either."""
    images, magnitudes = make_images(n, size, height), magnitudes_of(name, n)
    ours = apply(
        images,
        torch.full((n,), number_of(name)),
        magnitudes,
        interpolation="nearest",
        fill=fill,
    )
    theirs = torchvision(images, name, magnitudes, "nearest", fill)
    different = (ours != theirs).any(1)
    matrices = WARPS[name](magnitudes.double(), height, size)
    y, x = torch.meshgrid(
        *(torch.arange(side).double() - (side - 1) / 2 for side in (height, size)), indexing="ij"
    )
    places = torch.einsum("nij,jhw->nihw", matrices, torch.stack((x, y, torch.ones_like(x))))
    places = places + torch.tensor([(size - 1) / 2, (height - 1) / 2]).view(1, 2, 1, 1)
    tie = ((places - places.floor() - 0.5).abs() < 1e-4).any(1)
    assert not (different & ~tie).any()
    assert tie.double().mean() < 0.05


@pytest.mark.parametrize("size", [2, 1])
def test_tiny_images_are_sharpened_as_torchvisions(size):
    images, magnitudes = make_images(8, size), magnitudes_of("Sharpness", 8)
    ours = apply(images, torch.full((8,), number_of("Sharpness")), magnitudes)
    assert torch.equal(ours, torchvision(images, "Sharpness", magnitudes, "nearest", None))


def mixed_batch(n: int, size: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """Images, each with its own operation and magnitude."""
    numbers = torch.arange(n) % len(OPERATIONS)
    names = [OPERATIONS[number] for number in numbers.tolist()]
    drawn = {name: magnitudes_of(name, n) for name in OPERATIONS}
    magnitudes = torch.stack([drawn[name][row] for row, name in enumerate(names)])
    return make_images(n, size), numbers, magnitudes


def captured(*arguments, **options) -> Tensor:
    """The way of a GPU: everything for all images, in a graph without breaks."""
    torch.compiler.reset()
    return torch.compile(apply, fullgraph=True, dynamic=False, backend="eager")(
        *arguments, **options
    )


@pytest.mark.parametrize("options", [{}, {"interpolation": "nearest", "fill": COLOR}])
def test_an_image_does_not_depend_on_its_batch_nor_on_the_device_way(options):
    images, numbers, magnitudes = mixed_batch(90)
    whole = apply(images, numbers, magnitudes, **options)
    assert torch.equal(captured(images, numbers, magnitudes, **options), whole)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    shuffled = apply(images[order], numbers[order], magnitudes[order], **options)
    assert torch.equal(shuffled, whole[order])
    for row in range(90):
        one = slice(row, row + 1)
        alone = apply(images[one], numbers[one], magnitudes[one], **options)
        assert torch.equal(alone, whole[one]), OPERATIONS[numbers[row]]


def test_large_images_are_cut_into_parts_on_a_cpu(monkeypatch):
    images, numbers, magnitudes = mixed_batch(60)
    whole = apply(images, numbers, magnitudes)
    monkeypatch.setattr(operations, "CACHED", 3000)  # one image at a time
    assert torch.equal(apply(images, numbers, magnitudes), whole)


def test_layouts_make_no_difference_and_images_are_left_alone():
    images, numbers, magnitudes = mixed_batch(30)
    before, last = images.clone(), images.contiguous(memory_format=torch.channels_last)
    found = apply(images, numbers, magnitudes)
    assert torch.equal(apply(last, numbers, magnitudes), found)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
    assert torch.equal(last, before)


def test_operations_that_do_not_occur_need_not_be_computed():
    images, numbers, magnitudes = mixed_batch(60)
    few = ("Identity", "Rotate", "Equalize", "Color")
    kept = torch.isin(numbers, torch.tensor([number_of(name) for name in few]))
    given = images[kept], numbers[kept], magnitudes[kept]
    assert torch.equal(captured(*given, among=few), apply(*given))
