"""Training on a GPU that is not there: steps never wait, and captured ones equal eager ones."""

import pytest
import torch
from cuda_stand_in import CUDA, stand_in_cuda
from test_gpu import TOGETHER

import killick
from killick.protocols import COMPONENTS
from killick.protocols.scheduled import Scheduled
from killick.runtime.processes import Processes
from killick.training import load_recipe, train
from killick.training.run_state import TrainingRun
from killick.training.step import EAGER_STEPS, TrainingStep
from killick.training.training_data import load_training_data

STEPS = EAGER_STEPS + 3
SMALL = {
    "network.arguments": {"width": 4, "stride": 2},
    "data.limit": 8,
    "data.validation": 0,
    "batch": 4,
    "epochs": STEPS // 2,
    "precision": "float32",
    "log_every": STEPS,
    "optimizer.lr": 0.02,
}
OWN = {"mixup": {"mixup": 0.4}, "swa": {"start": 0.2}, "attention_dropout": {"when": "always"}}
VIT = {
    "network.name": "timm:vit_tiny_patch16_224",
    "network.arguments": {"img_size": 32, "patch_size": 16, "depth": 1},
}


@pytest.fixture(autouse=True)
def gpu(few_shapes, monkeypatch):
    # Captured as it is: the compiler is not for this GPU.
    monkeypatch.setattr(TrainingStep, "_compile", lambda step: None)
    with stand_in_cuda():
        yield


def small(**changes):
    return load_recipe("shapes-small", {**SMALL, **changes})


def run_steps(execution, compile_after=None, steps=STEPS, **changes):
    """A run after some steps: its losses, and the weights that it would save."""
    processes, recipe = Processes(0, 1, CUDA), small(execution=execution, **changes)
    run = TrainingRun(recipe, load_training_data(recipe, processes), processes, None)
    for number in range(steps):
        epoch, within = divmod(number, run.steps_per_epoch)
        run.data.batches.begin(epoch, within)
        run.take_step()
        if number == compile_after:
            run._step.compile()
        if run._step._graph is not None:  # what the network reads, loses and learns
            assert len(run._step._graph.steps) > 100
    assert run.bad_step() == -1
    losses, saved = run.read_statistics()[0], run.inference_model.eval().state_dict()
    return torch.tensor(losses), {name: each.cpu() for name, each in saved.items()}, run


def check_captured(captures=True, **changes):
    losses, weights, _ = run_steps("eager", **changes)
    found, same, run = run_steps("captured", **changes)
    assert (run._step._graph is not None) == captures
    assert torch.equal(found, losses)
    for name, each in weights.items():
        assert torch.equal(same[name], each), name


@pytest.mark.parametrize("name", COMPONENTS.names())
def test_captured_steps_with_a_component_equal_eager_ones(name, tmp_path):
    own = OWN.get(name, {})
    if issubclass(COMPONENTS.find(name), Scheduled) and not own:  # it begins after the capture
        own = {"when": "late", "cutoff": (EAGER_STEPS + 1.5) / STEPS}
    if name == "attentive_cutmix":
        train(small(epochs=1), tmp_path / "extractor", quiet=True, device="cuda")
        own["extractor"] = str(tmp_path / "extractor")
    changes = VIT if name == "attention_dropout" else {}
    check_captured(name != "progressive_learning", components=[{"name": name, **own}], **changes)


CASES = {
    "standard": {"protocol.name": "standard"},
    "batch": {"protocol.name": "anchored", "protocol.references": "batch"},
    "reference set": {"protocol.name": "anchored", "protocol.reference_set": 4},
    "sample": {"protocol.scope": "sample", "protocol.target": "uniform"},
    "alpha": {"protocol.alpha": 0.1, "protocol.alpha_end": 0.9, "protocol.stored_as": "images"},
    "every": {"protocol.every": 2, "protocol.when": "late", "protocol.cutoff": 0.7},
    "adamw": {"optimizer.name": "adamw"},
    "together": TOGETHER,
    "resized": {"augment.crop": "resized", "data.resident": "always"},
    "workers": {"data.resident": "never", "data.workers": 0, "protocol.references": "batch"},
}


@pytest.mark.parametrize("case", CASES)
def test_captured_steps_equal_eager_ones(case):
    check_captured(**CASES[case])


@pytest.mark.parametrize("policy", ["trivialaugment", "augmix"])
def test_policies_on_batches_are_captured(policy):
    check_captured(**{"augment.policy": policy, "data.resident": "always"})


def test_a_run_that_compiles_after_it_was_captured_goes_on_the_same():
    steps, both = 2 * EAGER_STEPS + 3, {"epochs": EAGER_STEPS + 2, "log_every": 100}
    losses, weights, _ = run_steps("auto", steps=steps, **both)
    found, same, run = run_steps("auto", EAGER_STEPS, steps, **both)
    assert run._step._graph is not None
    assert torch.equal(found, losses)
    assert all(torch.equal(same[name], each) for name, each in weights.items())


def test_a_run_trains_and_is_evaluated(tmp_path):
    outcome = train(small(epochs=1), tmp_path / "run", quiet=True, device="cuda")
    assert outcome.finished
    options = {"validation": (torch.randint(256, (100, 3, 32, 32)).byte(), torch.arange(100) % 10)}
    suites = ("clean", "ood", "occlusion", "conformal")
    rows = killick.evaluate(outcome.model, "shapes", suites, limit=20, device="cuda", **options)
    assert {row["suite"] for row in rows} >= set(suites) - {"conformal"}


def test_a_generator_of_the_cpu_makes_the_same_random_stem_on_a_gpu():
    net = killick.nets.create("killick:resnet_small", width=4, stride=2)
    stems = []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(0)
        model = killick.anchor(net.to(device), init="random", generator=generator)
        stems.append(model.net.conv1.weight.cpu())
    assert torch.equal(*stems)
