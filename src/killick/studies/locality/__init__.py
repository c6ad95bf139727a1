"""Which part of a modern training protocol makes attention local, and what does anchoring do to it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.errors import OptionError
from killick.settings import setting
from killick.studies.findings import Findings, Results
from killick.studies.locality.factorial import FACTORS, Cell
from killick.studies.study import STUDIES, WITH_REFERENCES, Size, Study, StudyArm, vary_arm

if TYPE_CHECKING:
    from killick.experiments.jobs import Job

CELLS: dict[str, Cell] = {
    "baseline": frozenset(),
    "policy": frozenset({"policy"}),
    "cutmix": frozenset({"cutmix"}),
    "smoothing": frozenset({"smoothing"}),
    "policy-cutmix": frozenset({"policy", "cutmix"}),
    "policy-smoothing": frozenset({"policy", "smoothing"}),
    "cutmix-smoothing": frozenset({"cutmix", "smoothing"}),
    "modern": frozenset(FACTORS),
}
_PARTS: dict[str, dict[str, Any]] = {
    "policy": {"augment.policy": "autoaugment", "augment.policy_arguments": {"policy": "cifar10"}},
    "cutmix": {"augment.cutmix": 1.0},
    "smoothing": {"augment.smoothing": 0.1},
}
# In the place of CutMix in the modern protocol.
_INSTEAD: dict[str, dict[str, Any]] = {
    "mixup": {"augment.mixup": 1.0},
    "erasing": {"augment.erase": 1.0},
    "gridmask": {"components": [{"name": "gridmask"}]},
}
_UNTRAINED = {"optimizer.lr": 1e-12, "epochs": 1}
CONTROLS = ("untrained", *_INSTEAD)
PROTOCOLS = ("standard", "anchored", "masked-label", "masked-uniform")


@dataclass(frozen=True)
class Options:
    """What is varied."""

    cells: list[str] = setting(
        list(CELLS), "parts of the modern protocol that are on", among=tuple(CELLS)
    )
    controls: list[str] = setting(
        ["none"],
        "standard training: no training at all; in the modern protocol, mixup, random erasing or"
        " GridMask instead of CutMix",
        among=("none", *CONTROLS),
    )
    protocols: list[str] = setting(list(PROTOCOLS), "arms, each with all cells", among=PROTOCOLS)
    reference_images: list[str] = setting(
        ["clean"],
        "of anchored arms: clean leaves them unmixed, batch mixes them as the images are",
        among=("clean", "batch"),
    )
    budgets: list[float] = setting(
        [1.0],
        "shares of the epochs for standard baseline and modern, to compare them at equal loss",
        above=0,
        most=1,
    )


def make_arms(options: Options, settings: Mapping[str, Any]) -> list[StudyArm]:
    """The factorial for every protocol, then controls and shorter budgets."""
    found = []

    def add(protocol: str, name: str, own: Mapping[str, Any], **factors: Any) -> None:
        known = {"protocol": protocol, "cell": "", "control": "", "references": "", "budget": 1.0}
        found.append(StudyArm(vary_arm(protocol, name, own), {**known, **factors}))

    def of_cell(cell: str) -> dict[str, Any]:
        chosen = [factor for factor in FACTORS if factor in CELLS[cell]]
        return {name: value for factor in chosen for name, value in _PARTS[factor].items()}

    for protocol in options.protocols:
        for references in options.reference_images if protocol in WITH_REFERENCES else [""]:
            own = {"protocol.references": references} if references else {}
            mixed = "-mixed-references" if references == "batch" else ""
            for cell in options.cells:
                all_settings = {**of_cell(cell), **own}
                add(protocol, cell + mixed, all_settings, cell=cell, references=references)
    for control in options.controls:
        if control == "untrained":
            add("standard", control, _UNTRAINED, control=control)
        elif control != "none":
            modern = {**of_cell("policy-smoothing"), **_INSTEAD[control]}
            add("standard", control, modern, control=control)
    for budget in (each for each in options.budgets if each != 1):
        if "epochs" not in settings:
            raise OptionError("--budgets requires --epochs N.")
        epochs = {"epochs": max(1, round(budget * settings["epochs"]))}
        for cell in ("baseline", "modern"):
            name = f"{cell}-budget{budget:g}"
            add("standard", name, {**of_cell(cell), **epochs}, cell=cell, budget=budget)
    return found


def check(options: Options, jobs: "Sequence[Job]") -> None:
    """Refuse a network whose attention cannot be measured."""
    import torch

    from killick.attention import measure
    from killick.training.initial_weights import create_net, pretrained_name

    recipe = jobs[0].phases[0].recipe  # all arms have the same network
    if pretrained_name(recipe.network) is None:
        channels = 6 if recipe.network.pairs else 3
        images = torch.zeros(2, channels, recipe.data.size, recipe.data.size)
        measure(create_net(recipe, 2), images)


def find(results: Results) -> Findings:
    """Tables of locality, effects, controls and equal loss; a figure of the minimum distances."""
    from killick.studies.locality.locality_tables import make_findings

    return make_findings(results)


_TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 3, "num_heads": 4}
_VIT = {
    "network.name": "timm:vit_tiny_patch16_224",
    "optimizer.name": "adamw",
    "optimizer.weight_decay": 0.05,
    "optimizer.decay": "matrices",
    "optimizer.clip": 1.0,
    "optimizer.lr": 1e-3,
    "schedule.name": "cosine",
    "schedule.warmup": 0.1,
    "augment.crop": "pad",
    "augment.flip": True,
    "data.validation": 0,
}
_FEW = {"cells": ["baseline", "cutmix", "policy-smoothing", "modern"], "protocols": ["standard"]}
STUDY = Study(
    name="locality",
    item="",
    title="Which part of a training protocol makes attention local?",
    about="attention distance of a ViT: augmentation policy x CutMix x label smoothing x protocols",
    options=Options,
    varies=("cells", "controls", "protocols", "reference_images", "budgets"),
    arms=make_arms,
    check=check,
    findings=find,
    suites=("clean", "attention"),
    measure="killick.studies.locality.training_loss:measure",
    sizes={
        "small": Size(
            settings={
                **_VIT,
                "network.arguments": _TINY,
                "epochs": 40,
                "batch": 32,
                "optimizer.lr": 2e-3,
            },
            options=_FEW,
            seeds=(0, 1, 2),
            evaluation={"limit": 1000, "references": 5},
        ),
        "smoke": Size(
            settings={**_VIT, "network.arguments": {**_TINY, "depth": 2}, "batch": 32},
            options={"cells": ["baseline", "modern"], "protocols": ["standard", "masked-label"]},
            evaluation={"references": 2},
        ),
        "paper": Size(
            recipe="cifar10-vit",
            settings={
                **_VIT,
                "network.arguments": {
                    **_TINY,
                    "embed_dim": 192,
                    "depth": 9,
                    "num_heads": 12,
                },
                "epochs": 100,
                "batch": 512,
            },
            options={
                "controls": list(CONTROLS),
                "reference_images": ["clean", "batch"],
                "budgets": [0.25, 0.5, 1.0],
            },
            evaluation={"references": 5},
            remark="The published values are of CIFAR-100: --data cifar100.",
        ),
    },
    notes=(
        "Published: Toledo and Martinez (2026), abstract. It names neither the normalizer, nor the layers"
        " of the minimum, nor size, epochs and seeds.",
        "Distances are divided by the largest between two patches; patch weights are renormalized; a"
        " minimum is over all heads of all layers, early means the first third of the layers.",
        "Modern has the augmentation policy on every data set; color jitter, which the paper has on some,"
        " is left out.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
