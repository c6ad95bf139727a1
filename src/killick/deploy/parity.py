"""Parity of an exported file and its model: on stored examples, and on images of the data."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.image_model import ImageModel
from killick.core.inference import predict
from killick.core.standard import Standard
from killick.data.image_set import ImageSet
from killick.data.synthetic_ood import make_blobs, make_noise
from killick.deploy.check_export import difference
from killick.deploy.export_sets import read_some
from killick.errors import OutputError
from killick.storage.export_metadata import ExportMetadata
from killick.storage.exported_file import Exported

EXAMPLES = 8
BATCH = 64
# Largest difference of a file from its model on the examples: rounding in float32; with fewer bits
# what they can cost, and the difference is measured and reported.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int8": 3e-1}
# The same of a file from itself on another machine, where products are summed in another order.
OTHER_MACHINES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "int8": 5e-2}


def make_examples(shape: Sequence[int], takes: str) -> Tensor:
    """Noise and blobs of every contrast and brightness, so that no image of the data is stored."""
    generator = torch.Generator().manual_seed(0)
    wide = (-1, *[1] * len(shape))
    if takes != "uint8":
        strength = torch.linspace(0, 3, EXAMPLES).view(wide)
        return strength * torch.randn(EXAMPLES, *shape, generator=generator)
    blank = torch.zeros(EXAMPLES, *shape, dtype=torch.uint8)
    values = make_noise(blank, generator).float()
    if len(shape) == 3:
        values[1::2] = make_blobs(blank[1::2], generator).float()
    contrast = torch.linspace(0, 1, EXAMPLES).view(wide)
    gray = 64 + 127 * torch.rand(EXAMPLES, generator=generator).view(wide)
    return (gray + contrast * (values - 127.5)).round().clamp(0, 255).to(torch.uint8)


@torch.no_grad()
def model_outputs(model: Anchored | Standard, images: Tensor, k: int) -> dict[str, Tensor]:
    """The outputs of a deployed network, as `killick.predict` gives them."""
    several = isinstance(model, Anchored) and k > 1
    found: dict[str, list[Tensor]] = {}
    for part in images.split(BATCH):
        made = predict(model, part, "marginal", k) if several else predict(model, part)
        outputs = {"logits": made.logits, "probabilities": made.probs, "energy": made.energy}
        outputs |= {} if made.std is None else {"std": made.std}
        for name, value in outputs.items():
            assert value is not None
            found.setdefault(name, []).append(value.float().cpu())
    return {name: torch.cat(values) for name, values in found.items()}


def file_outputs(exported: Exported, images: Tensor) -> dict[str, Tensor]:
    """The outputs of the file, computed in batches; NaN or infinity is refused."""
    parts = [exported(part) for part in images.split(BATCH)]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if not all(bool(values.isfinite().all()) for values in found.values()):
        precision = exported.about.precision
        way_out = "Use bfloat16." if precision == "float16" else "Check its weights."
        raise OutputError(f"the {precision} file returns NaN or infinity. {way_out}")
    return found


def compare_examples(
    exported: Exported, images: Tensor, expected: dict[str, Tensor]
) -> tuple[dict[str, Any], bytes]:
    """How far the file is from the model on the examples, and the content of `examples.npz`.

    That is the images, the outputs of the file, and how far they may differ on other machines.
    A file that does not compute what the model does is refused.
    """
    about = exported.about
    found = {name: value.numpy() for name, value in file_outputs(exported, images).items()}
    wanted = {name: value.numpy() for name, value in expected.items()}
    apart = {name: difference(name, found[name], wanted[name], wanted, {}) for name in wanted}
    if about.precision != "int8":
        for name, value in apart.items():
            _check_difference(name, value, about, f"{len(images)} examples")
    alone = torch.cat([exported(image[None])["logits"] for image in images]).numpy()
    off = difference("logits", alone, found["logits"], found, {})
    if not off <= OTHER_MACHINES[about.precision]:
        raise OutputError(
            f"logits of an image alone and in a batch differ by {off:.1e}: the network mixes the"
            " images of a batch. Nothing was written."
        )
    tolerance = np.float64(OTHER_MACHINES[about.precision])
    kept: dict[str, Any] = {"images": images.numpy(), "tolerance": tolerance, **found}
    content = io.BytesIO()
    np.savez_compressed(content, **kept)  # it stamps no times: the same examples, the same bytes
    return {"count": len(images), **apart}, content.getvalue()


def check_calibrated(exported: Exported, images: Tensor, expected: dict[str, Tensor]) -> None:
    """Refuse an int8 file that differs from the model on images like those of its calibration.

    Examples are not like them, and beyond the ranges of calibration 8 bits promise nothing.
    """
    found = file_outputs(exported, images)["logits"].numpy()
    wanted = expected["logits"].numpy()
    apart = difference("logits", found, wanted, {"logits": wanted}, {})
    _check_difference("logits", apart, exported.about, f"{len(images)} calibration images")


def _check_difference(name: str, apart: float, about: ExportMetadata, shown: str) -> None:
    if not apart <= TOLERANCE[about.precision]:
        raise OutputError(
            f"{name} of the file and the model differ by {apart:.1e} on {shown}: nothing was"
            " written. Use a higher --precision or another --format; in float32, please report the"
            " network."
        )


def compare_images(
    run: Callable[[Tensor], dict[str, Tensor]],
    model: Anchored | Standard,
    k: int,
    test: ImageSet,
    limit: int,
) -> dict[str, Any]:
    """Accuracy and agreement of what `run` returns and `model`, on at most `limit` test images."""
    images, labels = read_some(model, test, limit)
    found, expected = run(images), model_outputs(model, images, k)
    ours, theirs = found["logits"].argmax(1), expected["logits"].argmax(1)
    apart = (found["probabilities"] - expected["probabilities"]).abs()
    figures: dict[str, Any] = {
        "set": f"{test.name}, test",
        "count": len(ours),
        "same_label": float((ours == theirs).double().mean()),
        "largest_probability_difference": float(apart.max()),
    }
    known = _labels_for(model, test, labels, found["logits"].shape[1])
    if known is not None:
        figures["accuracy"] = float((ours == known).double().mean())
        figures["model_accuracy"] = float((theirs == known).double().mean())
    if "in_distribution" in found:
        figures["accepted"] = float(found["in_distribution"].double().mean())
    return figures


def format_agreement(figures: dict[str, Any]) -> str:
    """What `compare_images` found, in words."""
    words = f"{figures['same_label']:.1%} of {figures['count']:,} images of {figures['set']} get"
    words += " the model's label"
    if "accuracy" in figures:
        before = figures["model_accuracy"]
        words += f", accuracy {figures['accuracy']:.1%} (the model {before:.1%})"
    if "accepted" in figures:
        words += f", {figures['accepted']:.1%} in distribution"
    return words


def _labels_for(model: ImageModel, images: ImageSet, labels: Tensor, classes: int) -> Tensor | None:
    """The labels as the model numbers its `classes`; None where the classes are others."""
    ours = model.class_names
    if ours is None:
        return labels if images.classes == classes else None
    if not set(images.class_names) <= set(ours):
        return None
    return torch.tensor([ours.index(name) for name in images.class_names])[labels]
