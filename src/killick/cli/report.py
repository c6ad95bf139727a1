"""`killick report`."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from killick.cli.arguments import add_shared, warn
from killick.cli.parser import Parser
from killick.errors import OptionError

HELP = "write one HTML page about evaluated runs, side by side"
USAGE = "killick report RUNS [RUNS ...] [--output FOLDER_OR_FILE] [--baseline ARM] [options]"
EXAMPLES = """\
examples:
  killick report runs/compare                            all runs in a folder, side by side
  killick report runs/plain runs/masked --output pages/  some runs; pages/report.html
  killick report runs/mine                               one run: runs/mine/report.html
  killick report elsewhere/rows.csv runs/mine --baseline standard --title "Two machines"

Runs that differ only in the seed are one arm. A rows.csv alone gives tables and differences;
histograms, reliability diagrams and example images need the predictions in the run folder. Figures
and their numbers are written beside the page, as SVG and CSV files.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUNS",
        help="run folders, files of rows, or folders that hold run folders",
    )
    add(
        "--output",
        type=Path,
        metavar="FOLDER_OR_FILE",
        help="a folder, or a file NAME.html (default: the folder given, or report/ for several)",
    )
    add(
        "--baseline",
        metavar="ARM",
        help="the arm that others are compared with (default: standard training)",
    )
    add("--title", metavar="TEXT", help="of the page")
    add_shared(parser, "--logger", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the report, and print its path."""
    from killick.report.report_data import make_report_data
    from killick.report.writer import write_report
    from killick.results.run_folder import find_runs

    place, *others = options.runs
    output = options.output or (place if place.is_dir() and not others else Path("report"))
    if options.output is None and (output / "study.json").exists():
        raise OptionError(
            f"{output} holds the report of a study. Write this one elsewhere: --output FOLDER."
        )
    runs, failed = find_runs(options.runs), tuple(_find_unfinished(options.runs))
    data = make_report_data(runs, options.baseline)
    page = write_report(runs, output, title=options.title, failed=failed, data=data)
    for line in data.comparison.notes:
        warn(line)
    if options.logger:
        from killick.training.loggers import send_results

        send_results(page.parent, options.logger, file=page, tell=warn)
    if not options.quiet:
        print(f"The report is in {page}, its figures and tables beside it.")
    return 0


def _find_unfinished(places: Iterable[Path]) -> Iterable[str]:
    """A line for each job of a comparison that has no results."""
    from killick.results.run_folder import read_job

    for place in places:
        for folder in sorted(file.parent for file in place.glob("*/job.json")):
            if any((folder / name).exists() for name in ("rows.jsonl", "rows.csv")):
                continue
            job, problem = read_job(folder), folder / "problem.txt"
            name = f"{job.get('arm', folder.name)}, seed {job.get('seed', '?')},"
            if problem.exists():
                lines = problem.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                yield f"{name} failed: {lines[-1] if lines else ''}"
            else:
                yield f"{name} has no results yet ({folder})."
