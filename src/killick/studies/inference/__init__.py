"""Fig. 2: does the inference protocol matter? Accuracy and cost of four of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from killick.errors import OptionError
from killick.experiments.jobs import Job
from killick.protocols.anchored_protocol import AnchoredProtocol
from killick.settings import setting
from killick.studies.findings import Findings, Results, compare_values, format_mean, make_table
from killick.studies.plots import Plot, draw_figure, draw_points
from killick.studies.study import STUDIES, WITH_REFERENCES, Size, Study, compare_protocols

SINGLE, MEAN, MARGINAL, TRANSDUCTIVE = "single", "mean-image", "marginal", "transductive"
TOP1, SECONDS = "top1", "seconds_per_1000"  # metrics of the records
# More metrics of one of the protocols, with headings and format.
_OWN = {
    "worst_reference_top1": ("worst reference, %", 100),
    "largest_candidate_share": ("most frequent candidate, %", 100),
    "residual_distance": ("residual distance", 1),
}
# CIFAR-100-C, ResNet-18: accuracy with its spread, and seconds for 1,000 images, which the paper
# gives once for both protocols.
_SECONDS = {SINGLE: "2.24", MARGINAL: "3.51", TRANSDUCTIVE: "24.24"}
PAPER = {
    (protocol, inference): {"paper: accuracy, %": value, "paper: s for 1,000": seconds}
    for protocol, values in {
        "anchored": ("50.70 ± 0.44", "50.70 ± 0.43", "50.69 ± 0.45"),
        "masked-label": ("53.49 ± 0.38", "53.55 ± 0.42", "53.41 ± 0.30"),
    }.items()
    for (inference, seconds), value in zip(_SECONDS.items(), values, strict=True)
}


@dataclass(frozen=True)
class Options:
    """The corrupted images and the inference protocols."""

    protocols: list[str] = setting(
        ["anchored", "masked-label"], "arms that have references", among=WITH_REFERENCES
    )
    corruptions: list[str] | None = setting(None, "of the test images; none: the 19 common ones")
    severities: list[int] = setting([1, 2, 3, 4, 5], "of each corruption", least=1, most=5)
    images: int | None = setting(None, "of the test set, by class; none: all", least=1)
    draws: int = setting(5, "how often references are drawn from the training set", least=1)
    k: int = setting(10, "references whose logits are averaged", least=2)
    candidates: int = setting(
        50, "references of which transduction takes the best; at least k", least=2
    )
    searched: int = setting(5, "of the draws, how many transduction is run for", least=1)
    bank: int = setting(10_000, "residuals of training that it compares with", least=1)
    at_once: int = setting(100, "images of a forward pass", least=1)
    timed: int = setting(1000, "images that inference is timed on", least=1)
    repeats: int = setting(5, "how often; the fastest counts", least=1)

    def __post_init__(self) -> None:
        if self.k > self.candidates:
            raise OptionError(
                f"--k must be at most --candidates {self.candidates}, found {self.k}."
            )


def check(options: Options, jobs: Sequence[Job]) -> None:
    """Refuse more candidates than there are images to draw from."""
    recipe = jobs[0].phases[-1].recipe  # all jobs have the same data
    assert isinstance(recipe.protocol, AnchoredProtocol)
    for count in (recipe.data.limit, recipe.protocol.reference_set):
        if count is not None and options.candidates > count:
            raise OptionError(f"--candidates must be at most {count}, found {options.candidates}.")


def find(results: Results) -> Findings:
    """Accuracy and seconds of each inference protocol, with the paper's values."""
    accuracy, seconds = (results.curves(metric, "inference") for metric in (TOP1, SECONDS))
    rows, headline = [], []
    for protocol, line in accuracy.items():
        for inference, values in line.items():
            known = {"protocol": protocol, "inference": inference}
            gap = compare_values(values, line[SINGLE], digits=2)
            row = {
                "protocol, inference": f"{protocol}, {inference}",
                "corrupted accuracy, %": format_mean(values, digits=2),
                "± over draws": format_mean(results.spread_over("draw", TOP1, **known), digits=2),
                "− single": gap,
                "s for 1,000": format_mean(seconds[protocol].get(inference, {}), 1, 3),
            }
            for metric, (heading, factor) in _OWN.items():
                row[heading] = format_mean(results.by_seed(metric, **known), factor)
            rows.append(row | PAPER.get((protocol, inference), {}))
            headline += [f"{protocol}, {inference} {gap}"] if inference != SINGLE else []
    options = results.plan.options
    machines = sorted({str(record["on"]) for record in results.records(metric=SECONDS)})
    table = make_table(
        "study-inference-table",
        "Inference protocols on the same corrupted images",
        rows,
        f"single: 1 random reference; marginal: the mean of {options.k}; transductive: the best of"
        f" {options.candidates}. Seconds on {', '.join(machines)}. Paper: CIFAR-100-C, ResNet-18, 10"
        " and 50 references.",
    )
    cost = Plot("Cost", seconds, "seconds for 1,000 images", factor=1)
    plots = [Plot("Corrupted accuracy", accuracy), cost]
    return Findings(
        f"Corrupted accuracy − 1 random reference, points: {'; '.join(headline)}.",
        (draw_figure("study-inference", plots, draw_points),),
        (table,),
    )


_FEW = {"corruptions": ["gaussian_noise", "motion_blur", "fog", "pixelate"], "severities": [3, 5]}
_ONE = {"corruptions": ["fog"], "severities": [3]}
STUDY = Study(
    name="inference",
    item="Fig. 2",
    title="Does the inference protocol matter?",
    about="accuracy and seconds of one reference, the mean image, K references, and transduction",
    options=Options,
    varies=("protocols",),
    arms=compare_protocols,
    findings=find,
    check=check,
    measure="killick.studies.inference.measure:measure",
    sizes={
        "small": Size(
            options={
                **_FEW,
                "images": 500,
                "searched": 3,
                "bank": 2000,
                "timed": 500,
                "repeats": 3,
            },
            evaluation={**_FEW, "limit": 500},
        ),
        "smoke": Size(
            options={**_ONE, "images": 60, "draws": 2, "k": 3, "candidates": 5}
            | {"bank": 50, "timed": 50, "repeats": 1},
            evaluation=_ONE,
        ),
        "paper": Size(options={"at_once": 1000}, remark="--data.download fetches CIFAR-100."),
    },
    notes=(
        "The paper does not state over what its ± runs, nor how transduction measures distance: here"
        " the Euclidean distance of normalized pixels to residuals of random training pairs.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
