"""Co-teaching (Han et al. 2018): two networks choose samples for each other, against label noise."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from killick.protocols.base import COMPONENTS, RunContext, components_of
from killick.protocols.scheduled import Stepwise
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from killick.protocols.base import Model


@dataclass
class CoTeaching(Stepwise):
    """Trains a second network, with fresh weights; each learns from samples that the other finds easy.

    The first network is evaluated and saved. A step costs two.
    """

    last: ClassVar[bool] = True  # the second network has what others add to the first

    name: str = "co_teaching"
    forget: float = setting(
        0.2, "share of the samples that are left out: that of wrong labels", least=0, below=1
    )
    rise: float = setting(
        0.05, "share of the run in which it grows from 0 to that", least=0, most=1
    )

    def cost(self) -> float:
        """Two networks."""
        return 2.0

    def check(self, recipe: Any) -> list[str]:
        """Losses must be those of labels."""
        problems = [
            f"components: co_teaching needs labels of single samples, and {each.name} mixes them"
            for each in components_of(recipe)
            if each.mixes
        ]
        facts = recipe.protocol.facts()
        if (facts.get("target"), facts.get("scope")) == ("uniform", "sample"):
            problems.append(
                "components: co_teaching would leave out masked samples; use target: label or scope:"
                " batch"
            )
        return problems

    def setup(self, model: "Model", run: RunContext) -> None:
        """Make the second network."""
        import torch

        second: Any = copy.deepcopy(model).cpu()  # where what is drawn depends on the seed
        for layer in second.modules():
            for reset in ("reset_parameters", "_reset_parameters"):
                getattr(layer, reset, lambda: None)()
        second.recent = None  # it is never evaluated
        self.module = second.train()

        def listen(model: "nn.Module", args: Any, kwargs: Any) -> None:
            if model.training:
                self._read = args, kwargs

        model.register_forward_pre_hook(listen, with_kwargs=True)
        self._steps = run.steps
        self._kept = torch.ones((), device=run.device)

    def criterion(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """The sum of both networks' losses, each of the samples that the other one chose."""
        from torch.nn.functional import cross_entropy

        args, kwargs = self._read
        others = self.module(*args, **kwargs).float()
        first, second = (
            cross_entropy(each, targets, reduction="none") for each in (logits, others)
        )
        return self._mean(first, second) + self._mean(second, first)

    def _mean(self, losses: "Tensor", others: "Tensor") -> "Tensor":
        """Of the losses where the other network's are smallest."""
        count = (self._kept * len(losses) + 1e-4).floor().clamp_min(1)
        chosen = others.detach().argsort(stable=True).argsort() < count
        return (losses * chosen).sum() / count

    def step(self, number: int) -> None:
        """Let the share that is left out grow."""
        super().step(number)
        grown = min(1.0, number / (self.rise * self._steps)) if self.rise else 1.0
        self._kept.fill_(1 - self.forget * grown)

    def state_dict(self) -> dict[str, Any]:
        """The second network, and how far the run is."""
        return {**super().state_dict(), "second": self.module.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them up."""
        super().load_state_dict(state)
        self.module.load_state_dict(state["second"])


COMPONENTS.register("co_teaching", CoTeaching)
