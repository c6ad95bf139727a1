"""Tables 3 and 7: OOD detection by energy, and calibration under shift."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from killick.settings import setting
from killick.studies.findings import Findings, Results, Values, find_metric, format_mean, make_table
from killick.studies.paper_tables import ERRORS, error_columns, read_published
from killick.studies.plots import Plot, draw_figure, draw_points
from killick.studies.set_names import find_paper_name
from killick.studies.study import PROTOCOLS, STUDIES, Size, Study, compare_protocols

# In Table 7; NINCO is in Table 3, without anchored training.
_OOD = ("iSUN", "Textures", "Places365", "NINCO")
_VISION = "AUROC, %: Vision OOD"  # the mean of the first three
_SUITES = {"corruptions": "common corruptions", "cbar": "C-bar"}


@dataclass(frozen=True)
class Options:
    """What is compared."""

    protocols: list[str] = setting(list(PROTOCOLS), "arms")


def find(results: Results) -> Findings:
    """AUROC by OOD set, and calibration over shifted sets."""
    areas, shifted = results.by_ood_set(), results.by_shifted_set("smooth_ece")
    base = results.arm(protocol="standard") or next(iter(results.factors))
    given = any(results.values(arm, "ood_auroc") for arm in results.factors)
    key, mean = ("ood_auroc", "mean") if given else ("synthetic_ood_auroc", "synthetic mean")
    rows = []
    for arm in results.factors:
        own = {find_paper_name(name): area for name, area in areas[arm].items()}
        errors = {find_paper_name(name): each for name, each in shifted[arm].items()}
        rows.append(
            {
                "protocol": arm,
                "source": "here",
                **{f"AUROC, %: {name}": format_mean(area) for name, area in own.items()},
                _VISION: format_mean(_mean_by_seed([own.get(name, {}) for name in _OOD[:3]])),
                f"AUROC, %: {mean}": results.format(arm, key),
                f"{mean} − {base}": results.compare(arm, base, key),
                **{f"smooth ECE: {n}": format_mean(each, 1, 3) for n, each in errors.items()},
                **error_columns(results, arm),
            }
        )
    for paper in read_published():
        theirs = {f"AUROC, %: {name}": paper[name.lower()] for name in _OOD if paper[name.lower()]}
        if theirs:
            vision = statistics.fmean(float(paper[name.lower()]) for name in _OOD[:3])
            theirs |= zip(ERRORS, (paper["smooth_ece"], paper["smooth_ece_std"]), strict=True)
            name = f"{paper['network']}, {paper['protocol']}"
            theirs |= {"protocol": name, "source": "paper, ImageNet", _VISION: f"{vision:.2f}"}
            rows.append(theirs)
    chance = find_metric(key).metric.chance
    low = [
        f"{arm} on {name}"
        for arm, sets in areas.items()
        for name, area in sets.items()
        if statistics.fmean(area.values()) < chance
    ]
    below = f"Below chance (50 %): {', '.join(low)}. " if low else ""
    table = make_table(
        "study-safety-table",
        "OOD detection and calibration under shift",
        rows,
        f"{below}AUROC of the energy; smooth ECE over corrupted and shifted sets. The paper's standard"
        " networks are torchvision's; its ECE may be a mean over batches of 64, which is higher.",
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
        f"{arm} {find_metric(key).title} {results.compare(arm, base, key)},"
        f" corrupted smooth ECE {results.compare(arm, base, 'corrupted_smooth_ece')}"
        for arm in results.factors
        if arm != base
    ]
    alone = f"{base}: {find_metric(key).title} {results.format(base, key)} %."
    headline = f"Against {base}: {'; '.join(gaps)}." if gaps else alone
    return Findings(headline, figures, (table,))


def _mean_by_seed(values: Sequence[Values]) -> Values:
    """The mean of several numbers, for the seeds that have all of them."""
    seeds = set.intersection(*(set(each) for each in values))
    return {seed: statistics.fmean(each[seed] for each in values) for seed in sorted(seeds)}


STUDY = Study(
    name="safety",
    item="Tables 3 and 7",
    title="Are anchored networks safer?",
    about="AUROC of the energy by OOD set, and smooth ECE over shifted sets",
    options=Options,
    arms=compare_protocols,
    findings=find,
    suites=("clean", "corruptions", "cbar", "calibration", "ood"),
    sets={"shift": ("R", "Sketch"), "ood": _OOD},
    models=True,
    sizes={
        "smoke": Size(evaluation={"corruptions": ("fog", "sparkles"), "severities": (3, 5)}),
        "paper": Size(
            "imagenet-swinv2-t",
            seeds=(0,),
            remark="Needs --data imagenet:FOLDER, --ood iSUN=images:FOLDER (likewise Textures,"
            " Places365, NINCO), and --shift R=imagefolder:FOLDER (likewise Sketch). Other networks:"
            " --recipe imagenet-swinv2-s, imagenet-vit-b16, imagenet-swinv2-b. Untested.",
        ),
    },
    notes=(
        "Logits are of one reference, as in the paper's text; its code takes the mean of five.",
    ),
)
STUDIES.register(STUDY.name, STUDY)
