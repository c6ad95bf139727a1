"""The same classes in several styles: folders laid out as DomainNet is, or made by Killick.

A folder has a folder for each domain, and in it one for each class: `real/cat/1.jpg`. Domains are
compared on the classes that all of them have. Without a folder, the shapes are drawn in four
styles, from pictures of their own that no recipe trains on.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from killick.data.image_set import ImageSet
from killick.data.sources.imagefolder import read_classes
from killick.data.sources.shapes import CLASS_NAMES, make_shapes
from killick.data.splits import stratified
from killick.errors import DataError

HELD = 0.2  # of a domain in a folder: cut off to test a probe on the domain it was trained on
_CUT_SEED = 0
_SHAPES_SEED = 6  # not the one of the data set
_SHAPES_TRAIN, _SHAPES_TEST = 2000, 1000


@dataclass(frozen=True)
class Domain:
    """Pictures in one style.

    Attributes:
        name: Of the style.
        train: To train a probe on.
        held: To test that probe on the same domain.
        foreign: To test probes of other domains on.
        lacking: Classes that another domain has and this one has not; they are left out of all.
    """

    name: str
    train: ImageSet
    held: ImageSet
    foreign: ImageSet
    lacking: tuple[str, ...] = ()


def load_domains(
    folder: str | None, wanted: Sequence[str] | None = None, sources: Sequence[str] = ()
) -> dict[str, Domain]:
    """The domains of a folder, or the shapes in four styles, by name.

    Of a folder a fixed fifth of each domain, of every class in proportion, is held back to test on
    the domain itself; whoever is trained on another domain is tested on all of it.

    Args:
        folder: Laid out as DomainNet is; None for the shapes.
        wanted: Names of the domains; all that are there if none are given.
        sources: Those that must be among them.
    """
    if folder is None:
        return draw_domains(_names(list(STYLES), wanted, sources, "the styles of the shapes"))
    top = Path(os.path.abspath(os.path.expanduser(folder)))
    if not top.is_dir():
        found = "a file" if top.exists() else "nothing"
        raise DataError(
            f"expected a folder of domains at {top}, laid out as DOMAIN/CLASS/picture, found"
            f" {found} there. Check the path, or download and unpack the data first."
        )
    there = sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))
    names = _names(there, wanted, sources, str(top))
    read = {name: read_classes(top / name, name) for name in names}
    every = sorted({kind for images in read.values() for kind in images.class_names})
    common = _common_classes(read, every)
    domains = {}
    for name, images in read.items():
        lacking = tuple(kind for kind in every if kind not in images.class_names)
        domains[name] = replace(_cut(_keep_classes(images, common)), lacking=lacking)
    return domains


def _common_classes(sets: Mapping[str, ImageSet], every: Sequence[str]) -> list[str]:
    """Names of the classes that all sets have."""
    first = next(iter(sets.values()))
    common = [n for n in every if all(n in images.class_names for images in sets.values())]
    if len(common) < 2:
        raise DataError(
            f"expected at least 2 classes of the same name in all of {quoted(list(sets))}, found"
            f" {quoted(common) or 'none'}. The classes of {first.name} are"
            f" {quoted(list(first.class_names))}."
        )
    return common


def _keep_classes(images: ImageSet, names: Sequence[str]) -> ImageSet:
    if list(images.class_names) == list(names):
        return images
    numbers = torch.tensor([names.index(n) if n in names else -1 for n in images.class_names])
    labels = numbers[images.labels]
    kept = (labels >= 0).nonzero().squeeze(1)
    return replace(images.part(kept), labels=labels[kept], class_names=tuple(names))


def _cut(images: ImageSet) -> Domain:
    room = len(images) - len(images.labels.unique())  # so that every class keeps one to train on
    count = min(round(HELD * len(images)), room)
    if count == 0:
        raise DataError(
            f"expected pictures enough in the domain {images.name} to hold a fifth of them back,"
            f" found {len(images)} of {images.classes} classes. Add some."
        )
    kept, cut = stratified(images.labels, count, _CUT_SEED)
    return Domain(images.name, images.part(kept), images.part(cut), images)


def _names(
    there: Sequence[str], wanted: Sequence[str] | None, sources: Sequence[str], where: str
) -> list[str]:
    """The domains to take: those that are wanted, else all that are there."""
    names = list(dict.fromkeys(wanted or there))
    missing = [name for name in names if name not in there]
    missing += [name for name in dict.fromkeys(sources) if name not in names]
    if len(there) < 2 or len(names) < 2:
        raise DataError(
            f"expected at least 2 domains in {where}, to train on one and test on another, found"
            f" {quoted(names) or 'no folders'}. Lay them out as DOMAIN/CLASS/picture."
        )
    if missing:
        raise DataError(
            f"expected the domain {missing[0]!r} in {where}, found {quoted(there)}. Name others:"
            " --styles, and --sources among them."
        )
    return names


def quoted(names: Sequence[str]) -> str:
    """The first names, in a line."""
    listed = ", ".join(repr(name) for name in names[:5])
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5} more"


def draw_domains(names: Sequence[str]) -> dict[str, Domain]:
    """The shapes in some styles.

    All styles show the same pictures, so probes of other domains are tested on those to test on.
    """
    images, labels, test_images, test_labels = make_shapes(
        _SHAPES_TRAIN, _SHAPES_TEST, _SHAPES_SEED
    )
    domains = {}
    for name in names:
        generator = torch.Generator().manual_seed(_SHAPES_SEED)
        train = ImageSet.of(name, STYLES[name](images, generator), labels, CLASS_NAMES)
        shown = STYLES[name](test_images, generator)
        test = ImageSet.of(name, shown, test_labels, CLASS_NAMES)
        domains[name] = Domain(name, train, test, test)
    return domains


def keep(images: Tensor, generator: torch.Generator) -> Tensor:
    """The pictures as they are."""
    return images


def sketch(images: Tensor, generator: torch.Generator) -> Tensor:
    """Dark lines on white where the picture changes: the length of its gradient, in grey."""
    grey = _smooth(images.float().mean(1, keepdim=True), 1)
    across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], device=images.device) / 8
    kernels = torch.stack([across, across.T])[:, None]
    slope = functional.conv2d(functional.pad(grey, (1, 1, 1, 1), mode="replicate"), kernels)
    length = slope.square().sum(1, keepdim=True).sqrt()
    strongest = length.flatten(1).quantile(0.97, dim=1).clamp_min(1).view(-1, 1, 1, 1)
    return _to_bytes(255 - 255 * (length / strongest).clamp(0, 1)).expand(images.shape).contiguous()


def clipart(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flat, gaudy colours: each channel is stretched to all of its range, and has four levels."""
    smooth = _smooth(images.float(), 1)
    low, high = (smooth.amin((2, 3), True), smooth.amax((2, 3), True))
    stretched = (smooth - low) / (high - low).clamp_min(1)
    return _to_bytes((stretched * 4).floor().clamp_max(3) * 85)


def painting(images: Tensor, generator: torch.Generator) -> Tensor:
    """Strokes: each pixel the mean of the quietest corner around it, on a canvas with grain.

    This is Kuwahara's filter; the grain runs from left to right.
    """
    reach = max(2, images.shape[-1] // 12)
    pixels = functional.pad(images.float(), (reach,) * 4, mode="replicate")
    mean = functional.avg_pool2d(pixels, reach + 1, 1)
    spread = (functional.avg_pool2d(pixels.square(), reach + 1, 1) - mean.square()).sum(1, True)
    height, width = images.shape[-2:]
    corners = [
        (slice(top, top + height), slice(left, left + width))
        for top in (0, reach)
        for left in (0, reach)
    ]
    means, spreads = (
        torch.stack([each[..., rows, columns] for rows, columns in corners])
        for each in (mean, spread)
    )
    quietest = spreads.argmin(0, keepdim=True).expand(1, *means.shape[1:])
    strokes = means.gather(0, quietest)[0]
    grain = torch.randn(len(images), 1, height, width + 4, generator=generator)
    grain = functional.avg_pool2d(grain, (1, 5), 1).to(images.device)
    return _to_bytes(strokes + 18 * grain)


STYLES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "real": keep,
    "sketch": sketch,
    "clipart": clipart,
    "painting": painting,
}


def _smooth(pixels: Tensor, reach: int) -> Tensor:
    """The mean over a small square around each pixel, edges repeated outwards."""
    padded = functional.pad(pixels, (reach,) * 4, mode="replicate")
    return functional.avg_pool2d(padded, 2 * reach + 1, 1)


def _to_bytes(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)
