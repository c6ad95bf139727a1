"""The numbers of a report against the rows they come from, and and the headline."""

import csv
import hashlib
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from report_runs import ANCHORED, LABEL, STANDARD, UNIFORM, make_run
from scipy import stats

from killick.corruptions.suites import list_corruptions
from killick.errors import OptionError
from killick.metrics import METRICS, Metric
from killick.report.bootstrap import BootstrapDraws
from killick.report.comparison import Comparison, make_comparison
from killick.report.conditions import Condition, condition_of
from killick.report.evaluations import predictions_of
from killick.report.intervals import Interval
from killick.report.page import choose_columns
from killick.report.report_data import ReportData, choose_main_arm, make_report_data
from killick.report.run_groups import ArmRuns
from killick.report.statistics import (
    Estimate,
    _values,
    by_corruption,
    by_severity,
    mean_title,
    ood_by_set,
    summarize,
    write_summary,
)
from killick.report.summary_metrics import find_summary_metric, summary_metrics
from killick.report.writer import headline
from killick.results.rows import make_row
from killick.results.run_folder import Run

SMALL = {"corruptions": ("fog",), "severities": (5,), "ood_sets": ()}
GENERATED = {"source": "generated"}
KEYS = {
    *("clean_top1", "corrupted_top1", "severity5_top1", "cbar_top1", "clean_smooth_ece"),
    *("corrupted_smooth_ece", "clean_nll", "corrupted_nll", "ood_auroc"),
    *("clean_smooth_ece_temperature", "corrupted_smooth_ece_temperature"),
    *("clean_nll_temperature", "corrupted_nll_temperature", "ood_fpr_at_95_tpr_in"),
    *("synthetic_ood_auroc", "synthetic_ood_fpr_at_95_tpr_in"),
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two arms with two seeds, one with one; two corruptions at all severities."""
    folder = tmp_path_factory.mktemp("runs")
    cbar = {"cbar": ("checkerboard_cutout", "sparkles")}
    return make_comparison(
        [
            make_run(folder, "s0", STANDARD, seed=0, skill=1.0, **cbar),
            make_run(folder, "s1", STANDARD, seed=1, skill=1.1, **cbar),
            make_run(folder, "l0", LABEL, seed=0, skill=1.9, **cbar),
            make_run(folder, "l1", LABEL, seed=1, skill=2.0, **cbar),
            make_run(folder, "a1", ANCHORED, seed=1, skill=1.2, **cbar),
        ]
    )


@pytest.fixture(scope="module")
def table(comparison):
    return summarize(comparison)


def test_summary_metrics_are_read_from_the_registry():
    keys = [metric.key for metric in summary_metrics()]
    assert len(keys) == len(set(keys))
    assert {f"{key}_marginal" for key in KEYS} | KEYS <= set(keys)
    extra = Metric("mine", "mine", "A metric.", -1, input="confidence", compute=None)
    METRICS.register("mine", extra)
    try:
        found = find_summary_metric("corrupted_mine_temperature_marginal")
    finally:
        METRICS.remove("mine")
    assert (found.metric, found.suite, found.higher_is_better) == (extra, "corruptions", False)
    with pytest.raises(OptionError, match="clean_mine"):
        find_summary_metric("clean_mine")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.05, "better"), (-0.05, -0.01, "worse"), (-0.01, 0.05, ""), (None, None, "")],
)
def test_a_difference_is_better_or_worse_only_if_its_interval_excludes_zero(low, high, verdict):
    gap = Interval(0.03 if high is None else (low + high) / 2, low, high, "")
    other = {"better": "worse", "worse": "better", "": ""}[verdict]
    assert find_summary_metric("clean_top1").verdict(gap) == verdict
    assert find_summary_metric("clean_nll").verdict(gap) == other
    assert find_summary_metric("clean_top1").verdict(None) == ""


def mean_in_rows(run, **wanted):
    """The mean over the rows of single sets that have these columns."""
    found = [
        row["value"]
        for row in run.rows
        if condition_of(row) is not None
        and all(row[name] == value for name, value in wanted.items())
    ]
    assert found
    return math.fsum(found) / len(found)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("clean_top1", {"suite": "clean", "metric": "top1"}),
        ("corrupted_top1", {"suite": "corruptions", "metric": "top1"}),
        ("severity5_top1", {"suite": "corruptions", "metric": "top1", "severity": 5}),
        ("cbar_top1", {"suite": "cbar", "metric": "top1"}),
        *(
            (f"{name}_{metric}{key}", {"suite": suite, "metric": metric, "scaling": scaling})
            for key, scaling in (("", ""), ("_temperature", "temperature"))
            for name, suite in (("clean", "clean"), ("corrupted", "corruptions"))
            for metric in ("smooth_ece", "nll")
        ),
        *(
            (f"{name}_{metric}", {"suite": "ood", "metric": metric, "score": "energy"} | of)
            for name, of in (("ood", {"source": "files"}), ("synthetic_ood", GENERATED))
            for metric in ("auroc", "fpr_at_95_tpr_in")
        ),
    ],
)
def test_every_metric_is_the_mean_of_its_rows(comparison, table, key, wanted):
    for arm in comparison.arms:
        for inference, name in (("single", key), ("marginal", f"{key}_marginal")):
            # A standard model has no references to take a mean over.
            asked = "single" if arm.name == "standard" else inference
            values = {
                seed: mean_in_rows(run, inference=asked, **wanted)
                for seed, run in zip(arm.seeds, arm.runs, strict=True)
            }
            number = table[arm.name][name]
            assert number.values == pytest.approx(values)
            assert number.mean == pytest.approx(np.mean(list(values.values())))
            if len(values) == 2:
                assert number.spread == pytest.approx(np.std(list(values.values()), ddof=1))
            else:
                assert number.spread is None


def test_differences_are_over_the_seeds_that_both_arms_have(table):
    ours, theirs = table["anchored"]["clean_top1"], table["standard"]["clean_top1"]
    assert ours.difference.value == pytest.approx(ours.values[1] - theirs.values[1])
    assert (
        ours.difference.method
        == "paired bootstrap over 40 images, 1 seed; other seeds may differ more"
    )
    both = table["masked-label"]["clean_top1"]
    assert both.difference.value == pytest.approx(both.mean - theirs.mean)
    assert (
        both.difference.method
        == "paired bootstrap over 40 images, 2 seeds; other seeds may differ more"
    )
    assert theirs.difference is None


def drawn_mean(run, counts, line, wanted):
    """The accuracy in a resample, image by image, over the sets that are wanted."""
    sets = [each for each in predictions_of(run) if wanted(each.about)]
    assert sets
    return statistics.fmean(
        statistics.fmean(
            float(each.single["correct"][i])
            for i, times in enumerate(counts[line])
            for _ in range(times)
        )
        for each in sets
    )


@pytest.mark.parametrize("suite", ["clean", "corruptions"])
def test_the_interval_is_that_of_sets_drawn_one_by_one_alike_for_arms_seeds_and_sets(
    comparison, table, suite, monkeypatch
):
    labels = predictions_of(comparison.runs["standard", 0])[0].single["label"]
    name = hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest()[:16]
    counts = BootstrapDraws().counts(name, 40).tolist()[:60]
    differences = [
        statistics.fmean(
            drawn_mean(comparison.runs["masked-label", seed], counts, line, wanted)
            - drawn_mean(comparison.runs["standard", seed], counts, line, wanted)
            for seed in (0, 1)
        )
        for line in range(60)
        for wanted in [lambda about: about["suite"] == suite]
    ]
    key = "clean_top1" if suite == "clean" else "corrupted_top1"
    monkeypatch.setattr("killick.report.comparison.BootstrapDraws", lambda: FirstDraws(60))
    again = Comparison(comparison.arms, comparison.baseline, "shapes", ())
    found = summarize(again)["masked-label"][key].difference
    assert found.high - found.value == pytest.approx(1.96 * np.std(differences, ddof=1), rel=1e-4)
    whole = table["masked-label"][key].difference
    assert whole.high - whole.value == pytest.approx(found.high - found.value, rel=0.4)


class FirstDraws(BootstrapDraws):
    """The first of the usual draws."""

    def counts(self, images, count):
        return BootstrapDraws().counts(images, count)[: self.resamples]


def test_the_same_runs_give_the_same_intervals(comparison, table):
    again = Comparison(comparison.arms, comparison.baseline, comparison.data, comparison.notes)
    assert summarize(again) == table


def test_another_baseline_turns_the_signs(comparison, table):
    runs = [run for arm in comparison.arms for run in arm.runs]
    turned = summarize(make_comparison(runs, baseline="masked-label"))
    for key in table["masked-label"]:
        ours = table["masked-label"][key].difference
        theirs = turned["standard"][key].difference
        assert (theirs.value, theirs.low, theirs.high) == pytest.approx(
            (-ours.value, -ours.high, -ours.low)
        )
        assert turned["masked-label"][key].difference is None


def test_models_with_equal_predictions_differ_by_nothing(tmp_path):
    same = {"corruptions": ("fog",), "severities": (1, 2, 3, 4, 5)}
    one = make_run(tmp_path, "one", **same)
    twin = Run("twin", one.folder, one.rows, job={"arm": "twin", "seed": 0})
    found = summarize(make_comparison([one, twin]))["twin"]
    assert found.keys() == KEYS - {"cbar_top1"}
    for key, number in found.items():
        gap = number.difference
        if "temperature" in key:  # predictions are kept without: nothing to resample
            assert (gap.value, gap.low, gap.high) == (0, None, None)
        else:
            assert (gap.value, gap.low, gap.high) == (0, 0, 0)
        assert not gap.significant


def test_with_a_temperature_the_interval_is_over_seeds_few_as_they_are(table):
    ours, theirs = (
        table[arm]["clean_smooth_ece_temperature"] for arm in ("masked-label", "standard")
    )
    gap = ours.difference
    assert gap.method == "paired t over 2 seeds"
    each = [ours.values[seed] - theirs.values[seed] for seed in (0, 1)]
    reach = stats.t.ppf(0.975, 1) * np.std(each, ddof=1) / 2**0.5
    expected = (np.mean(each), np.mean(each) - reach, np.mean(each) + reach)
    assert (gap.value, gap.low, gap.high) == pytest.approx(expected)


def test_with_five_seeds_the_interval_is_students_over_seeds_and_images(tmp_path):
    runs = [
        make_run(tmp_path, f"{name}{seed}", facts, seed=seed, skill=skill, **SMALL)
        for name, facts, skill in (("s", STANDARD, 1.0), ("l", LABEL, 1.5))
        for seed in range(5)
    ]
    comparison = make_comparison(runs)
    table = summarize(comparison)
    ours, theirs = (
        np.array(list(table[arm]["corrupted_nll"].values.values()))
        for arm in ("masked-label", "standard")
    )
    fog = Condition("single", "nll", "corruptions", "", "fog", 5)
    mine, other = (
        torch.stack([comparison.resampled[arm, seed][fog].values for seed in range(5)]).mean(0)
        for arm in ("masked-label", "standard")
    )
    variance = (ours - theirs).var(ddof=1) / 5 + float((mine - other).var())
    reach = stats.t.ppf(0.975, 4) * variance**0.5
    gap = table["masked-label"]["corrupted_nll"].difference
    middle = (ours - theirs).mean()
    assert (gap.low, gap.high) == pytest.approx((middle - reach, middle + reach))
    assert gap.method.startswith("paired t over 5 seeds and ")


@pytest.mark.parametrize("why", [{"answers": False}, {"images": "another"}, {"labels": 4}])
def test_without_predictions_for_the_same_images_the_interval_is_over_seeds(tmp_path, why):
    runs = [
        make_run(tmp_path, f"{name}{seed}", facts, seed=seed, **SMALL, **more)
        for name, facts, more in (("s", STANDARD, {}), ("l", LABEL, why))
        for seed in range(2)
    ]
    gap = summarize(make_comparison(runs))["masked-label"]["clean_nll"].difference
    assert gap.method == "paired t over 2 seeds"
    values = [
        mean_in_rows(runs[2 + seed], suite="clean", metric="nll", inference="single", scaling="")
        - mean_in_rows(runs[seed], suite="clean", metric="nll", scaling="")
        for seed in range(2)
    ]
    reach = stats.t.ppf(0.975, 1) * abs(values[0] - values[1]) / 2
    assert gap.high == pytest.approx(gap.value + reach)


def test_one_seed_without_predictions_has_a_difference_and_no_interval(tmp_path):
    runs = [
        make_run(tmp_path, "s", **SMALL, answers=False),
        make_run(tmp_path, "l", LABEL, skill=2.0, **SMALL, answers=False),
    ]
    gap = summarize(make_comparison(runs))["masked-label"]["clean_top1"].difference
    assert gap.value != 0
    assert (gap.low, gap.high) == (None, None)
    assert "no interval" in headline(make_report_data(runs))[0]


def test_few_seeds_with_equal_differences_have_no_interval(tmp_path):
    runs = [
        make_run(tmp_path, f"{name}{seed}", facts, seed=seed, **SMALL, answers=False)
        for name, facts in (("s", STANDARD), ("l", LABEL))
        for seed in range(2)
    ]
    for run in runs:
        for row in run.rows:
            row["value"] = 0.75 if row["protocol"] == "standard" else 0.875
    gap = summarize(make_comparison(runs))["masked-label"]["clean_top1"].difference
    assert (gap.value, gap.low, gap.high) == (0.125, None, None)


def test_arms_without_a_seed_in_common_have_no_difference(tmp_path):
    runs = [make_run(tmp_path, "s", **SMALL), make_run(tmp_path, "l", LABEL, seed=1, **SMALL)]
    data = make_report_data(runs)
    assert all(number.difference is None for number in data.table["masked-label"].values())
    assert "no metric in common" in headline(data)[0]


def test_means_over_references_are_there_only_if_every_anchored_run_has_them(tmp_path):
    runs = [make_run(tmp_path, "s", **SMALL), make_run(tmp_path, "l", LABEL, **SMALL)]
    assert "clean_top1_marginal" in summarize(make_comparison(runs))["standard"]
    runs.append(make_run(tmp_path, "a", ANCHORED, k=1, **SMALL))
    table = summarize(make_comparison(runs))
    assert not any(key.endswith("marginal") for numbers in table.values() for key in numbers)
    table = summarize(make_comparison(runs[:1]))
    assert not any(key.endswith("marginal") for key in table["standard"])


def test_accuracy_by_severity_is_the_mean_over_corruptions_and_0_is_clean(comparison, table):
    found = by_severity(comparison)
    assert list(found) == [arm.name for arm in comparison.arms]
    for arm in comparison.arms:
        assert list(found[arm.name]) == [0, 1, 2, 3, 4, 5]
        for severity in range(1, 6):
            wanted = mean_in_rows(
                arm.runs[-1],
                suite="corruptions",
                metric="top1",
                severity=severity,
                inference="single",
            )
            assert found[arm.name][severity].values[1] == pytest.approx(wanted)
        assert found[arm.name][0] == table[arm.name]["clean_top1"]
        assert found[arm.name][5] == table[arm.name]["severity5_top1"]


def test_accuracy_by_corruption_is_the_mean_over_severities(comparison):
    found = by_corruption(comparison)
    assert sorted(found) == ["checkerboard_cutout", "fog", "snow", "sparkles"]
    assert {*list(found)[:2]} == {"fog", "snow"}  # the common ones come first
    number = found["fog"]["masked-label"]
    run = comparison.runs["masked-label", 0]
    wanted = mean_in_rows(run, corruption="fog", metric="top1", inference="single")
    assert number.values[0] == pytest.approx(wanted)
    assert number.difference.method.startswith("paired bootstrap")
    assert found["fog"]["standard"].difference is None


def test_given_ood_sets_are_not_averaged_with_synthetic_ones(comparison, table):
    found = {name: line["masked-label"] for name, line in ood_by_set(comparison).items()}
    given, *synthetic = found.values()
    assert list(found) == ["digits", "noise (synthetic)", "blobs (synthetic)"]
    ours = table["masked-label"]
    assert ours["ood_auroc"].mean == pytest.approx(given.mean)
    assert ours["synthetic_ood_auroc"].mean == pytest.approx(
        statistics.fmean(number.mean for number in synthetic)
    )
    assert all(number.difference.low < number.difference.value for number in found.values())


def test_synthetic_ood_sets_are_in_the_main_table_only_without_given_ones(tmp_path):
    def columns(*ood_sets):
        runs = [make_run(tmp_path, "s", ood_sets=ood_sets, corruptions=())]
        return {
            title: [metric.key for metric in table]
            for title, table in choose_columns(make_report_data(runs)).items()
        }

    assert "synthetic_ood_auroc" in columns("noise")[""]
    both = columns("digits", "noise")
    assert "ood_auroc" in both[""]
    assert "synthetic_ood_auroc" not in both[""]
    assert "synthetic_ood_auroc" in both["More metrics"]


def test_the_mean_of_19_is_that_of_the_rows_summary(tmp_path):
    every = list_corruptions("c", "cifar")
    run = make_run(tmp_path, "s", corruptions=every, n=10, ood_sets=())
    comparison = make_comparison([run])
    (wanted,) = (
        row["value"]
        for row in run.rows
        if (row["corruption"], row["severity"], row["metric"]) == ("mean of 19", "all", "top1")
    )
    assert summarize(comparison)["standard"]["corrupted_top1"].mean == pytest.approx(wanted)
    assert mean_title(comparison) == "mean of 19 corruptions"
    assert by_severity(comparison)["standard"].keys() == {0, 1, 2, 3, 4, 5}


def test_the_title_says_which_mean_over_corruptions_it_is(tmp_path):
    def title(**chosen):
        run = make_run(tmp_path, "s", n=2, ood_sets=(), answers=False, **chosen)
        return mean_title(make_comparison([run]))

    fifteen = list_corruptions("c15", "cifar")
    assert title(corruptions=fifteen) == "mean of 15 corruptions"
    assert title(corruptions=(*fifteen, "saturate")) == "mean of 15 corruptions"
    two = "mean of 2 chosen corruptions"
    assert title(corruptions=("fog", "snow")) == two
    assert title(corruptions=("fog", "snow"), severities=(5,)) == f"{two} at severity 5"
    assert title(corruptions=("fog",), severities=(1, 3)) == "fog at severities 1, 3"
    assert title(corruptions=()) == ""


def test_corruptions_that_are_not_published_are_in_the_numbers(tmp_path):
    comparison = make_comparison([make_run(tmp_path, "s", corruptions=("mine", "fog"))])
    assert list(by_corruption(comparison)) == ["fog", "mine"]
    assert mean_title(comparison) == "mean of 2 chosen corruptions"


def test_columns_are_only_those_that_exist(tmp_path):
    run = make_run(tmp_path, "s", ood_sets=(), severities=(1, 2))
    columns = choose_columns(make_report_data([run])).values()
    titles = {metric.key: metric.title for table in columns for metric in table}
    assert titles["clean_top1"] == "clean accuracy"
    missing = {"severity5_top1", "cbar_top1"} | {key for key in KEYS if "ood" in key}
    assert titles.keys() == KEYS - missing


def test_means_are_over_what_all_runs_were_evaluated_on(tmp_path):
    runs = [
        make_run(tmp_path, "s", corruptions=("fog", "snow", "frost"), ood_sets=("noise", "blobs")),
        make_run(tmp_path, "l", LABEL, corruptions=("snow", "fog"), ood_sets=("noise",)),
        make_run(tmp_path, "u", UNIFORM, corruptions=(), ood_sets=()),
    ]
    comparison = make_comparison(runs)
    table = summarize(comparison)
    assert mean_title(comparison) == "mean of 2 chosen corruptions"
    wanted = statistics.fmean(
        mean_in_rows(runs[0], corruption=name, metric="top1") for name in ("fog", "snow")
    )
    assert table["standard"]["corrupted_top1"].mean == pytest.approx(wanted)
    assert list(ood_by_set(comparison)) == ["noise (synthetic)"]
    assert "corrupted_top1" not in table["masked-uniform"]
    assert "clean_top1" in table["masked-uniform"]


def test_a_seed_that_lacks_one_of_several_numbers_has_no_mean_of_the_rest(comparison):
    there = Condition("single", "top1", "clean")
    arm = comparison.arms[0]
    assert _values(comparison, arm, [there]).keys() == {0, 1}
    assert _values(comparison, arm, [there, there._replace(corruption="none")]) == {}
    assert _values(comparison, arm, []) == {}


def test_the_summary_has_a_line_for_each_arm_and_measure(comparison, table, tmp_path):
    write_summary(comparison, table, tmp_path / "summary.csv")
    with open(tmp_path / "summary.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(numbers) for numbers in table.values())
    assert list(lines[0]) == [
        *("arm", "measure", "seed 0", "seed 1", "mean", "spread", "difference", "low", "high"),
        "how",
    ]
    line = next(
        line for line in lines if (line["arm"], line["measure"]) == ("anchored", "clean_top1")
    )
    number = table["anchored"]["clean_top1"]
    assert (line["seed 0"], line["spread"]) == ("", "")
    assert float(line["seed 1"]) == float(line["mean"]) == number.mean
    gap = number.difference
    assert [float(line[name]) for name in ("difference", "low", "high")] == [
        *(gap.value, gap.low, gap.high),
    ]
    assert line["how"] == gap.method
    base = next(line for line in lines if line["arm"] == "standard")
    assert [base[name] for name in ("difference", "low", "high", "how")] == [""] * 4


FOG = dict(suite="corruptions", corruption="fog", severity=5, metric="top1", inference="single")


def make_arms(*arms):
    """Arms by name, with the protocol and the target in the name."""
    made = []
    for name in arms:
        protocol, _, target = name.partition("-")
        rows = [make_row(protocol=protocol, target=target.split("-")[0], value=0.5, **FOG)]
        made.append(ArmRuns(name, "", tuple(Run(f"{name}{i}", None, rows) for i in (0, 1))))
    return Comparison(tuple(made), made[0] if len(made) > 1 else None, "shapes")


@pytest.mark.parametrize(
    ("arms", "main"),
    [
        (("standard", "anchored", "masked-uniform", "masked-label"), "masked-label"),
        (("standard", "masked-label-finetuned", "masked-label"), "masked-label"),
        (("standard", "masked-uniform", "masked-label-finetuned"), "masked-label-finetuned"),
        (("standard", "anchored", "masked-uniform"), "masked-uniform"),
        (("standard", "mine", "anchored"), "mine"),
        (("masked-label", "standard", "anchored"), "standard"),
        (("mine",), "mine"),
    ],
)
def test_the_main_arm_is_chosen_by_what_it_is_not_by_how_it_did(arms, main):
    assert choose_main_arm(make_arms(*arms)).name == main


def test_the_headline_has_both_means_over_common_seeds_and_the_interval():
    comparison = make_arms("standard", "masked-label")
    one = Estimate({1: 0.9}, Interval(0.1, 0.05, 0.15, ""))
    two = Estimate({0: 0.2, 1: 0.8}, None)
    table = {"standard": {"clean_top1": two}, "masked-label": {"clean_top1": one}}
    (text,) = headline(ReportData(comparison, table, {}, comparison.arms[1]))
    for words in (
        "90.0 %",
        "80.0 %",
        "better",
        "+10.0 points",
        "+5.0 to +15.0",
        "1 seed",
    ):
        assert words in text
    one = replace(one, difference=Interval(0.1, -0.05, 0.25, ""))
    table["masked-label"]["clean_top1"] = one
    (text,) = headline(ReportData(comparison, table, {}, comparison.arms[1]))
    assert "no significant difference" in text


def test_the_headline_has_given_ood_sets_and_an_auroc_below_chance():
    comparison = make_arms("standard", "masked-label")
    better, worse = Interval(0.1, 0.05, 0.15, ""), Interval(-0.1, -0.15, -0.05, "")
    base = {key: Estimate({0: 0.55}, None) for key in ("clean_top1", "ood_auroc")}
    ours = {
        "clean_top1": Estimate({0: 0.65}, better),
        "ood_auroc": Estimate({0: 0.45}, worse),
        "synthetic_ood_auroc": Estimate({0: 0.99}, better),
    }
    table = {"standard": base, "masked-label": ours}
    clean, ood = headline(ReportData(comparison, table, {}, comparison.arms[1]))
    assert "is better: 65.0 %" in clean
    assert "is worse: 45.0 % (below chance)" in ood
    assert "\u221210.0 points" in ood
    assert "99.0" not in clean + ood


def test_the_headline_of_one_arm_has_its_numbers(tmp_path):
    (text,) = headline(make_report_data([make_run(tmp_path, "l", LABEL, cbar=("sparkles",))]))
    assert "corrupted accuracy (mean of 2 chosen corruptions)" in text
    assert "1 seed" in text
