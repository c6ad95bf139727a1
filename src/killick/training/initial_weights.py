"""Where a run starts from: fresh weights, or a trained network that is anchored exactly."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, anchor
from killick.core.standard import Standard, standard
from killick.errors import CheckpointError, OptionError
from killick.nets import create, remembered
from killick.storage.model_folder import load
from killick.training.checkpoint import FORMAT as CHECKPOINT_FORMAT
from killick.training.checkpoint import load_plain, refuse_bomb
from killick.training.recipe import Recipe

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_WRAPPERS = ("state_dict", "model", "net", "model_state_dict", "model_ema")
_PREFIXES = ("module.", "_orig_mod.", "net.")


@dataclass(frozen=True)
class Start:
    """The model a run begins with.

    Attributes:
        model: Anchored, or standard, as the protocol asks.
        source: What it was made from, as it was, where it was trained before; else None.
        described: In a line.
    """

    model: Anchored | Standard
    source: Anchored | Standard | None
    described: str


def make_model(
    recipe: Recipe,
    normalise: tuple[tuple[float, ...], tuple[float, ...]],
    class_names: tuple[str, ...],
    seed: int,
    start: Path | None = None,
) -> Start:
    """The model of a recipe: with fresh weights, or from trained ones.

    Args:
        recipe: Network and protocol.
        normalise: Used unless the trained model has its own.
        class_names: Of the data.
        seed: Of the first weights.
        start: A folder written by `killick.save` or a run folder, a `.safetensors` file, or a
            `state_dict` that torch saved.
    """
    size = recipe.data.size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = None if start is None else _trained(recipe, normalise, class_names, start)
        plain: Anchored | Standard
        if source is None:
            net = create_net(recipe, len(class_names))
            plain = standard(net, normalise, image_shape=(3, size, size))
            described = f"{recipe.network.name}, fresh weights"
        else:
            made = remembered(source.net)
            name = type(source.net).__name__ if made is None else made.name
            plain, described = source, f"{name}, trained weights of {start}"
        model = _as_asked(recipe, plain, fresh=source is None)
    model.class_names, model.image_shape = class_names, (3, size, size)
    if model.normalise is not None:
        mean, std = model.normalise.mean, model.normalise.std
        described += f", normalised by mean {mean} and std {std}"
    count = sum(weight.numel() for weight in model.parameters())
    return Start(model, source, f"{described}, {count:,} parameters")


def _usual_normalisation(
    recipe: Recipe,
    net: nn.Module,
    of_the_data: tuple[tuple[float, ...], tuple[float, ...]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What bare weights were most likely trained with, where the recipe does not say."""
    library = recipe.network.name.partition(":")[0]
    if recipe.data.mean is not None or library not in ("timm", "torchvision"):
        return of_the_data
    settings = getattr(net, "pretrained_cfg", None) or {}
    mean, std = settings.get("mean", IMAGENET_MEAN), settings.get("std", IMAGENET_STD)
    return tuple(mean), tuple(std)


def create_net(recipe: Recipe, classes: int) -> nn.Module:
    """The network of a recipe with fresh weights from torch's global state."""
    return create(recipe.network.name, **recipe.network.arguments, num_classes=classes)


def _as_asked(recipe: Recipe, plain: Anchored | Standard, fresh: bool) -> Anchored | Standard:
    """`plain` anchored, if the protocol asks for it and it is not yet."""
    if isinstance(plain, Anchored):
        if not recipe.protocol.anchored:
            raise OptionError(
                "expected protocol.name: anchored or masked to go on from an anchored model, found"
                " standard. Fold it first (killick.fold), or start from a standard one."
            )
        return plain
    if not recipe.protocol.anchored:
        return plain
    stem = recipe.protocol.stem
    if stem == "auto":
        stem = "random" if fresh else "exact"
    return anchor(plain, init="random" if stem == "random" else "exact").train()


def _trained(
    recipe: Recipe,
    normalise: tuple[tuple[float, ...], tuple[float, ...]],
    class_names: tuple[str, ...],
    start: Path,
) -> Anchored | Standard:
    folder = start / "model" if (start / "model" / "config.json").is_file() else start
    if folder.is_dir():
        return _with_classes(load(folder), recipe, class_names, folder)
    net = create_net(recipe, len(class_names))
    fill(net, read_weights(start), start, recipe.network.name, recipe.network.new_head)
    size = recipe.data.size
    normalise = _usual_normalisation(recipe, net, normalise)
    return standard(net.eval(), normalise, image_shape=(3, size, size))


def _with_classes(
    model: Anchored | Standard, recipe: Recipe, class_names: tuple[str, ...], folder: Path
) -> Anchored | Standard:
    """`model`, if its classes are those of the data; else with a new last layer, if asked for."""
    with torch.no_grad():
        shape = (2, *model.image_shape)
        example = torch.zeros(shape, dtype=torch.uint8 if model.normalise else torch.float32)
        arguments = (example, example) if isinstance(model, Anchored) else (example,)
        logits = model(*arguments)
    made = remembered(model.net)
    if recipe.network.new_head and isinstance(model, Standard) and made is not None:
        net = create(made.name, **{**made.arguments, "num_classes": len(class_names)})
        fill(net, model.net.state_dict(), folder, made.name, new_head=True)
        own = None if model.normalise is None else (model.normalise.mean, model.normalise.std)
        return standard(net.eval(), own, image_shape=model.image_shape)
    if logits.shape[1] != len(class_names):
        way = "Give it a new last layer: --network.new_head true."
        if isinstance(model, Anchored) or made is None:
            which = "anchored" if isinstance(model, Anchored) else "not made by name"
            way = (
                f"It is {which}, and keeps its last layer. Start from a standard model that was"
                " made by name, with --network.new_head true."
            )
        raise OptionError(
            f"expected a model with {len(class_names)} classes, as the data have, found"
            f" {logits.shape[1]} in {folder}. {way}"
        )
    if model.class_names is not None and model.class_names != class_names:
        raise OptionError(
            f"expected the classes of {folder} to be those of the data, found"
            f" {_difference(model.class_names, class_names)}. The labels would mean other things."
        )
    return model


def _difference(theirs: tuple[str, ...], ours: tuple[str, ...]) -> str:
    place = next(i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b)
    return f"class {place} is {theirs[place]!r} there and {ours[place]!r} here"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a file that was saved by safetensors or torch; nothing in it can run code."""
    if not path.is_file():
        there = "a folder without a model" if path.is_dir() else "nothing there"
        raise CheckpointError(
            f"cannot start from {path}: expected a folder written by killick.save, a run folder, a"
            f" .safetensors file or a saved state_dict, found {there}."
        )
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        refuse_bomb(path)
        found: Any = load_plain(path)
    except Exception as problem:  # whatever a file of another kind makes its readers raise
        raise CheckpointError(
            f"cannot start from {path}: it is damaged or holds more than weights"
            f" ({type(problem).__name__}). Save those of a network alone:"
            " torch.save(net.state_dict(), FILE)."
        ) from None
    said = found.get("format") if isinstance(found, Mapping) else None
    if isinstance(said, str) and said == CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"cannot start from {path}: it is the state of a run that goes on with --resume"
            f" {path.parent}. A finished run is started from by its folder."
        )
    for name in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
            break
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(weight, Tensor) for name, weight in found.items()
    ):
        raise CheckpointError(f"cannot start from {path}: expected a state_dict in it.")
    weights = {name: weight for name, weight in found.items() if name != "n_averaged"}
    for prefix in _PREFIXES:  # what wrappers put in front
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    return weights


def fill(
    net: nn.Module,
    weights: dict[str, Tensor],
    where: Path,
    name: str,
    new_head: bool,
    hint: str = "If it has other classes: --network.new_head true.",
    which: str = "Say which network it is: --network timm:resnet50, for example.",
) -> None:
    """Load `weights` into `net`; all of them must fit, but for the last layer if `new_head`."""
    own = net.state_dict()
    other = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    if new_head and other:
        head = {name.rpartition(".")[0] for name in other}
        if len(head) == 1:
            weights = {name: weight for name, weight in weights.items() if name not in other}
            other = []
    for names, problem in ((missing, "has no"), (unknown, "has an unknown")):
        if names:
            raise CheckpointError(
                f"cannot start from {where}: expected the weights of {name}, but it {problem}"
                f" {names[0]!r} ({len(names)} such). {which}"
            )
    if other:
        odd = other[0]
        raise CheckpointError(
            f"cannot start from {where}: expected {odd!r} of shape {tuple(own[odd].shape)}, found"
            f" {tuple(weights[odd].shape)}. {hint}"
        )
    net.load_state_dict({**own, **weights})
