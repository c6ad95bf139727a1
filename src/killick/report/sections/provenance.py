"""Where the numbers come from: data, versions, machines, settings, and how to get them again."""

import shlex
from collections.abc import Iterable, Mapping

import yaml

from killick.report.comparison import Comparison
from killick.report.conditions import CORRUPTED, condition_of
from killick.report.run_groups import flatten
from killick.report.sections import SECTIONS, Content, ReportData, Section, render
from killick.report.tables import TextTable
from killick.results.rows import Row
from killick.results.run_folder import Run

KEY = "provenance"
_ENVIRONMENT = ("versions", "python", "system", "device", "gpu", "cores", "threads", "started")
_TEMPLATE = """
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% if command %}
<p class="command"><code>{{ command }}</code></p>
{% endif %}
{% for name, text in files %}
<details><summary>{{ name }}</summary><pre>{{ text }}</pre></details>
{% endfor %}
"""


def make(data: ReportData) -> Content:
    """Facts, the settings that differ between arms, commands and recipes."""
    comparison = data.comparison
    runs = [run for arm in comparison.arms for run in arm.runs]
    newest = sorted(runs, key=lambda run: str(run.environment.get("started", "")), reverse=True)
    commands = [_join(run.job.get("command")) for run in newest]
    single = {run.name: _join(run.environment.get("command")) for run in runs}
    text = "\n".join(f"# {name}\n{command}" for name, command in single.items() if command)
    files = [("Commands of single runs", text)] if text else []
    for arm in comparison.arms:
        if recipe := arm.runs[0].recipe:
            shown = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=90)
            files.append((f"Recipe of {arm.name}", shown))
    differing = _differing_settings(comparison)
    html = render(
        _TEMPLATE,
        facts=find_facts(comparison).items(),
        command=data.command or next(filter(None, commands), ""),
        files=files,
    )
    return Content(tables=(differing,) if differing else (), html=html)


def find_facts(comparison: Comparison) -> dict[str, str]:
    """What the runs know of themselves; what none of them knows is left out."""
    runs = [run for arm in comparison.arms for run in arm.runs]
    rows = [row for run in runs for row in run.rows if condition_of(row) is not None]
    clean = [int(row["count"]) for row in rows if row["suite"] == "clean" and row["count"]]
    corrupted = [row for row in rows if row["suite"] in CORRUPTED]
    facts = {
        "data": comparison.data,
        "test images": f"{max(clean):,}" if clean else "",
        "evaluation seed": _values(rows, "evaluation_seed"),
        "image size": _values(rows, "view"),
        "references (K)": _values((r for r in rows if r["inference"] == "marginal"), "k"),
        "corruptions": _count(corrupted, "corruption"),
        "severities": _values(corrupted, "severity"),
        "source of corrupted images": _values(corrupted, "source"),
        "corruption table": _values(corrupted, "table"),
        "estimators": _values(rows, "estimator"),
        "precision": _values(rows, "precision"),
        **{name: _of_environment(runs, name) for name in _ENVIRONMENT},
        "seconds": _seconds(runs),
    }
    return {name: value for name, value in facts.items() if value}


def _values(rows: Iterable[Row], column: str) -> str:
    return ", ".join(dict.fromkeys(str(row[column]) for row in rows if row[column] != ""))


def _count(rows: Iterable[Row], column: str) -> str:
    names = {row[column] for row in rows}
    return str(len(names)) if names else ""


def _of_environment(runs: Iterable[Run], name: str) -> str:
    found = []
    for value in (run.environment.get(name) for run in runs):
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {each}" for key, each in value.items())
        found.append("" if value is None else str(value))
    return "; ".join(dict.fromkeys(filter(None, found)))


def _seconds(runs: list[Run]) -> str:
    """Seconds of each part of the work, summed over runs."""
    sums: dict[str, float] = {}
    for run in runs:
        seconds = run.job.get("seconds")
        for part, value in seconds.items() if isinstance(seconds, Mapping) else ():
            if isinstance(value, int | float):
                sums[str(part)] = sums.get(str(part), 0.0) + value
    return ", ".join(f"{part} {value:,.0f}" for part, value in sums.items())


def _differing_settings(comparison: Comparison) -> TextTable | None:
    recipes = [flatten(arm.runs[0].recipe) for arm in comparison.arms]
    if len(recipes) < 2 or not all(recipes):
        return None
    names = dict.fromkeys(name for settings in recipes for name in settings)
    lines = [(name, *(_show(settings.get(name)) for settings in recipes)) for name in names]
    rows = [line for line in lines if len(set(line[1:])) > 1 and line[0] not in ("seed", "about")]
    heads = ("setting", *(arm.name for arm in comparison.arms))
    return TextTable(f"{KEY}-settings", "Settings that differ", heads, tuple(rows))


def _show(value: object) -> str:
    return "–" if value is None else str(value)


def _join(words: object) -> str:
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return shlex.join(words)
    return words if isinstance(words, str) else ""


SECTIONS.register(KEY, Section(KEY, "Provenance", 80, make))
