"""Loggers of logging services, each with its real library, and callbacks."""

import csv
import json
import struct
import sys

import pytest
from runs import small, train_and_stop

from killick.cli import main
from killick.errors import InstallError, OptionError
from killick.results.run_folder import read_metrics
from killick.training import load_recipe, train
from killick.training.callbacks import Callback
from killick.training.loggers import (
    LOGGERS,
    Logger,
    read_run_id,
    summarize_rows,
    write_run_id,
)

SERVICES = ("mlflow", "tensorboard", "trackio", "wandb")


def logged(folder, *names, **changes):
    return small(folder, loggers=list(names), epochs=2, data__validation=4, **changes)


def expected(folder, name="train/loss") -> dict[int, float]:
    """The values of a metric by step, from metrics.jsonl."""
    kind, key = name.split("/")
    entries = read_metrics(folder / "metrics.jsonl")
    return {e["step"]: e[key] for e in entries if e["kind"] == kind}


def test_the_option_takes_names_with_commas():
    assert load_recipe("shapes-small").loggers == []
    assert {"csv", *SERVICES} <= set(LOGGERS.names())


def test_csv_has_what_the_lines_of_json_have_also_after_a_resume(
    image_folder, tmp_path, monkeypatch
):
    train_and_stop(logged(image_folder, "csv"), tmp_path / "run", 4, monkeypatch)
    train(None, tmp_path / "run", resume=True, quiet=True)
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {int(row["step"]): float(row["loss"]) for row in rows if row["kind"] == "train"}
    assert found == expected(tmp_path / "run")
    assert sum(row["kind"] == "validation" for row in rows) == 2


def test_tensorboard_has_every_scalar_the_recipe_and_the_test_score(image_folder, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = train(logged(image_folder, "tensorboard"), tmp_path / "run", quiet=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = {each.step: each.value for each in events.Scalars("train/loss")}
    assert found == pytest.approx(expected(tmp_path / "run"))
    score = {row["metric"]: row["value"] for row in outcome.rows}["top1"]
    assert events.Scalars("test/clean/top1")[0].value == pytest.approx(score)
    assert "recipe/text_summary" in events.Tags()["tensors"]


def test_an_unknown_logger_or_a_missing_library_is_told_before_anything_is_written(
    image_folder, tmp_path, monkeypatch
):
    with pytest.raises(OptionError, match="'tensorbord'.*did you mean 'tensorboard'"):
        train(logged(image_folder, "tensorbord"), tmp_path / "none", quiet=True)
    for name in SERVICES:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InstallError, match=rf"\.\[{name}\]"):
            train(logged(image_folder, name), tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()


class Failing(Logger):
    """A service that goes away."""

    def log(self, kind, step, values):
        if step == 3:
            raise ConnectionError("gone")


class Refusing(Logger):
    """A service that cannot be reached."""

    def __init__(self, folder, recipe, step):
        raise ConnectionError("nobody there")


def test_a_service_that_fails_is_left_out_and_training_goes_on(image_folder, tmp_path, capfd):
    LOGGERS.register("failing", Failing)
    LOGGERS.register("refusing", Refusing)
    try:
        outcome = train(logged(image_folder, "failing", "csv"), tmp_path / "run")
        assert outcome.finished
        text = "".join(capfd.readouterr())
        assert text.count("the logger failing failed") == 1
        assert (tmp_path / "run" / "metrics.csv").exists()
        with pytest.raises(OptionError, match="the logger refusing cannot start: nobody there"):
            train(logged(image_folder, "refusing"), tmp_path / "other", quiet=True)
    finally:
        LOGGERS.remove("failing")
        LOGGERS.remove("refusing")


@pytest.mark.parametrize("text", ["", "[]", "[1]", '{"wandb": 3}', '{"wandb": "../a"}', "{" * 9])
def test_a_damaged_id_is_no_id(tmp_path, text):
    (tmp_path / "loggers.json").write_text(text)
    assert read_run_id(tmp_path, "wandb") is None
    write_run_id(tmp_path, "wandb", "abc")
    assert read_run_id(tmp_path, "wandb") == "abc"


def test_a_summary_of_rows_has_whole_sets_and_means_alone(image_folder, tmp_path):
    import killick

    train(logged(image_folder), tmp_path / "run", quiet=True)
    rows = killick.evaluate(
        tmp_path / "run", severities=(3, 5), corruptions=("fog", "brightness"), quiet=True
    )
    found = summarize_rows(rows)
    (clean,) = (
        row["value"]
        for row in rows
        if (row["suite"], row["metric"], row["inference"]) == ("clean", "top1", "single")
    )
    assert found["clean/top1"] == clean
    assert found["ood/noise/auroc"] <= 1
    assert not any("fog" in name for name in found)


# Callbacks ----------------------------------------------------------------------------------------


class Recorder(Callback):
    """Keeps what it is called with."""

    def __init__(self):
        self.steps, self.epochs, self.ends = [], [], []

    def on_step(self, progress):
        self.steps.append((progress.step, progress.values["train/loss"]))

    def on_epoch(self, progress):
        self.epochs.append((progress.epoch, progress.values["validation/accuracy"]))
        assert not progress.model.net.training or progress.model.training

    def on_end(self, outcome):
        self.ends.append(outcome.finished)


def test_callbacks_are_called_after_steps_epochs_and_at_the_end(
    image_folder, tmp_path, monkeypatch
):
    recorder, folder = Recorder(), tmp_path / "run"
    train_and_stop(logged(image_folder), folder, 4, monkeypatch, callbacks=[recorder])
    assert recorder.ends == [False]
    train(None, folder, resume=True, quiet=True, callbacks=[recorder])
    assert recorder.ends == [False, True]
    assert dict(recorder.steps) == expected(folder)
    assert len(recorder.steps) == 6
    assert recorder.epochs == [
        (step / 3, value) for step, value in expected(folder, "validation/accuracy").items()
    ]


def test_callbacks_change_no_bit(image_folder, tmp_path):
    from runs import assert_same, weights_of

    for name, callbacks in (("with", [Recorder()]), ("without", [])):
        train(logged(image_folder), tmp_path / name, quiet=True, callbacks=callbacks)
    assert_same(weights_of(tmp_path / "with"), weights_of(tmp_path / "without"))


# Services -----------------------------------------------------------------------------------------


def run_all(name, image_folder, folder, monkeypatch, capfd):
    """Train, interrupted once, evaluate and report; the expected losses by step."""
    train_and_stop(logged(image_folder, name), folder, 4, monkeypatch)
    first = json.loads((folder / "loggers.json").read_text())
    assert train(None, folder, resume=True, quiet=True).finished
    words = ["--suite", "clean", "--quiet", "--logger", name]
    assert main(["evaluate", str(folder), *words]) == 0
    assert main(["report", str(folder), "--quiet", "--logger", name]) == 0
    assert json.loads((folder / "loggers.json").read_text()) == first
    assert "failed" not in capfd.readouterr().err  # a logger that fails is left out
    return expected(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_mlflow_keeps_one_run_with_metrics_recipe_rows_and_report(
    image_folder, tmp_path, monkeypatch, capfd
):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        losses = run_all("mlflow", image_folder, tmp_path / "run", monkeypatch, capfd)
        client = mlflow.MlflowClient()
        experiment = client.get_experiment_by_name("killick")
        (run,) = client.search_runs([experiment.experiment_id])
        found = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "train/loss")}
        assert found == losses
        assert run.data.params["optimizer.lr"] == "0.02"
        assert run.data.metrics["test/clean/top1"] <= 1
        assert run.info.status == "FINISHED"
        files = {each.path for each in client.list_artifacts(run.info.run_id)}
        assert files == {"recipe.yaml", "rows.csv", "report.html"}
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_wandb_offline_writes_metrics_recipe_rows_and_report_of_one_run(
    image_folder, tmp_path, monkeypatch, capfd
):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()  # it reads the environment once, which an earlier test may have made it do
    losses = run_all("wandb", image_folder, tmp_path / "run", monkeypatch, capfd)
    records = read_wandb(tmp_path / "run")
    history = [json_items(each.history.item) for each in records if each.HasField("history")]
    found = {each["step"]: each["train/loss"] for each in history if "train/loss" in each}
    assert found == losses
    assert any("test/clean/top1" in each for each in history)
    (run_id,) = {each.run.run_id for each in records if each.HasField("run")}
    assert run_id == read_run_id(tmp_path / "run", "wandb")
    configs = [json_items(each.run.config.update) for each in records if each.HasField("run")]
    assert configs[0]["optimizer"]["lr"] == 0.02
    artifacts = {r.request.log_artifact.artifact.name for r in records if r.HasField("request")}
    artifacts |= {each.artifact.name for each in records if each.HasField("artifact")}
    assert {f"rows-{run_id}", f"report-{run_id}"} <= artifacts


def json_items(items) -> dict:
    return {each.key or each.nested_key[0]: json.loads(each.value_json) for each in items}


def read_wandb(folder) -> list:
    """All records of the offline runs in a run folder: LevelDB's log format, after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    records, block = [], 32768
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        data, place, waiting = path.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if block - place % block < 7:  # padding
                place += block - place % block
                continue
            length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
            waiting += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # whole, or the last part
                records.append(Record.FromString(waiting))
                waiting = b""
    return records


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_trackio_keeps_one_run_with_metrics_recipe_rows_and_report(
    image_folder, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    losses = run_all("trackio", image_folder, tmp_path / "run", monkeypatch, capfd)
    (run,) = trackio.Api().runs("killick")
    assert run.name == read_run_id(tmp_path / "run", "trackio")
    logs = trackio.SQLiteStorage.get_logs("killick", run.name)
    found = {each["step"]: each["train/loss"] for each in logs if "train/loss" in each}
    assert found == losses
    assert any("test/clean/top1" in each for each in logs)
    assert run.config["optimizer"]["lr"] == 0.02
