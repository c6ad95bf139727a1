"""What `evidence_results.py` takes: cells that are whole, and fit to what was written before.

A cell that was only tried (few epochs, few images, a part of the suites) would be lost among
thousands of lines, and its numbers on a page for good. So each is looked at before anything is
written: whatever is missing or different is refused, by name.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from evidence_jobs import CBAR, CORRUPTIONS, MADE, OOD_SETS, RunCell, whole_or_one

from killick.corruptions.suites import SEVERITIES

LABELLED = ("top1", "nll", "ece", "smooth_ece")
TEMPERED = ("nll", "ece", "smooth_ece")  # also of logits with a temperature, where one is fitted
DETECTED = ("auroc", "fpr_at_95_tpr_in")
Lines = Sequence[Mapping[str, Any]]
_What = tuple[str, str, str, str, str]  # suite, set or corruption, severity, metric, scaling


def check_cells(cells: Sequence[RunCell], where: object) -> None:
    """Refuse to write nothing, cells that were only tried or not evaluated in full, and two alike.

    Args:
        cells: That are finished.
        where: They were looked for.
    """
    if not cells:
        _refuse(f"expected finished cells in {where}; run it without --write first.")
    seen = set()
    for cell in cells:
        key = (cell.grid, cell.network, cell.arm, cell.seed)
        if key in seen:
            _refuse(f"expected one cell of {key}, found another in {where}.")
        seen.add(key)
        _check_whole(cell)
    budgets: dict[str, set[int]] = defaultdict(set)
    for cell in cells:  # a network that is finished is tuned for more epochs than it had
        budgets[f" of {cell.arm}" if cell.grid == "finished" else ""].add(cell.epochs)
    for own, found in budgets.items():
        if len(found) > 1:
            _refuse(f"expected one budget{own}, found epochs {sorted(found)}.")


def check_fit(before: Mapping[str, Lines], new: Mapping[str, Lines]) -> None:
    """Refuse lines of other epochs or other numbers of images than those of before.

    Args:
        before: Lines of the first, second and choosing grids that stay.
        new: Those to be written beside them.
    """
    epochs = {str(line["epochs"]) for lines in before.values() for line in lines}
    for grid, lines in new.items():
        for line in lines:
            if epochs and str(line["epochs"]) not in epochs:
                _refuse(
                    f"expected cells of {' or '.join(sorted(epochs))} epochs beside those that are"
                    f" written, found {line['epochs']} in {line['arm']}, seed {line['seed']}."
                )
        known = {_set(line): str(line["count"]) for line in before[grid]}
        for line in lines:
            count = known.get(_set(line), str(line["count"]))
            if count != str(line["count"]):
                _refuse(
                    f"expected {count} images of {' '.join(_set(line)).strip()} as in what is"
                    f" written, found {line['count']} in {line['arm']}, seed {line['seed']}."
                )
    first, second = (
        {
            (line["network"], line["arm"], str(line["seed"]))
            for lines in (before[grid], new[grid])
            for line in lines
        }
        for grid in ("first", "second")
    )
    twice = sorted(first & second)
    if twice:
        _refuse(f"expected an arm in one of the grids, found {twice[0]} in the first and second.")


def check_none_lost(file: str, before: Lines, new: Lines) -> None:
    """Refuse a table that is made of whole grids if some that is there would go."""
    had, has = (
        {(line["arm"], seed) for line in lines for seed in str(line["seeds"]).split()}
        for lines in (before, new)
    )
    if had - has:
        arm, seed = min(had - has)
        _refuse(
            f"expected all cells of {file} at once, which has rows with a temperature, found none"
            f" of {arm}, seed {seed}. Run those again too, or remove the file."
        )


def _check_whole(cell: RunCell) -> None:
    rows = [row for row in cell.single if row["score"] in ("", "energy") and whole_or_one(row)]
    found = Counter(
        (
            str(row["suite"]),
            str(row["set"] if row["suite"] == "ood" else row["corruption"]),
            str(row["severity"]),
            str(row["metric"]),
            str(row["scaling"]),
        )
        for row in rows
    )
    wrong = [what for what in _expected(cell.grid) if found[what] != 1]
    if wrong:
        suite, name, severity, metric, scaling = wrong[0]
        place = " ".join(filter(None, (suite, name, severity)))
        _refuse(
            f"expected one row each of {len(_expected(cell.grid))} in {cell.run.folder}, found"
            f" {found[wrong[0]]} of {place}, {metric}{' with a ' if scaling else ''}{scaling}, and"
            f" {len(wrong) - 1} more such. Finish or remove it."
        )
    if {row["limit"] for row in rows} - {"", None}:
        _refuse(f"expected all images in {cell.run.folder}, found limited ones. Remove it.")


def _expected(grid: str) -> list[_What]:
    places = [("clean", "", "")]
    for suite, names in (("corruptions", CORRUPTIONS), ("cbar", CBAR)):
        places += [(suite, name, str(severity)) for name in names for severity in SEVERITIES]
    if grid != "choosing":
        places.append(("shift", "", ""))
    wanted = [(*place, metric, "") for place in places for metric in LABELLED]
    if grid != "choosing":
        wanted += [("ood", name, "", metric, "") for name in OOD_SETS + MADE for metric in DETECTED]
    if grid in ("finished", "tempered"):
        wanted += [
            (*place, metric, "temperature")
            for place in places
            if place[0] in ("clean", "corruptions")
            for metric in TEMPERED
        ]
    return wanted


def _set(line: Mapping[str, Any]) -> tuple[str, str]:
    return str(line["suite"]), str(line["set"])


def _refuse(why: str) -> None:
    raise SystemExit(f"evidence_results.py: {why}")
