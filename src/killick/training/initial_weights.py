"""The model a run starts with: fresh weights, or a trained network (`--from`).

A run that starts from another takes over its data, their split and its seed, so that a network is
not tuned on other data, or validated on images it was trained on, by accident.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from killick.core.anchored import Anchored, anchor
from killick.core.standard import Standard, standard
from killick.data.preprocessing import read_view
from killick.data.sources import GIVEN
from killick.errors import OptionError, RecipeError, StorageError
from killick.nets import (
    NetworkPreprocessing,
    copy_given,
    create,
    load_pretrained,
    names_weights,
    preprocessing_by_name,
    preprocessing_of,
    remembered,
    weights_of,
    with_classes,
)
from killick.runtime.hub import read_hub_name
from killick.storage.loading import load, locate_model, read_architecture, read_config
from killick.storage.weights import fill, read_weights
from killick.training.recipe import Network, Recipe
from killick.training.recipe_files import find_recipe, find_setting, read_yaml, recipe_of

_DATA = (
    *("name", "root", "size", "resize", "interpolation", "squash", "mean", "std"),
    *("limit", "validation", "validation_from", "label_noise"),
)
_SPLIT = ("limit", "validation", "validation_from")  # by these and the seed
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar")

Normalization = tuple[tuple[float, ...], tuple[float, ...]]


Model = Anchored | Standard


def make_model(
    recipe: Recipe,
    normalize: Normalization,
    class_names: tuple[str, ...],
    seed: int,
    start: Path | None = None,
    *,
    fresh: bool = False,
) -> tuple[Model, Model | None, str]:
    """The model of a recipe, the trained one that it is made from, and a description.

    That is the one in `start`, or has the pretrained weights that the recipe names, unless weights
    are to be `fresh`. Fresh ones are drawn from `seed`. The data's `normalize` is used unless the
    trained model has its own.
    """
    shape = (3, recipe.data.size, recipe.data.size)
    weights = "fresh weights" if start is None else f"trained weights of {start}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source: Model | None = None
        if start is not None:
            source = _load_start(recipe, normalize, class_names, start)
        elif recipe.network.name.startswith(GIVEN):
            source, weights = _take_given(recipe, normalize, class_names), "weights as given"
        elif not fresh and (name := pretrained_name(recipe.network)) is not None:
            source, weights = _load_pretrained(recipe, class_names, name)
        plain = source
        if plain is None:
            plain = _wrap(create_net(recipe, len(class_names)), recipe, normalize)
        model = recipe.protocol.network(plain, fresh=source is None)
    model.class_names, model.image_shape = class_names, shape
    made = remembered(plain.net)
    name = type(plain.net).__name__ if made is None else made.name
    count = sum(weight.numel() for weight in model.parameters())
    return model, source, f"{name}, {weights}, {count:,} parameters"


def _take_given(recipe: Recipe, normalize: Normalization, class_names: tuple[str, ...]) -> Model:
    """The network that was given in Python, with its weights."""
    net = copy_given()
    if net is None:
        raise OptionError(
            f"{recipe.network.name} is a network that was given in Python. Give it again:"
            " killick.train(network, data, folder, resume=True)."
        )
    shape = (3, recipe.data.size, recipe.data.size)
    if not isinstance(net, Anchored | Standard):
        net = standard(net.eval(), normalize, image_shape=shape)
    return _with_classes(net, recipe, class_names, Path(recipe.network.name))


def create_net(recipe: Recipe, classes: int) -> nn.Module:
    """The network of a recipe with fresh weights from torch's global state."""
    return create(recipe.network.name, **recipe.network.arguments, num_classes=classes)


def pretrained_name(network: Network) -> str | None:
    """The name of the pretrained weights of a recipe's network, if it has some."""
    if network.pretrained is not None and names_weights(network.pretrained):
        return network.pretrained
    named = network.pretrained is not None or names_weights(network.name)
    return network.name if named else None


def _load_pretrained(
    recipe: Recipe, class_names: tuple[str, ...], name: str
) -> tuple[Standard, str]:
    """The network with pretrained weights, and a description of these."""
    net = load_pretrained(name)
    made, known, own = remembered(net), weights_of(net), preprocessing_of(net)
    assert made is not None
    assert known is not None
    assert own is not None
    described = f"pretrained weights {known.name}"
    if class_names not in (known.class_names, known.class_ids):
        kept, net = net, with_classes(net, len(class_names), always=known.class_names is not None)
        described += "" if net is kept else f", a fresh last layer for {len(class_names)} classes"
    arguments = {**made.arguments, **recipe.network.arguments}
    if arguments != made.arguments:  # such as a dropout rate
        trained = net.state_dict()
        net = create(made.name, **{**arguments, "num_classes": len(class_names)})
        fill(net, trained, Path(known.name), made.name, new_head=False, hint="Leave them out.")
    data, normalize = recipe.data, (own.mean, own.std)
    if data.mean is not None and data.std is not None:
        normalize = (tuple(data.mean), tuple(data.std))
    model = standard(net.eval(), normalize, image_shape=(3, data.size, data.size))
    model.provenance = {"weights": known.name}
    return model, described


def _load_start(
    recipe: Recipe, normalize: Normalization, class_names: tuple[str, ...], start: Path
) -> Model:
    folder = model_folder(start)
    if folder.is_dir():
        return _with_classes(load(folder), recipe, class_names, folder)
    net = create_net(recipe, len(class_names))
    fill(net, read_weights(start), start, recipe.network.name, recipe.network.new_head)
    if recipe.data.mean is None and (known := preprocessing_of(net)) is not None:
        normalize = known.mean, known.std  # what they were most likely trained with
    return _wrap(net.eval(), recipe, normalize)


def _wrap(net: nn.Module, recipe: Recipe, normalize: Normalization) -> Model:
    """A network as a standard model, or as an anchored one if it is written for pairs."""
    shape = (3, recipe.data.size, recipe.data.size)
    if recipe.network.pairs:
        return anchor(net, normalize=normalize, example=torch.rand(2, *shape), pairs=True)
    return standard(net, normalize, image_shape=shape)


def _with_classes(
    model: Model, recipe: Recipe, class_names: tuple[str, ...], folder: Path
) -> Model:
    """`model` if its classes are those of the data, or with a new last layer (`new_head`)."""
    made = remembered(model.net)
    if recipe.network.new_head and isinstance(model, Standard) and made is not None:
        net = create(made.name, **{**made.arguments, "num_classes": len(class_names)})
        fill(net, model.net.state_dict(), folder, made.name, new_head=True)
        own = None if model.normalize is None else (model.normalize.mean, model.normalize.std)
        return standard(net.eval(), own, image_shape=model.image_shape)
    with torch.no_grad():
        dtype = torch.uint8 if model.normalize else torch.float32
        example = torch.zeros((2, *model.image_shape), dtype=dtype)
        logits = model(example, example) if isinstance(model, Anchored) else model(example)
    if logits.shape[1] != len(class_names):
        raise OptionError(
            f"the data have {len(class_names)} classes, and the model in {folder} has"
            f" {logits.shape[1]}. A standard model made by name can have a new last layer:"
            " --network.new_head, in Python settings={'network.new_head': True}."
        )
    if model.class_names is not None and model.class_names != class_names:
        pairs = zip(model.class_names, class_names, strict=True)
        theirs, ours = next(pair for pair in pairs if pair[0] != pair[1])
        raise OptionError(
            f"{folder} was trained on other classes: {theirs!r} there is {ours!r} in the data."
        )
    return model


def model_folder(start: Path) -> Path:
    """The folder of a model: `start`, or the one inside if it is a run."""
    return start / "model" if (start / "model" / "config.json").is_file() else start


def find_start(given: str | Path) -> Path:
    """Where a trained network is, absolute; OWNER/NAME of the hub is downloaded."""
    place = Path(given)
    name = None if place.exists() or place.suffix in _WEIGHTS else read_hub_name(place)
    if name is None or (name.revision is None and place.parent.is_dir()):  # a slip in a path
        return place.absolute()
    return locate_model(place).absolute()


def read_source(start: Path) -> Recipe | None:
    """The recipe of the run in a folder; None where there is none that can be read."""
    try:
        return recipe_of(start.parent if start.name == "model" else start)
    except RecipeError:
        return None


def inherit(start: Path, given: dict[str, Any], *, data: bool = True) -> dict[str, Any]:
    """`given`, and the settings of the run in `start` where nothing was given.

    They are the network and, with `data` (where no recipe is named), data, their split and the seed.
    """
    source = read_source(start)
    if data and start.exists() and source is None and "data.name" not in given:
        raise OptionError(
            f"{start} does not say which data it was trained on. Name them: --data"
            " imagefolder:FOLDER, for example."
        )
    found = _read_network(start, source)
    for name, own in found.items():
        if given.get(name, own) != own:
            raise OptionError(
                f"{name} {given[name]} differs from {own} in {start}. Leave it out with --from."
            )
    if data and source and given.get("data.name", source.data.name) == source.data.name:
        found |= {f"data.{name}": getattr(source.data, name) for name in _DATA}
        found["seed"] = source.seed
    return found | given


def _read_network(start: Path, source: Recipe | None) -> dict[str, Any]:
    """Name and arguments of the network in a folder; of the model, else of its run's recipe."""
    try:
        made = read_architecture(model_folder(start))
    except StorageError:
        made = None
    network = made or (source and source.network)
    if not network:
        return {}
    arguments = dict(network.arguments)
    for decided in ("num_classes", "in_chans"):  # by the data
        arguments.pop(decided, None)
    return {"network.name": network.name, "network.arguments": arguments}


def warn_of_seen(recipe: Recipe, start: Path | str) -> str | None:
    """A warning if images for validation may have been trained on by the source.

    That is a folder, a file, or the name of pretrained weights.
    """
    source = read_source(start) if isinstance(start, Path) else None
    if not recipe.data.validation or recipe.network.new_head:
        return None
    if source is None:
        return (
            f"warning: {start} does not say which images it was trained on, so it may have seen"
            " those for validation: accuracy, temperature and threshold look better than they are. Fit"
            " nothing on them: --data.validation 0; or evaluate with others: killick evaluate RUN"
            " --validation DATA"
        )
    if source.data.name != recipe.data.name:
        return None
    ours, theirs = (
        (each.seed, *(getattr(each.data, name) for name in _SPLIT)) for each in (recipe, source)
    )
    if ours == theirs:
        return None
    return (
        f"warning: {start} may have been trained on images for validation here, since its seed or"
        " data settings were others"
    )


def add_preprocessing(
    source: str | Path, overrides: Mapping[str, Any], start: Path | None
) -> dict[str, Any]:
    """`overrides` of a recipe, and the preprocessing of the network that training starts from.

    So training, evaluation, export and prediction show a network the same pixels. What they or the
    recipe set already stays. A network with fresh weights has none of its own.
    """
    given = {find_setting(name): value for name, value in overrides.items()}
    recipe = read_yaml(find_recipe(source))
    network, data = recipe.get("network", {}), recipe.get("data", {})
    network = {"name": network} if isinstance(network, str) else network
    data = data if isinstance(data, dict) else {}
    given = {**{f"data.{name}": value for name, value in data.items()}, **given}
    name = str(given.get("network.name", network.get("name", Network.name)))
    weights = given.get("network.pretrained", network.get("pretrained"))
    if start is None:
        named = pretrained_name(Network(name, pretrained=weights))
        found = None if named is None else preprocessing_by_name(named)
    elif start.is_file():
        found = preprocessing_by_name(name)
    else:
        found = _read_preprocessing(start)
    if found is None:
        return dict(overrides)
    found = found.override(size=given.get("data.size"), resize=given.get("data.resize"))
    settings = found.settings()
    if {"data.mean", "data.std"} & given.keys():  # they belong together
        del settings["mean"], settings["std"]
    filled = {f"data.{name}": value for name, value in settings.items()}
    return {**{k: v for k, v in filled.items() if k not in given}, **overrides}


def _read_preprocessing(start: Path) -> NetworkPreprocessing | None:
    """The preprocessing of a saved model of RGB images."""
    try:
        config = read_config(model_folder(start))
    except StorageError:  # told where the model is loaded
        return None
    normalize, shape = config.get("normalize"), config["image_shape"]
    if len(shape) != 3 or normalize is None:
        return None
    view = read_view(config.get("provenance") or {}, shape[-1])
    return NetworkPreprocessing(
        *(view.size, view.resize, view.interpolation, view.squash),
        mean=tuple(normalize["mean"]),
        std=tuple(normalize["std"]),
    )
