"""Models in the habits of Hugging Face: saved, loaded and pushed by methods."""

import os
import subprocess
import sys

import pytest
import torch
from hub_stand_in import Client, anchored, plain

import killick
from killick.errors import OptionError, StorageError
from killick.storage.weights import digest_weights

OFFLINE = """
import sys, killick
from killick.storage.weights import digest_weights
print(digest_weights(killick.Anchored.from_pretrained("me/mine")))
"""


@pytest.mark.parametrize("make", [anchored, plain])
def test_a_saved_model_comes_back_as_by_save_and_load(tmp_path, make):
    model = make()
    assert model.save_pretrained(tmp_path / "model") is None
    x = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    for again in (
        type(model).from_pretrained(tmp_path / "model"),
        killick.load(tmp_path / "model"),
    ):
        assert type(again) is type(model)
        assert torch.equal(again(x), model(x))


def test_a_model_of_the_other_kind_is_refused(tmp_path):
    plain().save_pretrained(tmp_path)
    with pytest.raises(StorageError, match="Standard, not Anchored"):
        killick.Anchored.from_pretrained(tmp_path)


def test_the_real_client_finds_a_model_in_its_cache_without_the_network(tmp_path):
    model = anchored()
    commit = "a" * 40
    place = tmp_path / "hub" / "models--me--mine"
    model.save_pretrained(place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == digest_weights(model), done.stderr


def test_pushing_publishes_with_a_card(tmp_path, monkeypatch):
    client = Client(monkeypatch, tmp_path)
    sent = {}

    def upload_folder(*, folder_path, repo_id, **options):
        sent.update({name: repo_id for name in os.listdir(folder_path)})
        return f"https://hub/{repo_id}"

    client.upload_folder = upload_folder
    model = anchored()
    assert model.push_to_hub("me/mine", private=True) == "https://hub/me/mine"
    assert {"README.md", "config.json"} <= set(sent)
    assert client.made == [("me/mine", "model", True, True)]
    found = model.save_pretrained(tmp_path / "model", repo_id="me/other", push_to_hub=True)
    assert found == "https://hub/me/other"
    with pytest.raises(OptionError, match="owner/name"):
        model.push_to_hub("mine")
