"""The suite `conformal`: scores, quantiles and sets against loops, and the coverage they promise."""

import math

import pytest
import torch
from small_models import find, make_set, make_standard

import killick
from killick.errors import OptionError
from killick.metrics import conformal_quantile, conformal_scores
from killick.metrics.conformal import METHODS


def slow_scores(logits, method, u):
    """The score of each class of one image, from the formulas."""
    numbers = logits.detach().double().tolist()
    values = [math.exp(z - max(numbers)) for z in numbers]
    probs = [value / sum(values) for value in values]
    scores = []
    for own, p in enumerate(probs):
        before = [q for other, q in enumerate(probs) if q > p or (q == p and other < own)]
        score = sum(before) + u * p
        if method == "raps":
            score += 0.01 * max(0, len(before) + 1 - 5)
        scores.append(1 - p if method == "thr" else score)
    return scores


def slow_quantile(scores):
    """The lowest score that at least ceil(0.9 (n + 1)) scores are up to."""
    needed = -(-9 * (len(scores) + 1) // 10)
    fits = [q for q in scores if sum(score <= q for score in scores) >= needed]
    return min(fits, default=math.inf)


def make_logits(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of ten classes, some of them equal, labels drawn from other logits, and numbers."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 10, generator=generator).mul(3).round() / 2
    other = logits + torch.randn(n, 10, generator=generator)
    labels = torch.multinomial(other.softmax(1), 1, generator=generator)[:, 0]
    return logits, labels, torch.rand(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_a_loop(method):
    logits, _, uniform = make_logits(40)
    found = conformal_scores(logits, method, uniform)
    expected = [slow_scores(row, method, float(u)) for row, u in zip(logits, uniform, strict=True)]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12)
    members = torch.stack([logits, logits.flip(1)])
    assert torch.equal(conformal_scores(members, method, uniform)[0], found)


def test_an_unknown_method_is_named():
    logits, _, uniform = make_logits(4)
    with pytest.raises(OptionError, match="'raps'"):
        conformal_scores(logits, "rap", uniform)


def test_the_quantile_counts_the_test_image_too():
    for n in range(1, 131):
        scores = torch.randn(n, generator=torch.Generator().manual_seed(n)).double()
        assert conformal_quantile(scores) == slow_quantile(scores.tolist()), n


@pytest.mark.parametrize("method", METHODS)
def test_sets_cover_what_they_promise(method):
    """The mean coverage over calibration sets of 99 is 0.9 for continuous scores."""
    repeats, n = 400, 99
    logits, labels, uniform = make_logits(2 * n * repeats, seed=3)
    logits = logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    scores = conformal_scores(logits, method, uniform).gather(1, labels[:, None])[:, 0]
    covered = [
        (scores[at + n : at + 2 * n] <= conformal_quantile(scores[at : at + n])).double().mean()
        for at in range(0, len(scores), 2 * n)
    ]
    # Of one repeat: a beta distribution of the coverage, and n draws from it.
    variance = 0.9 * 0.1 * (1 / n + 1 / (n + 2))
    assert abs(torch.stack(covered).mean() - 0.9) < 4 * math.sqrt(variance / repeats)


def uniforms(what: str, count: int, seed: int) -> torch.Tensor:
    from killick.evaluation.image_blocks import block_generator

    generator = block_generator(seed, f"conformal {what}", 0, 0, torch.device("cpu"))
    return torch.rand(count, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("batch", [None, 7])
def test_rows_are_those_of_a_loop(batch):
    model, data, held = make_standard(), make_set(), make_set(260, seed=9)
    options = {"corruptions": ["contrast"], "severities": [5], "validation": held, "seed": 3}
    suites = ("conformal", "corruptions")
    rows = killick.evaluate(model, data, suites, batch=batch, **options)
    dark = killick.corrupt(data.images(), "contrast", 5, table="cifar")
    for method in METHODS:
        drawn = uniforms("validation colours", 260, 3)
        quantile = slow_quantile(
            [
                slow_scores(row, method, float(u))[int(label)]
                for row, label, u in zip(model(held.images()), held.labels, drawn, strict=True)
            ]
        )
        for images, what in (
            (data.images(), {"suite": "clean"}),
            (dark, {"corruption": "contrast", "mean_of": ""}),
        ):
            title = "corruptions contrast 5" if "corruption" in what else "clean colours"
            drawn = uniforms(title, 300, 3)
            sets = [
                [score <= quantile + 1e-9 for score in slow_scores(row, method, float(u))]
                for row, u in zip(model(images), drawn, strict=True)
            ]
            covered = sum(own[int(k)] for own, k in zip(sets, data.labels, strict=True))
            row = find(rows, f"conformal_{method}_coverage", **what)
            assert row["value"] == pytest.approx(covered / 300, abs=4e-3)
            assert row["fitted_on"].startswith("colours (260, ")
            row = find(rows, f"conformal_{method}_size", **what)
            assert row["value"] == pytest.approx(sum(map(sum, sets)) / 300, abs=4e-3)


def test_without_validation_images_there_are_no_sets(capsys):
    rows = killick.evaluate(make_standard(), make_set(), ("conformal",), quiet=False)
    assert not [row for row in rows if row["metric"].startswith("conformal")]
    assert "conformal is left out: it requires --validation DATA" in "".join(capsys.readouterr())
