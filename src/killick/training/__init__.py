"""Training: a recipe in, a run folder out.

May import all rooms up to `protocols`; `killick.training.train`, `load_recipe` and `Recipe` are the
public names.

In: a recipe. Out: a run folder with checkpoint, metrics and model.
"""

from typing import TYPE_CHECKING, Any

from killick.training.recipe import Recipe as Recipe
from killick.training.recipe_files import load_recipe as load_recipe
from killick.training.recipe_files import make_recipe as make_recipe
from killick.training.recipe_files import recipe_of as recipe_of
from killick.training.recipe_files import shipped as shipped
from killick.training.recipe_files import to_yaml as to_yaml

if TYPE_CHECKING:
    from killick.training.loop import Outcome as Outcome
    from killick.training.loop import train as train


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is used, since that takes seconds."""
    if name not in ("Outcome", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from killick.training import loop

    return getattr(loop, name)
