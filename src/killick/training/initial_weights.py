"""The model a run starts with: fresh weights, or a trained network."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from killick.core.anchored import Anchored
from killick.core.standard import Standard, standard
from killick.errors import OptionError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD, create, remembered
from killick.storage.loading import load
from killick.storage.weights import fill, read_weights
from killick.training.recipe import Recipe


@dataclass(frozen=True)
class InitialModel:
    """The model a run begins with.

    Attributes:
        model: Anchored or standard, by the protocol.
        source: The trained model it was made from; None with fresh weights.
        described: One line for the user.
    """

    model: Anchored | Standard
    source: Anchored | Standard | None
    described: str


def make_model(
    recipe: Recipe,
    normalize: tuple[tuple[float, ...], tuple[float, ...]],
    class_names: tuple[str, ...],
    seed: int,
    start: Path | None = None,
) -> InitialModel:
    """The model of a recipe: with fresh weights, or from trained ones.

    Args:
        recipe: Network and protocol.
        normalize: Used unless the trained model has its own.
        class_names: Of the data.
        seed: Of the first weights.
        start: A folder written by `killick.save` or a run folder, a `.safetensors` file, or a
            `state_dict` that torch saved.
    """
    size = recipe.data.size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = None if start is None else _trained(recipe, normalize, class_names, start)
        plain: Anchored | Standard
        if source is None:
            net = create_net(recipe, len(class_names))
            plain = standard(net, normalize, image_shape=(3, size, size))
            described = f"{recipe.network.name}, fresh weights"
        else:
            made = remembered(source.net)
            name = type(source.net).__name__ if made is None else made.name
            plain, described = source, f"{name}, trained weights of {start}"
        model = recipe.protocol.network(plain, fresh=source is None)
    model.class_names, model.image_shape = class_names, (3, size, size)
    if model.normalize is not None:
        mean, std = model.normalize.mean, model.normalize.std
        described += f", normalized by mean {mean} and std {std}"
    count = sum(weight.numel() for weight in model.parameters())
    return InitialModel(model, source, f"{described}, {count:,} parameters")


def _usual_normalization(
    recipe: Recipe,
    net: nn.Module,
    of_the_data: tuple[tuple[float, ...], tuple[float, ...]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What weights of a library were most likely trained with, unless the recipe says."""
    library = recipe.network.name.partition(":")[0]
    if recipe.data.mean is not None or library not in ("timm", "torchvision"):
        return of_the_data
    settings = getattr(net, "pretrained_cfg", None) or {}
    mean, std = settings.get("mean", IMAGENET_MEAN), settings.get("std", IMAGENET_STD)
    return tuple(mean), tuple(std)


def create_net(recipe: Recipe, classes: int) -> nn.Module:
    """The network of a recipe with fresh weights from torch's global state."""
    return create(recipe.network.name, **recipe.network.arguments, num_classes=classes)


def _trained(
    recipe: Recipe,
    normalize: tuple[tuple[float, ...], tuple[float, ...]],
    class_names: tuple[str, ...],
    start: Path,
) -> Anchored | Standard:
    folder = start / "model" if (start / "model" / "config.json").is_file() else start
    if folder.is_dir():
        return _with_classes(load(folder), recipe, class_names, folder)
    net = create_net(recipe, len(class_names))
    fill(net, read_weights(start), start, recipe.network.name, recipe.network.new_head)
    size = recipe.data.size
    normalize = _usual_normalization(recipe, net, normalize)
    return standard(net.eval(), normalize, image_shape=(3, size, size))


def _with_classes(
    model: Anchored | Standard, recipe: Recipe, class_names: tuple[str, ...], folder: Path
) -> Anchored | Standard:
    """`model` if its classes are those of the data, or with a new last layer (`new_head`)."""
    with torch.no_grad():
        shape = (2, *model.image_shape)
        example = torch.zeros(shape, dtype=torch.uint8 if model.normalize else torch.float32)
        arguments = (example, example) if isinstance(model, Anchored) else (example,)
        logits = model(*arguments)
    made = remembered(model.net)
    if recipe.network.new_head and isinstance(model, Standard) and made is not None:
        net = create(made.name, **{**made.arguments, "num_classes": len(class_names)})
        fill(net, model.net.state_dict(), folder, made.name, new_head=True)
        own = None if model.normalize is None else (model.normalize.mean, model.normalize.std)
        return standard(net.eval(), own, image_shape=model.image_shape)
    if logits.shape[1] != len(class_names):
        way = "Give it a new last layer: --network.new_head true."
        if isinstance(model, Anchored) or made is None:
            way = (
                "--network.new_head true gives a new last layer only to standard models made by"
                " name."
            )
        raise OptionError(
            f"the data have {len(class_names)} classes, and the model in {folder}"
            f" {logits.shape[1]}. {way}"
        )
    if model.class_names is not None and model.class_names != class_names:
        pairs = zip(model.class_names, class_names, strict=True)
        place = next(i for i, (theirs, ours) in enumerate(pairs) if theirs != ours)
        raise OptionError(
            f"{folder} was trained on other classes: class {place} is"
            f" {model.class_names[place]!r} there and {class_names[place]!r} in the data."
        )
    return model
