"""The model a run starts with: fresh weights, or a trained network (`--from`).

A run that starts from another takes over its data, their split and its seed, so that a network is
not tuned on other data, or validated on images it was trained on, by accident.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from killick.core.anchored import Anchored
from killick.core.standard import Standard, standard
from killick.data.sources import GIVEN
from killick.errors import OptionError, RecipeError, StorageError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD, copy_given, create, remembered
from killick.storage.hub import read_hub_name
from killick.storage.loading import load, locate_model, read_architecture
from killick.storage.weights import fill, read_weights
from killick.training.recipe import Recipe
from killick.training.recipe_files import recipe_of

_DATA = (
    *("name", "root", "size", "resize", "interpolation", "mean", "std"),
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
) -> tuple[Model, Model | None, str]:
    """The model of a recipe, the trained one in `start` that it is made from, and a description.

    Fresh weights are drawn from `seed`. The data's `normalize` is used unless the trained model has
    its own.
    """
    shape = (3, recipe.data.size, recipe.data.size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = None if start is None else _load_start(recipe, normalize, class_names, start)
        if source is None and recipe.network.name.startswith(GIVEN):
            source = _take_given(recipe, normalize, class_names)
        plain = source
        if plain is None:
            plain = standard(create_net(recipe, len(class_names)), normalize, image_shape=shape)
        model = recipe.protocol.network(plain, fresh=source is None)
    model.class_names, model.image_shape = class_names, shape
    made = remembered(plain.net)
    name = type(plain.net).__name__ if made is None else made.name
    weights = "fresh weights" if start is None else f"trained weights of {start}"
    weights = weights if source is None or start is not None else "weights as given"
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


def _load_start(
    recipe: Recipe, normalize: Normalization, class_names: tuple[str, ...], start: Path
) -> Model:
    folder = _model_folder(start)
    if folder.is_dir():
        return _with_classes(load(folder), recipe, class_names, folder)
    net = create_net(recipe, len(class_names))
    fill(net, read_weights(start), start, recipe.network.name, recipe.network.new_head)
    library = recipe.network.name.partition(":")[0]
    if recipe.data.mean is None and library in ("timm", "torchvision"):
        # What weights of a library were most likely trained with.
        usual = getattr(net, "pretrained_cfg", None) or {}
        mean, std = usual.get("mean", IMAGENET_MEAN), usual.get("std", IMAGENET_STD)
        normalize = tuple(mean), tuple(std)
    return standard(net.eval(), normalize, image_shape=(3, recipe.data.size, recipe.data.size))


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
            " --network.new_head true."
        )
    if model.class_names is not None and model.class_names != class_names:
        pairs = zip(model.class_names, class_names, strict=True)
        theirs, ours = next(pair for pair in pairs if pair[0] != pair[1])
        raise OptionError(
            f"{folder} was trained on other classes: {theirs!r} there is {ours!r} in the data."
        )
    return model


def _model_folder(start: Path) -> Path:
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
        made = read_architecture(_model_folder(start))
    except StorageError:
        made = None
    network = made or (source and source.network)
    if not network:
        return {}
    arguments = dict(network.arguments)
    for decided in ("num_classes", "in_chans"):  # by the data
        arguments.pop(decided, None)
    return {"network.name": network.name, "network.arguments": arguments}


def warn_of_seen(recipe: Recipe, start: Path) -> str | None:
    """A warning if images for validation may have been trained on by the source."""
    source = read_source(start)
    if source is None or not recipe.data.validation or source.data.name != recipe.data.name:
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
