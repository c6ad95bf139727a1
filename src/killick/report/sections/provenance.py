"""Where the numbers come from: data, versions, machines, settings, and how to get them again."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

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
    arms = data.comparison.arms
    runs = [run for arm in arms for run in arm.runs]
    newest = sorted(runs, key=lambda run: str(run.environment.get("started", "")), reverse=True)
    together = next(filter(None, (_command(run.job) for run in newest)), "")
    # Runs of a comparison were started by its workers; its own command repeats them.
    single = [f"# {run.name}\n{_command(run.environment)}" for run in runs if not run.job]
    files = [("Commands of single runs", "\n".join(single))] if single else []
    files += [
        (f"Recipe of {arm.name}", yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
        for arm in arms
        if (recipe := arm.runs[0].recipe)
    ]
    facts = find_facts(data.comparison).items()
    html = render(_TEMPLATE, facts=facts, command=data.command or together, files=files)
    return Content(tables=_differing_settings(data.comparison), html=html)


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
        "corruptions": str(len({row["corruption"] for row in corrupted}) or ""),
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


def _of_environment(runs: Iterable[Run], name: str) -> str:
    found = []
    for value in (run.environment.get(name, "") for run in runs):
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {each}" for key, each in value.items())
        found.append(str(value))
    return "; ".join(dict.fromkeys(filter(None, found)))


def _seconds(runs: list[Run]) -> str:
    """Seconds of each part of the work, summed over runs."""
    sums: Counter[str] = Counter()
    for run in runs:
        sums.update(run.job.get("seconds") or {})
    return ", ".join(f"{part} {value:,.0f}" for part, value in sums.items())


def _differing_settings(comparison: Comparison) -> tuple[TextTable, ...]:
    recipes = [flatten(arm.runs[0].recipe) for arm in comparison.arms]
    if len(recipes) < 2 or not all(recipes):
        return ()
    names = dict.fromkeys(name for settings in recipes for name in settings)
    lines = [(name, *(str(settings.get(name)) for settings in recipes)) for name in names]
    rows = [
        tuple("–" if cell == "None" else cell for cell in line)
        for line in lines
        if len(set(line[1:])) > 1 and line[0] not in ("seed", "about")
    ]
    heads = ("setting", *(arm.name for arm in comparison.arms))
    return (TextTable(f"{KEY}-settings", "Settings that differ", heads, tuple(rows)),)


def _command(about: Mapping[str, Any]) -> str:
    command = about.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


SECTIONS.register(KEY, Section(KEY, "Provenance", 80, make))
