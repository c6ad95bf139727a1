"""The evidence: pages say what is in the files, and files what is in the rows; scripts work."""

import csv
import re
import statistics
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import killick
from killick.cli import main as killick_command
from killick.cli import make_parser
from killick.corruptions.suites import list_corruptions
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs

ROOT = Path(__file__).parent.parent
FOUND = ROOT / "benchmarks" / "results" / "cifar10"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs")]
import evidence  # noqa: E402
import gate  # noqa: E402
import measured  # noqa: E402

C, CBAR = (set(list_corruptions(kind, "cifar")) for kind in ("c", "cbar"))


def read(name: str) -> list[dict[str, str]]:
    with open(FOUND / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary() -> dict[tuple[str, str], dict[str, str]]:
    rows = [r for r in read("summary.csv") if r["grid"] == "first"]
    return {(r["arm"], r["measure"]): r for r in rows if r["against"] in ("", "standard")}


def values(suite: str, metric: str, **where: str) -> dict[str, dict[int, float]]:
    """By arm and seed, the mean over the rows of the first grid that fit, one reference."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read("first-grid.csv"):
        fits = row["suite"] == suite and row["inference"] != "marginal"
        if fits and all(row[key] == wanted for key, wanted in where.items()):
            found[row["arm"]][int(row["seed"])].append(float(row[metric]))
    return {a: {s: statistics.fmean(v) for s, v in seeds.items()} for a, seeds in found.items()}


# What was found -----------------------------------------------------------------------------------


def test_every_arm_of_the_first_grid_has_three_seeds_and_every_corruption():
    seen = defaultdict(set)
    for row in read("first-grid.csv"):
        if row["top1"] and row["inference"] != "marginal" and row["corruption"]:
            seen[row["arm"], row["seed"]].add((row["corruption"], row["severity"]))
    assert {arm for arm, _ in seen} == set(measured.FIRST)
    assert len(seen) == 18
    everything = {(name, str(severity)) for name in C | CBAR for severity in range(1, 6)}
    assert all(each == everything for each in seen.values())


@pytest.mark.parametrize(
    ("measure", "suite", "metric", "where"),
    [
        ("clean", "clean", "top1", {}),
        ("corrupted", "corruptions", "top1", {}),
        ("severity 5", "corruptions", "top1", {"severity": "5"}),
        ("C-bar", "cbar", "top1", {}),
        ("shift", "shift", "top1", {}),
        ("smooth ECE, corrupted", "corruptions", "smooth_ece", {}),
        ("OOD AUROC, scenes", "ood", "auroc", {"set": "scenes"}),
    ],
)
def test_the_summary_follows_from_the_rows(measure, suite, metric, where):
    found = values(suite, metric, **where)
    for arm, seeds in found.items():
        row = summary()[arm, measure]
        each = [seeds[seed] for seed in sorted(seeds)]
        assert [float(v) for v in row["by_seed"].split()] == pytest.approx(each, abs=2e-5)
        assert float(row["mean"]) == pytest.approx(statistics.fmean(each), abs=2e-5)
        assert float(row["spread"]) == pytest.approx(statistics.stdev(each), abs=2e-5)
        if arm == "standard":
            assert not row["difference"]
            continue
        base = list(found["standard"].values())
        a, b = (statistics.variance(each_of) / 3 for each_of in (each, base))
        freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)  # Welch and Satterthwaite
        gain = statistics.fmean(each) - statistics.fmean(base)
        reach = stats.t.ppf(0.975, freedom) * (a + b) ** 0.5
        told = [float(row[key]) for key in ("difference", "low", "high")]
        assert told == pytest.approx([gain, gain - reach, gain + reach], abs=1e-4)


def test_the_mean_detection_is_that_of_the_three_foreign_sets():
    for arm in measured.FIRST:
        three = [
            values("ood", "auroc", set=name)[arm] for name in ("textures", "scenes", "characters")
        ]
        mean = statistics.fmean(v for seeds in three for v in seeds.values())
        assert float(summary()[arm, "OOD AUROC"]["mean"]) == pytest.approx(mean, abs=2e-5)


# What the pages say -------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "docs/evidence.md"])
def test_the_tables_of_a_page_are_the_measured_ones(page):
    text = (ROOT / page).read_text()
    assert measured.renew(text) == text, "python docs/measured.py makes them anew"
    assert "| standard | 93.5" in text
    assert measured.renew(text.replace("| standard | 93.5", "| standard | 99.9")) == text


def test_the_numbers_in_sentences_are_those_of_the_summary():
    page, readme = ((ROOT / f).read_text() for f in ("docs/evidence.md", "README.md"))
    page, readme = (" ".join(text.split()) for text in (page, readme))

    def gain(arm: str, measure: str, key: str = "difference", factor: float = 100) -> str:
        return f"{factor * float(summary()[arm, measure][key]):.1f}".replace("-", "−")

    label, tuned = (
        [gain(arm, m) for m in ("corrupted", "severity 5", "OOD AUROC")]
        + [gain(arm, "corrupted", key) for key in ("low", "high")]
        for arm in ("masked-label", "finetuned")
    )
    better, worst, told, low, high = label
    assert f"accuracy {better} points better ({low} to {high}), {worst} at severity 5" in page
    assert f"falls by a quarter, with and without a temperature; AUROC +{told}." in page
    better, worst, told, low, high = tuned
    assert f"+{better} ({low} to {high}), +{worst}, calibration error less 29 %" in page
    assert f"AUROC +{told}." in page
    assert f"{better} points better under corruption (95 % interval {low} to {high})" in readme
    assert f"{worst} at severity 5" in readme
    errors = [
        float(summary()[arm, "smooth ECE, corrupted"]["mean"])
        for arm in ("standard", "masked-label", "finetuned")
    ]
    assert round(100 * (1 - errors[2] / errors[0])) == 29
    assert 0.2 < 1 - errors[1] / errors[0] < 0.3  # "by a quarter"
    clean = [
        f"{float(summary()[arm, 'smooth ECE, clean']['mean']):.3f}"
        for arm in ("standard", "masked-label", "finetuned")
    ]
    assert "falls from {} to {} (label) and {} (second half)".format(*clean) in page
    for arm, told in (("standard", "55"), ("masked-label", "46"), ("finetuned", "43")):
        assert f"{100 * float(summary()[arm, 'OOD FPR at 95 %']['mean']):.0f}" == told
    finished = {(r["arm"], r["measure"]): r for r in read("finetune.csv")}
    iceless = [
        {key: 100 * float(row[key]) for key in ("difference", "low", "high")}
        for row in (
            summary()["masked-label", "corrupted, without frost"],
            summary()["finetuned", "corrupted, without frost"],
            finished["tuned-masked-label-lr0.01", "corrupted, without frost"],
        )
    ]
    forms = ("from scratch", "in the second half", "of finished networks")
    for row, form in zip(iceless, forms, strict=True):
        text = "{difference:.1f}{} {form} ({low:.1f} to {high:.1f})"
        points = " points" if form == "from scratch" else ""
        assert text.format(points, form=form, **row).replace("-", "−") in page
    for arm, row in zip(("masked-label", "finetuned"), iceless, strict=False):
        mean = statistics.fmean(
            100 * float(row["difference"])
            for row in read("by-corruption.csv")
            if (row["suite"], row["severity"], row["arm"]) == ("corruptions", "all", arm)
            and row["corruption"] != "frost"
        )
        assert row["difference"] == pytest.approx(mean, abs=1e-3)
    second = {
        (r["arm"], r["measure"]): r
        for r in read("summary.csv")
        if (r["grid"], r["network"]) == ("second", "resnet18")
    }
    handled, alone = (
        100 * float(second[arm, "clean"]["mean"])
        for arm in ("uniform-batch", "uniform-batch-running")
    )
    assert f"from {handled:.1f} to {alone:.1f}" in page
    own = [r for r in read("gate.csv") if r["network"] == "resnet18"]
    faded = {(r["arm"], r["pair"], r["share"]): r for r in own}
    for arm, share in (("masked-label", "69 %"), ("anchored", "53 %")):
        assert f"{100 * float(faded[arm, 'faded', '0.0']['top1']):.0f} %" == share
        assert share in page
    first, again = (
        next(100 * float(r[key]) for r in read("again.csv") if r["measure"] == "corrupted")
        for key in ("first", "again")
    )
    assert f"had {again:.1f} % instead of {first:.1f} %" in page


def numbers(row: dict[str, str]) -> list[float]:
    return [float(value) for value in row["by_seed"].split()]


def welch(ours: list[float], theirs: list[float]) -> list[float]:
    """The difference of the means, and its 95 % interval."""
    reach = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return [statistics.fmean(ours) - statistics.fmean(theirs), reach.low, reach.high]


def of_summary(arm: str, measure: str, against: str = "standard") -> dict[str, str]:
    (row,) = [
        r
        for r in read("summary.csv")
        if (r["arm"], r["measure"], r["network"]) == (arm, measure, "resnet18")
        and r["against"] in ("", against)
    ]
    return row


def test_what_the_authors_code_does_is_told_as_it_was_found():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    found = {
        measure: [
            100 * float(of_summary("label-running", measure)[k])
            for k in ("difference", "low", "high")
        ]
        for measure in ("corrupted", "severity 5", "C-bar", "C-bar, severity 5", "OOD AUROC")
    }
    errors = [
        float(of_summary(arm, "smooth ECE, corrupted")["mean"])
        for arm in ("label-running", "standard")
    ]
    form = "leaves it: +{:.1f} ({:.1f} to {:.1f}), +{:.1f}, calibration error less {:.0f} %, AUROC"
    numbers = [*found["corrupted"], found["severity 5"][0], 100 * (1 - errors[0] / errors[1])]
    assert f"{form} +{{:.1f}}.".format(*numbers, found["OOD AUROC"][0]) in page
    form = "as in that code: +{:.1f} and +{:.1f}. Re-estimated"
    assert form.format(found["corrupted"][0], found["severity 5"][0]) in page
    form = "BatchNorm left alone: +{:.1f} ({:.1f} to {:.1f}) and +{:.1f}. Re-estimated"
    assert form.format(*found["C-bar"], found["C-bar, severity 5"][0]) in page
    low, high = found["corrupted"][1:]
    assert f"our interval for BatchNorm left alone ({low:.1f} to {high:.1f})" in page
    assert low < 5.2 < high
    assert 100 * float(of_summary("masked-label", "corrupted")["high"]) < 5.2
    tops = [
        100 * float(of_summary(arm, "severity 5")["high"])
        for arm in ("label-running", "masked-label", "finetuned", measured.CHOSEN)
    ]
    assert min(tops) > 8.5  # "within all of them on 50,000 pictures"
    finished = {(r["arm"], r["measure"]): r for r in read("finetune.csv")}
    base = finished["base", "severity 5"]
    tops = [
        100 * float(finished[arm, "severity 5"]["high"])
        for arm in ("tuned-masked-label-lr0.01", "scratch-masked-label")
    ]
    for row in read("tempered.csv"):
        if row["measure"] == "severity 5":
            ours, theirs = ([float(v) for v in r["by_seed"].split()] for r in (row, base))
            tops.append(100 * welch(ours, theirs)[2])
    assert len(tops) == 4
    assert 8.3 < max(tops) < 8.5  # "above those on 45,000, once by little"
    anchored = [
        100 * float(of_summary("anchored", "C-bar")[k]) for k in ("difference", "low", "high")
    ]
    assert "C-bar +{:.1f} ({:.2f} to {:.2f}) |".format(*anchored) in page
    assert "on C-bar it is {:.1f} better ({:.2f} to {:.2f})".format(*anchored) in page
    left, own = (
        [
            100 * float(r["fpr_at_95_tpr_in"])
            for r in read(grid)
            if (r["arm"], r["set"], r["inference"], r["network"])
            == (arm, "blobs", "single", "resnet18")
        ]
        for grid, arm in (("second-grid.csv", "label-running"), ("first-grid.csv", "masked-label"))
    )
    assert len(left) == len(own) == 3
    told = "blobs are told worse (+{:.0f} points; {:.0f} to {:.0f})"
    assert told.format(*welch(left, own)) in page


def test_the_table_of_claims_says_what_the_paper_says_and_what_was_found():
    page = (ROOT / "docs/evidence.md").read_text()
    table = page.partition("## The claims")[2].partition("\n## ")[0]
    cells = {
        row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:5]]
        for row in table.splitlines()
        if row.startswith("|")
    }
    path = ROOT / "src/killick/studies/published/generalization.csv"
    with open(path, newline="", encoding="utf-8") as file:
        published = {r["protocol"]: r for r in csv.DictReader(file) if r["data"] == "CIFAR-10"}

    def theirs(arm: str, suite: str, severities: str = "12345") -> float:
        return statistics.fmean(
            float(published[arm][suite + s]) - float(published["standard"][suite + s])
            for s in severities
        )

    def ours(arm: str, measure: str, *keys: str, factor: float = 100) -> list[str]:
        row = of_summary(arm, measure)
        values = [factor * float(row[key]) for key in keys or ("difference",)]
        digits = 1 if factor == 100 else 3
        return [f"{v:+.{digits}f}".replace("-", "−") for v in values]

    interval = ("difference", "low", "high")
    arms = ("masked-label", "finetuned", measured.CHOSEN)
    for title, suite, mean, worst in (
        ("CIFAR-10-C, masked less standard", "c", "corrupted", "severity 5"),
        ("C-bar, masked less standard", "cbar", "C-bar", "C-bar, severity 5"),
    ):
        paper, _, here = cells[title]
        said = theirs("masked-label", suite), theirs("masked-label", suite, "5")
        assert paper.startswith("+{:.1f} mean, +{:.1f} at severity 5".format(*said))
        found = [ours(arm, measure)[0] for arm in arms for measure in (mean, worst)]
        low, high = ours("masked-label", mean, "low", "high")
        form = "Re-estimated: {0}{6} and {1} from scratch, {2} and {3} in the second half, {4} and"
        around = f" ({low} to {high})" if suite == "cbar" else ""
        assert f"{form} {{5}} there with chosen settings".format(*found, around) in here
    paper, _, here = cells["anchored less standard"]
    said = theirs("anchored", "c"), theirs("anchored", "cbar")
    assert paper == "CIFAR-10-C +{:.1f}, C-bar +{:.1f}".format(*said)
    assert here.startswith("{} ({} to {}), C-bar".format(*ours("anchored", "corrupted", *interval)))
    paper, _, here = cells["clean accuracy"]
    said = [published[arm]["clean"] for arm in ("standard", "masked-label")]
    assert paper == "{:.1f} standard, {:.1f} masked".format(*(float(v) + 1e-9 for v in said))
    found = [100 * float(of_summary(arm, "clean")["mean"]) for arm in ("standard", "masked-label")]
    gap = ours("masked-label", "clean", *interval)
    assert here == "{:.1f} and {:.1f}: the gain was not seen ({}; {} to {})".format(*found, *gap)
    error = "smooth ECE, corrupted"
    found = [
        float(of_summary(arm, error)["mean"])
        for arm in ("masked-label", "label-running", "finetuned", measured.CHOSEN, "standard")
    ]
    form = "{:.3f} from scratch ({:.3f} with BatchNorm left alone), {:.3f} in the second half,"
    form += " {:.3f} with chosen settings, against {:.3f}."
    assert form.format(*found) in cells["calibration"][2]
    finished = {(r["arm"], r["measure"]): r for r in read("finetune.csv")}
    cured = f"{error}, temperature"
    scratch, control, base = (
        float(finished[arm, cured]["mean"])
        for arm in ("scratch-masked-label", "tuned-standard-lr0.01", "base")
    )
    assert f"[{scratch:.3f} from scratch]" in cells["calibration"][2]
    assert f"against {control:.3f}; [" in cells["calibration"][2]
    assert cells["calibration"][2].endswith(f"in the second half against {base:.3f}")
    arms = ("masked-label", "label-running", "finetuned", measured.CHOSEN, "anchored")
    found = [ours(arm, "OOD AUROC")[0] for arm in (*arms, "masked-uniform")]
    form = "{} from scratch ({} with BatchNorm left alone) and {} in the second half, with chosen"
    form += " settings {}; anchored {}; uniform {}"
    found[4] = found[4].strip("+−") if float(found[4].strip("+−")) == 0 else found[4]
    assert cells["other pictures, by energy"][2] == form.format(*found)
    tuned = finished["tuned-masked-label-lr0.01", "corrupted"]
    found = [f"{100 * float(tuned[key]):.1f}" for key in interval]
    form = "in the second half of training: {}; finished, in ten epochs: +{} ({} to {}), where"
    told = form.format(ours("finetuned", "corrupted")[0], *found)
    assert told in cells["anchoring a trained network"][2]
    label, released = ours("masked-label", "corrupted")[0], ours("label-running", "corrupted")[0]
    told = ours("masked-uniform", "corrupted", *interval)
    form = "label: {} corrupted, as in the authors' code {}; uniform, by sample: {} ({} to {})"
    assert cells["target of masked pairs"][2] == form.format(label, released, *told)


def test_what_is_no_gain_is_told_as_it_was_found():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())

    def gap(arm: str, other: str, measure: str) -> list[float]:
        pair = (numbers(of_summary(each, measure)) for each in (arm, other))
        return [100 * value for value in welch(*pair)]

    foreign = gap("anchored", "masked-uniform", "OOD AUROC")
    clean = gap("anchored", "masked-uniform", "clean")
    told = "it loses {:.1f} points of AUROC ({:.1f} to {:.1f}), and perhaps {:.1f} on clean"
    told = f"{told} pictures ({{:.1f}} to {{:.1f}})".format(*foreign, *clean)
    assert told.replace("-", "−") in page
    told = "from scratch {:.1f} under corruption; {:.1f} to +{:.1f}"
    told = told.format(*gap("masked-label", "finetuned", "corrupted"))
    assert told.replace("-", "−") in page
    results = ROOT / "benchmarks" / "results"
    with open(results / "studies" / "alpha.csv", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["metric"] == "corrupted_top1"]
    means = [
        100
        * statistics.fmean(float(r["value"]) for r in rows if (r["protocol"], r["alpha"]) == key)
        for key in [
            *(("masked-uniform", a) for a in ("0.25", "0.5", "0.75")),
            ("masked-label", "0.0"),
        ]
    ]
    told = "at every alpha: {:.1f} % under corruption at 0.25, {:.1f} at 0.5, {:.1f} at 0.75, where"
    assert f"{told} the anchored network has {{:.1f}}.".format(*means) in page
    with open(results / "studies" / "augmentation.csv", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["metric"] == "corrupted_top1"]
    value = {(r["protocol"], r["augmentation"]): 100 * float(r["value"]) for r in rows}
    lost = [
        value["standard", kind] - value["masked-label", kind]
        for kind in ("randaugment", "trivialaugment", "pixmix")
    ]
    told = f"{min(lost):.1f} to {max(lost):.1f} points"
    assert f"one seed, it loses {told} beside each of them" in page
    studies = " ".join((ROOT / "docs/studies.md").read_text().split())
    assert f"loses beside all three strong augmentations ({told}, one seed)" in studies
    with open(results / "references-cifar-h200.csv", newline="") as file:
        short = {r["references"]: r for r in csv.DictReader(file)}
    masked, plain = (
        [
            100 * float(short[who][f"{m}{end}"])
            for m in ("clean top1", "corrupted top1")
            for end in ("", ", std")
        ]
        for who in ("training image, each of 10", "none")
    )
    told = "{:.1f} ± {:.1f} % on clean pictures and {:.1f} ± {:.1f} under corruption, standard ones"
    told = f"{told} {{:.1f}} ± {{:.1f}} and {{:.1f}} ± {{:.1f}};"
    assert told.format(*masked, *plain) in page


def test_sentences_beside_tables_say_what_the_tables_say():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())

    def mean(arm: str, measure: str, factor: float = 100) -> float:
        return factor * float(of_summary(arm, measure)["mean"])

    def lost(measure: str) -> float:
        return mean("uniform-batch", measure) - mean("uniform-batch-running", measure)

    weakest = 100 * min(numbers(of_summary("masked-label", "corrupted")))
    falling = mean("label-falling", "corrupted")
    gains = [mean(arm, "OOD AUROC, scrambled") for arm in ("standard", "masked-label", "finetuned")]
    alone = of_summary("label-running", "OOD AUROC", against="masked-label")
    told = [100 * float(alone[key]) for key in ("difference", "low", "high")]
    shifted = [mean(a, "smooth ECE, shift", 1) for a in ("standard", "masked-label", "finetuned")]
    assert f"{shifted[1]:.2f}" == f"{shifted[2]:.2f}"
    uniform, anchored = (mean(arm, "corrupted") for arm in ("masked-uniform", "anchored"))
    noise = [100 * value for value in numbers(of_summary("standard", "OOD AUROC, noise"))]
    for said in (
        f"costs {lost('clean'):.1f} points on clean pictures and {lost('corrupted'):.1f} under",
        f"over the anchored network ({uniform:.1f} and {anchored:.1f} %)",
        f"weakest seed ({falling:.1f} and {weakest:.1f} %; one seed",
        f"weakest seed ({falling:.1f} and {weakest:.1f} %); its calibration",
        f"told better (+{gains[1] - gains[0]:.1f}, +{gains[2] - gains[0]:.1f}), blobs",
        f"shifted set from {shifted[0]:.2f} to {shifted[1]:.2f} in both",
        "{:.1f} points of AUROC ({:.1f} to {:.1f}): there".format(*told),
        f"(AUROC {min(noise):.0f} to {max(noise):.0f}) to tell",
    ):
        assert said in page


def test_a_mean_image_with_uniform_targets_is_told_as_it_was_found():
    page = " ".join((ROOT / "docs/protocols/masked-uniform.md").read_text().split())
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in read("gate.csv"):
        if row["share"] == "1.0":
            found[row["network"], row["arm"], row["pair"]].append(100 * float(row["top1"]))
    for network, arm, form in (
        ("resnet18", "masked-uniform", "{:.1f} % of clean pictures from it against {:.1f} % from"),
        ("vit_tiny_patch16_224", "uniform-batch", "{:.1f} against {:.1f} % (small ViT)"),
    ):
        pair = [statistics.fmean(found[network, arm, kind]) for kind in ("mean", "faded")]
        assert form.format(*pair) in page


def test_finished_networks_are_told_as_they_were_found():
    page, readme = (
        " ".join((ROOT / f).read_text().split()) for f in ("docs/evidence.md", "README.md")
    )
    found = {(r["arm"], r["measure"]): r for r in read("finetune.csv")}
    tuned, control, scratch = (
        "tuned-masked-label-lr0.01",
        "tuned-standard-lr0.01",
        "scratch-masked-label",
    )

    def told(arm: str, measure: str, key: str = "difference", factor: float = 100) -> str:
        return f"{factor * float(found[arm, measure][key]):.{1 if factor == 100 else 3}f}"

    better, low, high = (told(tuned, "corrupted", key) for key in ("difference", "low", "high"))
    worst, foreign = (told(tuned, measure) for measure in ("severity 5", "OOD AUROC"))
    assert f"{better} points better ({low} to {high}) than after ten more" in page
    assert f"{worst} at severity 5; the calibration error under corruption is halved" in page
    assert f"(AUROC +{foreign})" in page
    anew = [told(scratch, "corrupted", key) for key in ("difference", "low", "high")]
    claim = "where 70 masked epochs from scratch have +{} ({} to {}) over the same control"
    assert claim.format(*anew) in page
    rates = [
        f"{100 * float(found[arm, 'OOD FPR at 95 %']['mean']):.0f}"
        for arm in (tuned, scratch, control)
    ]
    assert "({} %; from scratch {}, standard {})".format(*rates) in page
    rises, loses = (-100 * float(found["base", m]["difference"]) for m in ("OOD AUROC", "shift"))
    assert f"OOD AUROC rises by {rises:.1f}, the shifted set loses {-loses:.1f}" in page
    ours, theirs = (
        [100 * float(v) for v in found[arm, "corrupted"]["by_seed"].split()]
        for arm in (tuned, scratch)
    )
    less = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    gap = statistics.fmean(ours) - statistics.fmean(theirs)
    claim = f"({gap:.1f}; {less.low:.1f} to +{less.high:.1f})".replace("-", "−")
    assert claim in page
    behind = welch(*(numbers(found[arm, "C-bar"]) for arm in (scratch, tuned)))
    claim = "on C-bar they stay {:.1f} behind ({:.1f} to {:.1f})"
    assert claim.format(*(100 * value for value in behind)) in page
    both = [numbers(found[arm, "corrupted"]) for arm in (tuned, control)]
    paired = stats.ttest_rel(*both).confidence_interval(0.95)
    claim = f"is {better} with an interval of {100 * paired.low:.1f} to {100 * paired.high:.1f}."
    assert claim in page
    assert f"it is {better} points better under corruption than tuned as long without" in readme
    assert f"(95 % interval {low} to {high}), {worst} at severity 5" in readme
    error, tempered = "smooth ECE, corrupted", "smooth ECE, corrupted, temperature"
    plain, masked, anew = (
        [told(arm, m, "mean", 1) for m in (error, tempered)] for arm in (control, tuned, scratch)
    )
    assert f"corruption from {plain[0]} to {plain[1]}." in page
    assert f"Tuned with masks they have {masked[0]} without and {masked[1]} with." in page
    assert f"networks have {anew[0]} without one, worse than that, and {anew[1]} with one" in page
    assert float(anew[0]) > float(plain[1])
    assert float(masked[0]) / float(plain[0]) == pytest.approx(0.5, abs=0.02)  # "halved"
    less = [1 - float(each) / float(plain[1]) for each in (masked[1], anew[1])]
    assert 0.2 < less[0] < less[1] < 0.27  # "a fifth to a quarter less"
    rises = [float(found[arm, "corrupted"]["difference"]) for arm in (tuned, scratch)]
    falls = [-float(found[arm, tempered]["difference"]) for arm in (tuned, scratch)]
    assert "({:.3f} and {:.3f} against {:.3f} and {:.3f})".format(*falls, *rises) in page
    clean = [told(arm, "smooth ECE, clean", "mean", 1) for arm in (tuned, control)]
    assert "smooth ECE is {} instead of {}".format(*clean) in page
    cleanest = [
        told(arm, "smooth ECE, clean, temperature", "mean", 1)
        for arm in ("base", control, tuned, scratch)
    ]
    assert set(cleanest) == {"0.011", "0.012"}


def test_other_networks_are_told_as_they_were_found():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    rows = [r for r in read("summary.csv") if r["network"] != "resnet18"]
    found = {(r["network"][:3], r["arm"], r["measure"]): r for r in rows}

    def gain(network: str, arm: str, measure: str) -> float:
        return 100 * float(found[network, arm, measure]["difference"])

    error = [
        float(found["vit", arm, "smooth ECE, corrupted"]["mean"])
        for arm in ("standard", "masked-label")
    ]
    claim = (
        "+{:.1f} corrupted, which one seed does not settle; calibration error {:.3f} to {:.3f};"
        " OOD AUROC −{:.1f}"
    )
    label = [gain("vit", "masked-label", measure) for measure in ("corrupted", "OOD AUROC")]
    assert claim.format(label[0], *error, -label[1]) in page
    lost = -gain("vit", "uniform-batch", "clean")
    assert f"{lost:.1f} points behind standard training" in page
    gains = [
        gain(network, "masked-label", m)
        for network in ("con", "vit")
        for m in ("corrupted", "clean")
    ]
    claim = "{:.1f} points better under corruption, and {:.1f} on clean pictures; the ViT {:.1f}"
    assert f"{claim} better and {{:.1f}} worse".format(*gains[:3], -gains[3]) in page
    fall = [
        -gain(network, "masked-label", "smooth ECE, corrupted")
        / float(found[network, "standard", "smooth ECE, corrupted"]["mean"])
        for network in ("vit", "con")
    ]
    assert "fall by {:.0f} and {:.0f} %".format(*fall) in page
    foreign = gain("con", "masked-label", "OOD AUROC")
    assert f"the ViT loses {-label[1]:.1f} points and the ConvNeXt gains {foreign:.1f}" in page
    gate_rows = {(r["network"], r["arm"], r["share"]): r for r in read("gate.csv")}
    shut = gate_rows["vit_tiny_patch16_224", "uniform-batch", "0.1"]
    assert f"{float(shut['confidence']):.2f}" == "0.10"


def test_batchnorm_left_alone_is_told_as_it_was_found():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    left = [r for r in read("summary.csv") if r["arm"] == "label-running"]
    alone = {r["measure"]: r for r in left if r["against"] == "masked-label"}
    assert {r["seeds"] for r in alone.values()} == {"0 1 2"}
    error = "smooth ECE, corrupted"
    means = [float(each["mean"]) for each in (alone[error], summary()["masked-label", error])]
    assert "the calibration error is smaller, {:.3f} against {:.3f}".format(*means) in page

    def settled(measure: str) -> tuple[bool, bool]:
        """Whether it is lower for certain, or higher."""
        return float(alone[measure]["high"]) < 0, float(alone[measure]["low"]) > 0

    for measure in ("clean", "corrupted", "severity 5", "C-bar", "shift"):
        assert settled(measure) == (False, False)  # "no difference in accuracy is seen"
    shifted = [100 * float(alone["shift"][key]) for key in ("difference", "low", "high")]
    told = "on the shifted set it is {:.1f} ({:.1f} to +{:.1f})".format(*shifted)
    assert told.replace("-", "−") in page
    for where in ("clean", "corrupted", "C-bar", "shift"):
        assert settled(f"smooth ECE, {where}") == (True, False)
    assert settled("OOD AUROC") == (False, True)
    for kind, form in (("blobs", "{} % (blobs; re-estimated {} to {})"), ("noise", "{} % (noise;")):
        ours, theirs = (
            sorted(100 * float(v) for v in row["by_seed"].split())
            for row in (
                alone[f"OOD AUROC, {kind}"],
                summary()["masked-label", f"OOD AUROC, {kind}"],
            )
        )
        ends = [f"{value:.0f}" for value in (ours[0], theirs[0], theirs[-1])]
        assert form.format(*ends) in page


def test_killicks_own_foreign_pictures_swing_in_every_arm():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    rows = [*read("summary.csv"), *read("finetune.csv"), *read("tempered.csv")]
    for kind, form in (
        ("blobs", "(blobs {:.0f} to {:.0f} %,"),
        ("noise", "noise {:.0f} to {:.0f})"),
    ):
        values = [
            100 * float(value)
            for row in rows
            if row["measure"] == f"OOD AUROC, {kind}"
            and row["network"] == "resnet18"
            and "running" not in row["arm"]
            for value in row["by_seed"].split()
        ]
        assert form.format(min(values), max(values)) in page


def test_on_shapes_batchnorm_left_alone_is_told_as_it_was_found():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    path = ROOT / "benchmarks" / "results" / "batchnorm-shapes-cpu.csv"
    with open(path, newline="", encoding="utf-8") as file:
        found = {(r["arm"], r["measure"]): r for r in csv.DictReader(file)}

    def pair(*arms: str) -> list[str]:
        rows = [found[arm, "corrupted_top1"] for arm in arms]
        return [f"{100 * float(r['mean']):.1f} ± {100 * float(r['spread']):.1f}" for r in rows]

    assert "from scratch {} against {} % under".format(*pair("running", "masked-label")) in page
    assert "{} against {} %, 0.033".format(*pair("finetuned-running", "finetuned")) in page
    errors = [
        f"{float(found[arm, 'corrupted_smooth_ece']['mean']):.3f}"
        for arm in ("running", "masked-label", "finetuned-running", "finetuned")
    ]
    assert errors == ["0.035", "0.035", "0.033", "0.034"]

    def seeds(arm: str) -> list[float]:
        return [100 * float(found[arm, "corrupted_top1"][f"seed {n}"]) for n in range(4)]

    better, low, high = welch(seeds("finetuned"), seeds("standard"))
    assert f"gains {better:.1f} points there in the second half ({low:.1f} to {high:.1f} by" in page
    nothing = "from scratch (+{:.1f}; {:.1f} to +{:.1f})"
    told = nothing.format(*welch(seeds("masked-label"), seeds("standard")))
    assert told.replace("-", "−") in page


def test_the_variant_is_chosen_by_the_rule_that_was_set_before():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    found = {(r["arm"], r["measure"]): r for r in read("choosing.csv")}
    assert {arm for arm, _ in found} == set(measured.CHOOSING)
    assert {r["seeds"] for r in found.values()} == {"0 1 2"}
    tried = [
        arm
        for arm in measured.CHOOSING
        if arm == "finetuned" or float(found[arm, "clean"]["difference"]) > -0.005
    ]
    best = min(tried, key=lambda arm: float(found[arm, "NLL, corrupted"]["mean"]))
    assert best == evidence.CHOSEN.partition(":")[0]
    assert "alpha=0.5" in evidence.CHOSEN
    assert "batchnorm=running" in evidence.CHOSEN
    assert evidence.CHOSEN.replace("more-masked-running:", "--arm chosen:") in page

    def gap(arm: str, other: str, measure: str) -> list[float]:
        ours, theirs = (
            [float(v) for v in found[each, measure]["by_seed"].split()] for each in (other, arm)
        )
        reach = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
        return [statistics.fmean(ours) - statistics.fmean(theirs), reach.low, reach.high]

    error = "smooth ECE, corrupted"
    told = [*gap(best, "more-masked", error), *gap("running", "finetuned", error)]
    claim = "by {:.3f} ({:.3f} to {:.3f}) at alpha 0.5, by {:.3f} ({:.3f} to {:.3f}) at 0.25"
    assert claim.format(*told).replace("-", "−") in page
    told = gap(best, "more-masked", "NLL, corrupted")
    claim = "alpha 0.5 alone, is {:.3f} behind ({:.3f} to {:.3f})".format(*told)
    assert claim.replace("-", "−") in page
    ranges = [
        max(values) - min(values)
        for values in (
            [100 * float(v) for v in found[arm, "corrupted"]["by_seed"].split()]
            for arm in measured.CHOOSING
        )
    ]
    assert f"seeds of one arm within {min(ranges):.1f} to {max(ranges):.1f}" in page
    errors = [float(found[arm, "smooth ECE, corrupted"]["mean"]) for arm in ("finetuned", best)]
    assert "halve the calibration error, {:.3f} to {:.3f}".format(*errors) in page
    assert errors[1] / errors[0] == pytest.approx(0.5, abs=0.02)
    corrupted = [float(found[arm, "corrupted"]["mean"]) for arm in measured.CHOOSING]
    assert max(corrupted) - min(corrupted) < 0.005  # "within half a point of each other"
    for arm in ("by-sample", "augmented"):  # "no difference seen"
        rows = [row for (other, _), row in found.items() if other == arm]
        assert all(float(row["low"]) < 0 < float(row["high"]) for row in rows)


def test_the_chosen_variant_is_told_as_it_was_found():
    page, readme = (
        " ".join((ROOT / f).read_text().split()) for f in ("docs/evidence.md", "README.md")
    )
    own = [r for r in read("summary.csv") if r["arm"] == measured.CHOSEN]
    assert {(r["seeds"], r["grid"]) for r in own} == {("0 1 2", "second")}
    found = {(r["against"], r["measure"]): r for r in own}

    def points(against: str, measure: str, *keys: str) -> list[float]:
        return [100 * float(found[against, measure][key]) for key in keys]

    interval = ("difference", "low", "high")
    better = points("standard", "corrupted", *interval)
    worst, foreign = (points("standard", m, "difference")[0] for m in ("severity 5", "OOD AUROC"))
    assert "[+{:.1f} ({:.1f} to {:.1f}), +{:.1f}](#the".format(*better, worst) in page
    assert f"+{better[0]:.1f} and +{worst:.1f} there with chosen settings" in page
    others = [points("standard", m, "difference")[0] for m in ("C-bar", "C-bar, severity 5")]
    assert "+{:.1f} and +{:.1f} there with chosen settings".format(*others) in page
    assert f"with chosen settings +{foreign:.1f}; anchored" in page
    error = "smooth ECE, corrupted"
    plain, varied = (float(summary()[arm, error]["mean"]) for arm in ("standard", "finetuned"))
    chosen = float(found["standard", error]["mean"])
    assert f"calibration error less {100 * (1 - chosen / plain):.0f} %" in page
    assert f"again halved, from {varied:.3f} to {chosen:.3f}" in page
    assert chosen / varied == pytest.approx(0.5, abs=0.03)
    ends = [
        float(row["mean"])
        for row in (
            summary()["finetuned", "smooth ECE, clean"],
            found["standard", "smooth ECE, clean"],
        )
    ]
    assert "on clean pictures from {:.3f} to {:.3f}.".format(*ends) in page
    beyond = [
        float(row["mean"])
        for where in ("C-bar", "shift")
        for row in (
            summary()["finetuned", f"smooth ECE, {where}"],
            found["standard", f"smooth ECE, {where}"],
        )
    ]
    form = "on C-bar from {:.3f} to {:.3f}, on the shifted set from {:.3f} to {:.3f}."
    assert form.format(*beyond) in page
    for measure in ("clean", "corrupted", "severity 5", "C-bar", "shift"):  # "as accurate"
        row = found["finetuned", measure]
        assert float(row["low"]) < 0 < float(row["high"])
    assert "as accurate under corruption, and its calibration error there is halved again" in readme
    lost = -points("standard", "clean", "difference")[0]
    gap = welch(*(numbers(tempered()[arm, "clean"]) for arm in ("base", measured.CHOSEN)))
    form = "loses {:.1f} points to standard training, there {:.1f}."
    assert form.format(lost, 100 * gap[0]) in readme
    ends = [float(tempered()[arm, error]["mean"]) for arm in (measured.CHOSEN, "base")]
    cured = float(tempered()["base", f"{error}, temperature"]["mean"])
    assert (
        f"it has {ends[0]:.3f}, where standard training with a temperature [has {cured:.3f}]"
        in readme
    )
    told = points("finetuned", "OOD AUROC", *interval)
    again = [100 * float(tempered()[measured.CHOSEN, "OOD AUROC"][key]) for key in interval]
    form = (
        "foreign pictures is better by {:.1f} ({:.1f} to {:.1f}), and by {:.1f} ({:.1f} to {:.1f})"
    )
    assert form.format(*told, *again) in page
    assert "and AUROC by {:.1f} ({:.1f} to {:.1f}).".format(*told) in page
    for name in ("textures", "characters", "scenes"):
        gains = [
            float(row["difference"])
            for row in (
                found["finetuned", f"OOD AUROC, {name}"],
                tempered()[measured.CHOSEN, f"OOD AUROC, {name}"],
            )
        ]
        assert (min(gains) > 0.01) == (name != "scenes")
        assert max(gains) < 0.01 or name != "scenes"
        lows = [
            float(row["low"])
            for row in (
                found["finetuned", f"OOD AUROC, {name}"],
                tempered()[measured.CHOSEN, f"OOD AUROC, {name}"],
            )
        ]
        assert (min(lows) > 0) == (name == "characters")  # "certainly in characters"
    rates = [
        100 * float(row["mean"])
        for row in (
            summary()["finetuned", "OOD FPR at 95 %"],
            found["standard", "OOD FPR at 95 %"],
            summary()["standard", "OOD FPR at 95 %"],
        )
    ]
    later = [
        100 * float(tempered()[arm, "OOD FPR at 95 %"]["mean"])
        for arm in ("finetuned", measured.CHOSEN)
    ]
    here = points("finetuned", "OOD FPR at 95 %", "low", "high")
    there = [
        100 * float(tempered()[measured.CHOSEN, "OOD FPR at 95 %"][k]) for k in ("low", "high")
    ]
    form = "falls from {:.0f} to {:.0f} % ({:.1f} to {:.1f}), there from {:.0f} to {:.0f}"
    told = f"{form} ({{:.1f}} to +{{:.1f}}; standard: {{:.0f}})"
    told = told.format(*rates[:2], *here, *later, *there, rates[2])
    assert told.replace("-", "−") in page
    other = of_summary("label-running", error)
    fall, low, high = welch(numbers(other), numbers(found["standard", error]))
    assert f"the calibration error, less by {fall:.3f} ({low:.3f} to {high:.3f})" in page
    iceless = points("standard", "corrupted, without frost", *interval)
    form = "{:.1f} there with chosen settings ({:.1f} to {:.1f})"
    assert form.format(*iceless) in page


def tempered() -> dict[tuple[str, str], dict[str, str]]:
    """Also of the standard network that was finished, with as many pictures set aside."""
    rows = [r for r in read("finetune.csv") if r["arm"] == "base"]
    return {(r["arm"], r["measure"]): r for r in [*rows, *read("tempered.csv")]}


def test_what_a_temperature_does_beside_the_chosen_variant_is_told_as_it_was_found():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    found, chosen = tempered(), measured.CHOSEN
    assert {r["seeds"] for r in found.values()} == {"0 1 2"}

    def seeds(arm: str, measure: str) -> list[float]:
        return [float(v) for v in found[arm, measure]["by_seed"].split()]

    def gap(ours: list[float], theirs: list[float]) -> list[float]:
        reach = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
        return [statistics.fmean(ours) - statistics.fmean(theirs), reach.low, reach.high]

    def said(form: str, *values: float) -> bool:
        return form.format(*values).replace("-", "−") in page

    error, cured = "smooth ECE, corrupted", "smooth ECE, corrupted, temperature"
    without, given = (float(found[chosen, m]["mean"]) for m in (error, cured))
    other, standard = (float(found[arm, cured]["mean"]) for arm in ("finetuned", "base"))
    less = gap(seeds(chosen, error), seeds("finetuned", cured))
    before = float(found["finetuned", error]["mean"])
    fitted = sorted(seeds("finetuned", "temperature"))
    form = "has {:.3f} without, {:.3f} with one ({:.2f} to {:.2f}), the chosen one {:.3f} without"
    numbers = [before, other, fitted[0], fitted[-1], without]
    assert said(form + " ({:.3f}; {:.3f} to {:.3f})", *numbers, *less)
    assert less[2] < 0
    assert 0.45 < (before - other) / (before - without) < 0.6  # "about half"
    likely = gap(seeds(chosen, "NLL, corrupted"), seeds("finetuned", "NLL, corrupted, temperature"))
    assert said("In likelihood no difference is told ({:.2f}; {:.2f} to +{:.2f})", *likely)
    own = float(found[chosen, "temperature"]["mean"])
    assert said("all the same ({:.2f}), it becomes worse under corruption, {:.3f}", own, given)
    assert given > without
    clean = {
        f"{statistics.fmean(seeds(chosen, f'smooth ECE, clean{t}')):.3f}"
        for t in ("", ", temperature")
    }
    assert clean == {"0.010"}
    both = [float(found[chosen, cured][key]) for key in ("difference", "low", "high")]
    form = "{:.3f} is left, which three seeds tell neither from 0 nor from 0.03: {:.3f} to +{:.3f}"
    assert said(form, -both[0], *both[1:])
    less = gap(seeds("base", cured), seeds(chosen, error))
    assert said("better than standard with one by {:.3f} ({:.3f} to {:.3f})", *less)
    for arm in ("finetuned", chosen):  # "about as much less as accuracy is better"
        fall = statistics.fmean(seeds("base", cured)) - statistics.fmean(seeds(arm, cured))
        rise = statistics.fmean(seeds(arm, "corrupted")) - statistics.fmean(
            seeds("base", "corrupted")
        )
        assert fall == pytest.approx(rise, abs=0.01)
    ends = [
        end
        for arm in ("finetuned", chosen)
        for end in gap(seeds(arm, cured), seeds("base", cured))[1:]
    ]
    form = "has {:.3f}, the second half {:.3f} ({:.3f} to {:.3f}), the chosen one {:.3f}"
    assert said(form + " ({:.3f} to {:.3f})", standard, other, *ends[:2], given, *ends[2:])
    assert said("(less {:.0f} % where both have a temperature)", 100 * (1 - given / standard))
    assert said("[{:.3f} and {:.3f}](#the", other, given)
    lost = [-100 * float(found[chosen, "clean"][key]) for key in ("difference", "high", "low")]
    more = [100 * each for each in gap(seeds("base", "clean"), seeds(chosen, "clean"))]
    form = "loses {:.1f} points here ({:.1f} to {:.1f}), and {:.1f} ({:.1f} to {:.1f}) to standard"
    assert said(form, *lost, *more)
    (row,) = [
        r
        for r in read("summary.csv")
        if (r["arm"], r["against"], r["measure"]) == (chosen, "finetuned", "clean")
    ]
    lost = [100 * float(row[key]) for key in ("difference", "low", "high")]
    assert said("it had lost {:.1f} ({:.1f} to +{:.1f})", -lost[0], *lost[1:])
    gains = [
        100 * value
        for arm in ("finetuned", chosen)
        for value in gap(seeds(arm, "corrupted"), seeds("base", "corrupted"))
    ]
    form = "is {:.1f} points better ({:.1f} to {:.1f}) in the second half and {:.1f}"
    assert said(form + " ({:.1f} to {:.1f}) with the chosen settings", *gains)


def test_how_long_one_cell_takes_is_told_as_it_was_measured():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    (row,) = read("alone.csv")
    train, evaluate, whole = (float(row[key]) for key in ("train", "evaluate", "whole"))
    assert f"training {train:.0f} s (60 of them steps" in page
    assert f"evaluation on 1.5 million pictures {evaluate:.0f} s" in page
    assert f"the whole command {whole:.0f} s" in page
    assert train + evaluate < whole < 300  # the aim: five minutes
    rows = [r for r in read("first-grid.csv") if (r["arm"], r["seed"]) == (row["arm"], row["seed"])]
    seen = sum(int(r["count"]) for r in rows if r["top1"])
    assert 1.4e6 < seen < 1.6e6


def test_how_fast_training_is_is_told_as_it_was_measured():
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    readme = " ".join((ROOT / "README.md").read_text().split())
    with open(ROOT / "benchmarks/results/training-h200.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    over = {(r["baseline"], r["contender"]): r for r in rows}
    steps = [over["limit", f"killick, {arm}"] for arm in ("standard", "anchored", "masked")]
    standard, anchored, masked = (f"{round(float(r['per_second']), -2):,.0f}" for r in steps)
    assert f"{standard} images a second standard, {anchored} anchored and {masked} masked" in page
    assert f"about {masked} images a second" in readme
    slower = [100 * (float(row["ratio"]) - 1) for row in steps]
    assert f"{min(slower):.1f} to {max(slower):.1f} % slower than the bare network" in page
    plain = over["killick, masked", "plain script"]
    low, high = (float(plain[key]) for key in ("ratio_p10", "ratio_p90"))
    assert 9 < float(plain["ratio"]) < 11
    assert f"about ten times slower, {low:.1f} to {high:.1f} between the 10th and 90th" in page
    assert f"did {round(float(plain['per_second']), -2):,.0f} images a second there" in readme
    ratio = float(over["killick, standard", "killick, masked"]["ratio"])
    assert f"masked steps take {ratio:.3f} of standard ones" in readme


def test_variants_were_tested_on_pictures_held_back():
    rows = read("choosing-grid.csv")
    assert {row["count"] for row in rows} == {str(evidence.HELD)}
    assert {row["suite"] for row in rows} == {"clean", "corruptions", "cbar"}
    for arm in measured.CHOOSING:
        for seed in "012":
            own = [r for r in rows if (r["arm"], r["seed"]) == (arm, seed)]
            assert len(own) == 1 + 5 * (len(C) + len(CBAR))


def test_every_table_of_the_page_can_be_made():
    pages = [(ROOT / page).read_text() for page in ("docs/evidence.md", "README.md")]
    asked = re.findall(r"<!-- table: (evidence-.+?) -->", "".join(pages))
    assert set(asked) == set(measured.PARTS)
    for make in measured.PARTS.values():
        lines = make().splitlines()
        assert len(lines) > 3
        assert len({line.count(" | ") for line in lines if "---" not in line}) == 1


# The scripts --------------------------------------------------------------------------------------


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def tiny_model() -> killick.Anchored:
    torch.manual_seed(0)
    model = killick.anchor(Tiny(), init="random", example=torch.rand(2, 3, 8, 8))
    with torch.no_grad():
        model.net.norm.running_mean += 0.3  # other than those of any batch
    return model.set_references(torch.rand(3, 3, 8, 8)).eval()


def test_fading_goes_from_the_masked_pair_to_the_one_of_evaluation():
    model, x = tiny_model(), torch.rand(7, 3, 8, 8)
    labels = torch.randint(4, (7,))
    statistics_before = model.net.norm.running_mean.clone()
    rows = gate.fade_references(model, x, labels)
    assert torch.equal(model.net.norm.running_mean, statistics_before)
    assert not any(module.training for module in model.modules())
    for number in range(3):
        reference = model.references[number].expand_as(x)
        for share, masked in ((0.0, True), (1.0, False)):
            with torch.no_grad():
                probs = model(x, reference, masked).double().softmax(1)
            (row,) = [
                r
                for r in rows
                if (r["pair"], r["share"], r.get("reference")) == ("faded", share, number)
            ]
            assert row["confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-6)
            assert row["top1"] == pytest.approx(float((probs.argmax(1) == labels).double().mean()))
            entropy = -(probs * probs.log()).sum(1).mean() / torch.log(torch.tensor(4.0))
            assert row["entropy"] == pytest.approx(float(entropy), abs=1e-6)


def test_with_the_statistics_of_the_batch_it_is_as_in_training():
    model, x = tiny_model(), torch.rand(7, 3, 8, 8)
    rows = gate.fade_references(model, x, torch.zeros(7, dtype=torch.long))
    (row,) = [r for r in rows if (r["pair"], r["share"], r.get("reference")) == ("batch", 0.0, 1)]
    model.net.train()
    with torch.no_grad():
        reference = model.references[1].expand_as(x)
        probs = model.net(killick.pair(x, reference, torch.tensor(True))).double().softmax(1)
    assert row["confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-6)


@pytest.mark.parametrize("grid", evidence.GRIDS, ids=lambda grid: grid.name)
def test_every_grid_is_a_comparison_that_killick_takes(grid, monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys,
        "argv",
        ["evidence.py", "--data", "shapes", "--foreign", "x.npz", "--work", str(tmp_path)],
    )
    options = evidence.read_options()
    words = evidence.command(grid, options)
    _, commands = make_parser()
    read_words, rest = commands.choices["compare"].parse_known_args(words[1:])
    assert read_words.seeds == tuple(map(str, grid.seeds))
    data = f"pack:{tmp_path}/held.npz" if grid.held else "shapes"
    aside = ["--data.validation", str(grid.aside)] if grid.aside else []
    assert rest == ["--data", data, "--epochs", "60", *aside]  # settings of the recipe
    cells = make_jobs(
        grid.recipe, {"epochs": 60}, parse_arms(read_words.arm), grid.seeds, tmp_path, {}
    )
    assert len(cells) == len(grid.arms) * len(grid.seeds)


def test_finished_networks_are_a_study_that_killick_takes(monkeypatch, tmp_path, capsys):
    foreign = tmp_path / "x.npz"  # looked for before anything is done, and read later
    foreign.touch()
    words = ["evidence.py", "--data", "shapes", "--foreign", str(foreign), "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cpu"])
    assert killick_command([*evidence.study_command(evidence.read_options()), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "12 jobs" in told
    assert "tuned-masked-label-lr0.01" in told


@pytest.mark.parametrize("grid", ["finished", "vit"])
def test_that_foreign_pictures_are_missing_is_told_before_anything_runs(
    grid, monkeypatch, tmp_path
):
    (tmp_path / "c.npz").touch()
    words = ["evidence.py", "--data", f"pack:{tmp_path / 'c.npz'}", "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, "--grids", grid])
    with pytest.raises(SystemExit, match="expected a pack of foreign pictures"):
        evidence.main()


def test_the_study_is_for_the_seeds_asked_for_and_has_no_arms_to_choose(monkeypatch, tmp_path):
    words = ["evidence.py", "--data", "shapes", "--foreign", "x.npz", "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*words, "--seeds", "1,2"])
    options = evidence.read_options()
    assert evidence.studies(options)
    asked = evidence.study_command(options)
    assert asked[asked.index("--seeds") + 1] == "1,2"
    monkeypatch.setattr(sys, "argv", [*words, "--arms", "standard"])
    assert not evidence.studies(evidence.read_options())


def test_a_part_of_the_grids_can_be_asked_for(monkeypatch):
    words = ["evidence.py", "--work", "w", "--arms", "anchored,standard", "--seeds", "1,2"]
    monkeypatch.setattr(sys, "argv", [*words, "--grids", "first", "vit"])
    (first,) = evidence.choose(evidence.read_options())  # the ViT has seed 0 alone
    assert (first.name, first.arms, first.seeds) == ("first", ("standard", "anchored"), (1, 2))


def test_what_is_held_back_is_the_end_of_the_training_set(tmp_path, monkeypatch):
    files = [bytes([number]) * (number + 1) for number in range(9)]
    np.savez(
        tmp_path / "pack.npz",
        train_bytes=np.frombuffer(b"".join(files), dtype=np.uint8),
        train_offsets=np.cumsum([0] + [len(file) for file in files]),
        train_labels=np.arange(9),
        class_names=np.array(["a"]),
        test_bytes=np.zeros(3, dtype=np.uint8),
    )
    monkeypatch.setattr(evidence, "HELD", 4)
    evidence.hold_back(f"pack:{tmp_path / 'pack.npz'}", tmp_path / "new" / "held.npz")
    with np.load(tmp_path / "new" / "held.npz") as held:
        for name, expected in (("train", files[:5]), ("test", files[5:])):
            where, contents = held[f"{name}_offsets"], held[f"{name}_bytes"]
            found = [contents[a:b].tobytes() for a, b in pairwise(where)]
            assert found == expected
        assert held["test_labels"].tolist() == [5, 6, 7, 8]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["held.npz"]
    made = (tmp_path / "new" / "held.npz").stat().st_mtime_ns
    evidence.hold_back(f"pack:{tmp_path / 'pack.npz'}", tmp_path / "new" / "held.npz")
    assert (tmp_path / "new" / "held.npz").stat().st_mtime_ns == made
    with np.load(tmp_path / "pack.npz") as pack:
        np.savez(tmp_path / "other.npz", **{**pack, "train_labels": np.arange(9)[::-1]})
    evidence.hold_back(f"pack:{tmp_path / 'other.npz'}", tmp_path / "new" / "held.npz")
    with np.load(tmp_path / "new" / "held.npz") as held:
        assert held["test_labels"].tolist() == [3, 2, 1, 0]
    with pytest.raises(SystemExit, match="expected --data pack:FILE.npz"):
        evidence.hold_back("cifar10", tmp_path / "other.npz")


def test_bold_is_what_differs_for_certain_in_either_direction():
    row = {"difference": "-0.03", "low": "-0.05", "high": "-0.01"}
    assert measured._difference(row, 100, 1, interval=False) == "**−3.0**"
    assert measured._difference(row | {"high": "0.01"}, 100, 1, interval=False) == "−3.0"
    row = {"difference": "0.0001", "low": "-0.01", "high": "0.02"}
    assert measured._difference(row, 100, 1) == "0.0<br>−1.0\u00a0to\u00a0+2.0"
