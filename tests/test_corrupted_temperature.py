"""The benchmark of temperatures that were fitted under corruption: its numbers, and all of it."""

import csv
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import corrupted_temperature as benchmark  # noqa: E402

from killick.cli import main  # noqa: E402
from killick.metrics.smooth_calibration import smooth_ece  # noqa: E402
from killick.studies.trained_job import open_job  # noqa: E402


def made(n=400, blocks=4):
    """Logits that are right more seldom from block to block, and ever too sure."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (n,), generator=generator)
    found = []
    for block in range(blocks):
        noise = torch.randn(n, 5, generator=generator)
        found.append(3 * (noise + (1.5 - 0.3 * block) * torch.eye(5)[labels]))
    return found, labels


def loss(logits, labels, temperature):
    """By hand, in float64, over all images one by one."""
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        scaled = [value / temperature for value in row]
        top = max(scaled)
        total += top + math.log(sum(math.exp(v - top) for v in scaled)) - scaled[label]
    return total / len(labels)


def test_each_temperature_is_the_best_of_what_it_is_fitted_on():
    found, labels = made()
    fitted = benchmark.fit(found, labels)
    assert fitted["nothing"] == 1
    assert fitted["corrupted"] > fitted["clean"] > 1
    for on, blocks in (("clean", found[:1]), ("corrupted", found[1:])):
        logits, repeated = torch.cat(blocks), labels.repeat(len(blocks))
        best = loss(logits, repeated, fitted[on])
        for other in (0.99, 1.01):
            assert loss(logits, repeated, other * fitted[on]) > best


def test_numbers_are_means_over_corruptions_and_clean_ones_stand_alone():
    found, labels = made()
    measured = benchmark.measure(found, labels, 1.7)
    errors = []
    for logits in found:
        probs = (logits / 1.7).softmax(1)
        errors.append(smooth_ece(probs.amax(1), logits.argmax(1) == labels))
    assert measured["smooth ECE, clean"] == pytest.approx(errors[0])
    assert measured["smooth ECE, corrupted"] == pytest.approx(sum(errors[1:]) / 3)
    losses = [loss(logits, labels, 1.7) for logits in found]
    assert measured["NLL, clean"] == pytest.approx(losses[0], rel=1e-5)
    assert measured["NLL, corrupted"] == pytest.approx(sum(losses[1:]) / 3, rel=1e-5)


@pytest.mark.slow
def test_runs_get_lines_once(tmp_path, here, few_shapes):
    results, work = tmp_path / "found.csv", tmp_path / "work"
    words = ["compare", "--arm", "standard", "--arm", "ensemble:members=2"]
    words += ["--data.limit", "80", "--data.validation", "60", "--epochs", "1", "--suite", "clean"]
    words += ["--limit", "20", "--seeds", "3", "--output", str(work), "--quiet"]
    assert main(words) == 0
    runs = [str(path.parent) for path in sorted(work.glob("*/job.json"))]
    options = ["--corruptions", "fog,contrast", "--severities", "3", "--limit", "50"]
    for some in (runs[:-1], runs, runs):
        assert benchmark.main([*some, *options, "--results", str(results)]) == 0
    with open(results, newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["fitted_on"] for line in lines] == ["nothing", "clean", "corrupted"]
    (standard,) = work.glob("standard-seed3-*")
    assert {line["run"] for line in lines} == {standard.name}
    job = open_job(standard, "cpu")
    images, labels = job.load_test(50)
    expected = loss(job.model(images).detach(), labels, 1.0)
    assert float(lines[0]["NLL, clean"]) == pytest.approx(expected, abs=1e-4)
