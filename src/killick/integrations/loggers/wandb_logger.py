"""Weights & Biases (extra `wandb`), which reads WANDB_MODE, WANDB_PROJECT and the like itself."""

import os
from dataclasses import asdict
from pathlib import Path

from killick.errors import OptionError, one_line
from killick.training.loggers import (
    LOGGERS,
    Logger,
    Values,
    numbers,
    read_run_id,
    write_run_id,
)
from killick.training.recipe import Recipe

_TIMEOUT = 20  # seconds for its server to answer


class WandbLogger(Logger):
    """A run of the project "killick", or of WANDB_PROJECT, with its files in the run folder.

    A resumed run has the same id. Its curves are drawn over the metric `step`: wandb's own counter
    cannot go back to the step of a checkpoint.
    """

    library = "wandb"

    def __init__(self, folder: Path, recipe: Recipe | None, step: int | None) -> None:
        import wandb

        self._library, there = wandb, read_run_id(folder, "wandb")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "killick"),
                name=None if there else folder.absolute().name,
                id=there,
                resume="allow" if there else None,
                dir=folder,
                config=None if recipe is None else asdict(recipe),
                reinit="create_new",
                settings=wandb.Settings(silent=True, init_timeout=_TIMEOUT, login_timeout=_TIMEOUT),
            )
        except Exception as problem:  # no account, or no connection
            raise OptionError(
                f"{one_line(problem)}. Without an account or a connection: WANDB_MODE=offline"
            ) from problem
        write_run_id(folder, "wandb", self._run.id)
        self._run.define_metric("*", step_metric="step")

    def log(self, kind: str, step: int, values: Values) -> None:
        """Log the numbers; those of the test set are also the run's summary."""
        found = numbers(kind, values)
        self._run.log({"step": step, **found})
        if kind == "test":
            self._run.summary.update(found)

    def log_file(self, path: Path) -> None:
        """Log an artifact named by run and file; a page is also shown in the run."""
        artifact = self._library.Artifact(f"{path.stem}-{self._run.id}", type="results")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)
        if path.suffix == ".html":
            self._run.log({path.stem: self._library.Html(str(path))})

    def close(self) -> None:
        """Finish the run: everything is sent, or written in offline mode."""
        self._run.finish()


LOGGERS.register("wandb", WandbLogger)
