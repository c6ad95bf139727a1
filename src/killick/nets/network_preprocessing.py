"""The preprocessing of a network: how images are resized, cropped and normalized for it.

It belongs to the weights. timm's networks carry it, torchvision's have it by name, and what was
loaded by `killick.nets.load_pretrained` remembers its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from killick.errors import OptionError
from killick.nets.architecture import IMAGENET_MEAN, IMAGENET_STD, remembered


@dataclass(frozen=True)
class NetworkPreprocessing:
    """Size, resizing, interpolation and normalization of a network's images."""

    size: int  # height and width of the network's input
    resize: int | None = None  # shorter side before the center crop; None: as size
    interpolation: str = "bilinear"
    squash: bool = False  # resized to a square without keeping the aspect ratio
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def override(
        self,
        size: int | None = None,
        resize: int | None = None,
        interpolation: str | None = None,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> "NetworkPreprocessing":
        """With what a user gave instead; `resize` belongs to its size, and goes with it."""
        found = self
        if size is not None and size != self.size:
            found = replace(found, size=size, resize=None)
        if resize is not None:
            found = replace(found, resize=resize, squash=False)
        if interpolation is not None:
            found = replace(found, interpolation=interpolation)
        if normalize is not None:
            found = replace(found, mean=tuple(normalize[0]), std=tuple(normalize[1]))
        return found

    def view(self) -> dict[str, Any]:
        """All but the normalization, as settings of a recipe's `data` name them."""
        names = ("size", "resize", "interpolation", "squash")
        return {name: getattr(self, name) for name in names}

    def settings(self) -> dict[str, Any]:
        """As settings of a recipe's `data`."""
        return {**self.view(), "mean": list(self.mean), "std": list(self.std)}


def preprocessing_of(net: nn.Module) -> NetworkPreprocessing | None:
    """The preprocessing of a network by name or of timm; None if unknown."""
    known = getattr(net, "killick_preprocessing", None)
    if isinstance(known, NetworkPreprocessing):
        return known
    if settings := getattr(net, "pretrained_cfg", None):
        return read_timm(settings)
    made = remembered(net)
    return None if made is None else preprocessing_by_name(made.name)


def preprocessing_by_name(name: str) -> NetworkPreprocessing | None:
    """The preprocessing of a network or of weights by name; those on the hub are fetched."""
    library, _, rest = name.partition(":")
    if library == "timm":
        import timm

        settings: Any = timm.get_pretrained_cfg(rest, allow_unregistered=True)
        return None if settings is None else read_timm(settings.to_dict())
    if library == "torchvision":
        from torchvision.models import get_model_weights

        plain, _, tag = rest.partition("#")
        known = get_model_weights(plain)
        return read_torchvision(known[tag] if tag else known.DEFAULT)
    if "/" in rest:
        from killick.nets.pretrained import load_pretrained

        return preprocessing_of(load_pretrained(name))
    return NetworkPreprocessing(32) if library == "killick" else None


def read_timm(settings: Mapping[str, Any]) -> NetworkPreprocessing:
    """From `pretrained_cfg`, as timm's own evaluation reads it."""
    import timm.data

    library: Any = timm.data
    found = library.resolve_data_config(pretrained_cfg=dict(settings))
    _, height, width = found["input_size"]
    if height != width or found["crop_mode"] == "border":
        raise OptionError(
            f"{settings.get('architecture')} takes images of {height} x {width} px, crop mode"
            f" {found['crop_mode']!r}; Killick shows square crops. Choose another network."
        )
    squash = found["crop_mode"] == "squash"
    return NetworkPreprocessing(
        size=height,
        resize=None if squash else math.floor(height / found["crop_pct"]),
        interpolation=found["interpolation"],
        squash=squash,
        mean=tuple(found["mean"]),
        std=tuple(found["std"]),
    )


def read_torchvision(weights: Any) -> NetworkPreprocessing:
    """From the transforms that belong to weights of torchvision."""
    found = weights.transforms()
    return NetworkPreprocessing(
        size=found.crop_size[0],
        resize=found.resize_size[0],
        interpolation=found.interpolation.value,
        mean=tuple(found.mean),
        std=tuple(found.std),
    )
