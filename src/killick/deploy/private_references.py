"""Mean or synthetic references for a model that is published, and what they cost."""

import copy
from collections.abc import Callable
from typing import Any

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.core.synthetic_references import Kind, replace_references
from killick.deploy.export_sets import find_export_sets, labels_for, read_some, require
from killick.deploy.parity import compare_images, model_outputs
from killick.errors import OptionError

STATISTICS_IMAGES = 5000  # of the training set
TEST_IMAGES = 1000
COST = "cost_of_references"  # in the model's provenance


def replace_by_statistics(
    model: Anchored | Standard,
    kind: Kind,
    data: str | None = None,
    *,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
    """Replace the references of `model` by the mean of its training set or by synthetic ones.

    Args:
        model: Anchored; changed in place.
        kind: "mean" or "synthetic".
        data: The data it was trained on, where the model does not know.
        seed: Of synthetic references.
        say: Gets messages, such as why the data cannot be read.

    Returns:
        Agreement and accuracy with the old and the new references on test images, if there are
        any. They are also stored in the model's provenance, for its card.
    """
    if not isinstance(model, Anchored):
        raise OptionError(f"--references {kind} requires an anchored model, found a standard one.")
    if model.normalize is None or len(model.image_shape) != 3 or model.image_shape[0] != 3:
        raise OptionError(
            f"--references {kind} requires a model of uint8 RGB images, found one of"
            f" {'floats' if model.normalize is None else tuple(model.image_shape)}. In Python:"
            " killick.replace_references."
        )
    sets = find_export_sets(model, data, None, None, say or (lambda sentence: None))
    train = require(sets.train, f"to make {kind} references of", "Name the training set: --data.")
    before = copy.deepcopy(model)
    replace_references(model, kind, read_some(model, train, STATISTICS_IMAGES)[0], seed=seed)
    provenance = {name: value for name, value in model.provenance.items() if name != COST}
    facts = provenance.get("facts")
    if isinstance(facts, dict):  # rows take the policy from there
        provenance["facts"] = {**facts, "reference_policy": model.reference_policy}
    if sets.test is not None:
        images, labels = read_some(model, sets.test, TEST_IMAGES)
        new, old = model_outputs(model, images, 1), model_outputs(before, images, 1)
        known = labels_for(model, sets.test, labels, new["logits"].shape[1])
        provenance[COST] = compare_images(new, old, known, f"{sets.test.name}, test")
    model.provenance = provenance
    return provenance.get(COST)


def format_cost(cost: dict[str, Any]) -> str:
    """What `replace_by_statistics` returned, as a sentence."""
    words = f"{cost['same_label']:.1%} of {cost['count']:,} images of {cost['set']} keep the label"
    words += " of the old first reference"
    if "accuracy" in cost:
        words += f"; accuracy {cost['accuracy']:.1%}, before {cost['model_accuracy']:.1%}"
    return f"{words}."
