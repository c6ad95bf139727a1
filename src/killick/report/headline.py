"""The sentences at the top: what came out, with numbers, whatever they are."""

import statistics

from killick.report.comparison import Comparison
from killick.report.intervals import Interval
from killick.report.run_groups import Arm
from killick.report.statistics import MEASURES, Measure, Number, Table, mean_title

_BY_KEY = {measure.key: measure for measure in MEASURES}
# What a comparison is about, the first that there is, and the words for it.
_ABOUT = {
    "corrupted_top1": "accuracy under corruption",
    "cbar_top1": "accuracy under the corruptions of C-bar",
    "clean_top1": "accuracy on clean pictures",
    "ood_auroc": "AUROC of telling foreign pictures by their energy",
}
# What is said beside it.
_BESIDE = {
    "clean_top1": "accuracy on clean pictures",
    "corrupted_smooth_ece": "calibration error under corruption",
    "clean_smooth_ece": "calibration error on clean pictures",
    "ood_auroc": "AUROC of telling foreign pictures",
}
_UNTOLD = "no difference can be told"


def headline(comparison: Comparison, table: Table) -> str:
    """One to three sentences about the arm that the comparison is about.

    That is the first one masked towards the label; without such the first masked one; else the
    first that is not the baseline. It is never chosen by how well it did.
    """
    if comparison.baseline is None:
        return _describe(comparison, table, comparison.arms[0])
    arm = choose_subject(comparison)
    base = comparison.baseline
    key = next((key for key in _ABOUT if _pair(table, arm, base, key) is not None), None)
    if key is None:
        return f"{_name(arm)} and {base.title} have no number in common that could be compared."
    sentences = [_compare(comparison, table, arm, base, key)]
    beside = [other for other in _BESIDE if other != key and _pair(table, arm, base, other)]
    if "corrupted_smooth_ece" in beside and "clean_smooth_ece" in beside:
        beside.remove("clean_smooth_ece")
    if beside:
        words = [_aside(table, arm, base, other) for other in beside]
        sentences.append(f"Its {' and its '.join(words)}.")
    return " ".join(sentences)


def choose_subject(comparison: Comparison) -> Arm:
    """The arm that a comparison is about; its only one if there are no others."""
    others = [arm for arm in comparison.arms if arm is not comparison.baseline]
    masked = [arm for arm in others if arm.protocol == "masked"]
    label = [arm for arm in masked if arm.target == "label"]
    named = [arm for arm in others if arm.name == "masked-label"]
    return (named or label or masked or others)[0]


def _pair(table: Table, arm: Arm, base: Arm, key: str) -> tuple[Number, Number] | None:
    """The numbers of both, over the seeds that both have."""
    ours, theirs = table[arm.name].get(key), table[base.name].get(key)
    if ours is None or theirs is None or ours.difference is None:
        return None
    seeds = [seed for seed in ours.values if seed in theirs.values]
    return _restrict(ours, seeds), _restrict(theirs, seeds)


def _restrict(number: Number, seeds: list[int]) -> Number:
    values = {seed: number.values[seed] for seed in seeds}
    spread = statistics.stdev(values.values()) if len(values) > 1 else None
    return Number(values, statistics.fmean(values.values()), spread, number.difference)


def _compare(comparison: Comparison, table: Table, arm: Arm, base: Arm, key: str) -> str:
    pair = _pair(table, arm, base, key)
    assert pair is not None
    ours, theirs = pair
    gap = ours.difference
    assert gap is not None
    measure, what = _BY_KEY[key], _what(comparison, key)
    mine, other = _show(ours, measure), _show(theirs, measure)
    seeds = f"{len(ours.values)} seed{'s' if len(ours.values) > 1 else ''}"
    change = _signed(gap.value, measure)
    if gap.low is None or gap.high is None:
        return (
            f"{_name(arm)} has {mine} {what} against {other} for {base.title} ({change}, {seeds}):"
            f" without an interval, whether that is more than chance cannot be told."
        )
    reach = f"95 % interval {_ends(gap, measure)}, {seeds}"
    against = f"{mine} {what} against {other} for {base.title}"
    if not gap.tells:
        return f"{_name(arm)} has {against}: {_UNTOLD} ({change}, {reach})."
    if _is_better(gap, measure):
        return f"{_name(arm)} keeps {against} ({change}, {reach})."
    lost = _signed(abs(gap.value), measure).lstrip("+")
    return f"{_name(arm)} loses {lost}: it has {against} ({change}, {reach})."


def _aside(table: Table, arm: Arm, base: Arm, key: str) -> str:
    pair = _pair(table, arm, base, key)
    assert pair is not None
    ours, theirs = pair
    gap, measure = ours.difference, _BY_KEY[key]
    assert gap is not None
    change = _signed(gap.value, measure)
    if gap.low is None:
        verdict = f"{change}, no interval"
    elif not gap.tells:
        verdict = f"{change}: {_UNTOLD}"
    else:
        better = "better" if _is_better(gap, measure) else "worse"
        verdict = f"{better}, {change}, 95 % interval {_ends(gap, measure)}"
    mine, other = _show(ours, measure), _show(theirs, measure)
    return f"{_BESIDE[key]} is {mine} instead of {other} ({verdict})"


def _describe(comparison: Comparison, table: Table, arm: Arm) -> str:
    """A sentence about an arm alone."""
    numbers = table[arm.name]
    words = [
        f"{_show(numbers[key], _BY_KEY[key])} {_what(comparison, key)}"
        for key in ("clean_top1", "corrupted_top1", "cbar_top1", "ood_auroc")
        if key in numbers
    ]
    if not words:
        return f"{_name(arm)} has no numbers that a report could show."
    said = " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
    sentence = f"{_name(arm)} has {said} ({len(arm.runs)} seed{'s' * (len(arm.runs) > 1)})."
    key = next((k for k in ("corrupted_smooth_ece", "clean_smooth_ece") if k in numbers), None)
    if key is not None:
        sentence += f" Its {_BESIDE[key]} is {_show(numbers[key], _BY_KEY[key])}."
    return sentence + " There is nothing here to compare it with."


def _what(comparison: Comparison, key: str) -> str:
    if key == "corrupted_top1":
        return f"{_ABOUT[key]} ({mean_title(comparison)})"
    return _ABOUT[key]


def _name(arm: Arm) -> str:
    """An arm at the beginning of a sentence."""
    words = arm.title
    for short, whole in {"masked, label": "the label", "masked, uniform": "uniform"}.items():
        if words.startswith(short):
            words = f"masked towards {whole}" + words.removeprefix(short)
    return words[:1].upper() + words[1:]


def _is_better(gap: Interval, measure: Measure) -> bool:
    return (gap.value > 0) == measure.higher_is_better


def _show(number: Number, measure: Measure) -> str:
    """Mean and spread as people read them: "83.1 ± 0.4 %"."""
    text = f"{measure.factor * number.mean:.{measure.digits}f}"
    if number.spread is not None:
        text += f" ± {measure.factor * number.spread:.{measure.digits}f}"
    return f"{text} {measure.unit}".rstrip()


def _ends(gap: Interval, measure: Measure) -> str:
    assert gap.low is not None
    assert gap.high is not None
    return f"{_number(gap.low, measure)} to {_number(gap.high, measure)}"


def _signed(value: float, measure: Measure) -> str:
    """A difference with its sign; of percentages in points."""
    return _number(value, measure) + (" points" if measure.unit == "%" else "")


def _number(value: float, measure: Measure) -> str:
    text = f"{measure.factor * value:+.{measure.digits}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")
