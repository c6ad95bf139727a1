"""TensorBoard (extra `tensorboard`): files in the folder `tensorboard` of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from killick.errors import import_library
from killick.training.loggers import LOGGERS


class TensorboardLogger:
    """Writes every number as a scalar named kind/name."""

    def __init__(self, folder: Path, recipe: Any, step: int | None) -> None:
        import_library("tensorboard", "tensorboard", "the logger tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        purge = None if step is None else step + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add the numbers among `values`."""
        for name, value in values.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


LOGGERS.register("tensorboard", TensorboardLogger)
