"""TensorBoard (extra `tensorboard`): files in the folder `tensorboard` of a run."""

from pathlib import Path

from killick.training.loggers import LOGGERS, Logger, Values, numbers
from killick.training.recipe import Recipe
from killick.training.recipe_files import to_yaml


class TensorboardLogger(Logger):
    """Writes every number as a scalar named kind/name, and the recipe as text."""

    library = "tensorboard"

    def __init__(self, folder: Path, recipe: Recipe | None, step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if step is None else step + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        if recipe is not None:
            self._writer.add_text("recipe", f"```yaml\n{to_yaml(recipe)}```")

    def log(self, kind: str, step: int, values: Values) -> None:
        """Add the numbers among `values`."""
        for name, value in numbers(kind, values).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


LOGGERS.register("tensorboard", TensorboardLogger)
