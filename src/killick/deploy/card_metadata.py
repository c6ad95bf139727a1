"""The front matter of a model card: what a hub reads of it, as YAML."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from killick.deploy.card_results import Evaluation, Line, Number
from killick.deploy.markdown import in_line

# Data sets that everyone calls by one name, as the hub calls them.
_KNOWN_DATA = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
_TASK = {"type": "image-classification", "name": "Image classification"}
# Metrics as rows call them, as the hub does, and for people.
_SCORE = "energy"  # of detection, the one that thresholds are about; the card has them all
_METRICS = {
    "top1": ("accuracy", "accuracy"),
    "smooth_ece": ("smooth_ece", "smooth ECE"),
}


def make_front_matter(
    *,
    name: str,
    licence: str | None,
    tags: Sequence[str],
    trained_on: str | None,
    classifies_images: bool,
    evaluations: Sequence[Evaluation],
) -> str:
    """The block between the dashes, with its results in the hub's own form (`model-index`).

    Args:
        name: Of the model.
        licence: An identifier, such as apache-2.0.
        tags: To be found by.
        trained_on: The data's name, if known.
        classifies_images: Whether it takes images; there is a task of that name.
        evaluations: What was measured.
    """
    front: dict[str, Any] = {} if licence is None else {"license": licence}
    front |= {"library_name": "killick", "tags": list(tags)}
    if classifies_images:
        front["pipeline_tag"] = _TASK["type"]
    if data := _hub_data(trained_on):
        front["datasets"] = [data]
    results = [result for each in evaluations for result in _results(each)]
    if results and classifies_images:
        front["metrics"] = ["accuracy"]
        front["model-index"] = [{"name": in_line(name), "results": results}]
    return yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)


def _hub_data(name: str | None) -> str | None:
    """The data's name on the hub, if they are surely those."""
    if name is None:
        return None
    kind, _, rest = name.partition(":")
    if kind == "hf" and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", rest, re.ASCII):
        return rest
    return _KNOWN_DATA.get(name)


def _results(evaluation: Evaluation) -> Iterable[dict[str, Any]]:
    """For each set of pictures its metrics; shares from 0 to 1, as in `rows.csv`."""
    for lines, metrics in ((evaluation.sets, _METRICS), (evaluation.detection, None)):
        by_set: dict[tuple[str, str], list[Line]] = {}
        for line in lines:
            by_set.setdefault((line.suite, line.shown), []).append(line)
        for (suite, shown), alike in by_set.items():
            found = [
                _metric(*_titles(key, metrics), number, line.asked)
                for line in alike
                for key, number in line.numbers.items()
                if metrics is not None or key == _SCORE
            ]
            if not found:
                continue
            told = f"out of distribution, {shown}" if suite == "ood" else shown
            limit = "" if evaluation.limit is None else f", at most {evaluation.limit} pictures"
            yield {
                "task": dict(_TASK),
                "dataset": {
                    "name": in_line(f"{evaluation.data}, {told}{limit}"),
                    "type": _hub_data(evaluation.data) or _slug(evaluation.data),
                    "config": _slug(f"{told}{limit}-seed-{evaluation.seed}"),
                },
                "metrics": found,
            }


def _titles(key: str, metrics: dict[str, tuple[str, str]] | None) -> tuple[str, str]:
    """What the hub and people call a metric; of detection, `key` is the score."""
    return ("roc_auc", f"AUROC by {key.replace('_', ' ')}") if metrics is None else metrics[key]


def _metric(kind: str, title: str, number: Number, asked: str) -> dict[str, Any]:
    words = f"{title}, {asked}" if asked else title
    if number.spread is not None:
        words += f" (± {number.spread:.4f} over {number.references})"
    return {"type": kind, "value": round(number.value, 6), "name": in_line(words)}


def _slug(words: str) -> str:
    """Words as an identifier."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.").lower() or "unnamed"
