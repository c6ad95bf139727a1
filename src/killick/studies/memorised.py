"""What became of wrong labels, over their share and protocol by protocol."""

from typing import Any

from killick.report.figures import Figure
from killick.report.tables import TextTable
from killick.studies.drawing import draw_lines, mean_and_spread
from killick.studies.memorising import BY_HEART, FLIPPED, RIGHT, SEEN_THROUGH
from killick.studies.results import Results
from killick.studies.shown import Check

ALONG = "training labels flipped, %"


def draw_training(results: Results) -> Figure:
    """What is said of training pictures over the noise, apart for true and for flipped labels."""
    panels, records = [], []
    headings = {
        RIGHT: "Training pictures with their true label: right",
        BY_HEART: "Flipped ones: given their wrong label",
        SEEN_THROUGH: "Flipped ones: given their true label",
    }
    levels = results.levels("noise")
    for number, (metric, heading) in enumerate(headings.items()):
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
            name = f"study-noise-training{number}"
            panels.append(draw_lines(results, lines, there, name, heading, "%, all seeds", ALONG))
        records += [
            (metric, protocol, level, value)
            for protocol, points in lines.items()
            for level, values in points.items()
            for value in values
        ]
    says = "What the networks say of the pictures they were trained on, shown without augmentation."
    columns = ("metric", "protocol", "noise", "percent")
    return Figure("study-noise-training", says, tuple(panels), columns, tuple(records))


def tabulate_training(results: Results) -> TextTable:
    """The same as numbers, and the accuracy on test pictures beside."""
    rows = tuple(
        (
            f"{level} %, {protocol}",
            *(
                mean_and_spread(values_of(results, metric, protocol, level))
                for metric in (RIGHT, BY_HEART, SEEN_THROUGH)
            ),
            mean_and_spread(
                results.values(results.arm(protocol=protocol, noise=level), "clean_top1").values()
            ),
        )
        for level in results.levels("noise")
        for protocol in results.levels("protocol")
    )
    columns = ("noise, protocol", "true labels: right", "flipped: wrong label learned by heart")
    return TextTable(
        "study-noise-training-table",
        "Training pictures, by whether their label was flipped, %",
        (*columns, "flipped: true label given", "test pictures: right"),
        rows,
        "Mean ± standard deviation over seeds. A picture of the flipped ones may be given a third"
        " label, so the two shares need not add up.",
    )


def check_flipped(results: Results) -> tuple[Check, ...]:
    """Whether as many labels were flipped as was asked for."""
    found = results.records(metric=FLIPPED)
    wrong = [r for r in found if abs(r["value"] - r["noise"] / 100) > 0.5 / r["count"] + 1e-9]
    told = ", ".join(f"{100 * value:.3g} %" for value in sorted({r["value"] for r in found}))
    what = "as many training labels are wrong as were asked for, to a picture"
    return (Check(what, not wrong, told),) if found else ()


def values_of(results: Results, metric: str, protocol: str, level: Any) -> list[float]:
    """What was measured at a level, one value for each seed."""
    records = results.records(metric=metric, protocol=protocol, noise=level)
    return list({int(each["seed"]): float(each["value"]) for each in records}.values())
