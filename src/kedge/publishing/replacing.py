"""References that show no training image, for a model that is published."""

import torch

from kedge.anchored import Anchored
from kedge.data.batches import read_all
from kedge.data.images import ImageSet
from kedge.data.sources import load_sets
from kedge.data.splits import stratified
from kedge.data.views import view_for
from kedge.errors import DataError, OptionError
from kedge.private_references import Kind, replace_references
from kedge.standard import Standard
from kedge.training.material import cut_sets
from kedge.training.recipe_files import make_recipe

MOST_PICTURES = 5000  # of the training set that statistics are taken from


def replace_by_statistics(
    model: Anchored | Standard, kind: Kind, data: str | None = None, *, seed: int = 0
) -> None:
    """Store the mean or synthetic references in `model`, made from what it was trained on.

    Args:
        model: Anchored.
        kind: "mean" or "synthetic".
        data: The data it was trained on, where it does not say.
        seed: Of synthetic references, and of which pictures of a large set are looked at.
    """
    if not isinstance(model, Anchored):
        raise OptionError(
            f"expected an anchored model with --references {kind}, found a standard one, which has"
            " no references."
        )
    if model.normalise is None or len(model.image_shape) != 3 or model.image_shape[0] != 3:
        raise OptionError(
            f"expected a model of uint8 RGB images with --references {kind}, found one of"
            f" {'floats' if model.normalise is None else tuple(model.image_shape)}. In Python:"
            " kedge.private_references.replace_references."
        )
    train = _find_train(model, data)
    if len(train) > MOST_PICTURES:
        train = train.part(stratified(train.labels, MOST_PICTURES, seed)[1])
    images = torch.cat(list(read_all(train, view_for(model))))
    replace_references(model, kind, images, seed=seed)
    facts = model.provenance.get("facts")
    if isinstance(facts, dict):  # rows take the policy from there
        known = {**facts, "reference_policy": model.reference_policy}
        model.provenance = {**model.provenance, "facts": known}


def _find_train(model: Anchored, data: str | None) -> ImageSet:
    """The set a model was trained on: the one named, or that of its own recipe."""
    recipe = model.provenance.get("recipe")
    if data is None:
        if not isinstance(recipe, dict) or not recipe.get("data"):
            raise OptionError(
                "expected the data that the model was trained on, since it does not say: --data"
                " DATA."
            )
        return cut_sets(make_recipe(recipe)).train
    train = load_sets(data).train
    if train is None:
        raise DataError(
            f"expected a set to train on in {data}, found only one to test on. Name the set without"
            " a split."
        )
    return train
