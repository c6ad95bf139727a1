"""Bare weights: read from a file without running code, loaded into a network; their digest."""

import hashlib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from killick.errors import CheckpointError

CHECKPOINT_FORMAT = "killick-checkpoint"  # of a run that can be resumed
_WRAPPERS = ("state_dict", "model", "net", "model_state_dict", "model_ema")
_PREFIXES = ("module.", "_orig_mod.", "net.")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights in a file that was saved by safetensors or torch; nothing in it can run code."""
    if not path.is_file():
        there = "a folder without a model" if path.is_dir() else "nothing there"
        raise CheckpointError(
            f"cannot start from {path}: expected a folder written by killick.save, a run folder, a"
            f" .safetensors file or a saved state_dict, found {there}."
        )
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        refuse_bomb(path)
        found: Any = load_plain(path)
    except Exception as problem:  # whatever a file of another kind makes its readers raise
        raise CheckpointError(
            f"cannot start from {path}: it is damaged or holds more than weights"
            f" ({type(problem).__name__}). Save those of a network alone:"
            " torch.save(net.state_dict(), FILE)."
        ) from None
    said = found.get("format") if isinstance(found, Mapping) else None
    if isinstance(said, str) and said == CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"cannot start from {path}: it is the state of a run that goes on with --resume"
            f" {path.parent}. A finished run is started from by its folder."
        )
    for name in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
            break
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and isinstance(weight, Tensor) for name, weight in found.items()
    ):
        raise CheckpointError(f"cannot start from {path}: expected a state_dict in it.")
    weights = {name: weight for name, weight in found.items() if name != "n_averaged"}
    for prefix in _PREFIXES:  # what wrappers put in front
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    return weights


def fill(
    net: nn.Module,
    weights: dict[str, Tensor],
    where: Path,
    name: str,
    new_head: bool,
    hint: str = "If it has other classes: --network.new_head true.",
    which: str = "Say which network it is: --network timm:resnet50, for example.",
) -> None:
    """Load `weights` into `net`; all of them must fit, but for the last layer if `new_head`."""
    own = net.state_dict()
    other = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    if new_head and other:
        head = {name.rpartition(".")[0] for name in other}
        if len(head) == 1:
            weights = {name: weight for name, weight in weights.items() if name not in other}
            other = []
    for names, problem in ((missing, "has no"), (unknown, "has an unknown")):
        if names:
            raise CheckpointError(
                f"cannot start from {where}: expected the weights of {name}, but it {problem}"
                f" {names[0]!r} ({len(names)} such). {which}"
            )
    if other:
        odd = other[0]
        raise CheckpointError(
            f"cannot start from {where}: expected {odd!r} of shape {tuple(own[odd].shape)}, found"
            f" {tuple(weights[odd].shape)}. {hint}"
        )
    net.load_state_dict({**own, **weights})


def load_plain(path: Path) -> Any:
    """What torch wrote, on the CPU; nothing in it can run code, and nothing is said of its making.

    Raises:
        Exception: Of any kind, if it is damaged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)


def refuse_bomb(path: Path) -> None:
    """Refuse an archive that is larger inside than outside; torch does not compress its own.

    Raises:
        CheckpointError: If it is.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        inside = sum(member.file_size for member in archive.infolist())
    if inside > path.stat().st_size:
        raise CheckpointError(
            f"{path.name} is damaged: expected no more than its {path.stat().st_size} bytes in it,"
            f" found {inside}."
        )


def digest_weights(model: nn.Module) -> str:
    """Twelve letters that stand for all a model holds: weights, statistics, references."""
    normalize = getattr(model, "normalize", None)
    known = None if normalize is None else (normalize.mean, normalize.std)
    digest = hashlib.sha256(f"normalized by {known}".encode())
    for name, value in sorted(model.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]
