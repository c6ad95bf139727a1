"""Exported files in an environment that has numpy and onnxruntime, and neither Killick nor torch."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import killick
from killick.deploy.exporter import export

pytestmark = pytest.mark.usefixtures("one_registry")

REPOSITORY = Path(__file__).parent.parent
SIDE = 64
NETWORKS = {
    "resnet": ("timm:resnet18", {}),
    "vit": ("timm:vit_tiny_patch16_224", {"img_size": SIDE, "depth": 2}),
    "swinv2": (
        "timm:swinv2_tiny_window8_256",
        {"img_size": SIDE, "depths": (1, 1, 1, 1), "embed_dim": 24, "window_size": 4},
    ),
    "convnext": ("timm:convnext_atto", {}),
}
# Whoever deploys writes no more than this.
SCRIPT = """
import sys
for name in ("torch", "killick", "onnx"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is here, so this shows nothing")
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
with np.load("shown.npz") as file:
    images, expected = file["images"], {name: file[name] for name in file.files if name != "images"}
for size in (1, 64):
    found = dict(zip(names, session.run(None, {"images": images[:size]})))
    for name, value in expected.items():
        assert found[name].shape == value[:size].shape, (size, name, found[name].shape)
        apart = np.abs(found[name].astype(float) - value[:size].astype(float)).max()
        assert apart < 1e-4 * max(1, np.abs(value).max()), (size, name, apart)
    print(size, sorted(found))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The Python of a fresh environment."""
    folder = tmp_path_factory.mktemp("environment")
    uv = shutil.which("uv") or shutil.which(REPOSITORY / ".tools" / "bin" / "uv")
    python = folder / "bin" / "python"
    wanted = ["--constraint", REPOSITORY / "constraints.txt", "numpy", "onnxruntime"]
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *wanted], check=True)
    return python


def make_model(name: str) -> killick.Anchored:
    torch.manual_seed(0)
    made, arguments = NETWORKS[name]
    net = killick.nets.create(made, num_classes=5, **arguments).eval()
    normalize = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    model = killick.anchor(net, normalize=normalize, example=torch.rand(2, 3, SIDE, SIDE)).eval()
    for stem in model.stems:  # as trained ones are: the halves differ
        weight = model.net.get_parameter(f"{stem.name}.weight").data
        weight.mul_(0.5 + torch.rand_like(weight))
    model.set_references(torch.randint(256, (2, 3, SIDE, SIDE)).to(torch.uint8))
    model.class_names = ("ant", "bee", "cat", "dog", "elk")
    return model


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "swinv2" else []) for name in NETWORKS],
)
def test_a_file_runs_where_neither_killick_nor_torch_is(name, elsewhere, tmp_path):
    model, k = make_model(name), 2 if name in ("resnet", "vit") else 1
    images = torch.randint(256, (64, 3, SIDE, SIDE)).to(torch.uint8)
    killick.fit_threshold(model, images, 0.5, k=k)
    exported = export(model, tmp_path / "out", k=k)
    said = killick.predict(model, images, "marginal", k)
    expected = {
        "logits": said.logits,
        "probabilities": said.probs,
        "energy": said.energy,
        "in_distribution": exported(images)["in_distribution"],
        **({"std": said.std} if k > 1 else {}),
    }
    assert set(exported.about.outputs) == set(expected)
    folder = exported.path.parent
    arrays = {key: value.numpy() for key, value in expected.items()}
    np.savez(folder / "shown.npz", images=images.numpy(), **arrays)
    (folder / "run.py").write_text(SCRIPT)
    for script in ("run.py", "check.py"):
        words = [elsewhere, "-I", script]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "give what they gave when it was exported" in done.stdout
