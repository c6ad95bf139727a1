"""`killick train`."""

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from killick.cli.arguments import FLAG, FOLDER, add_shared, name_folder
from killick.cli.parser import Parser, describe
from killick.data.data_settings import EMBEDDED
from killick.errors import OptionError
from killick.protocols.base import COMPONENTS
from killick.settings import split_pairs, yaml_or_text
from killick.training.recipe import Network, Recipe, named_classes
from killick.training.recipe_files import (
    DEFAULT_RECIPE,
    SHORT,
    find_setting,
    fit_default,
    load_recipe,
    read_setting,
    recipe_of,
    refuse_unused,
    settings,
    shipped,
    to_yaml,
)

HELP = "train one model: standard, anchored, or with masked references"
USAGE = "killick train [--recipe NAME_OR_FILE] [--SETTING VALUE ...] [options]"
EXAMPLES = """\
examples:
  killick train                                             embedded shapes, a minute or two
  killick train --recipe cifar10-resnet18 --data pack:cifar10.npz --epochs 60
  killick train --data imagefolder:images --protocol standard --data.size 64
  killick train --from my_net.pth --network timm:resnet50 --data imagefolder:images
  killick train --network timm:resnet50 --pretrained --data imagefolder:images
  killick train --resume runs/small-shapes-long-masked-label-seed0
  torchrun --nproc-per-node 8 -m killick train --recipe imagenet-swinv2-t --data imagenet:/imagenet
"""
RECIPE = "small-shapes-long"  # without --data and --network
OWN_DATA = "killick train --data imagefolder:FOLDER --network timm:resnet18 --data.size 224"


def add(parser: Parser) -> None:
    """Add the options of this command."""
    parser.filler = _add_epilog
    add = parser.add_argument
    add(
        "--recipe",
        metavar="NAME_OR_FILE",
        help="a shipped recipe or a YAML file"
        f" (default: {RECIPE}; with --data or --network {DEFAULT_RECIPE}; with --from finetune)",
    )
    add("--output", **FOLDER, help="the run folder (default: under runs/)")
    add(
        "--from",
        dest="start",
        metavar="FOLDER_OR_FILE",
        type=Path,
        help="start from a trained network: a Killick folder, OWNER/NAME on the hub, .safetensors or"
        " a saved state_dict. It is anchored exactly. A run brings its data settings along",
    )
    add("--resume", **FOLDER, help="continue the run in this folder")
    add("--print-recipe", **FLAG, help="print the resolved recipe and stop")
    add_shared(parser, "--device", "--threads", "--quiet")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Train, or print the recipe."""
    given = overrides = parse_overrides(rest)
    if options.resume is not None:
        return _resume(options, given)
    named = str(given.get("network.name", ""))
    pretrained = "network.pretrained" in given or Network(named).may_name_weights
    trained = options.start is not None or pretrained
    usual = DEFAULT_RECIPE if {"data.name", "network.name"} & given.keys() else RECIPE
    name = options.recipe or ("finetune" if trained else usual)
    if options.start is not None:
        from killick.training.initial_weights import find_start, inherit

        if "network.pretrained" in given:
            raise OptionError("--pretrained and --from exclude each other: choose the weights.")
        options.start = find_start(options.start)
        overrides = inherit(options.start, given, data=options.recipe is None)
    elif not (trained or options.print_recipe) and (
        name == "finetune" or given.get("network.new_head")
    ):
        needs = name if name == "finetune" else "network.new_head"
        raise OptionError(f"{needs} requires --from, a trained network: --from runs/plain.")
    if options.recipe is None:
        own = overrides.get("data.name", "shapes") not in EMBEDDED
        overrides = fit_default(overrides)
        if own and not trained and "network.name" in given and "data.size" not in given:
            overrides = {**_usual_size(named), **overrides}
    recipe = load_recipe(name, overrides)
    if options.start is not None or recipe.network.may_name_weights:
        from killick.training.initial_weights import add_preprocessing

        overrides = add_preprocessing(name, overrides, options.start)
        recipe = load_recipe(name, overrides)
    refuse_unused(recipe, given)
    if options.print_recipe:
        print(to_yaml(recipe), end="")
        return 0
    folder = options.output or Path("runs") / _name(Path(name).stem, recipe)
    _check_own(folder)
    if options.recipe is None and recipe.data.name not in EMBEDDED and not options.quiet:
        print(f"Recipe: {name} (--print-recipe shows it, --recipe chooses another)", flush=True)
    if recipe.data.name in EMBEDDED and "data.name" not in given and not options.quiet:
        print(
            f"No --data given: training {recipe.network.name} for {recipe.epochs} epochs on embedded"
            f" images of {recipe.data.name}, into {folder}.\nOn your own images, a folder for each class:"
            f" {OWN_DATA}",
            flush=True,
        )
    from killick.runtime.devices import set_threads
    from killick.training.loop import train

    set_threads(options.threads)
    outcome = train(recipe, folder, start=options.start, device=options.device, quiet=options.quiet)
    return 0 if outcome.finished else 130


def _usual_size(network: str) -> dict[str, Any]:
    """The image size that a network of a library is made for, as a setting."""
    from killick.nets import preprocessing_by_name

    library, colon, _ = network.partition(":")
    known = preprocessing_by_name(network) if colon and library != "hf" else None
    return {} if known is None else {"data.size": known.size}


def _check_own(folder: Path) -> None:
    """Refuse a folder that is not a run, such as a data set."""
    if not folder.is_dir() or (folder / "recipe.yaml").exists():
        return
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if others:
        raise OptionError(
            f"cannot train into {folder}: it holds {others[0]!r} and is not a run folder. Choose"
            f" another: --output {folder / 'run'}."
        )


def _resume(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    named = {name: value for name, value in overrides.items() if _is_class(name)}
    given = {"output": options.output, "from": options.start}
    given |= {name: value for name, value in overrides.items() if name not in named}
    classes = {} if any(given.values()) else named_classes(recipe_of(options.resume))
    if not classes:
        given |= {"recipe": options.recipe, **named}
    for name, value in given.items():
        if value is not None:
            raise OptionError(
                f"--resume continues with the settings of the run and takes no --{name}. To train"
                f" longer, start a new run from it: --from {options.resume}."
            )
    if options.print_recipe:
        print(to_yaml(recipe_of(options.resume)), end="")
        return 0
    from killick.runtime.devices import set_threads
    from killick.training.loop import train

    set_threads(options.threads or _read_threads(options.resume))
    # The run's own recipe counts; from the one given, classes are imported.
    recipe = None
    if classes and (options.recipe or named):
        recipe = load_recipe(options.recipe or DEFAULT_RECIPE, named)
    outcome = train(recipe, options.resume, resume=True, device=options.device, quiet=options.quiet)
    return 0 if outcome.finished else 130


def _is_class(name: str) -> bool:
    """Whether a setting names a class or its arguments."""
    return name == "augment.transform" or name.endswith((".class_path", ".init_args"))


def _read_threads(folder: Path) -> int | None:
    """The threads that a run began with: on a CPU its bits depend on them."""
    from killick.results.run_folder import read_environment

    found = read_environment(folder).get("threads")
    if "OMP_NUM_THREADS" in os.environ or type(found) is not int:
        return None
    return min(max(1, found), os.cpu_count() or 1)


def parse_overrides(words: list[str]) -> dict[str, Any]:
    """`--optimizer.lr 0.05 --epochs=3` as settings by dotted name; values are YAML.

    A setting that is true or false needs no value: `--data.download`.

    Example:
        >>> parse_overrides(["--lr", "0.05", "--epochs=3", "--schedule.milestones", "[0.5]"])
        {'optimizer.lr': 0.05, 'epochs': 3, 'schedule.milestones': [0.5]}
    """
    found: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            raise OptionError(f"unexpected argument: {word!r}. Settings are given as --epochs 10.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if waiting and not waiting[0].startswith("--"):
                value = waiting.pop(0)
            elif find_setting(name) == "network.pretrained":
                value = "default"
            elif name == "regularizer":
                raise OptionError("--regularizer needs a value, such as sam or dropblock:rate=0.1.")
            elif (known := settings().get(find_setting(name))) is None:
                raise OptionError(f"no such option: --{name}. See killick train --help.")
            elif known.type is bool:
                value = "true"
            else:
                raise OptionError(f"--{name} needs a value.")
        if name == "regularizer":
            found.setdefault("components", []).append(_read_component(value))
            continue
        dotted = find_setting(name)
        found[dotted] = read_setting(dotted, value)
    return found


def _read_component(text: str) -> dict[str, Any]:
    """A component from `NAME` or `NAME:key=value,...`."""
    name, colon, rest = text.partition(":")
    pairs = split_pairs(rest, f"--regularizer {text}") if colon else []
    return {"name": name, **{key: yaml_or_text(value) for key, value in pairs}}


def _name(recipe_name: str, recipe: Recipe) -> str:
    protocol = recipe.protocol
    target = f"-{protocol.target}" if hasattr(protocol, "target") else ""
    data = recipe.data.name
    if recipe_name not in shipped() or data == load_recipe(recipe_name).data.name:
        data = ""
    return f"{name_folder(data, recipe_name)}-{protocol.name}{target}-seed{recipe.seed}"


def _add_epilog(parser: Parser) -> None:
    """Examples, and every setting of a recipe: name, meaning, default."""
    short: dict[str, str] = {}
    for each, name in SHORT.items():
        short[name] = f"{short.get(name, ', short:')} --{each.replace('_', '-')}"
    about = {}
    for name, field in settings().items():
        default = field.default if not callable(field.default_factory) else field.default_factory()
        among = field.metadata["among"]
        choices = f" ({' | '.join(among)})" if among else ""
        shown = f"[{str(default).lower()}{short.get(name, '')}]"
        about[name] = f"{field.metadata['about']}{choices}  {shown}"
    components = {}
    for name, kind in COMPONENTS.items():
        options = ", ".join(each.name for each in fields(kind) if each.name != "name")
        about_it = (kind.__doc__ or "").strip().partition("\n")[0]
        components[name] = f"{about_it.removesuffix('.')} ({options})"
    parser.epilog = "\n".join(
        [
            EXAMPLES,
            "settings of a recipe, each also an option: --NAME VALUE [default]",
            describe(about, 30, 96),
            "\ncomponents, for --regularizer NAME:SETTING=VALUE,... (may be repeated):",
            describe(components, 30, 96),
        ]
    )
