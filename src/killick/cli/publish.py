"""`killick publish`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from killick.errors import OptionError

EXAMPLES = """\
examples:
  killick publish runs/mine --output published/mine --licence apache-2.0
  killick publish runs/mine --output published/mine --references synthetic
  killick publish runs/mine --output published/mine --push owner/name --private
  killick publish my-model --output published/mine --rows evaluations/my-model

The folder has config.json, model.safetensors, examples.safetensors, rows.csv and a model card,
README.md, with what was measured of these very weights and references. On the hub,
killick.load("owner/name") reads it, and so does every command that takes a model.

References are usually training images, which whoever has the file can see. --references mean or
synthetic puts others in their place; what was measured before does not hold then. To measure again:
  killick evaluate published/mine --data DATA
  killick publish published/mine --output published/mine --rows evaluations/mine
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command."""
    parser = commands.add_parser(
        name,
        help="a folder for the Hugging Face hub, with a model card",
        description="Write a model as a hub takes it, with a card that says what was measured.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick publish MODEL --output FOLDER [--push OWNER/NAME] [options]",
    )
    add_argument = parser.add_argument
    add_argument("model", metavar="MODEL", help="a Killick folder or run")
    add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="written as a whole; one published before is replaced",
    )
    add_argument(
        "--rows",
        metavar="FILE_OR_RUN",
        type=Path,
        help="what was measured; default: the rows of the run",
    )
    add_argument(
        "--licence", metavar="NAME", help="an identifier that the hub knows, such as apache-2.0"
    )
    images = parser.add_argument_group("references")
    images.add_argument(
        "--references",
        choices=["stored", "mean", "synthetic"],
        default="stored",
        help="those of the model (stored), or ones that show no training image",
    )
    images.add_argument(
        "--data",
        metavar="DATA",
        help="what mean and synthetic ones are made from; default: what the model was trained on",
    )
    sent = parser.add_argument_group("sending")
    sent.add_argument(
        "--push", metavar="OWNER/NAME", help="send it to the Hugging Face hub, once it is written"
    )
    sent.add_argument(
        "--private", action="store_true", help="if that is new there: for its owner alone"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing but errors")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the folder, send it if asked to, and say what travels along."""
    if rest:
        raise OptionError(f"expected options of killick publish, found {' '.join(rest)}.")
    if options.private and options.push is None:
        raise OptionError("expected --push OWNER/NAME with --private, found none.")
    if options.data is not None and options.references == "stored":
        raise OptionError(
            "expected --references mean or synthetic with --data, which they are made from."
        )
    from killick.core.anchored import Anchored
    from killick.deploy.publisher import find_rows, publish
    from killick.deploy.push import check_pushable, push
    from killick.deploy.reference_replacement import describe_cost, replace_by_statistics
    from killick.storage.model_folder import load, note_on_references

    def say(sentence: str) -> None:
        if not options.quiet:
            print(sentence, file=sys.stderr)

    if options.push is not None:
        check_pushable(options.push)
    model = load(options.model)
    rows = find_rows(model, options.model, options.rows)
    cost = None
    had_threshold = model.threshold is not None
    if options.references != "stored":
        cost = replace_by_statistics(model, options.references, options.data, say=say)
    made = publish(model, options.output, rows=rows, licence=options.licence, repo=options.push)
    if not options.quiet:
        print(f"The model and its card are in {made.folder}, with {made.rows:,} rows.")
        if isinstance(model, Anchored):
            print(note_on_references(model))
        if cost is not None:
            print(f"What that costs: {describe_cost(cost)}")
        if not made.rows:
            where = shlex.quote(str(made.folder))
            print(f"The card says: not evaluated. Evaluate it: killick evaluate {where}")
        if had_threshold and model.threshold is None:
            print(
                "Its threshold was fitted with the old references, and is gone. Fit one: killick"
                f" evaluate {shlex.quote(str(made.folder))} --suite clean --store-threshold"
            )
    if options.push is not None:
        where = push(made.folder, options.push, private=options.private)
        if not options.quiet:
            print(f"Sent: {where}")
    return 0
