"""The numbers of a report against the rows they come from, and what the headline says of them."""

import csv
import hashlib
import math
import statistics

import numpy as np
import pytest
from report_runs import ANCHORED, LABEL, STANDARD, UNIFORM, make_run
from scipy import stats

from killick.corruptions.suites import list_corruptions
from killick.report.bootstrap import Draws
from killick.report.comparison import Comparison, answers_of, make_comparison
from killick.report.headline import choose_subject, headline
from killick.report.intervals import Interval
from killick.report.run_groups import Arm
from killick.report.statistics import (
    MEASURES,
    Number,
    _values,
    by_corruption,
    by_severity,
    mean_title,
    measures_of,
    ood_by_set,
    summarise,
    write_summary,
)
from killick.report.table_cells import Cell, cell_of
from killick.results.rows import make_row
from killick.results.run_folder import Run

SMALL = {"corruptions": ("fog",), "severities": (5,), "foreign": ()}
KEYS = {
    *("clean_top1", "corrupted_top1", "severity5_top1", "cbar_top1", "clean_smooth_ece"),
    *("corrupted_smooth_ece", "clean_nll", "corrupted_nll", "ood_auroc", "ood_fpr"),
    *("clean_smooth_ece_temperature", "corrupted_smooth_ece_temperature"),
    "corrupted_nll_temperature",
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
    return summarise(comparison)


def mean_in_rows(run, **wanted):
    """The mean over the rows of single sets that have these columns."""
    found = [
        row["value"]
        for row in run.rows
        if cell_of(row) is not None and all(row[name] == value for name, value in wanted.items())
    ]
    assert found
    return math.fsum(found) / len(found)


def test_measures_are_those_agreed_once_from_the_first_reference_and_once_from_all():
    assert {measure.key for measure in MEASURES} == KEYS | {f"{key}_marginal" for key in KEYS}
    assert len({measure.title for measure in MEASURES}) == len(MEASURES)
    assert {m.key.removesuffix("_marginal") for m in MEASURES if m.higher_is_better} == {
        *("clean_top1", "corrupted_top1", "severity5_top1", "cbar_top1", "ood_auroc"),
    }


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
            if (name, metric, scaling) != ("clean", "nll", "temperature")
        ),
        ("ood_auroc", {"suite": "ood", "metric": "auroc", "score": "energy"}),
        ("ood_fpr", {"suite": "ood", "metric": "fpr_at_95_tpr_in", "score": "energy"}),
    ],
)
def test_every_measure_is_the_mean_of_its_rows(comparison, table, key, wanted):
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
    assert ours.difference.how == "paired bootstrap over 40 images in 1 seed"
    both = table["masked-label"]["clean_top1"]
    assert both.difference.value == pytest.approx(both.mean - theirs.mean)
    assert both.difference.how == "paired bootstrap over 40 images in 2 seeds"
    assert theirs.difference is None


def drawn_mean(run, counts, line, wanted):
    """The accuracy in a resample, image by image, over the sets that are wanted."""
    sets = [each for each in answers_of(run) if wanted(each.about)]
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
    labels = answers_of(comparison.runs["standard", 0])[0].single["label"]
    name = hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest()[:16]
    counts = Draws().counts(name, 40).tolist()[:150]
    differences = [
        statistics.fmean(
            drawn_mean(comparison.runs["masked-label", seed], counts, line, wanted)
            - drawn_mean(comparison.runs["standard", seed], counts, line, wanted)
            for seed in (0, 1)
        )
        for line in range(150)
        for wanted in [lambda about: about["suite"] == suite]
    ]
    key = "clean_top1" if suite == "clean" else "corrupted_top1"
    monkeypatch.setattr("killick.report.comparison.Draws", lambda: FirstDraws(150))
    again = Comparison(comparison.arms, comparison.baseline, "shapes", ())
    found = summarise(again)["masked-label"][key].difference
    assert found.high - found.value == pytest.approx(1.96 * np.std(differences, ddof=1), rel=1e-4)
    whole = table["masked-label"][key].difference
    assert whole.high - whole.value == pytest.approx(found.high - found.value, rel=0.25)


class FirstDraws(Draws):
    """The first of the usual draws."""

    def counts(self, images, count):
        return Draws().counts(images, count)[: self.resamples]


def test_the_same_runs_give_the_same_intervals(comparison, table):
    again = Comparison(comparison.arms, comparison.baseline, comparison.data, comparison.notes)
    assert summarise(again) == table


def test_another_baseline_turns_the_signs(comparison, table):
    runs = [run for arm in comparison.arms for run in arm.runs]
    turned = summarise(make_comparison(runs, baseline="masked-label"))
    for measure in MEASURES:
        ours = table["masked-label"][measure.key].difference
        theirs = turned["standard"][measure.key].difference
        assert (theirs.value, theirs.low, theirs.high) == pytest.approx(
            (-ours.value, -ours.high, -ours.low)
        )
        assert turned["masked-label"][measure.key].difference is None


def test_models_that_answer_alike_differ_by_nothing(tmp_path):
    same = {"corruptions": ("fog",), "severities": (1, 2, 3, 4, 5)}
    one = make_run(tmp_path, "one", **same)
    twin = Run("twin", one.folder, one.rows, job={"arm": "twin", "seed": 0})
    found = summarise(make_comparison([one, twin]))["twin"]
    assert found.keys() == KEYS - {"cbar_top1"}
    for key, number in found.items():
        gap = number.difference
        if "temperature" in key:  # answers are kept without: there is nothing to resample
            assert (gap.value, gap.low, gap.high, gap.how) == (
                0,
                None,
                None,
                "one seed, no interval",
            )
        else:
            assert (gap.value, gap.low, gap.high) == (0, 0, 0)
        assert not gap.tells


def test_with_a_temperature_the_interval_is_over_seeds_few_as_they_are(table):
    ours, theirs = (
        table[arm]["clean_smooth_ece_temperature"] for arm in ("masked-label", "standard")
    )
    gap = ours.difference
    assert gap.how == "paired t over 2 seeds where logits have a temperature"
    each = [ours.values[seed] - theirs.values[seed] for seed in (0, 1)]
    reach = stats.t.ppf(0.975, 1) * np.std(each, ddof=1) / 2**0.5
    expected = (np.mean(each), np.mean(each) - reach, np.mean(each) + reach)
    assert (gap.value, gap.low, gap.high) == pytest.approx(expected)


def test_with_five_seeds_the_interval_is_students(tmp_path):
    runs = [
        make_run(tmp_path, f"{name}{seed}", facts, seed=seed, skill=skill, **SMALL)
        for name, facts, skill in (("s", STANDARD, 1.0), ("l", LABEL, 1.5))
        for seed in range(5)
    ]
    table = summarise(make_comparison(runs))
    ours, theirs = (table[arm]["corrupted_nll"].values for arm in ("masked-label", "standard"))
    wanted = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval()
    gap = table["masked-label"]["corrupted_nll"].difference
    assert (gap.low, gap.high) == pytest.approx((wanted.low, wanted.high))
    assert gap.how == "paired t over 5 seeds"


@pytest.mark.parametrize("why", [{"answers": False}, {"pictures": "another"}, {"labels": 4}])
def test_without_answers_to_the_same_images_the_seeds_must_do(tmp_path, why):
    runs = [
        make_run(tmp_path, f"{name}{seed}", facts, seed=seed, **SMALL, **more)
        for name, facts, more in (("s", STANDARD, {}), ("l", LABEL, why))
        for seed in range(2)
    ]
    gap = summarise(make_comparison(runs))["masked-label"]["clean_top1"].difference
    assert gap.how == "paired t over 2 seeds, few as they are: no answers by image to compare"
    values = [
        mean_in_rows(runs[2 + seed], suite="clean", metric="top1", inference="single")
        - mean_in_rows(runs[seed], suite="clean", metric="top1")
        for seed in range(2)
    ]
    reach = stats.t.ppf(0.975, 1) * abs(values[0] - values[1]) / 2
    assert gap.high == pytest.approx(gap.value + reach)


def test_one_seed_without_answers_has_a_difference_and_no_interval(tmp_path):
    runs = [
        make_run(tmp_path, "s", **SMALL, answers=False),
        make_run(tmp_path, "l", LABEL, skill=2.0, **SMALL, answers=False),
    ]
    comparison = make_comparison(runs)
    gap = summarise(comparison)["masked-label"]["clean_top1"].difference
    assert gap.value != 0
    assert (gap.low, gap.high, gap.how) == (None, None, "one seed, no interval")
    text = headline(comparison, summarise(comparison))
    assert "whether that is more than chance cannot be told" in text


def test_few_seeds_that_agree_to_the_digit_are_no_certainty(tmp_path):
    runs = [
        make_run(tmp_path, f"{name}{seed}", facts, seed=seed, **SMALL, answers=False)
        for name, facts in (("s", STANDARD), ("l", LABEL))
        for seed in range(2)
    ]
    for run in runs:
        for row in run.rows:
            row["value"] = 0.75 if row["protocol"] == "standard" else 0.875
    gap = summarise(make_comparison(runs))["masked-label"]["clean_top1"].difference
    assert (gap.value, gap.low, gap.high) == (0.125, None, None)
    assert gap.how == "2 seeds that agree to the digit, no interval"


def test_arms_without_a_seed_in_common_have_no_difference(tmp_path):
    runs = [make_run(tmp_path, "s", **SMALL), make_run(tmp_path, "l", LABEL, seed=1, **SMALL)]
    comparison = make_comparison(runs)
    table = summarise(comparison)
    assert all(number.difference is None for number in table["masked-label"].values())
    assert headline(comparison, table) == (
        "Masked towards the label and standard have no number in common that could be compared."
    )


def test_means_over_references_are_there_only_if_every_anchored_run_has_them(tmp_path):
    runs = [make_run(tmp_path, "s", **SMALL), make_run(tmp_path, "l", LABEL, **SMALL)]
    assert "clean_top1_marginal" in summarise(make_comparison(runs))["standard"]
    runs.append(make_run(tmp_path, "a", ANCHORED, k=1, **SMALL))
    table = summarise(make_comparison(runs))
    assert not any(key.endswith("marginal") for numbers in table.values() for key in numbers)
    table = summarise(make_comparison(runs[:1]))
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
    assert number.difference.how.startswith("paired bootstrap")
    assert found["fog"]["standard"].difference is None


def test_detection_is_told_for_each_set_and_the_measure_is_their_mean(comparison, table):
    found = ood_by_set(comparison)
    assert sorted(found) == ["blobs", "noise"]
    both = [found[name]["masked-label"] for name in found]
    assert table["masked-label"]["ood_auroc"].mean == pytest.approx(
        statistics.fmean(number.mean for number in both)
    )
    assert all(number.difference.low < number.difference.value for number in both)


def test_the_mean_of_19_is_that_of_the_rows_summary(tmp_path):
    every = list_corruptions("c", "cifar")
    run = make_run(tmp_path, "s", corruptions=every, n=10, foreign=())
    comparison = make_comparison([run])
    (wanted,) = (
        row["value"]
        for row in run.rows
        if (row["corruption"], row["severity"], row["metric"]) == ("mean of 19", "all", "top1")
    )
    assert summarise(comparison)["standard"]["corrupted_top1"].mean == pytest.approx(wanted)
    assert mean_title(comparison) == "mean of 19"
    assert by_severity(comparison)["standard"].keys() == {0, 1, 2, 3, 4, 5}


def test_the_title_says_which_mean_over_corruptions_it_is(tmp_path):
    def title(**chosen):
        run = make_run(tmp_path, "s", n=4, foreign=(), answers=False, **chosen)
        return mean_title(make_comparison([run]))

    fifteen = list_corruptions("c15", "cifar")
    assert title(corruptions=fifteen) == "mean of 15"
    assert title(corruptions=(*fifteen, "saturate")) == "mean of 15"
    assert title(corruptions=("fog", "snow")) == "mean of 2 chosen"
    assert title(corruptions=("fog", "snow"), severities=(5,)) == "mean of 2 chosen at severity 5"
    assert title(corruptions=("fog",), severities=(1, 3)) == "fog at severities 1, 3"
    assert title(corruptions=()) == ""


def test_measures_are_titled_by_their_mean_and_only_those_that_there_are(tmp_path):
    run = make_run(tmp_path, "s", foreign=(), severities=(1, 2))
    titles = {measure.key: measure.title for measure in measures_of(make_comparison([run]))}
    assert titles["corrupted_top1"] == "corrupted accuracy, mean of 2 chosen at severities 1, 2"
    assert titles["clean_top1"] == "clean accuracy"
    assert titles.keys() == KEYS - {"severity5_top1", "cbar_top1", "ood_auroc", "ood_fpr"}


def test_means_are_over_what_all_runs_were_shown_and_clean_runs_do_not_empty_them(tmp_path):
    runs = [
        make_run(tmp_path, "s", corruptions=("fog", "snow", "frost")),
        make_run(tmp_path, "l", LABEL, corruptions=("snow", "fog"), foreign=("noise",)),
        make_run(tmp_path, "u", UNIFORM, corruptions=(), foreign=()),
    ]
    comparison = make_comparison(runs)
    table = summarise(comparison)
    assert mean_title(comparison) == "mean of 2 chosen"
    wanted = statistics.fmean(
        mean_in_rows(runs[0], corruption=name, metric="top1") for name in ("fog", "snow")
    )
    assert table["standard"]["corrupted_top1"].mean == pytest.approx(wanted)
    assert list(ood_by_set(comparison)) == ["noise"]
    assert "corrupted_top1" not in table["masked-uniform"]
    assert "clean_top1" in table["masked-uniform"]


def test_a_seed_that_lacks_one_of_several_numbers_has_no_mean_of_the_rest(comparison):
    there = Cell("single", "top1", "clean")
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
    assert line["how"] == gap.how
    base = next(line for line in lines if line["arm"] == "standard")
    assert [base[name] for name in ("difference", "low", "high", "how")] == [""] * 4


# The headline, from numbers made up.


FOG = dict(suite="corruptions", corruption="fog", severity=5, metric="top1", inference="single")


def make_arms(*arms):
    """Arms by name, with the protocol and the target that the name says."""
    made = []
    for name in arms:
        protocol, _, target = name.partition("-")
        rows = [make_row(protocol=protocol, target=target.split("-")[0], value=0.5, **FOG)]
        title = name.replace("-", ", ")
        made.append(Arm(name, title, "", tuple(Run(f"{name}{i}", None, rows) for i in (0, 1))))
    return Comparison(tuple(made), made[0] if len(made) > 1 else None, "shapes", ())


def number(mean, gap=None, reach=0.01, spread=0.004):
    difference = None
    if gap is not None:
        ends = (None, None) if reach is None else (gap - reach, gap + reach)
        difference = Interval(gap, *ends, "somehow")
    step = spread / math.sqrt(2)
    return Number({0: mean - step, 1: mean + step}, mean, spread, difference)


BASE = {
    "corrupted_top1": number(0.790),
    "clean_top1": number(0.932),
    "corrupted_smooth_ece": number(0.052),
    "clean_smooth_ece": number(0.020),
}


def say(**numbers):
    comparison = make_arms("standard", "masked-label")
    return headline(comparison, {"standard": BASE, "masked-label": numbers})


def test_a_gain_is_told_with_its_interval_and_what_it_costs():
    text = say(
        corrupted_top1=number(0.831, 0.041),
        clean_top1=number(0.930, -0.002),
        corrupted_smooth_ece=number(0.031, -0.021),
        clean_smooth_ece=number(0.020, 0.0),
    )
    assert text == (
        "Masked towards the label keeps 83.1 ± 0.4 % accuracy under corruption (fog at severity 5)"
        " against 79.0 ± 0.4 % for standard (+4.1 points, 95 % interval +3.1 to +5.1, 2 seeds)."
        " Its accuracy on clean pictures is 93.0 ± 0.4 % instead of 93.2 ± 0.4 % (−0.2 points: no"
        " difference can be told) and its calibration error under corruption is 0.031 ± 0.004"
        " instead of 0.052 ± 0.004 (better, −0.021, 95 % interval −0.031 to −0.011)."
    )


def test_a_loss_is_called_a_loss():
    text = say(corrupted_top1=number(0.769, -0.021), corrupted_smooth_ece=number(0.082, 0.030))
    assert "Masked towards the label loses 2.1 points: it has 76.9 ± 0.4 % accuracy" in text
    assert "(−2.1 points, 95 % interval −3.1 to −1.1, 2 seeds)" in text
    assert "0.082 ± 0.004 instead of 0.052 ± 0.004 (worse, +0.030" in text
    assert "keeps" not in text


@pytest.mark.parametrize("gap", [0.004, -0.004, 0.0])
def test_a_difference_that_may_be_none_is_told_plainly(gap):
    text = say(corrupted_top1=number(0.790 + gap, gap))
    assert "79.0 ± 0.4 % for standard: no difference can be told (" in text
    assert "keeps" not in text
    assert "loses" not in text


def test_without_corruptions_the_headline_is_about_clean_pictures():
    text = say(clean_top1=number(0.952, 0.020), clean_smooth_ece=number(0.02, 0.0))
    assert text.startswith(
        "Masked towards the label keeps 95.2 ± 0.4 % accuracy on clean pictures against 93.2"
    )
    assert "Its calibration error on clean pictures is 0.020 ± 0.004 instead of 0.020" in text


def test_both_means_are_over_the_seeds_that_both_have():
    one = Number({1: 0.9}, 0.9, None, Interval(0.1, 0.05, 0.15, ""))
    two = Number({0: 0.2, 1: 0.8}, 0.5, 0.42, None)
    comparison = make_arms("standard", "masked-label")
    text = headline(
        comparison, {"standard": {"clean_top1": two}, "masked-label": {"clean_top1": one}}
    )
    assert text == (
        "Masked towards the label keeps 90.0 % accuracy on clean pictures against 80.0 % for"
        " standard (+10.0 points, 95 % interval +5.0 to +15.0, 1 seed)."
    )


@pytest.mark.parametrize(
    ("arms", "subject"),
    [
        (("standard", "anchored", "masked-uniform", "masked-label"), "masked-label"),
        (("standard", "masked-label-finetuned", "masked-label"), "masked-label"),
        (("standard", "masked-uniform", "masked-label-finetuned"), "masked-label-finetuned"),
        (("standard", "anchored", "masked-uniform"), "masked-uniform"),
        (("standard", "mine", "anchored"), "mine"),
        (("masked-label", "standard", "anchored"), "standard"),
    ],
)
def test_the_subject_is_chosen_by_what_it_is_not_by_how_it_did(arms, subject):
    assert choose_subject(make_arms(*arms)).name == subject


def test_one_arm_is_described_and_not_compared(tmp_path):
    comparison = make_comparison([make_run(tmp_path, "l", LABEL, cbar=("sparkles",))])
    text = headline(comparison, summarise(comparison))
    assert text.startswith("Masked towards the label has ")
    assert "accuracy under corruption (mean of 2 chosen)" in text
    assert text.endswith("There is nothing here to compare it with.")
    assert "against" not in text


def test_the_headline_of_real_folders_reads_well(comparison, table):
    text = headline(comparison, table)
    assert text.startswith("Masked towards the label keeps ")
    assert "accuracy under corruption (mean of 2 chosen) against" in text
    assert "2 seeds" in text
