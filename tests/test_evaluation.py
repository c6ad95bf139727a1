"""Evaluation: rows against independent loops, resuming, processes, and what is refused."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from small_models import (
    MEAN_STD,
    NAMES,
    Colours,
    evaluate_all,
    find,
    make_anchored,
    make_set,
    make_standard,
)
from torch import nn

import killick
from killick import metrics
from killick.corruptions.suites import SUITES
from killick.data.image_set import ImageSet, Sets
from killick.data.preprocessing import PlainView
from killick.data.sources import load_sets, read_once
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import DataError, KillickError, OptionError, OutputError
from killick.evaluation import model_runner
from killick.evaluation.classifier import Classifier
from killick.evaluation.evaluation_data import load_validation
from killick.evaluation.image_blocks import BLOCK, block_generator
from killick.evaluation.open_classifier import _are_probabilities
from killick.results.rows import COLUMNS, read_rows
from killick.training.recipe_files import load_recipe
from killick.training.training_data import sets_of

FEW = ("fog", "gaussian_noise")


def evaluate(model, data=None, suites=("clean",), **options):
    options = {"synthetic": ("noise",), "quiet": True, "size": None, **options}
    return killick.evaluate(model, make_set() if data is None else data, suites, **options)


def test_clean_numbers_are_those_of_a_loop():
    model, data = make_standard(), make_set()
    rows = evaluate(model, data)
    logits = model(data.images()).detach().double()
    probs, correct, surprise, brier = logits.softmax(1), 0, 0.0, 0.0
    for image, label in enumerate(data.labels.tolist()):
        correct += int(logits[image].argmax()) == label
        surprise -= float(probs[image, label].log())
        truth = torch.eye(4, dtype=torch.float64)[label]
        brier += float((probs[image] - truth).square().sum())
    assert 150 < correct < 295
    assert find(rows, "top1")["value"] == pytest.approx(correct / 300, abs=1e-9)
    assert find(rows, "nll")["value"] == pytest.approx(surprise / 300, abs=1e-5)
    assert find(rows, "brier")["value"] == pytest.approx(brier / 300, abs=1e-5)
    assert find(rows, "aurc")["value"] == pytest.approx(
        float(metrics.aurc(probs.amax(1), logits.argmax(1) == data.labels)), abs=1e-5
    )


def test_top_5_counts_only_where_there_are_more_classes():
    data = make_set()
    ten = ImageSet.of("colours", data.images(), data.labels, [str(c) for c in range(10)])
    rows = evaluate(make_standard(classes=10), ten)
    logits = make_standard(classes=10)(data.images())
    ranks = (logits > logits.gather(1, data.labels[:, None])).sum(1)
    assert find(rows, "top5")["value"] == pytest.approx(float((ranks < 5).double().mean()))
    assert not [row for row in evaluate(make_standard()) if row["metric"] == "top5"]


def test_every_row_says_what_it_depends_on():
    rows = evaluate(make_anchored(), suites=("clean", "corruptions"), corruptions=["fog"], limit=40)
    for row in rows:
        assert tuple(row) == COLUMNS
        assert (row["data"], row["limit"], row["evaluation_seed"]) == ("colours", 40, 0)
        assert row["precision"] == "float32"
        assert len(row["weights"]) == 12
    fog = find(rows, "top1", corruption="fog", severity=2, inference="single")
    assert (fog["source"], fog["table"], fog["k"]) == ("generated", "cifar", 1)
    assert fog["count"] == 40


def test_corrupted_images_are_made_in_seeded_blocks():
    """Against a loop over blocks, written from the rule."""
    model, data = make_standard(), make_set()
    rows = evaluate(model, data, ("corruptions",), corruptions=["gaussian_noise"], seed=7)
    for severity in (1, 5):
        hits = 0
        for number in range(0, len(data), BLOCK):
            generator = block_generator(
                7, "gaussian_noise", severity, number // BLOCK, torch.device("cpu")
            )
            block = slice(number, number + BLOCK)
            images = killick.corrupt(
                data.images()[block], "gaussian_noise", severity, table="cifar", generator=generator
            )
            hits += int((model(images).argmax(1) == data.labels[block]).sum())
        row = find(rows, "top1", corruption="gaussian_noise", severity=severity)
        assert row["value"] == pytest.approx(hits / len(data))


def test_no_number_depends_on_the_batch_size():
    options = {"suites": ("clean", "corruptions", "calibration", "ood"), "corruptions": FEW}
    usual = evaluate(make_anchored(), severities=(3,), **options)
    for batch in (7, 250, 333):
        other = evaluate(make_anchored(), severities=(3,), batch=batch, **options)
        for a, b in zip(usual, other, strict=True):
            # Networks sum in another order for another batch; the pixels are the same.
            assert a["value"] == pytest.approx(b["value"], abs=4e-4), a


def test_another_seed_makes_other_pixels():
    values = [
        find(
            evaluate(make_standard(), suites=("corruptions",), corruptions=FEW, seed=seed),
            "nll",
            corruption="gaussian_noise",
            severity=5,
        )["value"]
        for seed in (0, 0, 1)
    ]
    assert values[0] == values[1] != values[2]


def test_anchored_numbers_have_their_spread_over_references():
    model, data = make_anchored(), make_set()
    rows = evaluate(model, data)
    single, mean = [], 0
    for reference in model.references:
        logits = model(data.images(), reference.expand(300, -1, -1, -1))
        single.append(float((logits.argmax(1) == data.labels).double().mean()))
        mean = mean + logits / 3
    row = find(rows, "top1", inference="single")
    assert row["value"] == pytest.approx(single[0])
    assert row["std"] == pytest.approx(float(torch.tensor(single).std()), abs=1e-6)
    assert row["std"] > 0
    assert [float(value) for value in row["members"].split()] == pytest.approx(single, abs=1e-6)
    several = find(rows, "top1", inference="marginal")
    assert several["k"] == 3
    assert several["value"] == pytest.approx(float((mean.argmax(1) == data.labels).double().mean()))
    predicted = killick.predict(model, data.images(), "marginal").probs
    nll = float(-predicted.gather(1, data.labels[:, None]).log().mean())
    assert find(rows, "nll", inference="marginal")["value"] == pytest.approx(nll, abs=1e-5)


def test_one_reference_and_standard_models_have_no_spread():
    for rows in (evaluate(make_anchored(), references=1), evaluate(make_standard())):
        assert {row["inference"] for row in rows} == {"single"}
        assert {row["std"] for row in rows} == {""}
    assert evaluate(make_standard())[0]["k"] == ""


def test_a_folded_network_scores_as_the_anchored_one():
    model = make_anchored()
    ours = evaluate(model, references=1)
    theirs = evaluate(killick.fold(model))
    assert find(theirs, "top1")["value"] == find(ours, "top1")["value"]
    assert find(theirs, "nll")["value"] == pytest.approx(find(ours, "nll")["value"], abs=1e-5)
    assert theirs[0]["protocol"] == "folded"


def test_a_bare_network_is_evaluated_with_its_normalization():
    rows = evaluate(Colours(), normalize=MEAN_STD, size=16)
    assert find(rows, "top1")["value"] == find(evaluate(make_standard()), "top1")["value"]


def test_images_and_labels_may_be_handed_over():
    data = make_set()
    rows = evaluate(make_standard(), (data.images(), data.labels))
    assert find(rows, "top1")["value"] == find(evaluate(make_standard()), "top1")["value"]


def test_calibration_is_measured_on_every_set_and_after_scaling():
    model, data, held = make_standard(), make_set(), make_set(260, seed=9)
    suites = ("clean", "corruptions", "calibration")
    rows = evaluate(model, data, suites, corruptions=FEW, validation=held)
    logits = model(data.images())
    confidence, correct = logits.softmax(1).amax(1), logits.argmax(1) == data.labels
    row = find(rows, "smooth_ece")
    assert row["value"] == pytest.approx(float(metrics.smooth_ece(confidence, correct)), abs=1e-6)
    assert row["low"] < row["value"] < row["high"]
    assert find(rows, "ece")["value"] == pytest.approx(float(metrics.ece(confidence, correct)))
    temperature = float(metrics.fit_temperature(model(held.images()), held.labels))
    assert find(rows, "temperature")["value"] == pytest.approx(temperature, rel=1e-4)
    scaled = (logits / temperature).softmax(1).amax(1)
    row = find(rows, "smooth_ece", scaling="temperature")
    assert row["value"] == pytest.approx(float(metrics.smooth_ece(scaled, correct)), abs=1e-5)
    assert find(rows, "smooth_ece", corruption="fog", severity=5, scaling="temperature")
    assert not [row for row in evaluate(model, data) if row["metric"] == "ece"]


def test_detection_is_measured_on_raw_scores():
    model, data = make_anchored(), make_set()
    rows = evaluate(model, Sets(make_set(seed=4), data), ("ood",), ood={"other": make_set(90, 16)})
    inside = killick.predict(model, data.images())
    outside = killick.predict(model, make_set(90, 16).images())
    row = find(rows, "auroc", set="other", score="energy", inference="single")
    assert row["value"] == pytest.approx(
        float(metrics.auroc(inside.energy, outside.energy)), abs=1e-6
    )
    scores = {row["score"] for row in rows if row["metric"] == "auroc"}
    assert {"energy", "max_softmax", "max_logit", "entropy"} < scores
    assert {"spread", "mutual_information", "residual_distance"} < scores
    spread = killick.predict(model, data.images(), "marginal").std.mean(1)
    theirs = killick.predict(model, make_set(90, 16).images(), "marginal").std.mean(1)
    row = find(rows, "auroc", set="other", score="spread", inference="marginal")
    assert row["value"] == pytest.approx(float(metrics.auroc(spread, theirs)), abs=1e-5)
    for metric in ("aupr_in", "aupr_out", "fpr_at_95_tpr_in", "fpr_at_95_tpr_out"):
        assert (
            0 <= find(rows, metric, set="noise", score="energy", inference="single")["value"] <= 1
        )


def test_distance_to_the_residuals_of_training_finds_images_of_another_kind():
    model, data = make_anchored(), make_set()
    rows = evaluate(model, Sets(make_set(seed=4), data), ("ood",))
    row = find(rows, "auroc", set="noise", score="residual_distance", inference="single")
    assert row["value"] > 0.95


def test_the_threshold_accepts_what_it_was_fitted_for():
    model, data, held = make_standard(), make_set(), make_set(260, seed=9)
    rows = evaluate(model, data, ("ood",), validation=held, acceptance=0.8)
    energies = killick.predict(model, held.images()).energy
    threshold = find(rows, "threshold", score="energy")
    assert threshold["value"] == pytest.approx(float(metrics.threshold(energies, 0.8)), abs=1e-5)
    accepted = find(rows, "accepted", set="colours", score="energy")
    assert accepted["value"] == pytest.approx(0.8, abs=0.06)
    assert accepted["estimator"] == "threshold at 80 %"
    assert accepted["fitted_on"].startswith("colours (260, ")


def test_the_references_suite_tells_what_the_choice_decides():
    model, data = make_anchored(), make_set()
    rows = evaluate(model, data, ("clean", "references"))
    for number in range(3):
        logits = model(data.images(), model.references[number].expand(300, -1, -1, -1))
        row = find(rows, "top1", suite="references", reference=number)
        assert row["value"] == pytest.approx(
            float((logits.argmax(1) == data.labels).double().mean())
        )
    p = killick.predict(model, data.images(), "marginal")
    row = find(rows, "disagreement", inference="marginal")
    assert row["value"] == pytest.approx(float(p.disagreement.mean()), abs=1e-6)
    row = find(rows, "mutual_information", inference="marginal")
    assert row["value"] == pytest.approx(float(p.mutual_information.mean()), abs=1e-6)


def test_multiplicity_is_counted_against_the_first_reference():
    model, data = make_anchored(), make_set()
    rows = evaluate(model, data, ("multiplicity",))
    chosen = [
        model(data.images(), each.expand(300, -1, -1, -1)).argmax(1).tolist()
        for each in model.references
    ]
    counts, any_of_them = [0, 0], 0
    for base, *others in zip(*chosen, strict=True):
        any_of_them += any(other != base for other in others)
        counts = [count + (other != base) for count, other in zip(counts, others, strict=True)]
    assert 0 < max(counts) < any_of_them
    assert find(rows, "ambiguity")["value"] == pytest.approx(any_of_them / 300)
    assert find(rows, "discrepancy")["value"] == pytest.approx(max(counts) / 300)


def test_means_are_over_named_suites():
    rows = evaluate(make_anchored(), suites=("corruptions",), limit=20, references=2)
    accuracy = [r for r in rows if r["metric"] == "top1" and r["inference"] == "single"]
    values = {(r["mean_of"] or r["corruption"], r["severity"]): r["value"] for r in accuracy}
    for suite in ("c", "c15"):
        members = SUITES[suite]
        for severity in range(1, 6):
            mean = sum(values[name, severity] for name in members) / len(members)
            assert values[suite, severity] == pytest.approx(mean)
        whole = sum(values[name, s] for name in members for s in range(1, 6)) / 5 / len(members)
        assert values[suite, "all"] == pytest.approx(whole)
    some = evaluate(make_standard(), suites=("corruptions",), limit=30, corruptions=FEW)
    assert {(r["mean_of"], r["corruption"]) for r in some if r["mean_of"]} == {
        ("chosen", "mean of 2 chosen")
    }


def darken(images, severity, generator):
    """Darker, with a little noise."""
    noise = torch.rand(images.shape, generator=generator)
    return (images * (1 - severity / 8) + 5 * noise).to(torch.uint8)


def test_corruptions_may_be_functions():
    model, data = make_standard(), make_set()
    own = {"darken": darken, "invert": lambda images, severity, generator: 255 - images}
    rows = evaluate(model, data, ("clean", "corruptions"), corruptions=own)
    generator = block_generator(0, "darken", 4, 0, torch.device("cpu"))
    first = darken(data.images()[:BLOCK], 4, generator)
    rest = darken(data.images()[BLOCK:], 4, block_generator(0, "darken", 4, 1, torch.device("cpu")))
    right = model(torch.cat([first, rest])).argmax(1) == data.labels
    row = find(rows, "top1", corruption="darken", severity=4)
    assert row["value"] == pytest.approx(float(right.double().mean()))
    each = [r["value"] for r in rows if r["metric"] == "nll" and r["corruption"] in own]
    mean = find(rows, "nll", corruption="mean of 2 chosen", severity="all")
    assert len(each) == 10
    assert mean["value"] == pytest.approx(sum(each) / 10)
    one = evaluate(model, data, ("corruptions",), corruptions={"darken": darken})
    assert find(one, "top1", mean_of="chosen", corruption="mean of 1 chosen", severity="all")
    with pytest.raises(OptionError, match="fog is a published corruption"):
        evaluate(model, data, ("corruptions",), corruptions={"fog": darken})


def test_a_registered_metric_and_score_are_computed_for_every_set(tmp_path):
    metric = metrics.Metric(
        "overconfidence",
        "overconfidence",
        "mean confidence in wrong predictions",
        -1,
        input="confidence",
        compute=lambda confidence, correct: float(confidence[~correct].mean()),
    )
    score = metrics.OODScore("margin", "margin", "gap", compute=lambda logits: -logits.std(-1))
    evaluate(make_standard(), suites=("ood",), folder=tmp_path)
    try:
        metrics.register_metric(metric)
        metrics.register_score(score)
        rows = evaluate(make_standard(), suites=("ood",), folder=tmp_path)
    finally:
        metrics.METRICS.remove("overconfidence")
        metrics.SCORES.remove("margin")
    model, data = make_standard(), make_set()
    probs = model(data.images()).detach().softmax(1)
    wrong = probs.argmax(1) != data.labels
    row = find(rows, "overconfidence")
    assert row["value"] == pytest.approx(float(probs.amax(1)[wrong].double().mean()), abs=1e-6)
    assert find(rows, "auroc", set="noise", score="margin")


def test_mce_is_relative_to_a_named_baseline(tmp_path):
    options = {"suites": ("corruptions",), "limit": 20}
    plain = evaluate(make_standard(), folder=tmp_path / "plain", name="plain", **options)
    rows = evaluate(make_anchored(), baseline=str(tmp_path / "plain"), references=2, **options)

    def errors(rows):
        wanted = [r for r in rows if r["metric"] == "top1" and r["inference"] == "single"]
        return {(r["corruption"], r["severity"]): 1 - r["value"] for r in wanted}

    ours, theirs = errors(rows), errors(plain)
    names = SUITES["c15"]
    expected = sum(
        sum(ours[n, s] for s in range(1, 6)) / sum(theirs[n, s] for s in range(1, 6)) for n in names
    ) / len(names)
    row = find(rows, "mce", corruption="mean of 15", inference="single")
    assert row["value"] == pytest.approx(expected)
    assert row["estimator"].endswith("relative to plain")
    with pytest.raises(DataError, match="no rows of the suite corruptions with data colours"):
        evaluate(make_standard(), baseline=str(tmp_path), **options)


def stop_after(units, monkeypatch):
    """Ctrl-C when so many units have been seen; counts them."""
    seen, run = [], model_runner.ModelRunner.run

    def interrupted(self, unit):
        if units is not None and len(seen) == units:
            raise KeyboardInterrupt
        seen.append(unit.title)
        return run(self, unit)

    monkeypatch.setattr(model_runner.ModelRunner, "run", interrupted)
    return seen


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path, monkeypatch):
    options = {"suites": ("clean", "corruptions", "calibration", "ood"), "corruptions": FEW}
    whole = evaluate(make_anchored(), folder=tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        stop_after(7, patch)
        with pytest.raises(KeyboardInterrupt):
            evaluate(make_anchored(), folder=tmp_path / "cut", **options)
    before = read_rows(tmp_path / "cut")
    assert 0 < len(before) < len(whole)
    with monkeypatch.context() as patch:
        seen = stop_after(None, patch)
        again = evaluate(make_anchored(), folder=tmp_path / "cut", **options)
    # The clean set once more: others are told from it.
    assert seen == ["colours", *(f"fog {severity}" for severity in (2, 3, 4, 5)), "noise"]
    assert sorted(map(str, again)) == sorted(map(str, whole))


def test_nothing_is_computed_twice_unless_asked_for(tmp_path, monkeypatch):
    options = {"suites": ("clean", "corruptions"), "corruptions": ["fog"], "folder": tmp_path}
    first = evaluate(make_standard(), **options)
    seen = stop_after(None, monkeypatch)
    assert evaluate(make_standard(), **options) == first
    assert seen == []
    evaluate(make_standard(), again=True, **options)
    assert len(seen) == 6
    evaluate(make_standard(), **{**options, "suites": ("clean", "corruptions", "calibration")})
    assert len(seen) == 12  # calibration was not there
    evaluate(make_standard(), **{**options, "limit": 50})
    assert len(seen) == 18  # another subset is another measurement
    kept = read_rows(tmp_path)
    assert {row["limit"] for row in kept} == {"", 50}
    assert len(kept) == len({json.dumps(row) for row in kept})


def test_rows_of_other_weights_are_dropped(tmp_path):
    model = make_standard()
    evaluate(model, folder=tmp_path, name="mine", suites=("clean", "corruptions"), corruptions=FEW)
    model.net.weight.data += 1
    evaluate(model, folder=tmp_path, name="mine")
    kept = read_rows(tmp_path)
    assert len({row["weights"] for row in kept}) == 1
    assert {row["suite"] for row in kept} <= {"clean", "ood"}
    evaluate(make_anchored(), folder=tmp_path, name="other")
    assert {row["model"] for row in read_rows(tmp_path)} == {"mine", "other"}


def test_whatever_changes_a_number_is_measured_again(tmp_path, monkeypatch):
    data, held = make_set(), make_set(260, seed=9)
    suites = ("clean", "calibration", "ood")
    options = {"suites": suites, "folder": tmp_path, "validation": held}
    evaluate(make_standard(), data, **options)
    seen = stop_after(None, monkeypatch)

    def computes(data=data, **changes) -> int:
        before = len(seen)
        evaluate(make_standard(), data, **{**options, **changes})
        return len(seen) - before

    assert computes() == 0
    assert computes(acceptance=0.9) == 2
    assert computes(validation=make_set(259, seed=9)) == 2
    assert computes(size=12) == 2
    assert computes(resize=20) == 2
    assert computes(seed=1) == 2
    assert computes(limit=60) == 2
    assert computes(precision="bfloat16") == 2
    assert computes() == 0
    other = make_set(seed=5)  # other images under the same name
    assert computes(other) == 2
    assert computes(other) == 0


def test_rows_about_images_that_are_no_longer_there_are_dropped(tmp_path):
    options = {"suites": ("clean", "corruptions"), "corruptions": FEW, "folder": tmp_path}
    evaluate(make_standard(), **options)
    evaluate(make_standard(), make_set(seed=5), folder=tmp_path)
    kept = [row for row in read_rows(tmp_path) if row["suite"] == "clean"]
    assert len({row["images"] for row in kept}) == 1
    rows = evaluate(make_standard(), make_set(seed=5), **options)
    assert len({row["images"] for row in rows}) == 1


def test_a_csv_of_rows_says_the_same_as_the_lines(tmp_path):
    evaluate(make_anchored(), folder=tmp_path, suites=("clean", "corruptions"), corruptions=FEW)
    lines = read_rows(tmp_path / "rows.jsonl")
    table = read_rows(tmp_path / "rows.csv")
    assert [{k: str(v) for k, v in row.items()} for row in lines] == [
        {k: str(v) for k, v in row.items()} for row in table
    ]


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from small_models import evaluate_all
torch.set_num_threads(1)
evaluate_all(sys.argv[1])
"""


@pytest.mark.slow
def test_no_number_depends_on_how_many_processes_there_are(tmp_path):
    here = os.path.dirname(__file__)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(tmp_path / "script.py"), str(tmp_path / "two"), here]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    evaluate_all(tmp_path / "one")
    one, two = read_rows(tmp_path / "one"), read_rows(tmp_path / "two")
    assert len(one) == len(two) > 100
    for a, b in zip(one, two, strict=True):
        assert a["count"] == b["count"]
        assert a["value"] == pytest.approx(b["value"], abs=1e-5), a


def test_a_stored_threshold_says_yes_or_no(tmp_path):
    model, data = make_anchored(), make_set()
    assert killick.predict(model, data.images()).in_distribution is None
    others = {"odd": data.images()[1::2], "all": data.images()}
    threshold = killick.fit_threshold(model, data.images(), acceptance=0.9, ood=others)
    verdict = killick.predict(model, data.images()).in_distribution
    assert threshold.refused["all"] == pytest.approx(1 - float(verdict.double().mean()))
    assert threshold.refused["odd"] == pytest.approx(1 - float(verdict[1::2].double().mean()))
    assert float(verdict.double().mean()) == pytest.approx(0.9, abs=0.002)
    killick.save(model, tmp_path / "model", architecture=None)
    loaded = killick.load(tmp_path / "model", net=type(model.net)(*_plain_layers()))
    assert loaded.threshold == threshold
    assert torch.equal(killick.predict(loaded, data.images()).in_distribution, verdict)
    assert killick.predict(model, data.images(), "marginal").in_distribution is None
    killick.fit_threshold(model, data.images(), acceptance=0.5, k=3)
    verdict = killick.predict(model, data.images(), "marginal").in_distribution
    assert float(verdict.double().mean()) == pytest.approx(0.5, abs=0.002)


def _plain_layers() -> list[nn.Module]:
    from conftest import small_cnn

    return list(small_cnn(classes=4))


class Broken(nn.Module):
    """Returns NaN for dark images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x.mean((2, 3)) + 0.45).repeat(1, 2)[:, :4]


class Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((1, 2, 3))[:, None]


def standard(net: nn.Module) -> killick.Standard:
    return killick.standard(net, MEAN_STD, image_shape=(3, 16, 16)).eval()


@pytest.mark.parametrize(
    ("model", "options", "kind", "match"),
    [
        (lambda: standard(Broken()), {}, OutputError, "NaN or infinity for .* of 300"),
        (lambda: standard(Flat()), {}, KillickError, r"\(2, 1\)"),
        (lambda: make_standard(7), {}, OutputError, "7 logits"),
        (make_standard, {"suites": ("claen",)}, OptionError, "did you mean 'clean'"),
        (make_standard, {"suites": ()}, OptionError, "no suite"),
        (
            make_standard,
            {"suites": ("corruptions",), "corruptions": ("foggy",)},
            OptionError,
            "did you mean 'fog'",
        ),
        (make_standard, {"suites": ("corruptions",), "severities": (6,)}, OptionError, "found 6"),
        (make_standard, {"suites": ("shift",)}, OptionError, "requires --shift"),
        (make_standard, {"suites": ["shift"]}, OptionError, "--suite shift requires --shift"),
        (make_standard, {"limit": 0}, OptionError, "limit .* found 0"),
        (make_standard, {"batch": 0}, OptionError, "batch .* found 0"),
        (make_standard, {"references": 0}, OptionError, "references .* found 0"),
        (make_standard, {"acceptance": 1.5}, OptionError, "acceptance .* found 1.5"),
        (make_standard, {"precision": "half"}, OptionError, "half"),
        (Colours, {}, OptionError, r"normalize=\(mean, std\)"),
        (lambda: "timm:resnet18", {}, OptionError, "--checkpoint FILE"),
        (lambda: "nowhere", {}, KillickError, "nowhere"),
        (lambda: 3, {}, OptionError, "found int"),
        (Colours, {"normalize": (0.5, 0.2)}, OptionError, "number for each channel"),
        (make_standard, {"data": [1, 2]}, OptionError, "found list"),
        (make_standard, {"ood": "shapes"}, OptionError, "ood .*str"),
        (make_standard, {"ood": {"a": 3}}, OptionError, "int"),
        (
            make_standard,
            {"corruptions": ("fog",), "suites": ("cbar",)},
            OptionError,
            "fog requires --suite corruptions",
        ),
        (make_standard, {"cbar_files": "gone"}, DataError, "gone"),
        (make_standard, {"class_map": {}}, OptionError, "--class-map requires --shift"),
        (make_standard, {"suites": ("ood",), "synthetic": ()}, OptionError, "--suite ood requires"),
        (make_standard, {"suites": ("references",)}, OptionError, "several references"),
        (lambda: standard(nn.Sequential(nn.Flatten(), nn.Linear(7, 4))), {}, OutputError, "16 px"),
    ],
)
def test_mistakes_are_one_line_with_the_value(model, options, kind, match):
    with pytest.raises(kind, match=match) as problem:
        evaluate(model(), **{"size": None, **options})
    assert "\n" not in str(problem.value)


def test_other_classes_than_the_model_has_are_refused():
    model = make_standard()
    model.class_names = NAMES
    data = make_set()
    other = ImageSet.of("pets", data.images(), data.labels, ("cat", "dog", "cow", "hen"))
    with pytest.raises(DataError, match="of pets, such as 'cat'"):
        evaluate(model, other)


def test_scores_do_not_depend_on_which_classes_a_set_has():
    """A set against itself is told apart by chance, also if it has two of the four classes."""
    model, data = make_anchored(), make_set()
    model.class_names = NAMES
    part = data.part((data.labels < 2).nonzero()[:, 0])
    two = ImageSet(part.name, part.source, part.labels, NAMES[:2], part.rows)
    rows = evaluate(model, two, ("ood",), ood={"same": part.images()})
    for row in rows:
        if row["metric"] == "auroc" and row["set"] == "same":
            assert row["value"] == pytest.approx(0.5, abs=1e-6), row["score"]
    accepted = [r["value"] for r in rows if r["metric"] == "accepted" and r["set"] != "noise"]
    assert accepted[0] == accepted[1] == pytest.approx(0.95, abs=0.01)


def test_a_model_without_names_takes_those_of_the_data_it_is_tested_on():
    """So that a set with some of the classes can be aligned by name."""
    model, data = make_standard(), make_set()
    part = data.part((data.labels >= 2).nonzero()[:, 0])
    some = ImageSet(part.name, part.source, part.labels - 2, NAMES[2:], part.rows)
    rows = evaluate(model, data, ("shift",), shift={"some": some})
    logits = model(part.images())[:, 2:]
    accuracy = float((logits.argmax(1) == some.labels).double().mean())
    assert find(rows, "top1", set="some")["value"] == pytest.approx(accuracy)


def test_labels_that_are_numbers_need_not_name_every_class():
    data = make_set()
    few = data.part((data.labels < 3).nonzero()[:, 0])
    model = make_standard()
    rows = evaluate(model, (few.images(), few.labels))
    accuracy = float((model(few.images()).argmax(1) == few.labels).double().mean())
    assert find(rows, "top1")["value"] == pytest.approx(accuracy)


def test_a_function_and_a_model_of_floats_are_evaluated_too():
    usual = find(evaluate(make_standard()), "nll")["value"]
    data = make_set()
    images = (data.images(), data.labels)
    net = Colours()
    rows = evaluate(lambda x: net(x), images, normalize=MEAN_STD)
    assert {row["model"] for row in rows} == {row["network"] for row in rows} == {"function"}

    def mine(x):
        return net(x)

    assert {r["model"] for r in evaluate(mine, images, normalize=MEAN_STD)} == {"mine"}
    for probable in (lambda x: net(x).softmax(1), nn.Sequential(net, nn.Softmax(1))):
        with pytest.raises(OutputError, match="returns probabilities"):
            evaluate(probable, images, normalize=MEAN_STD)
    logarithms = evaluate(lambda x: net(x).log_softmax(1), images, normalize=MEAN_STD)
    for ours, theirs in zip(rows, logarithms, strict=True):
        if ours["metric"] in ("top1", "nll", "ece"):
            assert theirs["value"] == pytest.approx(ours["value"], abs=1e-5)
    assert find(rows, "nll")["value"] == pytest.approx(usual, abs=1e-5)
    plain = killick.standard(Colours(), image_shape=(3, 16, 16)).eval()
    rows = evaluate(plain, images, normalize=MEAN_STD)
    assert find(rows, "nll")["value"] == pytest.approx(usual, abs=1e-5)
    other = evaluate(plain, images, normalize=((0, 0, 0), (1, 1, 1)))
    assert other[0]["weights"] != rows[0]["weights"]


def test_the_test_set_is_not_taken_for_validation():
    data = make_set()
    for held in (data, (data.images().clone(), data.labels), data.part(torch.arange(50))):
        with pytest.raises(DataError, match="include test images of colours"):
            evaluate(make_standard(), data, validation=held)


def test_only_what_was_asked_for_is_returned(tmp_path):
    options = {"suites": ("clean", "corruptions"), "folder": tmp_path}
    evaluate(make_standard(), corruptions=("fog", "snow"), **options)
    rows = evaluate(make_standard(), corruptions=("contrast", "frost"), **options)
    assert {r["corruption"] for r in rows} == {"", "contrast", "frost", "mean of 2 chosen"}
    photographs = list(torch.randint(0, 256, (5, 3, 300, 300), dtype=torch.uint8))
    twice = [evaluate(make_standard(), corruptions=("contrast", "frost"), **options)]
    evaluate(make_standard(), corruptions=("contrast", "frost"), frost=photographs, **options)
    twice.append(evaluate(make_standard(), corruptions=("contrast", "frost"), **options))
    means = [find(r, "nll", corruption="mean of 2 chosen", severity=3)["value"] for r in twice]
    assert means[0] == means[1]
    clean = evaluate(make_standard(), acceptance=0.5, folder=tmp_path)
    assert find(clean, "threshold", score="energy")["estimator"] == "threshold at 50 %"


def test_a_narrower_call_does_not_drop_rows(tmp_path):
    options = {"suites": ("corruptions",), "folder": tmp_path}
    evaluate(make_standard(), corruptions=("fog", "snow"), **options)
    evaluate(make_standard(), corruptions=("fog",), **options)
    assert {"fog", "snow"} < {row["corruption"] for row in read_rows(tmp_path)}


def test_two_evaluations_into_one_folder_keep_each_others_rows(tmp_path, monkeypatch):
    run = model_runner.ModelRunner.run

    def meanwhile(self, unit):
        if self.classifier.name == "a" and unit.suite == "clean":
            evaluate(make_standard(), folder=tmp_path, name="b")
        return run(self, unit)

    monkeypatch.setattr(model_runner.ModelRunner, "run", meanwhile)
    evaluate(make_anchored(), folder=tmp_path, name="a")
    rows = read_rows(tmp_path)
    assert {row["model"] for row in rows} == {"a", "b"}
    assert not list(tmp_path.glob("*.part"))


def test_the_baseline_must_be_alike(tmp_path):
    options = {"suites": ("corruptions",), "limit": 12}
    evaluate(make_standard(), folder=tmp_path, name="plain", **options)
    with pytest.raises(DataError, match="evaluation_seed 3"):
        evaluate(make_anchored(), baseline=str(tmp_path), seed=3, **options)
    evaluate(make_anchored(), folder=tmp_path, name="other", **options)
    with pytest.raises(DataError, match="other, plain"):
        evaluate(make_anchored(), baseline=str(tmp_path), **options)
    with pytest.raises(OptionError, match="has 4"):
        evaluate(make_anchored(), baseline="alexnet", **options)


def test_batches_are_as_small_as_asked_for():
    sizes = set()

    class Counting(Colours):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.add(len(x))
            return super().forward(x)

    evaluate(standard(Counting()), suites=("corruptions",), corruptions=("fog",), batch=16)
    assert max(sizes) == 16


def test_an_empty_ood_set_is_refused(tmp_path):
    with pytest.raises(DataError, match="no images|found none"):
        evaluate(make_standard(), suites=("ood",), ood={"empty": f"images:{tmp_path}"})


def test_synthetic_sets_are_what_they_say(generator):
    images = make_set(200).images()
    noise = SYNTHETIC["noise"](images, generator)
    counts = noise.flatten().bincount(minlength=256).double()
    assert float((counts / counts.mean() - 1).abs().max()) < 0.2
    blobs = SYNTHETIC["blobs"](images, generator)
    assert set(blobs.unique().tolist()) == {0, 255}
    assert float((blobs == 255).double().mean()) == pytest.approx(0.5, abs=0.05)
    same = (blobs[..., 1:] == blobs[..., :-1]).double().mean()
    assert float(same) > 0.75  # neighbours belong together
    smooth = (images.float() * 0.2 + 100).to(torch.uint8)
    scrambled = SYNTHETIC["scrambled"](smooth, generator)
    ours, theirs = (torch.fft.rfft2(x.double()).abs().mean(0) for x in (smooth, scrambled))
    assert torch.allclose(ours, theirs, rtol=0.1)
    assert float((smooth.double().mean((2, 3)) - scrambled.double().mean((2, 3))).abs().max()) < 1
    assert not torch.equal(smooth, scrambled)


@pytest.mark.parametrize("aside", [0, 150])
def test_images_to_fit_on_are_those_that_training_set_aside_if_it_did(aside, monkeypatch):
    recipe = load_recipe("shapes-small", {"data.validation": aside, "data.limit": None})
    model = Classifier(
        *("m", nn.Identity(), torch.device("cpu"), PlainView(32), None, None, {}, "w", 10),
        provenance={"recipe": asdict(recipe)},
    )
    test = load_sets("shapes").test
    if not aside:  # a training set of gigabytes would be read to look at none of it
        monkeypatch.setattr("killick.evaluation.evaluation_data.cut_sets", None)
    held = load_validation(None, model, test)
    if not aside:
        assert held is None
        return
    assert len(held) == aside
    assert torch.equal(held.rows, sets_of(recipe).validation.rows)


@pytest.mark.parametrize(
    ("row", "probable"),
    [
        ([0.2, 0.3, 0.5], True),
        ([0.2, 0.3, 0.6], False),
        ([-0.2, 0.7, 0.5], False),
        ([0.0, 1.0, 0.0], False),  # the answers of a toy
        ([0.0, 0.999997, 0.0], True),
        ([0.0, 0.9996, 0.0], False),  # logits of two classes come as near by chance
    ],
)
def test_probabilities_are_told_from_logits(row, probable):
    assert _are_probabilities(torch.tensor([[row, row]])) == probable
    assert not _are_probabilities(torch.tensor([[row, [2.0, 0.0, 1.0]]]))


def test_named_data_are_loaded_once():
    with read_once():
        whole = load_sets("digits")
        with read_once():
            assert load_sets("digits", test_only=True) is whole
        assert load_sets("digits") is whole
    assert load_sets("digits") is not whole


def test_evaluate_prints_nothing_and_pandas_reads_its_rows(capfd):
    pandas = pytest.importorskip("pandas")
    model = make_standard()
    images = torch.randint(256, (12, 3, 32, 32), dtype=torch.uint8)
    rows = killick.evaluate(model, (images, torch.arange(12) % 4), suites=("clean",))
    assert capfd.readouterr() == ("", "")
    table = pandas.DataFrame(rows).set_index("metric")
    assert table.loc["top1", "value"] == next(r["value"] for r in rows if r["metric"] == "top1")


def test_images_in_memory_of_the_right_size_are_evaluated_without_torchvision():
    """Its import takes longer than that of torch."""
    code = """
import sys, torch, killick
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
model = killick.standard(net, ((0, 0, 0), (1, 1, 1)), image_shape=(3, 8, 8))
images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
assert killick.evaluate(model, (images, torch.arange(4) % 3), ("clean",))
assert "torchvision" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
