"""The same classes in several domains, from folders laid out as DomainNet: `real/cat/1.jpg`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from killick.data.image_set import ImageSet
from killick.data.sources.imagefolder import read_classes
from killick.data.splits import stratified
from killick.errors import DataError

HELD = 0.2  # of a domain, to test a probe on the domain it was trained on
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Domain:
    """The images of one domain."""

    train: ImageSet  # to train a probe on
    held: ImageSet  # to test that probe on the same domain
    whole: ImageSet  # to test probes of other domains on


def load_domains(
    folder: Path, wanted: Sequence[str] | None = None, sources: Sequence[str] = ()
) -> dict[str, Domain]:
    """The domains of a folder by name, with the classes that all of them have."""
    top = folder.expanduser()
    there = [path.name for path in top.iterdir() if path.is_dir()] if top.is_dir() else []
    there = sorted(name for name in there if not name.startswith("."))
    names = list(dict.fromkeys(wanted or there))
    missing = [name for name in (*names, *sources) if name not in there or name not in names]
    if missing or len(names) < 2:
        raise DataError(
            f"--domains {folder} needs at least 2 folders DOMAIN/CLASS/image"
            + (f", among them {missing[0]!r}" if missing else "")
            + f"; found {', '.join(there[:10]) or 'none'}. Choose with --styles and --sources."
        )
    read = {name: read_classes(top / name, name) for name in names}
    shared = set.intersection(*(set(images.class_names) for images in read.values()))
    if len(shared) < 2:
        raise DataError(
            f"the domains {', '.join(names)} in {folder} share"
            f" {', '.join(sorted(shared)) or 'no class'}. At least 2 common classes are needed."
        )
    return {name: _split(_keep_classes(images, sorted(shared))) for name, images in read.items()}


def _keep_classes(images: ImageSet, names: Sequence[str]) -> ImageSet:
    if list(images.class_names) == list(names):
        return images
    numbers = torch.tensor([names.index(n) if n in names else -1 for n in images.class_names])
    labels = numbers[images.labels]
    kept = (labels >= 0).nonzero().squeeze(1)
    return replace(images.part(kept), labels=labels[kept], class_names=tuple(names))


def _split(images: ImageSet) -> Domain:
    """A fixed fifth is held out, stratified by class; every class keeps an image to train on."""
    room = len(images) - len(images.labels.unique())
    count = min(round(HELD * len(images)), room)
    kept, cut = stratified(images.labels, count, _SPLIT_SEED)
    return Domain(images.part(kept), images.part(cut), images)
