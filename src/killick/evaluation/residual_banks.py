"""The bank of training residuals of a run, made once and kept in its folder."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from killick.runtime.atomic_files import write_atomic

FILE = "residuals.safetensors"
_NAME = "residuals"


def find_run(model: object) -> Path | None:
    """The run folder that a model was given by; None for anything else."""
    if not isinstance(model, str | os.PathLike):
        return None
    folder = Path(model)
    run = folder.parent if folder.name == "model" else folder
    return run if (run / "recipe.yaml").is_file() else None


def keep_bank(
    run: Path | None, identity: Mapping[str, str], make: Callable[[], Tensor | None]
) -> Tensor | None:
    """The bank in a run folder, if it is the one of `identity`; or a new one, which is kept there."""
    if run is None:
        return make()
    file = run / FILE
    # One that is not there, or damaged, is made again.
    with (
        suppress(OSError, safetensors.SafetensorError),
        safetensors.safe_open(file, "pt") as opened,
    ):
        if opened.metadata() == identity:
            found: Tensor = opened.get_tensor(_NAME)
            return found
    bank = make()
    if bank is not None:
        tensors = {_NAME: bank.cpu().contiguous()}
        write_atomic(file, safetensors.torch.save(tensors, dict(identity)))
    return bank
