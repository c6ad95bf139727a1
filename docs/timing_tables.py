"""Rows of timings in the pages, from the files in `benchmarks/results/`.

    python docs/timing_tables.py        # brings the rows of all pages up to date

A row is `| what | setting | ratio | (noise) | [file](path) |`: the ratio of `what` in that file,
and the 10th and 90th percentile of its baseline against itself. They stand there as text, so that
they are seen wherever the page is read; a test holds them to the files.
"""

import csv
import re
from pathlib import Path

TOP = Path(__file__).parent.parent
PAGES = ("docs/protocols/index.md",)
ROW = re.compile(
    r"^\| (?P<what>[^|]+?) \| (?P<setting>[^|]+?) \| [\d.]+ \| \([^|]+? to [^|]+?\) \|"
    r" (?P<link>\[[^]]+\]\((?P<path>[^)]+)\)) \|$",
    re.MULTILINE,
)


def renew(text: str, folder: Path) -> str:
    """The text of a page in `folder`, with the figures that its files have."""
    return ROW.sub(lambda row: _describe(row, folder), text)


def _describe(row: re.Match[str], folder: Path) -> str:
    what, setting = row["what"], row["setting"]
    with open(folder / row["path"], newline="") as file:
        measured = {
            line["contender"]: line for line in csv.DictReader(file) if line["setting"] == setting
        }
    if what not in measured:
        raise SystemExit(f"expected {what!r} with {setting!r} in {row['path']}, found no such line")
    control = measured[f"{measured[what]['baseline']} (control)"]
    ratio = f"{float(measured[what]['ratio']):.3f}"
    low, high = (f"{float(control[key]):.2f}" for key in ("ratio_p10", "ratio_p90"))
    return f"| {what} | {setting} | {ratio} | ({low} to {high}) | {row['link']} |"


def main() -> None:
    """Bring all pages up to date."""
    for page in PAGES:
        path = TOP / page
        path.write_text(renew(path.read_text(), path.parent))


if __name__ == "__main__":
    main()
