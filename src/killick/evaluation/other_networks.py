"""Networks and functions of others, wrapped as standard models with their preprocessing."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.image_model import make_normalizer
from killick.core.standard import Standard, standard
from killick.data.data_settings import INTERPOLATIONS
from killick.data.image_set import ImageSet
from killick.data.preprocessing import view_for
from killick.errors import OptionError, check_option
from killick.nets import (
    NetworkPreprocessing,
    create,
    load_pretrained,
    names_weights,
    preprocessing_of,
    weights_of,
)
from killick.nets.custom import is_network_name
from killick.storage.loading import load
from killick.storage.weights import count_classes, fill, read_weights

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


def wrap_network(
    net: nn.Module,
    like: ImageSet | None = None,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
) -> Standard:
    """A network as a standard model with its preprocessing, and the class names of its weights.

    What is not given is as the network's weights have it. Images in memory are shown in their own
    size to a network whose preprocessing is unknown.
    """
    make_normalizer(normalize)  # refuses what is not one
    known = preprocessing_of(net)
    if known is None:
        if size is None and like is not None:
            size = like.source.shape[-1] if isinstance(like.source, Tensor) else like.side
        if normalize is None or size is None:
            raise OptionError(
                f"{type(net).__name__} needs normalize=(mean, std) and size= (--mean, --std, --size)."
                " For a network that takes images in 0 to 1: normalize=((0, 0, 0), (1, 1, 1))."
            )
        known = NetworkPreprocessing(size)
    if interpolation is not None:
        check_option("interpolation", interpolation, INTERPOLATIONS)
    known = known.override(size, resize, interpolation, normalize)
    model = standard(net, (known.mean, known.std), image_shape=(3, known.size, known.size))
    model.provenance = {"preprocessing": known.view()}
    if (weights := weights_of(net)) is not None:
        model.class_names = weights.class_names
        model.provenance["weights"] = weights.name
    return model


def open_model(
    model: str | os.PathLike[str],
    *,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
) -> Anchored | Standard:
    """A saved model, or a network by name as a standard one, with its preprocessing."""
    given = os.fspath(model)
    if is_network_name(given):
        net = make_by_name(given, checkpoint, pretrained)
        return wrap_network(net, None, normalize, size, resize, interpolation)
    refuse_options(given, checkpoint=checkpoint, pretrained=pretrained or None)
    refuse_options(given, normalize=normalize, size=size)
    found = load(given)
    if resize is not None or interpolation is not None:
        changed = view_for(found).override(None, resize, interpolation).settings()
        found.provenance = {**found.provenance, "preprocessing": changed}
    return found


def refuse_options(given: str, **options: object) -> None:
    """Refuse options that a saved model or exported file has decided."""
    for option, value in options.items():
        if value is not None:
            raise OptionError(f"{given} has its own {option}: it takes none, found {value}.")


def make_by_name(
    name: str,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    classes: int | None = None,
) -> nn.Module:
    """A network of a library, such as `timm:resnet50`, with weights from a file or its library's.

    The number of classes is that of the weights; `classes` is for a network that must be told.
    """
    if checkpoint is None:
        if not (pretrained or names_weights(name)):
            raise OptionError(
                f"{name} has no weights. Give them: --checkpoint FILE, or --pretrained for those of"
                " its library."
            )
        return load_pretrained(name)
    if pretrained:
        raise OptionError(f"{name} takes either --pretrained or --checkpoint {checkpoint}.")
    if checkpoint.is_dir():
        raise OptionError(
            f"--checkpoint must be a file with weights, found the folder {checkpoint}. To evaluate"
            f" a run or saved model: killick evaluate {checkpoint}."
        )
    weights = read_weights(checkpoint)
    net = create(name, **({} if classes is None else {"num_classes": classes}))
    if found := count_classes(net.state_dict(), weights):
        net = create(name, num_classes=found)
    fill(net, weights, checkpoint, name, new_head=False, hint="Name its own network.")
    return net.eval()
