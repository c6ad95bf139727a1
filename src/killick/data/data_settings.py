"""The data settings of a recipe; imports no torch, for the command line."""

import os
import sys
from dataclasses import dataclass

from killick.registry import enabled_plugins
from killick.settings import setting

INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")
EMBEDDED = ("shapes", "small-shapes", "textures")  # drawn by Killick; recipes take a few images
BARE_SOURCES = (*EMBEDDED, "digits", "cifar10", "cifar100")  # names without a path
# all of Killick's own, as they are registered
SOURCES = (*BARE_SOURCES, "imagefolder", "images", "imagenet", "csv", "hf", "pack", "wds")
LARGEST_RESIZE = 2**14  # of the shorter side, before the middle is cut out


@dataclass(frozen=True)
class Data:
    """What it is trained on."""

    name: str = setting(
        "shapes", "the data, such as shapes, cifar10 or imagefolder:PATH; see killick list data"
    )
    root: str | None = setting(None, "where downloaded data are; none: $KILLICK_DATA or ./data")
    download: bool = setting(False, "download cifar10, cifar100 or wds:URL if missing")
    size: int = setting(32, "height and width of the network's input", least=4, most=2**12)
    resize: int | None = setting(
        None,
        "in evaluation, the shorter side before the center crop; none: as size",
        least=1,
        most=LARGEST_RESIZE,
    )
    interpolation: str = setting("bilinear", "where images are resized", among=INTERPOLATIONS)
    squash: bool = setting(False, "resize to a square without keeping the aspect ratio")
    mean: list[float] | None = setting(
        None,
        "of each channel, 0 to 1; none: of the training set (ImageNet's if it streams, or crops of"
        " files are resized)",
    )
    std: list[float] | None = setting(None, "of each channel, 0 to 1; none: likewise")
    limit: int | None = setting(
        None, "number of training samples, class-balanced; none: all", least=1
    )
    samples: int | None = setting(None, "images per epoch, for a stream of unknown length", least=1)
    validation: float = setting(
        0.1, "cut from the training set: a share below 1, or a number of images; 0: none", least=0
    )
    validation_from: str = setting(
        "random",
        "validation images: random by seed and class, or the last",
        among=("random", "last"),
    )
    seed: int | None = setting(
        None, "of validation images, limit and label noise; none: that of the run", least=0
    )
    label_noise: float = setting(
        0.0, "share of the training labels flipped to another class", least=0, most=1
    )
    repeats: int = setting(
        1,
        "copies of each sample in a batch, each augmented differently (repeated augmentation)",
        least=1,
        most=1000,
    )
    workers: int | None = setting(
        None, "processes that read a streamed set; none: one per core", least=0, most=512
    )
    resident: str = setting(
        "auto",
        "whether the set is kept on the device; auto: if it fits into 40 % of the free memory",
        among=("auto", "always", "never"),
    )


def full_name(name: str) -> str:
    """The name of data that may be given as a mere path: a folder, or a file of a known kind.

    Example:
        >>> full_name("list.csv"), full_name("shapes"), full_name("pack:a.npz")
        ('csv:list.csv', 'shapes', 'pack:a.npz')
    """
    kind, colon, _ = name.partition(":")
    if colon and os.sep not in kind:
        return name
    path = name.partition("#")[0]
    for ending, source in ((".npz", "pack"), (".csv", "csv"), (".tar", "wds")):
        if path.endswith(ending):
            return f"{source}:{name}"
    if name in BARE_SOURCES or not os.path.isdir(os.path.expanduser(path)):
        return name
    if enabled_plugins() or "killick.data.sources" in sys.modules:  # that may know more
        from killick.data.sources import DATA_SOURCES  # imports torch

        if name in DATA_SOURCES and not DATA_SOURCES.find(name).argument:
            return name
    return f"imagefolder:{name}"
