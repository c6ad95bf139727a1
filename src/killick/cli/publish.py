"""`killick publish`."""

import argparse
import shlex
from pathlib import Path

from killick.cli.arguments import FLAG, FOLDER, REFERENCE_KINDS, add_shared
from killick.cli.parser import Parser
from killick.errors import OptionError

HELP = "write a folder for the Hugging Face hub, with a model card"
USAGE = "killick publish MODEL --output FOLDER [--push OWNER/NAME] [options]"
EXAMPLES = """\
examples:
  killick publish runs/mine --output published/mine --license apache-2.0
  killick publish runs/mine --output published/mine --reference-kind synthetic
  killick publish runs/mine --output published/mine --push owner/name --private
  killick publish my-model --output published/mine --rows evaluations/my-model
  killick publish runs/mine --output space --space    a page to play with, for Hugging Face Spaces

The folder has the model, its rows and a card, README.md. killick.load("owner/name") and every
command that takes a model can read it from the hub.

References are usually training images, and everyone who has the file can see them. --reference-kind
mean or synthetic replaces them; earlier results no longer apply. To evaluate again:
  killick evaluate published/mine --data DATA
  killick publish published/mine --output published/mine --rows evaluations/mine
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a Killick folder or run")
    add(
        "--output",
        **FOLDER,
        required=True,
        help="for the published files; an earlier version is replaced",
    )
    add("--rows", metavar="FILE_OR_RUN", type=Path, help="results (default: the rows of the run)")
    add("--license", "--licence", metavar="NAME", help="as the hub names it, such as apache-2.0")
    add("--reference-kind", **REFERENCE_KINDS)
    add("--data", metavar="DATA", help="to make references from (default: the training data)")
    add("--space", **FLAG, help="write a folder that runs as a Hugging Face Space, with the model")
    add("--push", metavar="OWNER/NAME", help="upload the folder to the Hugging Face hub")
    add("--private", **FLAG, help="with --push: a new repository is private")
    add_shared(parser, "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the folder, and upload it with --push."""
    if options.private and options.push is None:
        raise OptionError("--private requires --push OWNER/NAME.")
    if options.space and options.push is not None:
        raise OptionError(
            "--push uploads models alone. Upload the folder of --space with: hf upload OWNER/NAME"
            " FOLDER --repo-type space."
        )
    if options.data is not None and options.reference_kind == "stored":
        raise OptionError("--data requires --reference-kind mean or synthetic.")
    from killick.deploy.parity import format_agreement
    from killick.deploy.private_references import replace_and_measure
    from killick.deploy.publisher import find_rows, publish, push
    from killick.evaluation.open_classifier import name_model
    from killick.runtime.hub import import_client
    from killick.storage.loading import load
    from killick.storage.saving import note_on_references

    def say(sentence: str) -> None:
        if not options.quiet:
            print(sentence)

    if options.push is not None:
        import_client(f"pushing to {options.push}")
    model = load(options.model)
    rows = find_rows(model, options.model, options.rows)
    cost, had_threshold = None, model.threshold is not None
    if options.reference_kind != "stored":
        cost = replace_and_measure(model, options.reference_kind, options.data, say)
    if options.space:
        from killick.play.space_folder import write_space

        name = name_model(options.model)
        made = write_space(model, options.output, name, rows=rows, license=options.license)
        say(f"The Space is in {made.folder}. Run it: python {shlex.quote(str(made.folder))}/app.py")
        place = made.folder / "models" / name
    else:
        made = publish(model, options.output, rows=rows, license=options.license, repo=options.push)
        say(f"The model and its card are in {made.folder}, with {made.rows:,} rows.")
        place = made.folder
    evaluate = f"killick evaluate {shlex.quote(str(place))}"
    if made.left_out:
        say(f"{made.left_out:,} rows of other weights or references were left out.")
    say(note_on_references(model))
    if cost is not None:
        say(f"With them {format_agreement(cost)} with its old references.")
    if not made.rows:
        say(f"The card says: not evaluated. Evaluate it: {evaluate}")
    if had_threshold and model.threshold is None:
        say(
            "Its threshold was fitted with the old references, and is gone. Fit one:"
            f" {evaluate} --suite clean --store-threshold"
        )
    if options.push is not None:
        say(f"Sent: {push(made.folder, options.push, private=options.private)}")
    return 0
