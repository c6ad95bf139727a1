from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import killick
from killick.core.anchored import anchored_in
from killick.errors import KillickError
from killick.results.measurements import Measured
from killick.runtime.progress import Display
from killick.studies.findings import Results
from killick.studies.inference import (
    MARGINAL,
    MEAN,
    SECONDS,
    SINGLE,
    STUDY,
    TOP1,
    TRANSDUCTIVE,
)
from killick.studies.inference import measure as measuring
from killick.studies.study import make_plan
from killick.studies.study_runner import run_study
from killick.studies.trained_job import corrupt_images, open_job
from killick.training.loop import train
from killick.training.recipe_files import load_recipe

pytestmark = pytest.mark.usefixtures("here", "few_shapes")

CPU = torch.device("cpu")
WORST, SHARE, DISTANCE = "worst_reference_top1", "largest_candidate_share", "residual_distance"
OPTIONS = {
    "corruptions": ["fog", "gaussian_noise"],
    "severities": [2],
    "images": 30,
    "draws": 3,
    "k": 3,
    "candidates": 6,
    "searched": 2,
    "bank": 40,
    "at_once": 8,  # does not divide the images
    "timed": 10,
    "repeats": 2,
}


def quiet(title, steps, done, what):
    return nullcontext(Display())


def measure(folder: Path, where: Path, **changes) -> list[dict]:
    options = {**OPTIONS, **changes}
    kept = Measured(where, options)
    measuring.measure(folder, options, kept, device=CPU, show=quiet)
    return kept.records


def trained_with(folder: Path, **settings) -> Path:
    common = {"data.limit": 40, "data.validation": 0, "epochs": 2, "batch": 20}
    protocol = {"protocol.name": "masked", "protocol.target": "label"}
    recipe = load_recipe("shapes-compare", {**common, **protocol, **settings})
    train(recipe, folder, device="cpu", quiet=True)
    return folder


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    return trained_with(tmp_path_factory.mktemp("job") / "run", seed=3)


@pytest.fixture(scope="module")
def records(job, tmp_path_factory) -> list[dict]:
    return measure(job, tmp_path_factory.mktemp("kept"))


def find(records: list[dict], **known) -> float:
    (value,) = [
        each["value"]
        for each in records
        if all(each.get(name) == wanted for name, wanted in known.items())
    ]
    return value


@torch.no_grad()
def predict_one_by_one(model, images, references) -> torch.Tensor:
    """`(references, n, classes)`, an image and a reference at a time."""
    return torch.stack(
        [torch.cat([model(x[None], r[None]) for x in images]) for r in references]
    ).double()


def set_up(job):
    trained = open_job(job, CPU)
    images, labels = trained.load_test(OPTIONS["images"])
    ways = measuring.draw_references(trained, OPTIONS)
    return trained, images, labels, ways


def test_one_reference_and_the_mean_of_several_are_those_of_a_slow_loop(job, records):
    trained, images, labels, ways = set_up(job)
    for name in OPTIONS["corruptions"]:
        corrupted, place = corrupt_images(images, name, 2), {"corruption": name, "severity": 2}
        for draw, candidates in enumerate(ways.draws):
            logits = predict_one_by_one(trained.model, corrupted, candidates[:3])
            right = (logits.argmax(-1) == labels).double().mean(1)
            mean = (logits.mean(0).argmax(-1) == labels).double().mean()
            known = {"draw": draw, **place}
            assert find(records, metric=TOP1, inference=SINGLE, **known) == right[0]
            assert find(records, metric=TOP1, inference=MARGINAL, **known) == mean
            assert find(records, metric=WORST, **known) == right.min()


def test_the_mean_image_is_that_of_all_training_images(job, records):
    trained, images, labels, ways = set_up(job)
    train_images = trained.parts.train.images()
    assert len(train_images) == 40
    mean = train_images.double().mean(0, keepdim=True).round().to(torch.uint8)
    assert torch.equal(ways.mean, mean)
    for name in OPTIONS["corruptions"]:
        corrupted = corrupt_images(images, name, 2)
        logits = predict_one_by_one(trained.model, corrupted, mean)[0]
        expected = (logits.argmax(-1) == labels).double().mean()
        assert find(records, inference=MEAN, metric=TOP1, corruption=name) == expected


def test_transduction_takes_the_candidate_whose_residual_is_nearest_to_training(job, records):
    trained, images, labels, ways = set_up(job)
    model = anchored_in(trained.model)
    bank = measuring.training_residuals(trained, OPTIONS["bank"]).double().flatten(1)
    assert len(bank) == 40
    corrupted = corrupt_images(images, "fog", 2)
    for draw in range(2):
        r = model.prepare(ways.draws[draw]).double().flatten(1)
        chosen, distances = [], []
        for x in model.prepare(corrupted).double().flatten(1):
            scores = [float((x - each - bank).square().sum(1).min().sqrt()) for each in r]
            chosen.append(min(range(len(r)), key=scores.__getitem__))
            distances.append(min(scores))
        logits = torch.stack(
            [
                predict_one_by_one(model, x[None], ways.draws[draw][i][None])[0, 0]
                for x, i in zip(corrupted, chosen, strict=True)
            ]
        )
        known = {"corruption": "fog", "draw": draw, "inference": TRANSDUCTIVE}
        right = (logits.argmax(-1) == labels).double().mean()
        assert find(records, metric=TOP1, **known) == right
        most = max(chosen.count(i) for i in set(chosen)) / len(chosen)
        assert find(records, metric=SHARE, **known) == pytest.approx(most)
        mean = sum(distances) / len(distances)
        assert find(records, metric=DISTANCE, **known) == pytest.approx(mean, rel=1e-5)
    assert not [each for each in records if each.get("draw") == 2 and each["metric"] == SHARE]


def test_accuracy_is_that_of_evaluate_with_the_same_stored_reference(job, records):
    trained, *_, ways = set_up(job)
    model = anchored_in(trained.model).set_references(ways.draws[1][:3])
    rows = killick.evaluate(
        model,
        "shapes",
        ["corruptions"],
        corruptions=["fog"],
        severities=[2],
        limit=30,
        references=3,
        quiet=True,
    )
    for inference in (SINGLE, MARGINAL):
        (value,) = [
            row["value"]
            for row in rows
            if (row["corruption"], row["severity"], row["inference"], row["metric"])
            == ("fog", 2, inference, "top1")
        ]
        known = {"corruption": "fog", "draw": 1, "metric": TOP1, "inference": inference}
        assert find(records, **known) == pytest.approx(value)


def test_draws_are_different_training_images_and_the_same_for_arms_of_a_seed(job, tmp_path):
    trained, *_, ways = set_up(job)
    pool = {each.numpy().tobytes() for each in trained.parts.train.images()}
    drawn = [[each.numpy().tobytes() for each in draw] for draw in ways.draws]
    assert all(len(set(draw)) == 6 and set(draw) <= pool for draw in drawn)
    assert drawn[0] != drawn[1] != drawn[2]
    other = trained_with(tmp_path / "other", seed=3, **{"protocol.name": "anchored", "epochs": 1})
    same = measuring.draw_references(open_job(other, CPU), OPTIONS)
    assert all(torch.equal(a, b) for a, b in zip(ways.draws, same.draws, strict=True))


def test_references_come_from_the_set_that_training_drew_them_from(tmp_path):
    settings = {"protocol.reference_set": 10, "protocol.stored": 10, "epochs": 1}
    trained = open_job(trained_with(tmp_path / "run", **settings), CPU)
    stored = {each.numpy().tobytes() for each in anchored_in(trained.model).references}
    ways = measuring.draw_references(trained, OPTIONS)
    assert {each.numpy().tobytes() for draw in ways.draws for each in draw} <= stored


def differences(model, images, references) -> torch.Tensor:
    x, r = (model.prepare(each).flatten(1).double() for each in (images, references))
    return x[:, None] - r[None]


@pytest.mark.parametrize("flip", [False, True])
def test_the_bank_holds_residuals_with_the_transforms_of_training(flip, tmp_path):
    settings = {"augment.crop": "none", "augment.flip": flip, "epochs": 1}
    trained = open_job(trained_with(tmp_path / "run", **settings), CPU)
    model, images = anchored_in(trained.model), trained.parts.train.images()
    bank = measuring.training_residuals(trained, 60).flatten(1).double()
    assert len(bank) == 60
    plain = differences(model, images, images).flatten(0, 1)
    flipped = differences(model, images.flip(-1), images).flatten(0, 1)
    near_plain, near_flipped = (torch.cdist(bank, each).amin(1) < 1e-2 for each in (plain, flipped))
    assert bool((near_plain | near_flipped).all())
    assert bool(near_plain.all()) is not flip
    # References are clean: a flipped reference under a plain image does not occur.
    assert bool(near_plain.any())


@pytest.mark.parametrize("change", [{"augment.erase": 1.0}, {"augment.mixup": 1.0}])
def test_residuals_of_training_within_the_batch_are_between_augmented_images(change, tmp_path):
    settings = {"protocol.references": "batch", "augment.crop": "none", "augment.flip": False}
    settings |= {"epochs": 1, **change}
    trained = open_job(trained_with(tmp_path / "run", **settings), CPU)
    model, images = anchored_in(trained.model), trained.parts.train.images()
    bank = measuring.training_residuals(trained, 60).flatten(1).double()
    assert len(bank) == 60
    plain = differences(model, images, images).flatten(0, 1)
    assert bool((torch.cdist(bank, plain).amin(1) > 1e-2).all())


def test_seconds_are_for_1000_images_and_the_best_of_the_turns(job, monkeypatch):
    trained, images, _, ways = set_up(job)
    clock, shown, predict = iter(range(10_000)), [], measuring.predict
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(clock) ** 2)
    monkeypatch.setattr(
        measuring, "predict", lambda model, x, *how: shown.append(len(x)) or predict(model, x, *how)
    )
    model = anchored_in(trained.model)
    model.set_residuals(measuring.training_residuals(trained, 40))
    times = measuring.time_all(model, images[:10], ways, OPTIONS)
    # The first turn warms up, with a look at the clock each; then the ways take turns.
    for place, each in enumerate(times):
        assert each["value"] == 100 * (2 * (4 + 2 * place) + 1)
    assert shown == 4 * [8] + 2 * 4 * [8, 2]


def test_an_interrupted_measurement_goes_on_with_the_next_set(job, records, tmp_path, monkeypatch):
    ask, seen = measuring.score_all, []

    def interrupted(*arguments):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(measuring, "score_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(job, tmp_path)
    found = measure(job, tmp_path)
    assert len(seen) == 3
    assert without_times(found) == without_times(records)
    assert measure(job, tmp_path) == found
    assert len(seen) == 3


def without_times(records: list[dict]) -> list[dict]:
    return [each for each in records if each["metric"] != SECONDS]


def test_records_that_a_kill_cut_off_are_not_kept_twice(job, records, tmp_path):
    kept = Measured(tmp_path, OPTIONS)
    fog = [each for each in records if each.get("corruption") == "fog"]
    kept.add(*fog[:4])
    found = measure(job, tmp_path)
    assert sorted(map(str, without_times(found))) == sorted(map(str, without_times(records)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocols": ["standard"]}, "anchored"),
        ({"severities": [6]}, "at most 5"),
        ({"draws": 0}, "draws"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(options, message):
    with pytest.raises(KillickError, match=message):
        make_plan(STUDY, "smoke", options=options)


def test_the_table_has_means_spreads_over_draws_and_differences():
    plan = make_plan(STUDY, "smoke", options={"protocols": ["anchored"]})
    accuracies = {SINGLE: [[0.1, 0.3], [0.5, 0.9]], MEAN: [[0.3], [0.8]]}  # by seed and draw
    records = [
        {"metric": TOP1, "protocol": "anchored", "inference": inference, "seed": seed}
        | {"draw": draw, "corruption": corruption, "value": value + shift}
        for inference, seeds in accuracies.items()
        for seed, draws in enumerate(seeds)
        for draw, value in enumerate(draws)
        for corruption, shift in (("fog", 0.01), ("snow", -0.01))
    ]
    factors = {"anchored": {"protocol": "anchored"}}
    (table,) = STUDY.findings(Results(plan, None, factors, tuple(records))).tables
    rows = {row[0]: row[1:4] for row in table.rows}
    assert rows["anchored, single"] == ("45.00 ± 35.36", "21.21 ± 10.00", "–")
    mean, spread, gap = rows["anchored, mean-image"]
    assert (mean, spread) == ("55.00 ± 35.36", "–")
    assert gap.startswith("+10.00")


@pytest.mark.slow
def test_the_smoke_size_runs_to_its_report(tmp_path):
    ran = run_study(make_plan(STUDY, "smoke"), tmp_path, device="cpu", quiet=True)
    assert ran.failed == []
    assert ran.report.exists()
    (table,) = ran.findings.tables
    rows = {row[0]: row for row in table.rows}
    assert len(rows) == 8
    assert rows["masked-label, single"][-2:] == ("53.49 ± 0.38", "2.24")
    assert len(ran.findings.figures[0].records) == 16
