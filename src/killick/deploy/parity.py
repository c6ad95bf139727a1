"""Is the file the model? On stored examples, which travel along, and on pictures of the data."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.inference import predict
from killick.core.standard import Standard
from killick.data.synthetic_ood import make_blobs, make_noise
from killick.deploy.check_export import difference
from killick.errors import OutputError
from killick.storage.export_metadata import About
from killick.storage.exported_file import Exported

EXAMPLES, CANDIDATES = 8, 64
BATCH = 64
# How far a file may be from its model on the examples: in float32 to rounding; with fewer bits to
# what they can cost, and by how much they differ is measured and told.
SAME = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1, "int8": 3e-1}
# How far a file may be from itself on another machine, where products are summed in another order.
ELSEWHERE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "int8": 5e-2}


def make_candidates(shape: Sequence[int], takes: str) -> Tensor:
    """Images of nothing: noise and blobs, so that no picture of the data travels along.

    They are of every contrast, from none on, and of every brightness.
    """
    generator = torch.Generator().manual_seed(0)
    if takes != "uint8":
        grow = torch.linspace(0, 3, CANDIDATES).view(-1, *[1] * len(shape))
        return grow * torch.randn(CANDIDATES, *shape, generator=generator)
    blank = torch.zeros(CANDIDATES, *shape, dtype=torch.uint8)
    values = make_noise(blank, generator).float()
    if len(shape) == 3:
        values[1::2] = make_blobs(blank[1::2], generator).float()
    contrast = torch.linspace(0, 1, CANDIDATES).view(-1, *[1] * len(shape))
    grey = 64 + 127 * torch.rand(CANDIDATES, *[1] * len(shape), generator=generator)
    return (grey + contrast * (values - 127.5)).round().clamp(0, 255).to(torch.uint8)


def choose_examples(exported: Exported, candidates: Tensor) -> Tensor:
    """Some of the candidates: of all contrasts, and on both sides of the threshold if there are.

    Those near it are taken that are not so near that rounding decides.
    """
    some = torch.linspace(0, len(candidates) - 1, EXAMPLES).round().long()
    threshold = exported.threshold
    if threshold is None:
        return candidates[some]
    found = ask_file(exported, candidates)
    scale = max(1.0, float(found["logits"].abs().max()))
    margin = found["energy"].double() - threshold.energy
    clear = margin.abs() > 2 * ELSEWHERE[exported.about.precision] * scale
    near: list[Tensor] = []
    for side in (margin > 0, margin <= 0):
        there = (side & clear).nonzero()[:, 0]
        near.append(there[margin[there].abs().argsort()][: EXAMPLES // 4])
    chosen = torch.cat([*near, some])
    _, first = np.unique(chosen.numpy(), return_index=True)
    return candidates[chosen[torch.from_numpy(np.sort(first))][:EXAMPLES]]


@torch.no_grad()
def ask_model(model: Anchored | Standard, images: Tensor, k: int) -> dict[str, Tensor]:
    """What the model itself says: the outputs of a deployed network, by `killick.predict`."""
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
        OutputError: If the file is not the model, or returns NaN.
    """
    about = exported.about
    found = {name: value.numpy() for name, value in ask_file(exported, images).items()}
    expected = {name: value.numpy() for name, value in said.items()}
    apart = _measure_apart(found, expected)
    if about.precision != "int8":
        _check_apart(apart, about, f"{len(images)} examples")
    _check_alone(exported, images, found)
    if about.threshold is not None:
        below = found["energy"] <= np.float32(about.threshold.energy)
        if not (below == found["in_distribution"]).all():
            raise OutputError(
                f"expected images up to energy {about.threshold.energy} to be in distribution,"
                " found others: nothing was written. Please report the network."
            )
    content = io.BytesIO()
    tolerance = np.float64(ELSEWHERE[about.precision])
    kept: dict[str, Any] = {"images": images.numpy(), "tolerance": tolerance, **found}
    np.savez_compressed(content, **kept)  # it stamps no times: the same examples, the same bytes
    figures = {"count": len(images), **{name: float(value) for name, value in apart.items()}}
    return figures, content.getvalue()


def compare_calibrated(exported: Exported, images: Tensor, said: dict[str, Tensor]) -> None:
    """Refuse an int8 file that is not the model on pictures like those it was calibrated on.

    Examples are not like them: beyond the ranges of calibration 8 bits promise nothing.
    """
    found = {name: value.numpy() for name, value in ask_file(exported, images).items()}
    apart = _measure_apart(found, {"logits": said["logits"].numpy()})
    _check_apart(apart, exported.about, f"{len(images)} pictures it was calibrated on")


def _measure_apart(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    return {name: difference(name, found[name], expected[name], expected, {}) for name in expected}


def _check_apart(apart: dict[str, float], about: About, shown: str) -> None:
    worst = max(apart, key=lambda name: apart[name])
    if not apart[worst] <= SAME[about.precision]:
        raise OutputError(
            f"expected the file to say what the model says on {shown}, found {worst} that differ by"
            f" {apart[worst]:.1e}: nothing was written. Take a higher --precision or another"
            " --format; in float32, please report the network."
        )


def _check_alone(exported: Exported, images: Tensor, found: dict[str, Any]) -> None:
    """Refuse a network that says something else of an image when others are beside it."""
    parts = [exported(image[None]) for image in images]
    for name in ("logits", "probabilities", "energy"):
        alone = torch.cat([part[name] for part in parts]).numpy()
        apart = difference(name, alone, found[name], found, {})
        if not apart <= ELSEWHERE[exported.about.precision]:
            raise OutputError(
                f"expected the same {name} of an image alone and among others, found a difference"
                f" of {apart:.1e}: the network mixes the images of a batch. Nothing was written."
            )


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
