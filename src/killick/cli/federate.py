"""`killick federate`."""

import argparse
import shlex
from dataclasses import fields, replace
from pathlib import Path

from killick.cli.arguments import FOLDER, add_shared, name_folder
from killick.cli.parser import Parser
from killick.cli.train import parse_overrides
from killick.errors import OptionError
from killick.federated.federation_settings import Federation, FederationPlan
from killick.settings import read_options
from killick.training.recipe_files import load_recipe, refuse_unused

HELP = "train with clients that keep their data, and write a report"
USAGE = (
    "killick federate [--method METHOD] [--clients N] [--rounds N] [--data DATA]\n"
    "                        [--engine {inline,flower}] [--SETTING VALUE ...] [options]"
)
EXAMPLES = """\
examples:
  killick federate                                  8 clients with shapes, minutes on two cores
  killick federate --method ditto:strength=0.5 --partition iid
  killick federate --protocol masked --target label       anchored; references stay with clients
  killick federate --recipe cifar10-resnet18 --data pack:cifar10.npz --clients 20 --rounds 50 \\
      --partition dirichlet:p=0.7,alpha=10 --schedule.name constant --batch 64
  killick federate --engine flower                  the same clients, simulated by Flower
  killick federate --engine flower --superlink HOST:PORT --clients 2     real clients

Clients train a generic model together and each a personalized one. What leaves a client are weights
and counts. Settings of the recipe are options too, as in killick train; --local-epochs takes the
place of --epochs, and the schedule runs over rounds. The same command resumes a federation.
"""
RECIPE = "shapes-federated"


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("--recipe", metavar="NAME_OR_FILE", help=f"shipped, or a YAML file ({RECIPE})")
    add("--output", **FOLDER, help="default: federations/, by method, recipe and data")
    add(
        "--engine",
        choices=["inline", "flower"],
        default="inline",
        help="what runs clients (inline)",
    )
    add("--superlink", metavar="HOST:PORT", help="with flower: of real clients; default: simulated")
    add("--certificates", metavar="FILE", type=Path, help="with superlink: its root certificates")
    group = parser.add_argument_group("the federation")
    for each in fields(Federation):
        text = f"{each.metadata['about']} ({each.default})".replace("%", "%%")
        group.add_argument(
            f"--{each.name.replace('_', '-')}",
            dest=f"federation_{each.name}",
            metavar="VALUE",
            help=text,
        )
    add_shared(parser, "--device", "--threads", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run or resume a federation, and write its report."""
    given = parse_overrides(rest)
    name = options.recipe or RECIPE
    if options.superlink is not None and options.engine != "flower":
        raise OptionError("--superlink requires --engine flower.")
    if options.certificates is not None:
        if options.superlink is None:
            raise OptionError("--certificates requires --superlink.")
        if not options.certificates.is_file():
            raise OptionError(f"there is no file {options.certificates}: --certificates.")
    if "epochs" in given:
        raise OptionError("this command takes --local-epochs, not --epochs.")
    overrides = dict(given)
    if options.recipe is None and given.get("data.name", "shapes") != "shapes":
        overrides = {"data.limit": None, **overrides}  # that is of shapes
    recipe = load_recipe(name, overrides)
    refuse_unused(recipe, given)
    chosen = {
        each.name: value
        for each in fields(Federation)
        if (value := getattr(options, f"federation_{each.name}")) is not None
    }
    federation: Federation = read_options(Federation, chosen, "killick federate")
    folder = name_folder(recipe.data.name, Path(name).stem, federation.method, f"seed{recipe.seed}")
    output = (options.output or Path("federations") / folder).absolute()
    from killick.federated.federated_data import FederatedData
    from killick.federated.federation_report import describe_outcome
    from killick.federated.finished_federation import finish
    from killick.federated.server_state import load_state
    from killick.runtime.devices import set_threads

    set_threads(options.threads)
    plan = FederationPlan(recipe, federation, output, options.device, options.threads)
    data = FederatedData(plan)
    data.check()
    dealt = options.superlink is None  # else clients may have data of their own
    if dealt and not options.quiet:
        print(data.class_counts(), flush=True)
    if options.engine == "flower":
        from killick.federated.flower_runner import run_flower

        plan = replace(plan, class_names=data.parts.train.class_names)
        run_flower(plan, options.superlink, certificates=options.certificates, quiet=options.quiet)
    else:
        from killick.federated.server_rounds import federate

        federate(plan, quiet=options.quiet)
    state = load_state(plan)
    if state is None:  # it is on the SuperLink's machine
        return 0
    report = finish(data, state, shlex.join(["killick", *options.words]), dealt=dealt)
    if not options.quiet:
        print(f"{describe_outcome(plan, state.records)}\nThe report is in {report}")
    return 0
