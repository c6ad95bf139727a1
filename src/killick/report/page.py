"""The page: one HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from killick import __version__
from killick.report.conditions import OOD, SHIFT, SINGLE, SYNTHETIC_OOD
from killick.report.figures import COLORS, dark_rules, to_page, variables
from killick.report.formatting import count_words, data_uri
from killick.report.report_data import ReportData
from killick.report.sections import ENVIRONMENT, Content, Section
from killick.report.statistics import mean_title
from killick.report.summary_metrics import SummaryMetric, summary_metrics

_FIRST = (
    *("clean_top1", "corrupted_top1", "severity5_top1", "cbar_top1", "shift_top1"),
    *("clean_smooth_ece", "corrupted_smooth_ece", "shift_smooth_ece"),
    *("ood_auroc", "synthetic_ood_auroc"),
)
_MEANS = {
    "corruptions": "corrupted",
    "cbar": "C-bar",
    SHIFT: "shifted",
    OOD: "OOD",
    SYNTHETIC_OOD: "synthetic OOD",
}
_HERE = Path(__file__).parent


def choose_columns(data: ReportData) -> dict[str, list[SummaryMetric]]:
    """The columns of the tables of arms: the main ones, then those that are folded."""
    keys = {key for line in data.table.values() for key in line}
    metrics = [metric for metric in summary_metrics() if metric.key in keys]
    single = [metric for metric in metrics if metric.inference == SINGLE]
    given = any(metric.key == "ood_auroc" for metric in single)
    first = _FIRST[:-1] if given else _FIRST  # synthetic OOD sets stand apart from given ones
    tables = {
        "": sorted((m for m in single if m.key in first), key=lambda m: first.index(m.key)),
        "More metrics": [metric for metric in single if metric.key not in first],
        "Mean over references": [metric for metric in metrics if metric not in single],
    }
    return {title: columns for title, columns in tables.items() if columns}


def best_means(data: ReportData) -> dict[str, float]:
    """The best mean of each metric that several arms have."""
    found = {}
    for metric in summary_metrics():
        means = [line[metric.key].mean for line in data.table.values() if metric.key in line]
        if len(means) > 1 and metric.metric.direction:
            found[metric.key] = max(means) if metric.higher_is_better else min(means)
    return found


def render_page(
    data: ReportData,
    *,
    title: str,
    headline: Sequence[str],
    before: Sequence[tuple[Section, Content]],
    sections: Sequence[tuple[Section, Content]],
    failed: Sequence[str] = (),
) -> str:
    """The HTML of the whole report; sections `before` come before the table of arms."""
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    style = style.replace("/* LIGHT */", variables(0)).replace("/* DARK */", variables(1))
    comparison = data.comparison
    seeds = max(len(arm.runs) for arm in comparison.arms)
    counts = f"{count_words(len(comparison.arms), 'arm')}, {count_words(seeds, 'seed')}"
    gaps = [each.difference for line in data.table.values() for each in line.values()]
    return ENVIRONMENT.get_template("page.html").render(
        title=title,
        about=f"{comparison.data}, {counts}",
        headline=headline,
        failed=failed,
        comparison=comparison,
        table=data.table,
        tables=choose_columns(data),
        best=best_means(data),
        methods=dict.fromkeys(gap.method for gap in gaps if gap is not None),
        means=[
            f"{word}: {mean}"
            for suite, word in _MEANS.items()
            if (mean := mean_title(comparison, suite))
        ],
        styles=data.styles,
        before=before,
        sections=sections,
        style=Markup(style),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        colors={role: pair[0] for role, pair in COLORS.items()},
        dark_rules=dark_rules(),
        version=__version__,
        to_page=lambda svg: Markup(to_page(svg)),
        to_uri=lambda text: data_uri("text/csv;charset=utf-8", text.encode()),
        tidy=_tidy,
    )


def _tidy(text: str) -> str:
    """Keeps numbers and their units on one line."""
    return text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
