"""What rows tell of one model, evaluation by evaluation, as lines that people read.

Rows that were measured on the same data with the same limit, seed and precision are one evaluation:
numbers of two evaluations never stand in one table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from killick.corruptions.suites import PUBLISHED, SEVERITIES
from killick.results.rows import Row, members_of

SETS = ("clean", "shift", "corruptions", "cbar")  # suites of pictures that have labels
OOD = "ood"
_TOGETHER = ("data", "limit", "evaluation_seed", "precision")


@dataclass(frozen=True)
class Number:
    """A measured value.

    Attributes:
        value: From the first reference, or from the mean over all.
        spread: Standard deviation over references; None where there is one, or none.
        references: How many that is over.
    """

    value: float
    spread: float | None = None
    references: int = 1


@dataclass(frozen=True)
class Line:
    """Numbers about the same pictures, asked for in the same way.

    Attributes:
        suite: Of the pictures.
        shown: What they are, in words.
        asked: From which references, in words; empty for a model that has none.
        count: How many pictures.
        numbers: By metric; of detection, by score.
    """

    suite: str
    shown: str
    asked: str
    count: int
    numbers: dict[str, Number]


@dataclass(frozen=True)
class Corruptions:
    """Accuracy by corruption and severity, from the first reference.

    Attributes:
        suite: "corruptions" or "cbar".
        source: "generated" or "files".
        table: Whose constants.
        severities: Those that are shown.
        accuracy: For each corruption, by severity; "mean" is over all five.
    """

    suite: str
    source: str
    table: str
    severities: tuple[int, ...]
    accuracy: dict[str, dict[int | str, Number]]


@dataclass(frozen=True)
class Evaluation:
    """What was measured at once.

    Attributes:
        data: What the pictures are.
        limit: At most so many of each set; None for all.
        seed: Of subsets and corruptions.
        precision: Of the forward pass.
        sets: Accuracy and calibration.
        corruptions: Accuracy, one corruption after the other.
        detection: AUROC by score.
        relative: Mean corruption error, with what it is relative to.
        conditions: What else the numbers depend on, in sentences.
    """

    data: str
    limit: int | None
    seed: int
    precision: str
    sets: tuple[Line, ...]
    corruptions: tuple[Corruptions, ...]
    detection: tuple[Line, ...]
    relative: tuple[tuple[str, Number], ...]
    conditions: tuple[str, ...]


def gather_evaluations(rows: Iterable[Row]) -> list[Evaluation]:
    """The evaluations that rows are of, the one with the most rows first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["reference"] == "" and row["scaling"] == "":
            groups.setdefault(tuple(str(row[name]) for name in _TOGETHER), []).append(row)
    found = [_read(group) for group in sorted(groups.values(), key=len, reverse=True)]
    return [each for each in found if each.sets or each.corruptions or each.detection]


def _read(rows: list[Row]) -> Evaluation:
    first = rows[0]
    shown = [row for row in rows if row["suite"] in (*SETS, OOD)]
    return Evaluation(
        str(first["data"]),
        int(first["limit"]) if first["limit"] != "" else None,
        int(first["evaluation_seed"] or 0),
        str(first["precision"]),
        tuple(_read_sets(rows)),
        tuple(_read_corruptions(rows)),
        tuple(_read_detection(rows)),
        tuple(
            (str(row["estimator"]), _number(row))
            for row in rows
            if row["metric"] == "mce" and row["inference"] == "single"
        ),
        tuple(_describe_conditions(shown)),
    )


def _read_sets(rows: list[Row]) -> Iterable[Line]:
    """Clean and shifted sets, and means over corruptions: at all severities, and at the highest."""
    chosen = [row for row in rows if row["metric"] in ("top1", "smooth_ece")]
    means = [row for row in chosen if str(row["corruption"]).startswith("mean of")]
    plain = [row for row in chosen if row["suite"] in ("clean", "shift")]
    over_all = {(row["suite"], row["corruption"]) for row in means if row["severity"] == "all"}
    told = [
        row
        for row in means
        if row["severity"] in ("all", 5) or (row["suite"], row["corruption"]) not in over_all
    ]
    several = len({(row["suite"], row["source"], row["table"]) for row in told}) > len(
        {row["suite"] for row in told}
    )
    means_in_order = list(dict.fromkeys(str(row["corruption"]) for row in told))
    lines: dict[tuple[str, str, str, int], dict[str, Number]] = {}
    for row in [*plain, *sorted(told, key=lambda row: _place(row, means_in_order))]:
        about = (_describe_set(row, several), _describe_asked(row), int(row["count"]))
        lines.setdefault((str(row["suite"]), *about), {})[str(row["metric"])] = _number(row)
    made = [Line(*place, numbers) for place, numbers in lines.items()]
    return sorted(made, key=lambda line: SETS.index(line.suite))


def _place(row: Row, means: list[str]) -> tuple[int, int]:
    """One mean after the other; over all severities first."""
    severity = 0 if row["severity"] == "all" else int(row["severity"])
    return means.index(str(row["corruption"])), severity


def _describe_set(row: Row, with_source: bool) -> str:
    if row["suite"] == "clean":
        return "clean"
    if row["suite"] == "shift":
        return f"{row['set']}, shifted"
    kind = "C-bar" if row["suite"] == "cbar" else "corrupted"
    severity = "all severities" if row["severity"] == "all" else f"severity {row['severity']}"
    words = f"{kind}, {row['corruption']}, {severity}"
    return f"{words} ({row['source']}, {row['table']})" if with_source else words


def _describe_asked(row: Row) -> str:
    """From which references; empty for a model that has none."""
    if row["k"] == "":
        return ""
    if row["inference"] == "marginal":
        return f"mean over {row['k']} references"
    return "one reference" if row["inference"] == "single" else str(row["inference"])


def _read_corruptions(rows: list[Row]) -> Iterable[Corruptions]:
    groups: dict[tuple[str, str, str], dict[str, dict[int, Row]]] = {}
    for row in rows:
        single = row["metric"] == "top1" and row["inference"] == "single"
        if row["suite"] in ("corruptions", "cbar") and row["corruption"] in PUBLISHED and single:
            place = (str(row["suite"]), _head(row["source"]), str(row["table"]))
            names = groups.setdefault(place, {})
            names.setdefault(str(row["corruption"]), {})[int(row["severity"])] = row
    for place, names in groups.items():
        there = sorted({severity for cells in names.values() for severity in cells})
        shown = (1, 3, 5) if there == list(SEVERITIES) else tuple(there)
        accuracy: dict[str, dict[int | str, Number]] = {}
        for name, cells in names.items():
            accuracy[name] = {s: _number(cells[s]) for s in shown if s in cells}
            if sorted(cells) == list(SEVERITIES):
                accuracy[name]["mean"] = _mean([cells[severity] for severity in SEVERITIES])
        yield Corruptions(*place, shown, accuracy)


def _read_detection(rows: list[Row]) -> Iterable[Line]:
    lines: dict[tuple[str, str, int], dict[str, Number]] = {}
    for row in rows:
        if row["suite"] == OOD and row["metric"] == "auroc":
            place = (str(row["set"]), _describe_asked(row), int(row["count"]))
            lines.setdefault(place, {})[str(row["score"])] = _number(row)
    return [Line(OOD, *place, numbers) for place, numbers in lines.items()]


def _describe_conditions(rows: list[Row]) -> Iterable[str]:
    """Sentences about what numbers depend on, of those rows that the tables are made of."""
    views = _values(rows, "view")
    if views:
        yield f"Pictures are seen at {', '.join(views)}."
    for suite, title in (("corruptions", "Corruptions"), ("cbar", "C-bar")):
        shown = [row for row in rows if row["suite"] == suite and row["corruption"] in PUBLISHED]
        if shown:
            sources, tables = _values(shown, "source"), _values(shown, "table")
            kinds = list(dict.fromkeys(map(_head, sources)))
            words = f"{title}: {' and '.join(kinds)}"
            words += f", with the constants of {' and '.join(tables)}" if tables else ""
            special = {
                str(row["corruption"]): str(row["source"]).partition(",")[2].strip()
                for row in shown
                if "," in str(row["source"])
            }
            yield words + "".join(f"; {name}: {how}" for name, how in special.items()) + "."
    for metric, title in (("smooth_ece", "Smooth ECE"), ("auroc", "AUROC")):
        how = _values([row for row in rows if row["metric"] == metric], "estimator")
        if how:
            yield f"{title}: {'; '.join(how)}."
    spread = {len(members_of(row)) for row in rows if row["std"] != ""}
    if spread:
        yield (
            f"±: standard deviation over {' or '.join(map(str, sorted(spread)))} references, each"
            " asked alone; the number before it is that of the first."
        )


def _values(rows: Sequence[Row], column: str) -> list[str]:
    return list(dict.fromkeys(str(row[column]) for row in rows if row[column] != ""))


def _head(source: object) -> str:
    return str(source).split(",")[0]


def _number(row: Row) -> Number:
    spread = None if row["std"] == "" else float(row["std"])
    return Number(float(row["value"]), spread, len(members_of(row)))


def _mean(rows: Sequence[Row]) -> Number:
    """The mean over rows, for each reference apart."""
    members = [fmean(column) for column in zip(*map(members_of, rows), strict=False)]
    spread = stdev(members) if len(members) > 1 else None
    return Number(fmean(float(row["value"]) for row in rows), spread, len(members))
