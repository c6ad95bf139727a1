"""A transformers image classifier, anchored and trained with masked references by `Trainer`."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import killick


class MaskedModel(nn.Module):
    """Takes `pixel_values`, as `Trainer` gives them, and draws and masks references in training."""

    def __init__(self, model: killick.Anchored, masking: killick.ReferenceMasking) -> None:
        super().__init__()
        self.model, self.masking = model, masking

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Logits, in eval mode with the first stored reference."""
        if not self.training:
            return {"logits": self.model(pixel_values)}
        draw = self.masking.draw(len(pixel_values), pixel_values.device)
        self.masked = draw.masked
        return {"logits": self.model(pixel_values, pixel_values[draw.chosen], draw.masked)}

    def loss(
        self, outputs: dict[str, Tensor], labels: Tensor, num_items_in_batch: object = None
    ) -> Tensor:
        """For `compute_loss_func`."""
        masked = self.masked if self.training else None
        return cross_entropy(
            outputs["logits"], self.masking.targets(outputs["logits"], labels, masked)
        )


torch.manual_seed(0)
config = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=16,
    patch_size=4,
    num_labels=4,
)
net = ViTForImageClassification(config)
labels = torch.arange(256) % 4
images = torch.randn(256, 3, 16, 16) + torch.nn.functional.one_hot(labels, 4)[:, :3, None, None]
data = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]

anchored = killick.anchor(net, example=images[:2]).set_references(images[:5])
model = MaskedModel(anchored, killick.ReferenceMasking(alpha=0.25, target="label"))
arguments = TrainingArguments(
    "trainer",
    num_train_epochs=4,
    per_device_train_batch_size=32,
    learning_rate=3e-3,
    label_names=["labels"],
    remove_unused_columns=False,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=data[:224],
    eval_dataset=data[224:],
    compute_loss_func=model.loss,
    compute_metrics=lambda found: {
        "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())
    },
)
trainer.train()
print(trainer.evaluate())
