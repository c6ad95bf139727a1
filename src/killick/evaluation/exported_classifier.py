"""Files of `killick export` as they are evaluated: what is deployed, not what it was made from."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from killick.errors import InstallError, OptionError
from killick.evaluation.classifier import Subject
from killick.storage.exported_file import FILES, Exported, open_export


class ExportedNet(nn.Module):
    """An exported file that gives its logits where the images are."""

    def __init__(self, exported: Exported) -> None:
        super().__init__()
        self._exported = exported

    def forward(self, images: Tensor) -> Tensor:
        """The logits of uint8 images."""
        return self._exported(images)["logits"].to(images.device)


def exported_subject(
    path: Path,
    device: torch.device,
    *,
    name: str | None = None,
    trust: bool = False,
    must_use_device: bool = False,
) -> Subject:
    """The subject that an exported file is.

    Args:
        path: Of the file, or of the folder it lies in.
        device: Where pictures are, and where it runs if its runtime can.
        name: What rows call it.
        trust: Needed for .pt2 files, which can run code when they are opened.
        must_use_device: Refuse a runtime that cannot, instead of running on the CPU.
    """
    try:
        exported = open_export(path, device=str(device), trust=trust)
    except InstallError:
        if must_use_device or device.type == "cpu":
            raise
        exported = open_export(path, device="cpu", trust=trust)
    about = exported.about
    if about.takes != "uint8" or len(about.image_shape) != 3 or about.image_shape[0] != 3:
        raise OptionError(
            f"expected an exported file that takes uint8 RGB images, found {path}, which takes"
            f" {about.takes} of shape {about.image_shape}. Make its model with normalize=(mean,"
            " std), and export it again."
        )
    return Subject(
        name or _name(exported.path),
        ExportedNet(exported),
        exported.size,
        exported.class_names,
        exported.classes,
        None,
        {"network": about.network, "protocol": "exported", "reference_policy": about.references},
        _digest(exported.path),
        exported.resize,
        exported.interpolation,
        precision=about.precision,
    )


def _name(file: Path) -> str:
    """A file under its usual name is called by its folder."""
    return file.absolute().parent.name if file.name in FILES.values() else file.stem


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:12]
