"""A training step with each component, over the standard step: what does it cost?

Claim: at most 1.05 for those that only touch tensors (GridMask, PS-KD, ACLS, ELR, spectral
decoupling). Each takes turns with the standard step, step by step, and the standard step with itself
as a control: samples, forward, backward, SGD, hooks. On a CPU a small ResNet at 32 px on the embedded
shapes; on a GPU a ResNet-18, bf16, captured where the component allows it. Components with stages or
a ramp are at their beginning.

    OMP_NUM_THREADS=1 python benchmarks/components.py          # all, on the CPU or a GPU
    OMP_NUM_THREADS=1 python benchmarks/components.py elr acls # some, printed and not written
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from paired_timing import Ratio, compare, write

import killick
from killick.protocols import COMPONENTS
from killick.runtime.processes import Processes
from killick.training import load_recipe
from killick.training.run_state import TrainingRun
from killick.training.training_data import load_training_data

BATCH = {"cpu": 64, "cuda": 512}
MADE_OTHERWISE: dict[str, dict[str, Any]] = {
    "label_smoothing": {"smoothing": 0.1},
    "mixup": {"mixup": 0.2},
}
VIT = {
    "network.name": "timm:vit_tiny_patch16_224",
    "network.arguments": {"img_size": 32, "patch_size": 4, "depth": 4},
}
ANCHORED = {"protocol.name": "anchored"}


def make_step(device: torch.device, **changes: Any) -> Callable[[], None]:
    """A function that takes one step of a run, in as many epochs as it is called for."""
    values = {
        "protocol.name": "standard",
        "network.name": "killick:resnet18" if device.type == "cuda" else "killick:resnet_small",
        "data.workers": 0,
        "batch": BATCH[device.type],
        "epochs": 10_000,
        "log_every": 10_000,
    }
    recipe = load_recipe("shapes-small", {**values, **changes})
    processes = Processes(0, 1, device)
    run = TrainingRun(recipe, load_training_data(recipe, processes), processes, None)

    def step() -> None:
        epoch, within = divmod(run.done, run.steps_per_epoch)
        if within == 0:
            run.data.batches.begin(epoch, 0)
        run.take_step()

    return step


def save_extractor(folder: Path) -> str:
    """A network for Attentive CutMix; its weights do not matter for its time."""
    net = killick.nets.create("killick:resnet_small").eval()
    killick.save(killick.standard(net, ((0.5,) * 3, (0.25,) * 3), image_shape=(3, 32, 32)), folder)
    return str(folder)


def measure(device: torch.device, wanted: list[str], rounds: int) -> list[Ratio]:
    """Each component beside the standard step of the same network and protocol."""
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {
        "resnet, standard": ({}, []),
        "vit, standard": (VIT, ["attention_dropout"]),
        "resnet, anchored": (ANCHORED, ["references_per_image"]),
    }
    apart = {name for _, names in groups.values() for name in names}
    groups["resnet, standard"][1].extend(n for n in COMPONENTS.names() if n not in apart)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, dict[str, Any]] = {
            **MADE_OTHERWISE,
            "attentive_cutmix": {"extractor": save_extractor(Path(folder) / "net")},
        }
        for title, (changes, possible) in groups.items():
            names = [name for name in possible if name in wanted]
            if not names:
                continue
            standard = make_step(device, **changes)
            for name in names:
                component = {"name": name, **settings.get(name, {})}
                step = make_step(device, **changes, components=[component])
                rows += compare(
                    "components",
                    f"{title}, batch {BATCH[device.type]}, {name}",
                    {"no component": standard, name: step},
                    rounds=rounds,
                    items=BATCH[device.type],
                    repeats=20 if device.type == "cuda" else 1,
                    device=device,
                )
    return rows


def main() -> None:
    """Measure and write."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    wanted = sys.argv[1:]
    rows = measure(device, wanted or list(COMPONENTS.names()), rounds=20 if cuda else 40)
    if not wanted:  # ratios in the file are of one run
        write("components-h200" if cuda else "components-cpu", rows)


if __name__ == "__main__":
    main()
