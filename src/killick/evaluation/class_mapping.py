"""Maps the logits of a model to the classes of a test set: the same, some, or groups of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.data.image_set import ImageSet
from killick.errors import DataError, OutputError, one_line
from killick.runtime.plain_files import read_text

ClassMap = Mapping[str, Sequence[str | int] | str | int]
_WAY = "Map the classes: killick evaluate --shift NAME=DATA --class-map FILE."


class Alignment:
    """Which logits of a model belong to which class of a set.

    - The same names: each to its own, in whatever order.
    - Names that are some of the model's (ImageNet-R, ImageNet-A): only those logits compete.
    - Folders named by class numbers, 0 to 999 (ImageNet-V2): by number.
    - A map from each class of the set to one or several of the model's (ObjectNet): a group's logit
      is the log of the sum of its exponentials, so that its probability is the group's.

    `theirs` are the set's class names, `ours` the model's, if known. Images of classes that a map does
    not name are left out.
    """

    def __init__(
        self,
        name: str,
        theirs: tuple[str, ...],
        ours: tuple[str, ...] | None,
        classes: int,
        class_map: ClassMap | None = None,
    ) -> None:
        self.kept: tuple[str, ...] = theirs
        self.map_digest = ""  # of the map, where one was followed
        self._groups: list[list[int]] | None = None  # logits of each class; None: as they are
        if class_map is not None:
            text = json.dumps(class_map, sort_keys=True, default=str)
            self.map_digest = hashlib.sha256(text.encode()).hexdigest()[:6]
            self.kept = tuple(kind for kind in theirs if kind in class_map)
            self._groups = [_group(kind, class_map[kind], ours, classes) for kind in self.kept]
            if not self.kept:
                raise DataError(
                    f"the class map names no class of {name}. Its classes are {theirs[0]!r}, ..."
                )
        elif _are_numbers(theirs, ours, classes):
            self._groups = [[int(kind)] for kind in theirs]
        elif ours is None or theirs == ours:
            if len(theirs) != classes:
                raise OutputError(
                    f"{name} has {len(theirs)} classes, but the model has {classes} logits. {_WAY}"
                )
        elif strange := [kind for kind in theirs if kind not in set(ours)]:
            raise DataError(
                f"{len(strange)} classes of {name}, such as {strange[0]!r}, are not among the"
                f" model's ({', '.join(ours[:3])}, ...). {_WAY}"
            )
        else:
            self._groups = [[ours.index(kind)] for kind in theirs]

    def restrict(self, images: ImageSet) -> ImageSet:
        """The images of classes that are kept, with their labels renumbered."""
        if self.kept == images.class_names:
            return images
        places = {kind: place for place, kind in enumerate(self.kept)}
        numbers = torch.tensor([places.get(kind, -1) for kind in images.class_names])
        part = images.part((numbers[images.labels] >= 0).nonzero()[:, 0])
        return replace(part, labels=numbers[part.labels], class_names=self.kept)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits `(..., classes)` of the model to those of the set's classes."""
        if self._groups is None:
            return logits
        if self.map_digest:
            return torch.stack([logits[..., group].logsumexp(-1) for group in self._groups], -1)
        return logits[..., [number for (number,) in self._groups]]


def _group(
    kind: str,
    members: Sequence[str | int] | str | int,
    ours: tuple[str, ...] | None,
    classes: int,
) -> list[int]:
    """The numbers of the model's classes that a map gives for a class."""
    places = {name: place for place, name in enumerate(ours or ())}
    listed = [members] if isinstance(members, str | int) else members
    numbers = [places.get(m, -1) if isinstance(m, str) else m for m in listed]
    if not numbers or not all(0 <= number < classes for number in numbers):
        raise DataError(
            f"the class map gives {kind!r} {members!r}, which is not a name or number of the"
            f" model's {classes} classes."
        )
    return numbers


def _are_numbers(theirs: tuple[str, ...], ours: tuple[str, ...] | None, classes: int) -> bool:
    """Whether classes are named by their numbers, not by names; folders sort as 0, 1, 10, 2."""
    named = ours is not None and set(theirs) <= set(ours)
    return not named and all(kind.isdecimal() and int(kind) < classes for kind in theirs)


def read_class_map(path: Path) -> dict[str, Any]:
    """A JSON file such as `{"air_freshener": ["n04522168"], "cat": [281, 282]}`."""
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as problem:
        raise DataError(f"cannot read the class map {path}: {one_line(problem)}.") from None
    if not isinstance(found, dict):
        raise DataError(
            f"the class map {path} must be a JSON object from classes to classes, found a"
            f" {type(found).__name__}."
        )
    return found
