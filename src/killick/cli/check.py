"""`killick check`."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from killick.cli.arguments import NUMBER, add_shared
from killick.cli.parser import Parser
from killick.errors import OptionError

if TYPE_CHECKING:
    from killick.data.integrity import Checked

HEAD = b"# Images that killick check could not read.\n"
SHOWN = 10  # of a kind of problem; --list has them all
HELP = "find unreadable and duplicate images of a data set"
USAGE = "killick check DATA [--list FILE] [options]"
EXAMPLES = """\
examples:
  killick check imagefolder:photos                      read every image, list the problems
  killick check imagefolder:photos --list broken.txt    also write the unreadable ones to a file
  killick check imagefolder:photos#without=broken.txt   check again without them

A training run stops at the first image it cannot read. The list leaves such images out:
--data imagefolder:PATH#without=FILE. Exit code 1 if some cannot be read or are in
several classes, or if there is only one class to train on.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("data", metavar="DATA", help="see killick list data")
    add("--list", metavar="FILE", type=Path, help="write the paths of unreadable images")
    add("--workers", **NUMBER, help="processes that read (default: one per core)")
    add_shared(parser, "--root", "--download", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Check, write the list, and print the problems.

    The exit code is 1 if it cannot be trained on as it is.
    """
    from killick.data.decoding import printable
    from killick.data.integrity import check_set
    from killick.data.sources import load_sets
    from killick.data.sources.imagefolder import WITHOUT
    from killick.runtime.processes import count_cores
    from killick.runtime.progress import choose_display

    workers = count_cores() if options.workers is None else options.workers
    loaded = load_sets(options.data, root=options.root, download=options.download)
    both = {"train": loaded.train, "test": loaded.test}
    sets = {name: images for name, images in both.items() if images is not None}
    if options.list is not None:
        if any(images.paths() is None for images in sets.values()):
            raise OptionError(f"--list requires a folder of images, not {options.data}.")
        _check_list(options.list)
    found, display = {}, choose_display(None, options.quiet)
    for name, images in sets.items():
        with display(f"checking {name}", len(images), 0, "image") as progress:
            found[name] = check_set(images, workers=workers, tick=progress.advance)
    broken = [each for checked in found.values() for each in checked.broken]
    if options.list is not None:
        _write_list(options.list, options.data, broken)  # before anything else can go wrong
    lines = list(_describe_problems(found, broken))
    if not options.quiet:
        lines = [*(_describe(name, checked) for name, checked in found.items()), *lines]
        lines += [] if broken else ["every image can be read"]
        if broken and options.list is not None:
            folder = options.data.partition(WITHOUT)[0]
            lines.append(f"leave them out: '{folder}{WITHOUT}{options.list}'")
    for line in lines:
        print(printable(line))  # whatever files are called
    twice = any(checked.contradictions() for checked in found.values())
    return 1 if broken or twice or _has_one_class(found) else 0


def _has_one_class(found: "dict[str, Checked]") -> bool:
    return "train" in found and len(found["train"].images.class_names) == 1


def _check_list(given: Path) -> None:
    """Refuse to overwrite anything but a list, before all images are read."""
    place = given.expanduser().resolve()
    if not place.parent.is_dir():
        raise OptionError(f"--list {given}: no such folder: {place.parent}.")
    if place.exists() and not (place.is_file() and place.read_bytes().startswith(HEAD)):
        raise OptionError(f"--list {given} exists and is not a list. Choose another name.")


def _write_list(given: Path, data: str, broken: list[tuple[str, str]]) -> None:
    """Write the list, with what `data` leaves out already."""
    from killick.data.sources.imagefolder import WITHOUT, read_list
    from killick.runtime.atomic_files import write_atomic

    folder, marked, file = data.partition(":")[2].partition(WITHOUT)
    before = sorted(read_list(folder, file)) if marked else []
    lines = [os.fsencode(name) + b"\n" for name in (*before, *(name for name, _ in broken))]
    write_atomic(given.expanduser().resolve(), HEAD + b"".join(lines))


def _describe(name: str, checked: "Checked") -> str:
    """Counts and sizes of a set, in a line."""
    images = checked.images
    text = f"{name}: {len(images):,} images"
    if images.class_names != ("unknown",):
        counts = images.labels.bincount(minlength=images.classes).tolist()
        text += f" of {images.classes:,} classes, {min(counts):,} to {max(counts):,} each"
    if checked.sizes:
        heights, widths = zip(*checked.sizes, strict=True)
        text += f"; {min(heights):,} to {max(heights):,} pixels high"
        text += f", {min(widths):,} to {max(widths):,} wide"
    return text


def _describe_problems(found: "dict[str, Checked]", broken: list[tuple[str, str]]) -> Iterator[str]:
    from killick.data.decoding import WAY_OUT

    problems = [why.removesuffix(WAY_OUT) for _, why in broken]
    yield from _list_some("cannot be read", problems)
    if _has_one_class(found):
        yield "train has only one class, and training needs 2"
    for name, checked in found.items():
        twice = [f"{a} and {b}" for a, b in checked.contradictions()]
        yield from _list_some(f"in {name} as different classes", twice)
    if {"train", "test"} <= found.keys():
        both = [f"{a} is {b}" for a, b in found["test"].shared(found["train"])]
        yield from _list_some("in both test and train", both)


def _list_some(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"{title}, {len(lines):,}:"
        yield from (f"  {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"  and {len(lines) - SHOWN:,} more"
