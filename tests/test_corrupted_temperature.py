"""The benchmark of temperatures that were fitted under corruption: its numbers, and all of it."""

import csv
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import corrupted_temperature as benchmark  # noqa: E402

from killick.metrics.smooth_calibration import smooth_ece  # noqa: E402


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
    judged = benchmark.judge(found, labels, 1.7)
    errors = []
    for logits in found:
        probs = (logits / 1.7).softmax(1)
        errors.append(smooth_ece(probs.amax(1), logits.argmax(1) == labels))
    assert judged["smooth ECE, clean"] == pytest.approx(errors[0])
    assert judged["smooth ECE, corrupted"] == pytest.approx(sum(errors[1:]) / 3)
    losses = [loss(logits, labels, 1.7) for logits in found]
    assert judged["NLL, clean"] == pytest.approx(losses[0], rel=1e-5)
    assert judged["NLL, corrupted"] == pytest.approx(sum(losses[1:]) / 3, rel=1e-5)


@pytest.mark.slow
def test_all_of_it_at_small_size(tmp_path, here):
    results = tmp_path / "found.csv"
    words = ["--data", "shapes", "--recipe", "shapes-small", "--epochs", "2", "--aside", "100"]
    words += ["--seeds", "3", "--corruptions", "fog,contrast", "--limit", "50", "--device", "cpu"]
    words += ["--work", str(tmp_path / "work"), "--results", str(results)]
    assert benchmark.main(words) == 0
    with open(results, newline="") as file:
        lines = list(csv.DictReader(file))
    arms = ("finetuned", "more-masked-running", "standard")
    on = ("nothing", "clean", "corrupted")
    assert [(r["arm"], r["fitted_on"]) for r in lines] == [(a, o) for a in arms for o in on]
    assert {r["seed"] for r in lines} == {"3"}
    for first, second, third in zip(*[iter(lines)] * 3, strict=True):
        assert float(first["temperature"]) == 1
        assert float(second["NLL, clean"]) <= float(first["NLL, clean"]) + 0.3
        assert float(third["temperature"]) > 0
    before = results.read_bytes()
    # Nothing is trained again, and the numbers are the same however many are asked at once.
    assert benchmark.main([*words, "--jobs", "2"]) == 0
    assert results.read_bytes() == before
