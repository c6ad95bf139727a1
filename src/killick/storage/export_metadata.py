"""The metadata inside an exported file: which images it takes, and what its outputs mean."""

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from killick.core.image_model import Threshold
from killick.data.data_settings import INTERPOLATIONS, LARGEST_RESIZE
from killick.errors import StorageError, one_line, show
from killick.storage.json_checks import (
    MOST_REFERENCES,
    Check,
    are_texts,
    find_bad,
    is_shape,
    is_text,
    is_threshold,
    is_whole,
    optional,
)

FORMAT, VERSION = "killick-export", 1
KEY = "killick"  # of the metadata in the files
TAKES = ("uint8", "float32")
FILE_FORMATS = ("onnx", "torch")
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
# In the order in which a deployed network returns them.
OUTPUTS = ("logits", "probabilities", "energy", "std", "in_distribution")


@dataclass(frozen=True)
class ExportMetadata:
    """All that one must know to use a file."""

    name: str
    file_format: str
    precision: str
    network: str
    image_shape: tuple[int, ...]  # channels first
    takes: str  # "uint8", 0 to 255, normalized inside; or "float32", in the network's own space
    outputs: tuple[str, ...]  # their names, in their order
    k: int  # references it averages over; 0 for a standard model
    references: str  # what they are, and whether the file shows training images
    class_names: tuple[str, ...] | None
    resize: int | None  # of the shorter side, before the center crop
    interpolation: str
    threshold: Threshold | None
    weights: str  # their digest, as in rows
    squash: bool = False  # resized to a square without keeping the aspect ratio
    measured: dict[str, Any] = field(default_factory=dict)  # agreement with the model
    made_with: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2)


_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("name", "network", "references", "weights"), is_text),
    "file_format": lambda value: value in FILE_FORMATS,
    "precision": lambda value: value in PRECISIONS,
    "takes": lambda value: value in TAKES,
    "image_shape": is_shape,
    # In the order of a deployed network, logits first.
    "outputs": lambda value: (
        isinstance(value, list) and value == [n for n in OUTPUTS if n == "logits" or n in value]
    ),
    "k": partial(is_whole, least=0, most=MOST_REFERENCES),
    "class_names": optional(lambda value: are_texts(value) and len(value) > 1),
    "resize": optional(partial(is_whole, least=1, most=LARGEST_RESIZE)),
    "interpolation": lambda value: value in INTERPOLATIONS,
    "threshold": optional(is_threshold),
    "squash": lambda value: isinstance(value, bool),
    "measured": lambda value: isinstance(value, dict),
    "made_with": lambda value: isinstance(value, dict) and are_texts(list(value.values())),
}


def read_metadata(text: str, where: object) -> ExportMetadata:
    """What `to_json` wrote, each value checked; `where` is for errors."""
    try:
        found = json.loads(text)
        kind, version = found.pop("format"), found.pop("version")
        if kind != FORMAT or version != VERSION:
            raise ValueError(f"format {show(kind)}, version {show(version)}, not {VERSION}")
        for key in find_bad(found, _CHECKS):
            raise ValueError(f"{key} is {show(found.get(key))}")
        found = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        threshold = found.pop("threshold")
        return ExportMetadata(**found, threshold=threshold and Threshold(**threshold))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise StorageError(
            f"cannot open {where}: its metadata is not what killick export writes"
            f" ({one_line(problem)}). Export the model again."
        ) from None
