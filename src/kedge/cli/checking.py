"""`kedge check`."""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedge.errors import OptionError

if TYPE_CHECKING:
    from kedge.data.checking import Checked
    from kedge.training.progress import Display

SHOWN = 10  # of a kind of problem; --list has them all
ABOUT = """\
Read every picture of a data set, and tell which cannot be read, which of the
test set are trained on too, and which are there twice as different classes.
A run stops at the first that it cannot read. To leave out those in a list:
--data imagefolder:PATH#without=FILE. Exit code 1 if any cannot be read.
"""
EXAMPLES = """\
examples:
  kedge check imagefolder:photos                       reads every picture, and tells what is wrong
  kedge check imagefolder:photos --list broken.txt     and writes a list of those to leave out
  kedge check imagefolder:photos#without=broken.txt    nothing else is wrong?
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `kedge` about this command."""
    parser = commands.add_parser(
        name,
        help="read every picture of a data set: what is broken, there twice, or missing",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="kedge check DATA [--list FILE] [options]",
    )
    parser.add_argument("data", metavar="DATA", help="see kedge list data")
    parser.add_argument(
        "--list",
        metavar="FILE",
        type=Path,
        help="write the paths of pictures that cannot be read, to be left out: DATA#without=FILE",
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, help="processes that read; default: one for each core"
    )
    parser.add_argument(
        "--root", metavar="FOLDER", help="where cifar10 and cifar100 are; $KEDGE_DATA or ./data"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing but what is wrong")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Check, tell, and write the list; 1 if something cannot be read."""
    from kedge.data.checking import check_set
    from kedge.data.decoding import WAY_OUT
    from kedge.grid.working import count_cores
    from kedge.training.progress import chosen

    if options.workers is not None and options.workers < 0:
        raise OptionError(f"expected --workers of at least 0, found {options.workers}.")
    workers = count_cores() if options.workers is None else options.workers
    sets = _load(options.data, options.root)
    total, done, found = sum(map(len, sets.values())), 0, {}
    with chosen(None, options.quiet)(f"checking {options.data}", total, 0, "picture") as display:
        for name, images in sets.items():
            tick = partial(_advance, display, done)
            found[name] = check_set(images, workers=workers, tick=tick)
            done += len(images)
    if not options.quiet:
        for name, checked in found.items():
            print(_describe(name, checked))
    broken = [each for checked in found.values() for each in checked.broken]
    problems = [each.problem.removesuffix(WAY_OUT) for each in broken]
    _tell(f"{_count(len(broken))} cannot be read", problems)
    for name, checked in found.items():
        twice = [f"{a} and {b}" for a, b in checked.contradictions()]
        _tell(f"{_count(len(twice))} of {name} are there as another class too", twice)
    if {"train", "test"} <= found.keys():
        both = [f"{a} is {b}" for a, b in found["test"].shared(found["train"])]
        _tell(f"{_count(len(both))} of test are trained on too", both)
    if options.list is not None:
        left = _write(options.list, options.data, list(found.values()))
        if broken and not options.quiet:
            print(f"leave them out: --data '{left}'")
    if not broken and not options.quiet:
        print("every picture can be read")
    return 1 if broken else 0


def _advance(display: "Display", done: int, count: int) -> None:
    display.tick(done + count)


def _load(name: str, root: str | None) -> dict[str, Any]:
    from kedge.data.sources import load_sets, load_whole

    if name.startswith("pictures:"):
        return {"pictures": load_whole(name)}
    sets = load_sets(name, root=root)
    found = {"train": sets.train, "test": sets.test}
    return {kind: images for kind, images in found.items() if images is not None}


def _describe(name: str, checked: "Checked") -> str:
    """In a line, what is in a set."""
    images, counts = checked.images, checked.by_class
    told = f"{name}: {_count(len(images))}"
    if images.class_names != ("unknown",):
        least, most = min(counts.values()), max(counts.values())
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        told += f" of {images.classes:,} classes, {each} of each"
        rare = [kind for kind, count in counts.items() if count == 0]
        told += f" (none of {', '.join(map(repr, rare[:5]))})" if rare else ""
    if checked.sizes:
        heights, widths = zip(*checked.sizes, strict=True)
        smallest, largest = (f"{pick(heights)} x {pick(widths)}" for pick in (min, max))
        told += f"; {smallest}" if smallest == largest else f"; {smallest} to {largest}"
        told += " pixels (height x width)"
    return told


def _count(count: int) -> str:
    return "1 picture" if count == 1 else f"{count:,} pictures"


def _tell(title: str, lines: list[str]) -> None:
    if lines:
        print("\n  ".join([f"{title}:", *lines[:SHOWN]]))
        if len(lines) > SHOWN:
            print(f"  and {len(lines) - SHOWN:,} more")


def _write(path: Path, data: str, found: "list[Checked]") -> str:
    """Write the list, with what `data` leaves out already; the name of what is left then."""
    from kedge.data.folders import WITHOUT, split_off
    from kedge.files import write_bytes_whole

    if not all(hasattr(checked.images.source, "path") for checked in found):
        raise OptionError(f"expected a folder of pictures for --list, found {data}.")
    whole, marked, _ = data.partition(WITHOUT)
    before = split_off(data.partition(":")[2])[1].listed if marked else frozenset()
    broken = (each.where for checked in found for each in checked.broken)
    write_bytes_whole(
        path, b"".join(os.fsencode(where) + b"\n" for where in (*sorted(before), *broken))
    )
    return f"{whole}{WITHOUT}{path}"
