"""The data set of shapes: what is drawn, how it is drawn at random, and that it can be learned."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from killick.data.sources import load_sets, shapes
from killick.data.sources.shapes import CLASS_NAMES, make_shapes
from killick.nets import resnet_small


def corners(*radii: float, count: int) -> list[tuple[float, float]]:
    """Of a star: radii in turn, from the top."""
    turns = [2 * math.pi * i / (count * len(radii)) for i in range(count * len(radii))]
    ring = [radii[i % len(radii)] for i in range(len(turns))]
    return [(r * math.sin(t), r * math.cos(t)) for r, t in zip(ring, turns, strict=True)]


POLYGONS = {
    "square": [(-0.75, -0.75), (-0.75, 0.75), (0.75, 0.75), (0.75, -0.75)],
    "triangle": corners(1, count=3),
    "pentagon": corners(1, count=5),
    "star": corners(1, 0.42, count=5),
    "cross": [
        *((-0.28, -0.95), (0.28, -0.95), (0.28, -0.28), (0.95, -0.28), (0.95, 0.28), (0.28, 0.28)),
        *((0.28, 0.95), (-0.28, 0.95), (-0.28, 0.28), (-0.95, 0.28), (-0.95, -0.28)),
        (-0.28, -0.28),
    ],
    "arrow": [(-0.2, -0.95), (0.2, -0.95), (0.2, 0), (0.8, 0), (0, 1), (-0.8, 0), (-0.2, 0)],
}


def in_polygon(points: list[tuple[float, float]], x: float, y: float) -> bool:
    """Whether a ray to the right crosses the outline an odd number of times."""
    inside = False
    for (x1, y1), (x2, y2) in zip(points, [*points[1:], points[0]], strict=True):
        if (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1):
            inside = not inside
    return inside


def in_round(name: str, x: float, y: float) -> bool:
    from_middle = math.hypot(x, y)
    if name == "disc":
        return from_middle < 0.85
    if name == "ring":
        return 0.48 < from_middle < 0.88
    if name == "crescent":
        return from_middle < 0.95 and math.hypot(x - 0.45, y) > 0.75
    half = 0.55 * math.sqrt(0.5)  # heart: its discs stand on the middles of the upper sides
    below = abs(x) + abs(y) < 0.55 * math.sqrt(2)
    return below or any(math.hypot(x - side * half, y - half) < 0.55 for side in (-1, 1))


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_distances_are_negative_inside_the_outline_and_nowhere_else(name):
    ticks = np.linspace(-1.23, 1.24, 48)
    for y in ticks:
        row = torch.tensor(ticks)
        found = shapes._SHAPES[name](row, torch.full_like(row, y)) < 0
        outline = POLYGONS.get(name)
        for x, inside in zip(ticks, found.tolist(), strict=True):
            assert inside == (in_polygon(outline, x, y) if outline else in_round(name, x, y))


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_distances_grow_by_one_per_unit_near_the_edge(name):
    x, y = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_(), y.requires_grad_()
    distance = shapes._SHAPES[name](x, y)
    slopes = torch.stack(torch.autograd.grad(distance.sum(), [x, y])).norm(dim=0)
    near = distance.abs() < 0.05
    assert near.sum() > 50
    torch.testing.assert_close(slopes[near], torch.ones_like(slopes[near]))


def test_images_are_as_promised():
    images, labels, test_images, test_labels = make_shapes(25, 13, seed=0)
    assert images.shape == (25, 3, 32, 32)
    assert test_images.shape == (13, 3, 32, 32)
    assert images.dtype == test_images.dtype == torch.uint8
    assert labels.dtype == test_labels.dtype == torch.int64
    assert len(CLASS_NAMES) == len(set(CLASS_NAMES)) == 10


@pytest.mark.parametrize("count", [10, 13, 1009])
def test_classes_are_balanced_to_within_one_and_shuffled(count):
    _, labels, _, test_labels = make_shapes(count, count, seed=3)
    for part in (labels, test_labels):
        counts = part.bincount(minlength=10)
        assert counts.max() - counts.min() <= 1
        assert (part != part.sort().values).any()


def test_the_test_images_are_the_same_for_any_number_to_train_on():
    _, _, images, labels = make_shapes(10, 30, seed=1)
    _, _, again, same = make_shapes(1234, 30, seed=1)
    assert torch.equal(images, again)
    assert torch.equal(labels, same)


def test_one_seed_gives_one_set_and_another_seed_another():
    first, again, other = (make_shapes(20, 20, seed) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[2], other[2])


def test_no_image_is_in_two_sets_or_twice_in_one():
    images = torch.cat([part for seed in (0, 1) for part in make_shapes(300, 300, seed)[::2]])
    assert len(images.flatten(1).unique(dim=0)) == 1200


def test_the_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    make_shapes(10, 10, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_edges_are_soft_and_shapes_of_every_class_cover_a_fair_part(generator):
    labels = torch.arange(1000) % 10
    coverage = shapes._draw_shapes(labels, shapes.RADIUS, generator)
    assert coverage.min() == 0
    assert coverage.max() == 1
    assert 0.02 < ((coverage > 0) & (coverage < 1)).float().mean() < 0.2
    for label in range(10):
        assert 0.06 < coverage[labels == label].mean() < 0.35


def test_shapes_lie_all_over_the_image(generator):
    coverage = shapes._draw_shapes(torch.arange(2000) % 10, shapes.RADIUS, generator)[:, 0]
    ticks = torch.arange(32.0)
    weight = coverage.sum((1, 2))
    for across in (coverage.sum(1), coverage.sum(2)):
        middles = (across * ticks).sum(1) / weight
        assert abs(float(middles.mean()) - 15.5) < 0.5
        assert 1.5 < float(middles.std()) < 4


def test_shapes_are_brighter_than_the_background_some_faint_and_some_plain(generator):
    labels = torch.zeros(500, dtype=torch.long)
    discs = shapes._draw_images(labels, generator, shapes.RADIUS, shapes.CONTRAST)
    discs = discs.float().mean(1)
    step = discs[:, 13:19, 13:19].mean((1, 2)) - discs[:, ::31, ::31].mean((1, 2))
    assert step.quantile(0.05) > -20
    assert step.quantile(0.1) < 25
    assert step.quantile(0.9) > 90


def test_small_shapes_are_half_as_large_plainer_and_kept_apart(tmp_path, monkeypatch, generator):
    labels = torch.arange(1000) % 10
    large, small = (
        shapes._draw_shapes(labels, radius, generator).mean()
        for radius in (shapes.RADIUS, shapes.SMALL_RADIUS)
    )
    assert 0.15 < small / large < 0.25  # of the area
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path))
    monkeypatch.setattr(shapes, "TRAIN_COUNT", 40)
    monkeypatch.setattr(shapes, "TEST_COUNT", 20)
    whole, loaded = load_sets("shapes").test.images(), load_sets("small-shapes").test.images()
    expected = make_shapes(40, 20, 0, shapes.SMALL_RADIUS, shapes.SMALL_CONTRAST)[2]
    assert torch.equal(loaded, expected)
    assert torch.equal(whole, make_shapes(40, 20, 0)[2])
    assert not torch.equal(whole, loaded)


@pytest.mark.slow
def test_a_small_standard_network_learns_most_of_it_in_seconds():
    images, labels, test_images, test_labels = make_shapes(3500, 2000, seed=0)
    net, steps, batch = resnet_small(), 436, 32
    optimizer = torch.optim.SGD(net.parameters(), 0.15, 0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.15, steps, pct_start=0.2, cycle_momentum=False
    )
    for _ in range(steps):
        rows = torch.randint(len(images), (batch,))
        loss = functional.cross_entropy(net(normalized(images[rows])), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    net.eval()
    with torch.inference_mode():
        right = net(normalized(test_images)).argmax(1) == test_labels
    assert 0.8 < right.float().mean() < 0.98


def normalized(images: Tensor) -> Tensor:
    return (images.float() / 255 - 0.3) / 0.2
