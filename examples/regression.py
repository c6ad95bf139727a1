"""Uncertainty on tabular data: a 1-D regression that is less sure where it has no data.

The same objects as for images do Delta-UQ: a small network is anchored with a fresh first layer,
trained on pairs, and asked from many references. Where there were data the references agree; away
from them they do not. No ensemble, no dropout, one network. The spread ranks: it grows away from
the data, but is no error bar, being far smaller than the error out there.

    python examples/regression.py                   # ten seconds; draws docs/images/regression.svg
    python examples/regression.py figure.svg 200    # another file, fewer steps
"""

import sys

import matplotlib
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import killick

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402


def curve(x: Tensor) -> Tensor:
    """What is to be learnt."""
    return torch.sin(3 * x) + 0.3 * x


def data() -> tuple[Tensor, Tensor]:
    """120 noisy points of a curve, in two clusters with a gap between them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [torch.rand(60, 1, generator=generator) - 1.4, torch.rand(60, 1, generator=generator) + 0.4]
    )
    y = curve(x) + 0.05 * torch.randn(x.shape, generator=generator)
    return x, y


def fit(x: Tensor, y: Tensor, steps: int) -> killick.Anchored:
    """An anchored network that has learnt `y` from `x`; its references are the training points."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    )
    model = killick.anchor(net, init="random")
    plain = killick.ReferenceMasking(alpha=0.0, target="label")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        loss = plain.loss(model, x, y, criterion=mse_loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.set_references(killick.ReferencePool(x).choose(60, seed=0), policy="random").eval()


def draw(x: Tensor, y: Tensor, at: Tensor, found: killick.Prediction, path: str) -> None:
    """Data, mean and two standard deviations; below it the standard deviation alone."""
    assert found.std is not None
    mean, std, grid = found.logits[:, 0], found.std[:, 0], at[:, 0]
    plt.rcParams.update({"font.family": "sans-serif", "svg.hashsalt": "killick", "font.size": 9})
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(6.4, 4.2), height_ratios=(3, 1), layout="constrained"
    )
    band = 10 * std  # ten, to be seen at all
    above.fill_between(grid, mean - band, mean + band, color="#9ecae1", lw=0, label="± 10 std")
    above.plot(grid, curve(grid), "--", color="#737373", lw=1, label="truth")
    above.plot(grid, mean, color="#08519c", label="mean over 60 references")
    above.plot(x[:, 0], y[:, 0], ".", color="#d95f02", ms=4, label="data")
    above.legend(frameon=False, loc="upper center", ncols=4)
    above.set_ylabel("y")
    above.set_ylim(-4, 5.5)
    below.plot(grid, std, color="#08519c")
    below.set_ylabel("std")
    below.set_ylim(bottom=0)
    below.set_xlabel("x")
    for axes in (above, below):
        axes.axvspan(-1.4, -0.4, color="#d95f02", alpha=0.08, lw=0)
        axes.axvspan(0.4, 1.4, color="#d95f02", alpha=0.08, lw=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main(path: str = "docs/images/regression.svg", steps: str = "2000") -> None:
    """Fit, ask, draw, and say how much surer it is where it has seen data."""
    x, y = data()
    model = fit(x, y, int(steps))
    at = torch.linspace(-3.5, 3.5, 281)[:, None]
    found = killick.predict(model, at, protocol="marginal", task="regression")
    assert found.std is not None
    distance = (at - x.T).abs().amin(1)
    near, far = found.std[distance < 0.1].mean(), found.std[distance > 1].mean()
    print(
        f"std near the data {near:.3f}, more than 1 away from it {far:.3f}: {far / near:.0f} times"
    )
    draw(x, y, at, found, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
