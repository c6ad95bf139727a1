"""Training: a recipe in, a run folder out."""

from typing import TYPE_CHECKING, Any

from killick.training.recipe import Recipe as Recipe
from killick.training.recipe_files import load_recipe as load_recipe
from killick.training.recipe_files import make_recipe as make_recipe
from killick.training.recipe_files import shipped as shipped
from killick.training.recipe_files import to_yaml as to_yaml

if TYPE_CHECKING:
    from killick.training.loop import Outcome as Outcome
    from killick.training.loop import recipe_of as recipe_of
    from killick.training.loop import train as train


def __getattr__(name: str) -> Any:
    """The loop, when it is asked for: it needs torchvision, which takes seconds to import."""
    if name in ("Outcome", "recipe_of", "train"):
        from killick.training import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
