"""torch.export files (.pt2): the same graph for PyTorch, in Python or C++."""

import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass

from killick.errors import OptionError, StorageError, find_reason
from killick.export.about import KEY, About
from killick.export.deployed import Deployed


class TorchFile:
    """A network as a program of torch.export, to be written once its threshold is known.

    Args:
        deployed: In any precision.
        image: One image, as it takes them.
    """

    def __init__(self, deployed: Deployed, image: Tensor) -> None:
        # Zeros: torch keeps the example in the file.
        example = torch.zeros(2, *image.shape, dtype=image.dtype)
        dynamic = ({0: torch.export.Dim("batch")},)
        try:
            with torch.no_grad():
                self._program = torch.export.export(
                    deployed, (example,), dynamic_shapes=dynamic, strict=False
                )
        except Exception as problem:  # the exporter has many ways to say that it cannot
            raise OptionError(
                f"cannot export {type(deployed.net.net).__name__}: torch says"
                f" {find_reason(problem)}."
            ) from problem
        for module in self._program.graph_module.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                for noted in ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node"):
                    node.meta.pop(noted, None)

    def set_threshold(self, energy: float) -> None:
        """Up to which energy an image is in distribution."""
        self._program.state_dict["threshold"].fill_(energy)

    def write(self, about: About, path: Path) -> None:
        """One file, with what it says of itself inside, and nothing of where it was made."""
        extra = {f"{KEY}.json": about.to_json()}
        torch.export.save(self._program, os.fspath(path), extra_files=extra)


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
