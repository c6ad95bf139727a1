"""The classifier adapter: uint8 images in, logits out, one output for each reference.

Evaluation and deployment see a model of Killick, any other network or function, a network by name
and an exported file as a `Classifier`; see `killick.evaluation.open_classifier`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.image_model import (
    Normalize,
    Threshold,
    image_model_in,
)
from killick.core.inference import Prediction, predict
from killick.core.transduction import residual_bank, residual_distances
from killick.data.batches import read_all
from killick.data.image_set import ImageSet
from killick.data.preprocessing import PlainView
from killick.evaluation.augmented_views import AugmentedViews
from killick.evaluation.mc_dropout import MCDropout, mean_logits
from killick.nets.ensemble_net import EnsembleNet
from killick.storage.exported_file import Exported

BANK_IMAGES = 2000


@dataclass
class Classifier:
    """A network with its preprocessing."""

    name: str  # in rows and messages
    model: nn.Module  # anchored, standard or folded, perhaps inside DDP or `torch.compile`
    device: torch.device
    view: PlainView  # how images are resized and cropped for it
    class_names: tuple[str, ...] | None  # in the order of the logits, if known
    references: int | None  # how many of the stored ones it uses; None if it has none
    facts: dict[str, Any]  # how it was trained, as columns of rows
    weights: str  # a digest of them
    classes: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)  # of the model, if known
    normalizer: Normalize | None = None  # for a model that takes floats
    class_ids: tuple[str, ...] | None = None  # other names of the classes
    exported: Exported | None = None  # the file that `model` runs, if it is one
    bank: Tensor | None = field(default=None, repr=False)  # residuals like those of training
    dropout: MCDropout | None = None  # of predictions with dropout on
    views: AugmentedViews | None = None  # of test-time augmentation
    candidates: int = 0  # references that transduction chooses from; 0: no transduction

    @property
    def recipe(self) -> dict[str, Any]:
        """Of its training; empty if unknown."""
        return self.provenance.get("recipe") or {}

    @property
    def outputs(self) -> int:
        """How many outputs `logits` gives for each image: one for each reference."""
        averaged = self.dropout is not None or self.views is not None
        once = self.exported is not None or self.candidates or averaged
        return 1 if once else self.references or 1

    @property
    def inference(self) -> str:
        """How it predicts from its first reference, as in rows."""
        if self.dropout is not None:
            return "mc-dropout"
        if self.views is not None:
            return "tta"
        return "transductive" if self.candidates else "single"

    @property
    def cost(self) -> int | None:
        """Forward passes of a prediction from one reference; None for an exported file."""
        if self.exported is not None:
            return None
        members = 1 if self.ensemble is None else self.ensemble.cost
        draws = 1 if self.dropout is None else self.dropout.draws
        return members * draws * (1 if self.views is None else len(self.views))

    @property
    def several(self) -> bool:
        """Whether it has several references, draws, views or networks, which may disagree."""
        return self.outputs > 1 or self.inference in ("mc-dropout", "tta") or bool(self.ensemble)

    @property
    def ensemble(self) -> EnsembleNet | None:
        """The ensemble, if it is one."""
        net = getattr(image_model_in(self.model), "net", None)
        return net if isinstance(net, EnsembleNet) else None

    @property
    def anchored(self) -> Anchored | None:
        """The anchored model, if it is one."""
        inner = image_model_in(self.model)
        return inner if isinstance(inner, Anchored) else None

    @property
    def threshold(self) -> Threshold | None:
        """The stored energy threshold, if there is one for so many references."""
        if self.exported is not None:
            return self.exported.threshold
        found: Threshold | None = getattr(image_model_in(self.model), "threshold", None)
        return found if found is not None and found.k == (self.references or 1) else None

    @property
    def usual_batch(self) -> int:
        """A good number of images for a forward pass."""
        many = 100 if self.device.type == "cpu" else 1000
        return many if self.view.size <= 64 else many // 4

    def describe_view(self) -> str:
        """The preprocessing of a network by name, with the options that change it."""
        normalize = getattr(image_model_in(self.model), "normalize", None)
        assert normalize is not None
        return (
            f"{self.name}: images of {self.view.described}, normalized by mean {normalize.mean} and"
            f" std {normalize.std} (--size, --resize, --interpolation, --mean, --std)"
        )

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """`(references, n, classes)`: the logits of uint8 images for each reference, as float32."""
        found = self.passes(images, self._logits)
        return found[0] if len(found) == 1 else mean_logits(torch.cat(found))

    @torch.no_grad()
    def members(self, images: Tensor) -> Tensor | None:
        """`(members, n, classes)`: the logits whose probabilities a prediction is the mean of.

        One for each dropout draw, augmented view or network of an ensemble; None if a prediction is
        no such mean.
        """
        inner = image_model_in(self.model)
        if self.ensemble is not None and inner is not None and self.inference == "single":
            images = self.prepare(images).contiguous(memory_format=torch.channels_last)
            return self.ensemble.each(
                images if inner.normalize is None else inner.normalize(images)
            )
        found = self.passes(images, self._logits)
        return None if len(found) == 1 else torch.cat(found)

    def passes(
        self, images: Tensor, run: Callable[[Tensor], Tensor], draws: int | None = None
    ) -> list[Tensor]:
        """What `run` gives in each pass of a prediction: one for each draw of dropout, or view."""
        if self.dropout is not None:
            found = []
            for _ in range(draws or self.dropout.draws):
                with self.dropout.drawing():
                    found.append(run(images))
            return found
        return [run(images)] if self.views is None else [run(each) for each in self.views(images)]

    def _logits(self, images: Tensor) -> Tensor:
        images = self.prepare(images).contiguous(memory_format=torch.channels_last)
        if image_model_in(self.model) is None:
            output: Tensor = self.model(images)
            return output.float()[None]
        found = self._predict(images, members=True)
        return (found.logits[None] if found.members is None else found.members).float()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Prediction:
        """The prediction for uint8 images, `(n, 3, size, size)`, over all of its references."""
        images = images.to(self.device)
        if self.exported is None:
            return self._predict(self.prepare(images))
        found = self.exported(images)
        inside = found.get("in_distribution")
        return Prediction(
            found["logits"].float(),
            torch.arange(self.references or 0),
            probs=found["probabilities"].float(),
            energy=found["energy"].float().flatten(),
            std=found.get("std"),
            in_distribution=None if inside is None else inside.bool().flatten(),
        )

    @torch.no_grad()
    def residual_distances(self, images: Tensor) -> Tensor | None:
        """`(references, n)`: distances of residuals from those of training, where these are known."""
        inner = self.anchored
        if self.bank is None or inner is None:
            return None
        images = self.prepare(images)
        stored = inner.stored_references(self.outputs, like=images)
        return residual_distances(inner, images, stored, self.bank).T

    def store_residuals(self, inner: Anchored, train: ImageSet | None, seed: int) -> None:
        """Take the residual bank of the anchored model, or make one from training images."""
        if len(inner.residuals):
            self.bank = inner.residuals
        elif train is not None:
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(train), generator=generator)[:BANK_IMAGES]
            images = torch.cat(list(read_all(train.part(chosen), self.view)))
            images = self.prepare(images.to(inner.references.device))
            self.bank = residual_bank(inner, images, generator=generator)

    def _predict(self, images: Tensor, *, members: bool = False) -> Prediction:
        if self.candidates:
            return predict(self.model, images, "transductive", self.candidates)
        if self.references in (None, 1):
            return predict(self.model, images, members=members)
        return predict(self.model, images, "marginal", self.references, members=members)

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 images as the model takes them."""
        return images if self.normalizer is None else self.normalizer(images)
