"""MLflow (extra `mlflow`): where MLFLOW_TRACKING_URI says, else a database of MLflow's here."""

import os
import time
from dataclasses import asdict
from pathlib import Path

from killick.report.run_groups import flatten
from killick.training.loggers import (
    LOGGERS,
    Logger,
    Values,
    numbers,
    read_run_id,
    write_run_id,
)
from killick.training.recipe import Recipe

_LONGEST = 500  # characters of a parameter that every version of MLflow takes


class MlflowLogger(Logger):
    """A run of the experiment "killick", or of MLFLOW_EXPERIMENT_NAME; the same after a resume."""

    library = "mlflow"

    def __init__(self, folder: Path, recipe: Recipe | None, step: int | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._make_metric = MlflowClient(), Metric
        there = read_run_id(folder, "mlflow")
        if there is not None:
            self._run = there
            self._client.update_run(self._run, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "killick")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        run = self._client.create_run(experiment, run_name=folder.absolute().name)
        self._run = run.info.run_id
        write_run_id(folder, "mlflow", self._run)
        if recipe is not None:
            settings = flatten(asdict(recipe))
            params = [Param(name, str(value)[:_LONGEST]) for name, value in settings.items()]
            self._client.log_batch(self._run, params=params[:100])
            self._client.log_artifact(self._run, str(folder / "recipe.yaml"))

    def log(self, kind: str, step: int, values: Values) -> None:
        """Log the numbers."""
        now = int(1000 * time.time())
        found = numbers(kind, values).items()
        metrics = [self._make_metric(name, float(value), now, step) for name, value in found]
        self._client.log_batch(self._run, metrics=metrics)

    def log_file(self, path: Path) -> None:
        """Log an artifact."""
        self._client.log_artifact(self._run, str(path))

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


LOGGERS.register("mlflow", MlflowLogger)
