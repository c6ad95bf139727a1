"""Tables 3 and 7: are anchored networks safer? Foreign pictures told, calibration under shift."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from killick.settings import setting
from killick.studies.study import PROTOCOLS, Size, Study, Treatment, plain

if TYPE_CHECKING:
    from killick.report.tables import TextTable
    from killick.studies.results import Results
    from killick.studies.shown import Shown

# ImageNet: AUROC of iSUN, Textures, Places365 (Table 7) and NINCO (Table 3, which has no anchored
# training); smooth ECE, its mean and standard deviation over shifted sets (Tables 3 and 6).
PAPER: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("SwinV2-T", "standard"): (80.25, 76.83, 72.53, 77.46, 0.121, 0.034),
    ("SwinV2-T", "anchored"): (78.68, 76.64, 74.75, None, 0.121, 0.032),
    ("SwinV2-T", "masked-label"): (77.69, 78.09, 77.16, 78.49, 0.117, 0.027),
    ("SwinV2-S", "standard"): (82.89, 77.87, 70.63, 74.73, 0.126, 0.039),
    ("SwinV2-S", "anchored"): (87.73, 80.83, 76.67, None, 0.122, 0.045),
    ("SwinV2-S", "masked-label"): (84.18, 79.66, 74.85, 78.47, 0.119, 0.041),
    ("ViT-B/16", "standard"): (86.92, 79.24, 65.72, 65.98, 0.109, 0.037),
    ("ViT-B/16", "anchored"): (85.17, 76.88, 66.16, None, 0.106, 0.035),
    ("ViT-B/16", "masked-label"): (84.55, 78.91, 67.18, 70.32, 0.105, 0.028),
    ("SwinV2-B", "standard"): (85.32, 76.35, 65.99, 72.13, 0.132, 0.055),
    ("SwinV2-B", "anchored"): (85.98, 77.88, 70.75, None, 0.129, 0.058),
    ("SwinV2-B", "masked-label"): (87.34, 75.74, 73.66, 74.53, 0.124, 0.051),
}


@dataclass(frozen=True)
class Options:
    """What is compared."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def treat(options: Options, settings: Mapping[str, Any]) -> Sequence[Treatment]:
    """The protocols themselves; the sets are those of the evaluation."""
    return plain(options.protocols)


def show(results: "Results") -> "Shown":
    """AUROC by set, calibration over shifted sets, and the paper's tables."""
    from killick.studies.shifted import draw_safety, has_vision_ood, tabulate_safety, tell_safety
    from killick.studies.shown import Shown

    says = "In the paper masking raises the mean AUROC of three networks of four, and lowers the"
    says += " calibration error of all four by less than its spread over sets."
    notes = [
        "The paper's calibration errors may be means over batches of 64, as its code takes them,"
        " which come out higher than those of whole sets, taken here."
    ]
    if not has_vision_ood(results):
        notes.append(
            "The paper's AUROCs are against other foreign sets, so they do not compare. With its"
            " sets: --ood iSUN=pictures:FOLDER, likewise Textures, Places365 and NINCO."
        )
    return Shown(
        tell_safety(results),
        (draw_safety(results, says),),
        (tabulate_safety(results), tabulate_paper()),
        notes=tuple(notes),
    )


def tabulate_paper() -> "TextTable":
    """Tables 3 and 7 in one, with the calibration of anchored training from Table 6."""
    from killick.report.tables import TextTable
    from killick.studies.drawing import NONE

    rows = []
    for (network, protocol), (*areas, ninco, mean, spread) in PAPER.items():
        vision = sum(area for area in areas if area is not None) / len(areas)
        found = [f"{area:.2f}" for area in (*areas, vision) if area is not None]
        found += [NONE if ninco is None else f"{ninco:.2f}", f"{mean:.3f}", f"{spread:.3f}"]
        rows.append((f"{network}, {protocol}", *found))
    sets = ("iSUN", "Textures", "Places365", "Vision OOD", "NINCO")
    return TextTable(
        "study-safety-paper",
        "The same in the paper: ImageNet (Tables 3, 6 and 7)",
        (
            "network, protocol",
            *(f"AUROC: {name}" for name in sets),
            "smooth ECE: mean over sets",
            "smooth ECE: standard deviation over sets",
        ),
        tuple(rows),
        "Vision OOD is the plain mean of the three before it. The standard networks are"
        " torchvision's, which the authors did not train. Shifted sets: ImageNet-C, -C-bar, -R and"
        " -Sketch.",
    )


_SHOWN = {"suites": ("clean", "corruptions", "cbar", "calibration", "ood"), "references": 1}
STUDY = Study(
    name="safety",
    item="Tables 3 and 7",
    title="Are anchored networks safer?",
    about="AUROC of the energy by foreign set, and smooth ECE over shifted sets",
    options=Options,
    varies=("protocols",),
    treat=treat,
    show=show,
    sizes={
        "small": Size("shapes-compare", evaluation={**_SHOWN, "limit": 400}),
        "smoke": Size(
            "shapes-compare",
            {"data.limit": 100, "data.validation": 0, "epochs": 1},
            seeds=(0,),
            evaluation={
                **_SHOWN,
                "limit": 60,
                "corruptions": ("fog", "sparkles"),
                "severities": (3, 5),
            },
        ),
        "paper": Size(
            "imagenet-swinv2-t",
            seeds=(0,),
            evaluation=_SHOWN,
            remark="Bring ImageNet as --data imagenet:FOLDER; the foreign sets as --ood"
            " iSUN=pictures:FOLDER, likewise Textures, Places365 and NINCO; and as --suite clean,"
            "corruptions,cbar,calibration,ood,shift --shift R=imagefolder:FOLDER, likewise Sketch."
            " Other networks: --recipe imagenet-swinv2-s, imagenet-vit-b16, imagenet-swinv2-b."
            " Unproven, for want of these data.",
        ),
    },
    unsaid=(
        "of how many references the logits are the mean (its text says one, its code five); taken:"
        " one.",
        "whether the calibration error is that of a set or a mean over batches; taken: of a set.",
    ),
)
