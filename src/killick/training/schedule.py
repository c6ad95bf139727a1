"""The learning rate of each step."""

import math

from killick.training.recipe import Schedule


def learning_rate(step: int, steps: int, lr: float, schedule: Schedule) -> float:
    """Of step `step`, counted from 0, of a run of `steps`.

    A warm-up rises linearly from `warmup_start`; what comes after it has the rest of the budget.
    Milestones are shares of the whole budget. A run may take a part of a schedule, from `begin` to
    `end`: two runs, one after the other, then follow it as one.

    Example:
        >>> settings = Schedule(name="multistep", milestones=[0.3, 0.6, 0.8], gamma=0.2)
        >>> [round(learning_rate(s, 200, 0.1, settings), 5) for s in (0, 59, 60, 120, 199)]
        [0.1, 0.1, 0.02, 0.004, 0.0008]
    """
    whole = steps / (schedule.end - schedule.begin)
    return _rate(step + schedule.begin * whole, whole, lr, schedule)


def _rate(step: float, steps: float, lr: float, schedule: Schedule) -> float:
    warm = round(schedule.warmup * steps)
    if step < warm:
        return lr * (schedule.warmup_start + (1 - schedule.warmup_start) * step / warm)
    if schedule.name == "constant":
        return lr
    if schedule.name == "multistep":
        passed = sum(step >= round(share * steps) for share in schedule.milestones)
        return lr * schedule.gamma**passed
    along = (step - warm) / max(1, steps - warm)
    return lr * (schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * along)))
