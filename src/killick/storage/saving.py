"""Saving a model: a folder with safetensors and `config.json`, replaced as a whole.

```
folder/
  config.json                  what the model is; names the two files below
  model-1f2e3d4c.safetensors   weights, references, residual bank
  examples-5a6b7c8d.safetensors  two pairs, or images, and the logits the model must give for them
```

The data files are named after their content and written first; replacing `config.json` is the one
step that counts. A killed process leaves either the old model or the new one, whole.
"""

import copy
import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.folding import Folded, FoldedStem
from killick.core.standard import Standard, model_in
from killick.data.preprocessing import network_view
from killick.errors import FileError, OptionError, StorageError, one_line
from killick.nets import Architecture, create, remembered
from killick.runtime.atomic_files import atomic_file, locked
from killick.runtime.plain_files import read_text
from killick.storage.loading import (
    CONTENT_NAME,
    FORMAT,
    LARGEST_DIFFERENCE,
    PLAIN_NAMES,
    VERSION,
    content_name,
    example_error,
    is_data_name,
    rebuild,
    run_examples,
    working_dtype,
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
NO_REFERENCES = "A standard model has no references: no training image is stored with it."
FOLDED_NOTE = (
    "References, usually training images, are folded into first layers, where they may still be"
    " recognized. To share an ensemble without, make it of members with mean or synthetic references."
)
RESIDUALS_NOTE = "The residual bank holds differences of training images, and travels along."
_KILLED = re.compile(
    rf"{CONTENT_NAME.pattern}|\.({CONTENT_NAME.pattern}|config\.json)\.[0-9a-f]+\.part"
)
_log = logging.getLogger("killick")


@dataclass(frozen=True)
class ModelContents:
    """All of a model that is written: what it is, its weights, and examples to check it by."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    examples: dict[str, Tensor]


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    provenance: dict[str, Any] | None = None,
    architecture: Architecture | None = None,
) -> Path:
    """Write an anchored or a standard model, with all it holds, into `folder`, replacing it whole.

    References are usually training images, and they are saved with the model. Where they must not
    leave, replace them first: `killick.replace_references`.

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
    if folder.is_file():
        raise StorageError(f"cannot write {folder}: expected a folder, found a file.")
    contents = gather(
        model, class_names=class_names, provenance=provenance, architecture=architecture
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, "") as alone:
            before = _replaceable_files(folder, alone)
            for name in before - write_files(folder, contents, plain=False):
                (folder / name).unlink(missing_ok=True)
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is"
            " unchanged. Free some space, or choose another folder."
        ) from problem
    known = contents.config.get("references")
    if known and known["count"]:
        _log.info("%d reference images are stored in %s. %s", known["count"], folder, known["note"])
    return folder


def gather(
    model: nn.Module,
    *,
    class_names: Sequence[str] | None = None,
    provenance: dict[str, Any] | None = None,
    architecture: Architecture | None = None,
) -> ModelContents:
    """What `save` writes of a model; see there."""
    from killick import __version__

    if isinstance(model, Folded):
        raise OptionError(
            "a folded model cannot be saved. Save the anchored one, and fold it after loading; or"
            " write a file for inference: killick.export."
        )
    model = model_in(model)
    if provenance is not None:
        model.provenance = dict(provenance)
    if (trained := getattr(model, "trained_with", None)) and "facts" not in (provenance or {}):
        model.provenance = {**model.provenance, "facts": trained}
    with evaluating(model):
        weights = {key: value.detach().cpu() for key, value in model.state_dict().items()}
        examples = _make_examples(model)
    names = model.class_names if class_names is None else class_names
    classes = examples["logits"].shape[-1]
    if names is not None and len(names) != classes:
        raise OptionError(
            f"expected {classes} class names, one for each logit, found {len(names)}."
        )
    if class_names is not None:
        model.class_names = tuple(class_names)
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {"killick": __version__, "torch": torch.__version__},
        "architecture": _known_architecture(model, architecture, weights, examples),
        **_structure(model),
        "class_names": model.class_names,
        "provenance": _with_view(model),
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
            f"class_names and provenance must be what JSON can write down: {problem}."
        ) from problem
    return ModelContents(json.loads(text), weights, examples)


def _with_view(model: Anchored | Standard) -> dict[str, Any]:
    """The provenance, with the preprocessing of a network whose weights have one of their own."""
    view = None if model.provenance.get("recipe") else network_view(model)
    usual = {"resize": None, "interpolation": "bilinear", "squash": False}
    if view is None or usual.items() <= view.items():
        return model.provenance
    return {"preprocessing": view, **model.provenance}


def folded_references(model: Anchored | Standard) -> list[str]:
    """The kinds of the references in folded networks that are members of an ensemble."""
    known: list[str] | None = model.provenance.get("folded_references")
    if known is None:
        return ["images"] if any(isinstance(m, FoldedStem) for m in model.modules()) else []
    return known


def note_on_references(model: Anchored | Standard) -> str:
    """Whether training images are saved with a model, by the kind of its references."""
    if isinstance(model, Standard):
        return FOLDED_NOTE if "images" in folded_references(model) else NO_REFERENCES
    note = PRIVATE_NOTES.get(model.reference_kind, NOTE)
    note = note if len(model.references) else "No references are stored."
    return f"{note} {RESIDUALS_NOTE}" if len(model.residuals) else note


def write_files(folder: Path, contents: ModelContents, *, plain: bool) -> set[str]:
    """Write a model into a folder that is there, and return the names of its data files.

    These are named after their content; or plainly, as hubs expect it, with digests in config.json.
    """
    config, digests = dict(contents.config), {}
    for key, tensors in (("weights", contents.weights), ("examples", contents.examples)):
        data = safetensors.torch.save({k: v.contiguous().clone() for k, v in tensors.items()})
        name = PLAIN_NAMES[key] if plain else content_name(PLAIN_NAMES[key], data)
        config[key], digests[name] = name, hashlib.sha256(data).hexdigest()
        _write_file(folder / name, data)
    config |= {"sha256": digests} if plain else {}
    _write_file(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    return set(digests)


def _write_file(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # before the configuration names it


def _replaceable_files(folder: Path, alone: bool) -> set[str]:
    """Files in `folder` that a save may replace: of the model there, and of saves that were killed.

    The latter only if this process is known to be `alone`. A folder with another config.json is
    refused.
    """
    config: dict[str, Any] = {}
    if (folder / "config.json").exists():
        try:
            config = json.loads(read_text(folder / "config.json"))
        except FileError:
            raise
        except (ValueError, RecursionError):
            config = {}
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise StorageError(
                f"cannot write {folder}: it holds the config.json of something else. Choose another"
                " folder."
            )
    names = {config[key] for key in PLAIN_NAMES if is_data_name(config, key)}
    there = os.listdir(folder) if alone else ()
    return names | {name for name in there if _KILLED.fullmatch(name)}


def _structure(model: Anchored | Standard) -> dict[str, Any]:
    """What it takes to make the model again, once its network is there."""
    normalize = model.normalize
    stems: dict[str, Any] = {}
    if isinstance(model, Anchored):
        stems["stems"] = [s.name for s in model.stems]
        stems |= {"written_for_pairs": True} if model.written_for_pairs else {}
    return {
        "kind": type(model).__name__.lower(),
        "image_shape": list(model.image_shape),
        "normalize": normalize and {"mean": normalize.mean, "std": normalize.std},
        **stems,
    }


def _make_examples(model: Anchored | Standard) -> dict[str, Tensor]:
    """Two pairs or images of noise, and the model's logits (on the CPU, in float32)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(4, *model.image_shape, generator=generator)
    if model.normalize is not None:
        noise = (noise * 255).to(torch.uint8)
    dtype = working_dtype(model.state_dict())
    checked = copy.deepcopy(model).cpu().to(dtype).eval()
    noise = noise if noise.dtype == torch.uint8 else noise.to(dtype)
    examples = {"images": noise[:2].clone()}
    if isinstance(model, Anchored):
        examples["references"] = noise[2:].clone()
    return {**examples, "logits": run_examples(checked, examples)}


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
        error = example_error(rebuild(net, _structure(model), weights), examples)
        if error <= LARGEST_DIFFERENCE:
            return {"name": candidate.name, "arguments": candidate.arguments}
        reason = f"its outputs differ by {error:.1e} of their size"
    except Exception as problem:  # whatever a network made otherwise raises
        reason = one_line(problem)
    if given is not None:
        raise StorageError(
            f"cannot save as {given.name!r} with {given.arguments}: that makes another network"
            f" ({reason}). Correct architecture=, or leave it out."
        )
    _log.warning("%s does not make this network again (%s): load needs net=.", candidate, reason)
    return None


def _timm_architecture(model: Anchored | Standard) -> Architecture | None:
    """A guess for a network of timm's that was made by its own factory."""
    settings = getattr(model.net, "pretrained_cfg", None) or {}
    name, classes = settings.get("architecture"), getattr(model.net, "num_classes", None)
    if not name or not isinstance(classes, int):
        return None
    channels = model.image_shape[0]
    if isinstance(model, Anchored) and model.written_for_pairs:
        channels *= 2
    return Architecture(f"timm:{name}", {"num_classes": classes, "in_chans": channels})
