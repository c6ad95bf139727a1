"""The suite `attention`: rows about each head of a transformer, and maps of a few heads."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.attention import AttentionLocality, LayerLocality, attention_maps, measure
from killick.attention.head_measures import MEASURES
from killick.data.image_set import ImageSet
from killick.errors import KillickError
from killick.evaluation.classifier import Classifier
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.row_recorder import RowRecorder
from killick.evaluation.test_sets import TestSet, TestSetPlanner
from killick.results.attention_files import AttentionMap, write_maps
from killick.results.predictions import encode
from killick.runtime.progress import DisplayFactory

_MAPPED = 4  # images with attention maps


def plan_attention(
    classifier: Classifier,
    settings: EvaluationSettings,
    planner: TestSetPlanner,
    test: ImageSet,
    notes: list[str],
) -> TestSet | None:
    """The images that attention is measured on; None without the suite, or without attention."""
    if "attention" not in settings.suites:
        return None
    reason = _why_not_measured(classifier)
    if reason:
        settings.leave_out("attention", reason, notes)
        return None
    return planner.plan_attention(test)


def measure_attention(
    classifier: Classifier,
    recorder: RowRecorder,
    test: TestSet,
    batch: int | None,
    folder: Path | None,
    show: DisplayFactory,
) -> None:
    """Measure the attention of a transformer, if there are no rows about it yet; maps go to `folder`.

    `batch` images go through the network at once; None: as many as is usual.
    """
    if recorder.has_suite(test):
        return
    with show(f"attention of {classifier.name}", test.count, 0, "image") as display:

        def batches() -> Iterator[Tensor]:
            done = 0
            for block in test.open():
                for images in block.images.split(batch or classifier.usual_batch):
                    yield classifier.prepare(images)
                    done += len(images)
                    display.advance(done)

        found = measure(classifier.model, batches(), references=classifier.references)
        recorder.add_rows(test, list(_rows(found)))
        if folder is not None:
            _write_maps(folder, classifier, test, found)


def _why_not_measured(classifier: Classifier) -> str:
    """Why the attention of a classifier cannot be measured; empty if it can."""
    if classifier.exported is not None:
        return f"{classifier.name} is an exported file"
    size = classifier.view.size
    trial = torch.zeros(2, 3, size, size, dtype=torch.uint8, device=classifier.device)
    try:
        measure(classifier.model, classifier.prepare(trial), references=classifier.references)
    except KillickError as problem:
        return str(problem).removesuffix(".")
    return ""


def _write_maps(
    folder: Path, classifier: Classifier, test: TestSet, found: AttentionLocality
) -> None:
    """Keep the maps of the most local, the median and the least local head for a few images."""
    heads = sorted(
        (float(distance), layer.layer, head)
        for layer in found.layers
        for head, distance in enumerate(layer.values())
    )
    chosen = [heads[place][1:] for place in sorted({0, len(heads) // 2, len(heads) - 1})]
    first = next(iter(test.open())).images[:_MAPPED]
    maps = [
        AttentionMap(*each[:2], each.query, each.weights.numpy())
        for each in attention_maps(classifier.model, classifier.prepare(first), chosen)
    ]
    images = [encode(image.numpy()) for image in first.cpu()]
    write_maps(folder, classifier.name, classifier.weights, images, maps)


def _rows(found: AttentionLocality) -> Iterator[dict[str, Any]]:
    anchored = found.references > 0
    common = {
        "inference": "marginal" if anchored else "single",
        "k": found.references if anchored else "",
        "count": found.images,
        "normalizer": found.normalizer,
        "prefix": found.prefix,
        "precision": "float32",
    }
    for layer in found.layers:
        about = {**common, **_place(layer)}
        for name, head in itertools.product(MEASURES, range(layer.values().numel())):
            members = layer.by_reference[name][:, head]
            several = len(members) > 1
            yield {
                **about,
                "head": head,
                "metric": f"attention_{name}",
                "value": float(members.mean()),
                "std": float(members.std()) if several else "",
                "members": " ".join(f"{member:.7g}" for member in members) if several else "",
            }
        for name in ("norm_mean", "norm_max"):
            if (value := getattr(layer, name)) is not None:
                yield {**about, "metric": f"attention_{name}", "value": value}
    if found.change is not None:
        yield {**common, "metric": "attention_change", "value": found.change}


def _place(layer: LayerLocality) -> dict[str, Any]:
    rows, columns = layer.grid
    return {"layer": layer.layer, "grid": f"{rows}x{columns}", "windows": layer.windows}
