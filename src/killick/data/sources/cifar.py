"""CIFAR-10 and CIFAR-100 from torchvision's files."""

import os
from functools import partial

import torch

from killick.data.image_set import ImageSet, Sets
from killick.data.sources import DATA_SOURCES, DataSource, LoadOptions
from killick.errors import DataError


def load_cifar(name: str, argument: str, options: LoadOptions) -> Sets:
    """CIFAR-10 or CIFAR-100, from torchvision's files under `options.root`."""
    from torchvision import datasets

    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    folder = str(options.folder)
    sets = []
    for train in (True, False):
        try:
            part = kind(folder, train=train, download=options.download)
        except (RuntimeError, OSError) as error:
            where = os.path.join(folder, kind.base_folder)
            found = "damaged or missing files" if os.path.isdir(where) else "no such folder"
            found = f"the download failed: {error}" if options.download else found
            raise DataError(
                f"cannot read {name} in {where}: {found}. Name its folder (--data.root FOLDER;"
                " --root FOLDER to evaluate), download it (--data.download; --download to evaluate)"
                " or use a copy (--data pack:FILE.npz)."
            ) from error
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        sets.append(ImageSet.of(name, images, torch.tensor(part.targets), part.classes))
    return Sets(*sets)


for _name in ("cifar10", "cifar100"):
    _help = "under --data.root; --data.download downloads it"
    DATA_SOURCES.register(_name, DataSource(_name, partial(load_cifar, _name), _help))
