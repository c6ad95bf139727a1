"""Small models to publish, and a stand-in for the hub's client."""

import shutil
import sys
import types

import huggingface_hub
import torch
from conftest import stir

import killick
from killick.results.rows import make_row
from killick.storage.weights import digest_weights

HALF = ((0.5,) * 3, (0.25,) * 3)


def anchored() -> killick.Anchored:
    net = killick.nets.create("killick:resnet_small", num_classes=4)
    model = stir(killick.anchor(net, normalize=HALF))
    references = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8)
    return model.set_references(references, policy="random, seed 0").eval()


def plain(classes: int = 4) -> killick.Standard:
    net = stir(killick.nets.create("killick:resnet_small", num_classes=classes))
    return killick.standard(net, normalize=HALF, image_shape=(3, 8, 8)).eval()


def rows_for(model, /, **changes):
    """Clean accuracy and calibration of a model, as an evaluation would have it."""
    known = {
        "model": "mine",
        "data": "shapes",
        "suite": "clean",
        "set": "shapes",
        "view": "8 px",
        "evaluation_seed": 0,
        "inference": "single",
        "k": 1,
        "precision": "float32",
        "count": 50,
        "weights": digest_weights(model),
        "std": 0.02,
        "members": "0.5 0.54",
        **changes,
    }
    values = {"top1": 0.5, "smooth_ece": 0.125}
    return [make_row(**{**known, "metric": m, "value": v}) for m, v in values.items()]


def all_bytes(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Client:
    """A stand-in for `huggingface_hub`: one model, from a folder; all requests are kept."""

    def __init__(self, monkeypatch, tmp_path, folder=None, problem=None):
        self.requests, self.made, self.sent = [], [], []
        self.folder, self.problem, self.cache = folder, problem, tmp_path / "cache"
        module = types.ModuleType("huggingface_hub")
        module.snapshot_download, module.HfApi = self.snapshot_download, lambda library_name: self
        module.ModelCardData = huggingface_hub.ModelCardData
        module.EvalResult = huggingface_hub.EvalResult
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        monkeypatch.chdir(tmp_path)

    def snapshot_download(self, repo, *, revision, allow_patterns, library_name):
        self.requests.append((repo, revision, tuple(allow_patterns)))
        if self.problem is not None:
            raise self.problem
        self.cache.mkdir(exist_ok=True)
        for name in allow_patterns:
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, self.cache)
        return str(self.cache)

    def create_repo(self, repo, *, repo_type, private, exist_ok):
        self.made.append((repo, repo_type, private, exist_ok))
        if self.problem is not None:
            raise self.problem

    def upload_folder(self, *, repo_id, repo_type, folder_path, **options):
        self.sent.append((repo_id, repo_type, folder_path, options))
        return f"https://hub/{repo_id}"


def make_problem(*names: str) -> Exception:
    """An error of the client's, known by its name and those it is a kind of."""
    kind: type = Exception
    for name in reversed(names):
        kind = type(name, (kind,), {})
    return kind("a long\nstory.")
