"""What every section of a report is made from."""

from collections.abc import Sequence
from dataclasses import dataclass

from killick.report.comparison import Comparison, make_comparison
from killick.report.figures import Style, choose_styles
from killick.report.run_groups import ArmRuns
from killick.report.statistics import Table, summarize
from killick.results.run_folder import Run
from killick.runtime.devices import one_thread


@dataclass(frozen=True)
class ReportData:
    """A comparison with its numbers, and how its arms are drawn."""

    comparison: Comparison  # all arms
    table: Table  # their numbers
    styles: dict[str, Style]  # by the name of the arm
    main_arm: ArmRuns  # the arm that the headline and the examples set against the baseline
    command: str = ""  # by which all can be repeated; empty if unknown


@one_thread()
def make_report_data(runs: Sequence[Run], baseline: str | None = None) -> ReportData:
    """The runs as arms, with their numbers and styles."""
    comparison = make_comparison(runs, baseline)
    styles = choose_styles(comparison)
    return ReportData(comparison, summarize(comparison), styles, choose_main_arm(comparison))


def choose_main_arm(comparison: Comparison) -> ArmRuns:
    """The first arm masked towards the label; else the first masked one; else the first other one.

    It is never chosen by how well it did. With one arm it is that one.
    """
    others = [arm for arm in comparison.arms if arm is not comparison.baseline]
    return min(
        others,
        key=lambda arm: (
            arm.name != "masked-label",
            arm.target != "label",
            arm.protocol != "masked",
        ),
    )
