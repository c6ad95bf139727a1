"""Networks and functions that are not models of Killick, as standard models."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from killick.core.standard import Standard, standard
from killick.errors import OptionError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD, create
from killick.nets.custom import LIBRARIES
from killick.storage.weights import fill, read_weights

Normalization = tuple[Sequence[float], Sequence[float]]


class FunctionNet(nn.Module):
    """A function that maps images to logits, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function
        own = str(getattr(function, "__name__", type(function).__name__))
        self.name = "function" if own == "<lambda>" else own

    def forward(self, x: Tensor) -> Tensor:
        """The function's logits."""
        return self._function(x)


def wrap_network(net: nn.Module, normalize: Normalization | None, size: int | None) -> Standard:
    """Any network as a standard model; timm's know their own preprocessing."""
    config = getattr(net, "pretrained_cfg", None) or {}
    if normalize is None and config.get("mean"):
        normalize = (config["mean"], config["std"])
    if size is None and config.get("input_size"):
        size = int(config["input_size"][-1])
    if normalize is None or size is None:
        missing = [*(["normalize=(mean, std)"] if normalize is None else [])]
        missing += ["size="] if size is None else []
        raise OptionError(
            f"{type(net).__name__} needs {' and '.join(missing)}. For a network that takes images"
            " in 0 to 1: normalize=((0, 0, 0), (1, 1, 1))."
        )
    return standard(net, normalize, image_shape=(3, size, size))


def make_by_name(
    name: str,
    checkpoint: Path | None,
    normalize: Normalization | None,
    size: int | None,
    classes: int | None,
) -> Standard:
    """A network of a library, such as `timm:resnet50`, with weights from a file."""
    net = create(name, **({} if classes is None else {"num_classes": classes}))
    if checkpoint is None:
        raise OptionError(f"{name} has no weights. Give them: --checkpoint FILE.")
    if checkpoint.is_dir():
        raise OptionError(
            f"--checkpoint must be a file with weights, found the folder {checkpoint}. To evaluate"
            f" a run or saved model: killick evaluate {checkpoint}."
        )
    hint = "Name its own network, and with --data the data that it was trained on."
    fill(net, read_weights(checkpoint), checkpoint, name, new_head=False, hint=hint)
    if name.partition(":")[0] not in LIBRARIES and (normalize is None or size is None):
        raise OptionError(f"{name}, a network of your own, requires --mean, --std and --size.")
    config = getattr(net, "pretrained_cfg", None) or {}
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    side = size or int(
        (config.get("input_size") or (3, 32 if name.startswith("killick:") else 224))[-1]
    )
    return standard(net.eval(), normalize or (mean, std), image_shape=(3, side, side))


def usual_view(
    model: Standard, name: str, size: int | None, resize: int | None
) -> tuple[int | None, str]:
    """What images are usually resized to for a library's networks, and how."""
    config = getattr(model.net, "pretrained_cfg", None) or {}
    how = config.get("interpolation", "bilinear")
    if resize is not None or size is not None:
        return resize, how
    side = model.image_shape[-1]
    if config.get("crop_pct"):
        return int(side / config["crop_pct"]), how
    return (round(side * 256 / 224) if name.startswith("torchvision") else None), how


def check_statistics(normalize: Any) -> None:
    """Refuse what is not mean and standard deviation of three channels."""
    try:
        fits = normalize is None or [len(part) for part in normalize] == [3, 3]
    except TypeError:
        fits = False
    if not fits:
        raise OptionError(
            "expected normalize=(mean, std) with three numbers each, for images in 0 to 1, found"
            f" {normalize!r}."
        )
