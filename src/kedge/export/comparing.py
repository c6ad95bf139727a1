"""Is the file the model? On stored examples, which travel along, and on pictures of the data."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kedge.anchored import Anchored
from kedge.data.synthetic import make_blobs, make_noise
from kedge.errors import OutputError
from kedge.export.check import difference
from kedge.export.opening import Exported
from kedge.predict import predict
from kedge.standard import Standard

EXAMPLES = 8
BATCH = 64
# How far a file may be from its model on the examples. In float32 they must agree to rounding; with
# fewer bits they may differ, and by how much is measured and told.
SAME = 1e-4
# How far a file may be from itself on another machine, where products are summed in another order.
ELSEWHERE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "int8": 5e-2}


def make_examples(shape: Sequence[int], takes: str) -> Tensor:
    """Images of nothing: noise, blobs and flat grey, so that no picture of the data travels along.

    Half of them are noise of falling contrast, then blobs, then one all grey.
    """
    generator = torch.Generator().manual_seed(0)
    if takes != "uint8":
        return torch.randn(EXAMPLES, *shape, generator=generator)
    blank = torch.zeros(EXAMPLES, *shape, dtype=torch.uint8)
    noise = make_noise(blank[:4], generator).float()
    contrast = torch.tensor([1, 0.5, 0.25, 0.1]).view(-1, *[1] * len(shape))
    grey = 127.5
    parts = [grey + contrast * (noise - grey)]
    if len(shape) == 3:
        blobs = make_blobs(blank[:3], generator).float()
        parts.append(grey + torch.tensor([1, 0.5, 0.2]).view(3, 1, 1, 1) * (blobs - grey))
    parts.append(torch.full((1, *shape), grey))
    return torch.cat(parts).round().clamp(0, 255).to(torch.uint8)


@torch.no_grad()
def ask_model(model: Anchored | Standard, images: Tensor, k: int) -> dict[str, Tensor]:
    """What the model itself says: the outputs of a deployed network, by `kedge.predict`."""
    several = isinstance(model, Anchored) and k > 1
    found: dict[str, list[Tensor]] = {}
    for part in images.split(BATCH):
        said = predict(model, part, "marginal", k) if several else predict(model, part)
        assert said.probs is not None
        assert said.energy is not None
        outputs = {"logits": said.logits, "probabilities": said.probs, "energy": said.energy}
        if said.std is not None:
            outputs["std"] = said.std
        for name, value in outputs.items():
            found.setdefault(name, []).append(value.float().cpu())
    return {name: torch.cat(values) for name, values in found.items()}


def ask_file(exported: Exported, images: Tensor) -> dict[str, Tensor]:
    """What the file says, in batches.

    Raises:
        OutputError: If it says NaN or infinity.
    """
    parts = [exported(part) for part in images.split(BATCH)]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if not all(bool(values.isfinite().all()) for values in found.values()):
        about = exported.about
        way_out = "Take bfloat16." if about.precision == "float16" else "Check its weights."
        raise OutputError(
            f"expected finite outputs of the {about.precision} file, found NaN or infinity."
            f" {way_out}"
        )
    return found


def compare_examples(
    exported: Exported, images: Tensor, said: dict[str, Tensor]
) -> tuple[dict[str, Any], bytes]:
    """How far the file is from the model on the examples, and the examples to go with it.

    Args:
        exported: The file.
        images: The examples.
        said: What the model says of them.

    Returns:
        Figures, and the content of `examples.npz`: the images, what the file makes of them, and how
        far it may be from that elsewhere.

    Raises:
        OutputError: If a file in float32 is not the model, or any file returns NaN.
    """
    about = exported.about
    found = {name: value.numpy() for name, value in ask_file(exported, images).items()}
    expected = {name: value.numpy() for name, value in said.items()}
    plain = {"threshold": None if about.threshold is None else {"energy": about.threshold.energy}}
    apart = {
        name: difference(name, found[name], expected[name], expected, plain) for name in expected
    }
    if about.precision == "float32" and not max(apart.values()) <= SAME:
        name = max(apart, key=lambda each: apart[each])
        raise OutputError(
            f"expected the file to say what the model says on {len(images)} examples, found"
            f" {name} that differ by {apart[name]:.1e}: nothing was written. Please report the"
            " network; --format torch may work."
        )
    if about.threshold is not None:
        above = found["energy"] <= np.float32(about.threshold.energy)
        assert (above == found["in_distribution"]).all(), "the threshold is not the file's"
    content = io.BytesIO()
    tolerance = np.float64(ELSEWHERE[about.precision])
    kept: dict[str, Any] = {"images": images.numpy(), "tolerance": tolerance, **found}
    np.savez_compressed(content, **kept)  # it stamps no times: the same examples, the same bytes
    figures = {"count": len(images), **{name: float(value) for name, value in apart.items()}}
    return figures, content.getvalue()


def compare_pictures(
    found: dict[str, Tensor],
    said: dict[str, Tensor],
    labels: Tensor | None,
    named: str,
) -> dict[str, Any]:
    """Accuracy of file and model, and how often they agree, on pictures of the data.

    Args:
        found: What the file says.
        said: What the model says.
        labels: As the model numbers its classes, if they are known.
        named: What the pictures are.
    """
    ours, theirs = found["logits"].argmax(1), said["logits"].argmax(1)
    apart = (found["probabilities"] - said["probabilities"]).abs()
    figures: dict[str, Any] = {
        "set": named,
        "count": len(ours),
        "same_label": float((ours == theirs).double().mean()),
        "largest_probability_difference": float(apart.max()),
        "mean_confidence_difference": float(apart.max(1).values.double().mean()),
    }
    if labels is not None:
        figures["accuracy"] = float((ours == labels).double().mean())
        figures["model_accuracy"] = float((theirs == labels).double().mean())
    if "in_distribution" in found:
        figures["accepted"] = float(found["in_distribution"].double().mean())
    return figures
