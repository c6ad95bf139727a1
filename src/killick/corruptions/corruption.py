"""A corruption, the registry of all of them, and `corrupt`, which applies one."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from killick.corruptions.suites import TABLES, check_severity
from killick.errors import DtypeError, OptionError, ShapeError, check_option
from killick.registry import Registry

Arguments = tuple[float, ...]
Generator = torch.Generator | None  # None: torch's own of the images' device
# Images up to this side have these constants by default; larger ones have ImageNet's.
LARGEST = {"cifar": 48, "tiny": 96}
# Float32 may leave an exact 128 as 127.99999, which truncation would turn into 127.
GUARD = 1e-3
# Pixels to work on at once: on a CPU what stays near the caches, on a GPU what fills it.
_PIXELS = {"cpu": 2**17, "cuda": 2**24}

Photographs = Sequence[Tensor] | str | os.PathLike[str] | None
CorruptionFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Corruption:
    """A corruption at five severities."""

    name: str  # as `corrupt` and result rows have it
    # called as `apply(images, *arguments, generator=generator)`, with uint8 images `(n, 3,
    # height, width)`; returns the same shape and type
    apply: CorruptionFunction
    description: str = ""  # one line
    # the arguments of `apply` at each severity, for images of 32 px
    cifar: tuple[Arguments, ...] | None = None
    # the same for 224 px. Without either, `apply` gets the severity itself
    imagenet: tuple[Arguments, ...] | None = None
    # the same for 64 px; without them CIFAR's are taken
    tiny: tuple[Arguments, ...] | None = None
    # images at once, in multiples of the usual number. Part of the definition: it decides
    # which random numbers an image gets
    chunk: float = 1

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have constants for it; all if it needs none."""
        found = tuple(table for table in TABLES if getattr(self, table) is not None)
        return found or TABLES

    def choose_table(self, table: str) -> str:
        """The table its constants are taken from: C-bar has none for 64 px, and takes CIFAR's."""
        return "cifar" if table == "tiny" and table not in self.tables else table

    def arguments(self, severity: int, table: str) -> Arguments:
        """What the function is called with."""
        check_severity(severity)
        table = self.choose_table(table)
        if table not in self.tables:
            raise OptionError(
                f"{self.name} has no constants for table={table!r}. Choose"
                f" table={self.tables[0]!r}."
            )
        rows: tuple[Arguments, ...] | None = getattr(self, table)
        return (severity,) if rows is None else rows[severity - 1]


CORRUPTIONS: Registry[Corruption] = Registry("corruptions", "corruption", "killick.corruptions")


def corruption(
    *,
    cifar: Sequence[float | Arguments] | None = None,
    tiny: Sequence[float | Arguments] | None = None,
    imagenet: Sequence[float | Arguments] | None = None,
    chunk: float = 1,
) -> Callable[[CorruptionFunction], CorruptionFunction]:
    """Register a function as the corruption of its name; see `Corruption` for the arguments."""

    def register(function: CorruptionFunction) -> CorruptionFunction:
        entry = replace(
            describe(function.__name__, function),
            cifar=_rows(cifar),
            tiny=_rows(tiny),
            imagenet=_rows(imagenet),
            chunk=chunk,
        )
        CORRUPTIONS.register(entry.name, entry)
        return function

    return register


def describe(name: str, function: CorruptionFunction) -> Corruption:
    """The corruption of a function, with the first line of its docstring as the description."""
    description = next(iter((function.__doc__ or "").strip().splitlines()), "")
    return Corruption(name, function, description)


def _rows(values: Sequence[float | Arguments] | None) -> tuple[Arguments, ...] | None:
    if values is None:
        return None
    return tuple(value if isinstance(value, tuple) else (value,) for value in values)


def corrupt(
    images: Tensor,
    name: str | Corruption,
    severity: int,
    *,
    table: str | None = None,
    generator: Generator = None,
    frost: Photographs = None,
) -> Tensor:
    """Corrupted copies of `images`, each with its own randomness; the images stay as they are.

    `killick list corruptions` shows the names: the 19 of ImageNet-C (Hendrycks and Dietterich 2019)
    and those of C-bar (Mintun et al. 2021). The same call with a generator in the same state gives
    the same pixels; another device, or another number of images, gives other ones.

    Args:
        images: uint8 `(n, 3, height, width)`, of any size, on any device; work is done there.
        name: Of the corruption; or one that need not be registered.
        severity: 1 to 5.
        table: Whose constants: "cifar" (made for 32 px), "tiny" (Tiny-ImageNet-C, 64 px) or
            "imagenet" (224 px). By default "cifar" up to 48 px, "tiny" up to 96, then "imagenet".
        generator: On the images' device; torch's own of that device by default.
        frost: For "frost": the original photographs, instead of procedural ice: a folder, the name
            of an installed package that has one, or tensors. See `frost.load_photographs`.

    Example:
        >>> images = torch.full((4, 3, 32, 32), 128, dtype=torch.uint8)
        >>> generator = torch.Generator().manual_seed(0)
        >>> corrupt(images, "gaussian_noise", 3, table="cifar", generator=generator).shape
        torch.Size([4, 3, 32, 32])
    """
    check_images(images)
    if not isinstance(generator, Generator):
        raise OptionError(
            f"expected a torch.Generator, found {generator!r}. Of a seed:"
            " torch.Generator().manual_seed(seed)."
        )
    entry = CORRUPTIONS.find(name) if isinstance(name, str) else name
    arguments = entry.arguments(severity, choose_table(images.shape[-2:], table))
    options = {} if frost is None or entry.name != "frost" else {"textures": frost}
    if not len(images):
        return images.clone()
    pixels = _PIXELS.get(images.device.type, _PIXELS["cuda"]) * entry.chunk
    chunk = max(1, int(pixels // (images.shape[-2] * images.shape[-1])))
    # Autocast around this is meant for the network, not for the images.
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        parts = [
            entry.apply(part, *arguments, generator=generator, **options)
            for part in images.split(chunk)
        ]
    corrupted = parts[0] if len(parts) == 1 else torch.cat(parts)
    if corrupted.shape != images.shape or corrupted.dtype != torch.uint8:
        raise ShapeError(
            f"the corruption {entry.name} must return uint8 images of shape {tuple(images.shape)},"
            f" found {corrupted.dtype} {tuple(corrupted.shape)}."
        )
    return corrupted


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of uint8 RGB images."""
    if not isinstance(images, Tensor):
        raise DtypeError(
            f"expected a torch tensor of uint8 images, found {type(images).__name__}. Of an array:"
            " torch.from_numpy(images)."
        )
    if images.dtype != torch.uint8:
        raise DtypeError(
            f"expected uint8 images, found {images.dtype}. Corrupt before normalizing; for images"
            " in 0 to 1: (images * 255).round().to(torch.uint8)."
        )
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        channels_last = images.ndim == 4 and images.shape[-1] == 3
        raise ShapeError(
            f"expected images of shape (n, 3, height, width), found {tuple(images.shape)}."
            + (" For a single one: images[None]." if images.ndim == 3 else "")
            + (" Channels come second: images.permute(0, 3, 1, 2)." if channels_last else "")
        )


def choose_table(size: Sequence[int], table: str | None = None) -> str:
    """The table given, or the one for images of this height and width."""
    if table is None:
        return next((t for t, side in LARGEST.items() if max(size) <= side), "imagenet")
    check_option("table", table, TABLES)
    return table


def to_floats(images: Tensor) -> Tensor:
    """The gray levels as float32, from 0 to 255."""
    return images.to(torch.float32)


def to_bytes(levels: Tensor) -> Tensor:
    """Gray levels cut to 0 ... 255 and truncated, as the originals do, not rounded.

    A thousandth of a level is added first, so that rounding errors do not darken what is whole.
    The argument may be overwritten.
    """
    # By way of int16: torch turns floats into bytes one by one, but into short integers at once.
    return levels.add_(GUARD).clamp_(0, 255).to(torch.int16).to(torch.uint8)
