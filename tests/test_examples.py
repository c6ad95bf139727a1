"""The examples for other libraries run, each with its real library."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs an example in an empty folder; its names."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return lambda name: runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_a_loop_like_that_of_timm_is_anchored_in_three_lines(run):
    names = run("timm_loop")
    assert names["loss"].isfinite()
    assert len(names["model"].references) == 5
    lines = (EXAMPLES / "timm_loop.py").read_text().splitlines()
    assert sum("  # 1" in line or "  # 2" in line or "  # 3" in line for line in lines) == 3


@pytest.mark.filterwarnings("ignore")  # Lightning's
def test_lightning_logs_calibration_and_ood_detection(run):
    found = run("lightning_mixin")["trainer"].callback_metrics
    assert {"val/cls/Acc", "val/cal/SmoothECE", "val/ood/AUROC"} <= set(found)


def test_torchmetrics_computes_all_three(run):
    assert len(run("torchmetrics_collection")["metrics"].compute()) == 3


def test_hugging_face_habits_give_the_same_logits(run, capsys):
    run("hugging_face")
    assert capsys.readouterr().out == "True\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_trainer_of_transformers_trains_with_masked_references(run):
    pytest.importorskip("accelerate")
    names = run("transformers_trainer")
    assert names["trainer"].evaluate()["eval_accuracy"] > 0.6  # chance is 0.25
    assert names["model"].masking.step == 28


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_a_user_of_timm_and_wandb_has_a_report_in_under_25_lines(run, tmp_path):
    pytest.importorskip("wandb")
    run("own_loop_wandb")

    assert (tmp_path / "tested" / "report.html").stat().st_size > 10_000
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    text = (EXAMPLES / "own_loop_wandb.py").read_text()
    lines = [line for line in text[text.index("import timm\n") :].splitlines() if line.strip()]
    assert len(lines) < 25
