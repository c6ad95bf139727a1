"""Tables 3 and 7: OOD detection by energy, and calibration under shift."""

import statistics
from dataclasses import dataclass

from killick.settings import setting
from killick.studies.findings import Findings, Results, format_mean, make_table
from killick.studies.plots import Plot, draw_figure, draw_points
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, compare_protocols

# ImageNet: AUROC of iSUN, Textures, Places365 (Table 7) and NINCO (Table 3, without anchored
# training); smooth ECE, its mean and standard deviation over shifted sets (Tables 3 and 6).
_ERRORS = ("smooth ECE: mean over sets", "smooth ECE: deviation over sets")
_COLUMNS = (*(f"AUROC, %: {name}" for name in ("iSUN", "Textures", "Places365", "NINCO")), *_ERRORS)
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
_SUITES = {"corruptions": "common corruptions", "cbar": "C-bar"}


@dataclass(frozen=True)
class Options:
    """What is compared."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def find(results: Results) -> Findings:
    """AUROC by OOD set, and calibration over shifted sets."""
    areas, base = results.by_ood_set(), results.arm(protocol="standard")
    rows = []
    for arm in results.factors:
        errors = shifted_errors(results, arm)
        means = {seed: statistics.fmean(values) for seed, values in errors.items()}
        spreads = {seed: statistics.stdev(v) for seed, v in errors.items() if len(v) > 1}
        rows.append(
            {
                "protocol": arm,
                "source": "here",
                **{f"AUROC, %: {name}": format_mean(area) for name, area in areas[arm].items()},
                "AUROC, %: mean": results.format(arm, "ood_auroc"),
                "mean − standard": results.compare(arm, base, "ood_auroc"),
                _ERRORS[0]: format_mean(means, 1, 3),
                _ERRORS[1]: format_mean(spreads, 1, 3),
            }
        )
    for name, values in PAPER.items():
        known = [(c, v) for c, v in zip(_COLUMNS, values, strict=True) if v is not None]
        theirs = {column: f"{value:g}" for column, value in known}
        rows.append({"protocol": ", ".join(name), "source": "paper, ImageNet", **theirs})
    table = make_table(
        "study-safety-table",
        "OOD detection and calibration under shift",
        rows,
        "AUROC of the energy; smooth ECE over corrupted and shifted sets. The paper's standard networks"
        " are torchvision's; its ECE may be a mean over batches of 64, which is higher.",
    )
    plots = []
    for suite, words in _SUITES.items():
        found = results.by_severity(suite, "smooth_ece")
        lines = {arm: {s: line[s] for s in line if s} for arm, line in found.items()}
        plots.append(Plot(f"Smooth ECE, {words}", lines, "", "severity", 1))
    ood = Plot("AUROC of the energy", areas, "%", "OOD set")
    figures = (
        draw_figure("study-safety-ood", [ood], draw_points),
        draw_figure("study-safety-calibration", plots),
    )
    gaps = [
        f"{arm} OOD AUROC {results.compare(arm, base, 'ood_auroc')},"
        f" corrupted smooth ECE {results.compare(arm, base, 'corrupted_smooth_ece')}"
        for arm in results.factors
        if arm != base
    ]
    return Findings(f"Against standard: {'; '.join(gaps)}.", figures, (table,))


def shifted_errors(results: Results, arm: str) -> dict[int, list[float]]:
    """By seed the smooth ECE of each corrupted and each shifted set, from the first reference."""
    found: dict[int, list[float]] = {}
    for (name, seed), run in results.report.comparison.runs.items():
        for row in run.rows if name == arm else ():
            kind = (row["metric"], row["inference"], row["scaling"], row["mean_of"])
            if kind == ("smooth_ece", "single", "", "") and row["suite"] in (*_SUITES, "shift"):
                found.setdefault(seed, []).append(float(row["value"]))
    return found


STUDY = Study(
    name="safety",
    item="Tables 3 and 7",
    title="Are anchored networks safer?",
    about="AUROC of the energy by OOD set, and smooth ECE over shifted sets",
    options=Options,
    arms=compare_protocols,
    findings=find,
    suites=("clean", "corruptions", "cbar", "calibration", "ood"),
    sizes={
        "smoke": Size(evaluation={"corruptions": ("fog", "sparkles"), "severities": (3, 5)}),
        "paper": Size(
            "imagenet-swinv2-t",
            seeds=(0,),
            remark="Needs --data imagenet:FOLDER, --ood iSUN=images:FOLDER (likewise Textures,"
            " Places365, NINCO), and --suite clean,corruptions,cbar,calibration,ood,shift --shift"
            " R=imagefolder:FOLDER (likewise Sketch). Other networks: --recipe imagenet-swinv2-s,"
            " imagenet-vit-b16, imagenet-swinv2-b. Untested.",
        ),
    },
    notes=(
        "Logits are of one reference, as in the paper's text; its code takes the mean of five.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
