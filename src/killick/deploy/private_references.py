"""Mean or synthetic references for a model that is shared without training images, and their cost."""

import copy
from collections.abc import Callable
from typing import Any

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.core.synthetic_references import Kind, replace_references
from killick.deploy.export_sets import ExportSets, find_export_sets, read_some, require
from killick.deploy.parity import compare_images, model_outputs
from killick.errors import OptionError

STATISTICS_IMAGES = 5000  # of the training set
TEST_IMAGES = 1000
COST = "cost_of_references"  # in the model's provenance


def replace_by_statistics(
    model: Anchored | Standard, kind: Kind, sets: ExportSets, *, k: int | None = None
) -> None:
    """Replace the references of `model` by the mean of its training set or by synthetic ones."""
    if not isinstance(model, Anchored):
        raise OptionError(
            f"a standard model has no references, found references {kind!r}. Leave it out."
        )
    train = require(sets.train, f"to make {kind} references of (--data)")
    replace_references(model, kind, read_some(model, train, STATISTICS_IMAGES)[0], k=k)


def replace_and_measure(
    model: Anchored | Standard, kind: Kind, data: str | None, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Replace the references of `model`, in place, and compare with the old ones on test images.

    The figures, if there are test images, are also stored in the model's provenance, for its card.
    """
    sets = find_export_sets(model, data, None, None, say)
    before = copy.deepcopy(model)
    replace_by_statistics(model, kind, sets)
    provenance = {name: value for name, value in model.provenance.items() if name != COST}
    facts = provenance.get("facts")
    if isinstance(facts, dict) and isinstance(model, Anchored):  # rows take the policy from there
        provenance["facts"] = {**facts, "reference_policy": model.reference_policy}
    if sets.test is not None:
        provenance[COST] = compare_images(
            lambda images: model_outputs(model, images, 1), before, 1, sets.test, TEST_IMAGES
        )
    model.provenance = provenance
    return provenance.get(COST)
