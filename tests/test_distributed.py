"""Several processes train as one."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import losses_of, small

import killick
from killick.results.run_folder import read_metrics
from killick.training import Recipe, train

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from killick.training import make_recipe, train

torch.set_num_threads(1)
for name, values in json.loads(Path(sys.argv[1]).read_text()).items():
    outcome = train(make_recipe(values), Path(sys.argv[2]) / name, quiet=True)
    torch.save(outcome.model.state_dict(), f"{sys.argv[2]}/{name}-{os.environ['RANK']}.pt")
"""

LATE = """
import torch
from killick.training import run_state

compile_it = torch.compile
def compile_quickly(what, **options):
    print("compiled", flush=True)
    return compile_it(what, **options, backend="aot_eager")
torch.compile = compile_quickly
run_state.choose_arithmetic = lambda *_: ("float32", "uncaptured", None)
run_state.COMPILE_SECONDS = 0.0
"""

NOISY = (
    *("mixout", "co_teaching", "dropblock", "spatial_dropout", "stochastic_depth", "layer_drop"),
    *("multi_sample_dropout", "nested_dropout", "dropout"),
)


def recipes(image_folder: Path, extractor: Path = Path("net")) -> dict[str, Recipe]:
    vit = {
        "network__name": "timm:vit_tiny_patch16_224",  # no BatchNorm
        "network__arguments": {"img_size": 16, "patch_size": 4, "depth": 2},
        "protocol__reference_set": 8,
        "data__validation": 5,  # odd: one process has more
        "data__limit": 8,
        "data__workers": 0,
        "epochs": 5,
        "batch": 8,
    }
    return {
        "streamed": small(image_folder, **vit, data__resident="never", augment__policy="augmix"),
        "policy": small(image_folder, **vit, augment__policy="trivialaugment"),
        "mixed": small(image_folder, **vit, augment__mixup=0.3, accumulate=2, average__decay=0.9),
        "regularized": small(
            image_folder,
            **vit,
            accumulate=2,
            components=[
                {"name": name}
                for name in (
                    "ps_kd",
                    "elr",
                    "sam",
                    "gridmask",
                    "acls",
                    "spectral_decoupling",
                    "swa",
                    "references_per_image",
                )
            ],
        ),
        "penalized": small(
            image_folder,
            **vit,
            components=[
                {"name": name} for name in ("gradient_penalty", "confidence_penalty", "focal_loss")
            ],
        ),
        "pasted": small(
            image_folder,
            **vit,
            components=[{"name": "attentive_cutmix", "extractor": str(extractor)}],
        ),
        "attention": small(image_folder, **vit, components=[{"name": "attention_dropout"}]),
        "grown": small(
            image_folder,
            data__workers=0,
            components=[
                {"name": "progressive_learning", "mixup": [0.0, 0.0]},
                {"name": "progressive_data_dropout"},
            ],
        ),
        "batchnorm": small(image_folder, average__decay=0.9, data__validation=4),
        "noisy": small(
            image_folder,
            data__workers=0,
            average__decay=0.9,
            components=[{"name": name} for name in NOISY],
        ),
    }


@pytest.fixture(scope="module")
def two(image_folder, tmp_path_factory) -> Path:
    """A folder with the runs of two processes."""
    folder = tmp_path_factory.mktemp("two")
    net = killick.nets.create("killick:resnet_small", num_classes=3)
    model = killick.standard(net, ((0.5,) * 3, (0.25,) * 3), image_shape=(3, 16, 16))
    killick.save(model.eval(), folder / "net")
    run_two(SCRIPT, recipes(image_folder, folder / "net"), folder)
    return folder


def run_two(script: str, recipes: dict[str, Recipe], folder: Path) -> str:
    """Run a script in two processes, with recipes and a folder; what it prints."""
    (folder / "script.py").write_text(script)
    values = {name: dataclasses.asdict(recipe) for name, recipe in recipes.items()}
    (folder / "recipes.json").write_text(json.dumps(values))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(folder / "script.py"), str(folder / "recipes.json"), str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_processes_that_compile_later_train_as_before(image_folder, tmp_path):
    recipe = small(image_folder, data__workers=0, epochs=3, log_every=2)
    for name, before in (("eager", ""), ("late", LATE)):
        (tmp_path / name).mkdir()
        said = run_two(before + SCRIPT, {"run": recipe}, tmp_path / name)
        assert said.count("compiled") == (6 if before else 0)  # three functions in each process
    eager, late = (torch.tensor(losses_of(tmp_path / name / "run")) for name in ("eager", "late"))
    assert torch.allclose(late, eager, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["streamed", "policy", "mixed", "regularized", "penalized", "pasted"]
)
def test_two_processes_train_as_one(image_folder, tmp_path, two, name):
    """A network without BatchNorm, references of a pool, a shared mask: the same loss curve."""
    train(recipes(image_folder, two / "net")[name], tmp_path / name, quiet=True)
    one, both = (torch.tensor(losses_of(folder / name)) for folder in (tmp_path, two))
    assert len(one) == 5
    assert torch.allclose(one, both, atol=1e-5, rtol=1e-5)
    one, both = (
        [e for e in read_metrics(folder / name / "metrics.jsonl") if e["kind"] == "validation"]
        for folder in (tmp_path, two)
    )
    for a, b in zip(one, both, strict=True):  # every image counted once
        assert a["count"] == b["count"] == 5
        assert a["accuracy"] == b["accuracy"]
        assert math.isclose(a["loss"], b["loss"], rel_tol=1e-4)


@pytest.mark.parametrize("name", ["batchnorm", "noisy", "attention", "grown"])
def test_processes_with_draws_and_batchnorm_of_their_own_have_equal_weights(two, name):
    first, second = (torch.load(two / f"{name}-{rank}.pt") for rank in (0, 1))
    assert len(first) > 20
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_passes_of_a_step_add_up_to_its_batch(image_folder, tmp_path):
    """Without BatchNorm, accumulating gradients changes nothing but rounding."""
    recipe = dataclasses.replace(recipes(image_folder)["mixed"])
    for passes in (1, 4):
        train(dataclasses.replace(recipe, accumulate=passes), tmp_path / str(passes), quiet=True)
    one, four = (torch.tensor(losses_of(tmp_path / str(passes))) for passes in (1, 4))
    assert torch.allclose(one, four, atol=1e-5, rtol=1e-5)


LOST = """
import os, signal, sys
import torch
from killick.cli import main
from killick.training import loop

torch.set_num_threads(1)
take = loop.TrainingRun.take_step

def take_and_die(run):
    take(run)
    if run.done == 6 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

loop.TrainingRun.take_step = take_and_die
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_that_loses_another_prints_one_line_and_the_run_can_be_resumed(
    image_folder, tmp_path
):
    (tmp_path / "script.py").write_text(LOST)
    words = ["train", "--recipe", "shapes-small", "--data", f"imagefolder:{image_folder}"]
    words += ["--data.size", "16", "--data.validation", "0", "--batch", "4", "--epochs", "5"]
    words += ["--log-every", "2", "--quiet", "--output", str(tmp_path / "run")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launcher += [f"--log-dir={tmp_path / 'logs'}", "--redirects=3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, str(tmp_path / "script.py"), *words], env=environment, timeout=120)
    (log,) = (tmp_path / "logs").glob("*/*/0/stderr.log")
    told = [line for line in log.read_text().splitlines() if "killick" in line.lower()]
    assert len(told) == 1
    assert told[0].startswith("killick: process 0 lost another process")
    assert train(None, tmp_path / "run", resume=True, quiet=True).finished
