"""`killick list`: everything that has a name.

Kinds whose registries import torch, which takes seconds, are read from `listing.json` beside this
file, unless plugins are enabled. `make listing` writes it from the registries.
"""

import argparse
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from killick.cli.parser import Parser, describe
from killick.registry import enabled_plugins

HELP = "list recipes, data, networks, corruptions, metrics, ..."
USAGE = "killick list [KIND] [--json]"
EXAMPLES = """\
examples:
  killick list                            everything
  killick list recipes                    only these
  killick list corruptions --json         {"corruptions": [{"name": ..., "about": ...}, ...]}
"""
LIBRARIES = {
    "timm:NAME": "any network of timm; timm.list_models() names them",
    "torchvision:NAME": "any classifier of torchvision",
    "FILE:NAME": "your own, from a Python file that KILLICK_NETWORKS lists",
}

Entry = dict[str, Any]
FILE = Path(__file__).with_suffix(".json")
SLOW = ("data", "networks", "studies", "methods", "corruptions", "scores", "metrics", "sections")


def add(parser: Parser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "kind", nargs="?", metavar="KIND", choices=list(KINDS), help=f"one of {', '.join(KINDS)}"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, a list for each kind")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print a table of each kind."""
    found = {kind: _entries(kind) for kind in KINDS if options.kind in (None, kind)}
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(_table(kind, entries) for kind, entries in found.items()))
    return 0


def _entries(kind: str) -> list[Entry]:
    if kind not in SLOW or enabled_plugins():
        return KINDS[kind]()
    stored: list[Entry] = json.loads(FILE.read_text(encoding="utf-8"))[kind]
    return [*stored, *_own_networks()] if kind == "networks" else stored


def _table(kind: str, entries: list[Entry]) -> str:
    """A title and a line for each entry; lines are wrapped on a terminal only."""
    width = max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 10**6
    names = {each["name"]: each["about"] for each in entries}
    column = 4 + max(map(len, names), default=0)
    return f"{kind}:\n" + describe(names, min(column, 32), width)


def _entry(name: str, entry: Any, **more: Any) -> Entry:
    """Its name and the first line of what it says of itself."""
    said = (getattr(entry, key, "") for key in ("about", "description", "title"))
    about = entry if isinstance(entry, str) else next(filter(None, said), inspect.getdoc(entry))
    return {"name": name, **more, "about": (about or name).splitlines()[0].rstrip(".")}


def _plain(names: dict[str, str]) -> list[Entry]:
    return [_entry(name, about) for name, about in names.items()]


def _registered(place: str) -> list[Entry]:
    """The entries of a registry or dictionary, `module:NAME`, by name."""
    module, _, name = place.partition(":")
    found = sorted(getattr(import_module(f"killick.{module}"), name).items())
    return [_entry(*each) for each in found]


def _recipes() -> list[Entry]:
    from killick.training.recipe_files import load_recipe, shipped

    return _plain({name: load_recipe(name).about.split(". ")[0] for name in shipped()})


def _data() -> list[Entry]:
    from killick.data.sources import DATA_SOURCES

    found = [_entry(source.written, source) for _, source in DATA_SOURCES.items()]
    return sorted(found, key=lambda entry: str(entry["name"]))


def _networks() -> list[Entry]:
    from killick.nets import NETWORKS

    killicks = [_entry(f"killick:{name}", make) for name, make in NETWORKS.items()]
    return [*killicks, *_plain(LIBRARIES), *_own_networks()]


def _own_networks() -> list[Entry]:
    if "KILLICK_NETWORKS" not in os.environ:
        return []
    from killick.nets.custom import own_libraries

    return _plain({f"{name}:NAME": f"of {where}" for name, where in own_libraries().items()})


def _corruptions() -> list[Entry]:
    from killick.corruptions.corruption import CORRUPTIONS
    from killick.corruptions.suites import PUBLISHED, SUITES

    found = []
    for name in dict.fromkeys((*PUBLISHED, *CORRUPTIONS.names())):
        entry = CORRUPTIONS.find(name)
        suites = [suite for suite, names in SUITES.items() if name in names]
        found.append(_entry(name, entry, suites=suites, tables=list(entry.tables)))
    return found


def _arms() -> list[Entry]:
    from killick.experiments.arms import ARMS

    found = {}
    for name, arm in ARMS.items():
        text = ", ".join(f"{key} {value}" for key, value in arm.settings.items())
        if arm.first:
            text = f"{arm.first:.0%} of the epochs standard, then {text}"
        elif arm.after is not None:
            text = f"{arm.after.name}, then for {arm.more:.0%} of the epochs {text}"
        found[name] = text
    return _plain(found)


def _studies() -> list[Entry]:
    from killick.studies import find_study, study_names

    studies = {name: find_study(name) for name in study_names()}
    return [_entry(name, study, item=study.item) for name, study in studies.items()]


KINDS: dict[str, Callable[[], list[Entry]]] = {
    "recipes": _recipes,
    "data": _data,
    "networks": _networks,
    "protocols": partial(_registered, "protocols:PROTOCOLS"),
    "components": partial(_registered, "protocols:COMPONENTS"),
    "arms": _arms,
    "studies": _studies,
    "methods": partial(_registered, "federated.method:METHODS"),
    "suites": partial(_registered, "evaluation.evaluation_suites:EVALUATION_SUITES"),
    "corruptions": _corruptions,
    "scores": partial(_registered, "metrics.metric_registry:SCORES"),
    "metrics": partial(_registered, "metrics.metric_registry:METRICS"),
    "sections": partial(_registered, "report.sections:SECTIONS"),
    "loggers": partial(_registered, "training.loggers:LOGGERS"),
}


def write() -> None:
    """Write `listing.json`."""
    text = json.dumps({kind: KINDS[kind]() for kind in SLOW}, indent=1, ensure_ascii=False)
    FILE.write_text(text + "\n", encoding="utf-8")
