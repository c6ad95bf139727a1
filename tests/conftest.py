"""Shared by all tests: hypothesis profiles, one thread, small networks and batches."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from runs import make_image_folder
from torch import nn

settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
torch.set_num_threads(1)  # tensors here are tiny: threads only add time
os.environ.setdefault("OMP_NUM_THREADS", "1")  # likewise in the processes that tests start


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    """A folder of 20 images of 4 classes."""
    return make_image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def report_folder(tmp_path_factory) -> Path:
    """Run folders of a comparison: three arms, two seeds."""
    from report_grid import make_grid

    return make_grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(scope="session")
def report_data(report_folder):
    from killick.report.report_data import make_report_data
    from killick.results.run_folder import find_runs

    return make_report_data(find_runs([report_folder]))


@pytest.fixture(scope="session")
def report_page(report_data, tmp_path_factory) -> Path:
    from killick.report.writer import write_report

    return write_report([], tmp_path_factory.mktemp("report"), data=report_data)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory) -> Iterator[None]:
    """Shared by the processes of a test run, and by nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILLICK_CACHE", str(tmp_path_factory.getbasetemp().parent / "killick-cache"))
        yield


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """Cells of comparisons and studies run in this process."""
    from grids import HereJobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("killick.experiments.scheduler.LocalJobs", HereJobs)
        yield


@pytest.fixture(scope="module")
def few_shapes() -> Iterator[None]:
    """Fewer embedded images, for what is about how they are used: all runs are judged on them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("killick.data.sources.shapes.TRAIN_COUNT", 1000)
        patch.setattr("killick.data.sources.shapes.TEST_COUNT", 300)
        yield


@pytest.fixture(scope="module")
def one_registry() -> Iterator[Callable]:
    """Torch makes its table of ONNX operators once, not for each export: half a second each."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    made = functools.cache(ONNXRegistry.from_torchlib)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(made))
        yield made


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # weights of the networks that tests make


def small_cnn(channels: int = 3, classes: int = 5) -> nn.Sequential:
    """Two convolutions with BatchNorm between, for images of any size."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


def stir(model: nn.Module, amount: float = 0.3) -> nn.Module:
    """Change every weight, so that an exactly anchored network depends on its reference."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        scale = parameter.detach().abs().mean().clamp_min(0.05)
        parameter.data.add_((amount * scale * noise).to(parameter))
    return model
