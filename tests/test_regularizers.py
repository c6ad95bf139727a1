"""Regularizers: each against its formula, in a run that resumes exactly, and exact at rate 0."""

import functools
import math

import pytest
import timm
import torch
import torchvision
from runs import assert_same, losses_of, small, train_and_stop, weights_of
from torch import nn

import killick
from killick.cli.train import parse_overrides
from killick.core.dropout_lint import find_early_dropout
from killick.core.residual_blocks import find_residual_blocks
from killick.core.stochastic_layers import (
    drop_blocks,
    drop_channels,
    drop_elements,
    drop_layer,
    drop_samples,
)
from killick.data.batches import Batch
from killick.data.keyed_random import sample_keys
from killick.data.transforms import make_grid_masks
from killick.errors import OptionError, RecipeError
from killick.experiments.arms import parse_arm
from killick.protocols import COMPONENTS, PROTOCOLS
from killick.protocols.base import ForwardPass
from killick.protocols.references.reference_sampler import MaskSampler
from killick.protocols.scheduled import Scheduled
from killick.training import load_recipe, train
from killick.training.callbacks import Callback

N, CLASSES = 6, 5
LOGITS = 12 * torch.randn(N, CLASSES, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % CLASSES
SOFT = torch.rand(N, CLASSES, generator=torch.Generator().manual_seed(1)).softmax(1)
ZERO = torch.zeros(())


def make(name, **settings):
    return COMPONENTS.find(name)(**settings)


def added(name, **settings):
    """What a component adds to the loss."""
    return make(name, **settings).loss(seen(None, LOGITS, LABELS), ZERO).item()


def seen(batch, logits, targets, masked=None, unlabeled=None):
    return ForwardPass(batch, logits, targets, masked, unlabeled, None)


# Losses -------------------------------------------------------------------------------------------


def test_spectral_decoupling_is_half_the_mean_squared_norm():
    total = sum(z**2 for row in LOGITS.double().tolist() for z in row) / N
    assert added("spectral_decoupling", strength=0.3) == pytest.approx(0.3 / 2 * total, rel=1e-5)


def test_the_confidence_penalty_is_the_negative_entropy():
    rows = LOGITS.double().softmax(1).tolist()
    entropy = -sum(p * math.log(p) for row in rows for p in row if p > 0) / N
    assert added("confidence_penalty", strength=0.7) == pytest.approx(-0.7 * entropy, rel=1e-4)


def test_acls_is_its_formula():
    settings = {"strength": 0.2, "largest": 1.5, "others": 0.4, "margin": 3.0}
    high = far = 0.0
    for row in LOGITS.double().tolist():
        largest = max(row)
        high += max(0.0, largest - 3.0) ** 2 / N
        for z in row:
            if z != largest:
                far += max(0.0, largest - z - 3.0) ** 2 / (N * (CLASSES - 1))
    assert high > 0
    assert far > 0
    assert added("acls", **settings) == pytest.approx(0.2 * (1.5 * high + 0.4 * far), rel=1e-5)


def test_the_focal_loss_of_a_sure_network_has_a_gradient():
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    make("focal_loss", gamma=0.5).criterion(logits, torch.tensor([0])).backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("soft", [False, True])
def test_the_focal_loss_is_its_formula(soft):
    targets = SOFT if soft else LABELS
    expected = 0.0
    for n, row in enumerate(LOGITS.double().softmax(1).tolist()):
        for c, p in enumerate(row):
            y = float(SOFT[n, c]) if soft else float(LABELS[n] == c)
            expected -= y * (1 - p) ** 2.5 * math.log(max(p, 1e-300)) / N
    found = make("focal_loss", gamma=2.5).criterion(LOGITS, targets)
    assert found.item() == pytest.approx(expected, rel=1e-4)
    plain = make("focal_loss", gamma=0.0).criterion(LOGITS, targets)
    assert torch.allclose(plain, nn.functional.cross_entropy(LOGITS, targets), rtol=1e-5)


def test_learned_samples_are_left_out_of_the_gradient_until_the_end():
    logits = LOGITS.clone().div_(6).requires_grad_()
    p = logits.detach().double().softmax(1)[torch.arange(N), LABELS]
    threshold = float(p.sort().values[2:4].mean())
    component = make("progressive_data_dropout", threshold=threshold, rest=0.25)
    component.setup(None, Context())
    kept = [n for n in range(N) if p[n] < threshold]
    assert 0 < len(kept) < N
    found = component.criterion(logits, LABELS)
    assert found.item() == pytest.approx(-sum(math.log(p[n]) for n in kept) / len(kept), rel=1e-5)
    (slope,) = torch.autograd.grad(found, logits)
    assert [n for n in range(N) if slope[n].abs().sum() > 0] == kept
    component.step(75)
    plain = nn.functional.cross_entropy(logits, LABELS)
    assert component.criterion(logits, LABELS).item() == pytest.approx(plain.item(), rel=1e-6)


# Inputs -------------------------------------------------------------------------------------------


def test_grid_masks_are_those_of_a_slow_loop():
    draws = torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = make_grid_masks(draws, 11, 13, periods=(4.2, 8.9), visible=0.4)
    for n, (p, a, b, turn) in enumerate(draws.tolist()):
        period = min(9, math.floor(4 + p * (9 - 4 + 1)))
        deleted = round((1 - 0.4) * period)
        angle = 2 * math.pi * turn
        for i in range(11):
            for j in range(13):
                y, x = i - 5.0, j - 6.0
                down = y * math.cos(angle) - x * math.sin(angle)
                across = y * math.sin(angle) + x * math.cos(angle)
                inside = (down + a * period) % period < deleted
                inside = inside and (across + b * period) % period < deleted
                assert bool(found[n, i, j]) == inside, (n, i, j)


def test_grid_masks_delete_the_expected_share():
    draws = torch.rand(4000, 4, generator=torch.Generator().manual_seed(0))
    share = make_grid_masks(draws, 32, 32, periods=(10, 10), visible=0.4).float().mean().item()
    assert share == pytest.approx(0.36, abs=0.01)


class Context:
    """As much of a run as setup looks at."""

    steps, device, classes = 100, torch.device("cpu"), CLASSES


def model_of(net, side=32):
    return killick.standard(net, ((0.5, 0.25, 0.125), (1, 1, 1)), image_shape=(3, side, side))


def test_gridmask_fills_with_the_mean_color_as_often_as_its_schedule_says():
    images = torch.full((2000, 3, 16, 16), 255, dtype=torch.uint8)
    keys = sample_keys(0, 1, torch.arange(2000))
    component = make("gridmask", probability=0.8)
    component.setup(model_of(nn.Sequential(nn.Flatten(), nn.Linear(768, 2)), 16), Context())
    for step, expected in ((0, 0.0), (40, 0.4), (80, 0.8), (100, 0.8)):
        component.step(step)
        made = component.batch(Batch(images, LABELS, keys, keys)).images
        changed = (made != images).flatten(1).any(1).float().mean().item()
        assert changed == pytest.approx(expected, abs=0.04)
    gone = made[:, 0] != 255
    for channel, value in enumerate((128, 64, 32)):
        assert set(made[:, channel][gone].tolist()) == {value}
    again = component.batch(Batch(images[:3], LABELS, keys[:3], keys[:3])).images
    assert torch.equal(again, made[:3])


# Activations --------------------------------------------------------------------------------------


def rate(value):
    return torch.tensor(value)


def test_dropped_numbers_and_channels_keep_the_mean():
    torch.manual_seed(0)
    x = torch.ones(200, 50, 4, 4)
    for drop in (drop_elements, drop_channels):
        found = drop(x, rate(0.3))
        assert (found == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
        assert found.mean().item() == pytest.approx(1, abs=0.03)
        assert torch.equal(drop(x, rate(0.0)), x)
    whole = drop_channels(x, rate(0.3)).flatten(2)
    assert bool(((whole == 0).all(2) | (whole != 0).all(2)).all())


@pytest.mark.parametrize("side", [1, 3, 4, 9])
def test_dropblock_is_that_of_torchvision(side, monkeypatch):
    """The same squares are drawn: torchvision draws from Bernoulli, Killick compares uniform numbers."""
    drawn = torch.rand(3, 5, 9 - min(side, 9) + 1, 9 - min(side, 9) + 1)
    x = torch.rand(3, 5, 9, 9)
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: drawn.view(shape))
    found = drop_blocks(x, rate(0.2), side)

    def bernoulli(tensor, gamma):
        return tensor.copy_((drawn < gamma).float())

    monkeypatch.setattr(torch.Tensor, "bernoulli_", bernoulli)
    if side % 2:
        expected = torchvision.ops.drop_block2d(x, 0.2, min(side, 9), training=True, eps=0.0)
        assert torch.allclose(found, expected, atol=1e-5)
    seeds = 0.2 * 81 / (min(side, 9) ** 2 * drawn.shape[2] ** 2)
    kept = torch.ones(3, 5, 9, 9)
    for n, c, i, j in (drawn < seeds).nonzero().tolist():
        kept[n, c, i : i + side, j : j + side] = 0
    assert torch.allclose(found, x * kept * kept.numel() / kept.sum(), atol=1e-5)


def test_skipped_blocks_return_their_input():
    torch.manual_seed(0)
    x, output = torch.zeros(4000, 3), torch.ones(4000, 3)
    found = drop_samples(x, output, rate(0.25))
    assert bool((found == found[:, :1]).all())
    assert (found[:, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert torch.allclose(found.max(), torch.tensor(1 / 0.75))
    skipped = [bool((drop_layer(x, output, rate(0.4)) == x).all()) for _ in range(1000)]
    assert sum(skipped) / 1000 == pytest.approx(0.4, abs=0.06)
    assert torch.equal(drop_samples(x, output, rate(0.0)), output)
    assert torch.equal(drop_layer(x, output, rate(0.0)), output)


@pytest.mark.parametrize(
    ("name", "side", "count"),
    [
        ("killick:resnet18", 32, 5),
        ("killick:wrn40_2", 32, 15),
        ("timm:test_resnet", 32, None),
        ("timm:test_vit", 160, None),
        ("timm:convnext_atto", 64, 12),
        ("torchvision:efficientnet_b0", 64, 9),
        ("torchvision:swin_v2_t", 64, 12),
    ],
)
def test_residual_blocks_are_found_by_running(name, side, count):
    model = model_of(killick.nets.create(name, num_classes=CLASSES), side)
    found = find_residual_blocks(model)
    assert found
    assert count is None or len(found) == count
    anchored = killick.anchor(model)
    assert list(find_residual_blocks(anchored)) == list(found)
    for block in found:  # skipped, the network still runs
        model.net.get_submodule(block).register_forward_hook(lambda _, read, __: read[0])
    model.eval()(torch.zeros(2, 3, side, side, dtype=torch.uint8))


NOISES = ["dropout", "spatial_dropout", "dropblock", "stochastic_depth", "layer_drop"]


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("anchored", [True, False])
def test_a_network_stays_exact_in_evaluation_and_at_rate_0(name, anchored):
    torch.manual_seed(0)
    model = model_of(killick.nets.create("killick:resnet18", num_classes=CLASSES))
    model = killick.anchor(model) if anchored else model
    images = torch.randint(256, (4, 3, 32, 32)).byte()
    inputs = (images, images.flip(0)) if anchored else (images,)
    before = model.eval()(*inputs)
    keys = set(model.state_dict())
    component = make(name, rate=0.5, ramp=False)
    component.setup(model, Context())
    assert set(model.state_dict()) == keys
    assert torch.equal(model.eval()(*inputs), before)
    for norm in model.modules():
        norm.training = not isinstance(norm, nn.BatchNorm2d)
    drawn = [model(*inputs) for _ in range(4)]
    assert any(not torch.equal(each, before) for each in drawn)
    component.factor.zero_()
    assert torch.allclose(model(*inputs), before, atol=1e-5)


def test_networks_without_what_a_component_needs_are_refused():
    plain = model_of(nn.Sequential(nn.Flatten(), nn.Linear(768, 2)), 16)
    transformer = model_of(timm.create_model("test_vit", num_classes=2), 160)
    for name, model in (("stochastic_depth", plain), ("dropblock", transformer)):
        with pytest.raises(OptionError, match=f"{name} needs"):
            make(name).setup(model, Context())


def test_schedules():
    def over(**settings):
        return [Scheduled(**settings).factor_at(done) for done in (0, 0.25, 0.5, 0.75, 1)]

    assert over() == [1, 1, 1, 1, 1]
    assert over(ramp=True) == [0, 0.25, 0.5, 0.75, 1]
    assert over(when="early", cutoff=0.5) == [1, 1, 0, 0, 0]
    assert over(when="early", cutoff=0.5, ramp=True) == [1, 0.5, 0, 0, 0]
    assert over(when="late", cutoff=0.5) == [0, 0, 1, 1, 1]
    assert over(when="late", cutoff=0.5, ramp=True) == [0, 0, 0, 0.5, 1]


def test_dropout_before_a_batchnorm_is_found():
    early = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.1), nn.BatchNorm2d(4), nn.Flatten())
    net = nn.Sequential(early, nn.Dropout(0.5), nn.Linear(4 * 14 * 14, 2))
    assert find_early_dropout(model_of(net, 16)) == ["0.1"]
    early[1].p = 0.0
    assert find_early_dropout(model_of(net, 16)) == []


# Steps --------------------------------------------------------------------------------------------


def quadratic(weights):
    """A loss whose gradient is known: sum of w^4."""
    for weight in weights:
        weight.grad = (4 * weight.detach() ** 3).clone()


@pytest.mark.parametrize("name", ["sam", "gradient_penalty"])
def test_gradients_are_those_of_the_formula(name):
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 4, generator=generator).double() for _ in range(2)]
    weights = [nn.Parameter(weight) for weight in weights]
    before = [weight.detach().clone() for weight in weights]
    quadratic(weights)
    settings = {"rho": 0.3} if name == "sam" else {"strength": 0.2, "distance": 0.3}
    with torch.no_grad():
        make(name, **settings).gradient(weights, lambda: quadratic(weights))
    own = [4 * weight**3 for weight in before]
    norm = math.sqrt(sum(float(each.square().sum()) for each in own))
    far = [
        4 * (weight + 0.3 * gradient / norm) ** 3
        for weight, gradient in zip(before, own, strict=True)
    ]
    for weight, old, here, there in zip(weights, before, own, far, strict=True):
        assert torch.equal(weight, old)
        expected = there if name == "sam" else here + 0.2 / 0.3 * (there - here)
        assert torch.allclose(weight.grad, expected, rtol=1e-6)


def test_sam_is_that_of_pytorch_optimizer():
    library = pytest.importorskip("pytorch_optimizer")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    twin = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    twin.load_state_dict(net.state_dict())
    x, y = torch.randn(10, 6), torch.arange(10) % 3
    theirs = library.SAM(twin.parameters(), torch.optim.SGD, rho=0.1, lr=0.5)
    ours, component = torch.optim.SGD(net.parameters(), lr=0.5), make("sam", rho=0.1)

    def backward(model):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()

    for _ in range(3):
        backward(twin)
        theirs.first_step(zero_grad=True)
        backward(twin)
        theirs.second_step(zero_grad=True)
        backward(net)
        with torch.no_grad(), torch.enable_grad():
            component.gradient(list(net.parameters()), lambda: backward(net))
        ours.step()
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


def test_the_second_gradient_has_the_same_samples_references_and_masks(
    image_folder, tmp_path, monkeypatch
):
    """And BatchNorm updates its statistics, and remembers pairs, in the first pass alone."""
    seen = []
    monkeypatch.setattr(COMPONENTS.find("sam"), "gradient", spy(seen))
    recipe = small(image_folder, data__workers=0, epochs=1, components=[{"name": "sam"}])
    train(recipe, tmp_path / "run", quiet=True)
    assert seen
    assert all(first == pytest.approx(second, abs=1e-6) for first, second in seen)
    plain = small(image_folder, data__workers=0, epochs=1)
    train(plain, tmp_path / "plain", quiet=True)
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "plain"))


def test_the_second_gradient_has_the_same_targets(image_folder, tmp_path, monkeypatch):
    """Predictions are remembered after both, so that PS-KD reads those of the epoch before twice."""
    kind, read = COMPONENTS.find("ps_kd"), []
    original = kind.targets

    def targets(self, *given):
        found = original(self, *given)
        read.append(found.clone())
        return found

    monkeypatch.setattr(kind, "targets", targets)
    both = [{"name": "ps_kd"}, {"name": "sam"}]
    recipe = small(image_folder, data__workers=0, epochs=3, components=both)
    train(recipe, tmp_path / "run", quiet=True)
    assert len(read) % 2 == 0
    assert all(torch.equal(a, b) for a, b in zip(read[::2], read[1::2], strict=True))
    assert any(bool(((each > 0) & (each < 1)).any()) for each in read)


def spy(seen):
    """SAM that moves nothing: the second gradient must be the first."""

    def gradient(self, parameters, again):
        before = [weight.grad.clone() for weight in parameters]
        again()
        norms = [
            float(torch.stack([g.norm() for g in each]).norm())
            for each in (before, [weight.grad for weight in parameters])
        ]
        seen.append(norms)
        for weight, own in zip(parameters, before, strict=True):
            weight.grad.copy_(own)

    return gradient


def test_mixout_is_its_formula_and_gives_the_weights_back():
    torch.manual_seed(0)
    start, now = torch.zeros(300, 300), torch.ones(300, 300)
    weight, bias = nn.Parameter(start.clone()), nn.Parameter(torch.ones(300))
    component = make("mixout", rate=0.6)
    component.setup(nn.ParameterList([weight, bias]), Context())
    weight.data.copy_(now)
    with torch.no_grad():
        component.weights([weight, bias])
    values = weight.detach().unique().tolist()
    assert values == pytest.approx([0.0, 1 / 0.4])  # where it started, or scaled up
    share = (weight == 0).float().mean().item()
    assert share == pytest.approx(0.6, abs=0.01)
    assert weight.mean().item() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(bias, torch.ones(300))
    kept = weight.detach() != 0
    weight.grad = torch.ones(300, 300)
    with torch.no_grad():
        component.gradient([weight, bias], None)
    assert torch.equal(weight, now)
    assert torch.allclose(weight.grad, kept / 0.4)


@pytest.mark.parametrize("protocol", ["standard", "masked"])
def test_swa_is_the_mean_of_the_last_epochs(image_folder, tmp_path, protocol):
    ends = []

    class Keep(Callback):
        def on_epoch(self, progress):
            ends.append({k: v.clone() for k, v in progress.run.model.named_parameters()})

    recipe = small(
        image_folder,
        data__workers=0,
        epochs=4,
        protocol__name=protocol,
        components=[{"name": "swa", "start": 0.5}],
    )
    outcome = train(recipe, tmp_path / "run", quiet=True, callbacks=[Keep()])
    found = dict(outcome.model.named_parameters())
    for name, value in found.items():
        mean = torch.stack([ends[-2][name].double(), ends[-1][name].double()]).mean(0)
        assert torch.allclose(value.double(), mean, atol=1e-6), name


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "anchored", "stored": 2},
        {"name": "masked", "target": "label", "stored": 2, "scope": "sample"},
        {"name": "masked", "target": "label", "stored": 2, "batchnorm": "running"},
    ],
)
def test_swa_estimates_batchnorm_where_no_pairs_are_remembered(image_folder, tmp_path, protocol):
    ends = []

    class Keep(Callback):
        def on_epoch(self, progress):
            ends.append(progress.run.model.net.bn1.running_mean.clone())

    parts = [{"name": "swa", "start": 0.25}]
    recipe = small(image_folder, data__workers=0, epochs=4, components=parts, protocol=protocol)
    outcome = train(recipe, tmp_path / "run", quiet=True, callbacks=[Keep()])
    found = outcome.model.net.bn1.running_mean
    assert not torch.allclose(found, ends[-1])
    settled = killick.load(tmp_path / "run" / "model")
    assert torch.equal(settled.net.bn1.running_mean, found)


# Tables of samples --------------------------------------------------------------------------------


class Samples:
    """As much of a training set as a table looks at."""

    access, name = "indexed", "samples"

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


class Table(Context):
    """Six samples in steps of three, for four epochs."""

    train, steps, steps_per_epoch = Samples(6), 8, 2


def steps_of(epochs, seed=0):
    """Numbers, logits and masks of each step; an epoch has every sample once."""
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        for part in torch.randperm(6, generator=generator).split(3):
            logits = 3 * torch.randn(3, CLASSES, generator=generator)
            yield epoch, part, logits, bool(torch.rand((), generator=generator) < 0.4)


def batch_of(numbers):
    return Batch(torch.zeros(3, 3, 2, 2), LABELS[numbers], numbers, numbers)


def test_ps_kd_mixes_labels_with_the_predictions_of_the_epoch_before():
    component, before, now = make("ps_kd", share=0.8), {}, {}
    component.setup(None, Table())
    for place, (epoch, numbers, logits, masked) in enumerate(steps_of(4)):
        masked |= place == 0  # its samples have no prediction in the second epoch
        mask = torch.tensor(masked)
        batch = batch_of(numbers)
        found = component.targets(seen(batch, logits, batch.labels, mask))
        share = 0.8 * (epoch + 1) / 4 if epoch else 0.0
        for row, number in enumerate(numbers.tolist()):
            label = torch.eye(CLASSES, dtype=torch.float64)[LABELS[number]]
            expected = label
            if number in before:
                expected = (1 - share) * label + share * before[number]
            assert torch.allclose(found[row].double(), expected, atol=2e-3)  # float16
            if not masked:
                now[number] = logits[row].double().softmax(0)
        uniform = torch.full((3, CLASSES), 1 / CLASSES)
        true = torch.tensor(True)
        kept = component.targets(seen(batch, logits, uniform, true, true))
        assert torch.allclose(kept, uniform)
        component.observe(batch, logits, mask)
        if place % 2:
            before.update(now)
            component.epoch(epoch + 1)


@pytest.mark.parametrize("scope", ["batch", "sample"])
@pytest.mark.parametrize("uniform", [False, True])
def test_elr_is_its_formula(uniform, scope):
    """A masked sample keeps its average; towards the uniform distribution it has no term."""
    component, averages = make("elr", strength=2.0, decay=0.6), torch.zeros(6, CLASSES).double()
    component.setup(None, Table())
    for _, numbers, logits, drawn in steps_of(4):
        batch, expected = batch_of(numbers), 0.0
        masked = [drawn or (scope == "sample" and row == 1) for row in range(3)]
        mask = torch.tensor(drawn) if scope == "batch" else torch.tensor(masked)
        targets = torch.full((3, CLASSES), 1 / CLASSES) if uniform else batch.labels
        logits.requires_grad_()
        found = component.loss(seen(batch, logits, targets, mask, mask if uniform else None), ZERO)
        for row, number in enumerate(numbers.tolist()):
            p = logits[row].detach().double().softmax(0).clamp(1e-4, 1 - 1e-4)
            if not masked[row]:
                averages[number] = 0.6 * averages[number] + 0.4 * p / p.sum()
            if not (uniform and masked[row]):
                expected += 2.0 * math.log(1 - float((p * averages[number]).sum())) / 3
        assert found.item() == pytest.approx(expected, abs=5e-3)
        (slope,) = torch.autograd.grad(found, logits)
        assert uniform or slope.abs().sum() > 0
        component.observe(batch, logits.detach(), mask)
        assert torch.allclose(component._table.read(torch.arange(6)).double(), averages, atol=2e-3)


@pytest.mark.parametrize("name", ["ps_kd", "elr"])
def test_tables_pause_for_mixed_samples(name):
    component, kept = make(name), torch.tensor([False, True, False])
    component.setup(None, Table())
    numbers, soft = torch.arange(3), SOFT[:3]
    batch = Batch(torch.zeros(3, 3, 2, 2), soft, numbers, numbers, kept)
    component.observe(batch, LOGITS[:3], None)
    assert component._table.values.any(1).tolist() == [True, False, True, False, False, False]
    component._table.values.copy_(SOFT.flip(0))
    component.epoch(1)
    now = seen(batch, (LOGITS[:3] / 12).requires_grad_(), soft, None, kept)
    if name == "ps_kd":
        changed = (component.targets(now) != soft).any(1)
    else:
        (slope,) = torch.autograd.grad(component.loss(now, ZERO), now.logits)
        changed = slope.any(1)
    assert changed.tolist() == [True, False, True]


def test_tables_are_refused_for_streams_mixed_labels_and_huge_sets(image_folder):
    stream, huge = Samples(6), Samples(10**9)
    stream.access = "stream"
    for train_set, says in ((stream, "a stream"), (huge, "every checkpoint")):
        context = Table()
        context.train = train_set
        with pytest.raises(OptionError, match=says):
            make("elr").setup(None, context)
    for name in ("elr", "ps_kd"):
        with pytest.raises(RecipeError, match="probability below 1"):
            small(image_folder, augment__mixup=0.2, components=[{"name": name}])
    half = {"name": "mixup", "mixup": 0.2, "probability": 0.5}
    with pytest.raises(RecipeError, match="co_teaching needs labels"):
        small(image_folder, components=[half, {"name": "co_teaching"}])


# Runs ---------------------------------------------------------------------------------------------

COMPONENT_NAMES = [
    *("acls", "spectral_decoupling", "confidence_penalty", "focal_loss", "gridmask", *NOISES),
    *("sam", "gradient_penalty", "mixout", "swa", "ps_kd", "elr", "progressive_data_dropout"),
    *("attentive_cutmix", "progressive_learning", "multi_sample_dropout", "nested_dropout"),
    *("references_per_image", "co_teaching", "attention_dropout"),
]
OWN_SETTINGS = {
    **dict.fromkeys(NOISES, {"rate": 0.4}),
    "acls": {"margin": 0.0},
    "dropblock": {"rate": 0.4, "side": 2},
    "swa": {"start": 0.0},
    "co_teaching": {"forget": 0.5, "rise": 0.8},
    "attention_dropout": {"when": "early", "ramp": True},
}
VIT = {
    "network__name": "timm:vit_tiny_patch16_224",
    "network__arguments": {"img_size": 16, "patch_size": 4, "depth": 1, "embed_dim": 24},
}


def recipe_with(image_folder, plain_run, name, **changes):
    """A small run with one component, on a network that suits it."""
    own = {"extractor": str(plain_run)} if name == "attentive_cutmix" else {}
    own |= OWN_SETTINGS.get(name, {})
    changes |= VIT if name == "attention_dropout" else {}
    return small(image_folder, data__workers=0, components=[{"name": name, **own}], **changes)


@pytest.fixture(scope="module")
def plain_run(image_folder, tmp_path_factory):
    """The folder of a run without components."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(small(image_folder, data__workers=0), folder, quiet=True)
    return folder


@pytest.mark.parametrize("name", COMPONENT_NAMES)
def test_a_run_with_it_resumes_bit_by_bit(image_folder, tmp_path, monkeypatch, plain_run, name):
    recipe = recipe_with(image_folder, plain_run, name)
    train(recipe, tmp_path / "whole", quiet=True)
    whole, plain = (weights_of(folder) for folder in (tmp_path / "whole", plain_run))
    if whole.keys() == plain.keys():
        assert any(not torch.equal(whole[key], plain[key]) for key in whole)
    train_and_stop(recipe, tmp_path / "cut", 5, monkeypatch)
    train(None, tmp_path / "cut", resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


def test_costs_count_extractors_and_what_a_run_started_from(image_folder, tmp_path, plain_run):
    cutmix = {"name": "attentive_cutmix", "extractor": str(plain_run)}
    ways = {  # the plain run had 3 epochs of cost 1
        "tuned": ([], 1, 1 + 3),
        "longer": ([{"name": "sam"}], 2, 2 + 3 / 2),
        "pasted": ([cutmix], 3, 1 + 1 / 2 + 1),
    }
    for name, (components, epochs, expected) in ways.items():
        recipe = small(image_folder, data__workers=0, components=components, epochs=epochs)
        outcome = train(recipe, tmp_path / name, start=plain_run, quiet=True)
        assert outcome.model.provenance["facts"]["training_cost"] == pytest.approx(expected)
    again = small(image_folder, data__workers=0, epochs=2)
    outcome = train(again, tmp_path / "again", start=tmp_path / "tuned", quiet=True)
    assert outcome.model.provenance["facts"]["training_cost"] == pytest.approx(1 + (1 + 3) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPONENTS.names())
def test_it_runs_with_bfloat16_an_average_and_accumulated_gradients(
    image_folder, tmp_path, plain_run, name
):
    if name in ("mixup", "label_smoothing", "weight_average"):
        pytest.skip("made by other settings")
    changes = {"precision": "bfloat16", "accumulate": 2, "epochs": 2}
    changes |= {} if name == "swa" else {"average__decay": 0.5}
    recipe = recipe_with(image_folder, plain_run, name, **changes)
    outcome = train(recipe, tmp_path / "run", quiet=True)
    assert outcome.finished
    assert all(bool(weight.isfinite().all()) for weight in outcome.model.state_dict().values())
    losses = losses_of(tmp_path / "run")
    assert len(losses) == 8
    assert all(map(math.isfinite, losses))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPONENT_NAMES)
def test_compiled_steps_are_those_of_eager_ones(
    image_folder, tmp_path, monkeypatch, plain_run, name
):
    """Also after one without hooks: torch would reuse what it compiled for the same layers."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    plain = small(image_folder, data__workers=0, execution="compiled", epochs=1)
    train(plain, tmp_path / "plain", quiet=True)
    for execution in ("compiled", "eager"):
        changes = {"execution": execution, "epochs": 2}
        recipe = recipe_with(image_folder, plain_run, name, **changes)
        train(recipe, tmp_path / execution, quiet=True)
    compiled, eager = (losses_of(tmp_path / each) for each in ("compiled", "eager"))
    assert compiled == pytest.approx(eager, rel=1e-4)


@pytest.mark.parametrize(
    ("component", "says"),
    [
        ({"name": "dropblok"}, "dropblock"),
        ({"name": "dropout", "rate": 1.0}, "rate"),
        ({"name": "dropout", "when": "sometimes"}, "when"),
        ({"name": "sam", "rho": 0.0}, "rho"),
        ({"name": "gridmask", "shortest": 1.0, "longest": 0.5}, "shortest"),
    ],
)
def test_bad_settings_are_one_line(image_folder, component, says):
    with pytest.raises(RecipeError, match=says):
        small(image_folder, components=[component])


def test_two_sharpness_aware_steps_exclude_each_other(image_folder):
    both = [{"name": "sam"}, {"name": "gradient_penalty"}]
    with pytest.raises(RecipeError, match="only one may change the gradient"):
        small(image_folder, components=both)


def test_two_averages_of_the_weights_exclude_each_other(image_folder):
    says = "found weight_average, swa"
    with pytest.raises(RecipeError, match=says):
        small(image_folder, average__decay=0.9, components=[{"name": "swa"}])
    with pytest.raises(RecipeError, match=says):
        small(image_folder, components=[{"name": "weight_average"}, {"name": "swa"}])


def test_they_are_named_in_recipes_options_and_arms(image_folder, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("protocol: standard\nregularizers: [ps-kd, {name: dropblock, rate: 0.2}]\n")
    found = load_recipe(file).components
    assert [each.name for each in found] == ["ps_kd", "dropblock"]
    words = ["--regularizer", "ps-kd", "--regularizer", "dropblock:rate=0.2,when=late"]
    chosen = load_recipe("shapes-small", parse_overrides(words)).components
    assert (chosen[1].rate, chosen[1].when) == (0.2, "late")
    with pytest.raises(OptionError, match="'' in --regularizer dropout:"):
        parse_overrides(["--regularizer", "dropout:"])
    arm = parse_arm("sam+masked-label:rho=0.1,alpha=0.5")
    assert arm.settings["components"] == [{"name": "sam", "rho": 0.1}]
    assert (arm.settings["protocol.target"], arm.settings["protocol.alpha"]) == ("label", 0.5)
    assert parse_arm("layer-drop").settings["protocol.name"] == "standard"
    for text, says in (
        ("smm", "sam"),
        ("sam+nothing", "nothing"),
        ("standard+anchored", "exclude"),
        ("sam:rho=", "key=value"),
    ):
        with pytest.raises(OptionError, match=says):
            parse_arm(text)


@pytest.mark.parametrize("scope", ["batch", "sample"])
@pytest.mark.parametrize(("when", "shares"), [("early", (0.4, 0.0)), ("late", (0.0, 0.4))])
def test_references_are_masked_early_or_late(scope, when, shares):
    protocol = PROTOCOLS.find("masked")(
        target="label", alpha=0.4, scope=scope, when=when, cutoff=0.25
    )
    sampler = MaskSampler(protocol, 0, 0, 4000)
    drawn = []
    for step in range(4000):
        keys = sample_keys(0, step, torch.arange(2))
        batch = Batch(torch.zeros(2, 3, 1, 1), LABELS[:2], keys, keys)
        drawn.append(sampler.draw(batch, torch.tensor(step)).float().mean())
    first, rest = torch.stack(drawn).split([1000, 3000])
    assert first.mean().item() == pytest.approx(shares[0], abs=0.05)
    assert rest.mean().item() == pytest.approx(shares[1], abs=0.03)
    assert protocol.share == pytest.approx(0.4 * (0.25 if when == "early" else 0.75))
