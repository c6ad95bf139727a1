"""The paper's shifted and OOD sets by name, and which of them an evaluation lacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PLACES = {"shift": "imagefolder:PATH", "ood": "images:PATH"}
# Other names of the paper's sets, and of two that are often reported beside them.
_SETS = {
    "r": "R",
    "s": "Sketch",
    "sketch": "Sketch",
    "a": "A",
    "v2": "V2",
    "isun": "iSUN",
    "textures": "Textures",
    "dtd": "Textures",
    "places": "Places365",
    "places365": "Places365",
    "ninco": "NINCO",
}


def find_paper_name(name: str) -> str:
    """A set's name as in the paper's tables; its own if it is none of theirs.

    Example:
        >>> find_paper_name("imagenet-r"), find_paper_name("dtd"), find_paper_name("mine")
        ('R', 'Textures', 'mine')
    """
    short = "".join(letter for letter in name.lower() if letter.isalnum())
    return _SETS.get(short.removeprefix("imagenet"), name)


def is_imagenet(data: str) -> bool:
    """Whether data, or the recipe of that name, are ImageNet, also as a folder of its classes."""
    kind, _, path = data.partition(":")
    last = [Path(path, split, "n15075141") for split in ("", "train", "val", "test")]
    return kind.startswith("imagenet") or (
        kind == "imagefolder" and any(folder.is_dir() for folder in last)
    )


def describe_missing(sets: Mapping[str, tuple[str, ...]], evaluation: Mapping[str, Any]) -> str:
    """A line about the sets, by option, that an evaluation lacks; empty if it has all."""
    parts = []
    for option, names in sets.items():
        given = {find_paper_name(name) for name in evaluation.get(option) or ()}
        missing = [name for name in names if name not in given]
        if missing:
            parts.append(f"{', '.join(missing)} (--{option} {missing[0]}={_PLACES[option]})")
    return f"missing of the paper's sets: {'; '.join(parts)}" if parts else ""
