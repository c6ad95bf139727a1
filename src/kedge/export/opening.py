"""Running what was exported: ONNX by onnxruntime, .pt2 by torch, behind one face."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.errors import OptionError, ShapeError, StorageError
from kedge.export.about import KEY, About, read_about
from kedge.export.onnx_file import INPUT, start_session
from kedge.export.torch_file import read_note, read_program
from kedge.image_model import Threshold

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
SUFFIXES = {".onnx": "onnx", ".pt2": "torch"}


class Exported:
    """A file that was exported, ready to be asked.

    Attributes:
        path: Of the file.
        about: What it says of itself.
    """

    def __init__(self, path: Path, about: About, runs: Any, device: torch.device) -> None:
        self.path, self.about = path, about
        self._runs, self._device = runs, device

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of the logits, if known."""
        return self.about.class_names

    @property
    def classes(self) -> int:
        """How many logits there are."""
        if self.about.class_names is not None:
            return len(self.about.class_names)
        kind = torch.uint8 if self.about.takes == "uint8" else torch.float32
        return int(self(torch.zeros(1, *self.about.image_shape, dtype=kind))["logits"].shape[1])

    @property
    def size(self) -> int:
        """Height and width of the images it takes."""
        return self.about.image_shape[-1]

    @property
    def resize(self) -> int | None:
        """To what the shorter side of a picture is brought before the middle is cut out."""
        return self.about.resize

    @property
    def interpolation(self) -> str:
        """How pictures are resized."""
        return self.about.interpolation

    @property
    def k(self) -> int:
        """How many references it averages over; 0 for a standard model."""
        return self.about.k

    @property
    def threshold(self) -> Threshold | None:
        """Where in-distribution ends, if that was fitted."""
        return self.about.threshold

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Its outputs by name, on the CPU.

        Args:
            images: As `about.takes` and `about.image_shape` say.
        """
        dtype = torch.uint8 if self.about.takes == "uint8" else torch.float32
        if images.dtype != dtype or tuple(images.shape[1:]) != self.about.image_shape:
            shape = ", ".join(map(str, self.about.image_shape))
            raise ShapeError(
                f"expected {self.about.takes} images of shape (n, {shape}), found {images.dtype} of"
                f" shape {tuple(images.shape)}."
            )
        if self.about.file_format == "onnx":
            found = self._runs.run(None, {INPUT: images.cpu().contiguous().numpy()})
            outputs = [torch.from_numpy(np.array(value)) for value in found]
        else:
            with torch.no_grad():
                outputs = [value.cpu() for value in self._runs(images.to(self._device))]
        return dict(zip(self.about.outputs, outputs, strict=True))


def is_export(path: Path) -> bool:
    """Whether a path is a file of `kedge export`, or the folder it lies in."""
    if path.is_dir():
        return not (path / "config.json").exists() and any(
            (path / name).is_file() for name in FILES.values()
        )
    return path.suffix.lower() in SUFFIXES


def open_export(
    path: Path, *, device: str = "cpu", trust: bool = False, threads: int | None = None
) -> Exported:
    """A file of `kedge export`, or the folder it lies in.

    Args:
        path: Of the file or its folder.
        device: Where it is to run.
        trust: Needed for .pt2 files: torch's loader can run code that is in them. ONNX files hold
            no code.
        threads: That onnxruntime may use; its own choice by default.

    Raises:
        StorageError: If it is not there, damaged, or not made by Kedge.
    """
    path = _file_in(path)
    kind = SUFFIXES[path.suffix.lower()]
    if kind == "onnx":
        return _open_onnx(path, device, threads)
    about = read_about(read_note(path), path)
    if not trust:
        raise OptionError(
            f"expected to be told to trust {path}: torch's .pt2 files can run code when they are"
            " loaded. If you know who made it, pass --trust (trust=True); ONNX files need no trust."
        )
    where = torch.device(device)
    return Exported(path, about, read_program(path, where), where)


def _file_in(path: Path) -> Path:
    if path.is_dir():
        found = [path / name for name in FILES.values() if (path / name).is_file()]
        if len(found) != 1:
            raise StorageError(
                f"cannot open {path}: expected {' or '.join(FILES.values())} in it, found"
                f" {'both; name one of them' if found else 'neither'}."
            )
        return found[0]
    if not path.is_file():
        raise StorageError(f"cannot open {path}: expected an exported file, found nothing there.")
    if path.suffix.lower() not in SUFFIXES:
        raise StorageError(
            f"cannot open {path}: expected a file of `kedge export`, .onnx or .pt2, found"
            f" {path.suffix or 'a name without an ending'!r}."
        )
    return path


def _open_onnx(path: Path, device: str, threads: int | None) -> Exported:
    from kedge.errors import KedgeError

    try:
        session = start_session(path, threads=threads, device=device)
    except KedgeError:
        raise
    except Exception as problem:  # onnxruntime has many kinds, none of them documented
        reason = " ".join(str(problem).split())[:200]
        raise StorageError(
            f"cannot open {path}: onnxruntime refuses it ({reason}). Export the model again."
        ) from None
    note = session.get_modelmeta().custom_metadata_map.get(KEY)
    if note is None:
        raise StorageError(
            f"cannot open {path}: expected an ONNX file of `kedge export`, found one of something"
            " else, which does not say what images it takes."
        )
    about = read_about(note, path)
    names = tuple(output.name for output in session.get_outputs())
    if names != about.outputs or [each.name for each in session.get_inputs()] != [INPUT]:
        raise StorageError(
            f"cannot open {path}: expected outputs {', '.join(about.outputs)}, found"
            f" {', '.join(names)}. Export the model again."
        )
    return Exported(path, about, session, torch.device("cpu"))
