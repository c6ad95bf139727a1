"""Training: a recipe in, a run folder out."""

from kedge.training.loop import Outcome as Outcome
from kedge.training.loop import recipe_of as recipe_of
from kedge.training.loop import train as train
from kedge.training.recipe import Recipe as Recipe
from kedge.training.recipe_files import load_recipe as load_recipe
from kedge.training.recipe_files import make_recipe as make_recipe
from kedge.training.recipe_files import shipped as shipped
from kedge.training.recipe_files import to_yaml as to_yaml
