"""Tables of the evidence pages, from the files in `benchmarks/results/cifar10/`.

    python docs/evidence_tables.py     # puts them into those pages and into the README, where they stand

They stand there as text, so that they are seen wherever the page is read; a test holds them to the
files.
"""

import csv
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from imagenette_table import describe_imagenette
from tuning_table import describe_tuning

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "cifar10"
FIRST = {
    "standard": "standard",
    "anchored": "anchored",
    "masked-label": "masked, label",
    "masked-uniform": "masked, uniform, by sample",
    "finetuned": "half standard, then masked, label",
    "continued": "half standard, then standard",
}
SECOND = {
    "uniform-batch": "masked, uniform, by batch",
    "uniform-batch-running": "the same, BatchNorm left alone",
    "label-running": "masked, label, BatchNorm left alone",
    "label-falling": "masked, label, alpha from 0.5 to 0",
}
RELEASED = "label-running"  # what the authors' code does; three seeds, trained with the second grid
CHOSEN = "more-masked-running"
CHOSEN_TITLE = "half standard, then masked, label, alpha 0.5, BatchNorm left alone"
# Measure: title, factor, digits.
SHOWN = {
    "clean": ("clean %", 100, 1),
    "corrupted": ("corrupted %", 100, 1),
    "severity 5": ("severity 5 %", 100, 1),
    "C-bar": ("C-bar %", 100, 1),
    "shift": ("shifted set %", 100, 1),
    "smooth ECE, corrupted": ("smooth ECE, corrupted", 1, 3),
    "OOD AUROC": ("OOD AUROC %", 100, 1),
}
COMPARED = ("masked-label", "finetuned")
CHOOSING = {
    "finetuned": "half standard, then masked, label",
    "running": "the same, BatchNorm left alone",
    "more-masked": "the same, alpha 0.5",
    "more-masked-running": "the same, alpha 0.5, BatchNorm left alone",
    "by-sample": "the same, masked by sample",
    "augmented": "the same, references augmented like images",
}
NETWORKS = {"vit_tiny_patch16_224": "small ViT", "convnext_pico": "ConvNeXt"}
FINISHED = {
    "base": "standard, finished: 60 epochs",
    "tuned-standard-lr0.01": "10 epochs more, standard",
    "tuned-masked-label-lr0.01": "10 epochs more, masked, label",
    "scratch-masked-label": "masked, label, from scratch: 70 epochs",
}
_KEEP = "\u00a0"  # a space where no line is broken
Line = dict[str, str]


def describe_first_grid() -> str:
    """Six arms, and what the authors' code does: mean and standard deviation over seeds."""
    lines = [_head("training", [title for title, _, _ in SHOWN.values()])]
    found = _by_arm(_first())
    for arm, title in _with_released():
        cells = [_spread(found[arm][measure], *SHOWN[measure][1:]) for measure in SHOWN]
        lines.append(_row(title, cells))
    return "\n".join(lines)


def describe_most_important() -> str:
    """From scratch, from the middle, and of a finished network; few columns."""
    return _describe_few(("standard", "masked-label", RELEASED, "finetuned", CHOSEN))


def describe_for_readme() -> str:
    """From scratch, and of a finished network."""
    return _describe_few(("standard", "masked-label"))


def _describe_few(arms: Sequence[str]) -> str:
    """Some arms of the grids, then finished networks tuned with and without masks."""
    shown = ("clean", "corrupted", "severity 5", "smooth ECE, corrupted", "OOD AUROC")
    lines = [_head("training", [SHOWN[measure][0] for measure in shown])]
    chosen = (row for row in _read("summary") if row["arm"] == CHOSEN)
    first = _by_arm(_first()) | _by_arm(chosen)
    titles = (
        dict(_with_released())
        | FINISHED
        | {CHOSEN: "the same, half of the batches masked, BatchNorm left alone"}
    )
    for found, some, before in (
        (first, arms, ""),
        (_by_arm(_read("finetune")), tuple(FINISHED)[1:3], "a finished network, "),
    ):
        for arm in some:
            cells = [_spread(found[arm][measure], *SHOWN[measure][1:]) for measure in shown]
            lines.append(_row(before + titles[arm], cells))
    return "\n".join(lines)


def describe_differences() -> str:
    """Of every arm less standard, and of the one that has a control less that."""
    lines = [_head("difference", [title for title, _, _ in SHOWN.values()])]
    for against, less in (("standard", ""), ("continued", ", less its control")):
        found = _by_arm(_first(against))
        for arm, title in _with_released():
            if arm in found:
                cells = [_difference(found[arm][measure], *SHOWN[measure][1:]) for measure in SHOWN]
                lines.append(_row(title + less, cells))
    return "\n".join(lines)


def describe_second_grid() -> str:
    """One seed each, beside the arms of seed 0 of the first grid."""
    found = _by_arm(row for row in _read("summary") if row["network"] == "resnet18")
    lines = [_head("ResNet-18, seed 0", [title for title, _, _ in SHOWN.values()])]
    for arm, title in (FIRST | SECOND).items():
        if arm in ("finetuned", "continued") or arm not in found:
            continue
        cells = []
        for measure, (_, factor, digits) in SHOWN.items():
            value = float(found[arm][measure]["by_seed"].split()[0])
            cells.append(f"{factor * value:.{digits}f}")
        lines.append(_row(title, cells))
    return "\n".join(lines)


def describe_batchnorm() -> str:
    """Masked towards the label, three seeds: statistics estimated again, and left alone."""
    rows = [row for row in _read("summary") if row["network"] == "resnet18"]
    own = [row for row in rows if row["arm"] == "masked-label" and row["against"] == "standard"]
    left = [row for row in rows if row["arm"] == "label-running"]
    left = [row for row in left if row["against"] == "masked-label"]
    shown = {key: SHOWN[key] for key in SHOWN if key not in ("C-bar", "shift")}
    lines = [_head("masked, label, by batch", [title for title, _, _ in shown.values()])]
    for title, found in (
        ("BatchNorm re-estimated", _by_arm(own)["masked-label"]),
        ("BatchNorm left alone", _by_arm(left)["label-running"]),
    ):
        lines.append(_row(title, [_spread(found[m], *shown[m][1:]) for m in shown]))
    cells = [_difference(found[m], *shown[m][1:]) for m in shown]
    return "\n".join([*lines, _row("left alone less re-estimated", cells)])


def describe_choosing() -> str:
    """Variants on pictures held back: means, and differences to the first below them."""
    shown = {key: SHOWN[key] for key in SHOWN if key not in ("shift", "OOD AUROC")}
    shown["NLL, corrupted"] = ("NLL, corrupted", 1, 2)
    found = _by_arm(_read("choosing"))
    lines = [_head("training", [title for title, _, _ in shown.values()])]
    for arm, title in CHOOSING.items():
        cells = []
        for measure, (_, factor, digits) in shown.items():
            row = found[arm][measure]
            cells.append(_spread(row, factor, digits))
            if row["against"]:
                cells[-1] += f"<br>{_difference(row, factor, digits, interval=False)}"
        lines.append(_row(title, cells))
    return "\n".join(lines)


def describe_chosen() -> str:
    """The variant that was chosen, on the test set: beside standard and the arm it varies."""
    own = [row for row in _read("summary") if row["arm"] == CHOSEN]
    found = _by_arm(_first()) | _by_arm(own)
    lines = [_head("training", [title for title, _, _ in SHOWN.values()])]
    for arm, title in (
        ("standard", FIRST["standard"]),
        ("finetuned", FIRST["finetuned"]),
        (CHOSEN, "chosen: alpha 0.5, BatchNorm left alone"),
    ):
        lines.append(_row(title, [_spread(found[arm][m], *SHOWN[m][1:]) for m in SHOWN]))
    for against, title in (("standard", "standard"), ("finetuned", "the second")):
        less = {row["measure"]: row for row in own if row["against"] == against}
        cells = [_difference(less[measure], *SHOWN[measure][1:]) for measure in SHOWN]
        lines.append(_row(f"chosen less {title}", cells))
    return "\n".join(lines)


def describe_tempered() -> str:
    """Standard, the best arm and the chosen one, where each has a temperature, and where not."""
    shown = {
        "clean": SHOWN["clean"],
        "smooth ECE, clean": ("smooth ECE, clean", 1, 3),
        "smooth ECE, clean, temperature": ("with a temperature", 1, 3),
        "smooth ECE, corrupted": SHOWN["smooth ECE, corrupted"],
        "smooth ECE, corrupted, temperature": ("with a temperature", 1, 3),
        "NLL, corrupted": ("NLL, corrupted", 1, 2),
        "NLL, corrupted, temperature": ("with a temperature", 1, 2),
    }
    found = _by_arm(_read("finetune")) | _by_arm(_read("tempered"))
    lines = [_head("training", [title for title, _, _ in shown.values()])]
    for arm, title in (
        ("base", "standard"),
        ("finetuned", FIRST["finetuned"]),
        (CHOSEN, "chosen: alpha 0.5, BatchNorm left alone"),
    ):
        lines.append(_row(title, [_spread(found[arm][m], *shown[m][1:]) for m in shown]))
    cells = [_difference(found[CHOSEN][measure], *shown[measure][1:]) for measure in shown]
    return "\n".join([*lines, _row("chosen less the second", cells)])


def describe_other_networks() -> str:
    """A ViT and a ConvNeXt, one seed."""
    rows = _read("summary")
    lines = [_head("seed 0", [title for title, _, _ in SHOWN.values()])]
    for network, name in NETWORKS.items():
        found = _by_arm(row for row in rows if row["network"] == network)
        for arm, title in (FIRST | SECOND).items():
            if arm in found:
                cells = [
                    f"{factor * float(found[arm][measure]['mean']):.{digits}f}"
                    for measure, (_, factor, digits) in SHOWN.items()
                ]
                lines.append(_row(f"{name}: {title}", cells))
    return "\n".join(lines)


def describe_finished() -> str:
    """Networks whose training was over, tuned; also with a temperature."""
    shown = {
        **{key: SHOWN[key] for key in SHOWN if key not in ("shift", "OOD AUROC")},
        "smooth ECE, corrupted, temperature": ("the same, with a temperature", 1, 3),
        "OOD AUROC": SHOWN["OOD AUROC"],
    }
    found = _by_arm(_read("finetune"))
    lines = [_head("training", [title for title, _, _ in shown.values()])]
    for arm, title in FINISHED.items():
        cells = [_spread(found[arm][measure], *shown[measure][1:]) for measure in shown]
        lines.append(_row(title, cells))
    masked = found["tuned-masked-label-lr0.01"]
    cells = [_difference(masked[measure], *shown[measure][1:]) for measure in shown]
    return "\n".join([*lines, _row("10 epochs more: masked less standard", cells)])


def describe_corruptions() -> str:
    """Each corruption, at all severities and at the highest: differences to standard."""
    rows = _read("by-corruption")
    heads = [f"{FIRST[arm]}, {of}" for arm in COMPARED for of in ("all severities", "severity 5")]
    lines = [_head("corruption", ["standard, severity 5 %", *heads])]
    names = dict.fromkeys((row["suite"], row["corruption"]) for row in rows)
    keyed = {(r["suite"], r["corruption"], r["severity"], r["arm"]): r for r in rows}
    order = sorted(
        names, key=lambda name: -float(keyed[*name, "5", "finetuned"]["difference"] or 0)
    )
    for suite, name in order:
        base = _spread(keyed[suite, name, "5", "standard"], 100, 1)
        cells = [
            _difference(keyed[suite, name, severity, arm], 100, 1, interval=False)
            for arm in COMPARED
            for severity in ("all", "5")
        ]
        title = name.replace("_", " ") + (" (C-bar)" if suite == "cbar" else "")
        lines.append(_row(title, [base, *cells]))
    return "\n".join(lines)


def describe_references() -> str:
    """Seed 0: the spread over five references, and all five together."""
    rows = _read("references")
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    heads = [f"{m}: one ± spread; five" for m in measures]
    lines = [_head("training", heads)]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = []
        for row in (row for row in rows if row["arm"] == arm):
            factor, digits = (1, 4) if "ECE" in row["measure"] else (100, 2)
            one, spread, five = (factor * float(row[key]) for key in ("value", "spread", "five"))
            cells.append(f"{one:.{digits}f} ± {spread:.{digits}f}; {five:.{digits}f}")
        lines.append(_row(FIRST[arm], cells))
    return "\n".join(lines)


def describe_gate() -> str:
    """Confidence and accuracy as the reference half fades, on CIFAR-10."""
    rows = [row for row in _read("gate") if row["pair"] == "faded"]
    shares = ("0.0", "0.1", "0.2", "0.35", "0.5", "1.0")
    lines = [_head("training", [f"{100 * float(share):g} % shown" for share in shares])]
    for network, arm in dict.fromkeys((row["network"], row["arm"]) for row in rows):
        own = [row for row in rows if (row["network"], row["arm"]) == (network, arm)]
        title = (FIRST | SECOND | {CHOSEN: CHOSEN_TITLE})[arm]
        if network != "resnet18":
            title = f"{NETWORKS[network]}: {title}"
        seeds = ", ".join(dict.fromkeys(row["seed"] for row in own))
        cells = []
        for share in shares:
            at = [row for row in own if row["share"] == share]
            confidence, top1 = (
                statistics.fmean(float(row[key]) for row in at) for key in ("confidence", "top1")
            )
            cells.append(f"{confidence:.2f}, {100 * top1:.0f}{_KEEP}%")
        lines.append(_row(f"{title} (seed {seeds})", cells))
    return "\n".join(lines)


def describe_gate_of_shapes() -> str:
    """Hidden pairs of small networks, with BatchNorm as in evaluation and as in training."""
    with open(RESULTS.parent / "gate-shapes-cpu.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = [_head("shapes", ["shown", "hidden", "hidden, statistics of the batch"])]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = []
        for pair, share in (("faded", 1.0), ("faded", 0.0), ("batch", 0.0)):
            seeds: dict[str, list[float]] = {}
            for row in rows:
                if (row["arm"], row["pair"], float(row["share"])) == (arm, pair, share):
                    seeds.setdefault(row["seed"], []).append(float(row["confidence"]))
            means = [statistics.fmean(each) for each in seeds.values()]
            if len(means) > 1:
                mean, spread = statistics.fmean(means), statistics.stdev(means)
                cells.append(f"{mean:.2f}{_KEEP}±{_KEEP}{spread:.2f}")
            else:
                cells.append(f"{means[0]:.2f}" if means else "")
        lines.append(_row(arm, cells))
    return "\n".join(lines)


PARTS = {
    "evidence-short": describe_most_important,
    "evidence-readme": describe_for_readme,
    "evidence-first": describe_first_grid,
    "evidence-differences": describe_differences,
    "evidence-second": describe_second_grid,
    "evidence-batchnorm": describe_batchnorm,
    "evidence-choosing": describe_choosing,
    "evidence-chosen": describe_chosen,
    "evidence-tempered": describe_tempered,
    "evidence-networks": describe_other_networks,
    "evidence-finished": describe_finished,
    "evidence-corruptions": describe_corruptions,
    "evidence-references": describe_references,
    "evidence-gate": describe_gate,
    "evidence-gate-shapes": describe_gate_of_shapes,
    "evidence-tuning": describe_tuning,
    "evidence-imagenette": describe_imagenette,
}


def _read(name: str) -> list[Line]:
    with open(RESULTS / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _first(against: str | None = None) -> list[Line]:
    """Lines about the first grid and RELEASED; each arm once, or differences to one arm."""
    rows = [row for row in _read("summary") if row["grid"] == "first" or row["arm"] == RELEASED]
    if against is None:
        return [row for row in rows if row["against"] in ("", "standard")]
    return [row for row in rows if row["against"] == against]


def _with_released() -> list[tuple[str, str]]:
    """The arms of the first grid with their titles, RELEASED beside the one that it varies."""
    arms = list(FIRST.items())
    after = list(FIRST).index("masked-label") + 1
    title = "the same, BatchNorm left alone as in the authors' code"
    return [*arms[:after], (RELEASED, title), *arms[after:]]


def _by_arm(rows: Iterable[Line]) -> dict[str, dict[str, Line]]:
    found: dict[str, dict[str, Line]] = {}
    for row in rows:
        found.setdefault(row["arm"], {})[row["measure"]] = row
    return found


def _spread(row: Line, factor: float, digits: int) -> str:
    mean, spread = factor * float(row["mean"]), factor * float(row["spread"])
    return f"{mean:.{digits}f}{_KEEP}±{_KEEP}{spread:.{digits}f}"


def _difference(row: Line, factor: float, digits: int, *, interval: bool = True) -> str:
    """As `**+3.0**<br>+2.4 to +3.6`, bold where the interval leaves out 0."""
    value, low, high = (factor * float(row[key]) for key in ("difference", "low", "high"))
    text = _signed(value, digits)
    if low > 0 or high < 0:
        text = f"**{text}**"
    ends = [_signed(end, digits) for end in (low, high)]
    if any(end.strip("0.") == "" for end in ends):  # on which side of 0 it ends must be seen
        ends = [_signed(end, digits + 1) for end in (low, high)]
    around = f"{ends[0]}{_KEEP}to{_KEEP}{ends[1]}"
    return f"{text}<br>{around}" if interval else text


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]  # nought has no sign


def _head(first: str, titles: Sequence[str]) -> str:
    return f"{_row(first, titles)}\n|{' --- |' * (1 + len(titles))}"


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def renew(text: str) -> str:
    """A page with each table that follows a line `<!-- table: NAME -->` made anew."""
    return re.sub(
        r"<!-- table: ([\w-]+) -->\n\n(?:\|.*\n)*\n*",
        lambda found: f"<!-- table: {found[1]} -->\n\n{PARTS[found[1]]()}\n\n",
        text,
    )


if __name__ == "__main__":
    for page in ("docs/evidence.md", "docs/evidence-details.md", "README.md"):
        file = Path(__file__).parent.parent / page
        file.write_text(renew(file.read_text(encoding="utf-8")), encoding="utf-8")
