"""Anchored training with masked references."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.protocols.anchored_protocol import AnchoredProtocol
from killick.protocols.base import PROTOCOLS, RunContext
from killick.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from killick.core.masking import Draw, ReferenceMasking
    from killick.protocols.base import Model
    from killick.protocols.references.reference_sampler import MaskSampler


@dataclass
class MaskedProtocol(AnchoredProtocol):
    """Anchored, with references masked now and then; --target label or uniform."""

    name: str = setting("masked", "how the network is trained")
    target: str | None = setting(
        None,
        "of masked pairs: label (the authors' code) or uniform (the paper's text). Opposite"
        " mechanisms: there is no default",
        among=("label", "uniform"),
    )
    alpha: float = setting(0.25, "how often references are masked", least=0, most=1)
    alpha_end: float | None = setting(
        None, "last value of alpha, which changes linearly; none: constant", least=0, most=1
    )
    when: str = setting("always", "part of the run that masks", among=("always", "early", "late"))
    cutoff: float = setting(
        0.5, "share of the run where early ends and late begins", least=0, most=1
    )
    every: int | None = setting(None, "instead of alpha: mask every so many steps", least=1)
    scope: str = setting("batch", "mask whole batches or single samples", among=("batch", "sample"))
    ranks: str = setting(
        "shared",
        "with several processes, all mask the same steps, or each its own",
        among=("shared", "own"),
    )
    batchnorm: str = setting(
        "settled",
        "BatchNorm statistics after masking whole batches: settled (updated on unmasked pairs) or"
        " running (as training left them, as in the authors' code; ruins target uniform, may be"
        " better calibrated with label)",
        among=("settled", "running"),
    )

    @property
    def share(self) -> float:
        """How often references are masked, averaged over the run."""
        part = {"always": 1.0, "early": self.cutoff, "late": 1 - self.cutoff}[self.when]
        if self.every is not None:
            return part / self.every
        return part * (self.alpha if self.alpha_end is None else (self.alpha + self.alpha_end) / 2)

    def check(self, recipe: Any) -> list[str]:
        """`target` must be given; `every` decides alone."""
        problems = super().check(recipe)
        if self.target is None:
            problems.append(
                "protocol.target: expected label (the authors' code) or uniform (the paper's text),"
                " found neither; they are opposite mechanisms, so there is no default"
            )
        if self.when != "always" and self.alpha_end is not None:
            problems.append("protocol.when: early and late need an alpha without alpha_end")
        if self.every is not None and (self.scope == "sample" or self.alpha_end is not None):
            problems.append("protocol.every: requires scope: batch, and no alpha_end")
        return problems

    def facts(self) -> dict[str, Any]:
        """Columns of rows."""
        return {
            **super().facts(),
            "target": self.target,
            "alpha": self.share,
            "scope": self.scope,
            "batchnorm": self.batchnorm,
        }

    def setup(self, model: "Model", run: RunContext) -> None:
        """As anchored; with `batchnorm: running` no pairs are kept to update statistics from."""
        super().setup(model, run)
        if self.batchnorm == "running":
            model.recent = None

    def unlabeled(self, draw: "Draw | None") -> "Tensor | None":
        """The masked ones, with target uniform."""
        return None if draw is None or self.target == "label" else draw.masked

    def _masks(self, run: RunContext) -> "tuple[ReferenceMasking, MaskSampler | None]":
        from killick.core.masking import ReferenceMasking
        from killick.data.keyed_random import root
        from killick.protocols.references.reference_sampler import MaskSampler

        masking = ReferenceMasking(self.alpha, target=self.target, scope=self.scope)
        process = run.rank if self.ranks == "own" else 0
        sampler = MaskSampler(self, root(run.seed, run.device), process, run.steps)
        return masking, None if self.share == 0 else sampler


PROTOCOLS.register("masked", MaskedProtocol)
