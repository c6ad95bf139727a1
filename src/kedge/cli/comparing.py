"""`kedge compare`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from kedge.cli.reading import name_sets, read_names, read_numbers, read_pair
from kedge.errors import OptionError

EXAMPLES = """\
examples:
  kedge compare                                           five arms on embedded shapes, minutes
  kedge compare --seeds 0,1,2,3,4 --epochs 60             more of it; what fits is used again
  kedge compare --recipe cifar10-resnet18 --data pack:cifar10.npz --arm standard \\
      --arm masked-label --arm strong:protocol=masked,target=label,alpha=0.5 --seeds 0,1,2 --jobs 3
  kedge compare --recipe finetune --data imagefolder:pictures \\
      --arm plain:from=net,protocol=standard --arm tuned:from=net,protocol=masked,target=label
  kedge compare --engine ray --cpus 4 --gpus 0.5 --output /shared/comparison

arms:
  standard, anchored, masked-uniform, masked-label   the protocols, from fresh weights
  finetuned           half of the epochs standard, then anchored exactly, masked towards the label
  NAME:key=value,...  another one, or a known one changed. A key is a setting of the recipe (kedge
                      train --help) or a short name (protocol, target, alpha, lr, ...), and also
                      from=FOLDER_OR_FILE  a trained network to start from
                      first=SHARE          of the epochs, trained as a standard network first
All arms share recipe, budget, data order and first weights, where their shapes allow.

Every arm and seed is a cell, a run folder of its own. A finished cell is never run again; an
interrupted one goes on with the same command; one that fails is reported, and the others go on.
Exit code 1 if some failed.
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `kedge` about this command."""
    parser = commands.add_parser(
        name,
        help="train and evaluate protocols side by side, and write a report",
        description="Train protocols side by side, evaluate them, and write a page about it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="kedge compare [--recipe NAME_OR_FILE] [--data DATA] [--arm ARM ...] [--seeds 0,1]\n"
        "                     [--output FOLDER] [--SETTING VALUE ...] [options]",
    )
    add_argument = parser.add_argument
    add_argument(
        "--recipe",
        metavar="NAME_OR_FILE",
        help="a shipped recipe or a YAML file (shapes-compare); its settings are options too, as in"
        " kedge train: --epochs 60",
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
    shown = parser.add_argument_group("evaluation, as in kedge evaluate")
    add_argument = shown.add_argument
    add_argument(
        "--suite", metavar="SUITES", type=read_names, help="comma-separated; default as there"
    )
    add_argument(
        "--limit",
        metavar="N",
        type=int,
        help="at most so many pictures of each set; default: 400 of shapes, else all",
    )
    add_argument(
        "--references", metavar="K", type=int, default=5, help="asked of anchored models (5)"
    )
    add_argument(
        "--corruptions", metavar="NAMES", type=read_names, help="only these, comma-separated"
    )
    add_argument("--severities", metavar="1,...,5", type=read_names, help="only these")
    for name, about in (("--ood", "other pictures"), ("--shift", "same classes, to rows.csv")):
        add_argument(
            name, metavar="NAME=DATA", action="append", type=read_pair, default=[], help=about
        )
    run = parser.add_argument_group("where it runs")
    add_argument = run.add_argument
    add_argument(
        "--jobs",
        metavar="N",
        type=int,
        help="cells at once; default: one for each core, or for each GPU (which takes several)",
    )
    add_argument(
        "--engine", choices=["local", "ray"], default="local", help="ray: a Ray cluster (local)"
    )
    add_argument("--cpus", metavar="N", type=int, default=1, help="with ray: cores for a cell (1)")
    add_argument(
        "--gpus", metavar="SHARE", type=float, help="with ray: GPUs for a cell, as 0.25; default: 1"
    )
    add_argument(
        "--address", metavar="ADDRESS", help="with ray: of the cluster; default: the one found"
    )
    add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    add_argument("--dry-run", action="store_true", help="show the cells, and stop")
    add_argument("--quiet", action="store_true", help="show nothing but errors")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Compare, and say where the report is."""
    from kedge.cli.training import parse_overrides
    from kedge.grid.arms import parse_arms
    from kedge.grid.comparing import RECIPE, compare

    settings = parse_overrides(rest)
    recipe = options.recipe or RECIPE
    if "seed" in settings:
        raise OptionError("expected --seeds 0,1,... for a comparison, found --seed.")
    if options.recipe is None and settings.get("data.name", "shapes") != "shapes":
        settings = {"data.limit": None, "data.validation": 0.1, **settings}  # those are shapes'
    if options.recipe is None and "network.name" in settings:
        settings = {"network.arguments": {}, **settings}  # those are the small network's
    arms, seeds = parse_arms(options.arm), read_numbers("--seeds", options.seeds) or (0, 1)
    evaluation = _evaluation(options, recipe, settings)
    output = options.output or Path("comparisons") / _name(recipe, settings)
    if options.dry_run:
        return _show_cells(recipe, settings, arms, seeds, output, evaluation)
    command = ["kedge", *sys.argv[1:]]
    found = compare(
        recipe,
        settings=settings,
        arms=arms,
        seeds=seeds,
        output=output,
        evaluation=evaluation,
        baseline=options.baseline,
        jobs=options.jobs,
        engine=options.engine,
        cpus=options.cpus,
        gpus=options.gpus,
        address=options.address,
        device=options.device,
        title=options.title,
        command=command,
        quiet=options.quiet,
    )
    for line in found.failed:
        print(f"kedge: failed: {line}", file=sys.stderr)
    if found.report is not None and not options.quiet:
        from kedge.cli.showing import show_comparison

        show_comparison(found.report.parent)
        print(f"The report is in {found.report}")
    if found.interrupted:
        print(f"kedge: interrupted. Go on with: {shlex.join(command)}", file=sys.stderr)
        return 130
    return 1 if found.failed else 0


def _evaluation(
    options: argparse.Namespace, recipe: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Options of `kedge.evaluate`, as plain values; what is not asked for is left to it."""
    from kedge.training.recipe_files import load_recipe

    limit = options.limit
    if limit is None:
        any_arm = {**settings, "protocol.name": "standard"}
        limit = 400 if load_recipe(recipe, any_arm).data.name == "shapes" else None
    found: dict[str, Any] = {
        "references": options.references,
        "limit": limit,
        "suites": options.suite,
        "corruptions": options.corruptions,
        "severities": read_numbers("--severities", options.severities),
        "ood": name_sets("--ood", options.ood),
        "shift": name_sets("--shift", options.shift),
    }
    return {name: value for name, value in found.items() if value not in (None, (), {})}


def _name(recipe: str, settings: dict[str, Any]) -> str:
    data = str(settings.get("data.name", ""))
    kind, _, place = data.partition(":")
    words = [Path(recipe).stem, Path(place).stem or kind]
    return "-".join("".join(c if c.isalnum() or c in "-_" else "_" for c in w) for w in words if w)


def _show_cells(
    recipe: str,
    settings: dict[str, Any],
    arms: Any,
    seeds: tuple[int, ...],
    output: Path,
    evaluation: dict[str, Any],
) -> int:
    from kedge.grid.cells import make_cells
    from kedge.grid.comparing import check_cells
    from kedge.run_folder import read_cell

    cells = make_cells(recipe, settings, arms, seeds, output, evaluation)
    check_cells(cells)
    for cell in cells:
        state = "finished" if cell.finished else "begun" if read_cell(cell.folder) else "new"
        epochs = " + ".join(str(phase.recipe.epochs) for phase in cell.phases)
        print(f"{state:9} {cell.title:28} {epochs} epochs  {cell.folder}")
    left = sum(not cell.finished for cell in cells)
    count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    print(f"{count}, {left} to run; the report would be {output / 'report.html'}")
    return 0
