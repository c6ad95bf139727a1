import math

import contourpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from killick.studies.plane import order_points
from killick.studies.width import (
    RADII,
    arrange,
    levels_around,
    measure_width,
    measure_widths,
    profile,
)


def bowl(function, points: int = 51, span: float = 1.0) -> np.ndarray:
    """Accuracies `(y, x)` of a function of x and y."""
    ticks = np.linspace(-span, span, points)
    return np.array([[function(x, y) for x in ticks] for y in ticks])


@pytest.mark.parametrize(
    ("function", "level", "radius", "cut"),
    [
        (lambda x, y: 0.9 - 0.8 * math.hypot(x, y), 0.8, 0.125, False),  # a cone
        (lambda x, y: 0.9 - 0.8 * math.hypot(x, y), 0.5, 0.5, False),
        (lambda x, y: 0.9 - 0.5 * (x**2 / 0.36 + y**2 / 0.09), 0.4, math.sqrt(0.18), False),
        (lambda x, y: 0.9 - 0.5 * abs(x), 0.8, math.sqrt(0.8 / math.pi), True),  # a ridge
        (lambda x, y: 0.9, 0.8, 2 / math.sqrt(math.pi), True),
        (lambda x, y: 0.9 - 0.2 * (abs(x) + abs(y)), 0.8, math.sqrt(0.5 / math.pi), False),
    ],
)
def test_widths_of_known_bowls(function, level, radius, cut):
    found = measure_width(bowl(function), 1.0, level)
    assert found.radius == pytest.approx(radius, rel=0.01)
    assert found.cut == cut


def test_a_plane_twice_as_wide_has_twice_the_radius():
    grid = bowl(lambda x, y: 0.9 - 0.8 * math.hypot(x, y))
    assert measure_width(grid, 2.0, 0.5).radius == 2 * measure_width(grid, 1.0, 0.5).radius


def test_only_the_region_around_the_centre_counts():
    one = bowl(lambda x, y: 0.9 - 2 * math.hypot(x, y))
    two = np.maximum(one, bowl(lambda x, y: 0.9 - 2 * math.hypot(x - 0.8, y)))
    assert measure_width(two, 1.0, 0.5) == measure_width(one, 1.0, 0.5)
    joined = measure_width(two, 1.0, 0.05)  # at this height they are one
    assert joined.radius > measure_width(one, 1.0, 0.05).radius
    assert joined.cut


def test_a_centre_below_the_level_has_no_width():
    grid = bowl(lambda x, y: 0.2 + math.hypot(x, y))
    found = measure_width(grid, 1.0, 0.5)
    assert (found.radius, found.cut) == (0.0, False)


@given(
    half=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    level=st.floats(0.05, 0.95),
    span=st.floats(0.1, 3),
)
def test_widths_of_any_plane_agree_with_contourpy(half, seed, level, span):
    points = 2 * half + 1
    grid = np.random.default_rng(seed).random((points, points))
    found = measure_width(grid, span, level)
    ticks = np.linspace(-span, span, points)
    generator = contourpy.contour_generator(
        *(ticks, ticks, grid), quad_as_tri=True, fill_type=contourpy.FillType.OuterOffset
    )
    area, touches = 0.0, False
    for shape, offsets in zip(*generator.filled(level, 2.0), strict=True):
        rings = [shape[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
        if _winds(rings[0]) and not any(_winds(ring) for ring in rings[1:]):
            area = _area(rings[0]) - sum(_area(ring) for ring in rings[1:])
            touches = bool(np.isclose(np.abs(rings[0]), span).any())
    assert (grid[half, half] > level) == (area > 0)
    assert found.radius == pytest.approx(math.sqrt(area / math.pi), rel=1e-6, abs=1e-6)
    assert found.cut == touches


def _area(ring: np.ndarray) -> float:
    x, y = ring.T
    return abs(float(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1]))) / 2


def _winds(ring: np.ndarray) -> bool:
    """Whether a ring goes around the centre."""
    angles = np.unwrap(np.arctan2(ring[:, 1], ring[:, 0]))
    return bool(abs(angles[-1] - angles[0]) > math.pi)


def test_levels_are_ten_points_below_the_centre_and_shares_of_the_way_from_chance():
    assert levels_around(0.8, 0.2) == pytest.approx((0.7, 0.74, 0.5))
    cone = bowl(lambda x, y: 0.9 - 0.8 * math.hypot(x, y))
    widths = measure_widths(cone, 1.0, 0.1)
    assert list(widths) == list(RADII)
    assert [w.radius for w in widths.values()] == pytest.approx([0.125, 0.1, 0.5], rel=0.02)


@pytest.mark.parametrize("span", [1.0, 0.5])
def test_the_profile_of_a_cone_is_its_side(span):
    radii, means = profile(bowl(lambda x, y: 0.9 - 0.8 * math.hypot(x, y), span=span), span)
    assert radii[0] == 0
    assert radii[-1] == pytest.approx(span)
    assert means == pytest.approx(0.9 - 0.8 * radii, abs=0.004)


def test_the_profile_is_the_mean_over_all_directions():
    _, means = profile(bowl(lambda x, y: 0.5 + 0.3 * x - 0.1 * y), 1.0)
    assert means == pytest.approx(np.full(51, 0.5), abs=1e-9)
    _, ridge = profile(bowl(lambda x, y: abs(x)), 1.0)
    assert ridge[-1] == pytest.approx(2 / math.pi, rel=0.01)


def test_planes_are_arranged_with_x_along_the_rows():
    records = [
        {"metric": "top1", "value": x + 10 * y, "draw": draw, "x": x, "y": y}
        for draw in (0, 1)
        for x, y in order_points(3, 1.0)
    ]
    records[-1]["value"] = 99.0
    records.append({"metric": "radius_half", "value": 1.0, "draw": 0})
    wanted = [[-11, -10, -9], [-1, 0, 1], [9, 10, 11]]
    assert np.array_equal(arrange(records, draw=0), wanted)
