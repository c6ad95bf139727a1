"""Caches of pretrained weights, filled with tiny networks, as the hub and torch lay them out."""

import json
from pathlib import Path

import huggingface_hub.constants
import safetensors.torch
import torch

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def use_caches(monkeypatch, folder: Path) -> Path:
    """Let the caches of the hub and of torch be in `folder`, and the network be out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))

    def refuse(url, *args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    return folder


def put_on_hub(cache: Path, repo: str) -> Path:
    """The folder for the files of a hub model, as a download leaves it."""
    top = cache / "hub" / f"models--{repo.replace('/', '--')}"
    (top / "refs").mkdir(parents=True)
    (top / "refs" / "main").write_text(COMMIT)
    (top / "snapshots" / COMMIT).mkdir(parents=True)
    return top / "snapshots" / COMMIT


def put_weights(folder: Path, net: torch.nn.Module) -> Path:
    path = folder / "model.safetensors"
    safetensors.torch.save_file({k: v.contiguous() for k, v in net.state_dict().items()}, path)
    return path


def put_json(folder: Path, name: str, **values) -> None:
    (folder / name).write_text(json.dumps(values))


def put_url(cache: Path, url: str, net: torch.nn.Module) -> Path:
    path = cache / "torch" / "hub" / "checkpoints" / url.rpartition("/")[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), path)
    return path
