"""Networks and functions that are not models of Killick, as standard models with their view."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from killick.core.standard import Standard, standard
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.errors import OptionError
from killick.nets import IMAGENET_MEAN, IMAGENET_STD, create
from killick.storage.weights import fill, read_weights

Normalization = tuple[Sequence[float], Sequence[float]]
_SIZES = {"killick": 32, "timm": 224, "torchvision": 224}


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


def wrap_network(
    net: nn.Module,
    library: str,
    like: ImageSet | None,
    normalize: Normalization | None,
    size: int | None,
    resize: int | None,
) -> tuple[Standard, PlainView]:
    """A network as a standard model, and its view.

    What is not given is as the network's library has it: timm's networks know their preprocessing,
    torchvision's share one. Images in memory are shown in their own size to other networks.
    """
    config = getattr(net, "pretrained_cfg", None) or {}
    if normalize is None and (config.get("mean") or library in _SIZES):
        normalize = (config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD))
    side = size or (config.get("input_size") or (_SIZES.get(library),))[-1]
    if side is None and like is not None:
        side = like.source.shape[-1] if isinstance(like.source, Tensor) else like.side
    if normalize is None or side is None:
        raise OptionError(
            f"{type(net).__name__} needs normalize=(mean, std) and size= (--mean, --std, --size)."
            " For a network that takes images in 0 to 1: normalize=((0, 0, 0), (1, 1, 1))."
        )
    if size is None and resize is None:
        if config.get("crop_pct"):
            resize = int(side / config["crop_pct"])
        elif library == "torchvision":
            resize = round(side * 256 / 224)
    view = PlainView(side, resize, config.get("interpolation", "bilinear"))
    return standard(net, normalize, image_shape=(3, side, side)), view


def make_by_name(name: str, checkpoint: Path | None, classes: int | None) -> nn.Module:
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
    return net.eval()
