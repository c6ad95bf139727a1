"""Deep ensembles (Lakshminarayanan et al. 2017): several finished runs as one model."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from torch import nn

from killick.core.anchored import Anchored
from killick.core.folding import FoldedStem, fold
from killick.core.standard import Standard, standard
from killick.data.preprocessing import view_for
from killick.errors import OptionError, StorageError
from killick.nets import create, remembered
from killick.nets.ensemble_net import EnsembleNet
from killick.storage.loading import load
from killick.storage.saving import folded_references, save
from killick.storage.weights import digest_weights


def make_ensemble(
    models: "Sequence[Anchored | Standard | str | os.PathLike[str]]",
    folder: str | os.PathLike[str] | None = None,
) -> Standard:
    """One model that averages the probabilities of several; anchored ones see their first reference.

    It is a standard model: saved, evaluated, exported and predicted with like any other. Its cost is
    that of all its members.

    Args:
        models: At least two, of the same classes and images; or their folders.
        folder: Where it is saved, if given; must not exist.
    """
    if len(models) < 2:
        raise OptionError(f"an ensemble needs at least two models, found {len(models)}.")
    if folder is not None and Path(folder).exists():
        raise StorageError(f"cannot write {folder}: it exists. Choose another folder.")
    names = [os.fspath(m) if isinstance(m, str | os.PathLike) else type(m).__name__ for m in models]
    members = [load(m) if isinstance(m, str | os.PathLike) else m for m in models]
    weights = [digest_weights(member) for member in members]
    for number, digest in enumerate(weights):
        if (earlier := weights.index(digest)) < number:
            same = f"{names[earlier]} and {names[number]} are the same"
            raise OptionError(f"an ensemble needs different models: {same}.")
    facts = [(m.class_names, tuple(m.image_shape), view_for(m).described) for m in members]
    for name, own in zip(names, facts, strict=True):
        for what, first, other in zip(
            ("classes", "image shape", "view"), facts[0], own, strict=True
        ):
            if first != other:
                found = (shorten(str(each), 60, placeholder=" ...") for each in (first, other))
                raise OptionError(
                    f"{names[0]} and {name} differ in their {what}: {' and '.join(found)}."
                )
    nets, described = zip(
        *(_describe(*each) for each in zip(names, members, strict=True)), strict=True
    )
    classes = {each.pop("num_classes") for each in described}
    if len(classes) > 1:
        raise OptionError(f"the models differ in their numbers of classes: {sorted(classes)}.")
    net = create("killick:ensemble", members=list(described), num_classes=classes.pop())
    assert isinstance(net, EnsembleNet)
    for member, own in zip(net.members, nets, strict=True):
        member.get_submodule("net").load_state_dict(own.state_dict())
    model = standard(net, ((0, 0, 0), (1, 1, 1)), image_shape=members[0].image_shape).eval()
    model.class_names = members[0].class_names
    model.provenance = {
        "preprocessing": view_for(members[0]).settings(),
        "ensemble": names,
        "folded_references": sorted({kind for m in members for kind in _reference_kinds(m)}),
        "facts": _join_facts([member.provenance.get("facts") or {} for member in members]),
        **_find_data([member.provenance for member in members]),
    }
    if folder is not None:
        save(model, folder)
    return model


def _reference_kinds(model: Anchored | Standard) -> list[str]:
    return [model.reference_kind] if isinstance(model, Anchored) else folded_references(model)


def _join_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How all members were trained, as columns of rows; what differs is left out."""
    shared = {
        name: value for name, value in facts[0].items() if _same(each.get(name) for each in facts)
    }
    components = json.loads(shared.get("components") or "{}")
    shared["components"] = json.dumps({**components, "ensemble": {"members": len(facts)}})
    costs = [each.get("training_cost") for each in facts]
    shared["training_cost"] = None if None in costs else sum(costs)
    return shared


def _find_data(provenances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The recipe, if all members had the same training and validation images."""
    recipes = [each.get("recipe") or {} for each in provenances]
    if not all(recipes):
        return {}
    seeds = [recipe["data"].get("seed") for recipe in recipes]
    own = (r["seed"] if s is None else s for r, s in zip(recipes, seeds, strict=True))
    data = ({**recipe["data"], "seed": None} for recipe in recipes)
    if not _same(own) or not _same(data):
        return {}
    return {
        name: provenances[0][name] for name in ("recipe", "trained_on") if name in provenances[0]
    }


def _same(values: Iterable[Any]) -> bool:
    first, *others = values
    return all(each == first for each in others)


def _describe(name: str, model: Anchored | Standard) -> tuple[nn.Module, dict[str, Any]]:
    """The plain network of a model, and how to make it again."""
    made = remembered(model.net)
    if made is None or model.normalize is None:
        raise OptionError(f"{name} cannot be in an ensemble: its network was not made by name.")
    arguments = dict(made.arguments)
    found: dict[str, Any] = {
        "name": made.name,
        "num_classes": arguments.pop("num_classes", None),
        "arguments": arguments,
        "mean": list(model.normalize.mean),
        "std": list(model.normalize.std),
    }
    if isinstance(model, Standard):
        return model.net, found
    folded = fold(model)
    stems = [(stem.name, folded.net.get_submodule(stem.name)) for stem in model.stems]
    plain = all(isinstance(layer, FoldedStem) and _is_plain(layer.layer) for _, layer in stems)
    if folded.front is not None or not plain:
        raise OptionError(
            f"{name} cannot be in an ensemble: its first layer is not an ordinary one."
        )
    found["stems"] = [
        [stem, list(layer.offset.shape), layer.axis]
        for stem, layer in stems
        if isinstance(layer, FoldedStem)
    ]
    return folded.net, found


def _is_plain(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d | nn.Linear)
