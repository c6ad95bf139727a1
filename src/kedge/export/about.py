"""What a file says of itself: how to show it images, and what its answers mean."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from kedge.errors import StorageError
from kedge.image_model import Threshold

FORMAT, VERSION = "kedge-export", 1
KEY = "kedge"  # under which it is kept in the files


@dataclass(frozen=True)
class About:
    """All that one must know to use a file.

    Attributes:
        name: Of the model.
        file_format: "onnx" or "torch".
        precision: "float32", "float16", "bfloat16" or "int8".
        network: Its architecture, by name.
        image_shape: Of one image, channels first.
        takes: "uint8", 0 to 255, normalised inside; or "float32", in the network's own space.
        outputs: Their names, in their order.
        k: How many references it averages over; 0 for a standard model.
        references: What they are, and what that means for whoever passes the file on.
        class_names: In the order of the logits, if known.
        resize: To what the shorter side of a picture is brought before the middle is cut out.
        interpolation: How.
        threshold: Where in-distribution ends, if that was fitted.
        weights: The digest of the model's weights, by which rows know it.
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
        """As it is kept."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2)


def read_about(text: str, where: object) -> About:
    """What `to_json` wrote.

    Args:
        text: As it was found.
        where: What an error calls it.
    """
    try:
        found = json.loads(text)
        kind, version = found.pop("format"), found.pop("version")
        if kind != FORMAT or version != VERSION:
            raise StorageError(
                f"cannot open {where}: expected an export of Kedge, version {VERSION}, found"
                f" {kind!r}, version {version!r}. Export the model again."
            )
        threshold = found.pop("threshold")
        names = found.pop("class_names")
        about = About(
            **{
                **found,
                "image_shape": tuple(int(side) for side in found["image_shape"]),
                "outputs": tuple(str(name) for name in found["outputs"]),
                "class_names": None if names is None else tuple(str(name) for name in names),
                "threshold": None if threshold is None else Threshold(**threshold),
            }
        )
        if about.class_names is not None and len(about.class_names) < 2:
            raise ValueError("fewer than two class names")
        return about
    except StorageError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise StorageError(
            f"cannot open {where}: expected what `kedge export` wrote of it, found something else"
            f" ({reason}). Export the model again."
        ) from None
