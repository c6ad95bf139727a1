"""From the outcomes of a set to the file that keeps its answers image by image."""

from collections.abc import Mapping
from typing import Any

from killick.evaluation.outputs import Outcomes, Values
from killick.evaluation.plan import Unit
from killick.results.predictions import Answers, encode

_KEPT = ("prediction", "confidence", "energy", "label", "nll", "brier", "spread")


def make_answers(
    unit: Unit,
    outcomes: Outcomes,
    common: Mapping[str, Any],
    k: int | str,
    class_names: tuple[str, ...] | None,
) -> Answers:
    """What is kept of a unit.

    Args:
        unit: What was shown.
        outcomes: What was seen.
        common: Columns that all rows of the evaluation have.
        k: From how many references the mean is; empty for a model without.
        class_names: Of the model.
    """
    names = class_names if unit.alignment is None else unit.alignment.kept
    about = {**common, **unit.columns(), "k": k, "count": outcomes.count}
    return Answers(
        about={name: "" if value is None else value for name, value in about.items()},
        single=_first(outcomes.single),
        marginal={} if outcomes.marginal is None else _first(outcomes.marginal),
        thumbnails={number: encode(image.numpy()) for number, image in outcomes.pictures.items()},
        class_names=names or (),
    )


def _first(values: Values) -> dict[str, Any]:
    """Of the first reference."""
    kept = {name: values[name][0].numpy() for name in _KEPT if name in values}
    if "top1" in values:
        kept["correct"] = values["top1"][0].bool().numpy()
    return kept
