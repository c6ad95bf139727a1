"""Running what was exported: ONNX by onnxruntime, .pt2 by torch, with one interface."""

import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass

from killick.core.image_model import Threshold
from killick.errors import (
    InstallError,
    OptionError,
    ShapeError,
    StorageError,
    import_library,
    one_line,
)
from killick.storage.export_metadata import KEY, ExportMetadata, read_metadata

INPUT = "images"  # of the ONNX graph
FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
SUFFIXES = {".onnx": "onnx", ".pt2": "torch"}
_LARGEST_NOTE = 2**26  # bytes


class Exported:
    """An exported file, ready to run.

    Attributes:
        path: Of the file.
        about: Its metadata.
        classes: How many logits there are; found by running it on a blank image.
    """

    def __init__(self, path: Path, about: ExportMetadata, runs: Any, device: torch.device) -> None:
        self.path, self.about = path, about
        self._runs, self._device = runs, device
        self.classes = self._count_classes()

    @property
    def threshold(self) -> Threshold | None:
        """Where in-distribution ends, if that was fitted."""
        return self.about.threshold

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Its outputs by name, on the CPU, for images as `about` has them."""
        about = self.about
        if images.dtype != getattr(torch, about.takes) or images.shape[1:] != about.image_shape:
            shape = ", ".join(map(str, about.image_shape))
            raise ShapeError(
                f"expected {about.takes} images of shape (n, {shape}), found {images.dtype} of"
                f" shape {tuple(images.shape)}."
            )
        if about.file_format == "onnx":
            found = self._runs.run(about.outputs, {INPUT: images.cpu().contiguous().numpy()})
            outputs = [torch.from_numpy(np.array(value)) for value in found]
        else:
            with torch.no_grad():
                outputs = [value.cpu() for value in self._runs(images.to(self._device))]
        return dict(zip(about.outputs, outputs, strict=True))

    def _count_classes(self) -> int:
        """How many logits there are; the file must do what it says of itself with an image."""
        about = self.about
        try:
            found = self(torch.zeros(1, *about.image_shape, dtype=getattr(torch, about.takes)))
            classes = found["logits"].shape[-1]
            for name, values in found.items():
                wanted = (1,) if name in ("energy", "in_distribution") else (1, classes)
                if values.shape != wanted or classes < 2:
                    shape = tuple(values.shape)
                    raise ShapeError(f"expected {name} of shape {wanted}, found {shape}")
            if about.class_names is not None and len(about.class_names) != classes:
                raise ShapeError(f"expected {classes} class names, found {len(about.class_names)}")
        except Exception as problem:  # whatever a runtime raises for a file that is damaged
            raise StorageError(
                f"cannot open {self.path}: it does not run on one {about.takes} image of shape"
                f" {about.image_shape}, as its metadata claims ({one_line(problem)}). Export the model"
                " again."
            ) from None
        return classes


def is_export(path: Path) -> bool:
    """Whether a path is a file of `killick export`, or the folder it lies in."""
    if path.is_dir():
        return not (path / "config.json").exists() and bool(_list_exports(path))
    return path.suffix.lower() in SUFFIXES


def _list_exports(path: Path) -> list[Path]:
    """The exported files in a folder; or the file itself."""
    files = [path / name for name in FILES.values()] if path.is_dir() else [path]
    return [file for file in files if file.is_file() and file.suffix.lower() in SUFFIXES]


def open_export(path: Path, *, device: str = "cpu", trust: bool = False) -> Exported:
    """A file of `killick export`, or the folder it lies in.

    Args:
        path: Of the file or its folder.
        device: Where it is to run.
        trust: Needed for .pt2 files: torch's loader can run code that is in them. ONNX files hold
            no code.

    Raises:
        StorageError: If it is not there, damaged, or not made by Killick.
    """
    found = _list_exports(path)
    if len(found) != 1:
        there = "both; name one of them" if found else "nothing there"
        raise StorageError(
            f"cannot open {path}: expected a file of `killick export`, .onnx or .pt2, found {there}."
        )
    (path,) = found
    if SUFFIXES[path.suffix.lower()] == "onnx":
        session = _start_session(path, device)
        note = session.get_modelmeta().custom_metadata_map.get(KEY, "")
        return Exported(path, read_metadata(note, path), session, torch.device("cpu"))
    about = read_metadata(_read_note(path), path)
    if not trust:
        raise OptionError(
            f"torch's .pt2 files can run code when they are loaded. If you know who made {path},"
            " pass --trust (trust=True); ONNX files need no trust."
        )
    where = torch.device(device)
    return Exported(path, about, _read_program(path, where), where)


def _start_session(path: Path, device: str) -> Any:
    """An onnxruntime session that runs a file."""
    require_onnx("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    providers = ["CPUExecutionProvider"]
    if device.startswith("cuda"):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise InstallError(
                "this onnxruntime is for CPUs. Install onnxruntime-gpu, or use --device cpu."
            )
        providers.insert(0, "CUDAExecutionProvider")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as problem:  # onnxruntime has many kinds, none of them documented
        raise StorageError(
            f"cannot open {path}: onnxruntime refuses it ({one_line(problem)})."
        ) from None


def require_onnx(*names: str) -> None:
    """Raise an error if one of these libraries is missing."""
    for name in names:
        import_library(name, "export", "ONNX")


def _read_program(path: Path, device: torch.device) -> Any:
    """The module in a .pt2 file that is trusted: torch's loader can run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about how it reads
            program = torch.export.load(os.fspath(path))
        if device.type != "cpu":
            program = move_to_device_pass(program, str(device))  # .to() would leave its checks
        return program.module()
    except Exception as problem:  # whatever torch raises for a damaged file
        raise StorageError(f"cannot open {path}: {one_line(problem)}.") from problem


def _read_note(path: Path) -> str:
    """The metadata in a .pt2 file; nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(f"/extra/{KEY}.json"))
            if archive.getinfo(name).file_size > _LARGEST_NOTE:
                raise ValueError("its metadata are too large")
            return archive.read(name).decode()
    except Exception as problem:  # whatever zipfile raises for a damaged file
        raise StorageError(
            f"cannot open {path}: not a .pt2 file of `killick export` ({one_line(problem)})."
        ) from None
