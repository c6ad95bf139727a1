"""Parts of the pages that are made from the code and from results.

    python docs/reference_parts.py        # brings the parts of all pages up to date

A part stands between `<!-- made: NAME -->` and `<!-- end -->`, as text, so that it is seen wherever
the page is read; a test holds it to the code.
"""

import argparse
import csv
import dataclasses
import inspect
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import regularizer_tables
from api_text import describe_api

from killick import errors, metrics
from killick.cli import make_parser
from killick.report.summary_metrics import summary_metrics
from killick.studies import find_study, study_names
from killick.training import load_recipe, shipped
from killick.training.recipe_files import settings

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# Of a comparison, what its table shows.
SHOWN = ("clean_top1", "corrupted_top1", "corrupted_smooth_ece", "synthetic_ood_auroc")
# Of the demo: arm, baseline, epochs, how its files begin.
DEMO_DIFFERENCES = (
    ("masked-tuning", "standard", "48 + 12", ""),
    ("masked-tuning", "standard-tuning", "48 + 12", "control-"),
    ("masked-label", "standard", "48", ""),
    ("masked-label", "standard", "32", "epochs-32-"),
    ("masked-label", "standard", "128", "epochs-128-"),
)
_MADE = re.compile(r"^<!-- made: ([\w-]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def describe_commands() -> str:
    """A section for each command: what it does, its usage, its options, examples."""
    _, commands = make_parser()
    return "\n\n".join(_describe(name, parser) for name, parser in commands.choices.items())


def describe_exit_codes() -> str:
    """What `killick --help` says at its end."""
    parser, _ = make_parser()
    return f"```text\n{_as_printed(parser)}\n```"


def describe_recipes() -> str:
    """A table of the shipped recipes."""
    lines = ["| recipe | trains | protocol | epochs | what |", "|" + " --- |" * 5]
    for name, path in shipped().items():
        recipe = load_recipe(name)
        link = f"[{name}](../{path.relative_to(ROOT)})"
        facts = (getattr(recipe.protocol, key, None) for key in ("name", "target", "alpha"))
        protocol = ", ".join(str(fact) for fact in facts if fact is not None)
        about = recipe.about.split(". ")[0].rstrip(".")
        trains = f"{recipe.network.name} on {recipe.data.name.split(':')[0]}"
        lines.append(f"| {link} | {trains} | {protocol} | {recipe.epochs} | {about} |")
    return "\n".join(lines)


def describe_settings() -> str:
    """A table of every setting of a recipe."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in settings().items():
        if name == "about":
            continue
        made = field.default_factory
        default = made() if made is not dataclasses.MISSING else field.default
        among = field.metadata["among"]
        choices = f" ({', '.join(f'`{word}`' for word in among)})" if among else ""
        meaning = field.metadata["about"].replace("|", "\\|") + choices
        lines.append(f"| `{name}` | `{_plain(default)}` | {meaning} |")
    return "\n".join(lines)


def describe_errors() -> str:
    """A table of the errors that a user can cause."""
    lines = ["| error | is also a | when |", "| --- | --- | --- |"]
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.KillickError):
            also = ", ".join(
                base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"
            )
            lines.append(f"| `{name}` | `{also}` | {inspect.cleandoc(kind.__doc__ or '')} |")
    return "\n".join(lines)


def describe_comparisons() -> str:
    """A table for each comparison that is kept in `benchmarks/results/compare-*.csv`."""
    return "\n\n".join(_describe_comparison(path) for path in sorted(RESULTS.glob("compare-*.csv")))


def describe_demo() -> str:
    """The differences of each rerun of the demo, and how long it took."""
    shown = [each for each in summary_metrics() if each.key in SHOWN]
    titles = [f"{each.title}{', %' if each.metric.unit == '%' else ''}" for each in shown]
    heads = ["difference", "epochs", "seeds", *titles]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for arm, baseline, epochs, kind in DEMO_DIFFERENCES:
        for path in sorted((RESULTS / "demo").glob(f"{kind}seeds-*.csv"), key=_first_seed):
            with open(path, encoding="utf-8") as file:
                rows = {row["measure"]: row for row in csv.DictReader(file) if row["arm"] == arm}
            seeds = path.stem.removeprefix(f"{kind}seeds-").replace("-", " to ")
            cells = [_difference(rows[each.key], each.metric) for each in shown]
            names = f"{arm} less {baseline} | {epochs} | {seeds}"
            lines.append(f"| {names} | {' | '.join(cells)} |")
    with open(RESULTS / "demo" / "time.csv", encoding="utf-8") as file:
        *others, last = (row["wall seconds"] for row in csv.DictReader(file))
    lines += ["", f"The demo took {', '.join(others)} and {last} seconds on two cores."]
    return "\n".join(lines)


def _first_seed(path: Path) -> int:
    return int(path.stem.split("-")[-2])


def describe_studies() -> str:
    """A table of the studies, and the options of each."""
    lines = ["| study | in the paper | what it shows | options of its own |", "|" + " --- |" * 4]
    for name in study_names():
        study = find_study(name)
        own = ", ".join(
            f"`--{each.name.replace('_', '-')}`" for each in dataclasses.fields(study.options)
        )
        file = inspect.getsourcefile(study.arms)
        link = f"[{name}](../{Path(file or '').relative_to(ROOT)})"
        lines.append(f"| {link} | {study.item or 'beyond it'} | {study.about} | {own} |")
    return "\n".join(lines)


class Told(NamedTuple):
    """A measure of a study that the site tells: its title, name, columns that tell arms apart."""

    title: str
    metric: str
    by: tuple[str, ...]
    factor: float = 100
    digits: int = 1
    only: tuple[tuple[str, str], ...] = ()


_TOLD = {
    "reference-size": [Told("corrupted accuracy, %", "corrupted_top1", ("protocol", "references"))],
    "inference": [
        Told("accuracy on corrupted images, %", "top1", ("protocol", "inference")),
        Told("seconds for 1,000", "seconds_per_1000", ("protocol", "inference"), 1, 2),
    ],
    "landscape": [
        Told("radius within 10 points", "radius_10_points", ("protocol", "batchnorm"), 1, 2)
    ],
    "augmentation": [
        Told("accuracy at severity 5, %", "severity5_top1", ("protocol", "augmentation"))
    ],
    "label-noise": [
        Told("corrupted accuracy, %", "corrupted_top1", ("protocol", "noise")),
        Told(
            "wrong labels memorized, %",
            "flipped_labels_memorized",
            ("protocol", "noise"),
        ),
    ],
    "generalization": [
        Told("corrupted accuracy, %", "corrupted_top1", ("network", "protocol")),
        Told("C-bar accuracy, %", "cbar_top1", ("network", "protocol")),
    ],
    "safety": [
        Told("AUROC of the energy, synthetic OOD sets, %", "synthetic_ood_auroc", ("protocol",)),
        Told("smooth ECE, corrupted", "corrupted_smooth_ece", ("protocol",), 1, 3),
    ],
    "alpha": [Told("corrupted accuracy, %", "corrupted_top1", ("arm",))],
    "adaptation": [
        Told(
            "accuracy of probes, %",
            "top1",
            ("protocol", "task", "alpha"),
            only=(("reference", "0"),),
        )
    ],
    "finetune": [
        Told("corrupted accuracy, %", "corrupted_top1", ("arm",)),
        Told("smooth ECE, corrupted", "corrupted_smooth_ece", ("arm",), 1, 3),
    ],
}


def describe_study_results() -> str:
    """What each study found at its small size: mean ± standard deviation over seeds."""
    folder = RESULTS / "studies"
    with open(folder / "times.csv", encoding="utf-8") as file:
        times = {line["study"]: float(line["seconds"]) for line in csv.DictReader(file)}
    lines = ["| study | minutes | what it found |", "|" + " --- |" * 3]
    for name, told in _TOLD.items():
        with open(folder / f"{name}.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        link = f"[{name}](../benchmarks/results/studies/{name}.csv)"
        found = "<br>".join(f"**{each.title}**: {_tell_arms(rows, each)}" for each in told)
        lines.append(f"| {link} | {times[name] / 60:.0f} | {found} |")
    return "\n".join(lines)


def _tell_arms(rows: list[dict[str, str]], told: Told) -> str:
    """Each arm with its mean over what is beside the seeds, and the spread over them."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["metric"] == told.metric and all(row[key] == value for key, value in told.only):
            arm = " ".join(row[column] for column in told.by)
            values.setdefault(arm, {}).setdefault(row["seed"], []).append(float(row["value"]))
    parts = []
    for arm, seeds in values.items():
        means = [told.factor * statistics.fmean(each) for each in seeds.values()]
        text = f"{statistics.fmean(means):.{told.digits}f}"
        if len(means) > 1:
            text += f" ± {statistics.stdev(means):.{told.digits}f}"
        parts.append(f"{arm} {text}")
    return "; ".join(parts)


def list_faults() -> str:
    """A table of the outcomes of `make hold`."""
    with open(RESULTS / "reliability.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| fault | attempts | outcomes |", "| --- | ---: | --- |"]
    lines += [f"| {row['scenario']} | {row['attempts']} | {row['outcomes']} |" for row in rows]
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "reliability": list_faults,
    "study-results": describe_study_results,
    "studies": describe_studies,
    "demo": describe_demo,
    "commands": describe_commands,
    "exit-codes": describe_exit_codes,
    "api": describe_api,
    "errors": describe_errors,
    "comparisons": describe_comparisons,
    "recipes": describe_recipes,
    "settings": describe_settings,
    "regularizers-components": regularizer_tables.describe_components,
    "regularizers-alone": regularizer_tables.describe_alone,
    "regularizers-combined": regularizer_tables.describe_combined,
    "regularizers-differences": regularizer_tables.describe_differences,
    "regularizers-tuned": regularizer_tables.describe_tuned,
    "regularizers-noise": regularizer_tables.describe_noise,
}


def _describe(name: str, parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    parts = [f"## killick {name}", parser.description or "", f"```text\n{usage}\n```"]
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        about = {name: each.description or "" for name, each in action.choices.items()}
        lines = ["| name | what |", "| --- | --- |"]
        parts.append(
            "\n".join([*lines, *(f"| `{k}` | {' '.join(v.split())} |" for k, v in about.items())])
        )
    for group in parser._action_groups:
        shown = [
            action
            for action in group._group_actions
            if action.help != argparse.SUPPRESS
            and not isinstance(action, argparse._SubParsersAction)
        ]
        if shown:
            title = {"positional arguments": "", "options": ""}.get(group.title or "", group.title)
            heading = [f"**{(title or '').capitalize()}**"] if title else []
            lines = ["| option | meaning |", "| --- | --- |", *map(_option, shown)]
            parts += [*heading, "\n".join(lines)]
    if parser.epilog:
        parts.append(f"```text\n{_as_printed(parser)}\n```")
    return "\n\n".join(part for part in parts if part)


def _as_printed(parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    formatter.add_text(parser.epilog)
    return formatter.format_help().strip()


def _describe_comparison(path: Path) -> str:
    """The arms of a `summary.csv`: mean ± spread over seeds, and the difference to the first."""
    with open(path, encoding="utf-8") as file:
        rows = {(row["arm"], row["measure"]): row for row in csv.DictReader(file)}
    shown = [each for each in summary_metrics() if each.key in SHOWN]
    titles = [f"{each.title}{', %' if each.metric.unit == '%' else ''}" for each in shown]
    link = f"[{path.name}](../../benchmarks/results/{path.name})"
    lines = [
        f"`killick compare --recipe shapes-compare`, two seeds, {link}: mean ± standard deviation"
        " over seeds, and in brackets the difference to the first arm with its 95 % interval.\n",
        f"| arm | {' | '.join(titles)} |",
        "|" + " --- |" * (1 + len(shown)),
    ]
    for arm in dict.fromkeys(arm for arm, _ in rows):
        cells = [_number(rows.get((arm, each.key)), each.metric) for each in shown]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(row: dict[str, str] | None, metric: metrics.Metric) -> str:
    if row is None:
        return ""

    def shown(name: str, sign: str = "") -> str:
        return f"{metric.factor * float(row[name]):{sign}.{metric.digits}f}"

    text = shown("mean") + (f" ± {shown('spread')}" if row["spread"] else "")
    if row["low"]:
        text += f" ({shown('difference', '+')}; {shown('low', '+')} to {shown('high', '+')})"
    return text


def _difference(row: dict[str, str], metric: metrics.Metric) -> str:
    """With its 95 % interval, bold where that excludes 0."""
    low, high = float(row["low"]), float(row["high"])
    value, *ends = (
        f"{metric.factor * number:+.{metric.digits}f}".replace("-", "−")
        for number in (float(row["difference"]), low, high)
    )
    value = f"**{value}**" if low > 0 or high < 0 else value
    return f"{value}<br>{ends[0]}\u00a0to\u00a0{ends[1]}"


def _option(action: argparse.Action) -> str:
    names = ", ".join(f"`{word}`" for word in action.option_strings or [action.dest.upper()])
    takes = action.nargs != 0 and bool(action.option_strings)
    value = action.metavar or (action.choices and "{" + ",".join(map(str, action.choices)) + "}")
    value = value or action.dest.upper()
    names += f" `{value}`" if takes else ""
    meaning = (action.help or "") % {**vars(action), "prog": "killick"}
    return f"| {names.replace('|', chr(92) + '|')} | {meaning.replace('|', chr(92) + '|')} |"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def renew(text: str) -> str:
    """The text of a page with its parts made anew."""

    def make(found: re.Match[str]) -> str:
        return f"<!-- made: {found[1]} -->\n\n{PARTS[found[1]]()}\n\n<!-- end -->"

    return _MADE.sub(make, text)


if __name__ == "__main__":
    for page in (ROOT / "docs").rglob("*.md"):
        page.write_text(renew(page.read_text(encoding="utf-8")), encoding="utf-8")
