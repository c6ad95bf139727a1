"""Anchored training under Lightning: a `LightningModule` for anchored classifiers.

It needs the extra `lightning`, and `import killick` does not import it:

    from killick.lightning import AnchoredClassifier

    module = AnchoredClassifier(killick.anchor(net), killick.ReferenceMasking(0.25, target="label"))
    lightning.Trainer(max_epochs=10).fit(module, train_loader, validation_loader)
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from killick.core.anchored import anchored_in
from killick.core.inference import Prediction, predict
from killick.core.masking import ReferenceMasking
from killick.core.references import ReferencePool
from killick.errors import DataError, import_library

import_library("lightning", "lightning", "killick.lightning")
from lightning import LightningModule  # noqa: E402

STORED = 10  # references for evaluation, where the model comes without any
_log = logging.getLogger("killick")


def default_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD as usual for small images: learning rate 0.1, momentum 0.9, weight decay 5e-4."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)


class AnchoredClassifier(LightningModule):
    """An anchored model with its training and evaluation steps, for Lightning's `Trainer`.

    It logs "train/loss" at every step, and over whole validation and test sets "val/loss",
    "val/cls/Acc", "test/loss" and "test/cls/Acc", exact also where batches differ in size. Batches
    are pairs `(images, labels)`.

    Evaluation needs stored references. A model that has none when fitting starts gets ten images
    of the pool (`references.choose(10, seed=0)`), or, without a pool, the first ten images of the
    first training batch, as augmented as they come; the model's `reference_policy` says which.
    Store your own beforehand, `model.set_references(images)`, and they are kept. Lightning's sanity
    check comes before any training batch: it may see each validation batch from its own first
    image, and its numbers are thrown away.

    A model in eval mode is switched to train mode when fitting starts; layers that are in eval mode
    inside a model in train mode stay so. What is random is drawn from the default generator of the
    device, which `lightning.seed_everything` sets.

    Checkpoints also hold the state of `masking` and the last training pairs, from which BatchNorm
    is settled (6 MB for images of 32 pixels in uint8, 256 MB at most).

    Args:
        model: Anchored: `killick.anchor(net)`.
        masking: When references are masked, and what is learnt then; None for plain anchored
            training, without any masking.
        optimizer: Makes the optimizer from the parameters; `default_optimizer` if not given.
        schedule: Makes the scheduler of the learning rate from the optimizer. It is stepped after
            each epoch; return Lightning's `{"scheduler": …, "interval": "step"}` for other times.
        references: Where references of training come from: a pool, moved to the device when
            fitting starts, or None for the batch's own images.
        criterion: Of logits and targets, as in `ReferenceMasking.loss`.
        optimiser: Another spelling of `optimizer`.
    """

    def __init__(
        self,
        model: nn.Module,
        masking: ReferenceMasking | None = None,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
        references: ReferencePool | None = None,
        criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    ) -> None:
        super().__init__()
        anchored_in(model)  # refuses what is not anchored
        self.model = model
        # Nothing is masked at alpha=0, so the target never comes into play.
        self.masking = masking or ReferenceMasking(alpha=0, target="label")
        self.optimizer = optimizer or optimiser or default_optimizer
        self.schedule = schedule
        self.references = references
        self.criterion = criterion

    def forward(self, x: Tensor) -> Tensor:
        """Logits; in eval mode with the first stored reference."""
        logits: Tensor = self.model(x)
        return logits

    def configure_optimizers(self) -> Any:
        """The optimizer, and its schedule if there is one."""
        optimizer = self.optimizer(self.parameters())
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}

    def on_fit_start(self) -> None:
        """Move the pool to the device, and store references from it if there are none."""
        anchored = anchored_in(self.model)
        if not anchored.training:
            self.model.train()
        if self.references is None:
            return
        self.references = self.references.to(self.device)
        if len(anchored.references) == 0:
            k = min(STORED, len(self.references))
            anchored.set_references(
                self.references.choose(k, seed=0), policy=f"{k} of the pool, random, seed 0"
            )

    def on_train_start(self) -> None:
        """Move remembered pairs, which a checkpoint has brought to the CPU, to the device."""
        recent = anchored_in(self.model).own_recent()
        if recent is not None:
            recent.load_state_dict(recent.state_dict(), self.device)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one step, with references drawn and masked."""
        x, labels = _images_and_labels(batch)
        if len(anchored_in(self.model).references) == 0:
            self._store_from(x)
        loss = self.masking.loss(self.model, x, labels, self.references, criterion=self.criterion)
        self.log("train/loss", loss, batch_size=len(x))
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log loss and accuracy on a batch for validation."""
        self._evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log loss and accuracy on a batch for testing."""
        self._evaluate(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Prediction:
        """`killick.predict` of the images, which may come with or without labels."""
        x = batch if isinstance(batch, Tensor) else _images_and_labels(batch)[0]
        return predict(self.model, x)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of the masking, and the last training pairs."""
        recent = anchored_in(self.model).recent
        checkpoint["killick"] = {
            "masking": self.masking.state_dict(),
            "recent": None if recent is None else recent.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what `on_save_checkpoint` wrote; a checkpoint of weights alone has nothing."""
        state = checkpoint.get("killick")
        if state is None:
            return
        self.masking.load_state_dict(state["masking"])
        recent = anchored_in(self.model).own_recent()
        if recent is not None and state["recent"] is not None:
            recent.load_state_dict(state["recent"])

    def _store_from(self, x: Tensor) -> None:
        # One batch for all processes: each has read another.
        images = self.trainer.strategy.broadcast(x[:STORED])
        policy = f"first {len(images)} of the first training batch"
        anchored_in(self.model).set_references(images, policy=policy)
        _log.info("no references were stored: evaluation uses the %s.", policy)

    def _evaluate(self, batch: Any, stage: str) -> None:
        x, labels = _images_and_labels(batch)
        if labels.ndim != 1 or labels.is_floating_point():
            raise DataError(
                "expected class indices (n,) for evaluation, found labels of shape"
                f" {tuple(labels.shape)}, {labels.dtype}. Mix or smooth labels in training alone."
            )
        if self.trainer.sanity_checking and len(anchored_in(self.model).references) == 0:
            logits = self.model(x, x[:1].expand_as(x))
        else:
            logits = self.model(x)
        found = {
            f"{stage}/loss": self.criterion(logits, labels.long()),
            f"{stage}/cls/Acc": (logits.argmax(-1) == labels).float().mean(),
        }
        self.log_dict(found, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(x))


def _images_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    if not pair or not all(isinstance(part, Tensor) for part in batch):
        raise DataError(
            f"batches must be (images, labels), two tensors, found {type(batch).__name__}. Let the"
            " data set give such pairs, or collate_fn= of the data loader make them."
        )
    return batch[0], batch[1]
