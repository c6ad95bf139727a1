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

from killick.errors import CheckpointError, FileError, show
from killick.runtime.plain_files import open_plain

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
        open_plain(path).close()
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        refuse_bomb(path)
        found: Any = load_plain(path)
    except FileError:
        raise
    except Exception as problem:  # whatever a file of another kind makes its readers raise
        raise CheckpointError(
            f"cannot start from {path}: it is damaged or holds more than weights"
            f" ({type(problem).__name__}). Save only torch.save(net.state_dict(), FILE)."
        ) from None
    if isinstance(found, Mapping):
        if found.get("format") == CHECKPOINT_FORMAT:
            raise CheckpointError(
                f"cannot start from {path}: it is the checkpoint of a run, which is continued with --resume"
                f" {path.parent}. To start from a finished run, name its folder."
            )
        inside = (found[name] for name in _WRAPPERS if isinstance(found.get(name), Mapping))
        found = next(inside, found)
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
    hint: str = "Say which network it is, as --network timm:resnet50; if it has other classes:"
    " --network.new_head true.",
) -> None:
    """Load `weights` into `net`; all of them must fit, but for the last layer if `new_head`."""
    own = net.state_dict()
    if new_head:
        other = [n for n in own.keys() & weights.keys() if own[n].shape != weights[n].shape]
        if len({n.rpartition(".")[0] for n in other}) == 1:
            weights = {**weights, **{n: own[n] for n in other}}
    misfit = find_misfit(own, weights)
    if misfit:
        raise CheckpointError(
            f"cannot start from {where}: expected the weights of {name}, but {misfit}. {hint}"
        )
    net.load_state_dict(weights)


def count_classes(own: dict[str, Tensor], weights: dict[str, Tensor]) -> int | None:
    """How many classes weights have, if they differ from a network's own in that alone."""
    if own.keys() != weights.keys():
        return None
    other = [name for name in own if own[name].shape != weights[name].shape]
    heads = {weights[name].shape[:1] for name in other}
    rest = all(own[name].shape[1:] == weights[name].shape[1:] for name in other)
    return int(heads.pop()[0]) if len(heads) == 1 and rest and heads != {()} else None


def find_misfit(own: dict[str, Tensor], weights: dict[str, Tensor]) -> str | None:
    """The first difference in names or shapes between a network's own weights and others."""
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    for names, problem in ((missing, "has no"), (unknown, "has an unknown")):
        if names:
            return f"the file {problem} {show(names[0])} ({len(names)} such)"
    for name, value in own.items():
        if weights[name].shape != value.shape:
            found = show(tuple(weights[name].shape))
            return f"{name!r} has the shape {found}, not {tuple(value.shape)}"
    return None


def load_plain(path: Path) -> Any:
    """What torch wrote, on the CPU; nothing in it can run code. A damaged file can raise anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)


def refuse_bomb(path: Path) -> None:
    """Refuse an archive that is larger inside than outside; torch does not compress its own."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        inside = sum(member.file_size for member in archive.infolist())
    if inside > path.stat().st_size:
        raise CheckpointError(
            f"{path.name} is damaged: its archive of {path.stat().st_size} bytes unpacks to {inside}."
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
