"""Training a network on data given in Python: `killick.train`, shared with `killick.compare`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.image_model import ImageModel, image_model_in
from killick.core.standard import standard
from killick.data.data_settings import EMBEDDED
from killick.data.given_data import Given, Normalization, as_set, name_given
from killick.data.image_set import ImageSet, Sets, digest
from killick.data.sources import GIVEN, given_sets
from killick.data.streams import StreamSet
from killick.errors import DataError, KillickError, OptionError, one_line
from killick.nets import given_net, preprocessing_of
from killick.nets.custom import is_network_name
from killick.runtime.progress import DisplayFactory
from killick.storage.weights import digest_weights
from killick.training.callbacks import Callback
from killick.training.initial_weights import add_preprocessing, find_start
from killick.training.loop import Outcome
from killick.training.loop import train as train_recipe
from killick.training.recipe import Network, Recipe
from killick.training.recipe_files import (
    DEFAULT_RECIPE,
    find_recipe,
    find_setting,
    load_recipe,
    read_yaml,
    refuse_unused,
)

_TRAIN = ("train", "training")
_VALIDATION = ("validation", "valid", "val")
FINETUNE = "finetune"  # the recipe of a network that is given
# A data set with transforms of its own is not augmented further.
_NOT_AUGMENTED = {
    "augment.crop": "none",
    "augment.flip": False,
    "augment.flip_vertically": False,
    "augment.policy": "none",
}


def train(
    network: "nn.Module | Recipe | str | os.PathLike[str]",
    data: "Given | Mapping[str, Given] | Sets | None" = None,
    folder: str | os.PathLike[str] = "run",
    *,
    recipe: "Recipe | str | os.PathLike[str] | None" = None,
    settings: Mapping[str, Any] | None = None,
    normalize: Normalization | None = None,
    class_names: Sequence[str] | None = None,
    start: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
    show: DisplayFactory | None = None,
    transform: Callable[..., Any] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train a network or by a recipe, on any data, and write everything about it into `folder`.

    A network is copied, anchored exactly, and fine-tuned with masked references by the recipe
    "finetune"; `settings={"protocol.name": "standard"}` trains it as it is.

    Args:
        network: A network with its weights, or its name, such as "timm:resnet50"; or a recipe: its
            name, file or a `Recipe`.
        data: Data as for `killick.evaluate`, or several as `{"train": ..., "test": ...}`, also with
            "validation", which is else cut from "train". By default the recipe's. With a map-style
            data set everything random depends on (seed, epoch, number), so a run that was killed
            resumes exactly; with a loader or iterable it resumes at the last whole epoch.
        folder: Of the run; must not hold another one.
        recipe: For a network, another recipe than "finetune".
        settings: Of the recipe, by dotted name: `{"epochs": 3, "optimizer.lr": 0.01}`.
        normalize: `(mean, std)` that the network was trained with, and of images that are
            normalized already.
        class_names: By default the data's own, or numbers.
        start: A trained network to start from: a folder written by `killick.save` or a run folder,
            a `.safetensors` file, or a `state_dict` that torch saved.
        resume: Go on from the last checkpoint in `folder`; network, data, `transform` and `loss` are
            given again.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        quiet: Show nothing.
        show: Makes the progress display; a terminal by default.
        transform: Any callable that makes an image of an image, before other augmentation. What it
            draws from Python's, NumPy's and torch's generators depends on (seed, epoch, sample).
        loss: Of logits and targets, instead of cross-entropy. Targets are class numbers or
            probabilities.
        callbacks: Called after each step, each epoch, and at the end.
    """
    with given(network, data, recipe, settings, normalize, class_names) as found:
        made = load_recipe(found.recipe, found.settings)
        if not resume:
            trained = start is not None or made.network.may_name_weights
            if trained and not isinstance(found.recipe, Recipe):
                place = None if start is None else find_start(start)
                chosen = add_preprocessing(found.recipe, found.settings, place)
                made = load_recipe(found.recipe, chosen)
            refuse_unused(made, map(find_setting, settings or ()))
        return train_recipe(
            made,
            Path(folder),
            start=start,
            resume=resume,
            device=device,
            quiet=quiet,
            show=show,
            transform=transform,
            loss=loss,
            callbacks=callbacks,
        )


@dataclass(frozen=True)
class GivenTraining:
    """The recipe and the settings that stand for a network and data given in Python."""

    recipe: "str | Path | Recipe"
    settings: dict[str, Any]
    in_python: bool  # whether other processes cannot have them


@contextmanager
def given(
    network: Any,
    data: Any,
    recipe: Any = None,
    settings: Mapping[str, Any] | None = None,
    normalize: Normalization | None = None,
    class_names: Sequence[str] | None = None,
    streams_by_content: bool = False,
) -> Iterator[GivenTraining]:
    """Within this block, recipes can name the network and the data; see `train` for the arguments.

    With `streams_by_content` streams that begin with other images have other names.
    """
    chosen = {find_setting(name): value for name, value in (settings or {}).items()}
    net = network if isinstance(network, nn.Module) else None
    if net is None and is_network_name(network):
        chosen = {"network.name": network, "network.arguments": {}, **chosen}
        network = FINETUNE if Network(network).may_name_weights else DEFAULT_RECIPE
    elif net is None and recipe is not None:
        raise OptionError(f"recipe= is for a network, found the recipe {network!r} as well.")
    source = recipe or (network if net is None else FINETUNE)
    source = source if isinstance(source, str | Recipe) else Path(source)
    if normalize is not None:
        mean, std = normalize
        chosen = {"data.mean": list(mean), "data.std": list(std), **chosen}
    if isinstance(data, str | os.PathLike):
        chosen, data = _for_own_data(source, {**chosen, "data.name": os.fspath(data)}), None
    sets = None if data is None else open_sets(data, normalize, class_names)
    train = None if sets is None else sets.train
    if train is not None and train.side is not None:
        chosen = {"data.size": train.side, **chosen}
    if net is not None:
        chosen = {**_settings_of_net(net, normalize, chosen), **chosen}
    if sets is None or train is None:
        with given_net(net):
            yield GivenTraining(source, {**chosen, **_name_net(net)}, net is not None)
        return
    if net is not None:
        sets = _name_by_net(sets, net, chosen.get("data.size"))
    elif (
        isinstance(train, StreamSet) and _is_numbered(train) and not train.named and not class_names
    ):
        raise DataError(
            f"{train.name} does not say which classes it has. Name them:"
            " class_names=['cat', 'dog', ...]."
        )
    if train.augmented or isinstance(train, StreamSet):
        chosen = {**_NOT_AUGMENTED, **chosen}
    name = f"{train.name}-{digest(train)[:6]}"
    if isinstance(train, StreamSet) and not streams_by_content:
        name = train.name  # resumed, a shuffled loader begins with other images
    with given_sets(name, sets) as whole, given_net(net):
        found = _for_own_data(source, {**chosen, "data.name": whole})
        yield GivenTraining(source, {**found, **_name_net(net)}, True)


def open_sets(
    data: Any, normalize: Normalization | None, class_names: Sequence[str] | None
) -> Sets:
    """The sets of data given in Python: one to train on, or several by name."""
    if isinstance(data, Sets):
        if data.train is None:
            raise OptionError("the data have no training set.")
        return data
    parts = dict(data) if isinstance(data, Mapping) else {"train": data}
    known = (*_TRAIN, "test", *_VALIDATION)
    unknown = [name for name in parts if name not in known]
    main = next((parts[name] for name in _TRAIN if name in parts), None)
    if main is None or unknown:
        raise OptionError(
            "the data must be {'train': ..., 'test': ...}, perhaps with 'validation', found"
            f" {', '.join(map(repr, parts)) or 'nothing'}."
        )
    names = class_names
    train = as_set(name_given(main), main, names, normalize=normalize, to_train=True)

    def read(part: str, others: Sequence[str]) -> ImageSet | None:
        value = next((parts[name] for name in others if name in parts), None)
        if value is None:
            return None
        found = as_set(f"{train.name}, {part}", value, names, normalize=normalize)
        if _is_numbered(found) and found.classes <= train.classes:
            return replace(found, class_names=train.class_names)
        return found

    test, validation = read("test", ("test",)), read("validation", _VALIDATION)
    for other in (test, validation):
        if other is not None and _is_numbered(train) and train.classes <= other.classes:
            train = replace(train, class_names=other.class_names)
    if test is None:  # as folders and the hub have it
        test, validation = validation, None
    return Sets(train, test, validation=validation)


def _is_numbered(images: ImageSet) -> bool:
    """Whether classes have no other names than their numbers."""
    return images.class_names == tuple(map(str, range(images.classes)))


def _for_own_data(source: "str | Path | Recipe", chosen: dict[str, Any]) -> dict[str, Any]:
    """Settings for other data than the recipe's, where that is about embedded images."""
    if isinstance(source, Recipe) or chosen.get("data.name", "shapes") in EMBEDDED:
        return chosen
    usual = read_yaml(find_recipe(source)).get("data") or {}
    if (usual.get("name", "shapes") if isinstance(usual, dict) else usual) not in EMBEDDED:
        return chosen
    return {"data.limit": None, "data.validation": 0.1, **chosen}


def _name_net(net: nn.Module | None) -> dict[str, Any]:
    """The settings that name a network given in Python."""
    if net is None:
        return {}
    inner = image_model_in(net) or net
    kind = type(getattr(inner, "net", inner)).__name__
    name = f"{GIVEN}{kind}-{digest_weights(net)[:6]}"
    return {"network.name": name, "network.arguments": {}}


def _settings_of_net(
    net: nn.Module, normalize: Normalization | None, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """The preprocessing that a network is known to need, as settings."""
    if isinstance(net, ImageModel):
        return {"data.size": net.image_shape[-1]}
    known = preprocessing_of(net)
    if known is None:
        if normalize is None:
            raise OptionError(
                f"{type(net).__name__} needs the normalize=(mean, std) of its training. For a"
                " network that takes images in 0 to 1: normalize=((0, 0, 0), (1, 1, 1))."
            )
        return {}
    known = known.override(chosen.get("data.size"), chosen.get("data.resize"), None, normalize)
    return {f"data.{name}": value for name, value in known.settings().items()}


def _name_by_net(sets: Sets, net: nn.Module, side: int | None) -> Sets:
    """Sets whose classes are numbers with the classes of the network, one for each logit."""
    train = sets.train
    assert train is not None
    if not _is_numbered(train):
        return sets
    count = _count_logits(net, side)
    if train.classes > count:
        raise DataError(
            f"the labels of {train.name} go up to {train.classes - 1}, but the network has {count}"
            f" classes: 0 to {count - 1}. Check the labels, or give another network."
        )
    inner = image_model_in(net)
    names = (inner and inner.class_names) or tuple(map(str, range(count)))
    parts = (sets.train, sets.test, sets.whole, sets.validation)
    return Sets(*(part and replace(part, class_names=names) for part in parts))


def _count_logits(net: nn.Module, side: int | None) -> int:
    """How many classes a network has."""
    if side is None:
        raise OptionError(
            f"the image size of {type(net).__name__} is not known. Give it:"
            " settings={'data.size': 224}."
        )
    images = torch.zeros(2, 3, side, side, dtype=torch.uint8)
    inner = image_model_in(net)
    model = inner or standard(net, ((0, 0, 0), (1, 1, 1)), image_shape=(3, side, side))
    if inner is not None and inner.normalize is None:
        images = images.float()
    with evaluating(model), torch.no_grad():
        try:
            images = images.to(next(model.parameters()).device)
            logits = model(images, images) if isinstance(model, Anchored) else model(images)
        except KillickError:
            raise
        except Exception as problem:  # whatever a network raises for images of another size
            raise OptionError(
                f"cannot run {type(net).__name__} on images of {side} px: {one_line(problem)}. Give"
                " its size: settings={'data.size': 224}."
            ) from problem
    return int(logits.shape[1])
