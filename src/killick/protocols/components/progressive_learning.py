"""Progressive learning (Tan and Le 2021): image size and regularization grow together."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.protocols.activation_noise import hook_features
from killick.protocols.base import COMPONENTS, RunContext
from killick.protocols.components.mixup import check_pairs
from killick.protocols.scheduled import Stepwise
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor, nn

    from killick.data.batches import Batch
    from killick.protocols.base import Model


@dataclass
class ProgressiveLearning(Stepwise):
    """Trains in stages with larger and larger images, and with them dropout, mixup and RandAugment.

    Batches are resized before the network; evaluation sees images of full size.
    """

    name: str = "progressive_learning"
    stages: int = setting(4, "of equal length", least=2)
    smallest: float = setting(0.5, "first image size, as a share of data.size", above=0, most=1)
    dropout: list[float] = setting(
        [0.0, 0.3], "before the last layer, in the first and the last stage", least=0, below=1
    )
    mixup: list[float] = setting([0.0, 0.2], "alpha, likewise; [0, 0]: none", least=0)
    magnitude: list[int] = setting(
        [],
        "of RandAugment on batches, such as [5, 15]; empty: that of the policy",
        least=0,
        most=30,
    )

    @property
    def captures(self) -> bool:
        """Shapes change."""
        return False

    def cost(self) -> float:
        """The mean number of pixels in a step."""
        return sum(side**2 for side in self._sides()) / self.stages

    def _sides(self) -> list[float]:
        """Of each stage, as shares of the full size."""
        rise = (1 - self.smallest) / (self.stages - 1)
        return [self.smallest + rise * stage for stage in range(self.stages)]

    @property
    def mixes(self) -> bool:
        """Whether mixup is used."""
        return any(self.mixup)

    def check(self, recipe: Any) -> list[str]:
        """Ranges have two ends, and a magnitude is that of RandAugment."""
        ranges: dict[str, list[Any]] = {"dropout": self.dropout, "mixup": self.mixup}
        if self.magnitude:
            ranges["magnitude"] = self.magnitude
        problems = [
            f"components: progressive_learning.{name} needs a first and a last value, found {values}"
            for name, values in ranges.items()
            if len(values) != 2
        ]
        if self.magnitude and recipe.augment.policy != "randaugment":
            problems.append(
                "components: progressive_learning.magnitude needs augment.policy: randaugment, found"
                f" {recipe.augment.policy}"
            )
        return problems

    def setup(self, model: "Model", run: RunContext) -> None:
        """Prepare all stages, and begin with the first."""
        import torch

        from killick.core.stochastic_layers import drop_elements
        from killick.data.mixing import Mixing
        from killick.data.transforms import resize

        self._run = run
        shares = [stage / (self.stages - 1) for stage in range(self.stages)]
        side = model.image_shape[-1]
        self._sizes = [round(side * share) for share in self._sides()]
        self._check_sizes(model)
        self._rates, alphas = (
            [first + (last - first) * share for share in shares]
            for first, last in (self.dropout, self.mixup)
        )
        if self.mixes:
            check_pairs(run)
        self._mixing = [Mixing(alpha, 0.0, run.classes, run.device) for alpha in alphas]
        self._rate = torch.zeros((), device=run.device)
        hook_features(model, lambda x: drop_elements(x, self._rate))

        def shrink(net: "nn.Module", read: "tuple[Tensor, ...]") -> Any:
            size = self._sizes[self._stage]
            if not net.training or size == side:
                return None
            return (resize(read[0], size), *read[1:])

        model.net.register_forward_pre_hook(shrink)
        self.step(0)

    def _check_sizes(self, model: "Model") -> None:
        """Refuse networks for images of one size."""
        import torch

        from killick.core.anchored import evaluating
        from killick.core.inspection import run
        from killick.core.residual_blocks import example_inputs
        from killick.data.transforms import resize

        for size in self._sizes:
            try:
                with evaluating(model), torch.no_grad():
                    run(model.net, resize(example_inputs(model), size))
            except Exception:  # whatever a network raises for images of another size
                raise OptionError(
                    f"progressive_learning needs a network for images of any size, and"
                    f" {type(model.net).__name__} takes none of {size} px. Leave it out, or set"
                    " smallest."
                ) from None

    def batch(self, batch: "Batch") -> "Batch":
        """With mixup, mixed images and labels as probabilities."""
        if not self.mixes:
            return batch
        mixing = self._mixing[self._stage]
        return batch.with_mixed(*mixing(batch.images, batch.labels, batch.keys))

    def step(self, number: int) -> None:
        """Go on to the next stage when it is time."""
        super().step(number)
        self._stage = min(self.stages - 1, number * self.stages // self._run.steps)
        self._rate.fill_(self._rates[self._stage])
        if self.magnitude:
            first, last = self.magnitude
            share = self._stage / (self.stages - 1)
            self._set_magnitude(round(first + (last - first) * share))

    def _set_magnitude(self, magnitude: int) -> None:
        from killick.data.augment.policies import BatchRandAugment

        policy = self._run.policy
        if not isinstance(policy, BatchRandAugment):
            raise OptionError(
                "progressive_learning.magnitude needs RandAugment on batches, and workers apply it"
                " here. Leave it out, or use data.resident: always."
            )
        policy.set_magnitude(magnitude)


COMPONENTS.register("progressive_learning", ProgressiveLearning)
