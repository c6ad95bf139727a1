"""`killick compare`."""

import argparse
from pathlib import Path
from typing import Any

from killick.cli.arguments import read_names, read_numbers
from killick.cli.job_options import (
    add_evaluation,
    add_execution,
    print_outcome,
    read_evaluation,
    read_execution,
    show_jobs,
)
from killick.errors import OptionError

EXAMPLES = """\
examples:
  killick compare                                           five arms on embedded shapes, minutes
  killick compare --seeds 0,1,2,3,4 --epochs 60             more of it; finished jobs are used again
  killick compare --recipe cifar10-resnet18 --data pack:cifar10.npz --arm standard \\
      --arm masked-label --arm strong:protocol=masked,target=label,alpha=0.5 --seeds 0,1,2 --jobs 3
  killick compare --recipe finetune --data imagefolder:images \\
      --arm plain:from=net,protocol=standard --arm tuned:from=net,protocol=masked,target=label
  killick compare --engine ray --cpus 4 --gpus 0.5 --output /shared/comparison
  killick compare --part $SLURM_ARRAY_TASK_ID/8 --output /shared/comparison

arms:
  standard, anchored, masked-uniform, masked-label   the protocols, from fresh weights
  finetuned           half of the epochs standard, then anchored exactly, masked towards the label
  NAME:key=value,...  a new arm, or a built-in one changed. A key is a setting of a recipe (killick
                      train --help) or a short name (protocol, target, alpha, lr, ...), and also
                      from=FOLDER_OR_FILE  a trained network to start from, as killick train --from
                      first=SHARE          of the epochs, trained as a standard network first
All arms share recipe, budget, data order and first weights, where their shapes allow.

Every arm with a seed is a job with a run folder of its own. A finished job is never run again, an
interrupted one is resumed by the same command, and one that fails is reported while others go on.
Exit code 1 if some failed.
"""


def add(commands: Any, name: str) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        name,
        help="train and evaluate protocols side by side, and write a report",
        description="Train protocols side by side, evaluate them, and write a page about it.",
        epilog=EXAMPLES,
        usage="killick compare [--recipe NAME_OR_FILE] [--data DATA] [--arm ARM ...] [--seeds 0,1]\n"
        "                     [--output FOLDER] [--SETTING VALUE ...] [options]",
    )
    add_argument = parser.add_argument
    add_argument(
        "--recipe",
        metavar="NAME_OR_FILE",
        help="a shipped recipe or a YAML file (shapes-compare); its settings are options too, as in"
        " killick train: --epochs 60",
    )
    add_argument(
        "--arm",
        metavar="NAME[:key=value,...]",
        action="append",
        default=[],
        help="what to compare, again for each; default: the five below",
    )
    add_argument("--seeds", metavar="0,1,...", type=read_names, help="of each arm (0,1)")
    add_argument(
        "--baseline", metavar="ARM", help="what others are compared with; default: standard"
    )
    add_argument(
        "--output", metavar="FOLDER", type=Path, help="default: comparisons/, by recipe and data"
    )
    add_argument("--title", metavar="TEXT", help="of the report")
    add_evaluation(parser, suites="as there", limit="400 of shapes, else all", references="5")
    add_execution(parser)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Compare, and print a summary."""
    from killick.cli.train import parse_overrides
    from killick.experiments.experiment import RECIPE, compare, plan_comparison
    from killick.training.recipe_files import load_recipe

    settings = parse_overrides(rest)
    recipe = options.recipe or RECIPE
    if "seed" in settings:
        raise OptionError("a comparison takes --seeds 0,1,..., not --seed.")
    if options.recipe is None and settings.get("data.name", "shapes") != "shapes":
        # The recipe's own values are for shapes.
        settings = {"data.limit": None, "data.validation": 0.1, **settings}
    if options.recipe is None and "network.name" in settings:
        settings = {"network.arguments": {}, **settings}  # the recipe's own are for its network
    evaluation = {"references": 5, **read_evaluation(options)}
    any_arm = {**settings, "protocol.name": "standard"}
    if "limit" not in evaluation and load_recipe(recipe, any_arm).data.name == "shapes":
        evaluation["limit"] = 400
    output = options.output or Path("comparisons") / _name(recipe, settings)
    seeds = read_numbers("--seeds", options.seeds) or (0, 1)
    if options.dry_run:
        jobs = plan_comparison(
            recipe, settings, options.arm, seeds, output, evaluation, options.baseline
        )
        show_jobs(jobs, output, options)
        return 0
    found = compare(
        recipe,
        settings=settings,
        arms=options.arm,
        seeds=seeds,
        output=output,
        evaluation=evaluation,
        baseline=options.baseline,
        title=options.title,
        **read_execution(options),
    )
    if found.report is not None and not options.quiet:
        from killick.cli.summaries import show_comparison

        show_comparison(found.report.parent)
    return print_outcome(found, output, options)


def _name(recipe: str, settings: dict[str, Any]) -> str:
    data = str(settings.get("data.name", ""))
    kind, _, place = data.partition(":")
    words = [Path(recipe).stem, Path(place).stem or kind]
    return "-".join("".join(c if c.isalnum() or c in "-_" else "_" for c in w) for w in words if w)
