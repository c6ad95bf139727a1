"""Where the numbers come from: versions, machines, settings, seeds, and how to get them again."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from killick.report.comparison import Arm, Comparison, seed_of
from killick.report.formatting import count_words, enumerate_words
from killick.results.rows import Row
from killick.results.run_folder import Run

# Settings that say nothing about a method, and differ from run to run.
_IDLE = ("seed", "about")
_IDLE_HERE = "–"  # where a setting has no meaning
_MASKING = ("target", "alpha", "alpha_end", "every", "scope", "ranks", "batchnorm")
_UNUSED = {
    "standard": (*_MASKING, "references", "reference_set", "stored", "stem"),
    "anchored": _MASKING,
}


@dataclass(frozen=True)
class Provenance:
    """What a reader needs to trust the numbers or to make them again.

    Attributes:
        facts: Names and what they are.
        differing: Of the settings that differ between arms, for each its name and the value of
            each arm.
        recipes: The settings of each arm, as YAML, under its title.
        command: How to repeat it all; empty if nobody knows.
        commands: Of single runs, with their names.
    """

    facts: tuple[tuple[str, str], ...]
    differing: tuple[tuple[str, tuple[str, ...]], ...]
    recipes: tuple[tuple[str, str], ...]
    command: str
    commands: tuple[tuple[str, str], ...]


def find_provenance(comparison: Comparison, command: str | None = None) -> Provenance:
    """What the runs know of themselves; what none of them knows is left out.

    Args:
        comparison: The runs.
        command: By which the whole comparison can be repeated, if there is one.
    """
    runs = [run for arm in comparison.arms for run in arm.runs]
    rows = [row for run in runs for row in run.rows]
    facts = {
        "data": _describe_data(comparison, rows),
        "networks": _values(rows, "network"),
        "seeds": _by_arm(comparison, lambda arm: ", ".join(str(seed_of(run)) for run in arm.runs)),
        "masked target": _by_arm(comparison, lambda arm: _of_arm(arm, "target")),
        "share masked": _by_arm(comparison, _describe_share),
        "references": _by_arm(comparison, _describe_references),
        "start": _by_arm(comparison, _describe_start),
        "references asked from (K)": _values(
            [row for row in rows if row["inference"] == "marginal"], "k"
        ),
        "corruptions": _describe_corruptions(rows),
        "estimators": _describe_estimators(rows),
        "precision": _values(rows, "precision"),
        "versions": _describe_versions(runs),
        "machine": _describe_machines(runs),
        "started": _describe_start_times(runs),
        "time": _describe_time(runs),
    }
    newest = sorted(runs, key=lambda run: str(run.environment.get("started", "")), reverse=True)
    return Provenance(
        tuple((name, value) for name, value in facts.items() if value),
        _find_differing(comparison),
        tuple((arm.title, text) for arm in comparison.arms if (text := _to_yaml(arm.runs[0]))),
        command or next((text for run in newest if (text := _join(run.job.get("command")))), ""),
        tuple((run.name, text) for run in runs if (text := _join(run.environment.get("command")))),
    )


def _values(rows: Iterable[Row], column: str) -> str:
    return ", ".join(dict.fromkeys(str(row[column]) for row in rows if row[column] != ""))


def _by_arm(comparison: Comparison, describe: Any) -> str:
    """The same for all arms, or what it is for each; arms without it are left out."""
    found = {arm.title: describe(arm) for arm in comparison.arms}
    if len(set(found.values())) == 1:
        return str(next(iter(found.values())))
    return "; ".join(f"{title}: {value}" for title, value in found.items() if value)


def _of_arm(arm: Arm, column: str) -> str:
    return _values((row for run in arm.runs for row in run.rows[:1]), column)


def _describe_data(comparison: Comparison, rows: list[Row]) -> str:
    clean = [int(row["count"]) for row in rows if row["suite"] == "clean" and row["count"]]
    words = [comparison.data]
    if clean:
        words.append(f"{count_words(max(clean), 'test picture')}")
    seeds, views = _values(rows, "evaluation_seed"), _values(rows, "view")
    words += [f"evaluation seed {seeds}"] if seeds else []
    words += [f"seen at {views}"] if views else []
    return ", ".join(words)


def _describe_share(arm: Arm) -> str:
    row = arm.runs[0].rows[0] if arm.runs[0].rows else {}
    if row.get("protocol") != "masked" or row.get("alpha") in ("", None):
        return ""
    return f"{100 * float(row['alpha']):g} % by {row.get('scope') or 'batch'}"


def _describe_references(arm: Arm) -> str:
    """Where references came from in training, and those that were stored for evaluation."""
    trained = _of_arm(arm, "references")
    policy = re.sub(r",? ?seed \d+", "", _of_arm(arm, "reference_policy").split(", seed")[0])
    words = [f"{trained} in training" if trained else "", f"stored: {policy}" if policy else ""]
    return ", ".join(word for word in words if word)


def _describe_start(arm: Arm) -> str:
    if arm.runs[0].epochs_before:
        return f"after {arm.runs[0].epochs_before} epochs as a standard network"
    start = _of_arm(arm, "start")
    return f"from {start}" if start else "from scratch"


def _describe_corruptions(rows: list[Row]) -> str:
    shown = [row for row in rows if row["suite"] in ("corruptions", "cbar")]
    if not shown:
        return ""
    names = dict.fromkeys(
        str(row["corruption"]) for row in shown if not str(row["corruption"]).startswith("mean of")
    )
    severities = sorted({str(row["severity"]) for row in shown} - {"all"})
    parts = [
        part for row in shown for part in str(row["source"]).replace(" and ", ", ").split(", ")
    ]
    source = ", ".join(dict.fromkeys(part for part in parts if part))
    tables = _values(shown, "table")
    words = [f"{len(names)} at severity {enumerate_words(severities)}"]
    words += [source] if source else []
    words += [f"constants of {tables}"] if tables else []
    return ", ".join(words)


def _describe_estimators(rows: list[Row]) -> str:
    """Only those of the numbers on the page: without temperature scaling."""
    wanted = {"smooth_ece": "smooth ECE", "auroc": "AUROC by energy"}
    parts = []
    for metric, title in wanted.items():
        chosen = [row for row in rows if row["metric"] == metric and not row["scaling"]]
        names = _values(chosen, "estimator")
        parts += [f"{title}: {names}"] if names else []
    return "; ".join(parts)


def _describe_versions(runs: list[Run]) -> str:
    lines = []
    for run in runs:
        versions = run.environment.get("versions")
        if isinstance(versions, Mapping):
            words = [f"{name} {version}" for name, version in versions.items()]
            python = run.environment.get("python")
            lines.append(", ".join([*words, *([f"Python {python}"] if python else [])]))
    return "; or ".join(dict.fromkeys(lines))


def _describe_machines(runs: list[Run]) -> str:
    lines = []
    for run in runs:
        about = run.environment
        words = [str(about[name]) for name in ("system", "device", "gpu") if about.get(name)]
        words += [
            count_words(about[name], name.removesuffix("s"))
            for name in ("cores", "threads")
            if isinstance(about.get(name), int)
        ]
        lines.append(", ".join(words))
    return "; or ".join(dict.fromkeys(line for line in lines if line))


def _describe_start_times(runs: list[Run]) -> str:
    found = (str(run.environment.get("started") or "") for run in runs)
    times = sorted(time.replace("T", " ").replace("+00:00", " UTC") for time in found if time)
    if not times:
        return ""
    return times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"


def _describe_time(runs: list[Run]) -> str:
    """Seconds of the parts, summed over runs."""
    sums: dict[str, float] = {}
    for run in runs:
        seconds = run.job.get("seconds")
        for part, value in seconds.items() if isinstance(seconds, Mapping) else ():
            if isinstance(value, int | float):
                sums[str(part)] = sums.get(str(part), 0.0) + value
    return ", ".join(f"{part} {_spell_seconds(value)}" for part, value in sums.items())


def _spell_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _find_differing(comparison: Comparison) -> tuple[tuple[str, tuple[str, ...]], ...]:
    flat = [_flatten(arm.runs[0].recipe) for arm in comparison.arms]
    if len(flat) < 2 or not all(flat):
        return ()
    names = dict.fromkeys(name for settings in flat for name in settings)
    found = []
    for name in names:
        values = tuple(_IDLE_HERE if _is_idle(name, s) else s.get(name, "") for s in flat)
        if len(set(values)) > 1 and name not in _IDLE:
            found.append((name, values))
    return tuple(found)


def _is_idle(name: str, settings: Mapping[str, str]) -> bool:
    """Whether a setting of the protocol has no meaning under the protocol chosen."""
    unused = _UNUSED.get(settings.get("protocol.name", ""), ())
    return any(name == f"protocol.{setting}" for setting in unused)


def _flatten(settings: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Settings by their dotted names, as text."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{name}.")
        else:
            found[name] = "none" if value is None else str(value)
    return found


def _to_yaml(run: Run) -> str:
    if not run.recipe:
        return ""
    return yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True, width=90)


def _join(words: object) -> str:
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return shlex.join(words)
    return words if isinstance(words, str) else ""
