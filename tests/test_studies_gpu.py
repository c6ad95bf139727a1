"""Studies on a GPU: each measures there what it measures on a CPU."""

import csv

import pytest
import torch

from killick.studies import find_study, study_names
from killick.studies.study import make_plan
from killick.studies.study_runner import run_study

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("here")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("name", study_names())
def test_a_study_runs_on_a_gpu(name, tmp_path, monkeypatch):
    monkeypatch.setattr("grids.DEVICE", "cuda")
    plan = make_plan(find_study(name), "smoke", settings={"execution": "eager"})
    ran = run_study(plan, tmp_path, device="cuda", quiet=True)
    assert ran.failed == []
    assert ran.report is not None
    with open(tmp_path / "study.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["arm"] for row in rows} >= {arm.name for arm in plan.arms}
    assert all(float(row["value"]) == float(row["value"]) for row in rows)
