"""The landscape study: widths against contourpy, planes, resume, and verdicts."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import contourpy
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import killick
from killick.core.batchnorm import tracked_norms
from killick.errors import OptionError
from killick.results.measurements import Measured, read_measured
from killick.runtime.progress import Display
from killick.studies.findings import Results
from killick.studies.landscape import STUDY
from killick.studies.landscape import plane as plane_of
from killick.studies.landscape.plane import (
    RADII,
    Plane,
    arrange,
    compute_accuracy,
    draw_direction,
    gather_images,
    gather_inputs,
    measure,
    measure_width,
    measure_widths,
    order_points,
)
from killick.studies.study import make_plan
from killick.studies.study_runner import run_study
from killick.studies.trained_job import corrupt_images, open_job
from killick.training import train
from killick.training.recipe_files import load_recipe

CPU = torch.device("cpu")
SMALL = {
    "epochs": 3,
    "data.limit": 400,
    "data.validation": 0,
    "network.arguments": {"width": 8, "stride": 2},
}
ASKED = {
    "points": 3,
    "span": 0.5,
    "directions": 0,
    "draws": 1,
    "batchnorm": ["kept", "settled"],
    "statistics": 100,
    "corruptions": ["fog", "contrast"],
    "severities": [1, 3],
    "images": 80,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A standard and a masked network, both better than chance."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "standard": {"protocol.name": "standard"},
        "masked": {"protocol.name": "masked", "protocol.target": "label"},
    }
    for name, settings in kinds.items():
        recipe = load_recipe("digits-small", {**SMALL, **settings})
        train(recipe, folder / name, quiet=True, device="cpu")
    return {name: folder / name for name in kinds}


def measured(run: Path, folder: Path, **changes) -> Measured:
    options = {**ASKED, **changes}
    folder.mkdir(exist_ok=True)
    kept = Measured(folder, options)
    measure(run, options, kept, device=CPU, show=silently)
    return kept


def silently(title, steps, done, what):
    return nullcontext(Display())


# Widths


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


def test_only_the_region_around_the_center_counts():
    one = bowl(lambda x, y: 0.9 - 2 * math.hypot(x, y))
    two = np.maximum(one, bowl(lambda x, y: 0.9 - 2 * math.hypot(x - 0.8, y)))
    assert measure_width(two, 1.0, 0.5) == measure_width(one, 1.0, 0.5)
    joined = measure_width(two, 1.0, 0.05)  # at this height they are one
    assert joined.radius > measure_width(one, 1.0, 0.05).radius
    assert joined.cut


def test_a_center_below_the_level_has_no_width():
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
    """Whether a ring goes around the center."""
    angles = np.unwrap(np.arctan2(ring[:, 1], ring[:, 0]))
    return bool(abs(angles[-1] - angles[0]) > math.pi)


def test_levels_are_ten_points_below_the_center_and_shares_of_the_way_from_chance():
    cone = bowl(lambda x, y: 0.9 - 0.8 * math.hypot(x, y))
    widths = measure_widths(cone, 1.0, 0.1)
    assert list(widths) == list(RADII)
    assert [w.radius for w in widths.values()] == pytest.approx([0.125, 0.1, 0.5], rel=0.02)


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


# Directions


@pytest.mark.parametrize("kind", ["standard", "masked"])
def test_each_filter_of_a_direction_is_as_long_as_that_of_the_weights(runs, kind):
    model = open_job(runs[kind], "cpu").model
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        direction = draw_direction(weight, name, 0, 0, 0)
        for drawn, own in zip(direction, weight, strict=True):
            wanted = math.sqrt(sum(value**2 for value in own.flatten().tolist()))
            found = math.sqrt(sum(value**2 for value in drawn.flatten().tolist()))
            assert found == pytest.approx(wanted, rel=1e-5)


def test_a_pair_filter_counts_as_one_and_not_as_two_halves(runs):
    stem = open_job(runs["masked"], "cpu").model.net.conv1.weight
    direction = draw_direction(stem, "net.conv1.weight", 0, 0, 0)
    halves = [(part[:, :3].norm(), part[:, 3:].norm()) for part in (stem, direction)]
    assert stem.shape[1] == 6
    assert not torch.isclose(*map(torch.stack, zip(*halves, strict=True)), rtol=1e-2).all()


def test_directions_are_gaussian_and_drawn_anew_for_each_seed_draw_axis_and_name():
    weight = torch.ones(20, 50, 10)
    ways = [(0, 0, 0, "a"), (1, 0, 0, "a"), (0, 1, 0, "a"), (0, 0, 1, "a"), (0, 0, 0, "b")]
    drawn = [draw_direction(weight, name, *way).flatten() for *way, name in ways]
    correlations = np.corrcoef(torch.stack(drawn).numpy())
    assert np.abs(correlations - np.eye(len(ways))).max() < 0.05
    assert torch.equal(drawn[0], draw_direction(weight, "a", 0, 0, 0).flatten())
    kurtosis = float((drawn[0] ** 4).mean() / (drawn[0] ** 2).mean() ** 2)
    assert kurtosis == pytest.approx(3, abs=0.2)


def test_anchored_and_standard_networks_are_moved_alike_but_for_the_first_layer():
    net = killick.nets.create("killick:resnet_small", num_classes=10)
    standard = killick.standard(net, image_shape=(3, 32, 32))
    anchored = killick.anchor(standard)
    moved = []
    for model in (standard, anchored):
        plane = Plane(model, seed=3)
        plane.move(0.4, -0.3)
        before = dict(model.named_parameters())
        moved.append({n: p - before[n] for n, p in plane.model.named_parameters()})
    for name, change in moved[0].items():
        if name == "net.conv1.weight":
            assert change.shape != moved[1][name].shape
        else:
            assert torch.equal(change, moved[1][name]), name


# Moving


@pytest.mark.parametrize("kind", ["standard", "masked"])
def test_a_point_is_the_center_and_so_much_of_each_direction(runs, kind):
    model = open_job(runs[kind], "cpu").model
    plane = Plane(model, seed=1, draw=2)
    plane.move(0.25, -0.75)
    found = dict(plane.model.named_parameters())
    for name, weight in model.named_parameters():
        wanted = weight.double()
        if weight.ndim > 1:
            wanted = wanted + 0.25 * draw_direction(weight, name, 1, 2, 0).double()
            wanted = wanted - 0.75 * draw_direction(weight, name, 1, 2, 1).double()
            assert not torch.equal(found[name], weight)
        assert torch.allclose(found[name].double(), wanted, atol=1e-6), name


def test_the_network_itself_is_not_touched_and_its_copy_comes_back_bit_for_bit(runs):
    model = open_job(runs["masked"], "cpu").model
    before = copy.deepcopy(model.state_dict())
    plane = Plane(model, seed=0)
    plane.move(0.7, 0.1)
    plane.settle(gather_inputs(open_job(runs["masked"], "cpu"), 50))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    plane.move(0.0, 0.0)
    found = dict(plane.model.named_parameters())
    assert all(torch.equal(found[name], p) for name, p in model.named_parameters())


def test_a_network_that_remembers_its_pairs_does_not_settle_by_itself_when_it_is_moved():
    model = killick.anchor(killick.nets.create("killick:resnet_small", num_classes=4))
    x = torch.randn(40, 3, 32, 32)
    model.train()
    model(x, x.roll(1, 0), torch.ones(40, dtype=torch.bool))
    model.set_references(x[:1]).eval()
    plane = Plane(model, seed=0)
    before = [norm.running_mean.clone() for norm in tracked_norms(plane.model)]
    plane.move(0.5, 0.5)
    plane.model(x)
    after = [norm.running_mean for norm in tracked_norms(plane.model)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert model.recent is not None


def test_nothing_is_settled_in_a_network_without_batchnorm():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    plane = Plane(killick.standard(net, image_shape=(3, 4, 4)), seed=0)
    plane.settle([])  # would be an error if there were something to do
    plane.move(1.0, 0.0)
    assert not torch.equal(plane.model.net[1].weight, net[1].weight)
    assert torch.equal(plane.model.net[1].bias, net[1].bias)


@pytest.mark.parametrize("kind", ["standard", "masked"])
def test_settled_in_the_center_is_near_to_what_the_network_had(runs, kind):
    trained = open_job(runs[kind], "cpu")
    images, labels = gather_images(trained, ["brightness"], [1], None)
    plane = Plane(trained.model, seed=0)
    own = compute_accuracy(plane.model, images, labels)
    plane.settle(gather_inputs(trained, 400))
    center = compute_accuracy(plane.model, images, labels)
    assert own > 0.3
    assert center > own - 0.15
    if kind == "masked":  # settled when it was saved; the other's lag behind after so few steps
        assert center == pytest.approx(own, abs=0.15)
    plane.move(0.5, 0.0)
    plane.settle(gather_inputs(trained, 400))
    there = compute_accuracy(plane.model, images, labels)
    stale = Plane(trained.model, seed=0)
    stale.move(0.5, 0.0)
    assert there != compute_accuracy(stale.model, images, labels)


def test_settling_is_what_killick_settle_does_on_the_same_unmasked_pairs(runs):
    trained = open_job(runs["masked"], "cpu")
    plane = Plane(trained.model, seed=0)
    plane.move(0.3, 0.3)
    images = torch.cat([batch[0] for batch in gather_inputs(trained, 120)])
    same = copy.deepcopy(plane.model)
    plane.settle(gather_inputs(trained, 120))
    killick.settle(same, [images], generator=torch.Generator().manual_seed(0))
    for one, other in zip(tracked_norms(plane.model), tracked_norms(same), strict=True):
        assert torch.allclose(one.running_mean, other.running_mean, atol=1e-6)
        assert torch.allclose(one.running_var, other.running_var, rtol=1e-5)


def test_statistics_do_not_depend_on_where_the_network_was_before(runs):
    trained = open_job(runs["standard"], "cpu")
    inputs = gather_inputs(trained, 60)
    found = []
    for way in ([(0.2, 0.2)], [(1.0, -1.0), (0.2, 0.2)]):
        plane = Plane(trained.model, seed=0)
        for place in way:
            plane.move(*place)
            plane.settle(inputs)
        found.append(plane.model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


# Points and images


@given(half=st.integers(1, 12), span=st.floats(0.01, 4))
def test_points_go_outwards_from_the_exact_center_and_none_is_left_out(half, span):
    found = order_points(2 * half + 1, span)
    assert found[0] == (0.0, 0.0)
    assert len(set(found)) == (2 * half + 1) ** 2
    assert {(-x, y) for x, y in found} == {(x, -y) for x, y in found} == set(found)
    assert max(x for x, _ in found) == span
    distances = [x * x + y * y for x, y in found]
    assert all(b >= a - 1e-9 * span**2 for a, b in zip(distances, distances[1:], strict=False))


@pytest.mark.parametrize(("count", "rounds"), [(50, 1), (360, 1), (700, 2)])
def test_few_images_are_shared_out_evenly(runs, monkeypatch, count, rounds):
    trained = open_job(runs["standard"], "cpu")
    taken: list[tuple[str, int, int]] = []

    def note(images, name, severity):
        taken.extend((name, severity, int(image.sum() * 1000 + image.argmax())) for image in images)
        return corrupt_images(images, name, severity)

    monkeypatch.setattr(plane_of, "corrupt_images", note)
    images, labels = gather_images(trained, ["fog", "contrast"], [1, 3], count)
    assert len(images) == len(labels) == len(taken) == count
    kinds = [taken_of[:2] for taken_of in taken]
    shares = [kinds.count(kind) for kind in set(kinds)]
    assert len(shares) == 4
    assert max(shares) - min(shares) <= 1 + rounds
    assert len(set(taken)) == count  # none twice under the same corruption
    images = [taken_of[2] for taken_of in taken]
    clean, own = trained.load_test(count)
    known = {int(x.sum() * 1000 + x.argmax()): int(y) for x, y in zip(clean, own, strict=True)}
    assert labels.tolist() == [known[image] for image in images]
    assert max(images.count(each) for each in set(images)) == rounds


def test_all_images_are_those_of_the_evaluation(runs):
    trained = open_job(runs["standard"], "cpu")
    images, labels = gather_images(trained, ["fog", "gaussian_noise"], [2], None)
    clean, wanted = trained.load_test()
    made = torch.cat([corrupt_images(clean, name, 2) for name in ("fog", "gaussian_noise")])
    assert torch.equal(images, made)
    assert torch.equal(labels, wanted.repeat(2))


def test_statistics_come_from_unmasked_pairs_of_training_images(runs):
    trained = open_job(runs["masked"], "cpu")
    (batch,) = gather_inputs(trained, 60)
    images, references = batch
    own = {bytes(image.numpy()) for image in trained.load_images(trained.parts.train)}
    assert len(images) == 60
    assert {bytes(image.numpy()) for image in images} <= own
    assert {bytes(r.numpy()) for r in references} == {bytes(image.numpy()) for image in images}
    assert not any(torch.equal(x, r) for x, r in zip(images, references, strict=True))
    (alone,) = gather_inputs(open_job(runs["standard"], "cpu"), 60)
    assert len(alone) == 1


# Measuring


@pytest.mark.parametrize("kind", ["standard", "masked"])
@pytest.mark.parametrize(
    ("corruptions", "images"), [(["contrast", "brightness"], None), (["shot_noise"], 300)]
)
def test_the_center_has_the_accuracy_of_the_evaluation(runs, tmp_path, kind, corruptions, images):
    kept = measured(
        runs[kind],
        tmp_path,
        corruptions=corruptions,
        severities=[1],
        images=images,
        batchnorm=["kept"],
    )
    rows = killick.evaluate(
        runs[kind],
        suites=("clean", "corruptions"),
        corruptions=corruptions,
        severities=[1],
        references=1,
        limit=images,
        device="cpu",
        quiet=True,
    )
    wanted = [
        row["value"]
        for row in rows
        if row["metric"] == "top1" and row["corruption"] in corruptions and row["severity"] == 1
    ]
    assert len(wanted) == len(corruptions)
    center = kept.find(metric="top1", x=0.0, y=0.0)["value"]
    assert center == pytest.approx(np.mean(wanted), abs=1e-12)
    assert center > 0.2


def test_there_is_a_record_for_each_point_and_each_radius(runs, tmp_path):
    kept = measured(runs["masked"], tmp_path, draws=2)
    points = [r for r in kept.records if r["metric"] == "top1"]
    assert len(points) == 2 * 2 * 9
    assert points[0] | {"value": 0} == {
        "metric": "top1",
        "value": 0,
        "batchnorm": "kept",
        "draw": 0,
        "x": 0.0,
        "y": 0.0,
    }
    grids = {}
    for how in ("kept", "settled"):
        for draw in (0, 1):
            grid = arrange(kept.records, batchnorm=how, draw=draw)
            grids[how, draw] = grid
            assert grid.shape == (3, 3)
            for name, width in measure_widths(grid, 0.5, 0.1).items():
                record = kept.find(metric=name, batchnorm=how, draw=draw)
                assert (record["value"], record["cut"]) == (width.radius, int(width.cut))
    assert grids["kept", 0][1, 1] == grids["kept", 1][1, 1]
    assert not np.array_equal(grids["kept", 0], grids["kept", 1])
    assert not np.array_equal(grids["kept", 0], grids["settled", 0])


def test_an_interrupted_plane_goes_on_and_gives_the_same_records(runs, tmp_path, monkeypatch):
    whole = measured(runs["masked"], tmp_path / "whole").records
    asked: list[None] = []
    share = plane_of.compute_accuracy

    def interrupted(*given):
        asked.append(None)
        if len(asked) in (5, 14):
            raise KeyboardInterrupt
        return share(*given)

    monkeypatch.setattr(plane_of, "compute_accuracy", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measured(runs["masked"], tmp_path / "parts")
    found = measured(runs["masked"], tmp_path / "parts").records
    assert found == whole
    assert len(asked) == 18 + 2  # two points were begun twice
    assert measured(runs["masked"], tmp_path / "parts").records == whole
    assert len(asked) == 20
    weights = open_job(runs["masked"], "cpu").model.state_dict()
    again = killick.load(runs["masked"] / "model").state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_accuracy_does_not_depend_on_how_images_are_batched(runs):
    trained = open_job(runs["masked"], "cpu")
    images, labels = trained.load_test(230)  # two whole batches and a part
    with torch.no_grad():
        alone = [int(trained.model(image[None]).argmax()) for image in images]
    assert compute_accuracy(trained.model, images, labels) == np.mean(
        np.array(alone) == labels.numpy()
    )


# Findings


def cone(height: float, slope: float, points: int = 21, span: float = 1.0) -> dict:
    """Accuracies by place, falling evenly from the center down to chance."""
    return {
        (x, y): max(0.1, height - slope * math.hypot(x, y)) for x, y in order_points(points, span)
    }


def make_results(slopes: dict[str, list[float]], height: float = 0.8, **options) -> Results:
    """Cones of known slopes, one for each protocol and seed, as if they had been measured."""
    chosen = {"points": 21, "batchnorm": ["kept"], "protocols": list(slopes), **options}
    plan = make_plan(STUDY, "smoke", options=chosen)
    records = []
    for protocol, found in slopes.items():
        for seed, slope in enumerate(found):
            whose = {"arm": protocol, "protocol": protocol, "seed": seed}
            values = cone(height, slope)
            where = {"batchnorm": "kept", "draw": 0}
            points = [
                {"metric": "top1", "value": value, "x": x, "y": y, **where, **whose}
                for (x, y), value in values.items()
            ]
            records += points
            for name, width in measure_widths(arrange(points), 1.0, 0.1).items():
                value = {"metric": name, "value": width.radius, "cut": int(width.cut)}
                records.append({**value, **where, **whose})
    factors = {protocol: {"protocol": protocol} for protocol in slopes}
    return Results(plan, None, factors, tuple(records))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batchnorm": ["stale"]}, "batchnorm"),
        ({"span": 0}, "span"),
        ({"protocols": ["plain"]}, "protocol"),
        ({"images": 0}, "images"),
    ],
)
def test_planes_that_cannot_be_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        make_plan(STUDY, "smoke", options=options)


def test_the_radius_in_the_table_is_that_of_the_cone():
    results = make_results({"standard": [0.4, 0.401], "masked-label": [0.2, 0.2]})
    (table,) = STUDY.findings(results).tables
    rows = {row[0]: row for row in table.rows}
    assert rows["standard"][2] == "80.0 ± 0.0"
    assert rows["standard"][3] == "0.25 ± 0.00"
    assert rows["masked-label"][3] == "0.50 ± 0.00"
    assert rows["masked-label"][4] == "0.35 ± 0.00"  # 90 % of the way from chance
    assert rows["masked-label"][5].startswith("at least")  # 1.75, beyond the edge
    assert rows["masked-label"][6] == "+0.25 [+0.25, +0.26]"


def test_radii_and_planes_are_averaged_over_draws_of_directions():
    results = make_results({"standard": [0.4]})
    others = [
        {**r, "draw": 1, "value": r["value"] + (1 if r["metric"] in RADII else 0.02)}
        for r in results.measured
    ]
    both = replace(results, measured=(*results.measured, *others))
    (one,), (mean,) = (STUDY.findings(each).tables[0].rows for each in (results, both))
    assert float(mean[3]) == pytest.approx(float(one[3]) + 0.5)
    assert float(mean[2]) == pytest.approx(float(one[2]) + 1)
    assert mean[-1] == "0.71"  # the deviation of 0 and 1
    assert arrange(both.records())[10, 10] == pytest.approx(0.81)


@pytest.mark.slow
@pytest.mark.usefixtures("here", "few_shapes")
def test_a_study_from_training_to_the_report(tmp_path, monkeypatch):
    plan = make_plan(STUDY, "smoke", options={"protocols": ["standard", "masked-label"]})
    ran = run_study(plan, tmp_path, jobs=2, device="cpu", quiet=True)
    assert not ran.failed
    assert len(ran.findings.tables[0].rows) == 4
    assert "study-landscape-settled-masked-label" in ran.report.read_text()
    folders = [folder for folder in tmp_path.iterdir() if list(folder.glob("measured-*.jsonl"))]
    assert len(folders) == 2
    measuring = {"measure": STUDY.measure, **plan.measure_options}
    for folder in folders:
        assert len(read_measured(folder, measuring)) == 2 * (9 + len(RADII))

    def never(*given, **named):
        raise AssertionError("a finished job was measured again")

    monkeypatch.setattr(plane_of, "measure", never)
    again = run_study(plan, tmp_path, jobs=2, device="cpu", quiet=True)
    assert again.findings == ran.findings
