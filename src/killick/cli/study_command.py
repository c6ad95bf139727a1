"""`killick study`: the paper's tables and figures, one command each."""

import argparse
import hashlib
import textwrap
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from killick.cli.arguments import FOLDER, SEEDS, name_folder, warn
from killick.cli.job_options import (
    add_evaluation,
    add_execution,
    print_outcome,
    read_evaluation,
    read_execution,
    read_shared_settings,
    show_jobs,
)
from killick.cli.network_options import MODELS
from killick.cli.parser import Parser, describe
from killick.errors import OptionError
from killick.studies import find_study, study_names
from killick.studies.study import SIZES, Plan, Study, make_plan

HELP = "an experiment of the paper: trains it, and makes the figure or table"
USAGE = "killick study NAME [--size SIZE] [--recipe RECIPE] [--data DATA] [--SETTING VALUE]"
EXAMPLES = """\
examples:
  killick study                                  all studies, a line each
  killick study alpha                            on embedded images, minutes
  killick study alpha --help                     its own options
  killick study reference-size --recipe cifar10-resnet18 --data pack:cifar10.npz --seeds 0,1,2
  killick study label-noise --size paper --data cifar100 --data.root DATA --jobs 4
  killick study generalization --models torchvision:swin_v2_t runs/mine --data imagenet:/imagenet \\
      --shift R=imagefolder:/imagenet-r --shift Sketch=imagefolder:/sketch

A study trains what the paper trained for a table or figure, evaluates it, and writes report.html
with the paper's values beside ours. Sizes: small (default: embedded images, minutes on two cores),
smoke (seconds, to see that it runs), paper (the paper's settings; bring the data). The same command
resumes an interrupted study. Settings of the recipe are options too, as in killick train. With
--models (generalization, safety) nothing is trained: these models are evaluated for the table.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    names = study_names()
    studies = parser.add_subparsers(
        dest="study", title="studies", metavar="NAME", prog="killick study", help=", ".join(names)
    )
    for each in names:
        study = studies.add_parser(
            each,
            usage=f"killick study {each} [--size {{{','.join(SIZES)}}}] [--recipe RECIPE]\n"
            "           [--data DATA] [--seeds 0,1] [--SETTING VALUE ...] [options]",
        )
        study.filler = partial(_add_options, each)


def _add_options(name: str, parser: Parser) -> None:
    """Add the options of a study, and describe it."""
    study = find_study(name)
    item = study.item or "Beyond the paper"
    parser.description = textwrap.fill(f"{study.title} {item}: {study.about}.", 80)
    parser.epilog = _describe_sizes(study)
    add = parser.add_argument
    usual_size = "small; with --models paper" if study.models else "small"
    add("--size", choices=SIZES, help=f"of the experiment ({usual_size})")
    add("--recipe", metavar="NAME_OR_FILE", help="shipped, or a YAML file (by size)")
    add("--seeds", **SEEDS, help="of each arm")
    if study.models:
        text = f"evaluate these and train nothing: {MODELS}"
        add("--models", metavar="MODEL", nargs="+", default=[], help=text)
    add("--output", **FOLDER, help="default: studies/, by name, size and data")
    add_evaluation(parser, suites=",".join(study.suites), limit="by size", references="1")
    group = parser.add_argument_group("options of this study")
    small, usual = study.at_size("small").options, study.options()
    for each in fields(study.options):
        flag = f"--{each.name.replace('_', '-')}"
        if flag in parser.options:  # an option of the evaluation is used for both
            continue
        default = getattr(usual, each.name)
        text = f"{each.metadata['about']} ({_format(small.get(each.name, default))})"
        dest = f"option_{each.name}"
        group.add_argument(flag, dest=dest, metavar="VALUE", help=text.replace("%", "%%"))
    add_execution(parser)


def _describe_sizes(study: Study) -> str:
    found = {}
    for name in SIZES:
        size = study.at_size(name)
        changed = {**size.settings, **size.options, "limit": size.evaluation.get("limit")}
        words = [f"{key} {_format(value)}" for key, value in changed.items() if value is not None]
        found[name] = "; ".join([f"recipe {size.recipe}", f"seeds {_format(size.seeds)}", *words])
        found[name] += f". {size.remark}" if size.remark else ""
    return "sizes:\n" + describe(found, 9, 80)


def _format(value: Any) -> str:
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a study, print its tables, and where the report is."""
    if options.study is None:
        print(_list_studies())
        return 0
    from killick.experiments.jobs import check_settings_used

    study = find_study(options.study)
    given = read_shared_settings(rest)
    models = getattr(options, "models", [])
    if models and (options.recipe or options.seeds):
        idle = "--recipe" if options.recipe else "--seeds"
        raise OptionError(
            f"{idle} has no effect: --models evaluates without training. Leave it out."
        )
    plan = make_plan(
        study,
        options.size or ("paper" if models else "small"),
        recipe=options.recipe,
        settings=given,
        options=_read_options(study, options),
        seeds=options.seeds,
        evaluation=read_evaluation(options),
        models=models,
    )
    from killick.studies.study_runner import plan_jobs, run_study

    output = options.output or Path("studies") / _folder_name(plan, options.recipe)
    jobs = plan_jobs(plan, output)
    if not models:
        check_settings_used(given, plan.arms, jobs)
    if plan.missing_sets and not options.quiet:
        warn(plan.missing_sets)
    if options.dry_run:
        show_jobs(jobs, output, options)
        return 0
    found = run_study(plan, output, **read_execution(options))
    if found.findings is not None and not options.quiet:
        from killick.cli.summaries import show_study

        show_study(study, found.findings)
    return print_outcome(found, output, options)


def _read_options(study: Study, options: argparse.Namespace) -> dict[str, Any]:
    """The study's own options; one with the name of an evaluation option is both."""
    found: dict[str, Any] = {}
    for each in fields(study.options):
        value = getattr(options, f"option_{each.name}", getattr(options, each.name, None))
        if value not in (None, (), [], {}):
            found[each.name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return found


def _list_studies() -> str:
    studies = {name: find_study(name) for name in study_names()}
    about = {name: f"{s.item or 'beyond the paper'}: {s.about}" for name, s in studies.items()}
    return (
        f"Studies, experiments of the paper:\n{describe(about, 18, 80)}\n\n"
        "killick study NAME runs one; killick study NAME --help: options."
    )


def _folder_name(plan: Plan, recipe: str | None) -> str:
    """By study, size or recipe, and data; with a digest of what else was changed."""
    if plan.models:
        name = name_folder(str(plan.settings.get("data.name", "")), plan.study.name, "models")
        return f"{name}-{_digest([plan.models, plan.settings, plan.evaluation])}"
    usual = make_plan(plan.study, plan.size, recipe=recipe)
    size = plan.size if recipe is None else Path(recipe).stem
    name = name_folder(str(plan.settings.get("data.name", "")), plan.study.name, size)
    changed = [(each.settings, each.options, each.evaluation) for each in (plan, usual)]
    if repr(changed[0]) == repr(changed[1]):
        return name
    return f"{name}-{_digest(changed[0])}"


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:6]
