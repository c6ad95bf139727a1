"""`killick play`."""

import argparse
import contextlib
import sys
import threading

from killick.cli.arguments import NUMBER, add_shared, warn
from killick.cli.parser import Parser
from killick.errors import DataError, OptionError

HELP = "open a page to corrupt images and see what models predict"
USAGE = "killick play RUN [RUN ...] [--data DATA] [options]"
EXAMPLES = """\
examples:
  killick play runs/mine                         on test images of the run, or yours
  killick play runs/standard runs/masked         models side by side
  killick play runs/compare                      the first seed of each arm of a comparison
  killick play runs/mine --data images:photos    on the images of a folder

The page is served on this computer alone, and needs no network. Ctrl-C ends it.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a Killick folder or run, or an exported file")
    add(
        "--data", metavar="DATA", help="images to pick from (default: test images of the first run)"
    )
    add("--host", metavar="ADDRESS", default="127.0.0.1", help="to listen on (this computer alone)")
    add("--port", **NUMBER, help="to listen on (default: the first free one from 7860)")
    add_shared(parser, "--root", "--device", "--threads", "--trust", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    from killick.data.data_settings import full_name
    from killick.evaluation.evaluation_data import load_test_for, number_classes
    from killick.evaluation.open_classifier import open_classifier
    from killick.play.play_page import check_address, serving
    from killick.play.playground import Playground, choose_images, find_models
    from killick.runtime.devices import set_threads

    check_address(options.host, options.port)
    set_threads(options.threads)
    opened = tuple(
        open_classifier(place, name=name, device=options.device, trust=options.trust)
        for place, name in find_models(options.runs)
    )
    images, first = None, opened[0]
    try:
        data = options.data and full_name(options.data)
        test = load_test_for(first, data, options.root)
        images = choose_images(number_classes(test, data, first))
    except (DataError, OptionError) as problem:
        if options.data is not None:
            raise
        warn(f"no test images to pick from: {problem}")
    with serving(
        Playground(opened, images),
        options.runs,
        host=options.host,
        port=options.port,
        browser=sys.stdout.isatty(),
    ) as address:
        if not options.quiet:
            print(f"The page is at {address} until Ctrl-C.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0
