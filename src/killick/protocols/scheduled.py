"""Components whose strength changes during a run: always on, early only, or late only."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.base import Component, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from killick.protocols.base import Model


class Stepwise(Component):
    """A component whose state is how far the run is; `step` sets what follows from that."""

    _done = 0

    def step(self, number: int) -> None:
        """Note the number of steps."""
        self._done = number

    def state_dict(self) -> dict[str, Any]:
        """How far the run is."""
        return {"step": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.step(state["step"])


@dataclass
class Scheduled(Stepwise):
    """A component with a factor from 0 to 1, on the device, that follows a schedule.

    "early" is for networks that underfit, "late" for those that overfit (Liu et al. 2023).
    """

    when: str = setting("always", "part of the run it is on", among=("always", "early", "late"))
    cutoff: float = setting(
        0.5, "share of the run where early ends and late begins", least=0, most=1
    )
    ramp: bool = setting(False, "whether it falls (early) or rises linearly instead of a step")

    def factor_at(self, done: float) -> float:
        """The factor after a share of the run.

        Example:
            >>> [Scheduled(when="early", ramp=True).factor_at(done) for done in (0, 0.25, 0.75)]
            [1.0, 0.5, 0.0]
        """
        if self.when == "early":
            left = 1 - done / self.cutoff if self.cutoff else 0.0
            return max(0.0, left) if self.ramp else float(left > 0)
        begin = self.cutoff if self.when == "late" else 0.0
        if not self.ramp:
            return float(done >= begin)
        return max(0.0, (done - begin) / (1 - begin)) if begin < 1 else 0.0

    def setup(self, model: "Model", run: RunContext) -> None:
        """Begin with the factor of the first step."""
        import torch

        self._steps = run.steps
        self.factor = torch.zeros((), device=run.device)
        self._last = 0.0
        self.step(0)

    def step(self, number: int) -> None:
        """Set the factor of the next step."""
        super().step(number)
        now = self.factor_at(number / self._steps)
        if now != self._last:
            self.factor.fill_(now)
            self._last = now
