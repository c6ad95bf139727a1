"""Saving and loading: a folder with safetensors and a `config.json`, and nothing that can run code.

```
folder/
  config.json                  what the model is; names the two files below
  model-1f2e3d4c.safetensors   weights, references, residual bank
  examples-5a6b7c8d.safetensors  two pairs and the logits the model must give for them
```

A standard model is kept in the same way, with images in the place of pairs and no references.

The data files are named after their content and written first; replacing `config.json` is the one
step that counts. Whoever kills the process leaves either the old model or the new one, whole.
"""

import copy
import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from kedge.anchored import Anchored, anchor, evaluating
from kedge.errors import OptionError, StorageError
from kedge.image_model import Threshold
from kedge.nets import Architecture, create, remembered
from kedge.observe import relative_error
from kedge.standard import Standard, model_in, standard

FORMAT, VERSION = "kedge-model", 1
NOTE = (
    "References are usually training images. They are stored in the weights file and travel along."
)
_log = logging.getLogger("kedge")


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    provenance: dict[str, Any] | None = None,
    architecture: Architecture | None = None,
) -> Path:
    """Write an anchored or a standard model, with all it holds, into `folder`, replacing it whole.

    References are usually training images, and they travel with the model. Where they must not
    leave, store `ReferencePool.mean()` instead.

    Args:
        model: Anchored or standard; also inside DDP or a compiled wrapper.
        folder: Made if it is not there. Other files in it are left alone.
        class_names: In the order of the logits. Kept from the last time if not given.
        provenance: How it was trained: anything JSON can write down, such as
            `masking.record()`. Kept from the last time if not given.
        architecture: How to make the network again, where it was not made by `kedge.nets.create`
            and is not one of timm's. Without it, `load` needs the network: `load(folder, net=net)`.

    Returns:
        The folder.

    Raises:
        StorageError: If it cannot be written; what was there before stays as it was.
    """
    model = model_in(model)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"cannot write {folder}: expected a folder, found a file.")
    if provenance is not None:
        model.provenance = dict(provenance)
    with evaluating(model):
        weights = {key: value.detach().cpu() for key, value in model.state_dict().items()}
        examples = _examples(model)
    if class_names is not None:
        if len(class_names) != examples["logits"].shape[-1]:
            raise OptionError(
                f"expected {examples['logits'].shape[-1]} class names, one for each logit, found"
                f" {len(class_names)}."
            )
        model.class_names = tuple(class_names)
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {"kedge": _own_version(), "torch": torch.__version__},
        "architecture": _known_architecture(model, architecture, weights, examples),
        **_shape_of(model),
        "class_names": model.class_names,
        "provenance": model.provenance,
        "threshold": None if model.threshold is None else asdict(model.threshold),
    }
    if isinstance(model, Anchored):
        config["references"] = {
            "count": len(model.references),
            "policy": model.reference_policy,
            "note": NOTE,
        }
    try:
        text = json.dumps(config)
    except (TypeError, ValueError) as problem:
        raise OptionError(
            f"expected class_names and provenance that JSON can write down: {problem}."
        ) from problem
    _write(folder, json.loads(text), weights, examples)
    if count := config.get("references", {}).get("count"):
        _log.info("%d reference images are stored in %s. %s", count, folder, NOTE)
    return folder


def digest_weights(model: nn.Module) -> str:
    """Twelve letters that stand for all a model holds: weights, statistics, references."""
    normalise = getattr(model, "normalise", None)
    known = None if normalise is None else (normalise.mean, normalise.std)
    digest = hashlib.sha256(f"normalised by {known}".encode())
    for name, value in sorted(model.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]


def load(
    folder: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    device: torch.device | str = "cpu",
) -> Anchored | Standard:
    """The model in `folder`, in eval mode, checked against the examples that were saved with it.

    It is of the kind that was saved: `Anchored` or `Standard`. Both are called, predicted with and
    saved alike; where it matters, ask `isinstance(model, kedge.Anchored)`.

    Args:
        folder: Written by `save`; or a run folder, which has such a one in it.
        net: The plain network, with any weights, where it cannot be made by name.
        device: Where the model is wanted.

    Raises:
        StorageError: If anything is missing, damaged, of another version, or if the network does
            not compute what the saved one did.
    """
    folder = Path(folder)
    if (folder / "model" / "config.json").is_file() and not (folder / "config.json").exists():
        folder = folder / "model"
    config = _read_config(folder)
    weights = _read_tensors(folder, config, "weights")
    examples = _read_tensors(folder, config, "examples")
    try:
        if net is None:
            net = _make(config.get("architecture"), folder)
        model = _rebuild(net, config, weights, folder)
        error = _compare(model, examples)
    except StorageError:
        raise
    except Exception as problem:  # whatever a network raises that is not the one that was saved
        text = " ".join(str(problem).split())
        raise StorageError(f"cannot load {folder}: {text or type(problem).__name__}") from problem
    if not error <= 1e-3:
        raise StorageError(
            f"cannot load {folder}: expected the logits of the saved examples, found others (by"
            f" {error:.1e} of their size). The weights fit, but the network computes something"
            " else: pass the very network, load(folder, net=net), or the library's old version."
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in weights:
            tensor.data = tensor.data.to(weights[name].dtype)
    return model.to(device).eval()


def _make(architecture: Any, folder: Path) -> nn.Module:
    if architecture is None:
        raise StorageError(
            f"cannot load {folder}: its network was not made by name. Make it yourself and pass it:"
            " kedge.load(folder, net=net)."
        )
    return create(architecture["name"], **architecture["arguments"])


def _rebuild(
    net: nn.Module, config: dict[str, Any], weights: dict[str, Tensor], where: object
) -> Anchored | Standard:
    """`net` as the kind of model that the configuration says, with the stored weights."""
    shape = config["image_shape"]
    normalise = config["normalise"] and (config["normalise"]["mean"], config["normalise"]["std"])
    net = copy.deepcopy(net).cpu().to(_working_dtype(weights))
    model: Anchored | Standard
    if config.get("kind", "anchored") == "standard":
        model = standard(net, normalise, image_shape=shape)
    else:
        example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        model = anchor(net, stem=config["stems"], normalise=normalise, example=example)
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    stored = ("references", "residuals")
    shapes = [k for k, v in own.items() if k in weights and weights[k].shape != v.shape]
    shapes = [k for k in shapes if k not in stored]
    for found, problem in ((missing, "has no"), (unknown, "has an unknown")):
        if found:
            raise StorageError(
                f"cannot load {where}: expected the weights of {type(net).__name__}, but the file"
                f" {problem} {found[0]!r} ({len(found)} such). It holds another network."
            )
    if shapes:
        name = shapes[0]
        raise StorageError(
            f"cannot load {where}: expected {name!r} of shape {tuple(own[name].shape)}, found"
            f" {tuple(weights[name].shape)}. The network has other arguments (num_classes?)."
        )
    model.load_state_dict(weights)
    if isinstance(model, Anchored):
        if model.references.numel():
            model.check_references(model.references)
        if model.residuals.numel():
            model.set_residuals(model.residuals)
        model.reference_policy = (config.get("references") or {}).get("policy")
    names = config.get("class_names")
    model.class_names = None if names is None else tuple(names)
    model.provenance = config.get("provenance") or {}
    threshold = config.get("threshold")
    model.threshold = None if threshold is None else Threshold(**threshold)
    return model.eval()


def _shape_of(model: Anchored | Standard) -> dict[str, Any]:
    """What it takes to make the model again, once its network is there."""
    normalise = model.normalise
    shape: dict[str, Any] = {
        "kind": "anchored" if isinstance(model, Anchored) else "standard",
        "image_shape": list(model.image_shape),
        "normalise": normalise and {"mean": normalise.mean, "std": normalise.std},
    }
    if isinstance(model, Anchored):
        shape["stems"] = [stem.name for stem in model.stems]
    return shape


def _examples(model: Anchored | Standard) -> dict[str, Tensor]:
    """Two pairs or images of noise, and what the model makes of them (on the CPU, in float32)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(4, *model.image_shape, generator=generator)
    if model.normalise is not None:
        noise = (noise * 255).to(torch.uint8)
    dtype = _working_dtype(model.state_dict())
    judge = copy.deepcopy(model).cpu().to(dtype).eval()
    noise = noise if noise.dtype == torch.uint8 else noise.to(dtype)
    examples = {"images": noise[:2].clone()}
    if isinstance(model, Anchored):
        examples["references"] = noise[2:].clone()
    return {**examples, "logits": _answer(judge, examples)}


@torch.no_grad()
def _answer(model: Anchored | Standard, examples: dict[str, Tensor]) -> Tensor:
    """The logits for pairs, or for images where there are no references."""
    logits: Tensor = model(*(examples[k] for k in ("images", "references") if k in examples))
    return logits


def _working_dtype(weights: dict[str, Tensor]) -> torch.dtype:
    """In which models are checked: float32, or float64 where weights are."""
    double = any(weight.dtype == torch.float64 for weight in weights.values())
    return torch.float64 if double else torch.float32


def _compare(model: Anchored | Standard, examples: dict[str, Tensor]) -> float:
    return relative_error(_answer(model, examples), examples["logits"])


def _known_architecture(
    model: Anchored | Standard,
    given: Architecture | None,
    weights: dict[str, Tensor],
    examples: dict[str, Tensor],
) -> dict[str, Any] | None:
    """How to make the network again; only if that has been seen to work."""
    candidate = given or remembered(model.net) or _timm_architecture(model)
    if candidate is None:
        _log.warning(
            "%s was not made by name: to load it, pass the network, kedge.load(folder, net=net)."
            " Make it with kedge.nets.create, or save with architecture=, to do without.",
            type(model.net).__name__,
        )
        return None
    try:
        net = create(candidate.name, **candidate.arguments)
        error = _compare(_rebuild(net, _shape_of(model), weights, candidate.name), examples)
        reason = "" if error <= 1e-3 else f"its outputs differ by {error:.1e} of their size"
    except Exception as problem:  # whatever a network made otherwise raises
        reason = " ".join(str(problem).split())
    if not reason:
        return {"name": candidate.name, "arguments": candidate.arguments}
    if given is not None:
        raise StorageError(
            f"cannot save as {given.name!r} with {given.arguments}: made again so, the network is"
            f" not the one to be saved ({reason}). Correct architecture=, or leave it out."
        )
    _log.warning("%s does not make this network again (%s): load needs net=.", candidate, reason)
    return None


def _timm_architecture(model: Anchored | Standard) -> Architecture | None:
    """A guess for a network of timm's that was made by its own factory."""
    settings = getattr(model.net, "pretrained_cfg", None) or {}
    name, classes = settings.get("architecture"), getattr(model.net, "num_classes", None)
    if not name or not isinstance(classes, int):
        return None
    return Architecture(f"timm:{name}", {"num_classes": classes, "in_chans": model.image_shape[0]})


def _write(
    folder: Path, config: dict[str, Any], weights: dict[str, Tensor], examples: dict[str, Tensor]
) -> None:
    before = _files_of(folder)
    parts: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for key, stem, tensors in (
            ("weights", "model", weights),
            ("examples", "examples", examples),
        ):
            data = safetensors.torch.save({k: v.contiguous().clone() for k, v in tensors.items()})
            config[key] = _content_name(stem, data)
            _write_whole(folder / config[key], data, parts)
        text = json.dumps(config, indent=2) + "\n"
        _write_whole(folder / "config.json", text.encode(), parts)
    except OSError as problem:
        for path in parts:
            path.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is as it"
            " was. Make room there, or choose another folder."
        ) from problem
    for name in before - {config["weights"], config["examples"]}:
        (folder / name).unlink(missing_ok=True)


def _files_of(folder: Path) -> set[str]:
    """Files in `folder` that a save may replace: of the model there, and of a save that was killed.

    Anything else is somebody's: a folder with another config.json is refused.
    """
    if not folder.is_dir():
        return set()
    names: set[str] = set()
    if (folder / "config.json").exists():
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            ours = config.get("format") == FORMAT
        except (OSError, ValueError, RecursionError, AttributeError):
            ours = False
        if not ours:
            raise StorageError(
                f"cannot write {folder}: expected an empty folder or one written by kedge.save,"
                " found the config.json of something else. Choose another folder."
            )
        names = {n for n in (config.get("weights"), config.get("examples")) if _is_ours(n)}
    return names | {path.name for path in folder.iterdir() if _PART.fullmatch(path.name)}


_DATA = re.compile(r"(model|examples)-[0-9a-f]{8}\.safetensors")
_PART = re.compile(rf"\.({_DATA.pattern}|config\.json)\.[0-9]+\.part")


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and _DATA.fullmatch(name) is not None


def _content_name(stem: str, data: bytes) -> str:
    return f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}.safetensors"


def _write_whole(path: Path, data: bytes, parts: list[Path]) -> None:
    """All of `data` at `path`, or nothing: written beside it, forced to disk, renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    parts.append(beside)
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        there = "no such folder" if not folder.is_dir() else "no config.json in it"
        raise StorageError(
            f"cannot load {folder}: expected a folder written by kedge.save, found {there}."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise StorageError(f"cannot load {folder}: config.json is damaged ({problem}).") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise StorageError(
            f"cannot load {folder}: expected config.json to say format {FORMAT!r}, found"
            f" {config.get('format') if isinstance(config, dict) else type(config).__name__!r}."
        )
    if config.get("version") != VERSION:
        raise StorageError(
            f"cannot load {folder}: expected format version {VERSION}, found"
            f" {config.get('version')!r}. Use the version of Kedge that wrote it:"
            f" {config.get('made_with')}."
        )
    _check_config(folder, config)
    return config


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a configuration whose values are not of the kind that `save` writes."""

    def numbers(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in value
        )

    def names(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(v, str) for v in value)

    kind = config.get("kind", "anchored")  # the first folders did not say it
    shape: Any = config.get("image_shape")
    normalise, made = config.get("normalise"), config.get("architecture")
    problems = {
        "kind": kind in ("anchored", "standard"),
        "image_shape": isinstance(shape, list)
        and 1 <= len(shape) <= 4
        and all(type(side) is int and side > 0 for side in shape)
        and math.prod(shape) <= 2**26,
        "stems": kind == "standard" or (names(config.get("stems")) and len(config["stems"]) > 0),
        "normalise": normalise is None
        or (
            isinstance(normalise, dict) and all(numbers(normalise.get(k)) for k in ("mean", "std"))
        ),
        "architecture": made is None
        or (
            isinstance(made, dict)
            and isinstance(made.get("name"), str)
            and isinstance(made.get("arguments"), dict)
        ),
        "references": isinstance(config.get("references", {}), dict),
        "class_names": config.get("class_names") is None or names(config["class_names"]),
        "provenance": isinstance(config.get("provenance", {}), dict),
        "weights": _is_ours(config.get("weights")),
        "examples": _is_ours(config.get("examples")),
    }
    bad = [key for key, fine in problems.items() if not fine]
    if bad:
        raise StorageError(
            f"cannot load {folder}: config.json has no usable {' and '.join(map(repr, bad))}"
            f" (found {', '.join(repr(config.get(key)) for key in bad)})."
        )


def _read_tensors(folder: Path, config: dict[str, Any], key: str) -> dict[str, Tensor]:
    path = folder / config[key]
    try:
        data = path.read_bytes()
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except FileNotFoundError:
        raise StorageError(f"cannot load {folder}: {path.name} is missing.") from None
    except (OSError, safetensors.SafetensorError) as problem:
        raise StorageError(
            f"cannot load {folder}: {path.name} is truncated or damaged ({problem})."
        ) from None
    if path.name != _content_name(path.name.partition("-")[0], data):
        raise StorageError(
            f"cannot load {folder}: {path.name} is damaged: its name does not fit its content."
        )
    pairs = {"references"} if config.get("kind") != "standard" else set()
    if key == "examples" and tensors.keys() != {"images", "logits"} | pairs:
        raise StorageError(f"cannot load {folder}: {path.name} does not hold examples.")
    return tensors


def _own_version() -> str:
    from kedge import __version__

    return __version__
