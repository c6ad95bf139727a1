"""Components against their formulas: mixing by attention, growing images, several masks or references,
two networks, attention dropout; and what all components have in common."""

import dataclasses
import math
import typing

import pytest
import timm
import torch
from runs import small, weights_of
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

import killick
from killick.core.feature_maps import LastMap, find_last_map
from killick.core.residual_blocks import head_of
from killick.data.batches import Batch
from killick.data.keyed_random import sample_keys
from killick.data.mixing import paste_attended
from killick.errors import OptionError, RecipeError
from killick.protocols import COMPONENTS
from killick.runtime.processes import Processes
from killick.training import train
from killick.training.run_state import TrainingRun, choose_arithmetic
from killick.training.training_data import load_training_data

CPU = Processes(0, 1, torch.device("cpu"))
CLASSES = 4


class Context:
    """As much of a run as setup looks at."""

    steps, device, classes, seed, parts, pass_size = 100, torch.device("cpu"), CLASSES, 0, 1, 8
    policy = None


def make(name, **settings):
    return COMPONENTS.find(name)(**settings)


def model_of(net, side=16):
    return killick.standard(net, ((0.5,) * 3, (0.25,) * 3), image_shape=(3, side, side))


def plain_net():
    """Nothing couples its samples."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


def random_images(n, side=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 3, side, side), generator=generator).byte()


def batch_of(n, side=16):
    keys = sample_keys(0, 1, torch.arange(n))
    return Batch(random_images(n, side), torch.arange(n) % CLASSES, keys, torch.arange(n))


def small_vit():
    torch.manual_seed(0)
    arguments = {"img_size": 16, "patch_size": 4, "depth": 2, "num_classes": CLASSES}
    return timm.create_model("vit_tiny_patch16_224", **arguments)


def first_step(recipe):
    """The step of a run that has not begun, and what it would train on first."""
    run = TrainingRun(recipe, load_training_data(recipe, CPU), CPU, None)
    run.data.batches.begin(0, 0)
    for module in run.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # couples no samples
    return run, run._step, *run._step._prepare(0, run._step.number)


# Mixing and masks --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["label", "uniform"])
def test_a_step_knows_which_samples_have_no_label_of_their_own(image_folder, target):
    recipe = small(
        image_folder,
        data__workers=0,
        components=[{"name": "mixup", "cutmix": 1.0, "probability": 0.5}, {"name": "elr"}],
        protocol={"name": "masked", "target": target, "alpha": 0.5, "scope": "sample"},
    )
    run, step, batch, draw = first_step(recipe)
    found, elr = [], run.components[1]
    elr.loss = lambda seen, loss: found.append(seen) or loss
    step._compute_loss(batch, draw)
    (seen,) = found
    assert 0 < batch.mixed.sum() < len(batch.mixed)
    assert 0 < draw.masked.sum() < len(draw.masked)
    expected = batch.mixed if target == "label" else batch.mixed | draw.masked
    assert torch.equal(seen.unlabeled, expected)
    run.close()


# Attentive CutMix ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "grid", "count"), [(32, 8, 8), (21, 7, 6), (32, 7, 5)])
def test_attended_cells_are_pasted_as_a_slow_loop_would(side, grid, count):
    generator = torch.Generator().manual_seed(0)
    images, attention = random_images(6, side), torch.rand(6, grid, grid, generator=generator)
    soft = torch.rand(6, CLASSES, generator=generator).softmax(1)
    drawn = torch.tensor([True, True, False, True, True, False])
    found, labels = paste_attended(images, soft, attention, count, drawn)
    for n in range(6):
        other = n + 1 if n % 2 == 0 else n - 1
        order = sorted(
            ((float(attention[other, i, j]), i, j) for i in range(grid) for j in range(grid)),
            reverse=True,
        )
        cells = {(i, j) for _, i, j in order[:count]} if drawn[n] else set()
        for y in range(side):
            for x in range(side):
                taken = (y * grid // side, x * grid // side) in cells
                expected = images[other if taken else n, :, y, x]
                assert torch.equal(found[n, :, y, x], expected)
        share = count / grid**2 if drawn[n] else 0.0
        expected = (1 - share) * soft[n].double() + share * soft[other].double()
        assert torch.allclose(labels[n].double(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "side", "map_side"),
    [
        ("killick:resnet_small", 32, 8),
        ("killick:wrn40_2", 32, 8),
        ("timm:test_resnet", 64, 2),
        ("timm:test_vit", 160, 10),
        ("timm:convnext_atto", 64, 2),
    ],
)
def test_the_last_map_is_found_by_running(name, side, map_side):
    model = model_of(killick.nets.create(name, num_classes=3), side)
    found = LastMap(model)(random_images(2, side))
    assert found.shape == (2, map_side, map_side)
    assert found.min() >= 0
    assert found.std() > 0.01 * found.mean()  # not what a LayerNorm made


def test_what_a_layer_norm_made_is_not_the_last_map():
    """It makes all places equally strong; what follows it may only be a view of that."""
    net = encoder()
    net[3] = nn.Sequential(net[3], nn.LayerNorm(12), Transposed(), Transposed())
    assert find_last_map(model_of(net)) == "3.0"


def test_a_network_without_a_map_is_no_extractor():
    flat = model_of(nn.Sequential(nn.Flatten(), nn.Linear(768, 2)))
    with pytest.raises(OptionError, match="no feature map"):
        find_last_map(flat)


def test_attention_is_that_of_the_extractor(tmp_path):
    """At the size that it was trained with; cells are chosen from its last map, resized."""
    net = killick.nets.create("killick:resnet_small", num_classes=3, width=4)
    extractor = model_of(net.eval(), 16)
    killick.save(extractor, tmp_path / "extractor")
    component = make("attentive_cutmix", extractor=str(tmp_path / "extractor"), probability=0.6)
    component.setup(model_of(plain_net(), 32), Context())
    batch = batch_of(400, 32)
    found = component.batch(batch)
    resized = interpolate(batch.images.float(), (16, 16), mode="bilinear", antialias=True)
    with torch.no_grad():
        x = extractor.normalize(resized.round().byte())
        features = net.blocks(net.bn1(net.conv1(x)).relu())
    attention = interpolate(
        features.abs().mean(1, keepdim=True), (8, 8), mode="bilinear", antialias=True
    )[:, 0]
    mixed = (found.labels.amax(1) < 1) | (found.images != batch.images).flatten(1).any(1)
    assert mixed.float().mean().item() == pytest.approx(0.6, abs=0.08)
    soft = torch.eye(CLASSES)[batch.labels]
    images, labels = paste_attended(batch.images, soft, attention, 8, mixed)
    assert torch.equal(found.images, images)
    assert torch.allclose(found.labels, labels)
    alone = component.batch(batch.first(2))
    assert torch.equal(alone.images, found.images[:2])  # by the key, not by the batch


# Progressive learning -----------------------------------------------------------------------------


@pytest.mark.parametrize("anchored", [True, False])
def test_size_and_dropout_grow_in_stages(anchored):
    model = model_of(plain_net())
    model = killick.anchor(model) if anchored else model
    settings = {"stages": 3, "smallest": 0.25, "dropout": [0.1, 0.5], "mixup": [0, 0]}
    component, seen, features = make("progressive_learning", **settings), [], []
    component.setup(model, Context())
    assert component.cost() == pytest.approx((0.25**2 + 0.625**2 + 1) / 3)
    model.net[0].register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    model.net[3].register_forward_pre_hook(lambda _, x: features.append(x[0]))
    images = random_images(500)
    inputs = [images, images.flip(0)] if anchored else [images]
    floats = [model.normalize(each) for each in inputs]
    stages = [(0, 4, 0.1), (33, 4, 0.1), (34, 10, 0.3), (67, 16, 0.5), (100, 16, 0.5)]
    for step, size, rate in stages:
        component.step(step)
        model.train()(*inputs)
        dropped = (features[-1] == 0).float().mean().item()
        assert dropped == pytest.approx(rate, abs=0.02)
        shrunk = [interpolate(x, (size, size), mode="bilinear", antialias=True) for x in floats]
        expected = killick.pair(*shrunk) if anchored else shrunk[0]
        assert torch.allclose(seen[-1], expected, atol=1e-5)
        model.eval()(*inputs)
        assert seen[-1].shape[-1] == 16
        assert not bool((features[-1] == 0).any())


def test_mixup_and_randaugment_grow_with_it(image_folder):
    component = {"name": "progressive_learning", "mixup": [0.0, 0.8], "magnitude": [5, 14]}
    recipe = small(
        image_folder, data__workers=0, components=[component], augment__policy="randaugment"
    )
    run, step, *_ = first_step(recipe)
    policy, (component,) = run.data.batches.policy, run.components
    keys, labels = sample_keys(0, 1, torch.arange(4000)), torch.zeros(4000, dtype=torch.long)
    labels[::2] = 1
    batch = Batch(random_images(4000, 1), labels, keys, keys)
    spreads = []
    for stage, magnitude in enumerate((5, 8, 11, 14)):
        component.step(3 * stage)
        assert policy._bin == magnitude
        share = component.batch(batch).labels.amax(1)
        spreads.append((1 - share).mean().item())
        alpha = 0.8 * stage / 3
        if alpha:  # E min(b, 1 - b) of Beta(alpha, alpha), by quadrature
            b = torch.distributions.Beta(alpha, alpha).sample((50_000,))
            expected = torch.minimum(b, 1 - b).mean().item()
            assert spreads[-1] == pytest.approx(expected, abs=0.01)
    assert spreads[0] == 0
    assert spreads == sorted(spreads)


def test_networks_for_one_size_are_refused():
    with pytest.raises(OptionError, match="takes none of 8 px"):
        make("progressive_learning").setup(model_of(small_vit()), Context())


def test_a_magnitude_needs_randaugment_on_batches(image_folder):
    component = [{"name": "progressive_learning", "magnitude": [1, 2]}]
    with pytest.raises(RecipeError, match="randaugment"):
        small(image_folder, components=component)
    changes = {
        "augment__policy": "randaugment",
        "data__resident": "never",
        "data__workers": 0,
        "protocol__references": "batch",
    }
    with pytest.raises(OptionError, match="workers apply it"):
        first_step(small(image_folder, components=component, **changes))


def test_a_component_that_changes_shapes_is_not_captured(image_folder):
    gpu = Processes(0, 1, torch.device("cuda", 0))
    progressive, steady = {"name": "progressive_learning"}, {"name": "attention_dropout"}
    for components, execution in (
        ([], "auto"),
        ([steady], "auto"),
        ([progressive], "uncaptured"),
        ([{**steady, "when": "late"}], "uncaptured"),
    ):
        recipe = small(image_folder, components=components)
        _, found, note = choose_arithmetic(recipe, gpu)
        assert found == execution
        assert (note is not None) == (execution == "uncaptured")


# Several masks, several references ----------------------------------------------------------------


def test_multi_sample_dropout_is_the_mean_of_separate_losses(image_folder):
    component = {"name": "multi_sample_dropout", "masks": 3, "rate": 0.4}
    recipe = small(image_folder, data__workers=0, components=[component])
    run, step, batch, draw = first_step(recipe)
    head, calls = run.model.net.get_submodule(head_of(run.model)), []
    run.model.net.pool.register_forward_hook(lambda *call: calls.append(call[2]))
    torch.manual_seed(3)
    with torch.no_grad():
        logits, loss = step._compute_loss(batch, draw)
    (features,) = calls  # computed once
    torch.manual_seed(3)
    masks = torch.rand(3, 4, 64) >= 0.4
    losses = []
    weight, bias = (each.detach().double() for each in (head.weight, head.bias))
    for mask in masks.double():
        kept = features.flatten(1).double() * mask / (1 - 0.4)
        z = kept @ weight.T + bias
        rows = z.log_softmax(1)
        losses.append(-sum(rows[n, batch.labels[n]] for n in range(4)) / 4)
    assert len({round(float(each), 6) for each in losses}) == 3
    assert loss.item() == pytest.approx(float(sum(losses) / 3), rel=1e-5)
    assert logits.shape == (4, CLASSES)


@pytest.mark.parametrize("scope", ["batch", "sample"])
def test_several_references_are_the_mean_of_separate_losses(image_folder, scope):
    changes = {"data__workers": 0, "protocol__scope": scope}
    plain_draw = first_step(small(image_folder, **changes))[3]
    component = {"name": "references_per_image", "count": 3}
    run, step, batch, draw = first_step(small(image_folder, components=[component], **changes))
    assert torch.equal(draw.chosen[:4], plain_draw.chosen)
    assert len({tuple(part.tolist()) for part in draw.chosen.split(4)}) == 3
    logits, loss = step._compute_loss(batch, draw)
    losses = []
    for copy in range(3):
        rows = slice(4 * copy, 4 * copy + 4)
        images = batch.images[rows]
        assert torch.equal(images, batch.images[:4])
        masked = draw.masked[rows] if scope == "sample" else draw.masked
        found = run.model(images, draw.source[draw.chosen[rows]], masked)
        losses.append(cross_entropy(found, batch.labels[:4]).item())
    assert loss.item() == pytest.approx(sum(losses) / 3, rel=1e-4)
    run.take_step()
    assert run.read_statistics()[1] <= 4  # correct predictions: each image counts once


def test_references_per_image_comes_last_and_needs_references(image_folder):
    mine, other = {"name": "references_per_image"}, {"name": "gridmask"}
    small(image_folder, components=[other, mine])
    with pytest.raises(RecipeError, match="must come after gridmask"):
        small(image_folder, components=[mine, other])
    with pytest.raises(RecipeError, match="needs references"):
        small(image_folder, components=[mine], protocol__name="standard")


# Label noise --------------------------------------------------------------------------------------


def test_nested_dropout_keeps_prefixes_as_often_as_published():
    model = model_of(plain_net())
    component = make("nested_dropout", spread=0.3)
    component.setup(model, Context())
    features, counts = torch.ones(2, 24), torch.zeros(25)
    for _ in range(3000):
        kept = component._cut(features) != 0
        count = int(kept[0].sum())
        assert bool(kept[:, :count].all())
        assert not bool(kept[:, count:].any())
        counts[count] += 1
    weights = [math.exp(-((k / (0.3 * 24)) ** 2)) for k in range(1, 25)]
    for k, weight in enumerate(weights, 1):
        expected = weight / sum(weights)
        assert counts[k].item() / 3000 == pytest.approx(expected, abs=0.025)
    assert counts[0] == 0


def test_co_teaching_is_its_formula():
    """Each network's loss is the mean over the samples whose loss is smallest for the other."""
    model = model_of(plain_net())
    component = make("co_teaching", forget=0.4, rise=0.5)
    component.setup(model, Context())
    batch = batch_of(10)
    assert not torch.equal(component.module.net[0].weight, model.net[0].weight)
    for step, kept in ((0, 10), (25, 8), (50, 6), (90, 6)):
        component.step(step)
        logits = model.train()(batch.images)
        found = component.criterion(logits, batch.labels)
        both = [
            z.detach().double().log_softmax(1) for z in (logits, component.module(batch.images))
        ]
        first, second = ([-float(z[n, batch.labels[n]]) for n in range(10)] for z in both)
        by_first, by_second = (sorted(range(10), key=x.__getitem__)[:kept] for x in (first, second))
        expected = sum(first[n] for n in by_second) / kept + sum(second[n] for n in by_first) / kept
        assert found.item() == pytest.approx(expected, rel=1e-5)
    found.backward()
    assert component.module.net[0].weight.grad.abs().sum() > 0


def test_both_networks_of_co_teaching_see_the_same_references(image_folder):
    recipe = small(image_folder, data__workers=0, components=[{"name": "co_teaching"}])
    run, step, batch, draw = first_step(recipe)
    second = run.components[0].module
    second.load_state_dict(run.model.state_dict())
    second.eval()
    run.model.net.eval()
    logits, loss = step._compute_loss(batch, draw)
    assert loss.item() == pytest.approx(2 * cross_entropy(logits, batch.labels).item(), rel=1e-5)


def test_both_networks_of_co_teaching_have_the_other_components_in_any_order(image_folder):
    """Nested dropout in both (Chen et al. 2021)."""
    losses = []
    for names in (("nested_dropout", "co_teaching"), ("co_teaching", "nested_dropout")):
        listed = [{"name": name} for name in names]
        recipe = small(image_folder, protocol="standard", data__workers=0, components=listed)
        run, step, batch, draw = first_step(recipe)
        drawn = [run.components[-1].module(batch.images) for _ in range(4)]
        assert any(not torch.equal(drawn[0], each) for each in drawn)
        torch.manual_seed(0)
        losses.append(step._compute_loss(batch, draw)[1].item())
    assert losses[0] == losses[1]


def test_co_teaching_refuses_labels_that_are_not_single(image_folder):
    mine = [{"name": "co_teaching"}]
    with pytest.raises(RecipeError, match="needs labels of single samples"):
        small(image_folder, components=mine, augment__cutmix=1.0)
    with pytest.raises(RecipeError, match="masked samples"):
        small(image_folder, components=mine, protocol__target="uniform", protocol__scope="sample")


# Attention ----------------------------------------------------------------------------------------


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Conv2d(3, 12, 4, stride=4),
        nn.Flatten(2),
        Transposed(),
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        Mean(),
        nn.Linear(12, CLASSES),
    )


class Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


@pytest.mark.parametrize("net", [small_vit, encoder])
def test_attention_dropout_follows_its_schedule_and_is_exact_at_0(net):
    model, images = model_of(net()), random_images(3)
    before = model.eval()(images)
    component = make("attention_dropout", rate=0.5, when="late", cutoff=0.5)
    component.setup(model, Context())
    for step, rate in ((0, 0.0), (49, 0.0), (50, 0.5), (99, 0.5)):
        component.step(step)
        assert {getattr(layer, name) for layer, name in component._places} == {rate}
        assert torch.allclose(model.train()(images), before, atol=1e-5) == (rate == 0)
        assert torch.allclose(model.eval()(images), before, atol=1e-6)


def test_attention_dropout_drops_attention_weights():
    """With values of one, what attention returns is the sum of weights that are left, rescaled."""
    model = model_of(small_vit())
    make("attention_dropout", rate=0.25).setup(model, Context())
    attention = model.net.blocks[0].attn.train()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.zero_()
        attention.qkv.bias[-192:] = 1.0
        attention.proj.weight.copy_(torch.eye(192))
        torch.manual_seed(0)
        found = attention(torch.rand(300, 17, 192))
    whole = found / (1 / 17 / 0.75)
    assert torch.allclose(whole, whole.round(), atol=1e-3)
    assert (whole.mean() / 17).item() == pytest.approx(0.75, abs=0.01)


def test_networks_without_attention_are_refused():
    with pytest.raises(OptionError, match="attention_dropout needs attention"):
        make("attention_dropout").setup(model_of(plain_net()), Context())


# All of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["multi_sample_dropout", "nested_dropout"])
def test_features_stay_exact_in_evaluation_and_before_the_schedule_begins(name):
    model, images = model_of(plain_net()), random_images(4)
    before = model(images)
    component = make(name, when="late", cutoff=0.5)
    component.setup(model, Context())
    for step, same in ((0, True), (49, True), (50, False), (99, False)):
        component.step(step)
        drawn = [model.train()(images) for _ in range(3)]
        assert all(torch.allclose(each, before, atol=1e-6) for each in drawn) == same
        assert torch.equal(model.eval()(images), before)


def bad_values():
    """For each limit of each setting of each component, a value just outside."""
    beyond = {"least": -1e-3, "above": 0.0, "most": 1e-3, "below": 0.0}
    for name, kind in COMPONENTS.items():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            for limit, by in beyond.items():
                if limit in field.metadata:
                    value = field.metadata[limit] + by
                    whole = hints[field.name] in (int, int | None, list[int])
                    value = (math.ceil if by > 0 else math.floor)(value) if whole else value
                    listed = typing.get_origin(hints[field.name]) is list
                    yield name, field.name, [value, value] if listed else value


@pytest.mark.parametrize(("name", "setting", "value"), list(bad_values()))
def test_values_outside_their_range_are_refused_in_one_line(image_folder, name, setting, value):
    with pytest.raises(RecipeError, match=rf"{setting}: expected") as caught:
        small(image_folder, components=[{"name": name, setting: value}])
    assert "\n" not in str(caught.value).strip()


def test_two_that_mix_labels_exclude_each_other(image_folder):
    both = [{"name": "attentive_cutmix", "extractor": "x"}, {"name": "progressive_learning"}]
    with pytest.raises(RecipeError, match="only one may mix labels"):
        small(image_folder, components=both)
    with pytest.raises(RecipeError, match="needs extractor"):
        small(image_folder, components=[{"name": "attentive_cutmix"}])


@pytest.mark.parametrize(
    "name", ["dropout", "multi_sample_dropout", "nested_dropout", "progressive_learning"]
)
def test_a_network_that_does_not_end_with_a_linear_layer_is_refused(name):
    net = nn.Sequential(nn.Conv2d(3, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(killick.errors.KillickError, match="linear layers") as caught:
        make(name).setup(model_of(net), Context())
    assert "\n" not in str(caught.value)


def test_a_very_large_dropout_fine_tunes_a_run(image_folder, tmp_path):
    """Nine of ten features are dropped, and the model that is saved has no dropout."""
    train(small(image_folder, data__workers=0, epochs=1), tmp_path / "run", quiet=True)
    recipe = small(
        image_folder, data__workers=0, epochs=1, components=[{"name": "dropout", "rate": 0.9}]
    )
    outcome = train(recipe, tmp_path / "tuned", start=tmp_path / "run", quiet=True)
    features = torch.ones(2000, 64)
    head = outcome.model.net.get_submodule(head_of(outcome.model))
    read = []
    head.register_forward_pre_hook(lambda _, x: read.append(x[0]))
    head.train()(features)
    head.eval()(features)
    assert (read[0] == 0).float().mean().item() == pytest.approx(0.9, abs=0.01)
    assert torch.equal(read[1], features)
    before, after = (weights_of(tmp_path / name) for name in ("run", "tuned"))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
