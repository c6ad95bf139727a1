"""From `import timm` to a report: a timm network, a `DataLoader` and wandb, in a loop of your own."""

import timm
import torch
import wandb
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

import killick
from killick.cli import main

pixels, classes = load_digits(return_X_y=True)
images = torch.tensor(15 * pixels).byte().view(-1, 1, 8, 8).expand(-1, 3, 8, 8)
data = TensorDataset(torch.nn.Upsample(32)(images), torch.tensor(classes))
loader, test_loader = (DataLoader(part, 100, True) for part in random_split(data, [0.8, 0.2]))

net = timm.create_model("resnet10t", num_classes=10)
model = killick.anchor(net, normalize=((0.5,) * 3, (0.25,) * 3))
masking = killick.ReferenceMasking(alpha=0.25, target="label")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with wandb.init(project="digits", mode="offline") as run:
    for x, y in loader:
        loss = masking.loss(model, x, y)  # was: cross_entropy(net(x), y)
        loss.backward()
        run.log({"loss": loss.item()})
        optimizer.step()
        optimizer.zero_grad()
killick.evaluate(model.set_references(x[:9]), test_loader, folder="tested")
main(["report", "tested"])  # tested/report.html
