"""Worker processes that read images leave alone what they inherited."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from killick.data.batches import Batches, Cut, Streamed, read_all
from killick.data.image_set import ImageSet

NOTED: list[Path] = []  # where forked processes note whether they collect garbage when they begin


def _note() -> None:
    for path in NOTED:
        path.write_text(f"{gc.isenabled()}")


os.register_at_fork(after_in_child=_note)


class Owned:
    """Garbage that only a collection finds; freed in another process, it leaves a file there."""

    def __init__(self, path: Path) -> None:
        self.path, self.process, self.itself = path, os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self.process:
            self.path.touch()


def collect(image: Tensor, sample_key: int) -> Tensor:
    """A view; it says whether the process collects by itself."""
    gc.collect()
    return torch.full_like(image, int(gc.isenabled()))


def images() -> ImageSet:
    images = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    return ImageSet.of("black", images, torch.zeros(8, dtype=torch.long), ["a"])


def streamed(images: ImageSet) -> Tensor:
    cpu = torch.device("cpu")
    batches: Batches = Streamed(images, collect, 8, Cut(4), seed=0, device=cpu, workers=1)
    batches.begin(0, 0)
    batches.load()
    return batches.batch(0).images


def read(images: ImageSet) -> Tensor:
    return torch.cat(list(read_all(images, collect, workers=1)))


@pytest.fixture
def _uncollected():
    """Garbage stays until the fork, as it may."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("way", [streamed, read])
@pytest.mark.usefixtures("_uncollected")
def test_workers_collect_their_own_garbage_alone(way, tmp_path, monkeypatch):
    Owned(tmp_path / "freed")
    monkeypatch.setattr(sys.modules[__name__], "NOTED", [tmp_path / "noted"])
    assert gc.isenabled()
    found = way(images())
    assert gc.isenabled()
    assert (tmp_path / "noted").read_text() == "False"  # until they have begun
    assert found.unique().tolist() == [1]
    assert not (tmp_path / "freed").exists()


def test_collection_that_was_off_stays_off():
    gc.disable()
    try:
        read(images())
        assert not gc.isenabled()
    finally:
        gc.enable()
