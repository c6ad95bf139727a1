"""Fig. 5b: does label noise hurt anchored training more, and who memorizes wrong labels?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.results.measurements import Measured, Record
from killick.runtime.progress import DisplayFactory
from killick.settings import setting
from killick.studies.findings import Findings, Results, format_mean, make_table
from killick.studies.plots import Plot, Sweep, draw_figure
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, cross_arms

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Corrupted accuracy at 20 % of wrong labels, the only place where the plot is legible.
PAPER = {("standard", 20): 38.1, ("anchored", 20): 38.5, ("masked-label", 20): 41.85}
# Metrics on the training images: those with their true label, and those with a flipped one.
TRUE_TOP1 = "true_labels_top1"
MEMORIZED = "flipped_labels_memorized"
CORRECTED = "flipped_labels_corrected"
FLIPPED = "flipped_labels_share"
_HEADINGS = {
    TRUE_TOP1: "True labels: correct",
    MEMORIZED: "Flipped labels: memorized",
    CORRECTED: "Flipped labels: true label predicted",
}


@dataclass(frozen=True)
class Options:
    """What is varied."""

    levels: list[float] = setting(
        [0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2],
        "shares of the training labels flipped to another class; 0: none",
        least=0,
        most=1,
    )
    protocols: list[str] = setting(list(PROTOCOLS), "arms at each level")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Every protocol at every level; a higher level also flips what a lower one flips."""
    found = {_percent(level): {"data.label_noise": float(level)} for level in options.levels}
    return cross_arms("noise", found, options.protocols)


def _percent(share: float) -> int | float:
    percent = round(100 * share, 6)
    return int(percent) if percent == int(percent) else percent


def measure(
    folder: Path, options: Record, kept: Measured, *, device: "torch.device", show: DisplayFactory
) -> None:
    """Predict the training images without augmentation, and compare with given and true labels."""
    import torch

    from killick.studies.trained_job import open_job
    from killick.training.training_data import sets_of

    if kept.find(metric=TRUE_TOP1) is not None:  # it is written last
        return
    job = open_job(folder, device)
    train, predicted = job.parts.train, []
    with show("predicting training images", len(train), 0, "image") as display, torch.no_grad():
        for place, block in job.blocks(train):
            images = block.contiguous(memory_format=torch.channels_last)
            predicted.append(job.model(images).argmax(1).cpu())
            display.advance(place.stop)
    clean = replace(job.recipe, data=replace(job.recipe.data, label_noise=0.0))
    kept.add(*compare_labels(torch.cat(predicted), train.labels, sets_of(clean).train.labels))


def compare_labels(predicted: "Tensor", given: "Tensor", true: "Tensor") -> list[Record]:
    """Shares of the images by whether their label was flipped; empty ones are left out."""
    flipped = given != true
    shares = {
        FLIPPED: flipped,
        MEMORIZED: (predicted == given)[flipped],
        CORRECTED: (predicted == true)[flipped],
        TRUE_TOP1: (predicted == true)[~flipped],
    }
    return [
        {"metric": metric, "value": float(share.double().mean()), "count": len(share)}
        for metric, share in shares.items()
        if len(share)
    ]


def find(results: Results) -> Findings:
    """Corrupted accuracy over the noise, and what became of the wrong labels."""
    along = "training labels flipped, %"
    sweep = Sweep(
        results,
        "noise",
        "corrupted_top1",
        {"CIFAR-100-C": PAPER},
        "Fig. 5b, read off, ± 0.1",
        along,
    )
    found = {heading: results.curves(metric, "noise") for metric, heading in _HEADINGS.items()}
    unit = "% of the training images"
    plots = [Plot(heading, curves, unit, along) for heading, curves in found.items()]
    rows = [
        {
            "noise, protocol": f"{level} %, {protocol}",
            **{h: format_mean(curves[protocol].get(level, {})) for h, curves in found.items()},
            "test images: correct": results.format(sweep.arm(protocol, level), "clean_top1"),
        }
        for level in results.levels("noise")
        for protocol in results.levels("protocol")
    ]
    title = "Training images, without augmentation, by whether their label was flipped, %"
    return Findings(
        sweep.headline(),
        (sweep.figure(), draw_figure("study-noise-training", plots)),
        (sweep.table(), make_table("study-noise-training-table", title, rows)),
    )


STUDY = Study(
    name="label-noise",
    item="Fig. 5b",
    title="Does label noise hurt anchored training more?",
    about="corrupted accuracy with 0.5 to 20 % flipped labels, and how many are memorized",
    options=Options,
    varies=("levels", "protocols"),
    arms=make_arms,
    findings=find,
    measure="killick.studies.label_noise:measure",
    sizes={
        "small": Size(options={"levels": [0.0, 0.05, 0.2]}, evaluation={"limit": 300}),
        "smoke": Size(
            options={"levels": [0.0, 0.2], "protocols": ["standard", "masked-label"]},
            evaluation={"corruptions": ("fog",), "severities": (3,)},
        ),
    },
    notes=(
        "References for evaluation are balanced over the given labels, so they differ by level.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
