"""A LightningModule of your own with anchored training, calibration and OOD detection."""

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import killick
from killick.lightning import AnchoredMixin


class Mine(AnchoredMixin, LightningModule):
    """Keeps its own steps and optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = killick.anchor(killick.nets.create("killick:resnet_small", num_classes=4))
        self.masking = killick.ReferenceMasking(alpha=0.25, target="label")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """In place of cross_entropy(self.model(x), labels)."""
        return self.anchored_loss(*batch)

    def validation_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Logs val/loss, val/cls/Acc, val/cal/SmoothECE and val/ood/AUROC."""
        self.evaluate_batch(*batch, "val")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


labels = torch.arange(64) % 4
images = torch.randn(64, 3, 16, 16) + labels[:, None, None, None]
known = TensorDataset(images, labels)
ood = TensorDataset(torch.randn(32, 3, 16, 16) * 3, torch.full((32,), -1))  # labels below 0
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Mine(), DataLoader(known, 16), [DataLoader(known, 16), DataLoader(ood, 16)])
print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
