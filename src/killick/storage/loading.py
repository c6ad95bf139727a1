"""Loading a saved model: nothing in its folder can run code, and everything is checked.

A folder has `config.json`, which names two safetensors files: weights (with references and residual
bank), and examples, two pairs or images with the logits that the model must give for them. The data
files are named after their content; in a folder for a model hub they have the plain names that hubs
expect, and `config.json` has their digests.
"""

import copy
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, get_args

import safetensors.torch
import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, ReferenceKind, anchor
from killick.core.image_model import Threshold
from killick.core.inspection import relative_error
from killick.core.standard import Standard, standard
from killick.errors import FileError, OptionError, StorageError, one_line, show
from killick.nets import Architecture, copy_given, create
from killick.nets.size_limit import limited_to
from killick.runtime.hub import fetch, read_hub_name
from killick.runtime.plain_files import read_plain, read_text
from killick.storage.json_checks import (
    Check,
    are_numbers,
    are_texts,
    find_bad,
    is_record,
    is_shape,
    is_text,
    is_threshold,
    optional,
)
from killick.storage.weights import find_misfit

FORMAT, VERSION = "killick-model", 1
PLAIN_NAMES = {"weights": "model.safetensors", "examples": "examples.safetensors"}
LARGEST_DIFFERENCE = 1e-3  # of the logits of the examples, relative to their size
MOST_IN_ARGUMENTS = 2**20  # the largest number, or that of the bytes that are stored
CONTENT_NAME = re.compile(r"(model|examples)-[0-9a-f]{8}\.safetensors")


_CHECKS: dict[str, Check] = {
    "kind": lambda value: value in ("anchored", "standard"),
    "image_shape": is_shape,
    "stems": optional(are_texts),
    "normalize": optional(is_record(mean=are_numbers, std=are_numbers)),
    "architecture": optional(
        is_record(name=is_text, arguments=lambda value: isinstance(value, dict))
    ),
    "references": optional(
        lambda value: isinstance(value, dict) and value.get("kind") in get_args(ReferenceKind)
    ),
    "class_names": optional(are_texts),
    "provenance": optional(lambda value: isinstance(value, dict)),
    "threshold": optional(is_threshold),
}


def load(
    folder: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    revision: str | None = None,
    device: torch.device | str = "cpu",
) -> Anchored | Standard:
    """The model in `folder`, in eval mode, checked against the examples that were saved with it.

    It is of the kind that was saved: `Anchored` or `Standard`. Both have the same interface;
    where it matters, use `isinstance(model, killick.Anchored)`.

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
    weights = _read_tensors(folder, config, "weights")
    examples = _read_tensors(folder, config, "examples")
    shape, found = tuple(config["image_shape"]), tuple(examples["images"].shape[1:])
    if shape != found:  # a file of that size is there, so that the shape costs no more
        raise StorageError(
            f"cannot load {folder}: image_shape is {shape}, and examples have {found}."
        )
    names, logits = config.get("class_names"), examples["logits"]
    if names is not None and logits.ndim and len(names) != logits.shape[-1]:
        raise StorageError(
            f"cannot load {folder}: config.json has {len(names)} class names for"
            f" {logits.shape[-1]} logits. Correct them there."
        )
    try:
        if net is None:
            net = _make_net(config, weights)
        model = rebuild(net, config, weights)
        error = example_error(model, examples)
    except Exception as problem:  # whatever a network raises that is not the one that was saved
        raise StorageError(f"cannot load {folder}: {one_line(problem)}.") from problem
    if not error <= LARGEST_DIFFERENCE:
        raise StorageError(
            f"cannot load {folder}: the logits of the saved examples differ by {error:.1e} of their"
            " size. The weights fit, but the network computes something else: pass the saved"
            " network, load(folder, net=net), or use the library's old version."
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in weights:
            tensor.data = tensor.data.to(weights[name].dtype)
    return model.to(device).eval()


def locate_model(given: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder of a model, fetched from the hub if it is not here."""
    folder = Path(given)
    name = None if folder.exists() else read_hub_name(given, revision)
    if name is None:
        if revision is not None:
            raise OptionError(f"revision= requires a name on the hub, owner/name, found {folder}.")
        inside = folder / "model"
        run = (inside / "config.json").is_file() and not (folder / "config.json").exists()
        return inside if run else folder
    if name.revision is None and folder.parent.is_dir():  # more likely a slip in a path
        raise StorageError(
            f"cannot load {folder}: there is no such folder in {folder.parent}. If it is on the"
            f" Hugging Face hub: {name}@main."
        )
    # First what it is: of another kind of model the weights are not wanted.
    config = read_config(fetch(name, ["config.json"]))
    return fetch(name, ["config.json", config["weights"], config["examples"]])


def read_architecture(folder: Path) -> Architecture | None:
    """How the network of a saved model is made; None if it was not made by name."""
    found = read_config(folder).get("architecture")
    return None if found is None else Architecture(found["name"], dict(found["arguments"]))


def read_config(folder: Path) -> dict[str, Any]:
    """The checked `config.json` of a folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise StorageError(
            f"cannot load {folder}: expected a folder written by killick.save, found"
            f" {_describe_folder(folder)}."
        )
    try:
        config: dict[str, Any] = json.loads(read_text(path))
    except FileError:
        raise
    except (ValueError, RecursionError) as problem:
        raise StorageError(
            f"cannot load {folder}: config.json is damaged ({one_line(problem)})."
        ) from None
    said = [config.get(k) for k in ("format", "version")] if isinstance(config, dict) else None
    if said != [FORMAT, VERSION]:
        raise StorageError(
            f"cannot load {folder}: expected format {FORMAT!r}, version {VERSION} in config.json,"
            f" found {show(said)}. Use the version of Killick that wrote it."
        )
    bad = find_bad(config, _CHECKS) + [k for k in PLAIN_NAMES if not is_data_name(config, k)]
    if bad:
        raise StorageError(
            f"cannot load {folder}: config.json has no usable {' and '.join(map(repr, bad))}"
            f" (found {show([config.get(key) for key in bad])[1:-1]})."
        )
    return config


def _describe_folder(folder: Path) -> str:
    """What is there instead of a model, with the way out."""
    if folder.is_file():
        return "a file"
    if not folder.is_dir():
        return "no such folder"
    if any((folder / name).is_file() for name in ("checkpoint.pt", "checkpoint-before.pt")):
        return f"an unfinished run. Resume it: killick train --resume {folder}"
    if any((folder / name).is_file() for name in ("model.onnx", "model.pt2")):
        return "an export. Name the model that it was made from"
    inside = sorted(path.parent.parent for path in folder.glob("*/model/config.json"))
    return f"runs in it. Name one: {inside[0]}" if inside else "no config.json in it"


def is_data_name(config: dict[str, Any], key: str) -> bool:
    """Whether the configuration names a file after its content, or plainly and with its digest."""
    name, digests = config.get(key), config.get("sha256")
    if name == PLAIN_NAMES[key]:
        return isinstance(digests, dict) and isinstance(digests.get(name), str)
    return isinstance(name, str) and CONTENT_NAME.fullmatch(name) is not None


def content_name(plain: str, data: bytes) -> str:
    """The name of a data file after its content."""
    return f"{Path(plain).stem}-{hashlib.sha256(data).hexdigest()[:8]}.safetensors"


def _read_tensors(folder: Path, config: dict[str, Any], key: str) -> dict[str, Tensor]:
    """One of the data files, "weights" or "examples", if it is what the configuration says."""
    path = folder / config[key]
    try:
        data = read_plain(path)
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except FileError as problem:
        raise StorageError(f"cannot load {folder}: {path.name}: {problem.reason}.") from None
    except Exception as problem:  # a header that lies makes its reader raise nearly anything
        raise StorageError(
            f"cannot load {folder}: {path.name} is truncated or damaged ({one_line(problem)})."
        ) from None
    if path.name == PLAIN_NAMES[key]:
        fits = hashlib.sha256(data).hexdigest() == config["sha256"][path.name]
    else:
        fits = path.name == content_name(PLAIN_NAMES[key], data)
    if not fits:
        raise StorageError(
            f"cannot load {folder}: {path.name} is damaged: its content does not fit its digest."
        )
    pairs = {"references"} if config["kind"] == "anchored" else set()
    if key == "examples" and tensors.keys() != {"images", "logits"} | pairs:
        raise StorageError(f"cannot load {folder}: {path.name} does not hold examples.")
    return tensors


def _make_net(config: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """The network, with fresh weights; one that is not that of the weights is refused before."""
    architecture = config.get("architecture")
    if architecture is None:
        if (given := copy_given()) is not None:
            return given
        raise StorageError(
            "its network was not made by name. Pass it: killick.load(folder, net=net). For commands,"
            " export it in Python: killick.export(model, FOLDER)"
        )
    name, arguments = architecture["name"], architecture["arguments"]
    stored = sum(tensor.nbytes for tensor in weights.values())
    if (largest := _largest_number(arguments)) > max(MOST_IN_ARGUMENTS, stored):
        raise StorageError(f"{show(architecture)} has the argument {show(largest)}")
    with limited_to(weights):
        try:
            with torch.device("meta"):  # without the numbers
                shapes = create(name, **arguments).state_dict()
        except OptionError as problem:
            if problem.__cause__ is None or isinstance(problem.__cause__, OptionError):
                raise
            shapes = {}  # it cannot be made without its numbers; other errors come again
        _check_shapes(shapes, config, weights)
        return create(name, **arguments)


def _largest_number(value: Any) -> float:
    """The largest number in nested arguments."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return max(map(_largest_number, inside), default=0)
    return abs(value) if isinstance(value, int | float) else 0


def _check_shapes(
    own: dict[str, Tensor], config: dict[str, Any], weights: dict[str, Tensor]
) -> None:
    """Refuse weights of another network; those of stems are wider where they are anchored."""
    stems = tuple(f"{name}." for name in config.get("stems") or ())
    own = {f"net.{name}": value for name, value in own.items() if not name.startswith(stems or "?")}
    if misfit := find_misfit(own, {k: v for k, v in weights.items() if k in own}):
        raise StorageError(
            f"expected the weights of {show(config['architecture'])}, but {misfit}. The file holds"
            " another network, or one with other arguments (num_classes?)"
        )


def rebuild(
    net: nn.Module, config: dict[str, Any], weights: dict[str, Tensor]
) -> Anchored | Standard:
    """`net` as the kind of model that the configuration says, with the stored weights."""
    shape, normalize = config["image_shape"], config.get("normalize")
    normalize = normalize and (normalize["mean"], normalize["std"])
    net = copy.deepcopy(net).cpu().to(working_dtype(weights))
    model: Anchored | Standard
    if config["kind"] == "standard":
        model = standard(net, normalize, image_shape=shape)
    else:
        example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        model = anchor(
            net,
            stem=config.get("stems"),
            normalize=normalize,
            example=example,
            pairs=config.get("written_for_pairs") is True,
        )
    own = model.state_dict()
    own |= {k: weights[k] for k in own.keys() & {"references", "residuals"} if k in weights}
    misfit = find_misfit(own, weights)
    if misfit:
        raise StorageError(
            f"expected the weights of {type(net).__name__}, but {misfit}. The file holds another"
            " network, or one with other arguments (num_classes?)"
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
    names, threshold = config.get("class_names"), config.get("threshold")
    model.class_names = None if names is None else tuple(names)
    model.provenance = config.get("provenance") or {}
    model.threshold = None if threshold is None else Threshold(**threshold)
    return model.eval()


@torch.no_grad()
def run_examples(model: Anchored | Standard, examples: dict[str, Tensor]) -> Tensor:
    """The logits for pairs, or for images where there are no references."""
    logits: Tensor = model(*(examples[k] for k in ("images", "references") if k in examples))
    return logits


def example_error(model: Anchored | Standard, examples: dict[str, Tensor]) -> float:
    """How far the logits are from those of the examples, relative to their size."""
    return relative_error(run_examples(model, examples), examples["logits"])


def working_dtype(weights: dict[str, Tensor]) -> torch.dtype:
    """In which models are checked: float32, or float64 where weights are."""
    double = any(weight.dtype == torch.float64 for weight in weights.values())
    return torch.float64 if double else torch.float32
