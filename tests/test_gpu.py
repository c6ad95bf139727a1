"""What only an accelerator can show: no waiting, captured graphs, agreement with the CPU."""

import copy

import pytest
import torch
from conftest import small_cnn, stir
from torch import nn
from torch.testing import assert_close

import killick
from killick.protocols import COMPONENTS
from killick.results.run_folder import read_metrics
from killick.runtime.processes import Processes
from killick.training import load_recipe, run_state, step_loop, train
from killick.training.run_state import TrainingRun
from killick.training.training_data import load_training_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of the compiler, about speed
]


@pytest.fixture(autouse=True)
def _exact_float32():
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def stirred() -> killick.Anchored:
    return stir(killick.anchor(small_cnn())).set_references(torch.rand(3, 3, 8, 8))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("scope", ["batch", "sample"])
@pytest.mark.parametrize("target", ["label", "uniform"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_training_step_never_waits_for_the_device(scope, target, pooled):
    model = stirred().cuda().train()
    masking = killick.ReferenceMasking(alpha=0.5, target=target, scope=scope)
    x, labels = torch.rand(6, 3, 8, 8, device="cuda"), torch.arange(6, device="cuda") % 5
    pool = killick.ReferencePool(x, labels, balanced=True) if pooled else None
    masking.loss(model, x, labels, pool).backward()  # allocations and handles, once
    torch.cuda.set_sync_debug_mode(2)
    try:
        for _ in range(3):
            masking.loss(model, x, labels, pool).backward()
    finally:
        torch.cuda.set_sync_debug_mode(0)


def test_a_captured_step_draws_anew_at_every_replay_and_settles_like_an_eager_one():
    model = stirred().cuda().train()
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    x, labels = torch.rand(8, 3, 8, 8, device="cuda"), torch.arange(8, device="cuda") % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = masking.loss(model, x, labels)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses, references = [], []
    for _ in range(20):
        graph.replay()
        losses.append(loss.item())
        last = (model.recent.count - 8) % len(model.recent.images)
        references.append(model.recent.references[last : last + 8].sum((1, 2, 3)).cpu())
    assert model.recent.count == 8 * (3 + 20)  # capturing itself runs nothing
    assert len({tuple(r.tolist()) for r in references}) > 15  # another cycle each time
    pairs = [(x, r) for x, r in model.recent.batches()]
    model.eval()
    features = [model.net[0](killick.pair(a, b)) for a, b in pairs]
    mean = torch.stack([f.mean((0, 2, 3)) for f in features]).mean(0)
    assert_close(model.net[1].running_mean, mean, atol=1e-4, rtol=1e-4)
    assert len(set(losses)) > 15


def test_a_compiled_step_without_breaks_equals_the_eager_one():
    model = stirred().cuda().train()
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    x, labels = torch.rand(6, 3, 8, 8, device="cuda"), torch.arange(6, device="cuda") % 5
    draw = masking.draw(6, "cuda")

    def loss(x, labels, draw):
        return nn.functional.cross_entropy(*masking.forward(model, x, labels, draw))

    expected = loss(x, labels, draw)
    for _ in range(3):
        found = torch.compile(loss, fullgraph=True)(x, labels, draw)
    assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_cpu_and_gpu_agree_with_one_generator_on_the_cpu():
    model, x, labels = stirred().train(), torch.rand(6, 3, 8, 8), torch.arange(6) % 5
    losses = []
    for device in ("cpu", "cuda"):
        masking = killick.ReferenceMasking(alpha=0.5, target="uniform", scope="sample")
        generator = torch.Generator().manual_seed(7)
        copied = copy.deepcopy(model).to(device)
        losses.append(masking.loss(copied, x.to(device), labels.to(device), None, generator).cpu())
    assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("protocol", ["single", "marginal", "transductive"])
def test_predictions_agree_with_the_cpu(protocol):
    model, x = stirred().eval(), torch.rand(16, 3, 8, 8)
    model.set_residuals(killick.residual_bank(model, x, size=200))
    expected = killick.predict(model, x, protocol)
    found = killick.predict(copy.deepcopy(model).cuda(), x.cuda(), protocol)
    assert_close(found.logits.cpu(), expected.logits, atol=1e-4, rtol=1e-4)


def test_folded_networks_agree_in_bf16_autocast_channels_last_and_compiled():
    model = stirred().cuda().eval()
    x = torch.rand(16, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    folded = killick.fold(model).to(memory_format=torch.channels_last)
    compiled = torch.compile(folded)
    with torch.inference_mode():
        assert_close(folded(x), model(x), atol=1e-4, rtol=1e-4)
        assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
        with torch.autocast("cuda", torch.bfloat16):
            assert_close(folded(x).float(), model(x).float(), atol=0.05, rtol=0.05)


def small_run(**changes):
    values = {
        "data.limit": 256,
        "data.validation": 64,
        "data.workers": 2,
        "epochs": 2,
        "batch": 32,
        "precision": "float32",
        "log_every": 1,
        **changes,
    }
    return load_recipe("shapes-small", values)


TOGETHER = {
    "augment.mixup": 0.4,
    "augment.cutmix": 1.0,
    "augment.erase": 0.5,
    "augment.flip": True,
    "average.decay": 0.9,
    "optimizer.clip": 1.0,
    "accumulate": 2,
    "protocol.target": "uniform",
    "protocol.references": "augmented",
}
STREAMED = {
    "augment.policy": "trivialaugment",
    "protocol.references": "batch",
    "data.resident": "never",
}


@pytest.mark.parametrize(
    "changes",
    [
        *({}, TOGETHER, STREAMED, {"optimizer.name": "adamw"}, {"protocol.name": "standard"}),
        *({"augment.policy": "trivialaugment"}, {"augment.policy": "augmix"}),
    ],
    ids=["plain", "together", "streamed", "adamw", "standard", "trivialaugment", "augmix"],
)
def test_a_captured_run_trains_as_an_eager_one(tmp_path, changes, monkeypatch):
    monkeypatch.setattr(run_state, "COMPILE_SECONDS", 0.0)  # so that auto compiles on its way
    curves, scores = [], []
    for execution in ("eager", "captured", "auto"):
        recipe = small_run(execution=execution, **{"optimizer.lr": 0.01, **changes})
        outcome = train(recipe, tmp_path / execution, quiet=True)
        entries = read_metrics(tmp_path / execution / "metrics.jsonl")
        curves.append(torch.tensor([x for entry in entries for x in entry.get("losses", [])]))
        scores.append(outcome.rows[0]["value"])
    assert len(curves[0]) == 16
    for curve, score in zip(curves[1:], scores[1:], strict=True):
        assert_close(curves[0], curve, atol=2e-3, rtol=2e-3)
        assert abs(scores[0] - score) < 0.02


# Compiled functions draw other numbers from torch's generator than eager ones.
DRAWING = {
    *("dropout", "spatial_dropout", "dropblock", "stochastic_depth", "layer_drop", "mixout"),
    *("multi_sample_dropout", "nested_dropout", "attention_dropout", "progressive_learning"),
}


@pytest.mark.parametrize("name", COMPONENTS.names())
def test_a_captured_run_with_a_component_trains_as_an_eager_one(tmp_path, name):
    own = {"mixup": {"mixup": 0.4}, "swa": {"start": 0.2}, "gridmask": {"ramp": False}}.get(
        name, {}
    )
    changes = {"optimizer.lr": 0.01, "epochs": 3}
    if name == "attentive_cutmix":
        train(small_run(epochs=1), tmp_path / "extractor", quiet=True)
        own = {"extractor": str(tmp_path / "extractor")}
    if name == "attention_dropout":
        changes["network.name"] = "timm:vit_tiny_patch16_224"
        changes["network.arguments"] = {"img_size": 32, "patch_size": 4, "depth": 2}
    curves = []
    for execution in ("eager", "captured"):
        recipe = small_run(execution=execution, components=[{"name": name, **own}], **changes)
        train(recipe, tmp_path / execution, quiet=True)
        entries = read_metrics(tmp_path / execution / "metrics.jsonl")
        losses = [x for entry in entries for x in entry.get("losses", [])]
        curves.append(torch.tensor(losses[:20]))
    if name in DRAWING:
        assert_close(curves[0].mean(), curves[1].mean(), atol=0.1, rtol=0.1)
    else:
        assert_close(curves[0], curves[1], atol=5e-3, rtol=5e-3)


def test_a_captured_run_draws_what_the_cpu_draws(tmp_path):
    curves = []
    for device in ("cpu", "cuda"):
        recipe = small_run(**{"optimizer.lr": 0.01})
        train(recipe, tmp_path / device, device=device, quiet=True)
        entries = read_metrics(tmp_path / device / "metrics.jsonl")
        curves.append(torch.tensor([x for entry in entries for x in entry.get("losses", [])]))
    assert_close(curves[0], curves[1], atol=5e-3, rtol=5e-3)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_whole_loop_waits_at_looks_alone(tmp_path, monkeypatch):
    def looked(run, *arguments):
        torch.cuda.set_sync_debug_mode(0)
        look(run, *arguments)
        torch.cuda.set_sync_debug_mode(2 if run.done % 8 and run.done > 4 else 0)

    look = step_loop._log_training
    monkeypatch.setattr(step_loop, "_log_training", looked)
    recipe = small_run(log_every=5, **{"data.validation": 0})  # of 8 steps an epoch
    try:
        assert train(recipe, tmp_path / "run", quiet=True).finished
    finally:
        torch.cuda.set_sync_debug_mode(0)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("execution", ["eager", "captured"])
def test_the_loop_never_waits_between_two_looks(execution):
    recipe = small_run(execution=execution, log_every=100, **{"average.decay": 0.9})
    processes = Processes(0, 1, torch.device("cuda", 0))
    run = TrainingRun(recipe, load_training_data(recipe, processes), processes, None)
    run.data.batches.begin(0, 0)
    for _ in range(5):  # compiles and captures
        run.take_step()
    torch.cuda.set_sync_debug_mode(2)
    try:
        for _ in range(3):
            run.take_step()
    finally:
        torch.cuda.set_sync_debug_mode(0)
    assert len(run.read_statistics()[0]) == 8
