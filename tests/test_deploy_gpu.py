"""Deployed models on an accelerator: exported .pt2 files and labels of images, as on the CPU."""

import subprocess
import sys

import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import killick
from killick.data.synthetic_ood import make_blobs
from killick.deploy.exporter import export
from killick.labelling import label
from killick.storage.exported_file import open_export

pytestmark = pytest.mark.gpu
NORMALISE = ((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = killick.nets.create("killick:resnet_small", num_classes=4)
    model = killick.anchor(net, normalize=NORMALISE, example=torch.rand(2, 3, 32, 32)).eval()
    model.set_references(torch.randint(256, (3, 3, 32, 32)).to(torch.uint8))
    return model


def images(n: int) -> torch.Tensor:
    blank = torch.zeros(n, 3, 32, 32, dtype=torch.uint8)
    return make_blobs(blank, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_torch_file_says_the_same_on_both_devices(model, tmp_path, precision, k):
    x = images(64)
    killick.fit_threshold(model, x, 0.5, k=k)
    exported = export(model, tmp_path / "out", format="torch", precision=precision, k=k)
    onward = open_export(exported.path, device="cuda", trust=True)
    here, there = exported(x), onward(x)
    allowed = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}[precision]
    assert here.keys() == there.keys()
    for name in ("logits", "probabilities", "energy"):
        assert_close(there[name], here[name], atol=allowed, rtol=allowed)


def test_a_model_on_the_device_is_exported_all_the_same(model, tmp_path):
    before = export(model, tmp_path / "cpu", format="torch")
    after = export(model.cuda(), tmp_path / "cuda", format="torch")
    assert next(model.parameters()).is_cuda
    model.cpu()
    x = images(8)
    assert_close(after(x)["logits"], before(x)["logits"])


def test_images_get_the_same_labels_on_both_devices(model, tmp_path):
    paths = []
    for number, image in enumerate(images(20)):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(paths[-1])
    killick.save(model, tmp_path / "model")
    found = {
        device: list(label(tmp_path / "model", paths, device=device, references=3, batch=8))
        for device in ("cpu", "cuda")
    }
    assert len(found["cuda"]) == 20
    for here, there in zip(found["cpu"], found["cuda"], strict=True):
        assert here.label == there.label
        assert here.confidence == pytest.approx(there.confidence, abs=1e-3)
        assert here.std == pytest.approx(there.std, abs=1e-3)


def test_the_check_passes_on_the_device(model, tmp_path):
    exported = export(model, tmp_path / "out", format="torch", k=3)
    words = [sys.executable, "check.py", "--device", "cuda"]
    done = subprocess.run(words, cwd=exported.path.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cuda" in done.stdout
