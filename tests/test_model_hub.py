"""Models by their name on the hub, with a stand-in for its client."""

import json
import sys

import huggingface_hub.errors
import pytest
from hub_stand_in import Client, anchored, make_problem, plain
from runs import small

import killick
from killick.cli import main
from killick.errors import InstallError, OptionError, StorageError
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs
from killick.results.rows import read_rows
from killick.runtime import hub
from killick.storage.weights import digest_weights
from killick.training import train


@pytest.mark.parametrize("layout", ["published", "saved"])
def test_only_the_files_of_the_model_are_fetched(tmp_path, monkeypatch, layout):
    model = anchored()
    folder = tmp_path / "there"
    killick.save(model, folder) if layout == "saved" else killick.publish(model, folder)
    (folder / "evil.pkl").write_bytes(b"x")
    client = Client(monkeypatch, tmp_path, folder)
    assert digest_weights(killick.load("me/mine")) == digest_weights(model)
    config = json.loads((folder / "config.json").read_text())
    files = ("config.json", config["weights"], config["examples"])
    assert client.requests == [("me/mine", None, ("config.json",)), ("me/mine", None, files)]
    assert {path.name for path in client.cache.iterdir()} == set(files)


def test_a_revision_is_part_of_the_name_or_an_argument(tmp_path, monkeypatch):
    folder = killick.publish(plain(), tmp_path / "there").folder
    client = Client(monkeypatch, tmp_path, folder)
    killick.load("me/mine@refs/pr/1")
    killick.load("me/mine", revision="v1")
    killick.load("me/mine@v1", revision="v1")
    assert {each[:2] for each in client.requests} == {("me/mine", "refs/pr/1"), ("me/mine", "v1")}
    with pytest.raises(OptionError, match="revision="):
        killick.load(folder, revision="v1")


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    client = Client(monkeypatch, tmp_path)
    killick.save(plain(), tmp_path / "me" / "mine")
    killick.load("me/mine")
    assert client.requests == []


def test_a_slip_in_a_path_is_no_name_on_the_hub_unless_a_revision_is_given(tmp_path, monkeypatch):
    client = Client(monkeypatch, tmp_path, killick.publish(plain(), tmp_path / "there").folder)
    (tmp_path / "runs").mkdir()
    with pytest.raises(StorageError, match="runs/mine@main"):
        killick.load("runs/mine")
    assert client.requests == []
    killick.load("runs/mine@main")
    assert client.requests[0][:2] == ("runs/mine", "main")


@pytest.mark.parametrize("name", ["mine", "/a/b", "./a/b", "../a", "a/b/c", "a/", "a/b.", "~/x"])
def test_other_names_are_not_looked_up_on_the_hub(tmp_path, monkeypatch, name):
    client = Client(monkeypatch, tmp_path)
    with pytest.raises(StorageError, match="no such folder"):
        killick.load(name)
    assert client.requests == []


@pytest.mark.parametrize(
    "names",
    [
        ("RepositoryNotFoundError", "HfHubHTTPError"),
        ("GatedRepoError", "RepositoryNotFoundError"),
        ("OfflineModeIsEnabled",),
        ("SomethingElse",),
    ],
)
def test_errors_of_the_client_are_explained_in_a_line(tmp_path, monkeypatch, names):
    Client(monkeypatch, tmp_path, problem=make_problem(*names))
    with pytest.raises(StorageError) as found:
        killick.load("me/mine")
    assert hub._REASONS.get(names[0], "a long story") in str(found.value)
    assert "\n" not in str(found.value)


def test_the_errors_are_those_of_the_real_client():
    for name in hub._REASONS:
        assert issubclass(getattr(huggingface_hub.errors, name), Exception)


def test_the_real_client_without_a_connection_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(StorageError, match="HF_HUB_OFFLINE"):
        killick.load("me/mine")


def test_without_the_client_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InstallError, match=r"'\.\[hub\]'"):
        killick.load("me/mine")


@pytest.mark.parametrize("config", [None, '{"model_type": "bert"}', "{"])
def test_of_other_kinds_of_models_only_the_config_is_fetched(tmp_path, monkeypatch, config):
    (tmp_path / "there").mkdir()
    if config is not None:
        (tmp_path / "there" / "config.json").write_text(config)
    client = Client(monkeypatch, tmp_path, tmp_path / "there")
    with pytest.raises(StorageError, match="config.json"):
        killick.load("me/mine")
    assert client.requests == [("me/mine", None, ("config.json",))]


def test_a_model_on_the_hub_is_evaluated_and_trained_on_by_its_name(
    tmp_path, monkeypatch, image_folder
):
    train(small(image_folder, epochs=1), tmp_path / "run", quiet=True)
    client = Client(monkeypatch, tmp_path, killick.publish(tmp_path / "run", tmp_path / "x").folder)
    rows = killick.evaluate("me/mine", f"imagefolder:{image_folder}", ("clean",), quiet=True)
    assert {row["model"] for row in rows} == {"mine"}
    words = ["train", "--from", "me/mine@v1", "--epochs", "1", "--quiet", "--output", "tuned"]
    words += ["--data", f"imagefolder:{image_folder}", "--data.validation", "0", "--batch", "4"]
    size = killick.load(tmp_path / "run").image_shape[-1]
    assert main([*words, "--data.size", str(size)]) == 0
    assert client.requests[-1][:2] == ("me/mine", "v1")
    assert {row["start"] for row in read_rows(tmp_path / "tuned")} == {str(client.cache)}
    arms = parse_arms(["mine:protocol=masked,target=label,from=me/mine@v1"])
    (job,) = make_jobs("finetune", {}, arms, (0,), tmp_path / "grid", {})
    assert job.phases[0].start == str(client.cache)
