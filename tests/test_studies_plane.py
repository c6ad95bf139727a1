import copy
import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import killick
from killick.core.anchored import Anchored
from killick.core.batchnorm import tracked_norms
from killick.results.measurements import Measured
from killick.runtime.progress import SilentDisplay
from killick.studies import plane as plane_of
from killick.studies.plane import (
    Plane,
    draw_direction,
    gather_inputs,
    gather_pictures,
    measure,
    order_points,
    share_right,
)
from killick.studies.trained import corrupt_all, open_trained
from killick.studies.width import arrange, measure_widths
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
    "pictures": 80,
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
    return nullcontext(SilentDisplay())


# Directions


@pytest.mark.parametrize("kind", ["standard", "masked"])
def test_each_filter_of_a_direction_is_as_long_as_that_of_the_weights(runs, kind):
    model = open_trained(runs[kind], "cpu").model
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        direction = draw_direction(weight, name, 0, 0, 0)
        for drawn, own in zip(direction, weight, strict=True):
            wanted = math.sqrt(sum(value**2 for value in own.flatten().tolist()))
            found = math.sqrt(sum(value**2 for value in drawn.flatten().tolist()))
            assert found == pytest.approx(wanted, rel=1e-5)


def test_a_pair_filter_counts_as_one_and_not_as_two_halves(runs):
    stem = open_trained(runs["masked"], "cpu").model.net.conv1.weight
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
def test_a_point_is_the_centre_and_so_much_of_each_direction(runs, kind):
    model = open_trained(runs[kind], "cpu").model
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
    model = open_trained(runs["masked"], "cpu").model
    before = copy.deepcopy(model.state_dict())
    plane = Plane(model, seed=0)
    plane.move(0.7, 0.1)
    plane.settle(gather_inputs(open_trained(runs["masked"], "cpu"), 50))
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
def test_settled_in_the_centre_is_near_to_what_the_network_had(runs, kind):
    trained = open_trained(runs[kind], "cpu")
    images, labels = gather_pictures(trained, ["brightness"], [1], None)
    plane = Plane(trained.model, seed=0)
    own = share_right(plane.model, images, labels)
    plane.settle(gather_inputs(trained, 400))
    centre = share_right(plane.model, images, labels)
    assert own > 0.3
    assert centre > own - 0.15
    if kind == "masked":  # settled when it was saved; the other's lag behind after so few steps
        assert centre == pytest.approx(own, abs=0.15)
    plane.move(0.5, 0.0)
    plane.settle(gather_inputs(trained, 400))
    there = share_right(plane.model, images, labels)
    stale = Plane(trained.model, seed=0)
    stale.move(0.5, 0.0)
    assert there != share_right(stale.model, images, labels)


def test_settling_is_what_killick_settle_does_on_the_same_unmasked_pairs(runs):
    trained = open_trained(runs["masked"], "cpu")
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
    trained = open_trained(runs["standard"], "cpu")
    inputs = gather_inputs(trained, 60)
    found = []
    for way in ([(0.2, 0.2)], [(1.0, -1.0), (0.2, 0.2)]):
        plane = Plane(trained.model, seed=0)
        for place in way:
            plane.move(*place)
            plane.settle(inputs)
        found.append(plane.model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


# Points and pictures


@given(half=st.integers(1, 12), span=st.floats(0.01, 4))
def test_points_go_outwards_from_the_exact_centre_and_none_is_left_out(half, span):
    found = order_points(2 * half + 1, span)
    assert found[0] == (0.0, 0.0)
    assert len(set(found)) == (2 * half + 1) ** 2
    assert {(-x, y) for x, y in found} == {(x, -y) for x, y in found} == set(found)
    assert max(x for x, _ in found) == span
    distances = [x * x + y * y for x, y in found]
    assert all(b >= a - 1e-9 * span**2 for a, b in zip(distances, distances[1:], strict=False))


@pytest.mark.parametrize(("count", "rounds"), [(50, 1), (360, 1), (700, 2)])
def test_few_pictures_are_shared_out_evenly(runs, monkeypatch, count, rounds):
    trained = open_trained(runs["standard"], "cpu")
    taken: list[tuple[str, int, int]] = []

    def note(images, names, severities):
        (name,), (severity,) = names, severities
        taken.extend((name, severity, int(image.sum() * 1000 + image.argmax())) for image in images)
        return corrupt_all(images, names, severities)

    monkeypatch.setattr(plane_of, "corrupt_all", note)
    images, labels = gather_pictures(trained, ["fog", "contrast"], [1, 3], count)
    assert len(images) == len(labels) == len(taken) == count
    kinds = [taken_of[:2] for taken_of in taken]
    shares = [kinds.count(kind) for kind in set(kinds)]
    assert len(shares) == 4
    assert max(shares) - min(shares) <= 1 + rounds
    assert len(set(taken)) == count  # none twice under the same corruption
    pictures = [taken_of[2] for taken_of in taken]
    clean, own = trained.test(count)
    known = {int(x.sum() * 1000 + x.argmax()): int(y) for x, y in zip(clean, own, strict=True)}
    assert labels.tolist() == [known[picture] for picture in pictures]
    assert max(pictures.count(each) for each in set(pictures)) == rounds


def test_all_pictures_are_those_of_the_evaluation(runs):
    trained = open_trained(runs["standard"], "cpu")
    images, labels = gather_pictures(trained, ["fog", "gaussian_noise"], [2], None)
    clean, wanted = trained.test()
    made = torch.cat([each.images for each in corrupt_all(clean, ["fog", "gaussian_noise"], [2])])
    assert torch.equal(images, made)
    assert torch.equal(labels, wanted.repeat(2))


def test_by_default_all_common_corruptions_are_there(runs, monkeypatch):
    names = []

    def note(images, kinds, severities):
        names.extend(kinds)
        return corrupt_all(images, ["fog"], severities)

    monkeypatch.setattr(plane_of, "corrupt_all", note)
    gather_pictures(open_trained(runs["standard"], "cpu"), None, [1], 40)
    assert len(set(names)) == len(names) == 19


def test_statistics_come_from_unmasked_pairs_of_training_pictures(runs):
    trained = open_trained(runs["masked"], "cpu")
    (batch,) = gather_inputs(trained, 60)
    images, references = batch
    own = {bytes(image.numpy()) for image in trained.show(trained.parts.train)}
    assert len(images) == 60
    assert {bytes(image.numpy()) for image in images} <= own
    assert {bytes(r.numpy()) for r in references} == {bytes(image.numpy()) for image in images}
    assert not any(torch.equal(x, r) for x, r in zip(images, references, strict=True))
    (alone,) = gather_inputs(open_trained(runs["standard"], "cpu"), 60)
    assert len(alone) == 1


# Measuring


@pytest.mark.parametrize("kind", ["standard", "masked"])
@pytest.mark.parametrize(
    ("corruptions", "pictures"), [(["contrast", "brightness"], None), (["shot_noise"], 300)]
)
def test_the_centre_has_the_accuracy_of_the_evaluation(runs, tmp_path, kind, corruptions, pictures):
    kept = measured(
        runs[kind],
        tmp_path,
        corruptions=corruptions,
        severities=[1],
        pictures=pictures,
        batchnorm=["kept"],
    )
    rows = killick.evaluate(
        runs[kind],
        suites=("clean", "corruptions"),
        corruptions=corruptions,
        severities=[1],
        references=1,
        limit=pictures,
        device="cpu",
        quiet=True,
    )
    wanted = [
        row["value"]
        for row in rows
        if row["metric"] == "top1" and row["corruption"] in corruptions and row["severity"] == 1
    ]
    assert len(wanted) == len(corruptions)
    centre = kept.find(metric="top1", x=0.0, y=0.0)["value"]
    assert centre == pytest.approx(np.mean(wanted), abs=1e-12)
    assert centre > 0.2


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
    share = plane_of.share_right

    def interrupted(*given):
        asked.append(None)
        if len(asked) in (5, 14):
            raise KeyboardInterrupt
        return share(*given)

    monkeypatch.setattr(plane_of, "share_right", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measured(runs["masked"], tmp_path / "parts")
    found = measured(runs["masked"], tmp_path / "parts").records
    assert found == whole
    assert len(asked) == 18 + 2  # two points were begun twice
    assert measured(runs["masked"], tmp_path / "parts").records == whole
    assert len(asked) == 20
    weights = open_trained(runs["masked"], "cpu").model.state_dict()
    again = killick.load(runs["masked"] / "model").state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_progress_is_told_point_by_point(runs, tmp_path):
    told = []

    class Display(SilentDisplay):
        def update(self, done, text, *, line=False):
            told.append((done, text))

    def show(*begun):
        told.append(begun)
        return nullcontext(Display())

    options = {**ASKED, "batchnorm": ["kept"]}
    kept = Measured(tmp_path, options)
    measure(runs["standard"], options, kept, device=CPU, show=show)
    assert told[0] == ("plane around standard", 9, 0, "point")
    assert [step for step, _ in told[1:]] == list(range(1, 10))
    assert told[1][1] == f"top-1 {100 * kept.records[0]['value']:.1f} %"


def test_accuracy_does_not_depend_on_how_pictures_are_batched(runs):
    trained = open_trained(runs["masked"], "cpu")
    assert isinstance(trained.model, Anchored)
    images, labels = trained.test(230)  # two whole batches and a part
    with torch.no_grad():
        alone = [int(trained.model(image[None]).argmax()) for image in images]
    assert share_right(trained.model, images, labels) == np.mean(np.array(alone) == labels.numpy())
