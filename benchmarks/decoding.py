"""Input of large images: JPEGs decoded on a GPU, and training on them, streamed and resident.

    python benchmarks/decoding.py                 a GPU and 16 cores, about 20 minutes
    python benchmarks/decoding.py --only decoders --only resnet50      a part of it; other rows stay
    python benchmarks/decoding.py --tiny          a few images, also on a CPU: whether it runs

Targets, resized crops at 224 px: streamed at least 0.9 of the lower of decoder and limit, resident at
least 0.95 of the limit. The limit is Killick's own step on a batch that never changes. The plain
script is in the style of torchvision's reference: ImageFolder, transforms in 16 workers, autocast.
Each contender runs alone, since those that read ahead would do so in the turns of others; `rate` is
the median of the rounds. JPEGs are synthetic, of the mean size of ImageNet's files, and of small ones.
"""

import argparse
import csv
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from paired_timing import RESULTS, device_name
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import killick
from killick.data.batches import Batches, ReadAhead
from killick.data.decoding import decode
from killick.data.device_decoding import find_decoder
from killick.runtime.devices import choose_device, wait_for
from killick.runtime.processes import Processes, usual_workers
from killick.training import make_recipe
from killick.training.run_state import TrainingRun
from killick.training.training_data import TrainingData, load_training_data

FILES = {"500 x 375, 110 kB": (375, 500, 110_000), "224 x 224, 11 kB": (224, 224, 11_000)}
TINY = {"50 x 40, 3 kB": (40, 50, 3_000)}
CLASSES = 10
PARTS = ("decoders", "resnet50", "resnet18")
KEY = ("files", "network", "contender")
Step = Callable[[], object]


def make_jpeg(height: int, width: int, size: int, seed: int) -> bytes:
    """A JPEG of about `size` bytes: smooth colors, and as much noise as that takes."""
    chance = np.random.default_rng(seed)
    coarse = Image.fromarray(chance.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=float)
    noise = chance.normal(size=(height, width, 1))
    low, high, found = 0.0, 100.0, b""
    for _ in range(7):
        amount = (low + high) / 2
        pixels = (smooth + amount * noise).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=85)
        found = stream.getvalue()
        low, high = (amount, high) if len(found) < size else (low, amount)
    return found


def make_folder(folder: Path, shape: tuple[int, int, int], count: int) -> None:
    """Files in class folders; a few contents, copied."""
    contents = [make_jpeg(*shape, seed) for seed in range(min(count, 64))]
    for number in range(count):
        place = folder / f"class{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(contents[number % len(contents)])


def pillow(files: list[torch.Tensor]) -> list[torch.Tensor]:
    """What worker processes do without a GPU."""
    return [decode(file.numpy().tobytes(), "it") for file in files]


def rate(step: Step, images: int, steps: int, rounds: int, device: torch.device) -> float:
    """Images per second, median over rounds, after as many steps to warm up."""
    found = []
    for number in range(rounds + 1):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait_for(device)
        if number:
            found.append(images * steps / (time.perf_counter() - began))
    return statistics.median(found)


class ChangingSource(ReadAhead):
    """Buffers that a captured step reads, filled by other batches; by none, they never change."""

    def __init__(self, like: Batches, size: int, device: torch.device) -> None:
        super().__init__(like.samples, size, like.cut, seed=0, device=device)
        self.source: ReadAhead | None = None
        for buffers in self._buffers:
            buffers.images.random_(256)
            buffers.labels.random_(CLASSES)
            buffers.keys.random_()

    def begin(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        if self.source is not None:
            self.source._buffers = self._buffers
            self.source.begin(epoch, step)

    def load(self) -> None:
        """Fill the buffers."""
        if self.source is not None:
            self.source.load()


class KillickRun:
    """Steps as `killick train` takes them, compiled and captured once, on sets of the same length."""

    def __init__(self, network: str, folder: Path, size: int, batch: int, device: torch.device):
        self._processes = Processes(0, 1, device)
        self._recipe = make_recipe(
            {
                "network": {"name": network},
                "data": {"name": f"imagefolder:{folder}", "size": size, "validation": 0},
                "augment": {"crop": "resized", "flip": True},
                "protocol": {"name": "masked", "target": "label", "references": "batch"},
                "batch": batch,
                "epochs": 1000,
                "execution": "captured" if device.type == "cuda" else "auto",
            }
        )
        data = self._load(folder, "never")
        self._batches = ChangingSource(data.batches, size, device)
        data.batches.close()
        data = replace(data, batches=self._batches)
        self._run = TrainingRun(self._recipe, data, self._processes, None)

    def _load(self, folder: Path, resident: str) -> TrainingData:
        name = f"imagefolder:{folder}"
        settings = replace(self._recipe.data, name=name, resident=resident)
        return load_training_data(replace(self._recipe, data=settings), self._processes)

    def read(self, folder: Path, resident: str) -> ReadAhead:
        """Take samples from a set that is resident "always" or "never" from now on."""
        began = time.perf_counter()
        data = self._load(folder, resident)
        print(f"  {data.description}, read in {time.perf_counter() - began:.1f} s")
        assert isinstance(data.batches, ReadAhead)
        self._batches.source = data.batches
        self._batches.begin(*divmod(self._run.done, self._run.steps_per_epoch))
        return data.batches

    def step(self) -> None:
        """Train one step."""
        run = self._run
        epoch, within = divmod(run.done, run.steps_per_epoch)
        if within == 0:
            self._batches.begin(epoch, 0)
        run.take_step()
        if run.done % self._recipe.log_every == 0:
            run.read_statistics()


def plain_step(folder: Path, network: str, size: int, batch: int, device: torch.device) -> Step:
    """A step in the style of torchvision's reference script."""
    steps = [
        v2.RandomResizedCrop(size, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
    ]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485] * 3, [0.229] * 3)]
    workers = usual_workers()
    loader = DataLoader(
        ImageFolder(str(folder), v2.Compose(steps)),
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
    )
    net = killick.nets.create(network, num_classes=CLASSES)
    net = net.to(device).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=1e-4)

    def endless() -> Iterator[list[torch.Tensor]]:
        while True:
            yield from loader

    batches = endless()

    def step() -> None:
        images, labels = (part.to(device, non_blocking=True) for part in next(batches))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = cross_entropy(net(images.to(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(
    tiny: bool, device: torch.device, work: Path, parts: Sequence[str] = PARTS
) -> Iterator[dict[str, object]]:
    """Decoders alone, then training, for every kind of file."""
    rounds, steps, batch, size = (1, 2, 8, 32) if tiny else (2, 64, 256, 224)
    networks = [f"timm:{part}" for part in parts if part != "decoders"]
    networks = ["timm:resnet10t"] if tiny else networks
    facts = {"device": device_name(device), "torch": torch.__version__.split("+")[0]}

    def note(files: str, network: str, contender: str, step: Step, some: int) -> dict[str, object]:
        found = rate(step, batch, some, rounds, device)
        print(f"{files:20} {network:16} {contender:20} {found:10,.0f} images/s", flush=True)
        row = {"files": files, "network": network, "contender": contender, "rate": round(found, 1)}
        return {**row, **facts}

    shapes = TINY if tiny else FILES
    folders = {files: work / str(number) for number, files in enumerate(shapes)}
    for files, shape in shapes.items():
        make_folder(folders[files], shape, 40 if tiny else 10_240)
        if "decoders" not in parts:
            continue
        contents = [path.read_bytes() for path in sorted(folders[files].rglob("*.jpg"))[:batch]]
        tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in contents]
        decoders: dict[str, Step] = {"Pillow, one thread": partial(pillow, tensors)}
        if (decoder := find_decoder(device)) is not None:
            decoders["decoder of the GPU"] = partial(decoder, tensors)
        for contender, step in decoders.items():
            yield note(files, "", contender, step, 2)
    for network in networks:
        run = KillickRun(network, next(iter(folders.values())), size, batch, device)
        yield note("", network, "limit", run.step, steps)
        for files, folder in folders.items():
            for contender, resident in (("streamed", "never"), ("resident", "always")):
                batches = run.read(folder, resident)
                yield note(files, network, contender, run.step, steps)
                batches.close()
            plain = plain_step(folder, network, size, batch, device)
            yield note(files, network, "plain script", plain, steps // 2)


def main(arguments: list[str] | None = None) -> None:
    """Measure; and write, unless tiny."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="a few images, nothing is written")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; all by default")
    options = parser.parse_args(arguments)
    device = choose_device(options.device)
    path = options.results / f"decoding-{'gpu' if device.type == 'cuda' else 'cpu'}.csv"
    rows: dict[tuple[object, ...], dict[str, object]] = {}
    if path.exists():
        with open(path, newline="") as file:
            rows = {tuple(row[key] for key in KEY): dict(row) for row in csv.DictReader(file)}
    with tempfile.TemporaryDirectory() as work:
        for row in measure(options.tiny, device, Path(work), options.only or PARTS):
            rows[tuple(row[key] for key in KEY)] = row
            if not options.tiny:
                with open(path, "w", newline="") as file:
                    table = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
                    table.writeheader()
                    table.writerows(rows.values())


if __name__ == "__main__":
    main()
