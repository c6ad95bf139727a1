"""`killick compare`."""

import argparse
import shlex
from pathlib import Path

from killick.cli.arguments import FOLDER, SEEDS, name_folder
from killick.cli.job_options import (
    add_evaluation,
    add_execution,
    print_outcome,
    read_evaluation,
    read_execution,
    read_shared_settings,
    show_jobs,
)
from killick.cli.parser import Parser
from killick.data.data_settings import EMBEDDED
from killick.experiments.arms import DEFAULT_ARMS, parse_arms
from killick.training.recipe import Network
from killick.training.recipe_files import DEFAULT_RECIPE, fit_default, load_recipe

HELP = "train and evaluate protocols side by side, and write a report"
USAGE = (
    "killick compare [--recipe NAME_OR_FILE] [--data DATA] [--arm ARM ...] [--seeds 0,1]\n"
    "                     [--output FOLDER] [--SETTING VALUE ...] [options]"
)
EXAMPLES = """\
examples:
  killick compare                                           the demo: embedded images, four minutes
  killick compare --seeds 0,1,2,3,4,5,6,7,8,9               more of it; finished jobs are used again
  killick compare --recipe cifar10-resnet18 --data pack:cifar10.npz --arm standard \\
      --arm masked-label --arm strong:protocol=masked,target=label,alpha=0.5 --seeds 0,1,2 --jobs 3
  killick compare --recipe finetune --data imagefolder:images \\
      --arm plain:from=net,protocol=standard --arm tuned:from=net,protocol=masked,target=label
  killick compare --network timm:resnet50 --pretrained --data imagefolder:images
  killick compare --part $SLURM_ARRAY_TASK_ID/8 --output /shared/comparison

arms:
  standard, anchored, masked-uniform, masked-label   the protocols, from fresh weights
  finetuned           half of the epochs standard, then anchored exactly, masked towards the label
  masked-tuning       the standard arm's network, tuned so for a quarter of the epochs more
  standard-tuning     its control: the same network tuned as long without masks
  NAME:key=value,...  a new arm, or a built-in one changed. A key is a setting of a recipe (killick
                      train --help) or a short name (protocol, target, alpha, lr, ...), and also
                      from=FOLDER_OR_FILE  a trained network to start from, as killick train --from
                      first=SHARE          of the epochs, trained as a standard network first
  COMPONENT+NAME      with a component (killick list components), as sam+masked-label
  ensemble+NAME       of three networks, or members=N; mc-dropout+NAME, tta+NAME: inference methods
  NAME:run=FOLDER     a finished run, evaluated beside the others; {seed} stands for each seed. Or
                      a saved model, or a network with its library's weights, as timm:resnet50
The demo, without --recipe and --data, looks at severities 1, 3 and 5.
All arms share recipe, budget, data order and first weights, where their shapes allow;
tuning adds its epochs to those of standard.

Every arm with a seed is a job with a run folder of its own. A finished job is never run again, an
interrupted one is resumed by the same command, and one that fails is reported while others go on.
Exit code 1 if some failed.
"""
OWN_DATA = "killick compare --data imagefolder:FOLDER --network timm:resnet18 --data.size 224"
# Without --recipe and --data: under four minutes on two cores.
DEMO_SEEDS = (0, 1, 2, 3, 4)
DEMO_EVALUATION = {"references": 1, "severities": (1, 3, 5), "limit": 300}


def add(parser: Parser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add(
        "--recipe",
        metavar="NAME_OR_FILE",
        help=f"shipped, or a YAML file ({DEFAULT_RECIPE}, finetune)",
    )
    add(
        "--arm",
        metavar="NAME[:key=value,...]",
        action="append",
        default=[],
        help=f"what to compare, again for each; default: {', '.join(DEFAULT_ARMS)}",
    )
    add("--seeds", **SEEDS, help="of each arm; default: 0,1; in the demo 0 to 4")
    add("--baseline", metavar="ARM", help="what others are compared with; default: standard")
    add("--output", **FOLDER, help="default: comparisons/, by recipe and data")
    add("--title", metavar="TEXT", help="of the report")
    add_evaluation(
        parser,
        suites="as there",
        limit="400 of embedded images, 300 in the demo, else all",
        references="5; in the demo 1",
    )
    add_execution(parser)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Compare, and print a summary."""
    evaluation = read_evaluation(options)
    settings = read_shared_settings(rest)
    arms = parse_arms(options.arm)
    named = Network(str(settings.get("network.name", "")))
    trained = "network.pretrained" in settings or named.may_name_weights
    recipe = options.recipe or ("finetune" if trained else DEFAULT_RECIPE)
    demo = recipe == DEFAULT_RECIPE and "data.name" not in settings
    seeds = options.seeds or (DEMO_SEEDS if demo else (0, 1))
    evaluation = {**(DEMO_EVALUATION if demo else {"references": 5}), **evaluation}
    if options.recipe is None:
        settings = fit_default(settings)
    checked = load_recipe(recipe, {**settings, "protocol.name": "standard"})
    if "limit" not in evaluation and checked.data.name in EMBEDDED:
        evaluation["limit"] = 400
    if options.recipe is None and not demo and not options.quiet:
        what = checked.network.name
        if not trained:  # else the size belongs to the weights
            what += f" on images of {checked.data.size} px"
        print(f"Recipe: {recipe}, {what}, {checked.epochs} epochs (--recipe chooses another)")
    from killick.experiments.experiment import compare, plan_comparison

    name = name_folder(str(settings.get("data.name", "")), Path(recipe).stem)
    output = options.output or Path("comparisons") / name
    if options.dry_run:
        jobs = plan_comparison(recipe, settings, arms, seeds, output, evaluation, options.baseline)
        show_jobs(jobs, output, options)
        return 0
    found = compare(
        recipe,
        settings=settings,
        arms=arms,
        seeds=seeds,
        output=output,
        evaluation=evaluation,
        baseline=options.baseline,
        title=options.title,
        **read_execution(options),
    )
    if found.data is not None and not options.quiet:
        from killick.cli.summaries import show_comparison

        show_comparison(found.data.table)
    code = print_outcome(found, output, options)
    if code == 0 and found.report is not None and not options.quiet:
        print(f"Play with the models: killick play {shlex.quote(str(output))}")
        if demo:
            print(f"On your own images, a folder for each class: {OWN_DATA}")
    return code
