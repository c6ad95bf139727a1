"""The files of a saved model: written whole or not at all, read without trust.

The data files are named after their content and written first; replacing `config.json` is the one
step that counts. Whoever kills the process leaves either the old model or the new one, whole.

A folder for a model hub has the plain names that hubs expect, `model.safetensors` and
`examples.safetensors`, with the digest of each in `config.json` (`write_plain`); both are read.
"""

import hashlib
import json
import logging
import math
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import safetensors.torch
from torch import Tensor

from killick.core.anchored import ReferenceKind
from killick.core.image_model import Threshold
from killick.errors import OptionError, StorageError, show
from killick.nets import Architecture
from killick.storage.hub import fetch, read_hub_name

FORMAT, VERSION = "killick-model", 1
PLAIN_NAMES = {"weights": "model.safetensors", "examples": "examples.safetensors"}
_log = logging.getLogger("killick")


@dataclass(frozen=True)
class Contents:
    """All of a model that is written.

    Attributes:
        config: What the model is, as JSON has it; without the names of the two files below.
        weights: Weights, references, residual bank.
        examples: Two pairs or images, and the logits the model must give for them.
    """

    config: dict[str, Any]
    weights: dict[str, Tensor]
    examples: dict[str, Tensor]


def write_plain(folder: Path, contents: Contents) -> None:
    """A model under the plain names that hubs expect, into a folder that is there and empty."""
    files = {PLAIN_NAMES[key]: data for key, data in _serialised(contents).items()}
    config = {
        **contents.config,
        **PLAIN_NAMES,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    files["config.json"] = _as_text(config)
    for name, data in files.items():
        _write_whole(folder / name, data, [])


def write_contents(folder: Path, contents: Contents) -> None:
    """All of a model into a folder, in the place of the one that may be there."""
    before, config = _files_of(folder), dict(contents.config)
    parts: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for key, data in _serialised(contents).items():
            config[key] = _content_name(PLAIN_NAMES[key].partition(".")[0], data)
            _write_whole(folder / config[key], data, parts)
        _write_whole(folder / "config.json", _as_text(config), parts)
    except OSError as problem:
        for path in parts:
            path.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is as it"
            " was. Make room there, or choose another folder."
        ) from problem
    for name in before - {config["weights"], config["examples"]}:
        (folder / name).unlink(missing_ok=True)
    if before & set(PLAIN_NAMES.values()):
        _log.warning(
            "%s was made for a hub: its README.md and rows are about the model before, and hubs do"
            " not know the new names. Publish it again.",
            folder,
        )


def _serialised(contents: Contents) -> dict[str, bytes]:
    """The two data files, by what they are."""
    parts = {"weights": contents.weights, "examples": contents.examples}
    return {
        key: safetensors.torch.save({k: v.contiguous().clone() for k, v in tensors.items()})
        for key, tensors in parts.items()
    }


def _as_text(config: dict[str, Any]) -> bytes:
    return (json.dumps(config, indent=2) + "\n").encode()


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
                f"cannot write {folder}: expected an empty folder or one written by killick.save,"
                " found the config.json of something else. Choose another folder."
            )
        names = {config[key] for key in PLAIN_NAMES if _is_named(config, key)}
    return names | {path.name for path in folder.iterdir() if _PART.fullmatch(path.name)}


_DATA = re.compile(r"(model|examples)-[0-9a-f]{8}\.safetensors")
_PART = re.compile(rf"\.({_DATA.pattern}|config\.json)\.[0-9]+\.part")


def _is_named(config: dict[str, Any], key: str) -> bool:
    """Whether the configuration names a file after its content, or plainly and with its digest."""
    name, digests = config.get(key), config.get("sha256")
    if name == PLAIN_NAMES[key]:
        return isinstance(digests, dict) and isinstance(digests.get(name), str)
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


def read_architecture(folder: Path) -> Architecture | None:
    """How the network of a saved model is made; None where only somebody's own code can."""
    found = read_config(folder).get("architecture")
    return None if found is None else Architecture(found["name"], dict(found["arguments"]))


def locate_model(given: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder that a model is in, fetched from the hub if it is not here."""
    folder = Path(given)
    name = None if folder.exists() else read_hub_name(given, revision)
    if name is None:
        if revision is not None:
            raise OptionError(
                f"expected revision= with a model on the hub, called owner/name, found {folder}."
            )
        inside = folder / "model"
        run = (inside / "config.json").is_file() and not (folder / "config.json").exists()
        return inside if run else folder
    if name.revision is None and folder.parent.is_dir():  # a slip in a path, more likely
        raise StorageError(
            f"cannot load {folder}: expected a folder written by killick.save, found no such folder"
            f" in {folder.parent}. If it is on the Hugging Face hub: {name}@main."
        )
    # What it is comes first: of another kind of model the weights are not wanted.
    config = read_config(fetch(name, ["config.json"]))
    return fetch(name, ["config.json", config["weights"], config["examples"]])


def read_config(folder: Path) -> dict[str, Any]:
    """What a folder says that its model is, checked."""
    path = folder / "config.json"
    if not path.is_file():
        raise StorageError(
            f"cannot load {folder}: expected a folder written by killick.save, found"
            f" {_say_what_is_there(folder)}."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        text = " ".join(str(problem).split())[:200]
        raise StorageError(f"cannot load {folder}: config.json is damaged ({text}).") from None
    said = config.get("format") if isinstance(config, dict) else type(config).__name__
    if not isinstance(config, dict) or said != FORMAT:
        raise StorageError(
            f"cannot load {folder}: expected config.json to say format {FORMAT!r}, found"
            f" {show(said)}."
        )
    if config.get("version") != VERSION:
        raise StorageError(
            f"cannot load {folder}: expected format version {VERSION}, found"
            f" {show(config.get('version'))}. Use the version of Killick that wrote it:"
            f" {show(config.get('made_with'))}."
        )
    _check_config(folder, config)
    return config


def _say_what_is_there(folder: Path) -> str:
    """In place of a model; with the way out, where there is one."""
    if folder.is_file():
        return "a file"
    if not folder.is_dir():
        return "no such folder"
    if any((folder / name).is_file() for name in ("checkpoint.pt", "checkpoint-before.pt")):
        return f"a run that is not finished. Go on with it: killick train --resume {folder}"
    if any((folder / name).is_file() for name in ("model.onnx", "model.pt2")):
        return (
            "an export, which killick predict and killick evaluate take. Name the model that it was"
            " made from"
        )
    inside = sorted(path.parent.parent.name for path in folder.glob("*/model/config.json"))
    if inside:
        return f"{len(inside)} run{'s' * (len(inside) > 1)} in it. Name one: {folder / inside[0]}"
    return "no config.json in it"


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a configuration whose values are not of the kind that `save` writes."""

    def numbers(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in value
        )

    def names(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(v, str) for v in value)

    def number(value: Any) -> bool:
        return type(value) in (int, float) and -1e300 < value < 1e300

    kind = config.get("kind", "anchored")  # the first folders did not say it
    cut = config.get("threshold")
    shape: Any = config.get("image_shape")
    normalize, made = config.get("normalize"), config.get("architecture")
    problems = {
        "kind": kind in ("anchored", "standard"),
        "image_shape": isinstance(shape, list)
        and 1 <= len(shape) <= 4
        and all(type(side) is int and side > 0 for side in shape)
        and math.prod(shape) <= 2**26,
        "stems": kind == "standard" or (names(config.get("stems")) and len(config["stems"]) > 0),
        "normalize": normalize is None
        or (
            isinstance(normalize, dict) and all(numbers(normalize.get(k)) for k in ("mean", "std"))
        ),
        "architecture": made is None
        or (
            isinstance(made, dict)
            and isinstance(made.get("name"), str)
            and isinstance(made.get("arguments"), dict)
        ),
        "references": isinstance(config.get("references", {}), dict)
        and config.get("references", {}).get("kind", "images") in get_args(ReferenceKind),
        "class_names": config.get("class_names") is None or names(config["class_names"]),
        "provenance": isinstance(config.get("provenance", {}), dict),
        "threshold": cut is None
        or (
            isinstance(cut, dict)
            and {"energy", "acceptance", "k", "fitted_on"} <= cut.keys()
            and cut.keys() <= {each.name for each in fields(Threshold)}
            and number(cut["energy"])
            and number(cut["acceptance"])
            and type(cut["k"]) is int
            and isinstance(cut["fitted_on"], str)
        ),
        **{key: _is_named(config, key) for key in PLAIN_NAMES},
    }
    bad = [key for key, fine in problems.items() if not fine]
    if bad:
        raise StorageError(
            f"cannot load {folder}: config.json has no usable {' and '.join(map(repr, bad))}"
            f" (found {show([config.get(key) for key in bad])[1:-1]})."
        )


def read_tensors(folder: Path, config: dict[str, Any], key: str) -> dict[str, Tensor]:
    """One of the data files, "weights" or "examples", if it is what the configuration says."""
    path = folder / config[key]
    try:
        data = path.read_bytes()
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except FileNotFoundError:
        raise StorageError(f"cannot load {folder}: {path.name} is missing.") from None
    except Exception as problem:  # a header that lies makes its reader raise nearly anything
        text = " ".join(str(problem).split())[:200]
        raise StorageError(
            f"cannot load {folder}: {path.name} is truncated or damaged ({text})."
        ) from None
    if path.name == PLAIN_NAMES[key]:
        if hashlib.sha256(data).hexdigest() != config["sha256"][path.name]:
            raise StorageError(
                f"cannot load {folder}: {path.name} is damaged: it is not what config.json says."
            )
    elif path.name != _content_name(path.name.partition("-")[0], data):
        raise StorageError(
            f"cannot load {folder}: {path.name} is damaged: its name does not fit its content."
        )
    pairs = {"references"} if config.get("kind") != "standard" else set()
    if key == "examples" and tensors.keys() != {"images", "logits"} | pairs:
        raise StorageError(f"cannot load {folder}: {path.name} does not hold examples.")
    return tensors
