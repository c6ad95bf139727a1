"""Saving and loading: a folder with safetensors and a `config.json`, and nothing that can run code.

```
folder/
  config.json                  what the model is; names the two files below
  model-1f2e3d4c.safetensors   weights, references, residual bank
  examples-5a6b7c8d.safetensors  two pairs and the logits the model must give for them
```

A standard model is kept in the same way, with images in the place of pairs and no references.

How the files are written and read is in `stored_files.py`; here it is what they hold.
"""

import copy
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, anchor, evaluating
from killick.core.folding import Folded
from killick.core.image_model import Threshold
from killick.core.inspection import relative_error
from killick.core.standard import Standard, model_in, standard
from killick.errors import OptionError, StorageError, show
from killick.nets import Architecture, create, remembered
from killick.storage.model_files import (
    FORMAT,
    VERSION,
    Contents,
    locate_model,
    read_config,
    read_tensors,
    write_contents,
)

NOTE = (
    "References are usually training images. They are stored in the weights file and travel along."
)
# Instead, where they were made of statistics, by `reference_kind`.
PRIVATE_NOTES = {
    "mean": "The reference is a mean of many training images. None of them travels along.",
    "synthetic": "References are synthetic, made of statistics of many training images. None of"
    " these travels along.",
}
RESIDUALS_NOTE = "The residual bank holds differences of training images, and travels along."
# Numbers that a network may hold beside those that are stored, such as tables of positions. One
# that is wrong by less is made, to tell what of it is wrong: 256 MiB at most.
SPARE_NUMBERS = 2**26
_log = logging.getLogger("killick")


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
        architecture: How to make the network again, where it was not made by `killick.nets.create`
            and is not one of timm's; your own have names too, see `killick.nets.custom`. Without it,
            `load` needs the network: `load(folder, net=net)`.

    Returns:
        The folder.

    Raises:
        StorageError: If it cannot be written; what was there before stays as it was.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"cannot write {folder}: expected a folder, found a file.")
    contents = gather(
        model, class_names=class_names, provenance=provenance, architecture=architecture
    )
    write_contents(folder, contents)
    references = contents.config.get("references") or {"count": 0}
    if references["count"]:
        told = "%d reference images are stored in %s. %s"
        _log.info(told, references["count"], folder, references["note"])
    return folder


def gather(
    model: nn.Module,
    *,
    class_names: Sequence[str] | None = None,
    provenance: dict[str, Any] | None = None,
    architecture: Architecture | None = None,
) -> Contents:
    """What `save` writes of a model; see there."""
    if isinstance(model, Folded):
        raise OptionError(
            "expected the anchored model, found a folded one. Save that, and fold it after loading,"
            " killick.fold(killick.load(folder)); or write a file for inference: killick.export."
        )
    model = model_in(model)
    if provenance is not None:
        model.provenance = dict(provenance)
    with evaluating(model):
        weights = {key: value.detach().cpu() for key, value in model.state_dict().items()}
        examples = _examples(model)
    _check_names(model.class_names if class_names is None else class_names, examples["logits"])
    if class_names is not None:
        model.class_names = tuple(class_names)
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {"killick": _own_version(), "torch": torch.__version__},
        "architecture": _known_architecture(model, architecture, weights, examples),
        **_shape_of(model),
        "class_names": model.class_names,
        "provenance": model.provenance,
        "threshold": None if model.threshold is None else asdict(model.threshold),
    }
    if isinstance(model, Anchored):
        config["references"] = {
            "count": len(model.references),
            "kind": model.reference_kind,
            "policy": model.reference_policy,
            "note": note_on_references(model),
        }
    try:
        text = json.dumps(config)
    except (TypeError, ValueError) as problem:
        raise OptionError(
            f"expected class_names and provenance that JSON can write down: {problem}."
        ) from problem
    return Contents(json.loads(text), weights, examples)


def _check_names(names: Sequence[str] | None, logits: Tensor) -> None:
    if names is not None and len(names) != logits.shape[-1]:
        raise OptionError(
            f"expected {logits.shape[-1]} class names, one for each logit, found {len(names)}. Pass"
            " them as class_names=, or set the model's own."
        )


def note_on_references(model: Anchored) -> str:
    """What travels with a model of the images it was trained on, by its `reference_kind`."""
    if not len(model.references):
        note = "No references are stored."
    else:
        note = PRIVATE_NOTES.get(model.reference_kind, NOTE)
    return f"{note} {RESIDUALS_NOTE}" if len(model.residuals) else note


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


def load(
    folder: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    revision: str | None = None,
    device: torch.device | str = "cpu",
) -> Anchored | Standard:
    """The model in `folder`, in eval mode, checked against the examples that were saved with it.

    It is of the kind that was saved: `Anchored` or `Standard`. Both are called, predicted with and
    saved alike; where it matters, ask `isinstance(model, killick.Anchored)`.

    Args:
        folder: Written by `save`; or a run folder, which has such a one in it; or, if there is no
            such folder, a name on the Hugging Face hub: `owner/name` or `owner/name@revision`.
        net: The plain network, with any weights, where it cannot be made by name.
        revision: Of a model on the hub: a branch, a tag or a commit.
        device: Where the model is wanted.

    Raises:
        InstallError: If the model is on the hub, and the hub's client is not installed.
        StorageError: If anything is missing, damaged, of another version, or if the network does
            not compute what the saved one did.
    """
    folder = locate_model(folder, revision)
    config = read_config(folder)
    weights = read_tensors(folder, config, "weights")
    examples = read_tensors(folder, config, "examples")
    _compare_names(folder, config.get("class_names"), examples["logits"])
    try:
        if net is None:
            _check_network_size(config.get("architecture"), weights, folder)
            net = _make(config.get("architecture"), folder)
        model = _rebuild(net, config, weights, folder)
        error = _compare(model, examples)
    except StorageError:
        raise
    except Exception as problem:  # whatever a network raises that is not the one that was saved
        text = " ".join(str(problem).split())[:300]
        text = text.encode("utf-8", "backslashreplace").decode()  # JSON may hold half characters
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


def _compare_names(folder: Path, names: list[str] | None, logits: Tensor) -> None:
    """Refuse class names for another number of classes than the model has."""
    if names is not None and logits.ndim and len(names) != logits.shape[-1]:
        raise StorageError(
            f"cannot load {folder}: expected {logits.shape[-1]} class names, one for each logit,"
            f" config.json has {len(names)}. Correct them there."
        )


def _check_network_size(architecture: Any, weights: dict[str, Tensor], folder: Path) -> None:
    """Refuse a network far larger than its weights, before there is memory taken for it."""
    if architecture is None:
        return
    try:
        with torch.device("meta"):  # all but the numbers
            net = create(architecture["name"], **architecture["arguments"])
        wanted = sum(t.numel() for t in (*net.parameters(), *net.buffers()))
    except MemoryError:
        raise StorageError(
            f"cannot load {folder}: there is not enough memory for {show(architecture)}."
        ) from None
    except Exception:  # cannot be made without its numbers; what is wrong otherwise is told later
        return
    # Anchored networks have a wider first layer, so the file may hold more.
    stored = sum(
        value.numel() for key, value in weights.items() if key not in ("references", "residuals")
    )
    if wanted > stored + SPARE_NUMBERS:
        raise StorageError(
            f"cannot load {folder}: expected a network of at most {stored} numbers, as many as the"
            f" weights file holds, found {wanted} in {show(architecture)}. The network has other"
            " arguments (num_classes?)."
        )


def _make(architecture: Any, folder: Path) -> nn.Module:
    if architecture is None:
        raise StorageError(
            f"cannot load {folder}: its network was not made by name. Make it yourself and pass it:"
            " killick.load(folder, net=net). Commands take it once it is exported in Python:"
            " killick.export(model, FOLDER); or save it made by name: killick.nets.create."
        )
    return create(architecture["name"], **architecture["arguments"])


def _rebuild(
    net: nn.Module, config: dict[str, Any], weights: dict[str, Tensor], where: object
) -> Anchored | Standard:
    """`net` as the kind of model that the configuration says, with the stored weights."""
    shape = config["image_shape"]
    normalize = config["normalize"] and (config["normalize"]["mean"], config["normalize"]["std"])
    net = copy.deepcopy(net).cpu().to(_working_dtype(weights))
    model: Anchored | Standard
    if config.get("kind", "anchored") == "standard":
        model = standard(net, normalize, image_shape=shape)
    else:
        example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        model = anchor(net, stem=config["stems"], normalize=normalize, example=example)
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    stored = ("references", "residuals")
    shapes = [k for k, v in own.items() if k in weights and weights[k].shape != v.shape]
    shapes = [k for k in shapes if k not in stored]
    for found, problem in ((missing, "has no"), (unknown, "has an unknown")):
        if found:
            raise StorageError(
                f"cannot load {where}: expected the weights of {type(net).__name__}, but the file"
                f" {problem} {show(found[0])} ({len(found)} such). It holds another network."
            )
    if shapes:
        name = shapes[0]
        raise StorageError(
            f"cannot load {where}: expected {name!r} of shape {tuple(own[name].shape)}, found"
            f" {show(tuple(weights[name].shape))}. The network has other arguments"
            " (num_classes?)."
        )
    model.load_state_dict(weights)
    if isinstance(model, Anchored):
        if model.references.numel():
            model.check_references(model.references)
        if model.residuals.numel():
            model.set_residuals(model.residuals)
        known = config.get("references") or {}
        model.reference_policy = known.get("policy")
        model.reference_kind = known.get("kind", "images")
    names = config.get("class_names")
    model.class_names = None if names is None else tuple(names)
    model.provenance = config.get("provenance") or {}
    threshold = config.get("threshold")
    model.threshold = None if threshold is None else Threshold(**threshold)
    return model.eval()


def _shape_of(model: Anchored | Standard) -> dict[str, Any]:
    """What it takes to make the model again, once its network is there."""
    normalize = model.normalize
    shape: dict[str, Any] = {
        "kind": "anchored" if isinstance(model, Anchored) else "standard",
        "image_shape": list(model.image_shape),
        "normalize": normalize and {"mean": normalize.mean, "std": normalize.std},
    }
    if isinstance(model, Anchored):
        shape["stems"] = [stem.name for stem in model.stems]
    return shape


def _examples(model: Anchored | Standard) -> dict[str, Tensor]:
    """Two pairs or images of noise, and what the model makes of them (on the CPU, in float32)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(4, *model.image_shape, generator=generator)
    if model.normalize is not None:
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
            "%s was not made by name: to load it, pass the network, killick.load(folder, net=net)."
            " Make it with killick.nets.create, or save with architecture=, to do without.",
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


def _own_version() -> str:
    from killick import __version__

    return __version__
