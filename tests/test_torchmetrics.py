"""Metrics for torchmetrics against `killick.metrics`: in collections, over batches and processes."""

import json
import math
import pickle
import subprocess
import sys

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from killick import metrics
from killick.errors import DataError, DtypeError, ShapeError
from killick.integrations.torchmetrics import EnergyAUROC, SmoothCalibrationError

# Two processes with batches of different sizes; in the second case one of them has none.
SCRIPT = """
import json, sys, torch, torch.distributed as dist
from torchmetrics import MetricCollection
from killick.integrations.torchmetrics import EnergyAUROC, SmoothCalibrationError

torch.set_num_threads(1)
dist.init_process_group("gloo")
logits, labels = torch.load(sys.argv[1])
found = []
for cut in (30, 100):
    part = slice(0, cut) if dist.get_rank() == 0 else slice(cut, None)
    both = MetricCollection([SmoothCalibrationError(), EnergyAUROC()])
    for x, y in zip(logits[part].split(17), labels[part].split(17)):
        both.update(x, y)
    found.append({name: float(value) for name, value in both.compute().items()})
with open(f"{sys.argv[2]}/{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


def samples(n: int = 100, ood: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, 5, generator=generator)
    labels = torch.randint(-1 if ood else 0, 5, (n,), generator=generator)
    logits[labels < 0] -= 0.5
    return logits, labels


def expected(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    known = labels >= 0
    confidence, predicted = logits[known].softmax(1).max(1)
    scores = metrics.energy(logits)
    return {
        "SmoothCalibrationError": metrics.smooth_ece(confidence, predicted == labels[known]),
        "EnergyAUROC": metrics.auroc(scores[known], scores[~known]),
    }


@pytest.mark.parametrize("size", [1, 7, 100])
def test_values_are_those_of_the_whole_set_whatever_the_batches(size):
    logits, labels = samples()
    both = MetricCollection([SmoothCalibrationError(), EnergyAUROC()])
    for _ in range(2):  # again after a reset
        for x, y in zip(logits.split(size), labels.split(size), strict=True):
            both(x, y)
        found = {name: float(value) for name, value in both.compute().items()}
        assert found == pytest.approx(expected(logits, labels), abs=1e-6)
        both.reset()


def test_they_fit_into_a_collection_with_other_metrics():
    logits, labels = samples(ood=False)
    accuracy = MulticlassAccuracy(num_classes=5, average="micro")
    several = MetricCollection([accuracy, SmoothCalibrationError(bandwidth=0.1)], prefix="val/")
    several.update(logits, labels)
    found = pickle.loads(pickle.dumps(several.clone())).compute()
    assert float(found["val/MulticlassAccuracy"]) == pytest.approx(metrics.top_k(logits, labels))
    confidence, predicted = logits.softmax(1).max(1)
    value = metrics.smooth_ece(confidence, predicted == labels, 0.1)
    assert float(found["val/SmoothCalibrationError"]) == pytest.approx(value, abs=1e-6)


def test_two_processes_find_the_values_of_one(tmp_path):
    torch.save(samples(), tmp_path / "samples.pt")
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [str(tmp_path / "script.py"), str(tmp_path / "samples.pt"), str(tmp_path)]
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        for found in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert found == pytest.approx(expected(*samples()), abs=1e-6)


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_without_images_of_a_kind_the_value_is_nan():
    logits, labels = samples(ood=False)
    for metric, target in ((EnergyAUROC(), labels), (SmoothCalibrationError(), labels * 0 - 1)):
        assert math.isnan(metric.compute())
        metric.reset()
        metric.update(logits, target)
        assert math.isnan(metric.compute())


@pytest.mark.parametrize("metric", [EnergyAUROC, SmoothCalibrationError])
def test_wrong_inputs_are_refused(metric):
    logits, labels = samples()
    with pytest.raises(ShapeError):
        metric().update(logits, labels[:-1])
    with pytest.raises(DtypeError):
        metric().update(logits, labels.float())
    with pytest.raises(DataError):
        metric().update(logits * math.nan, labels)
