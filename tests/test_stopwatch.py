"""Where time goes, and where images are kept while a model is evaluated."""

import time

import pytest
import torch
from runs import make_image_folder

from killick.data.preprocessing import PlainView
from killick.data.sources import load_whole
from killick.evaluation import image_blocks
from killick.evaluation.image_blocks import ImageBlocks
from killick.runtime import devices
from killick.runtime.processes import Processes
from killick.runtime.stopwatch import Stopwatch

CPU = torch.device("cpu")


def test_parts_and_the_rest_add_up():
    watch = Stopwatch(CPU)
    began = time.perf_counter()
    for _ in range(2):
        with watch.device("network"):
            time.sleep(0.05)
    with watch.host("reading"):
        time.sleep(0.02)
    time.sleep(0.03)
    found = watch.seconds()
    assert found["network"] >= 0.1
    assert found["reading"] >= 0.02
    assert found["other"] >= 0.03
    assert sum(found.values()) == pytest.approx(time.perf_counter() - began, abs=0.02)


@pytest.mark.parametrize("fits", [True, False])
def test_images_are_decoded_once_if_they_fit(tmp_path, monkeypatch, fits):
    images = load_whole(str(make_image_folder(tmp_path)))
    read = []
    monkeypatch.setattr(devices, "_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").write_text(f"MemFree: 1 kB\nMemAvailable: {10_000 if fits else 1} kB\n")
    original = image_blocks.read_all

    def count(*given):
        read.append(1)
        return original(*given)

    monkeypatch.setattr(image_blocks, "read_all", count)
    blocks = ImageBlocks(images, PlainView(16), Processes(0, 1, CPU), 0, keep=True)
    first, second = ([block.images.clone() for block in blocks] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert sum(map(len, first)) == len(images)
    assert len(read) == (1 if fits else 2)
