"""Fig. 5b: does label noise hurt anchored training more, and who memorizes wrong labels?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.results.measurements import Measured, Record
from killick.settings import setting
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, StudyArm, cross_arms

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from killick.report.figures import Figure
    from killick.report.tables import TextTable
    from killick.runtime.progress import Display, DisplayFactory
    from killick.studies.findings import Findings, Results
    from killick.studies.trained_job import TrainedJob

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
    )
    protocols: list[str] = setting(list(PROTOCOLS), "arms at each level")


def make_arms(options: Options, settings: Mapping[str, Any]) -> Sequence[StudyArm]:
    """Every protocol at every level; a higher level also flips what a lower one flips."""
    for level in options.levels:
        if not 0 <= level <= 1:
            raise OptionError(f"--levels needs shares between 0 and 1, found {level:g}.")
    found = {_percent(level): {"data.label_noise": float(level)} for level in options.levels}
    return cross_arms("noise", found, options.protocols)


def _percent(share: float) -> int | float:
    percent = round(100 * share, 6)
    return int(percent) if percent == int(percent) else percent


def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: "torch.device",
    show: "DisplayFactory",
) -> None:
    """Predict the training images without augmentation, and compare with given and true labels."""
    from killick.studies.trained_job import open_job
    from killick.training.training_data import sets_of

    if kept.find(metric=TRUE_TOP1) is not None:  # it is written last
        return
    job = open_job(folder, device)
    given = job.parts.train.labels
    with show("predicting training images", len(given), 0, "image") as display:
        predicted = predict_training(job, display)
    clean = replace(job.recipe, data=replace(job.recipe.data, label_noise=0.0))
    kept.add(*compare_labels(predicted, given, sets_of(clean).train.labels))


def predict_training(job: "TrainedJob", display: "Display") -> "Tensor":
    """The predicted class of each training image, from the first reference."""
    import torch

    from killick.core.anchored import evaluating

    predicted = []
    with evaluating(job.model), torch.no_grad():
        for place, block in job.blocks(job.parts.train):
            images = block.contiguous(memory_format=torch.channels_last)
            predicted.append(job.model(images).argmax(1))
            display.advance(place.stop)
    return torch.cat(predicted).cpu()


def compare_labels(predicted: "Tensor", given: "Tensor", true: "Tensor") -> list[Record]:
    """Shares of the images by whether their label was flipped; empty ones are left out.

    Example:
        >>> import torch
        >>> predicted, given, true = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0]])
        >>> found = compare_labels(predicted, given, true)
        >>> {each["metric"]: each["value"] for each in found}[TRUE_TOP1]
        1.0
    """
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


def find(results: "Results") -> "Findings":
    """Corrupted accuracy over the noise, and what became of the wrong labels."""
    from killick.studies.findings import Findings
    from killick.studies.plots import PublishedValues, Sweep

    sweep = Sweep(
        results,
        "noise",
        "corrupted_top1",
        "study-noise",
        "training labels flipped, %",
        published=(PublishedValues("CIFAR-100-C", PAPER, "read off the plot, ± 0.1"),),
    )
    figures = (sweep.figure(), draw_training(results))
    return Findings(sweep.headline(), figures, (sweep.table(), tabulate_training(results)))


def draw_training(results: "Results") -> "Figure":
    """Predictions on training images over the noise, for true and for flipped labels."""
    from killick.report.figures import Figure
    from killick.studies.plots import draw_lines

    panels, records = [], []
    levels = results.levels("noise")
    for metric, heading in _HEADINGS.items():
        lines = {
            protocol: {
                level: [100 * value for value in values]
                for level in levels
                if (values := values_of(results, metric, protocol, level))
            }
            for protocol in results.levels("protocol")
        }
        there = [level for level in levels if any(level in points for points in lines.values())]
        if there:
            name, along = f"study-noise-{metric.replace('_', '-')}", "training labels flipped, %"
            panels.append(draw_lines(results, lines, there, name, heading, "%, all seeds", along))
        records += [
            (metric, protocol, level, value)
            for protocol, points in lines.items()
            for level, values in points.items()
            for value in values
        ]
    columns = ("metric", "protocol", "noise", "percent")
    note = "Predictions on the training images, without augmentation."
    return Figure("study-noise-training", note, tuple(panels), columns, tuple(records))


def tabulate_training(results: "Results") -> "TextTable":
    """The same as numbers, with the accuracy on test images beside."""
    from killick.report.tables import TextTable
    from killick.studies.findings import format_mean

    rows = []
    for level in results.levels("noise"):
        for protocol in results.levels("protocol"):
            arm = results.arm(protocol=protocol, noise=level)
            values = [values_of(results, metric, protocol, level) for metric in _HEADINGS]
            values.append(list(results.values(arm, "clean_top1").values()))
            rows.append((f"{level} %, {protocol}", *map(format_mean, values)))
    return TextTable(
        "study-noise-training-table",
        "Training images by whether their label was flipped, %",
        ("noise, protocol", *_HEADINGS.values(), "test images: correct"),
        tuple(rows),
        "Mean ± standard deviation over seeds. A third label is possible too.",
    )


def values_of(results: "Results", metric: str, protocol: str, level: Any) -> list[float]:
    """What was measured at a level, one value for each seed."""
    records = results.records(metric=metric, protocol=protocol, noise=level)
    return list({int(each["seed"]): float(each["value"]) for each in records}.values())


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
        "A flipped label is always another class, and the share is exact; the paper does not state"
        " this.",
        "References for evaluation are balanced over the given labels, so they differ by level.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
