"""`killick predict`."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from killick.cli.arguments import FLAG, NUMBER, add_shared
from killick.cli.network_options import MODELS, add_network, read_network
from killick.cli.parser import Parser
from killick.errors import OptionError

if TYPE_CHECKING:
    from killick.deploy.image_paths import InputImage
    from killick.deploy.prediction_records import Record

FORMATS = ("table", "json", "csv")
ONLY = ("in", "out", "broken")
HELP = "label images, with confidence, uncertainty and OOD detection"
USAGE = "killick predict MODEL IMAGES ... [options]"
EXAMPLES = """\
examples:
  killick predict runs/mine photo.jpg
  killick predict runs/mine photos/ 'more/**/*.png' --output labels.csv
  killick predict timm:resnet50 photo.jpg --pretrained
  killick predict runs/mine photos/ --only out          only out-of-distribution images
  find . -name '*.jpg' -print0 | killick predict runs/mine - -0 --references 5

fields of each image:
  image            its path
  label, index     the predicted class, by name and by number
  confidence       its probability
  uncertainty      entropy of the probabilities, relative to a uniform guess: 0 to 1
  energy           higher is more out-of-distribution
  std              of the label's probability over references, with --references 2 or more
  in_distribution  whether the energy is below the threshold stored with the model; to store one:
                   killick evaluate MODEL --store-threshold --ood NAME=DATA
  fitted_on        what that threshold was fitted on
  refused          the share that it refuses of each OOD set that was given then
  error            why an image could not be read; the others go on, and the exit code is 1
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help=f"{MODELS}; or an exported file")
    add(
        "images",
        metavar="IMAGES",
        nargs="+",
        help="files; folders, for all images below; patterns in quotes; - for a list on stdin",
    )
    add("-0", "--null", **FLAG, help="the list on stdin is NUL-separated")
    add("--references", **NUMBER, help="of an anchored model, to average over (1)")
    add("--batch", "--batch-size", **NUMBER, help="images of a forward pass")
    add("--workers", **NUMBER, help="threads that read images")
    add_shared(parser, "--device", "--threads", "--trust", "--quiet")
    add_network(parser.add_argument_group("a network by name"))
    add = parser.add_argument_group("output").add_argument
    add("--format", choices=FORMATS, help="default: as --output ends; a table on a terminal; json")
    add("--output", metavar="FILE", type=Path, help="write to this file")
    add("--top", **NUMBER, default=0, help="the N most likely classes")
    add("--probabilities", **FLAG, help="those of all classes, in order")
    add("--only", choices=ONLY, help="in or out of distribution, or unreadable images")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Label the images; 1 if some could not be read."""
    from rich.console import Console

    from killick.deploy import prediction_writers as writers
    from killick.deploy.batch_prediction import explain_missing_threshold, predict_batches
    from killick.evaluation.open_classifier import open_classifier
    from killick.nets.custom import is_network_name
    from killick.runtime.devices import set_threads
    from killick.runtime.progress import TerminalDisplay

    on_terminal = options.output is None and sys.stdout.isatty()
    form = writers.choose_format(options.format, options.output, on_terminal)
    if options.probabilities and form == "table":
        raise OptionError("--probabilities requires --format json or csv; a table takes --top 3.")
    images, total = _find(options)
    set_threads(options.threads)
    classifier = open_classifier(
        options.model,
        references=options.references,
        device=options.device,
        trust=options.trust,
        **read_network(options),
    )
    batches = predict_batches(
        classifier,
        images,
        batch=options.batch,
        workers=options.workers,
        top=options.top,
        probabilities=options.probabilities,
    )
    advice = ""
    if classifier.threshold is None:
        advice = explain_missing_threshold(classifier, options.model)
        if options.only in ("in", "out"):
            raise OptionError(f"--only {options.only} requires a stored threshold: {advice}")
    writing = writers.JsonLines()
    if form == "csv":
        writing = writers.Csv(classifier, options.top, options.probabilities)
    elif form == "table":
        writing = writers.Table(classifier, options.top)
    counts = writers.RecordCounts(classifier.threshold)
    display = TerminalDisplay(
        "killick: predicting",
        total,
        console=Console(stderr=True, highlight=False),
        unit="image",
        seconds_between_lines=10,
        delay=1,
    )
    # On a terminal the lines of a table give the errors already.
    silent = on_terminal and form == "table" and options.only is None
    with writers.open_output(options.output) as write, display, contextlib.closing(batches):
        if is_network_name(options.model) and not options.quiet:
            display.message(f"killick: {classifier.describe_view()}")
        if advice and not options.quiet:
            display.message(f"killick: {advice}")
        text = writing.head
        for records in batches:
            counts.add(records)
            for error in (record.error for record in records if record.error and not silent):
                display.message(f"killick: {error}")
            text += writing.lines([each for each in records if _is_wanted(each, options.only)])
            _write_undisturbed(write, text)
            text = ""
            if not (options.quiet or on_terminal):
                display.update(counts.images, counts.speed)
        if form == "table":
            write(f"{counts.describe()}\n")
    if form != "table" and not options.quiet:
        display.message(f"killick: {counts.describe()}")
    return 1 if counts.broken else 0


def _find(options: argparse.Namespace) -> tuple[Iterable["InputImage"], int | None]:
    """The images, and how many, unless they are still to come on stdin."""
    from killick.deploy.image_paths import find_images, read_list, require_images

    if "-" in options.images:
        listed = read_list(sys.stdin.fileno(), null=options.null)
        return require_images(find_images(options.images, listed)), None
    found = list(require_images(find_images(options.images)))
    return found, len(found)


def _write_undisturbed(write: Callable[[str], None], text: str) -> None:
    """Write to the end of the last line, also when Ctrl-C comes in the middle of it."""
    from killick.runtime.signals import Interrupts

    with Interrupts() as interrupts:
        write(text)
    if interrupts.asked:
        raise KeyboardInterrupt


def _is_wanted(record: "Record", only: str | None) -> bool:
    if only == "broken":
        return record.error is not None
    return only is None or record.in_distribution is (only == "in")
