"""Small federations, shared by tests: 4 clients, 120 images of 8 px with 3 classes."""

from contextlib import contextmanager
from pathlib import Path

import torch

from killick.data.image_set import ImageSet, Sets
from killick.data.sources import given_sets
from killick.federated.federated_data import FederatedData
from killick.federated.federation_settings import Federation, FederationPlan
from killick.federated.local_client import LocalClient
from killick.training import make_recipe


def make_sets(train: int = 120, test: int = 60) -> Sets:
    """Images of three colors with noise, which a network can learn."""
    generator = torch.Generator().manual_seed(0)
    colors = torch.tensor([[200, 40, 40], [40, 200, 40], [40, 40, 200]])

    def make(count: int) -> ImageSet:
        labels = torch.arange(count) % 3
        noise = torch.randint(-40, 40, (count, 3, 8, 8), generator=generator)
        images = (noise + colors[labels, :, None, None]).clamp(0, 255).to(torch.uint8)
        return ImageSet.of("colors", images, labels, ("red", "green", "blue"))

    return Sets(make(train), make(test))


@contextmanager
def colors():
    """Within this block, plans can use the data `given:colors`."""
    with given_sets("colors", make_sets()) as name:
        yield name


def make_plan(output: Path, method: str = "spectral", *, protocol="standard", **changes):
    """A federation of seconds."""
    masked = {"name": "masked", "target": "label", "alpha": 0.5, "stored": 2}
    recipe = make_recipe(
        {
            "network": {"name": "killick:resnet_small", "arguments": {"width": 4}},
            "data": {"name": "given:colors", "size": 8, "validation": 0},
            "augment": {"crop": "pad", "padding": 1, "flip": True},
            "protocol": masked if protocol == "masked" else {"name": protocol},
            "optimizer": {"lr": 0.05},
            "schedule": {"name": "constant"},
            "batch": 8,
            "seed": changes.pop("seed", 0),
        }
    )
    settings = {"clients": 4, "rounds": 2, "evaluate_every": 1, "partition": "dirichlet:alpha=5"}
    federation = Federation(method=method, **{**settings, **changes})
    return FederationPlan(recipe, federation, output, "cpu")


def make_client(plan: FederationPlan, number: int = 0, round_: int = 1) -> LocalClient:
    return FederatedData(plan).client(number, round_)


def assert_equal(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def without_seconds(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]
