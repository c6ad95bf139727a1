"""`killick list`, and the names that help and completion are made from."""

import argparse
import ast
import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import Any

from killick.corruptions.suites import PUBLISHED
from killick.corruptions.suites import SUITES as CORRUPTION_SUITES
from killick.nets.custom import VARIABLE, own_libraries
from killick.training.recipe_files import load_recipe, shipped

EXAMPLES = """\
examples:
  killick list                              all there is
  killick list recipes                      only these
  killick list corruptions --json           for programs: {"corruptions": [{"name": ..., ...}, ...]}
"""

# What needs torch to be asked is written down here, so that lists and completion come at once; the
# tests compare each of these with the code.
DATA = {
    "shapes": "ten shapes, 32 px, made by Killick; no download",
    "digits": "handwritten digits of scikit-learn, 32 px; no download",
    "cifar10": "on disk under --data.root; --data.download true fetches it",
    "cifar100": "likewise",
    "imagefolder:PATH": "a folder for each class, or train/ and test/ with such folders;"
    " PATH#without=LIST leaves out pictures",
    "imagenet:PATH": "train/ and val/ with a folder for each class",
    "pack:FILE.npz": "encoded pictures in one file; pack:FILE.npz#SPLIT for one of its splits",
    "pictures:PATH": "any pictures below a folder, without classes; for evaluate --ood",
    "hf:NAME": "of the datasets library, by name or folder (killick[hf])",
}
CORRUPTIONS = PUBLISHED
SYNTHETIC = ("noise", "blobs", "scrambled")
NETWORKS = ("resnet18", "resnet_small", "wrn40_2")
OTHER_NETWORKS = {
    "timm:NAME": "any of timm's; `timm.list_models()` names them",
    "torchvision:NAME": "any classifier of torchvision's",
    "FILE:NAME": "your own, of a Python file that KILLICK_NETWORKS lists",
}
PROTOCOLS = {  # and what `killick compare` calls its arms
    "standard": "the network alone, as usual: --protocol standard",
    "anchored": "sees [reference, image - reference], never masked: --protocol anchored",
    "masked-label": "anchored, with a quarter of the batches masked and trained towards the true"
    " label, as in the authors' code: --protocol masked --target label",
    "masked-uniform": "likewise, towards the uniform distribution, as in the paper's text:"
    " --protocol masked --target uniform",
    "finetuned": "half of the epochs standard, then anchored exactly and masked towards the label:"
    " killick compare --arm finetuned; of a trained network, killick train --from",
}
SUITES = {
    "clean": "the test set: top-1, top-5, NLL, Brier, risk against coverage",
    "corruptions": "the 19 of ImageNet-C at five severities, made on the device (or read from"
    " files)",
    "cbar": "C-bar's ten, likewise",
    "calibration": "calibration errors of every set looked at, also after temperature scaling",
    "ood": "telling other pictures from the data: AUROC, AUPR, FPR at 95 %, by four scores, and"
    " three more for anchored models",
    "shift": "other sets with the model's classes (ImageNet-R, -A, -V2, Sketch, ...)",
    "references": "what the choice of the reference decides (anchored models)",
}
SCORES = {
    "energy": "minus the logsumexp of the logits",
    "max_softmax": "minus the probability of the predicted class",
    "max_logit": "minus the highest logit",
    "entropy": "of the predicted distribution",
    "residual_distance": "to the nearest residual of training (anchored models)",
    "spread": "mean standard deviation of the probabilities over references (anchored models)",
    "mutual_information": "between prediction and reference (anchored models)",
}
METRICS = {
    "top1": "share of right answers",
    "top5": "right answer among the five likeliest (more than five classes)",
    "nll": "negative log-likelihood, in nats",
    "brier": "squared distance from probabilities to the truth",
    "aurc": "area under the curve of risk against coverage",
    "ece": "calibration error of the top label, 15 equal-width bins",
    "rms_ece": "likewise, root of the mean square",
    "smooth_ece": "calibration error by a kernel instead of bins, with an interval",
    "temperature": "that logits are divided by, fitted on validation data",
    "auroc": "chance that another picture scores higher than one of the data",
    "aupr_out": "area under precision and recall, other pictures positive",
    "aupr_in": "likewise, pictures of the data positive",
    "fpr_at_95_tpr_in": "other pictures accepted where 95 % of the data are",
    "fpr_at_95_tpr_out": "pictures of the data refused where 95 % of the others are",
    "threshold": "the energy up to which 95 % (--accept) of the validation data lie",
    "accepted": "share of a set below it",
    "mce": "mean corruption error, relative to a --baseline",
    "disagreement": "answers from one reference that differ from those from all",
    "mutual_information": "between prediction and reference, in the mean",
    "error_auroc": "chance that a wrong answer has the higher score",
}

Entry = dict[str, Any]


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command."""
    parser = commands.add_parser(
        name,
        help="what is known by name: recipes, data, networks, corruptions, ...",
        description="What Killick knows by name.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick list [KIND] [--json]",
    )
    parser.add_argument(
        "what", nargs="?", metavar="KIND", choices=list(KINDS), help=f"one of {', '.join(KINDS)}"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, a list for each kind")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print a table of each kind."""
    found = {kind: make() for kind, make in KINDS.items() if options.what in (None, kind)}
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(_table(kind, entries) for kind, entries in found.items()))
    return 0


def describe(names: dict[str, str], column: int, width: int) -> str:
    """A line for each name, its meaning wrapped beside it."""
    lines = []
    for name, about in names.items():
        first, *more = textwrap.wrap(about, width - column) or [""]
        lines += [f"  {name:{column - 2}}{first}".rstrip(), *(" " * column + line for line in more)]
    return "\n".join(lines)


def _table(kind: str, entries: list[Entry]) -> str:
    """A title and a line for each entry, which on a terminal is wrapped; in a pipe it is whole."""
    width = max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 10**6
    names = {entry["name"]: _about(entry) for entry in entries}
    return f"{kind}:\n" + describe(names, 4 + max(map(len, names)), width)


def _about(entry: Entry) -> str:
    return f"{entry['list']}: {entry['about']}" if "list" in entry else str(entry["about"])


def _plain(names: dict[str, str]) -> list[Entry]:
    return [{"name": name, "about": about.rstrip(".")} for name, about in names.items()]


def _recipes() -> list[Entry]:
    return _plain({name: load_recipe(name).about.split(". ")[0] for name in shipped()})


def _networks() -> list[Entry]:
    about = _summaries("nets")
    own = {f"{name}:NAME": f"of {where} ({VARIABLE})" for name, where in own_libraries().items()}
    return _plain({f"killick:{name}": about[name] for name in NETWORKS} | OTHER_NETWORKS | own)


def _corruptions() -> list[Entry]:
    from killick.corruptions.corruption import CORRUPTIONS as REGISTERED

    rest = [name for name in REGISTERED.names() if name not in PUBLISHED]
    found = []
    for name in (*PUBLISHED, *rest):
        entry = REGISTERED.find(name)
        where = next(
            (title for kind, title in _LISTS.items() if name in CORRUPTION_SUITES[kind]), ""
        )
        if where == "C-bar":
            where += ", " + " and ".join(entry.tables)
        about = {"name": name, "list": where or "registered", "tables": list(entry.tables)}
        found.append({**about, "about": entry.description.rstrip(".")})
    return found


_LISTS = {"c15": "C", "c": "C, extra", "cbar-cifar": "C-bar", "cbar-imagenet": "C-bar"}


@lru_cache
def _summaries(package: str) -> dict[str, str]:
    """The first line of the docstring of every function in a package, read without importing it."""
    found = {}
    for file in resources.files("killick").joinpath(package).iterdir():
        if file.name.endswith(".py"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef):
                    found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def _studies() -> list[Entry]:
    from killick.studies import NAMES, find_study

    found = [find_study(name) for name in NAMES]
    return [
        {"name": each.name, "list": each.item or "beyond the paper", "about": each.about}
        for each in found
    ]


KINDS: dict[str, Callable[[], list[Entry]]] = {
    "recipes": _recipes,
    "data": lambda: _plain(DATA),
    "networks": _networks,
    "protocols": lambda: _plain(PROTOCOLS),
    "studies": _studies,
    "suites": lambda: _plain(SUITES),
    "corruptions": _corruptions,
    "scores": lambda: _plain(SCORES),
    "metrics": lambda: _plain(METRICS),
}
