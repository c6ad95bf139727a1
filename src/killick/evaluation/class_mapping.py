"""Maps the logits of a model to the classes of a test set: the same, some, or groups of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.data.image_set import ImageSet
from killick.errors import DataError, OutputError

ClassMap = Mapping[str, Sequence[str | int] | str | int]
_WAY = "Map the classes: --suite shift --shift NAME=DATA --class-map FILE."


class Alignment:
    """Which logits of a model belong to which class of a set.

    - The same names: each to its own, in whatever order.
    - Names that are some of the model's (ImageNet-R, ImageNet-A): only those logits compete.
    - Folders named by class numbers, 0 to 999 (ImageNet-V2): by number.
    - A map from each class of the set to one or several of the model's (ObjectNet): a group's logit
      is the log of the sum of its exponentials, so that its probability is the group's.

    Args:
        name: Of the set, for messages.
        theirs: The set's class names.
        ours: The model's; None if unknown, then they must be as many as the set's.
        classes: How many logits the model has.
        class_map: See above. Images of classes that it does not name are left out.
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
        self._columns: Tensor | None = None
        self._groups: list[list[int]] | None = None
        self.map_digest: str | None = None  # of the map, where one was followed
        if class_map is not None:
            text = json.dumps(class_map, sort_keys=True, default=str)
            self.map_digest = hashlib.sha256(text.encode()).hexdigest()[:6]
            self._follow(name, theirs, ours, classes, class_map)
        elif _are_numbers(theirs, ours, classes):
            self._columns = torch.tensor([int(kind) for kind in theirs])
        elif ours is None or theirs == ours:
            if len(theirs) != classes:
                raise OutputError(
                    f"{name} has {len(theirs)} classes, but the model has {classes} logits. {_WAY}"
                )
        elif set(theirs) <= set(ours):
            places = {kind: place for place, kind in enumerate(ours)}
            self._columns = torch.tensor([places[kind] for kind in theirs])
        else:
            strange = [kind for kind in theirs if kind not in set(ours)]
            raise DataError(
                f"{len(strange)} classes of {name}, such as {strange[0]!r}, are not among the"
                f" model's ({', '.join(ours[:3])}, ...). {_WAY}"
            )

    def _follow(
        self,
        name: str,
        theirs: tuple[str, ...],
        ours: tuple[str, ...] | None,
        classes: int,
        class_map: ClassMap,
    ) -> None:
        places = {kind: place for place, kind in enumerate(ours or ())}
        groups = {}
        for kind in theirs:
            if kind not in class_map:
                continue
            listed = class_map[kind]
            members = [listed] if isinstance(listed, str | int) else list(listed)
            numbers = [places.get(m, -1) if isinstance(m, str) else m for m in members]
            if not numbers or not all(0 <= number < classes for number in numbers):
                raise DataError(
                    f"the class map gives {kind!r} {listed!r}, which is not a name or number of the"
                    f" model's {classes} classes."
                )
            groups[kind] = numbers
        if not groups:
            raise DataError(
                f"the class map names no class of {name}. Its classes are {theirs[0]!r}, ..."
            )
        self.kept, self._groups = tuple(groups), list(groups.values())

    def restrict(self, images: ImageSet) -> ImageSet:
        """The images of classes that are kept, with their labels renumbered."""
        if self.kept == images.class_names:
            return images
        places = {kind: place for place, kind in enumerate(self.kept)}
        numbers = torch.tensor([places.get(kind, -1) for kind in images.class_names])
        labels = numbers[images.labels]
        part = images.part((labels >= 0).nonzero()[:, 0])
        return ImageSet(part.name, part.source, numbers[part.labels], self.kept, part.rows)

    def apply(self, logits: Tensor) -> Tensor:
        """Logits `(..., classes)` of the model to those of the set's classes."""
        if self._columns is not None:
            return logits.index_select(-1, self._columns.to(logits.device))
        if self._groups is not None:
            return torch.stack([logits[..., group].logsumexp(-1) for group in self._groups], -1)
        return logits


def _are_numbers(theirs: tuple[str, ...], ours: tuple[str, ...] | None, classes: int) -> bool:
    """Whether classes are named by their numbers, not by names; folders sort as 0, 1, 10, 2."""
    named = ours is not None and set(theirs) <= set(ours)
    return not named and all(kind.isdecimal() and int(kind) < classes for kind in theirs)


def read_class_map(path: Path) -> dict[str, Any]:
    """A JSON file such as `{"air_freshener": ["n04522168"], "cat": [281, 282]}`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"cannot read the class map {path}: {problem}.") from None
    if not isinstance(found, dict):
        raise DataError(
            f"the class map {path} must map classes, as in "
            + '{"cat": [281, 282]}, found a '
            + f"{type(found).__name__}."
        )
    return found
