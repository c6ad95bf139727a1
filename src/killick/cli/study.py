"""`killick study`: the paper's tables and figures, one command each."""

import argparse
import hashlib
import shlex
import sys
import textwrap
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from killick.cli.arguments import read_names, read_numbers
from killick.cli.job_options import (
    add_evaluation,
    add_place,
    read_evaluation,
    read_place,
    show_jobs,
    tell_failed,
)
from killick.cli.parser import suggest
from killick.errors import OptionError
from killick.studies import NAMES, find_study
from killick.studies.study import SIZES, Plan, Study, make_plan
from killick.training.recipe_files import settings as known_settings

EXAMPLES = """\
examples:
  killick study                                  what there is, a line each
  killick study alpha                            on embedded pictures, minutes
  killick study alpha --dry-run                  what would be trained
  killick study reference-size --recipe cifar10-resnet18 --data pack:cifar10.npz --seeds 0,1,2
  killick study label-noise --size paper --data cifar100 --data.root DATA --jobs 4
  killick study landscape --points 25 --epochs 20

A study trains what the paper trained for a table or figure, evaluates it, and writes report.html
with the figure, the paper's values beside ours, and what was not as in the paper. Sizes: small
(the default: embedded pictures, minutes on two cores), smoke (seconds, to see that it runs), paper
(the paper's settings; bring the data). Interrupted, it goes on with the same command; a finished
model is never trained again. Settings of the recipe are options too, as in killick train.
"""


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command and its studies."""
    parser = commands.add_parser(
        name,
        help="an experiment of the paper: trains it, and shows the figure or table",
        description="Run one of the paper's experiments, and show its figure or table.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick study NAME [--size SIZE] [--recipe RECIPE] [--data DATA] [--SETTING VALUE]",
    )
    studies = parser.add_subparsers(
        dest="study", title="studies", metavar="NAME", prog="killick study", help="one of these"
    )
    for each in NAMES:
        _add_study(studies, find_study(each))


def _add_study(studies: Any, study: Study) -> None:
    item = f"{study.item}: " if study.item else "Beyond the paper: "
    parser = studies.add_parser(
        study.name,
        help=f"{item}{study.about}".replace("%", "%%"),
        description=textwrap.fill(f"{study.title} {item}{study.about}.", 80),
        epilog=_describe_sizes(study),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage=f"killick study {study.name} [--size {{{','.join(SIZES)}}}] [--recipe RECIPE]\n"
        "           [--data DATA] [--seeds 0,1] [--SETTING VALUE ...] [options]",
    )
    add_argument = parser.add_argument
    add_argument("--size", choices=SIZES, default="small", help="of the experiment (small)")
    add_argument(
        "--recipe",
        metavar="NAME_OR_FILE",
        help="that all arms share; its settings are options too, as in killick train: --epochs 60",
    )
    add_argument("--seeds", metavar="0,1,...", type=read_names, help="of each arm")
    add_argument(
        "--output", metavar="FOLDER", type=Path, help="default: studies/, by name, size and data"
    )
    suites = ",".join(study.sizes["small"].evaluation.get("suites", ())) or "as there"
    add_evaluation(parser, suites=suites, limit="by size", references="by size")
    own = [each for each in fields(study.options) if f"--{_flag(each.name)}" not in parser.options]
    if own:
        group = parser.add_argument_group("of this study")
        for each in own:
            group.add_argument(
                f"--{_flag(each.name)}",
                dest=f"option_{each.name}",
                metavar=_metavar(each.type),
                help=_tell_option(study, each).replace("%", "%%"),
            )
    add_place(parser)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a study, print its tables, and say where the page is."""
    if options.study is None:
        print(_list_studies())
        return 0
    from killick.cli.train import parse_overrides
    from killick.training.recipe_files import load_recipe
    from killick.training.unused_settings import refuse_unused_in_all

    study = find_study(options.study)
    settings = parse_overrides(rest)
    _refuse_unknown(study, settings)
    if "seed" in settings:
        raise OptionError("expected --seeds 0,1,... for a study, found --seed.")
    plan = make_plan(
        study,
        options.size,
        recipe=options.recipe,
        settings=settings,
        options=_read_options(study, options),
        seeds=read_numbers("--seeds", options.seeds),
        evaluation=read_evaluation(options),
    )
    refuse_unused_in_all(
        {a.name: load_recipe(plan.recipe, {**plan.settings, **a.settings}) for a in plan.arms},
        {arm.name: list(arm.settings) for arm in plan.arms},
        settings,
    )
    output = options.output or Path("studies") / _name(plan, options.recipe)
    limit = plan.evaluation.get("limit")
    if limit is not None and options.limit is None and not options.quiet:
        print(
            f"size {plan.size}: models are evaluated on at most {limit:,} pictures of each set;"
            " --limit N for others"
        )
    if options.dry_run:
        from killick.studies.running import plan_cells

        show_jobs(plan_cells(plan, output), output / "report.html", options)
        return 0
    from killick.studies.running import run_study

    command = ["killick", *options.words]
    found = run_study(plan, output, command=command, **read_place(options))
    tell_failed(found.failed)
    if found.shown is not None and not options.quiet:
        from killick.cli.summaries import show_study

        show_study(study, found.shown, found.equality)
        print(f"The report is in {found.report}")
    if found.interrupted:
        print(f"killick: interrupted. Go on with: {shlex.join(command)}", file=sys.stderr)
        return 130
    return 1 if found.failed else 0


def _read_options(study: Study, options: argparse.Namespace) -> dict[str, Any]:
    """What was given of the study's own options; one of evaluation's with the same name too."""
    found: dict[str, Any] = {}
    for each in fields(study.options):
        given = getattr(options, f"option_{each.name}", None)
        if given is None:
            given = getattr(options, each.name, None)
        if given not in (None, (), [], {}):
            found[each.name] = ",".join(given) if isinstance(given, tuple) else given
    return found


def _tell_option(study: Study, option: Any) -> str:
    """What it is, what it may be, and what it is at the size small."""
    default = option.default if option.default is not MISSING else option.default_factory()
    small = study.sizes["small"].options.get(option.name, default)
    shown = "none" if small is None else _spell(small)
    return f"{option.metadata['about']} ({shown})"


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _metavar(kind: Any) -> str:
    words = str(kind)
    if "list" in words:
        return "A,B,..."
    return "true|false" if "bool" in words else "N" if "int" in words else "VALUE"


def _describe_sizes(study: Study) -> str:
    lines = ["sizes:"]
    for name in SIZES:
        size = study.sizes[name]
        changed = ", ".join(f"{key} {_spell(value)}" for key, value in size.settings.items())
        own = ", ".join(f"{_flag(key)} {_spell(value)}" for key, value in size.options.items())
        limit = size.evaluation.get("limit")
        looked = f"evaluated on {limit} pictures of each set" if limit is not None else ""
        parts = [f"recipe {size.recipe}", changed, own, f"seeds {_spell(size.seeds)}", looked]
        parts.append(size.remark)
        lines += textwrap.wrap(
            f"{name:6} " + "; ".join(part for part in parts if part),
            80,
            initial_indent="  ",
            subsequent_indent=" " * 9,
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)


def _spell(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _list_studies() -> str:
    lines = ["Studies, experiments of the paper:"]
    for name in NAMES:
        study = find_study(name)
        text = f"{study.item or 'beyond the paper'}: {study.about}"
        first, *more = textwrap.wrap(text, 60)
        lines += [f"  {name:16}{first}", *(" " * 18 + line for line in more)]
    return "\n".join(
        [*lines, "", "killick study NAME runs one; killick study NAME --help tells more."]
    )


def _name(plan: Plan, recipe: str | None) -> str:
    """By study, size or recipe, and data; with a digest of all else that was changed."""
    usual = make_plan(plan.study, plan.size, recipe=recipe)
    settings = dict(plan.settings)
    kind, _, place = str(settings.get("data.name", "")).partition(":")
    words = [plan.study.name, plan.size if recipe is None else Path(recipe).stem]
    words += [Path(place.partition("#")[0]).stem or kind]
    changed = [(each.settings, each.options, each.evaluation) for each in (plan, usual)]
    if repr(changed[0]) != repr(changed[1]):
        words.append(hashlib.sha256(repr(changed[0]).encode()).hexdigest()[:6])
    return "-".join("".join(c if c.isalnum() or c in "-_" else "_" for c in w) for w in words if w)


def _refuse_unknown(study: Study, settings: dict[str, Any]) -> None:
    """Tell a slip in the name of an option, which would be taken for a setting of the recipe."""
    own = [each.name for each in fields(study.options)]
    for name in settings:
        if name not in known_settings():
            near = suggest(name, [*own, *known_settings()])
            listed = ", ".join(f"--{_flag(each)}" for each in own)
            raise OptionError(
                f"no such option of killick study {study.name}: --{_flag(name)}{near}. Its own are"
                f" {listed}; settings of recipes are in killick train --help."
            )
