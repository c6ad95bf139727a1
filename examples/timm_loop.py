"""A loop like timm's train.py (mixup, EMA, scheduler), anchored by the three lines marked so."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3

import killick

EPOCHS, STEPS = 2, 4

model = timm.create_model("resnet10t", num_classes=4)
model = killick.anchor(model)  # 1
masking = killick.ReferenceMasking(alpha=0.25, target="label")  # 2
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
scheduler, _ = create_scheduler_v2(optimizer, num_epochs=EPOCHS)
mixup, criterion = Mixup(mixup_alpha=0.8, num_classes=4), SoftTargetCrossEntropy()
ema = ModelEmaV3(model, decay=0.9)
for epoch in range(EPOCHS):
    model.train()
    for _ in range(STEPS):  # your loader
        x, labels = mixup(torch.randn(8, 3, 32, 32), torch.arange(8) % 4)
        loss = masking.loss(model, x, labels, criterion=criterion)  # 3, was: criterion(model(x), …)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
    scheduler.step(epoch + 1)
model.set_references(torch.randn(5, 3, 32, 32)).eval()  # some training images
print(f"loss {loss.item():.3f}, logits {tuple(model(torch.randn(2, 3, 32, 32)).shape)}")
