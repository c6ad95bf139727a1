"""`kedge list`."""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from kedge.corruptions.making import MAKERS, list_corruptions
from kedge.nets import OWN
from kedge.training.recipe_files import load_recipe, shipped

DATA = {
    "shapes": "ten shapes, 32 px, made by Kedge; no download",
    "digits": "handwritten digits of scikit-learn, 32 px; no download",
    "cifar10, cifar100": "on disk under --data.root; --data.download true fetches them",
    "imagefolder:PATH": "a folder for each class, or train/ and test/ with such folders",
    "imagenet:PATH": "train/ and val/ with a folder for each class",
    "pack:FILE.npz[#SPLIT]": "encoded pictures in one file",
    "pictures:PATH": "any pictures below a folder, without classes; for evaluate --ood",
    "hf:NAME_OR_FOLDER": "of the datasets library (kedge[hf])",
}


def add(commands: Any, name: str) -> None:
    """Tell the parser of `kedge` about this command."""
    parser = commands.add_parser(
        name,
        help="recipes, data sets, networks and corruptions",
        description="What Kedge knows by name.",
    )
    parser.add_argument(
        "what", nargs="?", choices=["recipes", "data", "networks", "corruptions"], help="only these"
    )


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print a table of each kind."""
    if rest:
        from kedge.errors import OptionError

        raise OptionError(f"expected nothing more, found {' '.join(rest)}.")
    tables = {
        "recipes": {name: load_recipe(name).about.split(". ")[0] for name in shipped()},
        "data": DATA,
        "networks": {
            **{f"kedge:{name}": (make.__doc__ or "").split("\n")[0] for name, make in OWN.items()},
            "timm:NAME": "any of timm's; `timm.list_models()`",
            "torchvision:NAME": "any classifier of torchvision's",
        },
        "corruptions": {name: _describe_corruption(name) for name in MAKERS},
    }
    console = Console(highlight=False, markup=False)
    for title, rows in tables.items():
        if options.what in (None, title):
            table = Table(title=title, title_justify="left", show_header=False, box=None)
            table.add_column(no_wrap=True)
            table.add_column()
            for row in rows.items():
                table.add_row(*row)
            console.print(table)
    return 0


def _describe_corruption(name: str) -> str:
    """In which lists it is, and what it does."""
    if name in list_corruptions("c15", "cifar"):
        where = "C"
    elif name in list_corruptions("c", "cifar"):
        where = "C, extra"
    else:
        tables = [t for t in ("cifar", "imagenet") if name in list_corruptions("cbar", t)]
        where = f"C-bar, {' and '.join(tables)}"
    return f"{where}: {(MAKERS[name].__doc__ or '').splitlines()[0]}"
