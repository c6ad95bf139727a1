"""Resized crops and augmentation policies: Killick's on whole batches against torchvision's image by image.

    OMP_NUM_THREADS=1 python benchmarks/augmentations.py      one CPU thread
    python benchmarks/augmentations.py --device cuda          a GPU

Claim: on one CPU thread policies on batches take at most 0.4 of the time at 32 px, and are not slower
at 64 px. At 224 px they are, and resized crops are at every size: there `data.resident: auto` leaves
them to worker processes, whose own overhead is not counted here. On a GPU only batches are timed:
captured in a CUDA graph, over crop and flip alone.
"""

import argparse
from collections.abc import Callable

import torch
from paired_timing import Ratio, compare, write
from step import captured
from torch import Tensor

from killick.data.augment.policies import batch_policy
from killick.data.augment.resized_crops import ResizedCrop
from killick.data.batches import Cut, Resident
from killick.data.keyed_random import sample_keys
from killick.data.training_view import POLICIES, TrainView
from killick.data.transforms import Shift

RESIZED = "resized crop"
SIZES = {32: 128, 64: 128, 224: 32}  # px, and images in a batch


def make_pixels(count: int, size: int) -> Tensor:
    """Smooth random images, `(n, size, size, 3)`."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255
    images = torch.nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    return images.to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def batched(pixels: Tensor, policy: str) -> Callable[[], object]:
    """The samples of a step, from a resident set."""
    size, device = pixels.shape[1], pixels.device
    crop = ResizedCrop(size, "bilinear") if policy == RESIZED else None
    made = None
    if policy in POLICIES:
        made = batch_policy(TrainView(size, policy=policy).policy, size, device)
    labels = torch.zeros(len(pixels), dtype=torch.long, device=device)
    shift, cut = Shift(4, True), Cut(len(pixels))
    batches = Resident(pixels, labels, shift, cut, seed=0, resized=crop, policy=made)
    batches.begin(0, 0)
    if device.type != "cuda":
        return lambda: batches.batch(0)
    return captured(lambda: batches.batch(0))


def one_by_one(pixels: Tensor, policy: str) -> Callable[[], object]:
    """The same by the transforms of a worker process."""
    size = pixels.shape[1]
    if policy == RESIZED:
        view = TrainView(size, crop="resized", flip=True)
    else:
        view = TrainView(size, crop="pad", flip=True, policy=policy)
    images = pixels.permute(0, 3, 1, 2).contiguous()
    keys = sample_keys(0, 0, torch.arange(len(images))).tolist()

    def run() -> object:
        return torch.stack([view(image, key) for image, key in zip(images, keys, strict=True)])

    return run


def measure(device: torch.device, rounds: int) -> list[Ratio]:
    """Every policy at every size."""
    rows = []
    for size, count in SIZES.items():
        count *= 8 if device.type == "cuda" else 1
        pixels = make_pixels(count, size).to(device)
        for policy in (RESIZED, *POLICIES):
            setting = f"{policy}, {size} px, batch {count}"
            if device.type == "cuda":
                contenders = {"crop and flip": batched(pixels, "none")}
            else:
                contenders = {"torchvision": one_by_one(pixels, policy)}
            contenders["batch"] = batched(pixels, policy)
            rows += compare(
                "augmentations", setting, contenders, rounds=rounds, items=count, device=device
            )
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = measure(device, options.rounds)
    write("augmentations-cpu" if device.type == "cpu" else "augmentations-gpu", rows)


if __name__ == "__main__":
    main()
