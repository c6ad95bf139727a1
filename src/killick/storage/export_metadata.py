"""The metadata inside an exported file: which images it takes, and what its outputs mean."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from killick.core.image_model import Threshold
from killick.data.preprocessing import LARGEST_RESIZE, is_known, is_side
from killick.errors import StorageError, show

FORMAT, VERSION = "killick-export", 1
KEY = "killick"  # of the metadata in the files
TAKES = ("uint8", "float32")
FILE_FORMATS = ("onnx", "torch")
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
# In the order in which a deployed network returns them.
OUTPUTS = ("logits", "probabilities", "energy", "std", "in_distribution")
LARGEST_IMAGE = 2**26  # numbers
MOST_REFERENCES = 10**4


@dataclass(frozen=True)
class ExportMetadata:
    """All that one must know to use a file.

    Attributes:
        name: Of the model.
        file_format: "onnx" or "torch".
        precision: "float32", "float16", "bfloat16" or "int8".
        network: Its architecture, by name.
        image_shape: Of one image, channels first.
        takes: "uint8", 0 to 255, normalized inside; or "float32", in the network's own space.
        outputs: Their names, in their order.
        k: How many references it averages over; 0 for a standard model.
        references: What they are, and what that means for whoever passes the file on.
        class_names: In the order of the logits, if known.
        resize: What the shorter side of an image is resized to before the center crop.
        interpolation: For resizing.
        threshold: The energy where in-distribution ends, if that was fitted.
        weights: The digest of the model's weights, as in rows.
        measured: How it compares with the model it came from.
        made_with: Versions.
    """

    name: str
    file_format: str
    precision: str
    network: str
    image_shape: tuple[int, ...]
    takes: str
    outputs: tuple[str, ...]
    k: int
    references: str
    class_names: tuple[str, ...] | None
    resize: int | None
    interpolation: str
    threshold: Threshold | None
    weights: str
    measured: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2)


def read_metadata(text: str, where: object) -> ExportMetadata:
    """What `to_json` wrote; `where` is for errors.

    Raises:
        StorageError: If a value is of another kind or size than `to_json` writes.
    """
    try:
        found = json.loads(text)
        kind, version = found.pop("format"), found.pop("version")
        if kind != FORMAT or version != VERSION:
            raise ValueError(f"format {show(kind)}, version {show(version)}, not {VERSION}")
        _check(found)
        threshold, names = found["threshold"], found["class_names"]
        return ExportMetadata(
            **{
                **found,
                "image_shape": tuple(found["image_shape"]),
                "outputs": tuple(found["outputs"]),
                "class_names": None if names is None else tuple(names),
                "threshold": None if threshold is None else Threshold(**threshold),
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise StorageError(
            f"cannot open {where}: its metadata is not what killick export writes ({reason})."
            " Export the model again."
        ) from None


def _check(found: dict[str, Any]) -> None:
    """Refuse values of another kind or size than `killick export` writes."""
    cut, names = found["threshold"], found["class_names"]
    fine = {
        **{key: _is_text(found[key]) for key in ("name", "network", "references", "weights")},
        "file_format": found["file_format"] in FILE_FORMATS,
        "precision": found["precision"] in PRECISIONS,
        "takes": found["takes"] in TAKES,
        "image_shape": _is_shape(found["image_shape"]),
        "outputs": _are_outputs(found["outputs"]),
        "k": _is_whole(found["k"], 0, MOST_REFERENCES),
        "class_names": names is None or (_are_texts(names) and len(names) > 1),
        "resize": found["resize"] is None or is_side(found["resize"], LARGEST_RESIZE),
        "interpolation": is_known(found["interpolation"]),
        "threshold": cut is None or _is_threshold(cut),
        "measured": isinstance(found["measured"], dict),
        "made_with": isinstance(found["made_with"], dict)
        and _are_texts(list(found["made_with"].values())),
    }
    for key, fits in fine.items():
        if not fits:
            raise ValueError(f"{key} is {show(found[key])}")


def _is_text(value: object) -> bool:
    """Whether it is text that can be written; JSON may hold half characters."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_text, values))


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_shape(value: object) -> bool:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= 4
        and all(_is_whole(side, 1, LARGEST_IMAGE) for side in value)
        and math.prod(value) <= LARGEST_IMAGE
    )


def _are_outputs(value: object) -> bool:
    """Whether they are outputs of a deployed network, in its order, logits first."""
    if not isinstance(value, list) or value[:1] != list(OUTPUTS[:1]):
        return False
    return value == [name for name in OUTPUTS if name in value]


def _is_threshold(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == Threshold.__dataclass_fields__.keys()
        and type(value["energy"]) in (int, float)
        and -1e300 < value["energy"] < 1e300
        and type(value["acceptance"]) in (int, float)
        and 0 <= value["acceptance"] <= 1
        and _is_whole(value["k"], 1, MOST_REFERENCES)
        and _is_text(value["fitted_on"])
    )
