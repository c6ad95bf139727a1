"""Shifted sets: only their own classes compete, and every summary has them."""

import math
import statistics

import pytest
import torch
from report_runs import LABEL, make_run
from small_models import NAMES, find, make_anchored, make_set

import killick
from killick.cli.summaries import show_comparison, show_summary
from killick.data.image_set import ImageSet
from killick.deploy.model_card import shown_rows
from killick.metrics import smooth_ece
from killick.report.comparison import make_comparison
from killick.report.report_data import make_report_data
from killick.report.statistics import mean_title, shift_by_set, summarize
from killick.report.writer import write_report

SETS = ("photo", "art", "sketch")


def test_only_the_classes_of_the_set_compete():
    """Against a loop in float64 over images and classes; the set has two of four, reordered."""
    model, whole = make_anchored(1), make_set(200, seed=9)
    model.class_names = NAMES
    kept = ("grey", "red")
    chosen = [i for i, label in enumerate(whole.labels.tolist()) if NAMES[label] in kept]
    part = whole.part(torch.tensor(chosen))
    labels = torch.tensor([kept.index(NAMES[label]) for label in part.labels.tolist()])
    some = ImageSet.of("some", part.images(), labels, kept)
    options = {"suites": ("clean", "shift", "calibration"), "quiet": True, "size": None}
    rows = killick.evaluate(model, whole, shift={"some": some}, **options)
    logits = killick.predict(model, part.images()).logits.double().tolist()
    right, surprise, confidences = [], 0.0, []
    for line, label in zip(logits, part.labels.tolist(), strict=True):
        allowed = {c: math.exp(line[c]) for c in range(4) if NAMES[c] in kept}
        total = sum(allowed.values())
        best = max(allowed, key=allowed.get)
        right.append(best == label)
        surprise -= math.log(allowed[label] / total)
        confidences.append(allowed[best] / total)
    assert 0.5 < statistics.fmean(right) < 1
    assert [max(range(4), key=line.__getitem__) for line in logits] != part.labels.tolist()
    assert find(rows, "top1", set="some")["value"] == pytest.approx(statistics.fmean(right))
    assert find(rows, "nll", set="some")["value"] == pytest.approx(surprise / len(right), abs=1e-5)
    error = smooth_ece(torch.tensor(confidences), torch.tensor(right))
    assert find(rows, "smooth_ece", set="some")["value"] == pytest.approx(float(error), abs=1e-4)
    assert find(rows, "top1", set="some")["count"] == len(chosen)


@pytest.fixture
def runs(tmp_path):
    return [
        make_run(tmp_path, "plain", shift=SETS, skill=0.5),
        make_run(tmp_path, "mine", LABEL, shift=SETS, skill=1.5),
    ]


def in_rows(run, name, metric="top1"):
    (value,) = [
        row["value"]
        for row in run.rows
        if (row["set"], row["metric"], row["inference"]) == (name, metric, "single")
        and not row["scaling"]
    ]
    return value


@pytest.mark.parametrize("metric", ["top1", "smooth_ece"])
def test_the_column_is_the_mean_over_shifted_sets(runs, metric):
    comparison = make_comparison(runs)
    found, table = shift_by_set(comparison, metric), summarize(comparison)
    assert list(found) == list(SETS)
    for arm, run in zip(("standard", "masked-label"), runs, strict=True):
        wanted = [in_rows(run, name, metric) for name in SETS]
        assert [found[name][arm].mean for name in SETS] == pytest.approx(wanted)
        assert table[arm][f"shift_{metric}"].mean == pytest.approx(statistics.fmean(wanted))
    assert mean_title(comparison, "shift") == "mean of 3 sets"


def test_a_difference_on_a_shifted_set_is_paired_by_image(runs):
    """The bootstrap interval against resampled images, drawn one by one."""
    gap = shift_by_set(make_comparison(runs), "top1")["art"]["masked-label"].difference
    right = []
    for run in runs:
        (kept,) = [each for each in run.predictions if each.about["set"] == "art"]
        right.append(torch.from_numpy(kept.single["correct"]).double())
    differences, generator = right[1] - right[0], torch.Generator().manual_seed(1)
    count = len(differences)
    means = [
        float(differences[torch.randint(count, (count,), generator=generator)].mean())
        for _ in range(4000)
    ]
    spread = statistics.stdev(means)
    assert gap.method.startswith("paired bootstrap")
    assert gap.value == pytest.approx(float(differences.mean()))
    assert gap.high - gap.low == pytest.approx(2 * 1.96 * spread, rel=0.25)


def test_report_terminal_and_card_have_every_set(runs, tmp_path, capsys):
    page = write_report(runs, tmp_path / "page")
    text = page.read_text()
    for name in SETS:
        value = f"{100 * in_rows(runs[1], name):.1f}"
        (line,) = [
            each
            for each in (page.parent / "figures" / "shifted-top1.csv").read_text().splitlines()
            if each.startswith(name)
        ]
        assert value in line
        assert f">{name}<" in text
    assert "shifted accuracy" in text
    show_comparison(make_report_data(runs).table)
    assert "shifted accuracy" in capsys.readouterr().out
    show_summary(runs[1].rows)
    shown = capsys.readouterr().out
    assert all(f"\n{name}, 40" in shown for name in SETS)
    assert {row["set"] for row in shown_rows(runs[1].rows) if row["suite"] == "shift"} == {*SETS}


def test_without_shifted_sets_there_is_no_such_section(tmp_path):
    page = write_report([make_run(tmp_path, "s")], tmp_path / "page")
    assert 'id="shifted"' not in page.read_text()
    data = make_report_data([make_run(tmp_path, "one", shift=("art",))])
    assert mean_title(data.comparison, "shift") == "art"
