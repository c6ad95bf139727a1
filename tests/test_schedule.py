"""Learning rates: torch's own schedulers, step by step, with all times as shares of the budget."""

import itertools
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)

from killick.training.optimizers import learning_rate
from killick.training.recipe import Schedule

WARM_UPS = [(0.0, 0.01), (0.1, 0.01), (0.1, 0.0), (0.25, 0.033), (0.1, 1.0)]


def rates(steps: int, **settings) -> list[float]:
    return [learning_rate(step, steps, 0.3, Schedule(**settings)) for step in range(steps)]


def scheduler_rates(steps: int, warm: int, start: float, after) -> list[float]:
    """Of torch: a linear warm-up, then the scheduler that `after` makes of an optimizer."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler: LRScheduler
    if warm == 0:
        scheduler = after(optimizer)
    else:
        parts = [_linear(optimizer, start, warm), after(optimizer)]
        scheduler = SequentialLR(optimizer, parts, milestones=[warm])
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls its parts in a way torch dislikes
            scheduler.step()
    return found


def _linear(optimizer: torch.optim.Optimizer, start: float, warm: int) -> LinearLR:
    # torch refuses to start at zero; nearly zero is no different to the test.
    return LinearLR(optimizer, start_factor=max(start, 1e-12), total_iters=warm)


@pytest.mark.parametrize("steps", [40, 100])
@pytest.mark.parametrize(("warmup", "start"), WARM_UPS)
@pytest.mark.parametrize("final", [0.0, 0.05, 1.0])
def test_cosine_is_torchs_after_a_linear_warm_up(steps, warmup, start, final):
    warm = round(warmup * steps)
    expected = scheduler_rates(
        steps, warm, start, lambda o: CosineAnnealingLR(o, steps - warm, eta_min=0.3 * final)
    )
    found = rates(steps, name="cosine", warmup=warmup, warmup_start=start, final=final)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("steps", [40, 100])
@pytest.mark.parametrize(("warmup", "start"), WARM_UPS)
@pytest.mark.parametrize("gamma", [0.1, 0.2, 1.0])
@pytest.mark.parametrize("shares", [[0.3, 0.6, 0.8], [0.5], [0.5, 0.5], []])
def test_multistep_is_torchs_after_a_linear_warm_up(steps, warmup, start, gamma, shares):
    warm, places = round(warmup * steps), [round(share * steps) for share in shares]
    after = [place - warm for place in places]  # torch counts from the end of the warm-up
    expected = scheduler_rates(steps, warm, start, lambda o: MultiStepLR(o, after, gamma))
    found = rates(
        steps, name="multistep", warmup=warmup, warmup_start=start, milestones=shares, gamma=gamma
    )
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("warmup", "start"), WARM_UPS)
def test_constant_stays_after_a_linear_warm_up(warmup, start):
    expected = scheduler_rates(40, round(40 * warmup), start, lambda o: ConstantLR(o, 1.0))
    found = rates(40, name="constant", warmup=warmup, warmup_start=start)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["constant", "multistep", "cosine"])
@pytest.mark.parametrize("factor", [3, 10])
def test_a_longer_run_is_a_stretched_shorter_one(name, factor):
    settings = {"name": name, "warmup": 0.1, "milestones": [0.3, 0.6, 0.8], "final": 0.02}
    short, long = rates(50, **settings), rates(50 * factor, **settings)
    assert long[::factor] == pytest.approx(short, rel=1e-12)


@pytest.mark.parametrize("steps", [10, 200, 78_000])
def test_milestones_are_shares_of_the_whole_budget(steps):
    settings = {"name": "multistep", "milestones": [0.3, 0.6, 0.8], "gamma": 0.2, "warmup": 0.1}
    falls = [s for s, (a, b) in enumerate(itertools.pairwise(rates(steps, **settings)), 1) if b < a]
    assert falls == [round(0.3 * steps), round(0.6 * steps), round(0.8 * steps)]


def test_the_warm_up_reaches_the_full_rate_when_it_ends():
    found = rates(100, name="cosine", warmup=0.2, warmup_start=0.1)
    assert found[0] == pytest.approx(0.03)
    assert found[20] == max(found) == 0.3
    assert all(a < b for a, b in itertools.pairwise(found[:21]))


@pytest.mark.parametrize("name", ["constant", "multistep", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.3, 0.99])
def test_runs_of_a_few_steps_have_rates_too(name, warmup):
    for steps in (1, 2, 3):
        assert all(0 <= rate <= 0.3 for rate in rates(steps, name=name, warmup=warmup))
