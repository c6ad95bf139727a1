"""Whether the spread over references ranks errors better than confidence, against plain loops."""

import math

import numpy as np
import pytest
from report_grid import grid_runs, make_grid

from killick.report.evaluations import LabeledPredictions, labeled_predictions
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS
from killick.report.sections.uncertainty import compare_rankings

IMAGES, COPIES = 120, 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = make_grid(tmp_path_factory.mktemp("grid"), seeds=(0,), n=12, ood_sets=())
    return make_report_data(grid_runs(folder))


def make_predictions(seed: int, skill: float) -> LabeledPredictions:
    """Images and copies of them; the higher `skill`, the better the spread knows the errors."""
    chance = np.random.default_rng(seed)
    hardness = np.tile(chance.normal(size=IMAGES), COPIES)
    correct = hardness + 0.7 * chance.normal(size=IMAGES * COPIES) < 0.6
    confidence = 1 / (1 + np.exp(hardness + chance.normal(size=IMAGES * COPIES)))
    spread = np.round(skill * ~correct + chance.normal(size=IMAGES * COPIES), 1)  # with ties
    return LabeledPredictions(confidence, correct, spread, np.tile(np.arange(IMAGES), COPIES))


def areas_of(run: LabeledPredictions, rows: np.ndarray) -> tuple[float, float]:
    """The share of pairs of an error and a correct prediction that are in order; of ties, half."""
    wrong, found = ~run.correct[rows], []
    for scores in (run.spread[rows], -run.confidence[rows]):
        gaps = scores[wrong][:, None] - scores[~wrong]
        found.append((gaps > 0).mean() + 0.5 * (gaps == 0).mean())
    return tuple(found)


def test_areas_are_exact_and_the_interval_is_that_of_redrawn_images():
    runs = [make_predictions(seed, 0.8) for seed in range(2)]
    spread, confidence = compare_rankings(runs)
    for seed, run in enumerate(runs):
        area, other = areas_of(run, np.arange(IMAGES * COPIES))
        assert spread.values[seed] == pytest.approx(area, abs=1e-12)
        assert confidence.values[seed] == pytest.approx(other, abs=1e-12)
    # Draw whole images with all their copies, the same for all seeds.
    chance, gaps = np.random.default_rng(9), []
    for _ in range(300):
        images = chance.integers(IMAGES, size=IMAGES)
        rows = np.concatenate([images + IMAGES * copy for copy in range(COPIES)])
        gaps.append(np.mean([np.subtract(*areas_of(run, rows)) for run in runs]))
    gap = spread.difference
    assert gap.value == pytest.approx(spread.mean - confidence.mean, abs=1e-12)
    assert gap.high - gap.value == pytest.approx(1.96 * np.std(gaps, ddof=1), rel=0.15)
    assert gap.value - gap.low == pytest.approx(gap.high - gap.value)
    assert math.isclose(gap.value, np.mean(gaps), abs_tol=0.02)


def test_five_seeds_have_an_interval_over_seeds():
    spread, _ = compare_rankings([make_predictions(seed, 0.8) for seed in range(5)])
    assert spread.difference.method == "paired t over 5 seeds"


@pytest.mark.parametrize(
    ("skill", "finding"), [(4.0, "yes"), (-4.0, "no, worse"), (1.2, "no significant difference")]
)
def test_the_finding_follows_the_interval(data, monkeypatch, skill, finding):
    def found(arm, suites, inference):
        assert inference == "marginal"
        return [make_predictions(0, skill)] if arm.name == "masked-label" else []

    monkeypatch.setattr("killick.report.sections.uncertainty.labeled_predictions", found)
    (table,) = SECTIONS.find("uncertainty").make(data).tables
    assert [row[:2] for row in table.rows] == [("masked-label", finding)]


def test_copies_of_an_image_have_its_number(data):
    arm = next(arm for arm in data.comparison.arms if arm.name == "masked-label")
    (run,) = labeled_predictions(arm, ("clean", "corruptions"), "marginal")
    assert np.array_equal(run.image, np.tile(np.arange(12), 10))  # clean, and 3 x 3 corrupted sets
