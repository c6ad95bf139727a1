"""Anchored training: the network sees [reference, image - reference], and no reference is masked."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from killick.protocols.base import PROTOCOLS, RunContext, TrainingProtocol
from killick.settings import setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from killick.core.masking import Draw, ReferenceMasking
    from killick.data.batches import Batch
    from killick.protocols.base import Model
    from killick.protocols.references.reference_sampler import MaskSampler


@dataclass
class AnchoredProtocol(TrainingProtocol):
    """Sees [reference, image - reference], never masked."""

    anchored: ClassVar[bool] = True

    name: str = setting("anchored", "how the network is trained")
    references: str = setting(
        "clean",
        "in training: clean or augmented images of the training set, or the batch's own",
        among=("clean", "augmented", "batch"),
    )
    reference_set: int | None = setting(
        None, "how many images references are drawn from, class-balanced; none: all", least=1
    )
    stored: int = setting(10, "references kept with the model for evaluation", least=1)
    stored_as: str = setting(
        "images",
        "the stored references: training images, which travel with the model; or the mean of all,"
        " or synthetic ones with their spectrum",
        among=("images", "mean", "synthetic"),
    )
    stem: str = setting(
        "auto",
        "first weights of the doubled layer: exact, or random as in the paper; auto: random from"
        " scratch, exact with --from",
        among=("auto", "exact", "random"),
    )

    def check(self, recipe: Any) -> list[str]:
        """References must fit the augmentation."""
        problems = []
        if self.reference_set is not None and self.references == "batch":
            problems.append("protocol.reference_set: has no effect with references: batch")
        by_image = recipe.augment.crop == "resized" or recipe.augment.policy != "none"
        if self.references == "augmented" and by_image:
            problems.append(
                "protocol.references: augmented references are only padded and flipped; use clean"
                " or batch with crop: resized or a policy"
            )
        return problems

    def facts(self) -> dict[str, Any]:
        """The column `references`."""
        return {"references": self.references}

    def network(self, model: "Model", *, fresh: bool) -> "Model":
        """`model`, anchored unless it is already."""
        from killick.core.anchored import Anchored, anchor

        if isinstance(model, Anchored):
            return model
        random = fresh if self.stem == "auto" else self.stem == "random"
        return anchor(model, init="random" if random else "exact").train()

    def setup(self, model: "Model", run: RunContext) -> None:
        """Store references in the model, and prepare drawing them."""
        from killick.core.anchored import Anchored
        from killick.core.synthetic_references import forget_old_references
        from killick.protocols.references.reference_sampler import (
            ReferenceSampler,
            choose_stored,
            make_pool,
        )

        assert isinstance(model, Anchored)
        images, policy = choose_stored(self, run)
        model.set_references(images, policy=policy)
        model.reference_kind = self.stored_as  # type: ignore[assignment]
        if self.stored_as != "images":  # a model that training starts from may hold some
            forget_old_references(model)
        self._masking, mask = self._masks(run)
        self._sampler = ReferenceSampler(*make_pool(self, run), mask=mask)

    def draw(self, batch: "Batch", step: "Tensor") -> "Draw | None":
        """The reference of each image, and whether it is masked."""
        return self._sampler.draw(batch, step)

    def forward(
        self,
        model: "Callable[..., Tensor]",
        images: "Tensor",
        labels: "Tensor",
        draw: "Draw | None",
    ) -> "tuple[Tensor, Tensor]":
        """Logits of the pairs, and their targets."""
        assert draw is not None
        return self._masking.forward(model, images, labels, draw)

    def _masks(self, run: RunContext) -> "tuple[ReferenceMasking, MaskSampler | None]":
        """How masked pairs are trained, and what draws them; None: nothing does."""
        from killick.core.masking import ReferenceMasking

        return ReferenceMasking(alpha=0.0, target="label"), None


PROTOCOLS.register("anchored", AnchoredProtocol)
