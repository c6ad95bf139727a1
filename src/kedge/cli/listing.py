"""`kedge list`."""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from kedge.nets import OWN
from kedge.training.recipe_files import load_recipe, shipped

DATA = {
    "shapes": "ten shapes, 32 px, made by Kedge; no download",
    "digits": "handwritten digits of scikit-learn, 32 px; no download",
    "cifar10, cifar100": "on disk under --data.root; --data.download true fetches them",
    "imagefolder:PATH": "a folder for each class, or train/ and test/ with such folders",
    "imagenet:PATH": "train/ and val/ with a folder for each class",
    "pack:FILE.npz[#SPLIT]": "encoded pictures in one file",
    "hf:NAME_OR_FOLDER": "of the datasets library (kedge[hf])",
}


def add(commands: Any, name: str) -> None:
    """Tell the parser of `kedge` about this command."""
    parser = commands.add_parser(
        name,
        help="recipes, data sets and networks",
        description="What Kedge knows by name.",
    )
    parser.add_argument(
        "what", nargs="?", choices=["recipes", "data", "networks"], help="only these"
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
