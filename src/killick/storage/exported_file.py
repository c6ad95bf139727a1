"""Running what was exported: ONNX by onnxruntime, .pt2 by torch, behind one face."""

import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass

from killick.core.image_model import Threshold
from killick.errors import InstallError, KillickError, OptionError, ShapeError, StorageError, show
from killick.storage.export_metadata import KEY, ExportMetadata, read_metadata

INPUT = "images"  # of the ONNX graph
FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
SUFFIXES = {".onnx": "onnx", ".pt2": "torch"}


class Exported:
    """A file that was exported, ready to be asked.

    Attributes:
        path: Of the file.
        about: What it says of itself.
        classes: How many logits there are; found by showing it a blank image.
    """

    def __init__(self, path: Path, about: ExportMetadata, runs: Any, device: torch.device) -> None:
        self.path, self.about = path, about
        self._runs, self._device = runs, device
        self.classes = _try(self)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of the logits, if known."""
        return self.about.class_names

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
    """Whether a path is a file of `killick export`, or the folder it lies in."""
    if path.is_dir():
        return not (path / "config.json").exists() and any(
            (path / name).is_file() for name in FILES.values()
        )
    return path.suffix.lower() in SUFFIXES


def open_export(
    path: Path, *, device: str = "cpu", trust: bool = False, threads: int | None = None
) -> Exported:
    """A file of `killick export`, or the folder it lies in.

    Args:
        path: Of the file or its folder.
        device: Where it is to run.
        trust: Needed for .pt2 files: torch's loader can run code that is in them. ONNX files hold
            no code.
        threads: That onnxruntime may use; its own choice by default.

    Raises:
        StorageError: If it is not there, damaged, or not made by Killick.
    """
    path = _file_in(path)
    kind = SUFFIXES[path.suffix.lower()]
    if kind == "onnx":
        return _open_onnx(path, device, threads)
    about = _read(read_note(path), path)
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
            f"cannot open {path}: expected a file of `killick export`, .onnx or .pt2, found"
            f" {path.suffix or 'a name without an ending'!r}."
        )
    return path


def _read(note: str, path: Path) -> ExportMetadata:
    about, kind = read_metadata(note, path), SUFFIXES[path.suffix.lower()]
    if about.file_format != kind:
        raise StorageError(
            f"cannot open {path}: expected it to say that it is a file of format {kind}, found"
            f" {about.file_format}. Give it the ending it was exported with."
        )
    return about


def _try(exported: Exported) -> int:
    """How many classes a file tells apart; it must do what it says of itself with an image."""
    path, about = exported.path, exported.about
    try:
        found = exported(torch.zeros(1, *about.image_shape, dtype=getattr(torch, about.takes)))
        shapes = {name: tuple(values.shape) for name, values in found.items()}
    except Exception as problem:  # whatever a runtime raises for a file that is not what it says
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise StorageError(
            f"cannot open {path}: it does not run on one {about.takes} image of shape"
            f" {about.image_shape}, as it says it does ({reason}). Export the model again."
        ) from None
    classes = shapes["logits"][-1] if shapes["logits"] else 0
    single = ("energy", "in_distribution")
    wanted = {name: (1,) if name in single else (1, classes) for name in about.outputs}
    for name, shape in shapes.items():
        if shape != wanted[name] or classes < 2:
            raise StorageError(
                f"cannot open {path}: expected {name} of shape {wanted[name]} for one image, found"
                f" {shape}. Export the model again."
            )
    _check_names(path, about, classes)
    return classes


def _check_names(path: Path, about: ExportMetadata, classes: int) -> None:
    if about.class_names is not None and len(about.class_names) != classes:
        raise StorageError(
            f"cannot open {path}: expected {classes} class names, one for each logit, found"
            f" {len(about.class_names)}. Export the model again."
        )


def _open_onnx(path: Path, device: str, threads: int | None) -> Exported:
    try:
        session = start_session(path, threads=threads, device=device)
    except KillickError:
        raise
    except Exception as problem:  # onnxruntime has many kinds, none of them documented
        reason = " ".join(str(problem).split())[:200]
        raise StorageError(
            f"cannot open {path}: onnxruntime refuses it ({reason}). Export the model again."
        ) from None
    note = session.get_modelmeta().custom_metadata_map.get(KEY)
    if note is None:
        raise StorageError(
            f"cannot open {path}: expected an ONNX file of `killick export`, found one of something"
            " else, which does not say what images it takes."
        )
    about = _read(note, path)
    names = tuple(output.name for output in session.get_outputs())
    if names != about.outputs or [each.name for each in session.get_inputs()] != [INPUT]:
        raise StorageError(
            f"cannot open {path}: expected outputs {', '.join(about.outputs)}, found"
            f" {', '.join(names)}. Export the model again."
        )
    _check_graph(path, about, session)
    return Exported(path, about, session, torch.device("cpu"))


def _check_graph(path: Path, about: ExportMetadata, session: Any) -> None:
    """Refuse a note that belongs to another graph, before there is memory taken for an image."""
    (taken,), logits = session.get_inputs(), session.get_outputs()[0]
    kind = {"uint8": "tensor(uint8)", "float32": "tensor(float)"}[about.takes]
    if taken.type != kind or not _fits(taken.shape[1:], about.image_shape):
        raise StorageError(
            f"cannot open {path}: expected a graph that takes {kind} of shape"
            f" (n, {', '.join(map(str, about.image_shape))}), as the file says, found {taken.type}"
            f" of shape {show(taken.shape)}. Export the model again."
        )
    if len(logits.shape) == 2 and isinstance(logits.shape[1], int):
        _check_names(path, about, logits.shape[1])


def _fits(sides: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    """Whether a graph takes images of a shape; sides that it leaves open have a name, or none."""
    return len(sides) == len(shape) and all(
        said == side for said, side in zip(sides, shape, strict=True) if isinstance(said, int)
    )


def start_session(content: bytes | Path, *, threads: int | None = None, device: str = "cpu") -> Any:
    """An onnxruntime session that runs a file."""
    require_onnx("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    if threads is not None:
        options.intra_op_num_threads = threads
    providers = ["CPUExecutionProvider"]
    if device.startswith("cuda"):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise InstallError(
                "expected an onnxruntime that knows CUDA for device 'cuda', found one for CPUs."
                " Install onnxruntime-gpu, or take --device cpu."
            )
        providers.insert(0, "CUDAExecutionProvider")
    given = content if isinstance(content, bytes) else str(content)
    return onnxruntime.InferenceSession(given, options, providers=providers)


def require_onnx(*names: str) -> None:
    """Refuse to go on without these libraries."""
    for name in names:
        try:
            __import__(name)
        except ImportError as problem:
            raise InstallError(
                f"expected onnx, onnxscript and onnxruntime for ONNX files, found no {name}. Install"
                " them: pip install 'killick[export]'."
            ) from problem


def read_program(path: Path, device: torch.device) -> Any:
    """The module in a file that was made by someone who is trusted: torch's loader can run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about how it reads
            program = torch.export.load(os.fspath(path))
        if device.type != "cpu":
            program = move_to_device_pass(program, str(device))  # .to() would leave its checks
        return program.module()
    except Exception as problem:  # whatever torch raises for a damaged file
        reason = " ".join(str(problem).split())[:200]
        raise StorageError(f"cannot open {path}: {reason or type(problem).__name__}") from problem


def read_note(path: Path) -> str:
    """What the file says of itself; nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(f"/extra/{KEY}.json"))
            if archive.getinfo(name).file_size > 2**26:
                raise StorageError(f"cannot open {path}: it says too much of itself.")
            text = archive.read(name).decode()
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile, RuntimeError) as problem:
        raise StorageError(
            f"cannot open {path}: expected a .pt2 file of `killick export`, found another or a"
            f" damaged one ({' '.join(str(problem).split()) or 'no word of Killick in it'})."
        ) from None
    return text
