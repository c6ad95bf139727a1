"""Corrupted copies of images: `corrupt`, and the function behind each name."""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from killick.corruptions import (
    blur,
    cbar_caustics,
    cbar_noise,
    cbar_patterns,
    cbar_sparkles,
    cbar_warps,
    digital,
    elastic,
    frost,
    glass,
    motion,
    noise,
    weather,
)
from killick.corruptions.severity_table import CBAR, COMMON, EXTRA
from killick.errors import DtypeError, OptionError, ShapeError, check_option

TABLES = ("cifar", "imagenet")
SEVERITIES = (1, 2, 3, 4, 5)
SMALL = 64  # sides up to this have CIFAR's constants, where nobody says otherwise
# Pixels worked on at once: on a CPU what stays near the caches, on a GPU what fills it.
_PIXELS = {"cpu": 2**17, "cuda": 2**24}
# Those with large temporary arrays want less, those that pay for each call more.
_ROOM = {"motion_blur": 0.5, "snow": 0.5, "defocus_blur": 0.5, "glass_blur": 2, "gaussian_blur": 2}
_ROOM |= {"fog": 2, "zoom_blur": 4, "spatter": 4}

MAKERS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": glass.glass_blur,
    "motion_blur": motion.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": frost.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": elastic.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": digital.saturate,
    "blue_noise_sample": cbar_noise.blue_noise_sample,
    "checkerboard_cutout": cbar_patterns.checkerboard_cutout,
    "inverse_sparkles": cbar_sparkles.inverse_sparkles,
    "sparkles": cbar_sparkles.sparkles,
    "brownish_noise": cbar_noise.brownish_noise,
    "pinch_and_twirl": cbar_warps.pinch_and_twirl,
    "ripple": cbar_warps.ripple,
    "circular_motion_blur": cbar_warps.circular_motion_blur,
    "lines": cbar_sparkles.lines,
    "transverse_chromatic_abberation": cbar_warps.transverse_chromatic_abberation,
    "caustic_refraction": cbar_caustics.caustic_refraction,
    "perlin_noise": cbar_noise.perlin_noise,
    "plasma_noise": cbar_patterns.plasma_noise,
    "cocentric_sine_waves": cbar_patterns.cocentric_sine_waves,
    "single_frequency_greyscale": cbar_patterns.single_frequency_greyscale,
}
ROWS = {**COMMON, **CBAR}

Photographs = Sequence[Tensor] | str | os.PathLike[str] | None


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    table: str | None = None,
    generator: torch.Generator | None = None,
    frost: Photographs = None,
) -> Tensor:
    """Corrupted copies of `images`, each with its own randomness; the images stay as they are.

    `killick list corruptions` shows the names: the 19 of ImageNet-C (Hendrycks and Dietterich 2019)
    and those of C-bar (Mintun et al. 2021). The same call with a generator in the same state gives
    the same pixels; another device, or another number of images, gives other ones.

    Args:
        images: uint8 `(n, 3, height, width)`, of any size, on any device; work is done there.
        name: Of the corruption.
        severity: 1 to 5.
        table: Whose constants: "cifar" (made for 32 px) or "imagenet" (for 224 px). They differ.
            By default "cifar" up to 64 px, "imagenet" above.
        generator: On the images' device; torch's own of that device by default.
        frost: For "frost": the original photographs, instead of procedural ice: a folder, the name
            of an installed package that has one, or tensors. See `frost.load_photographs`.

    Returns:
        uint8 of the same shape, on the same device.

    Example:
        >>> images = torch.full((4, 3, 32, 32), 128, dtype=torch.uint8)
        >>> generator = torch.Generator().manual_seed(0)
        >>> corrupt(images, "gaussian_noise", 3, table="cifar", generator=generator).shape
        torch.Size([4, 3, 32, 32])
    """
    check_images(images)
    check_option("the corruption", name, ROWS)
    table = choose_table(images.shape[-2:], table)
    arguments = find_arguments(name, severity, table)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OptionError(
            f"expected a torch.Generator, found {generator!r}. Of a seed:"
            " torch.Generator().manual_seed(seed)."
        )
    if generator is not None and generator.device.type != images.device.type:
        raise OptionError(
            f"expected a generator on the images' device, {images.device.type}, found one on"
            f" {generator.device.type}. Make it there: torch.Generator({images.device.type!r})."
        )
    options = {} if frost is None or name != "frost" else {"textures": _photographs(frost)}
    if not len(images):
        return images.clone()
    make = MAKERS[name]
    pixels = _PIXELS.get(images.device.type, _PIXELS["cuda"]) * _ROOM.get(name, 1)
    chunk = max(1, int(pixels // (images.shape[-2] * images.shape[-1])))
    # Whoever classifies in half precision means the network, not the pictures.
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        parts = [
            make(part, *arguments, generator=generator, **options) for part in images.split(chunk)
        ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of uint8 RGB images."""
    if not isinstance(images, Tensor):
        raise DtypeError(
            f"expected a torch tensor of uint8 images, found {type(images).__name__}. Of an array:"
            " torch.from_numpy(images)."
        )
    if images.dtype != torch.uint8:
        raise DtypeError(
            f"expected uint8 images, found {images.dtype}. Corrupt before normalising; for images"
            " in 0 to 1: (images * 255).round().to(torch.uint8)."
        )
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise ShapeError(
            f"expected images of shape (n, 3, height, width), found {tuple(images.shape)}."
            + (" For a single one: images[None]." if images.ndim == 3 else "")
            + (" Channels come second: images.permute(0, 3, 1, 2)." if _ends_in_rgb(images) else "")
        )


def _ends_in_rgb(images: Tensor) -> bool:
    return images.ndim == 4 and images.shape[-1] == 3


def choose_table(size: Sequence[int], table: str | None = None) -> str:
    """The table that is asked for, or that belongs to images of this height and width."""
    if table is None:
        return "cifar" if max(size) <= SMALL else "imagenet"
    check_option("table", table, TABLES)
    return table


def find_arguments(name: str, severity: int, table: str) -> tuple[float, ...]:
    """What the function of a corruption is called with."""
    if type(severity) is not int or severity not in SEVERITIES:
        raise OptionError(f"expected a severity from 1 to 5, found {severity!r}.")
    rows = ROWS[name].cifar if table == "cifar" else ROWS[name].imagenet
    if rows is None:
        other = "imagenet" if table == "cifar" else "cifar"
        raise OptionError(
            f"expected table={other!r} for {name}, which the C-bar list of {table} has not."
        )
    return rows[severity - 1]


def list_corruptions(kind: str, table: str) -> tuple[str, ...]:
    """The names of a kind: "c", all 19; "c15", without the four extra ones; "cbar", the ten."""
    check_option("the kind of corruptions", kind, ["c", "c15", "cbar"])
    check_option("table", table, TABLES)
    if kind == "c":
        return tuple(COMMON)
    if kind == "c15":
        return tuple(name for name in COMMON if name not in EXTRA)
    return tuple(name for name, row in CBAR.items() if getattr(row, table) is not None)


def _photographs(given: Sequence[Tensor] | str | os.PathLike[str]) -> Sequence[Tensor]:
    if isinstance(given, str | os.PathLike):
        return _load_once(os.fspath(given))
    return given


@lru_cache(maxsize=4)
def _load_once(where: str) -> Sequence[Tensor]:
    return tuple(frost.load_photographs(where))
