"""What is kept of answers, and what is drawn for a block."""

import itertools

import pytest
import torch

from killick.evaluation.image_blocks import block_generator
from killick.evaluation.outputs import collect_outputs, summarize_logits
from killick.runtime.processes import Processes

ALONE = Processes(0, 1, torch.device("cpu"))


def test_every_block_of_every_corruption_and_severity_has_its_own_numbers():
    places = itertools.product((0, 1), ("fog", "snow"), (1, 2), (0, 1, 2))
    drawn = [
        tuple(torch.rand(3, generator=block_generator(*place, torch.device("cpu"))).tolist())
        for place in places
    ]
    assert len(set(drawn)) == 24
    again = block_generator(0, "fog", 1, 0, torch.device("cpu"))
    assert tuple(torch.rand(3, generator=again).tolist()) == drawn[0]


def test_outcomes_lie_in_the_order_of_the_set_whatever_the_order_they_came_in():
    logits = torch.randn(2, 6, 4)
    labels = torch.arange(6) % 4
    numbers = torch.tensor([3, 4, 5, 0, 1, 2])
    parts = [summarize_logits(logits[:, part], labels[part]) for part in numbers.split(3)]
    outcomes = collect_outputs(parts, numbers, ALONE).values
    for inference, values in summarize_logits(logits, labels).items():
        for name, value in values.items():
            assert torch.equal(outcomes[inference][name], value), name


def test_every_value_is_that_of_a_loop():
    logits = torch.randn(3, 50, 12, dtype=torch.float64) * 3
    labels = torch.arange(50) % 12
    found = summarize_logits(logits, labels, {"single": 2.0, "marginal": 3.0})
    single, marginal = found["single"], found["marginal"]
    for member, image in itertools.product(range(3), range(50)):
        row, label = logits[member, image], int(labels[image])
        exponentials = [float(value.exp()) for value in row]
        probs = [value / sum(exponentials) for value in exponentials]
        expected = {
            "energy": -float(torch.tensor(sum(exponentials)).log()),
            "max_logit": -max(row.tolist()),
            "max_softmax": -max(probs),
            "confidence": max(probs),
            "entropy": -sum(p * float(torch.tensor(p).log()) for p in probs),
            "nll": -float(torch.tensor(probs[label]).log()),
            "brier": sum((p - (place == label)) ** 2 for place, p in enumerate(probs)),
            "top1": float(max(probs) == probs[label]),
            "top5": float(sum(p > probs[label] for p in probs) < 5),
        }
        for name, value in expected.items():
            assert float(single[name][member, image]) == pytest.approx(value, abs=1e-5), name
        scaled = (row / 2).softmax(0)
        assert float(single["nll@temperature"][member, image]) == pytest.approx(
            -float(scaled[label].log())
        )
    probs = logits.softmax(-1)
    assert torch.allclose(marginal["spread"][0], probs.std(0).mean(-1))
    mean = (logits.mean(0) / 3).softmax(-1)
    assert torch.allclose(marginal["confidence@temperature"][0], mean.amax(-1))


def test_of_tied_classes_the_lower_index_ranks_higher():
    logits = torch.tensor([[[5.0, 4, 3, 2, 1, 1, 0]]])
    for label, hit in ((3, 1.0), (4, 1.0), (5, 0.0), (6, 0.0)):
        single = summarize_logits(logits, torch.tensor([label]))["single"]
        assert float(single["top5"]) == hit
