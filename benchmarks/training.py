"""Claim: training with Killick runs at the speed of the network alone, and anchoring costs nothing.

On a GPU, with CIFAR-10 in a pack (about five minutes):

    python benchmarks/training.py pack:cifar10.npz
    python benchmarks/training.py pack:cifar10.npz --only runs    # or steps, or policy

- the limit: the same network stepping on one constant batch, compiled and captured in a CUDA graph;
- Killick: whole steps (samples drawn and augmented, references, masks, learning rate, losses kept,
  BatchNorm handled) for each protocol, in turns with the limit; then whole runs of `killick train`;
  steps with TrivialAugment, at most 1.11 of the limit;
- a plain script: float32, eager, `DataLoader` with two workers and a transform for each image, a
  second loader for references; what the authors' code does.

Without a GPU, on the embedded shapes: seconds of `shapes-small` for each protocol, and steps in
turns (about three minutes):

    python benchmarks/training.py
"""

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from paired_timing import RESULTS, compare, device_name, write
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import killick
from killick.data.image_set import ImageSet
from killick.data.sources import load_sets
from killick.results.run_folder import read_metrics
from killick.runtime.processes import Processes
from killick.training import load_recipe, train
from killick.training.run_state import TrainingRun
from killick.training.training_data import load_training_data

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PROTOCOLS = ("standard", "anchored", "masked")


def killick_step(recipe: str, settings: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """One step of a run of Killick's, as `killick train` takes it."""
    plan = load_recipe(recipe, settings)
    processes = Processes(0, 1, device)
    run = TrainingRun(plan, load_training_data(plan, processes), processes, None)

    def step() -> None:
        within = run.done % run.steps_per_epoch
        if within == 0:
            run.data.batches.begin(run.done // run.steps_per_epoch, 0)
        run.take_step()
        if run.done % plan.log_every == 0:
            run.read_statistics()

    return step


def constant_step(channels: int, batch: int) -> Callable[[], None]:
    """The limit: nothing but the network, on one batch that never changes."""
    net = killick.nets.create("killick:resnet18", in_chans=channels)
    net = net.cuda().to(memory_format=torch.channels_last)
    rate = torch.tensor(0.01, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), rate, 0.9, weight_decay=5e-4, fused=True)
    x = torch.randn(batch, channels, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device="cuda")
    compiled = torch.compile(net)

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(compiled(x).float(), labels)
        loss.backward()
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(5):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def replay(_alive: object = (work, x)) -> None:
        graph.replay()

    return replay


class Images(Dataset[tuple[Tensor, int]]):
    """What a plain script has: one image at a time, through its own transform."""

    def __init__(self, images: ImageSet, transform: Callable[[Any], Tensor]) -> None:
        to_image = v2.ToPILImage()
        self.images = [to_image(image) for image in images.images()]
        self.labels, self.transform = images.labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.transform(self.images[number]), self.labels[number]


def plain_step(images: ImageSet) -> Callable[[], None]:
    """The authors' way: eager, float32, two workers, references from a second loader."""
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    augmented = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *to_tensor])
    loaders = [
        DataLoader(Images(images, transform), 128, shuffle=True, num_workers=2)
        for transform in (augmented, v2.Compose(to_tensor))
    ]
    net = killick.nets.create("killick:resnet18", in_chans=6).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=5e-4)

    def endless(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[list[Tensor]]:
        while True:
            yield from loader

    samples, references = endless(loaders[0]), endless(loaders[1])
    torch.backends.cudnn.benchmark = True

    def step() -> None:
        x, labels = (tensor.cuda() for tensor in next(samples))
        others = next(references)[0].cuda()
        r = others[torch.randint(len(others), (len(x),), device="cuda")]
        first = torch.zeros_like(r) if torch.rand(()) < 0.25 else r
        loss = cross_entropy(net(torch.cat([first, x - r], 1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # printed by such scripts

    return step


def whole_runs(recipe: str, settings: dict[str, Any], device: torch.device) -> None:
    """`killick train` for each protocol: seconds, and images per second once it is warm."""
    rows: list[dict[str, Any]] = []
    for protocol in PROTOCOLS:
        with tempfile.TemporaryDirectory() as folder:
            plan = load_recipe(recipe, {**settings, "protocol.name": protocol})
            start = time.perf_counter()
            outcome = train(plan, Path(folder) / "run", quiet=True)
            seconds = time.perf_counter() - start
            if not outcome.finished:  # interrupted: what was measured is written
                return
            entries = read_metrics(Path(folder) / "run" / "metrics.jsonl")
        speeds = [e["images_per_second"] for e in entries if e["kind"] == "train"][2:]
        rows.append(
            {
                "benchmark": "training",
                "setting": f"{recipe}, {plan.epochs} epochs, batch {plan.batch}",
                "protocol": protocol,
                "seconds": round(seconds, 2),
                "images_per_second": round(statistics.median(speeds)),
                "test_accuracy": round(outcome.rows[0]["value"], 4),
                "device": device_name(device),
                "torch": torch.__version__.split("+")[0],
            }
        )
        print(rows[-1], flush=True)
        write_runs(f"training-runs-{'h200' if device.type == 'cuda' else 'cpu'}", rows)


def write_runs(name: str, rows: list[dict[str, Any]]) -> None:
    """The table of whole runs."""
    with open(RESULTS / f"{name}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


RECIPE = "cifar10-resnet18"


def steps_on_a_gpu(data: str, device: torch.device) -> None:
    """Limit, Killick and the plain script, in turns."""
    batch = 128
    contenders = {"limit": constant_step(6, batch)}
    for protocol in PROTOCOLS:
        plan = {"data.name": data, "protocol.name": protocol, "execution": "captured"}
        contenders[f"killick, {protocol}"] = killick_step(RECIPE, plan, device)
    setting = f"resnet18, batch {batch}, bf16, compiled, CUDA graph"
    rows = compare(
        "training", setting, contenders, rounds=30, items=batch, repeats=100, device=device
    )
    write("training-h200", rows)
    names = ("killick, standard", "killick, anchored", "killick, masked")
    arms = {name: contenders[name] for name in names}
    setting = f"{setting}, over standard"
    rows += compare("training", setting, arms, rounds=30, items=batch, repeats=100, device=device)
    write("training-h200", rows)
    images = load_sets(data).train
    assert images is not None
    against = {"killick, masked": contenders["killick, masked"], "plain script": plain_step(images)}
    setting = "resnet18, batch 128, plain script: float32, eager, 2 + 2 workers"
    rows += compare("training", setting, against, rounds=6, items=batch, repeats=100, device=device)
    write("training-h200", rows)


def policy_on_a_gpu(data: str, device: torch.device) -> None:
    """Limit, Killick, and Killick with TrivialAugment, in turns."""
    plan = {"data.name": data, "protocol.name": "masked", "execution": "captured"}
    contenders = {
        "limit": constant_step(6, 128),
        "killick, masked": killick_step(RECIPE, plan, device),
        "killick, masked, TrivialAugment": killick_step(
            RECIPE, plan | {"augment.policy": "trivialaugment"}, device
        ),
    }
    setting = "resnet18, batch 128, bf16, compiled, CUDA graph"
    rows = compare(
        "training", setting, contenders, rounds=15, items=128, repeats=100, device=device
    )
    write("training-policy-h200", rows)


def steps_on_a_cpu(device: torch.device) -> None:
    """Killick's steps for each protocol, in turns."""
    contenders = {
        f"killick, {protocol}": killick_step("shapes-small", {"protocol.name": protocol}, device)
        for protocol in PROTOCOLS
    }
    rows = compare(
        "training", "shapes-small, eager, fp32", contenders, rounds=60, items=32, repeats=8
    )
    write("training-cpu", rows)


def main() -> None:
    """Measure and write, on a GPU where there is one."""
    parser = argparse.ArgumentParser(description="How near training is to the network alone.")
    parser.add_argument("data", nargs="?", help="on a GPU: CIFAR-10, as killick takes it")
    parser.add_argument("--only", choices=("steps", "policy", "runs"), help="one part")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    if cuda and options.data is None:
        parser.error("expected CIFAR-10 to train on, as in pack:cifar10.npz")
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    if cuda and options.only in (None, "policy"):
        policy_on_a_gpu(options.data, device)
    if options.only in (None, "steps"):
        if cuda:
            steps_on_a_gpu(options.data, device)
        else:
            steps_on_a_cpu(device)
    if options.only in (None, "runs"):
        if cuda:
            whole_runs(RECIPE, {"data.name": options.data, "epochs": 15}, device)
        else:
            whole_runs("shapes-small", {}, device)


if __name__ == "__main__":
    main()
