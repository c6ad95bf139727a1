"""Anchored training under Lightning: a `LightningModule`, and a mixin for a module of your own.

It needs the extra `lightning`, and `import killick` does not import it:

    from killick.lightning import AnchoredClassifier

    module = AnchoredClassifier(killick.anchor(net), killick.ReferenceMasking(0.25, target="label"))
    lightning.Trainer(max_epochs=10).fit(module, train_loader, validation_loader)

In a module of your own, which keeps its steps, optimizers and logging:

    class Mine(AnchoredMixin, LightningModule):
        def __init__(self):
            super().__init__()
            self.model = killick.anchor(net)
            self.masking = killick.ReferenceMasking(0.25, target="label")

        def training_step(self, batch, batch_idx):
            return self.anchored_loss(batch["image"], batch["label"])

        def validation_step(self, batch, batch_idx):
            self.evaluate_batch(batch["image"], batch["label"], "val")
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from killick.core.anchored import anchored_in
from killick.core.batchnorm import running_mean, running_variance, tracked_norms
from killick.core.inference import Prediction, predict
from killick.core.masking import ReferenceMasking
from killick.core.references import ReferencePool
from killick.errors import DataError, import_library

import_library("lightning", "lightning", "killick.lightning")
from lightning import LightningModule  # noqa: E402
from torchmetrics import MeanMetric, MetricCollection  # noqa: E402

from killick.integrations.torchmetrics import EnergyAUROC, SmoothCalibrationError  # noqa: E402

STORED = 10  # references for evaluation, where the model comes without any
_log = logging.getLogger("killick")


def default_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD as usual for small images: learning rate 0.1, momentum 0.9, weight decay 5e-4."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)


class AnchoredMixin:
    """What anchored training and evaluation need of a `LightningModule`, which is the second base.

    The module sets `self.model`, anchored, and `self.masking`, a `ReferenceMasking`; its steps call
    `anchored_loss` and `evaluate_batch`. It may set `self.references`, a pool that references of
    training are drawn from, and `self.criterion`, of logits and targets. A hook that is overridden
    has to call the one of `super()`.

    After each epoch of evaluation it logs "val/loss", "val/cls/Acc", "val/cal/SmoothECE" and, if
    there were OOD images, "val/ood/AUROC" (by energy), and likewise "test/…". They are those of all
    batches, loaders and processes together. Images with a label below 0 are OOD: let a second
    loader give them.

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
    """

    model: nn.Module
    masking: ReferenceMasking
    references: ReferencePool | None = None
    criterion: Callable[[Tensor, Tensor], Tensor] = staticmethod(cross_entropy)
    # Of LightningModule.
    device: torch.device
    trainer: Any
    log_dict: Callable[..., None]

    def anchored_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of one step, with references drawn and masked."""
        if len(anchored_in(self.model).references) == 0:
            self._store_from(x)
        return self.masking.loss(self.model, x, labels, self.references, criterion=self.criterion)

    def evaluate_batch(self, x: Tensor, labels: Tensor, stage: str) -> Tensor:
        """Count a batch for the metrics of a stage, "val" or "test"; the logits."""
        if labels.ndim != 1 or labels.is_floating_point():
            raise DataError(
                "expected class indices (n,) for evaluation, found labels of shape"
                f" {tuple(labels.shape)}, {labels.dtype}. Mix or smooth labels in training alone."
            )
        logits: Tensor
        if self.trainer.sanity_checking and len(anchored_in(self.model).references) == 0:
            logits = self.model(x, x[:1].expand_as(x))
        else:
            logits = self.model(x)
        means, others = self._metrics(stage)
        known = labels >= 0
        if count := int(known.sum()):
            inside, right = logits[known], labels[known].long()
            means["loss"].update(self.criterion(inside, right), count)
            means["cls/Acc"].update((inside.argmax(-1) == right).float().mean(), count)
        others.update(logits, labels)
        return logits

    def on_fit_start(self) -> None:
        """Move the pool to the device, and store references from it if there are none."""
        super().on_fit_start()  # type: ignore[misc]
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
        super().on_train_start()  # type: ignore[misc]
        recent = anchored_in(self.model).own_recent()
        if recent is not None:
            recent.load_state_dict(recent.state_dict(), self.device)

    def on_validation_start(self) -> None:
        """Give all processes the same BatchNorm statistics."""
        super().on_validation_start()  # type: ignore[misc]
        self._share_statistics()

    def on_test_start(self) -> None:
        """Give all processes the same BatchNorm statistics."""
        super().on_test_start()  # type: ignore[misc]
        self._share_statistics()

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of validation."""
        super().on_validation_epoch_end()  # type: ignore[misc]
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of testing."""
        super().on_test_epoch_end()  # type: ignore[misc]
        self._log_metrics("test")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of the masking, and the last training pairs."""
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]
        recent = anchored_in(self.model).recent
        checkpoint["killick"] = {
            "masking": self.masking.state_dict(),
            "recent": None if recent is None else recent.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what `on_save_checkpoint` wrote; a checkpoint of weights alone has nothing."""
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        state = checkpoint.get("killick")
        if state is None:
            return
        self.masking.load_state_dict(state["masking"])
        recent = anchored_in(self.model).own_recent()
        if recent is not None and state["recent"] is not None:
            recent.load_state_dict(state["recent"])

    def _share_statistics(self) -> None:
        # Each process has settled from its own pairs; the model of the first one is saved.
        if self.trainer.world_size == 1:
            return
        norms = tracked_norms(self.model)
        ours = [(running_mean(norm).cpu(), running_variance(norm).cpu()) for norm in norms]
        for norm, (mean, variance) in zip(
            norms, self.trainer.strategy.broadcast(ours), strict=True
        ):
            running_mean(norm).copy_(mean)
            running_variance(norm).copy_(variance)
        anchored_in(self.model).mark_settled()

    def _store_from(self, x: Tensor) -> None:
        # One batch for all processes: each has read another.
        images = self.trainer.strategy.broadcast(x[:STORED])
        policy = f"first {len(images)} of the first training batch"
        anchored_in(self.model).set_references(images, policy=policy)
        _log.info("no references were stored: evaluation uses the %s.", policy)

    def _metrics(self, stage: str) -> tuple[MetricCollection, MetricCollection]:
        """Loss and accuracy, and what takes logits and labels."""
        stages = self.__dict__.setdefault("_metrics_of_stages", {})
        if stage not in stages:
            means = MetricCollection(
                {"loss": MeanMetric(), "cls/Acc": MeanMetric()}, compute_groups=False
            )
            others = MetricCollection(
                {"cal/SmoothECE": SmoothCalibrationError(), "ood/AUROC": EnergyAUROC()},
                compute_groups=False,
            )
            stages[stage] = means.to(self.device), others.to(self.device)
        found: tuple[MetricCollection, MetricCollection] = stages[stage]
        return found

    def _log_metrics(self, stage: str) -> None:
        for metrics in self._metrics(stage):
            found = metrics.compute()
            metrics.reset()
            there = {f"{stage}/{name}": v for name, v in found.items() if not v.isnan()}
            self.log_dict(there, sync_dist=True)


class AnchoredClassifier(AnchoredMixin, LightningModule):
    """An anchored model with its training and evaluation steps, for Lightning's `Trainer`.

    It logs "train/loss" at every step, and what `AnchoredMixin` says. Batches are pairs
    `(images, labels)`.

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
    ) -> None:
        super().__init__()
        anchored_in(model)  # refuses what is not anchored
        self.model = model
        # Nothing is masked at alpha=0, so the target never comes into play.
        self.masking = masking or ReferenceMasking(alpha=0, target="label")
        self.optimizer = optimizer or default_optimizer
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

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one step, with references drawn and masked."""
        x, labels = _images_and_labels(batch)
        loss = self.anchored_loss(x, labels)
        self.log("train/loss", loss, batch_size=len(x))
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count a batch for validation."""
        self.evaluate_batch(*_images_and_labels(batch), "val")

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count a batch for testing."""
        self.evaluate_batch(*_images_and_labels(batch), "test")

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Prediction:
        """`killick.predict` of the images, which may come with or without labels."""
        x = batch if isinstance(batch, Tensor) else _images_and_labels(batch)[0]
        return predict(self.model, x)


def _images_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    if not pair or not all(isinstance(part, Tensor) for part in batch):
        raise DataError(
            f"batches must be (images, labels), two tensors, found {type(batch).__name__}. Let the"
            " data set give such pairs, or collate_fn= of the data loader make them."
        )
    return batch[0], batch[1]
