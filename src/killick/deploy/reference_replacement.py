"""References that show no training image, for a model that is published, and what they cost."""

import copy
from collections.abc import Callable
from typing import Any

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.core.synthetic_references import Kind, replace_references
from killick.deploy.export_images import find_pictures, labels_for, read_some, require
from killick.deploy.parity import ask_model, compare_pictures
from killick.errors import OptionError

MOST_PICTURES = 5000  # of the training set that statistics are taken from
MEASURED_ON = 1000  # pictures of the test set
COST = "cost_of_references"  # in the model's provenance


def replace_by_statistics(
    model: Anchored | Standard,
    kind: Kind,
    data: str | None = None,
    *,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """Store the mean or synthetic references in `model`, made from what it was trained on.

    Args:
        model: Anchored.
        kind: "mean" or "synthetic".
        data: The data it was trained on, where it does not say.
        seed: Of synthetic references.
        say: Told why data cannot be used.

    Returns:
        What it costs, measured on test pictures where there are some: labels and accuracy with the
        references that were there before and with these. It is kept with the model, for its card.
    """
    if not isinstance(model, Anchored):
        raise OptionError(
            f"expected an anchored model with --references {kind}, found a standard one, which has"
            " no references."
        )
    if model.normalize is None or len(model.image_shape) != 3 or model.image_shape[0] != 3:
        raise OptionError(
            f"expected a model of uint8 RGB images with --references {kind}, found one of"
            f" {'floats' if model.normalize is None else tuple(model.image_shape)}. In Python:"
            " killick.replace_references."
        )
    pictures = find_pictures(model, data, None, None, say or _ignore)
    train = require(
        pictures.train, f"to make {kind} references of", "Name the training set: --data DATA."
    )
    before = copy.deepcopy(model)
    images, _ = read_some(model, train, MOST_PICTURES)
    replace_references(model, kind, images, seed=seed)
    provenance = {name: value for name, value in model.provenance.items() if name != COST}
    facts = provenance.get("facts")
    if isinstance(facts, dict):  # rows take the policy from there
        provenance["facts"] = {**facts, "reference_policy": model.reference_policy}
    cost = None
    if pictures.test is not None:
        shown, labels = read_some(model, pictures.test, MEASURED_ON)
        found, said = ask_model(model, shown, 1), ask_model(before, shown, 1)
        known = labels_for(model, pictures.test, labels, found["logits"].shape[1])
        cost = compare_pictures(found, said, known, f"{pictures.test.name}, test")
        provenance[COST] = cost
    model.provenance = provenance
    return cost


def describe_cost(cost: dict[str, Any]) -> str:
    """What `replace_by_statistics` found, in a sentence."""
    told = f"{cost['same_label']:.1%} of {cost['count']:,} pictures of {cost['set']} get the label"
    told += " that they got from the first reference stored before"
    if "accuracy" in cost:
        told += f"; accuracy is {cost['accuracy']:.1%}, and was {cost['model_accuracy']:.1%}"
    return f"{told}."


def _ignore(sentence: str) -> None:
    pass
