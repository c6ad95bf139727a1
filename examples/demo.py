"""The main idea on real images in a minute: a standard network beside an anchored one.

Both are the same small ResNet, with the same first weights, data order and number of steps, on
scikit-learn's handwritten digits at 32 px. The anchored one is trained with masked references
(target: the true label), then folded back into an ordinary network. Both are tested clean and under
noise that neither has seen in training.

    python examples/demo.py
"""

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import killick

SEEDS, EPOCHS, BATCH = 2, 12, 64
NOISE = (0.0, 0.2, 0.4, 0.6)  # standard deviation; the images lie in -1 to 1


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels for training (1,297) and testing (500), one channel, 8 px made 32."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(data.images, dtype=torch.float32)[order, None] / 8 - 1
    x = interpolate(x, size=32, mode="bilinear", align_corners=False)
    y = torch.tensor(data.target)[order]
    return x[:-500], y[:-500], x[-500:], y[-500:]


def train(anchored: bool, seed: int, x: Tensor, y: Tensor, progress: Progress) -> nn.Module:
    """An ordinary network: trained as it is, or anchored, trained and folded."""
    torch.manual_seed(seed)
    net: nn.Module = killick.nets.resnet_small(in_chans=1)
    if anchored:
        model = killick.anchor(net, example=x[:2])
        masking = killick.ReferenceMasking(alpha=0.25, target="label")
        net = model
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, epochs=EPOCHS, steps_per_epoch=len(x) // BATCH
    )
    generator = torch.Generator().manual_seed(seed)
    task = progress.add_task(f"seed {seed}, {'anchored' if anchored else 'standard'}", total=EPOCHS)
    for _ in range(EPOCHS):
        net.train()
        for batch in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].view(
            -1, BATCH
        ):
            if anchored:
                loss = masking.loss(net, x[batch], y[batch])
            else:
                loss = cross_entropy(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        progress.advance(task)
    progress.remove_task(task)
    if not anchored:
        return net.eval()
    model.set_references(killick.ReferencePool(x, y).choose(1, seed=seed), policy="random")
    return killick.fold(model)


@torch.no_grad()
def test(net: nn.Module, x: Tensor, y: Tensor, seed: int) -> list[tuple[float, float]]:
    """Percent correct, and mean confidence less that, at each level of noise."""
    generator = torch.Generator().manual_seed(1000 + seed)
    results = []
    for s in NOISE:
        noisy = x + s * torch.randn(x.shape, generator=generator)
        confidence, label = net(noisy).softmax(1).max(1)
        right = 100 * (label == y).float().mean().item()
        results.append((right, 100 * confidence.mean().item() - right))
    return results


def show(console: Console, title: str, runs: dict[str, Tensor]) -> None:
    """A row for each training, mean and standard deviation over seeds for each level of noise."""
    table = Table(title=title, title_justify="left")
    table.add_column("training", no_wrap=True)
    for s in NOISE:
        table.add_column(f"noise {s}" if s else "clean", justify="right", no_wrap=True)
    for name, values in runs.items():
        cells = zip(values.mean(0), values.std(0), strict=True)
        table.add_row(name, *[f"{m:.1f} ± {s:.1f}" for m, s in cells])
    standard, anchored = runs.values()
    table.add_row("difference", *[f"{d:+.1f}" for d in anchored.mean(0) - standard.mean(0)])
    console.print(table)


def main() -> None:
    """Train, test, print."""
    console = Console()
    x, y, test_x, test_y = digits()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    results: dict[str, list[list[tuple[float, float]]]] = {"standard": [], "anchored": []}
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        total = progress.add_task("all runs", total=2 * SEEDS)
        for seed in range(SEEDS):
            for name in results:
                net = train(name == "anchored", seed, x, y, progress)
                results[name].append(test(net, test_x, test_y, seed))
                progress.advance(total)
                if not console.is_terminal:
                    console.print(f"trained: {name}, seed {seed}")
    runs = {name: torch.tensor(values) for name, values in results.items()}
    over = f"mean ± std of {SEEDS} seeds"
    accuracy = {name: values[..., 0] for name, values in runs.items()}
    excess = {name: values[..., 1] for name, values in runs.items()}
    show(console, f"Accuracy on {len(test_y)} digits, %, {over}", accuracy)
    show(console, f"Confidence less accuracy, %, {over}; 0 is right", excess)
    console.print("anchored: masked 25 % by batch, true label; one random reference; folded")


if __name__ == "__main__":
    main()
