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
- `finetune.csv`: likewise of `kedge study finetune`, networks that were finished before they were
  tuned, over the one that was tuned as long without masks; also with the logits divided by a
  temperature that was fitted on training pictures set aside.
- `tempered.csv`: likewise of the best arm and the variant that was chosen. Of these two all cells
  must be there at once, as the rows with a temperature are not among those that are written.
- `choosing.csv`: variants, tested on training pictures that were held back.
- `seconds.csv`: how long each cell took, most of them beside others on the same GPU.
- Figures of `kedge report` over the first grid, where all of it is found.
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from paired import RESULTS
from scipy import stats

from kedge.cli import main as kedge_command
from kedge.corruptions.making import list_corruptions
from kedge.report.drawing import (
    Style,
    drawing,
    finish,
    legend_height,
    new_canvas,
    put_axes,
    put_heading,
    put_legend,
    put_line,
    sample_line,
    to_file,
)
from kedge.rows import Row
from kedge.run_folder import Run, find_runs

FOLDER = RESULTS / "cifar10"
CORRUPTIONS, CBAR = (list_corruptions(kind, "cifar") for kind in ("c", "cbar"))
FOLDERS = {  # of cells, and the grid they belong to
    "first-references": "first",
    "first": "first",
    **dict.fromkeys(("second", "running", "vit", "convnext", "chosen"), "second"),
    "again": "again",
    "choosing": "choosing",
    "finished": "finished",
    "tempered": "tempered",
}
ICELESS = tuple(name for name in CORRUPTIONS if name != "frost")  # Kedge's is drawn, not a photo
FOREIGN = ("textures", "scenes", "characters")
MADE = ("noise", "blobs", "scrambled")  # foreign pictures of Kedge's own
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
COLUMNS = ("network", "arm", "seed", *PLACE, *KEPT, "top1_std")
FIGURES = ("corruptions.svg", "severity.svg", "severity-difference.svg")
HIGHEST = 5


class Cell:
    """A trained and evaluated model: its rows, and what it is."""

    def __init__(self, grid: str, network: str, arm: str, seed: int, rows: Sequence[Row]) -> None:
        self.grid, self.network, self.arm, self.seed = grid, network, arm, seed
        self.single = [row for row in rows if row["inference"] in ("single", "")]
        self.marginal = [row for row in rows if row["inference"] == "marginal"]

    def mean(
        self,
        suite: str,
        metric: str,
        *,
        rows: Sequence[Row] | None = None,
        of: str = "value",
        scaling: str = "",
        **where: Any,
    ) -> float:
        """Of what the rows of a suite say, over corruptions and severities, or sets."""
        found = [
            float(row[of])
            for row in (self.single if rows is None else rows)
            if row["suite"] == suite
            and row["metric"] == metric
            and row["score"] in ("", "energy")
            and row["scaling"] == scaling
            and _whole_or_one(row)
            and all(_among(row[key], wanted) for key, wanted in where.items())
        ]
        return statistics.fmean(found)


class RunCell(Cell):
    """One whose folder is at hand."""

    def __init__(self, run: Run) -> None:
        grid, network = FOLDERS[run.folder.parent.name], str(run.recipe["network"]["name"])
        arm, seed = str(run.cell["arm"]), int(run.cell["seed"])
        super().__init__(grid, network.partition(":")[2], arm, seed, run.rows)
        self.run = run


MEASURES: dict[str, Callable[[Cell], float]] = {
    "clean": lambda cell: cell.mean("clean", "top1"),
    "corrupted": lambda cell: cell.mean("corruptions", "top1"),
    "corrupted, without frost": lambda cell: cell.mean("corruptions", "top1", corruption=ICELESS),
    "severity 5": lambda cell: cell.mean("corruptions", "top1", severity=HIGHEST),
    "C-bar": lambda cell: cell.mean("cbar", "top1"),
    "C-bar, severity 5": lambda cell: cell.mean("cbar", "top1", severity=HIGHEST),
    "shift": lambda cell: cell.mean("shift", "top1"),
    "smooth ECE, clean": lambda cell: cell.mean("clean", "smooth_ece"),
    "smooth ECE, corrupted": lambda cell: cell.mean("corruptions", "smooth_ece"),
    "smooth ECE, C-bar": lambda cell: cell.mean("cbar", "smooth_ece"),
    "smooth ECE, shift": lambda cell: cell.mean("shift", "smooth_ece"),
    "ECE, corrupted": lambda cell: cell.mean("corruptions", "ece"),
    "NLL, corrupted": lambda cell: cell.mean("corruptions", "nll"),
    "OOD AUROC": lambda cell: cell.mean("ood", "auroc", set=FOREIGN),
    "OOD FPR at 95 %": lambda cell: cell.mean("ood", "fpr_at_95_tpr_in", set=FOREIGN),
    **{
        f"OOD AUROC, {name}": lambda cell, name=name: cell.mean("ood", "auroc", set=name)  # type: ignore[misc]
        for name in FOREIGN + MADE
    },
}


HELD_MEASURES = {
    name: MEASURES[name]
    for name in (
        *("clean", "corrupted", "severity 5", "C-bar"),
        *("smooth ECE, clean", "smooth ECE, corrupted", "NLL, corrupted"),
    )
}
# Of cells that set training pictures aside, to fit a temperature on.
TEMPERED_MEASURES: dict[str, Callable[[Cell], float]] = MEASURES | {
    f"{title}, {where}, temperature": lambda cell, suite=suite, metric=metric: cell.mean(
        suite, metric, scaling="temperature"
    )
    for where, suite in (("clean", "clean"), ("corrupted", "corruptions"))
    for title, metric in (("smooth ECE", "smooth_ece"), ("ECE", "ece"), ("NLL", "nll"))
}


def write_results(work: Path, folder: Path = FOLDER) -> None:
    """Write all files, from the cells below `work` and what was written of others before."""
    places = [work / name for name in FOLDERS if (work / name).exists()]
    found = [RunCell(run) for run in find_runs(places) if run.cell.get("finished")]
    _check(found, work)
    folder.mkdir(parents=True, exist_ok=True)
    for grid in ("first", "second", "choosing"):
        rows = [row for cell in found if cell.grid == grid for row in _compact(cell)]
        _add(folder / f"{grid}-grid.csv", COLUMNS, rows, _ONE)
    cells = [cell for grid in ("first", "second") for cell in _read_cells(folder, grid)]
    _write(folder / "summary.csv", _SUMMARY, _summarise(cells, MEASURES))
    _write(folder / "by-corruption.csv", _BY_CORRUPTION, _by_corruption(cells))
    held = _read_cells(folder, "choosing")
    _write(folder / "choosing.csv", _SUMMARY, _summarise(held, HELD_MEASURES))
    for grid, file in (("finished", "finetune.csv"), ("tempered", "tempered.csv")):
        tempered = [cell for cell in found if cell.grid == grid]
        if tempered:
            _write(folder / file, _SUMMARY, _summarise(tempered, TEMPERED_MEASURES))
    own = [cell for cell in found if cell.grid in ("first", "second")]
    columns = ("arm", "measure", "value", "spread", "five")
    _add(folder / "references.csv", columns, _spread(own), ("arm",))
    _add(folder / "seconds.csv", (*_ONE, "train", "evaluate"), _time(own), _ONE)
    columns = ("arm", "seed", "measure", "first", "again")
    _add(folder / "again.csv", columns, _repeat(found, cells), ("arm", "seed"))
    _add(folder / "gate.csv", (*_ONE, *_FADED), _fade(own), _ONE)
    faded = _read(folder / "gate.csv")
    if faded:
        (folder / "gate.svg").write_text(_draw_gate(faded), encoding="utf-8")
    _draw_first([cell for cell in found if cell.grid == "first"], cells, work / "page", folder)


def _draw_first(found: Sequence[RunCell], cells: Sequence[Cell], page: Path, folder: Path) -> None:
    """Figures of the first grid; a part of it would draw others."""
    if len(found) < len([cell for cell in cells if cell.grid == "first"]):
        print("Figures are as they were: not all cells of the first grid are here.")
        return
    runs = [str(cell.run.folder) for cell in found]
    if kedge_command(["report", *runs, "--output", str(page), "--quiet"]):
        raise SystemExit("collected.py: the report was not written, and figures are as they were.")
    for name in FIGURES:
        (folder / name).write_bytes((page / "figures" / name).read_bytes())


def _check(cells: Sequence[RunCell], work: Path) -> None:
    """Refuse cells that were only tried, or not evaluated in full, and to write nothing."""
    if not cells:
        raise SystemExit(
            f"collected.py: expected finished cells in {work}; run it without --write first."
        )
    seen = set()
    for cell in cells:
        key = (cell.grid, cell.network, cell.arm, cell.seed)
        if key in seen:
            raise SystemExit(f"collected.py: expected one cell of {key}, found another in {work}.")
        seen.add(key)
        rows = [row for row in cell.single if row["metric"] == "top1" and _whole_or_one(row)]
        counts = {
            suite: len([row for row in rows if row["suite"] == suite])
            for suite in ("clean", "corruptions", "cbar", "shift")
        }
        whole = {"clean": 1, "corruptions": 5 * len(CORRUPTIONS), "cbar": 5 * len(CBAR)}
        whole["shift"] = 0 if cell.grid == "choosing" else 1
        limited = {row["limit"] for row in rows} - {"", None}
        if counts != whole or limited:
            raise SystemExit(
                f"collected.py: expected {whole} of all pictures in {cell.run.folder}, found"
                f" {counts}{', limited' if limited else ''}. Finish or remove it."
            )
    budgets: dict[str, set[int]] = defaultdict(set)
    for cell in cells:  # a network that is finished is tuned for more epochs than it had
        own = f" of {cell.arm}" if cell.grid == "finished" else ""
        budgets[own].add(cell.run.recipe["epochs"] + cell.run.epochs_before)
    for own, found in budgets.items():
        if len(found) > 1:
            raise SystemExit(
                f"collected.py: expected one budget{own}, found epochs {sorted(found)}."
            )


def _whole_or_one(row: Row) -> bool:
    """Whether it is of one corruption at one severity, or of a set without; no mean of others."""
    if row["suite"] not in ("corruptions", "cbar"):
        return True
    return row["corruption"] in (*CORRUPTIONS, *CBAR) and row["severity"] != ""


def _among(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else value == wanted


_ONE = ("network", "arm", "seed")  # what a cell is known by


def _compact(cell: RunCell) -> Iterable[dict[str, Any]]:
    """A line for each set, corruption and severity; `top1_std` is over references."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in cell.run.rows:
        fits = row["metric"] in KEPT and row["score"] in ("", "energy") and row["scaling"] == ""
        if not fits or not _whole_or_one(row):
            continue
        place = {key: row[key] for key in PLACE}
        place["set"] = row["set"] if row["suite"] in ("ood", "shift") else ""
        about = {"network": cell.network, "arm": cell.arm, "seed": cell.seed, **place}
        line = lines.setdefault(tuple(place.values()), about)
        line[row["metric"]] = _rounded(row["value"])
        if row["metric"] == "top1":
            line["top1_std"] = _rounded(row["std"])
    return lines.values()


def _read_cells(folder: Path, grid: str) -> list[Cell]:
    """The cells of a grid, from its lines."""
    rows: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for line in _read(folder / f"{grid}-grid.csv"):
        place: Row = {key: line[key] for key in PLACE}
        if line["severity"]:
            place["severity"] = int(line["severity"])
        place |= {"score": "energy" if line["suite"] == "ood" else "", "scaling": ""}
        rows[line["network"], line["arm"], int(line["seed"])] += [
            place | {"metric": metric, "value": float(line[metric])}
            for metric in KEPT
            if line[metric]
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
        and (suite == "clean" or (row["corruption"], row["severity"]) == ("mean of 19", "all"))
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
            "train": cell.run.cell["seconds"]["train"],
            "evaluate": cell.run.cell["seconds"]["evaluate"],
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


def _draw_gate(faded: Sequence[dict[str, str]]) -> str:
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
        legend = legend_height(list(curves))
        canvas = new_canvas(44 + 200 + 40 + legend)
        put_heading(canvas, "A reference, faded out", "mean confidence on clean test pictures")
        axes = put_axes(canvas, left=44, top=44, width=282, height=200)
        for name, points in curves.items():
            x = sorted(points)
            heights = np.array([points[share] for share in x]).T  # (seeds, shares)
            put_line(axes, x, heights, styles[name], of=len(curves))
        axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.02), xlabel="share of the reference that is shown")
        put_legend(canvas, [(name, sample_line(styles[name])) for name in curves])
        words = "; ".join(
            f"{name}: {np.mean(points[0.0]):.2f} hidden, {np.mean(points[1.0]):.2f} shown"
            for name, points in curves.items()
        )
        return to_file(finish(canvas, "gate", "A reference, faded out", words).svg)


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


def _read(path: Path) -> list[dict[str, str]]:
    """The lines of a table; none where it is not there."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _add(
    path: Path, columns: Sequence[str], lines: Iterable[dict[str, Any]], key: Sequence[str]
) -> None:
    """Write lines below those of before that are of something else."""
    new = list(lines)
    known = {tuple(str(line[name]) for name in key) for line in new}
    kept = [line for line in _read(path) if tuple(line[name] for name in key) not in known]
    _write(path, columns, [*kept, *new])


def _write(path: Path, columns: Sequence[str], lines: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
