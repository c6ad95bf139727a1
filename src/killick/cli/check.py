"""`killick check`."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from killick.cli.arguments import add_shared
from killick.errors import OptionError

if TYPE_CHECKING:
    from killick.data.integrity import Broken, Checked
    from killick.runtime.progress import Display

HEAD = b"# Pictures that killick check could not read.\n"
SHOWN = 10  # of a kind of problem; --list has them all
EXAMPLES = """\
examples:
  killick check imagefolder:photos                      read every image, list the problems
  killick check imagefolder:photos --list broken.txt    also write the unreadable ones to a file
  killick check imagefolder:photos#without=broken.txt   check again without them

A training run stops at the first image it cannot read. The list leaves such images out:
--data imagefolder:PATH#without=FILE. Exit code 1 if some cannot be read.
"""


def add(commands: Any, name: str) -> None:
    """Add this command to the parser of `killick`."""
    parser = commands.add_parser(
        name,
        help="find unreadable and duplicate images of a data set",
        description="Read every image of a data set, and list those that cannot be read, test images"
        " that\nare also in the training set, and duplicates with different labels.",
        epilog=EXAMPLES,
        usage="killick check DATA [--list FILE] [options]",
    )
    parser.add_argument("data", metavar="DATA", help="see killick list data")
    parser.add_argument(
        "--list", metavar="FILE", type=Path, help="write the paths of unreadable images"
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, help="processes that read (default: one per core)"
    )
    add_shared(parser, "--root", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Check, write the list, and tell; 1 if something cannot be read."""
    from killick.data.integrity import check_set
    from killick.experiments.scheduler import count_cores
    from killick.runtime.progress import choose_display

    if options.workers is not None and options.workers < 0:
        raise OptionError(f"expected --workers of at least 0, found {options.workers}.")
    workers = count_cores() if options.workers is None else options.workers
    sets = _load(options.data, options.root)
    place = None if options.list is None else _find_place(options.list, options.data, sets)
    total, done, found = sum(map(len, sets.values())), 0, {}
    with choose_display(None, options.quiet)(
        f"checking {options.data}", total, 0, "picture"
    ) as display:
        for name, images in sets.items():
            tick = partial(_advance, display, done)
            found[name] = check_set(images, workers=workers, tick=tick)
            done += len(images)
    broken = [each for checked in found.values() for each in checked.broken]
    if place is not None:
        _write(place, options.data, broken)  # before anything else can go wrong
    _show(found, broken, options)
    return 1 if broken else 0


def _show(found: "dict[str, Checked]", broken: "list[Broken]", options: argparse.Namespace) -> None:
    """What is there, and what is wrong with it."""
    from killick.data.decoding import WAY_OUT
    from killick.data.sources.imagefolder import WITHOUT

    if not options.quiet:
        for name, checked in found.items():
            _say(_describe(name, checked))
    problems = [each.problem.removesuffix(WAY_OUT) for each in broken]
    _tell(f"{_count(len(broken))} cannot be read", problems)
    for name, checked in found.items():
        twice = [f"{a} and {b}" for a, b in checked.contradictions()]
        _tell(f"in {name} as different classes, {_count(len(twice))}", twice)
    if {"train", "test"} <= found.keys():
        both = [
            f"{a} is {b}" + ("" if same else ", which is of another class")
            for a, b, same in found["test"].shared(found["train"])
        ]
        _tell(f"in test and trained on too, {_count(len(both))}", both)
    if options.quiet:
        return
    if broken and options.list is not None:
        _say(f"leave them out: '{options.data.partition(WITHOUT)[0]}{WITHOUT}{options.list}'")
    elif not broken:
        _say("every picture can be read")


def _find_place(given: Path, data: str, sets: dict[str, Any]) -> Path:
    """Where the list goes; never over something else, and known before all is read."""
    from killick.data.sources.imagefolder import WITHOUT

    if not all(hasattr(images.source, "path") for images in sets.values()):
        raise OptionError(f"expected a folder of pictures for --list, found {data}.")
    place = Path(os.path.realpath(os.path.expanduser(given)))
    if not str(given).strip() or str(given) == ".":
        raise OptionError("expected a file for --list, found none between the quotes.")
    if not place.parent.is_dir():
        raise OptionError(f"expected --list in a folder that is there, found no {place.parent}.")
    if not place.exists():
        return place
    if not place.is_file() or _read_head(place) != HEAD:
        grows = " Those of it are kept in the new one." if WITHOUT in data else ""
        raise OptionError(
            f"expected --list to be new, or a list that killick check wrote, found something else at"
            f" {given}. Choose another name.{grows}"
        )
    return place


def _read_head(file: Path) -> bytes:
    try:
        with open(file, "rb") as stream:
            return stream.read(len(HEAD))
    except OSError:
        return b""


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _advance(display: "Display", done: int, count: int) -> None:
    display.advance(done + count)


def _load(name: str, root: str | None) -> dict[str, Any]:
    from killick.data.sources import load_sets

    sets = load_sets(name, root=root, decoded=False)
    found = {"train": sets.train, "test": sets.test}
    return {kind: images for kind, images in found.items() if images is not None}


def _describe(name: str, checked: "Checked") -> str:
    """In a line, what is in a set."""
    images, counts = checked.images, checked.by_class
    told = f"{name}: {_count(len(images))}"
    if images.class_names != ("unknown",):
        least, most = min(counts.values()), max(counts.values())
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        classes = "1 class" if images.classes == 1 else f"{images.classes:,} classes"
        told += f" of {classes}, {each} of each"
        rare = [kind for kind, count in counts.items() if count == 0]
        told += f" (none of {', '.join(map(repr, rare[:5]))})" if rare else ""
    if checked.sizes:
        heights, widths = zip(*checked.sizes, strict=True)
        told += f"; {_range(heights)} pixels high, {_range(widths)} wide"
    return told


def _count(count: int) -> str:
    return "1 picture" if count == 1 else f"{count:,} pictures"


def _tell(title: str, lines: list[str]) -> None:
    if lines:
        _say(f"{title}:")
        for line in lines[:SHOWN]:
            _say(f"  {line}")
        if len(lines) > SHOWN:
            _say(f"  and {len(lines) - SHOWN:,} more")


def _say(line: str) -> None:
    """A line that any terminal takes, whatever files are called."""
    from killick.data.decoding import printable

    encoding = sys.stdout.encoding or "utf-8"
    print(printable(line).encode(encoding, "backslashreplace").decode(encoding))


def _write(place: Path, data: str, broken: "list[Broken]") -> None:
    """Write the list, with what `data` leaves out already."""
    from killick.data.sources.imagefolder import WITHOUT, split_off
    from killick.runtime.atomic_files import write_atomic

    before = split_off(data.partition(":")[2])[1].listed if WITHOUT in data else frozenset()
    names = [os.fsencode(name) for name in (*sorted(before), *(each.where for each in broken))]
    odd = [name for name in names if b"\n" in name or name.endswith(b"\r")]
    lines = [name for name in names if name not in odd]
    write_atomic(place, HEAD + b"".join(line + b"\n" for line in lines))
    _tell(
        f"not in the list, for their names: rename {_count(len(odd))}", list(map(os.fsdecode, odd))
    )
