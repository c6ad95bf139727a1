"""What the cells of `evidence.py` found, in few small files: `results/cifar10/`.

- `first-grid.csv`, `second-grid.csv`, `choosing-grid.csv`: accuracy, likelihood and calibration
  error of every cell on every set, and detection by energy. What follows from them is made anew
  each time, so cells may come in several sittings: those found now take the place of what was
  written of the same arm and seed, and the rest stays.
- `summary.csv`: for each arm what people ask first, seed by seed, and its difference to standard
  training, for some also to a control, with the 95 % interval of Welch's t. Seeds are not paired:
  on a GPU a seed does not fix a run (`again.csv`).
- `by-corruption.csv`: the same for each corruption, over all severities and at the highest.
- `references.csv`: of seed 0, how much the choice of a reference decides, and what five give.
- `gate.csv`, `gate.svg`: what a faded reference does (`gate.py`).
- `again.csv`: a cell that was run twice with the same seed.
- `finetune.csv`: likewise of `killick study finetune`, networks that were finished before they were
  tuned, over the one that was tuned as long without masks; also with the logits divided by a
  temperature that was fitted on training images set aside.
- `tempered.csv`: likewise of the best arm and the variant that was chosen. Of these two all cells
  must be there at once, as the rows with a temperature are not among those that are written.
- `choosing.csv`: variants, tested on training images that were held back.
- `seconds.csv`: how long each cell took, most of them beside others on the same GPU.
- Figures of `killick report` over the first grid, where all of it is found.
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from evidence_checks import check_cells, check_fit, check_none_lost
from evidence_jobs import (
    CBAR,
    CORRUPTIONS,
    FOLDERS,
    HELD_MEASURES,
    HIGHEST,
    MEASURES,
    TEMPERED_MEASURES,
    Cell,
    RunCell,
    whole_or_one,
)
from paired_timing import RESULTS
from scipy import stats

from killick.cli import main as killick_command
from killick.report.figures import (
    Style,
    drawing,
    finish,
    new_chart,
    put_line,
    to_file,
)
from killick.results.rows import Row
from killick.results.run_folder import find_runs

FOLDER = RESULTS / "cifar10"
# By grid: what arms are compared with, and those that have a control of their own.
AGAINST = {
    **dict.fromkeys(("choosing", "tempered"), "finetuned"),
    "finished": "tuned-standard-lr0.01",
}
CONTROLS = {
    "finetuned": "continued",
    "label-running": "masked-label",
    "more-masked-running": "finetuned",
}
KEPT = ("top1", "nll", "ece", "smooth_ece", "auroc", "fpr_at_95_tpr_in")
PLACE = ("suite", "set", "corruption", "severity", "inference", "count")
COLUMNS = ("network", "arm", "seed", "epochs", *PLACE, *KEPT, "top1_std")
FIGURES = ("corruptions.svg", "severity.svg", "severity-difference.svg")
Line = dict[str, Any]
Lines = Sequence[Line]


def write_results(work: Path, folder: Path = FOLDER) -> None:
    """Write all files, from the cells below `work` and what was written of others before.

    Everything is made before the first file is written.
    """
    places = [work / name for name in FOLDERS if (work / name).exists()]
    found = [RunCell(run) for run in find_runs(places) if run.job.get("finished")]
    check_cells(found, work)
    tables: dict[str, tuple[Sequence[str], Lines]] = {}
    grids = _merge_grids(found, folder)
    for grid, lines in grids.items():
        tables[f"{grid}-grid.csv"] = COLUMNS, lines
    cells = [cell for grid in ("first", "second") for cell in _cells_of(grid, grids[grid])]
    tables["summary.csv"] = _SUMMARY, _summarise(cells, MEASURES)
    tables["by-corruption.csv"] = _BY_CORRUPTION, _by_corruption(cells)
    held = _cells_of("choosing", grids["choosing"])
    tables["choosing.csv"] = _SUMMARY, _summarise(held, HELD_MEASURES)
    for grid, file in (("finished", "finetune.csv"), ("tempered", "tempered.csv")):
        tempered = [cell for cell in found if cell.grid == grid]
        if tempered:
            tables[file] = _SUMMARY, _summarise(tempered, TEMPERED_MEASURES)
            check_none_lost(file, _read(folder / file), tables[file][1])
    tables |= _beside(found, cells, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file, table in tables.items():
        _write(folder / file, *table)
    faded = tables["gate.csv"][1]
    if faded:
        (folder / "gate.svg").write_text(_draw_gate(faded), encoding="utf-8")
    _draw_first([cell for cell in found if cell.grid == "first"], cells, work / "page", folder)


def _merge_grids(found: Sequence[RunCell], folder: Path) -> dict[str, list[Line]]:
    """The lines of each grid: of the cells that are here, below those of others before."""
    before: dict[str, list[Line]] = {}
    new: dict[str, list[Line]] = {}
    for grid in ("first", "second", "choosing"):
        own = [cell for cell in found if cell.grid == grid]
        before[grid] = _others(_read(folder / f"{grid}-grid.csv"), own)
        new[grid] = [line for cell in own for line in _compact(cell)]
    check_fit(before, new)
    return {grid: [*before[grid], *new[grid]] for grid in before}


def _beside(
    found: Sequence[RunCell], cells: Sequence[Cell], folder: Path
) -> dict[str, tuple[Sequence[str], list[Line]]]:
    """What is known of cells by their folders alone; lines of those that are not here stay."""
    own = [cell for cell in found if cell.grid in ("first", "second")]
    several = _spread(own)
    asked = {line["arm"] for line in several} | {  # from several, when it was here before
        cell.arm for cell in own if not cell.marginal and (cell.grid, cell.seed) == ("first", 0)
    }
    told = [line for line in _read(folder / "references.csv") if line["arm"] not in asked]
    again = _repeat(found, cells)
    repeated = {(line["arm"], str(line["seed"])) for line in again}
    for line in _read(folder / "again.csv"):
        if (line["arm"], line["seed"]) not in repeated:
            first = _of_arm(cells, "resnet18", line["arm"])[int(line["seed"])]
            again.append(line | {"first": round(MEASURES[line["measure"]](first), 5)})
    timed = [*_others(_read(folder / "seconds.csv"), own), *_time(own)]
    faded = [*_others(_read(folder / "gate.csv"), own), *_fade(own)]
    return {
        "references.csv": (("arm", "measure", "value", "spread", "five"), [*told, *several]),
        "seconds.csv": ((*_ONE, "train", "evaluate"), timed),
        "again.csv": (("arm", "seed", "measure", "first", "again"), again),
        "gate.csv": ((*_ONE, *_FADED), faded),
    }


def _others(lines: Iterable[Line], cells: Sequence[Cell]) -> list[Line]:
    """Lines that are of none of these cells."""
    own = {(cell.network, cell.arm, str(cell.seed)) for cell in cells}
    return [line for line in lines if tuple(str(line[name]) for name in _ONE) not in own]


def _draw_first(found: Sequence[RunCell], cells: Sequence[Cell], page: Path, folder: Path) -> None:
    """Figures of the first grid; a part of it would draw others."""
    if not found or len(found) < len([cell for cell in cells if cell.grid == "first"]):
        print("Figures are as they were: not all cells of the first grid are here.")
        return
    runs = [str(cell.run.folder) for cell in found]
    if killick_command(["report", *runs, "--output", str(page), "--quiet"]):
        raise SystemExit(
            "evidence_results.py: the report was not written, and figures are as they were."
        )
    for name in FIGURES:
        (folder / name).write_bytes((page / "figures" / name).read_bytes())


_ONE = ("network", "arm", "seed")  # what a cell is known by


def _compact(cell: RunCell) -> Iterable[dict[str, Any]]:
    """A line for each set, corruption and severity; `top1_std` is over references."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in cell.run.rows:
        fits = row["metric"] in KEPT and row["score"] in ("", "energy") and row["scaling"] == ""
        if not fits or not whole_or_one(row):
            continue
        place = {key: row[key] for key in PLACE}
        place["set"] = row["set"] if row["suite"] in ("ood", "shift") else ""
        about = {"network": cell.network, "arm": cell.arm, "seed": cell.seed}
        about |= {"epochs": cell.epochs, **place}
        line = lines.setdefault(tuple(place.values()), about)
        line[row["metric"]] = _rounded(row["value"])
        if row["metric"] == "top1":
            line["top1_std"] = _rounded(row["std"])
    return lines.values()


def _cells_of(grid: str, lines: Lines) -> list[Cell]:
    """The cells of a grid, from its lines."""
    rows: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for line in lines:
        place: Row = {key: line[key] for key in PLACE}
        if line["severity"]:
            place["severity"] = int(line["severity"])
        place |= {"score": "", "scaling": ""}  # by energy where it is about detection
        rows[line["network"], line["arm"], int(line["seed"])] += [
            place | {"metric": metric, "value": float(line[metric])}
            for metric in KEPT
            if line.get(metric, "") != ""
        ]
    return [Cell(grid, *key, own) for key, own in rows.items()]


_SUMMARY = (
    *("grid", "network", "arm", "measure", "seeds", "by_seed", "mean", "spread"),
    *("against", "difference", "low", "high"),
)


def _summarise(
    cells: Sequence[Cell], measures: Mapping[str, Callable[[Cell], float]]
) -> list[dict[str, Any]]:
    lines = []
    for (grid, network, arm), own in _arms(cells).items():
        baseline = AGAINST.get(grid, "standard")
        for measure, compute in measures.items():
            values = {cell.seed: compute(cell) for cell in own}
            about = {"grid": grid, "network": network, "arm": arm, "measure": measure}
            others = [] if arm == baseline else [baseline]
            others += [CONTROLS[arm]] if arm in CONTROLS and baseline == "standard" else []
            for other in others or [""]:
                base = _of_arm(cells, network, other)
                found = _numbers(values, {seed: compute(cell) for seed, cell in base.items()})
                lines.append(about | {"against": other} | found)
    return lines


_BY_CORRUPTION = (
    *("suite", "corruption", "severity", "arm", "mean", "spread", "difference", "low", "high"),
)


def _by_corruption(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    first = [cell for cell in cells if cell.grid == "first"]
    lines = []
    for suite, names in (("corruptions", CORRUPTIONS), ("cbar", CBAR)):
        for name in names:
            for severity in ("all", HIGHEST):
                at: dict[str, Any] = {} if severity == "all" else {"severity": severity}
                for (_, network, arm), own in _arms(first).items():
                    values = {c.seed: c.mean(suite, "top1", corruption=name, **at) for c in own}
                    base = {
                        seed: other.mean(suite, "top1", corruption=name, **at)
                        for seed, other in _of_arm(first, network, "standard").items()
                    }
                    found = _numbers(values, {} if arm == "standard" else base)
                    about = {"suite": suite, "corruption": name, "severity": severity, "arm": arm}
                    lines.append(about | {k: v for k, v in found.items() if k in _BY_CORRUPTION})
    return lines


def _numbers(values: dict[int, float], base: dict[int, float]) -> dict[str, Any]:
    """Mean and spread over seeds; the difference to the same seeds of `base`."""
    ordered = [values[seed] for seed in sorted(values)]
    found: dict[str, Any] = {
        "seeds": " ".join(map(str, sorted(values))),
        "by_seed": " ".join(f"{value:.5f}" for value in ordered),
        "mean": round(statistics.fmean(ordered), 5),
        "spread": round(statistics.stdev(ordered), 5) if len(ordered) > 1 else "",
    }
    others = [base[seed] for seed in sorted(values) if seed in base]
    if others:
        found["difference"] = round(found["mean"] - statistics.fmean(others), 5)
    if len(others) > 1:
        interval = stats.ttest_ind(ordered, others, equal_var=False).confidence_interval(0.95)
        found |= {"low": round(float(interval.low), 5), "high": round(float(interval.high), 5)}
    return found


def _spread(cells: Sequence[RunCell]) -> list[dict[str, Any]]:
    """What other references would have given to those asked from several, and all together."""
    lines = []
    for cell in cells:
        if not cell.marginal:
            continue
        for measure, suite, metric in (
            ("clean", "clean", "top1"),
            ("corrupted", "corruptions", "top1"),
            ("smooth ECE, corrupted", "corruptions", "smooth_ece"),
        ):
            lines.append(
                {
                    "arm": cell.arm,
                    "measure": measure,
                    "value": round(cell.mean(suite, metric), 5),
                    "spread": round(_over_references(cell, suite, metric), 5),
                    "five": round(cell.mean(suite, metric, rows=cell.marginal), 5),
                }
            )
    return lines


def _over_references(cell: Cell, suite: str, metric: str) -> float:
    """The standard deviation over references of the mean over corruptions and severities."""
    (row,) = [
        row
        for row in cell.single
        if (row["suite"], row["metric"], row["scaling"]) == (suite, metric, "")
        and (suite == "clean" or (row["mean_of"], row["severity"]) == ("c", "all"))
    ]
    return float(row["std"])


def _repeat(found: Sequence[RunCell], cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Cells that were run a second time, beside the first."""
    lines = []
    for cell in found:
        if cell.grid != "again":
            continue
        before = _of_arm([c for c in cells if c.grid == "first"], cell.network, cell.arm)
        first = before.get(cell.seed)
        if first is None:
            continue
        lines += [
            {
                "arm": cell.arm,
                "seed": cell.seed,
                "measure": measure,
                "first": round(compute(first), 5),
                "again": round(compute(cell), 5),
            }
            for measure, compute in MEASURES.items()
        ]
    return lines


def _time(cells: Sequence[RunCell]) -> list[dict[str, Any]]:
    return [
        {
            "arm": cell.arm,
            "seed": cell.seed,
            "network": cell.network,
            "train": cell.run.job["seconds"]["train"],
            "evaluate": cell.run.job["seconds"]["evaluate"],
        }
        for cell in cells
    ]


_FADED = ("pair", "share", "top1", "confidence", "entropy")
_DRAWN = {  # of the faded ones, by network and arm: enough to see, and to tell apart
    ("resnet18", "anchored"): "ResNet-18, anchored",
    ("resnet18", "masked-label"): "ResNet-18, masked, label",
    ("resnet18", "masked-uniform"): "ResNet-18, masked, uniform, by sample",
    ("resnet18", "uniform-batch"): "ResNet-18, masked, uniform, by batch",
    ("vit_tiny_patch16_224", "masked-label"): "small ViT, masked, label",
    ("vit_tiny_patch16_224", "uniform-batch"): "small ViT, masked, uniform, by batch",
}


def _fade(cells: Sequence[RunCell]) -> list[dict[str, Any]]:
    """Of each model, the means over references."""
    lines = []
    for cell in cells:
        path = cell.run.folder / "gate.csv"
        if not path.exists():
            continue
        groups: dict[tuple[str, float], list[dict[str, str]]] = defaultdict(list)
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                groups[row["pair"], float(row["share"])].append(row)
        for (pair, share), rows in groups.items():
            values = {
                key: round(statistics.fmean(float(row[key]) for row in rows), 5)
                for key in ("top1", "confidence", "entropy")
            }
            about = {"network": cell.network, "arm": cell.arm, "seed": cell.seed}
            lines.append(about | {"pair": pair, "share": share} | values)
    return lines


def _draw_gate(faded: Lines) -> str:
    """The mean confidence over the share of the reference that is shown."""
    curves: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (network, arm), name in _DRAWN.items():
        for line in faded:
            if (line["pair"], line["network"], line["arm"]) == ("faded", network, arm):
                curves[name][float(line["share"])].append(float(line["confidence"]))
    dashes: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
    styles = {
        name: Style(f"arm-{number}", dashes[number % 4], "osD^vP"[number])
        for number, name in enumerate(curves)
    }
    with drawing():
        below = "mean confidence on clean test images"
        canvas, axes = new_chart("A reference, faded out", below, left=44)
        for name, points in curves.items():
            x = sorted(points)
            heights = np.array([points[share] for share in x]).T  # (seeds, shares)
            put_line(axes, x, heights, styles[name], name)
        axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.02), xlabel="share of the reference that is shown")
        return to_file(finish(canvas, "gate", "A reference, faded out", below).svg)


def _arms(cells: Sequence[Cell]) -> dict[tuple[str, str, str], list[Cell]]:
    found: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        found[cell.grid, cell.network, cell.arm].append(cell)
    return found


def _of_arm(cells: Sequence[Cell], network: str, arm: str) -> dict[int, Cell]:
    """The cells of an arm with the same network, by seed."""
    return {cell.seed: cell for cell in cells if (cell.network, cell.arm) == (network, arm)}


def _rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def _read(path: Path) -> list[Line]:
    """The lines of a table; none where it is not there."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(path: Path, columns: Sequence[str], lines: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
