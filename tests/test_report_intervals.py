"""Intervals: Student's against scipy, the bootstrap against slow loops, and how often they hold."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from killick import metrics
from killick.report import bootstrap as resampling
from killick.report.bootstrap import (
    BootstrapDraws,
    areas,
    false_rates,
    images_of,
    smooth_errors,
)
from killick.report.conditions import Condition
from killick.report.intervals import bootstrap_interval, no_interval, t_interval
from killick.results.predictions import Predictions

CLEAN = {"suite": "clean", "set": "shapes", "images": "abc", "corruption": "", "severity": ""}
FOG = {**CLEAN, "suite": "corruptions", "corruption": "fog", "severity": 3}
NOISE = {**CLEAN, "suite": "ood", "set": "noise"}


def make_predictions(about, n=40, seed=0, labels=True, marginal=False):
    """Predictions of a model that is right in three of four cases."""
    chance = np.random.default_rng(seed)

    def one():
        values = {
            "confidence": chance.uniform(0.3, 1, n).astype(np.float32),
            "energy": chance.normal(0, 1, n).round(1).astype(np.float32),  # some are equal
        }
        if labels:
            values["label"] = np.arange(n) % 5
            values["correct"] = chance.uniform(size=n) < 0.75
            values["nll"] = chance.exponential(1, n).astype(np.float32)
        return values

    return Predictions(about, one(), one() if marginal else {})


def resample(sets, draws):
    """Resampled values by condition."""
    errors = {
        resampling._condition(each, inference, "smooth_ece"): metrics.smooth_ece(
            torch.tensor(values["confidence"]), torch.tensor(values["correct"])
        )
        for each in sets
        for inference, values in resampling._by_inference(each)
        if "correct" in values and each.count
    }
    found = resampling.resample(sets, draws, errors)
    return {condition: each.values for condition, each in found.items()}


def reflected_error(confidence, residuals, weights, bandwidth, points=4001):
    """The smooth calibration error by its definition: a sum over images at each of many points."""
    places = np.linspace(0, 1, points)
    curve = np.zeros(points)
    for c, r, w in zip(confidence, residuals, weights, strict=True):
        for mirror in range(-3, 4):
            for centre in (2 * mirror + c, 2 * mirror - c):
                curve += w * r * stats.norm.pdf(places, centre, bandwidth)
    return np.trapezoid(np.abs(curve), places)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.integers(0, 99))
def test_the_interval_over_seeds_is_that_of_students_paired_test(ours, seed):
    theirs = np.random.default_rng(seed).normal(size=len(ours))
    found = t_interval((np.array(ours) - theirs).tolist())
    wanted = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert found.value == pytest.approx(np.mean(np.array(ours) - theirs))
    assert found.method == f"paired t over {len(ours)} seeds"


def test_the_bootstrap_interval_is_centred_and_says_how_it_was_found():
    found = bootstrap_interval([0.5], torch.tensor([1.0, 2.0, 3.0]), 10_000)
    assert (found.low, found.high) == pytest.approx((0.5 - 1.96, 0.5 + 1.96))
    assert (
        found.method == "paired bootstrap over 10,000 images, 1 seed; other seeds may differ more"
    )


def test_a_difference_is_significant_only_where_its_interval_excludes_0():
    def around(value):
        return bootstrap_interval([value], torch.tensor([1.0, 2.0, 3.0]), 100)

    assert around(2.0).significant
    assert around(-2.0).significant
    assert not around(1.9).significant
    assert not around(-1.9).significant
    assert not no_interval(5.0, "one seed, no interval").significant
    assert not bootstrap_interval([0.0], torch.zeros(9), 100).significant


def test_few_images_have_no_interval():
    found = bootstrap_interval([2.0], torch.tensor([1.0, 2.0, 3.0]), 29)
    assert (found.low, found.high, found.significant) == (None, None, False)


def test_each_draw_takes_as_many_images_as_there_are_and_all_alike_often():
    counts = BootstrapDraws(2000).counts("abc", 50).double()
    assert counts.shape == (2000, 50)
    assert (counts.sum(1) == 50).all()
    assert_close(counts.mean(0), torch.ones(50).double(), atol=0.11, rtol=0)  # five deviations
    assert counts.var().item() == pytest.approx(1 - 1 / 50, rel=0.05)
    assert torch.corrcoef(counts.T).triu(1).abs().max() < 0.12  # -1 / 50 between any two


def test_the_same_images_get_the_same_draws_and_others_their_own():
    draws = BootstrapDraws(100)
    assert torch.equal(draws.counts("abc", 30), BootstrapDraws(100).counts("abc", 30))
    assert not torch.equal(draws.counts("abc", 30), draws.counts("abd", 30))
    assert not torch.equal(draws.counts("abc", 30), BootstrapDraws(100, seed=1).counts("abc", 30))
    ours, theirs = draws.counts("abc", 30).double(), draws.counts("abd", 30).double()
    assert abs(np.corrcoef(ours.flatten(), theirs.flatten())[0, 1]) < 0.1


@given(st.integers(0, 999), st.sampled_from([0.002, 0.01, 0.05, 0.2, 0.7]))
def test_with_each_image_once_the_smooth_error_is_that_of_the_metrics(seed, bandwidth):
    chance = np.random.default_rng(seed)
    confidence = torch.from_numpy(chance.uniform(0.1, 1, 60)).round(decimals=2)
    correct = torch.from_numpy(chance.uniform(size=60) < 0.6)
    weights = torch.full((1, 60), 1 / 60)
    found = smooth_errors(confidence, confidence - correct.double(), bandwidth, weights)
    wanted = metrics.smooth_ece(confidence, correct, bandwidth)
    assert found.item() == pytest.approx(wanted, rel=0.01, abs=1e-4)


def test_a_model_that_is_always_right_and_sure_has_no_error_in_any_resample():
    weights = BootstrapDraws(5).counts("abc", 8).float() / 8
    found = smooth_errors(torch.ones(8).double(), torch.zeros(8).double(), 0.01, weights)
    assert torch.equal(found, torch.zeros(5).double())


@pytest.mark.parametrize("inference", ["single", "marginal"])
@pytest.mark.parametrize("about", [CLEAN, FOG], ids=["clean", "fog"])
def test_resampled_numbers_are_those_of_sets_made_image_by_image(inference, about):
    predictions, draws = make_predictions(about, marginal=True), BootstrapDraws(6)
    found = resample([predictions], draws)
    key = (about["suite"], "", about["corruption"], about["severity"] or 0)
    values = getattr(predictions, inference)
    confidence, correct = values["confidence"].astype(float), values["correct"].astype(float)
    error = metrics.smooth_ece(torch.tensor(confidence), torch.tensor(values["correct"]))
    bandwidth = math.ceil(1024 * error) / 1024
    for line, count in enumerate(draws.counts(images_of(predictions)[-1], 40).tolist()):
        taken = [i for i, times in enumerate(count) for _ in range(times)]
        for metric, wanted in {
            "top1": np.mean([correct[i] for i in taken]),
            "nll": np.mean([float(values["nll"][i]) for i in taken]),
            "smooth_ece": reflected_error(
                confidence, confidence - correct, np.array(count) / 40, bandwidth
            ),
        }.items():
            assert found[Condition(inference, metric, *key)][line].item() == pytest.approx(
                wanted, rel=2e-3 if metric == "smooth_ece" else 1e-5
            )


def test_all_sets_of_the_same_labels_share_their_draws_whatever_the_files_digest():
    clean, draws = make_predictions(CLEAN), BootstrapDraws(30)
    fog = Predictions({**FOG, "images": "of a file"}, clean.single)
    found = resample([clean, fog], draws)
    key = Condition("single", "top1", "clean")
    assert torch.equal(found[key], found[Condition("single", "top1", "corruptions", "", "fog", 3)])
    # Other labels, other images.
    moved = {**clean.single, "label": np.roll(clean.single["label"], 1)}
    other = resample([Predictions(CLEAN, moved)], draws)
    assert not torch.equal(found[key], other[key])


def test_an_area_is_linear_in_the_draws_and_close_to_that_of_the_drawn_images():
    chance = np.random.default_rng(0)
    ours, theirs = chance.normal(0, 1, 300).round(1), chance.normal(1, 1, 200).round(1)
    draws = BootstrapDraws(30)
    inside, outside = draws.counts("in", 300), draws.counts("out", 200)
    found = areas(ours, theirs, inside, outside)
    whole = metrics.auroc(torch.tensor(ours), torch.tensor(theirs))
    for line in range(30):
        mine = np.repeat(ours, inside[line])
        others = np.repeat(theirs, outside[line])
        exact = metrics.auroc(torch.tensor(mine), torch.tensor(others))
        one_side = metrics.auroc(torch.tensor(mine), torch.tensor(theirs))
        other_side = metrics.auroc(torch.tensor(ours), torch.tensor(others))
        assert found[line].item() == pytest.approx(one_side + other_side - whole, abs=1e-6)
        assert found[line].item() == pytest.approx(exact, abs=0.004)


@given(st.integers(0, 999), st.integers(1, 60), st.integers(1, 60))
def test_a_false_rate_is_that_of_the_drawn_images(seed, n, m):
    chance = np.random.default_rng(seed)
    ours, theirs = chance.normal(0, 1, n).round(1), chance.normal(1, 1, m).round(1)
    draws = BootstrapDraws(8)
    inside, outside = draws.counts("in", n), draws.counts("out", m)
    wanted = [
        metrics.fpr_at_tpr_in(
            torch.tensor(np.repeat(ours, inside[line])),
            torch.tensor(np.repeat(theirs, outside[line])),
        )
        for line in range(8)
    ]
    assert_close(false_rates(ours, theirs, inside, outside), torch.tensor(wanted).double())


def test_the_clean_and_the_ood_images_are_drawn_independently():
    """Also where the OOD ones were made from the test images, so that digests are equal."""
    clean = make_predictions(CLEAN, n=300)
    noise = Predictions(NOISE, {name: clean.single[name] for name in ("confidence", "energy")})
    found = resample([clean, noise], BootstrapDraws(400))
    area = found[Condition("single", "auroc", "ood", "noise")]
    assert area.mean().item() == pytest.approx(0.5, abs=0.005)
    assert area.std().item() == pytest.approx(math.sqrt(1 / 12 * 2 / 300), rel=0.15)


def test_detection_needs_the_clean_set_and_the_mean_over_references_of_both():
    clean, noise = (
        make_predictions(CLEAN, marginal=True),
        make_predictions(NOISE, labels=False, seed=1),
    )
    assert not resample([noise], BootstrapDraws(5))
    found = resample([clean, noise], BootstrapDraws(5))
    assert Condition("single", "auroc", "ood", "noise") in found
    assert Condition("marginal", "auroc", "ood", "noise") not in found


def test_working_on_some_draws_at_a_time_changes_nothing(monkeypatch):
    sets = [
        make_predictions(CLEAN, marginal=True),
        make_predictions(NOISE, labels=False, marginal=True),
    ]
    draws = BootstrapDraws(25)
    whole = resample(sets, draws)
    monkeypatch.setattr(resampling, "_ENTRIES", 7 * 40)
    parts = resample(sets, draws)
    assert whole.keys() == parts.keys()
    for condition, values in whole.items():
        assert_close(parts[condition], values, rtol=1e-5, atol=1e-7)
    counts = BootstrapDraws(25).counts("abc", 40)
    assert (counts.int().sum(1) == 40).all()
    assert len({tuple(line) for line in counts.tolist()}) == 25


def test_predictions_for_no_images_are_left_alone():
    empty = make_predictions(CLEAN, n=0)
    noise = make_predictions(NOISE, labels=False)
    assert not resample([empty, noise], BootstrapDraws(5))
    assert not resample([], BootstrapDraws(5))


# How often intervals hold what they promise: known differences, measured on many small sets.


def simulate(chance, n, base_skill, skill, sharpness, shared):
    """Confidence and correctness of two models, which are right on much the same images."""
    common = chance.normal(size=n)
    found = []
    for level in (base_skill, skill):
        margin = level + math.sqrt(shared) * common + math.sqrt(1 - shared) * chance.normal(size=n)
        probability = 1 / (1 + np.exp(-2 * margin))
        # Told with too much sureness; an image is right with its true probability.
        confidence = 1 / (1 + np.exp(-2 * sharpness * margin))
        confidence = 0.5 + np.abs(confidence - 0.5)
        certain = np.maximum(probability, 1 - probability)
        found.append((confidence, chance.uniform(size=n) < certain))
    return found


def as_predictions(confidence, correct):
    values = {"confidence": confidence.astype(np.float32), "correct": correct}
    values["label"] = np.arange(len(correct)) % 7
    values["nll"] = np.zeros(len(correct), dtype=np.float32)
    return Predictions(CLEAN, values)


def share_covered(metric, truth, measure, n=300, trials=120):
    covered = 0
    condition, draws = Condition("single", metric, "clean"), BootstrapDraws(200)
    for trial in range(trials):
        pair = simulate(np.random.default_rng(trial), n, 0.3, 0.6, 1.6, 0.7)
        theirs, ours = (resample([as_predictions(*one)], draws)[condition] for one in pair)
        value = measure(*pair[1]) - measure(*pair[0])
        interval = bootstrap_interval([value], ours - theirs, n)
        covered += interval.low <= truth <= interval.high
    return covered / trials


def smooth_error(confidence, correct):
    return metrics.smooth_ece(torch.tensor(confidence), torch.tensor(correct))


def test_the_interval_of_an_accuracy_holds_the_truth_19_times_in_20():
    large = simulate(np.random.default_rng(10**6), 500_000, 0.3, 0.6, 1.6, 0.7)
    truth = large[1][1].mean() - large[0][1].mean()
    covered = share_covered("top1", truth, lambda _, correct: correct.mean())
    assert 0.89 <= covered <= 0.99


def test_the_interval_of_a_calibration_error_holds_the_truth_19_times_in_20():
    large = simulate(np.random.default_rng(10**6), 500_000, 0.3, 0.6, 1.6, 0.7)
    truth = smooth_error(*large[1]) - smooth_error(*large[0])
    assert 0.86 <= share_covered("smooth_ece", truth, smooth_error) <= 0.99


def test_the_interval_of_an_area_holds_the_truth_19_times_in_20():
    """Two scores of the same images, with areas of a known difference."""
    truth = stats.norm.cdf(1.5 / math.sqrt(2)) - stats.norm.cdf(1.0 / math.sqrt(2))
    covered, draws = 0, BootstrapDraws(200)
    counts = draws.counts("in", 200), draws.counts("out", 150)
    for trial in range(120):
        chance = np.random.default_rng(trial)
        mine, others = chance.normal(size=200), chance.normal(size=150)
        both = []
        for shift in (1.0, 1.5):
            ours = 0.8 * mine + 0.6 * chance.normal(size=200)
            theirs = shift + 0.8 * others + 0.6 * chance.normal(size=150)
            value = metrics.auroc(torch.tensor(ours), torch.tensor(theirs))
            both.append(SimpleNamespace(value=value, drawn=areas(ours, theirs, *counts)))
        base, arm = both
        interval = bootstrap_interval([arm.value - base.value], arm.drawn - base.drawn, 200)
        covered += interval.low <= truth <= interval.high
    assert 0.89 <= covered / 120 <= 0.99


def test_pairing_makes_intervals_narrower_where_models_fail_on_the_same_images():
    draws, other = BootstrapDraws(300), BootstrapDraws(300, seed=1)
    base, arm = simulate(np.random.default_rng(0), 400, 0.3, 0.4, 1.6, 0.95)
    for metric in ("top1", "smooth_ece"):
        condition = Condition("single", metric, "clean")
        ours = resample([as_predictions(*arm)], draws)[condition]
        paired, apart = (
            bootstrap_interval(
                [0.0], ours - resample([as_predictions(*base)], d)[condition], 400
            ).high
            for d in (draws, other)
        )
        assert paired < 0.98 * apart, metric


def test_the_variance_over_images_is_added_to_that_over_seeds():
    differences = [0.01, 0.03, 0.02, 0.05, 0.04]
    resampled = 0.03 + 0.02 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = t_interval(differences, resampled, 400)
    seeds = np.var(differences, ddof=1) / 5
    images = np.var(resampled.double().numpy(), ddof=1)
    reach = stats.t.ppf(0.975, 4) * np.sqrt(seeds + images)
    assert (found.low, found.high) == pytest.approx((0.03 - reach, 0.03 + reach))
    assert "400 images" in found.method
    assert t_interval(differences, resampled, 20) == t_interval(differences)  # too few images
