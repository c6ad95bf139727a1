"""Callbacks: a user's functions that training calls.

class Printer(Callback):
    def on_epoch(self, progress):
        print(progress.epoch, progress.values["train/loss"])

train(recipe, "my-run", callbacks=[Printer()])
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.training.run_state import TrainingRun

if TYPE_CHECKING:
    from killick.training.loop import Outcome


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        folder: Of the run.
        step: Steps done so far.
        epoch: Epochs done so far, the last one perhaps in part.
        values: What was logged last, such as "train/loss" and "validation/accuracy". The loss is
            read from the device every `log_every` steps and after each epoch.
    """

    folder: Path
    step: int
    epoch: float
    values: Mapping[str, float]
    run: TrainingRun

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.run.steps

    @property
    def model(self) -> Anchored | Standard:
        """As it would be evaluated and saved now. Leave its mode and weights as they are."""
        return self.run.inference_model


class Callback(Protocol):
    """What training calls, in the first process alone. Subclass it; an error ends the run."""

    def on_step(self, progress: Progress) -> None:
        """After each step."""

    def on_epoch(self, progress: Progress) -> None:
        """After each epoch and its validation."""

    def on_end(self, outcome: "Outcome") -> None:
        """After the model and its rows are written, or after an interruption."""
