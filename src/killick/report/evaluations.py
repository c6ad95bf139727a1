"""One evaluation of each run: a folder may hold several, with other limits, seeds or precisions.

Numbers are compared only if they were measured alike, so of each run one evaluation is taken, and
the same kind for all runs where they have it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from killick.report.table_cells import cell_of
from killick.results.predictions import Answers
from killick.results.rows import Row
from killick.results.run_folder import Run

# An evaluation: on what, on how many pictures of it, drawn how, in which numbers.
EVALUATION = ("data", "limit", "evaluation_seed", "precision")
# Of the same thing there may be several numbers in one evaluation: these differ, or the estimator.
_VARIANT = ("suite", "inference", "table", "view", "k")
_THING = (
    *("suite", "set", "corruption", "severity", "inference", "reference", "scaling", "score"),
    "metric",
)
_SHOWN = ("source", "table", "view", "pictures", *EVALUATION)
Key = tuple[str, ...]


def split_models(run: Run) -> list[Run]:
    """A run for each model whose rows are there; what is not in rows belongs to the folder's."""
    names = list(dict.fromkeys(str(row["model"]) for row in run.rows))
    if len(names) <= 1:
        return [run]
    parts = []
    for name in names:
        rows = [row for row in run.rows if row["model"] == name]
        if name == run.name:
            parts.append(replace(run, rows=rows))
        else:
            parts.append(Run(name, run.folder, rows))
    return parts


def choose_evaluations(runs: Sequence[Run]) -> list[Run]:
    """The runs, each with the rows of one evaluation: that of which there is most in all of them.

    A run that was not evaluated so keeps the one that it has most of.
    """
    sizes: Counter[Key] = Counter()
    variants: Counter[Key] = Counter()
    for run in runs:
        for row in run.rows:
            variants[_variant_of(row)] += 1
            if cell_of(row) is not None:
                sizes[evaluation_of(row)] += 1
    return [replace(run, rows=_choose_rows(run.rows, sizes, variants)) for run in runs]


def evaluation_of(row: Row) -> Key:
    """By which the numbers of one evaluation are known."""
    return tuple(str(row[name]) for name in EVALUATION)


def describe_evaluation(key: Key) -> str:
    """An evaluation in words."""
    data, limit, seed, precision = key
    return f"{data}, {limit or 'all'} pictures, seed {seed or 0}, {precision or 'float32'}"


def evaluations_in(run: Run) -> list[Key]:
    """The evaluations of more than clean pictures that a folder holds."""
    keys = (evaluation_of(row) for row in run.rows if _tells(row) and row["suite"] != "clean")
    return list(dict.fromkeys(keys))


def answers_of(run: Run) -> list[Answers]:
    """The answers to each image that belong to the rows of a run of one evaluation."""
    shown: dict[Key, set[Key]] = {}
    references = {str(row["k"]) for row in run.rows if row["inference"] == "marginal"}
    for row in run.rows:
        if cell_of(row) is not None:
            shown.setdefault(_set_of(row), set()).add(_columns(row, _SHOWN))
    found: dict[Key, Answers] = {}
    for each in run.answers:
        place, k = _set_of(each.about), str(each.about.get("k", ""))
        if _columns(each.about, _SHOWN) in shown.get(place, ()) and (
            not references or k in references
        ):
            found[place] = each
    return list(found.values())


def _tells(row: Row) -> bool:
    return cell_of(row) is not None


def _choose_rows(rows: Iterable[Row], sizes: Counter[Key], variants: Counter[Key]) -> list[Row]:
    rows = list(rows)
    keys = dict.fromkeys(evaluation_of(row) for row in rows)
    best = max(keys, key=lambda key: sizes[key], default=None)
    kept: dict[Key, Row] = {}

    def rank(row: Row) -> tuple[int, Key]:
        """The usual variant is best; of equal ones the same for all rows."""
        variant = _variant_of(row)
        return variants[variant], variant

    for row in rows:
        if evaluation_of(row) != best:
            continue
        thing = _columns(row, _THING)
        if thing not in kept or rank(row) >= rank(kept[thing]):
            kept[thing] = row
    return list(kept.values())


def _variant_of(row: Row) -> Key:
    source = str(row["source"]).split(",")[0]  # what follows is not the same for all corruptions
    return (source, *_columns(row, _VARIANT))


def _set_of(about: Row) -> Key:
    return _columns(about, ("suite", "set", "corruption", "severity"))


def _columns(row: Row, names: Iterable[str]) -> Key:
    return tuple(str(row.get(name, "")) for name in names)
