"""Measures of attention: closed forms, a slow loop, and the weights that each library itself gives."""

import copy
import math
import weakref

import pytest
import timm
import torch
import torchvision
from oracles.attention import slow_measures
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import killick
from killick.attention import attention_maps, measure
from killick.attention.attention_capture import AttentionCapture, attention_weights
from killick.attention.head_measures import (
    MEASURES,
    NORMALIZERS,
    PREFIX_HANDLING,
    measure_heads,
    patch_distances,
)
from killick.errors import KillickError

TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}


def make_vit(name: str = "vit_tiny_patch16_224", **options) -> nn.Module:
    """A network of timm with attention that is not nearly uniform."""
    return sharpen(timm.create_model(name, num_classes=5, **{**TINY, **options}))


def sharpen(net: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.4)
    return net.eval()


def draw_images(n: int = 5, height: int = 16, width: int = 16) -> torch.Tensor:
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(1))


def expected(weights, grid, prefix, normalizer="max_pair", handling="renormalized"):
    """The measures of all heads by the slow loop, means over images (and windows)."""
    found = [
        [slow_measures(head.tolist(), grid, prefix, normalizer, handling) for head in image]
        for image in weights.double()
    ]
    return {
        name: torch.tensor([[head[name] for head in image] for image in found]).double().mean(0)
        for name in MEASURES
    }


def check(layer, weights, grid, prefix):
    assert (layer.grid, layer.prefix) == (grid, prefix)
    for name, values in expected(weights, grid, prefix).items():
        assert torch.allclose(layer.values(name), values, atol=2e-6), name


@pytest.mark.parametrize(
    ("side", "patches", "max_pair", "diagonal", "of_side", "window", "beside"),
    [
        (8, 4.1365, 0.4178, 0.3656, 0.5171, 0.1032, 0.1010),
        (14, 7.2808, 0.3960, 0.3677, 0.5201, 0.0568, 0.0544),
        (16, 8.3261, 0.3925, 0.3680, 0.5204, 0.0494, 0.0471),
    ],
)
def test_closed_forms(side, patches, max_pair, diagonal, of_side, window, beside):
    grid, count = (side, side), side * side
    uniform = torch.full((1, 1, count, count), 1 / count, dtype=torch.float64)
    units = {"pixels": patches, "max_pair": max_pair, "diagonal": diagonal, "side": of_side}
    for normalizer, value in units.items():
        found = measure_heads(uniform, patch_distances(grid, normalizer), 0)
        assert found["distance"].item() == pytest.approx(value, abs=5e-5)
    assert found["entropy"].item() == pytest.approx(1)
    assert found["diagonal_mass"].item() == pytest.approx(1 / count)
    distances = patch_distances(grid)
    step = 1 / math.hypot(side - 1, side - 1)

    near = (distances <= 1.5 * step).double()  # as the table has it: cut off at the edges
    found = measure_heads((near / near.sum(-1, keepdim=True))[None, None], distances, 0)
    assert found["distance"].item() == pytest.approx(window, abs=5e-5)
    if side == 8:
        inner = near[9] / 9
        assert (torch.special.entr(inner).sum() / math.log(64)).item() == pytest.approx(
            0.528, abs=5e-4
        )

    found = measure_heads(torch.eye(count, dtype=torch.float64)[None, None], distances, 0)
    assert [found[name].item() for name in ("distance", "entropy", "diagonal_mass")] == [0, 0, 1]
    places = torch.arange(count)
    neighbor = torch.where(places % side < side - 1, places + 1, places - 1)
    one_hot = torch.eye(count, dtype=torch.float64)[neighbor][None, None]
    found = measure_heads(one_hot, distances, 0)
    assert found["distance"].item() == pytest.approx(beside, abs=5e-5)
    assert found["entropy"].item() == 0  # one-hot, though not local
    assert found["distance_off_diagonal"].item() == pytest.approx(beside, abs=5e-5)


@pytest.mark.parametrize("handling", PREFIX_HANDLING)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_random_attention_is_that_of_a_loop(normalizer, handling):
    generator = torch.Generator().manual_seed(0)
    for grid, prefix in (((3, 5), 0), ((4, 4), 1), ((5, 2), 6)):
        tokens = prefix + grid[0] * grid[1]
        scores = 3 * torch.randn(2, 2, tokens, tokens, dtype=torch.float64, generator=generator)
        distances = patch_distances(grid, normalizer, (2.0, 3.0))
        weights = scores.softmax(-1)
        found = measure_heads(weights, distances, prefix, renormalize=handling == "renormalized")
        for image in range(2):
            for head in range(2):
                slow = slow_measures(
                    weights[image, head].tolist(), grid, prefix, normalizer, handling, (2.0, 3.0)
                )
                for name, value in slow.items():
                    assert found[name][image, head].item() == pytest.approx(value, rel=1e-12)


def test_a_head_that_looks_at_the_class_token_looks_local_only_if_raw():
    weights = torch.full((1, 1, 17, 17), 0.1 / 16)
    weights[..., 0] = 0.9
    found = [
        measure_heads(weights, patch_distances((4, 4)), 1, renormalize=each)
        for each in (True, False)
    ]
    assert found[1]["distance"].item() == pytest.approx(0.1 * found[0]["distance"].item())
    assert found[0]["prefix_mass"].item() == pytest.approx(0.9)
    assert found[0]["entropy"].item() == pytest.approx(found[1]["entropy"].item())


def timm_weights(net, images):
    """By the unfused path of a copy, read at its dropout."""
    net, seen = copy.deepcopy(net), []
    for module in net.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
            module.attn_drop.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with torch.no_grad():
        net(images)
    return seen


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("options", "size", "grid", "prefix"),
    [
        ({}, (16, 16), (4, 4), 1),
        ({"reg_tokens": 4}, (16, 16), (4, 4), 5),
        ({"class_token": False, "global_pool": "avg"}, (16, 16), (4, 4), 0),
        ({"img_size": (8, 24), "qk_norm": True}, (8, 24), (2, 6), 1),
    ],
)
def test_timm(options, size, grid, prefix, fused):
    net, images = make_vit(**options), draw_images(5, *size)
    for block in net.blocks:
        block.attn.fused_attn = fused
    found = measure(net, images, batch=2)
    for layer, weights in zip(found.layers, timm_weights(net, images), strict=True):
        check(layer, weights, grid, prefix)
    assert [layer.name for layer in found.layers] == ["blocks.0.attn", "blocks.1.attn"]
    assert (found.images, found.references) == (5, 0)
    assert (found.normalizer, found.prefix) == ("max_pair", "renormalized")


def test_deit_with_a_distillation_token():
    net, images = make_vit("deit_tiny_distilled_patch16_224"), draw_images()
    check(measure(net, images).layers[1], timm_weights(net, images)[1], (4, 4), 2)


def test_swin_within_its_windows():
    net = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=64,
        window_size=4,
        embed_dim=24,
        depths=(2, 1),
        num_heads=(2, 3),
    )
    sharpen(net)
    images = draw_images(3, 64, 64)
    found = measure(net, images, batch=2)
    assert [layer.windows for layer in found.layers] == [16, 16, 4]
    for layer, weights in zip(found.layers, timm_weights(net, images), strict=True):
        check(layer, weights, (4, 4), 0)
    pixels = measure(net, images, normalizer="pixels").layers[2]
    ratio = pixels.values() / found.layers[2].values()
    assert torch.allclose(ratio, torch.tensor(8 * math.hypot(3, 3), dtype=torch.float64))
    half = measure(net, images[::2]).layers[1].values()
    assert torch.allclose(found.layers[1].half, half, atol=1e-6)


def test_torchvision():
    net = sharpen(torchvision.models.VisionTransformer(16, 4, 2, 3, 24, 48, num_classes=5))
    seen = []
    images = draw_images()
    found = measure(net, images)

    def ask(module, args, kwargs):
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    for block in net.encoder.layers:
        block.self_attention.register_forward_pre_hook(ask, with_kwargs=True)
        block.self_attention.register_forward_hook(lambda m, args, output: seen.append(output[1]))
    with torch.no_grad():
        net(images)
    for layer, weights in zip(found.layers, seen, strict=True):
        check(layer, weights, (4, 4), 1)


def test_transformers():
    from transformers import DeiTConfig, DeiTForImageClassification, SwinConfig
    from transformers import SwinForImageClassification as Swin

    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    shape |= {"intermediate_size": 48, "image_size": 16, "patch_size": 4}
    nets = {"sdpa": None, "eager": None}
    for way in nets:
        net = DeiTForImageClassification(DeiTConfig(**shape, attn_implementation=way))
        nets[way] = sharpen(net)
    nets["sdpa"].load_state_dict(nets["eager"].state_dict())
    images = draw_images()
    with torch.no_grad():
        seen = nets["eager"](images, output_attentions=True).attentions
    for net in nets.values():
        for layer, weights in zip(measure(net, images).layers, seen, strict=True):
            check(layer, weights, (4, 4), 2)
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=12, depths=[2], num_heads=[2], window_size=4
    )
    assert [layer.windows for layer in measure(Swin(config), draw_images(2, 32, 32)).layers] == [
        4,
        4,
    ]


def test_weights_of_masks_scales_and_grouped_queries():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, h, 5, 8, generator=generator) for h in (4, 2, 2))
    bias = torch.randn(5, 5, generator=generator)
    for options in (
        {"scale": 0.3},
        {"attn_mask": bias > -0.5},
        {"attn_mask": bias},
        {"is_causal": True},
    ):
        weights = attention_weights(query, key, value, **options, enable_gqa=True)
        found = weights @ value.repeat_interleave(2, 1)
        true = nn.functional.scaled_dot_product_attention(
            query, key, value, **options, enable_gqa=True
        )
        assert torch.allclose(found, true, atol=1e-6)


def state_of(net):
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()]
    modes = [m.training for m in net.modules()]
    fused = [m.fused_attn for m in net.modules() if hasattr(m, "fused_attn")]
    return hooks, modes, fused, {k: v.clone() for k, v in net.state_dict().items()}


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
    net, images = make_vit(), draw_images()
    before = net(images)
    net.train()
    net.blocks[0].eval()
    state = state_of(net)
    if fails:
        with pytest.raises(KillickError):
            measure(net, draw_images(2, 24, 24))
    else:
        measure(net, images)
    after = state_of(net)
    assert state[:3] == after[:3]
    assert all(torch.equal(value, after[3][name]) for name, value in state[3].items())
    assert torch.equal(net.eval()(images), before)


def test_models_in_train_mode_are_measured_in_eval_mode():
    net, images = make_vit(attn_drop_rate=0.5, pos_drop_rate=0.5), draw_images()
    usual = measure(net, images).layers[1].values()
    assert torch.equal(measure(net.train(), images).layers[1].values(), usual)


def test_logits_are_the_same_while_attention_is_read():
    net, images, seen = make_vit(), draw_images(), []
    with torch.no_grad():
        before = net(images)
    AttentionCapture(net, lambda *_: None).run(5, lambda: seen.append(net(images)))
    assert torch.equal(seen[0], before)


def test_batches_change_nothing_and_one_layer_is_kept_at_a_time(monkeypatch):
    from killick.attention import attention_measure

    net, images, alive = make_vit(), draw_images(7), []

    def watch(weights, *args, **kwargs):
        assert all(old() is None for old in alive)
        alive.append(weakref.ref(weights))
        return measure_heads(weights, *args, **kwargs)

    whole = measure(net, images, batch=7)
    monkeypatch.setattr(attention_measure, "measure_heads", watch)
    for found in (measure(net, images, batch=3), measure(net, iter(images.split([2, 1, 4])))):
        for one, other in zip(whole.layers, found.layers, strict=True):
            for name in MEASURES:
                assert torch.allclose(one.values(name), other.values(name), atol=1e-6)
            assert torch.allclose(one.half, other.half, atol=1e-6)
            assert one.norm_mean == pytest.approx(other.norm_mean, rel=1e-6)
    assert len(alive) == 2 * (3 + 3)


def test_stability_against_doubling_the_images():
    net, images = make_vit(), draw_images(7)
    whole, half = measure(net, images), measure(net, images[::2])
    gaps = [
        (one.values() - other.values()).abs().max()
        for one, other in zip(whole.layers, half.layers, strict=True)
    ]
    assert whole.change == pytest.approx(float(max(gaps)), abs=1e-6)
    assert whole.change > 1e-4
    assert measure(net, images[:1]).change is None


def test_norms_are_those_of_patch_tokens_after_each_block():
    net, images, seen = make_vit(reg_tokens=2), draw_images(), []
    for block in net.blocks:
        block.register_forward_hook(lambda m, args, output: seen.append(output[:, 3:].norm(dim=-1)))
    with torch.no_grad():
        net(images)
    layers = measure(net, images, batch=2).layers
    for layer, norms in zip(layers, seen[:2], strict=True):
        assert layer.norm_mean == pytest.approx(float(norms.mean()), rel=1e-5)
        assert layer.norm_max == pytest.approx(float(norms.max()), rel=1e-5)


class SeenFrom(nn.Module):
    """An anchored model as an ordinary network, from one reference."""

    def __init__(self, model, number):
        super().__init__()
        self.model, self.number = model, number

    def forward(self, images):
        references = self.model.references[self.number].expand_as(images)
        return self.model.net(killick.pair(images, references))


def test_anchored_models_are_averaged_over_references_with_their_spread():
    model = killick.anchor(make_vit(), init="random", generator=torch.Generator().manual_seed(3))
    sharpen(model.set_references(draw_images(4)))
    images = draw_images(3)
    alone = [measure(SeenFrom(model, number), images).layers[1].values() for number in range(3)]
    found = measure(model, images, references=3)
    layer = found.layers[1]
    assert torch.allclose(layer.values(), torch.stack(alone).mean(0), atol=1e-6)
    assert torch.allclose(layer.spread(), torch.stack(alone).std(0), atol=1e-6)
    assert float(layer.spread().max()) > 1e-4
    assert (found.references, measure(model, images).references) == (3, 4)
    assert measure(model, images, references=1).layers[0].spread() is None


def test_models_in_half_precision_and_compiled_ones():
    net, images = make_vit(), draw_images()
    usual = measure(net, images)
    for other in (copy.deepcopy(net).bfloat16(), torch.compile(net)):
        found = measure(other, images)
        assert torch.allclose(found.layers[0].values(), usual.layers[0].values(), atol=0.01)
    net.compile()
    assert torch.equal(measure(net, images).layers[1].values(), usual.layers[1].values())


def test_standard_models_take_uint8_images():
    net = make_vit()
    model = killick.standard(net, normalize=((0.5,) * 3, (0.25,) * 3), image_shape=(3, 16, 16))
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    found, plain = measure(model, images), measure(net, (images / 255 - 0.5) / 0.25)
    assert torch.allclose(found.layers[0].values(), plain.layers[0].values(), atol=1e-5)


def test_loaders_may_yield_labels():
    net, images = make_vit(), draw_images()
    usual = measure(net, images).layers[1].values()
    for columns in ((images,), (images, torch.arange(5))):
        loader = DataLoader(TensorDataset(*columns), batch_size=2)
        assert torch.allclose(measure(net, loader).layers[1].values(), usual, atol=1e-6)


class HiddenAttention(nn.Module):
    """Attention by other means than those that can be seen."""

    def forward(self, x):
        scores = (x @ x.mT).exp()
        return scores / scores.sum(-1, keepdim=True) @ x


class Hidden(nn.Module):
    def __init__(self, *seen):
        super().__init__()
        self.stem, self.seen = nn.Conv2d(3, 4, 4, 4), nn.Sequential(*seen)
        self.attn = HiddenAttention()

    def forward(self, x):
        return self.attn(self.seen(self.stem(x).flatten(2).mT * 0.1)).mean(1)


class LinearEmbedding(nn.Module):
    """A transformer that cuts images into patches itself, without a convolution."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(48, 8)
        self.prefix = nn.Parameter(torch.zeros(1, 2, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        patches = self.embed(nn.functional.unfold(x, 4, stride=4).mT)
        tokens = torch.cat([self.prefix.expand(len(x), -1, -1), patches], 1)
        return self.layer(tokens).mean(1)


def test_the_grid_of_a_linear_patch_embedding():
    (layer,) = measure(LinearEmbedding(), draw_images()).layers
    assert (layer.grid, layer.prefix, layer.name) == ((4, 4), 2, "layer.self_attn")
    with pytest.raises(KillickError, match="cannot place"):
        measure(LinearEmbedding(), draw_images(2, 8, 32))  # 16 patches, and not 4 x 4


def make_torchvision_swin():
    return torchvision.models.SwinTransformer([4, 4], 24, [2], [2], [7, 7], num_classes=5)


def make_timm_swin():
    shape = {"img_size": 32, "embed_dim": 24, "depths": (2,), "num_heads": (2,)}
    return timm.create_model("swin_tiny_patch4_window7_224", **shape)


def make_transformers_swin():
    from transformers import SwinConfig, SwinForImageClassification

    shape = {"embed_dim": 12, "depths": [2], "num_heads": [2], "window_size": 7}
    return SwinForImageClassification(SwinConfig(image_size=32, patch_size=4, **shape))


def test_unpadded_windows_of_torchvision():
    layers = measure(make_torchvision_swin(), draw_images(2, 56, 56)).layers
    assert [(layer.grid, layer.windows) for layer in layers] == [((7, 7), 4)] * 2


@pytest.mark.filterwarnings("ignore")  # of tracing
@pytest.mark.parametrize(
    ("make", "size", "words"),
    [
        (lambda: timm.create_model("resnet18"), 32, "has no attention"),
        (Hidden, 16, "'attn' (HiddenAttention)"),
        (lambda: timm.create_model("pvt_v2_b0"), 64, "'stages.0.blocks.0.attn'"),
        (lambda: timm.create_model("xcit_nano_12_p16_224", depth=1), 64, "'blocks.0.attn'"),
        (make_vit, 24, "on images of 24 x 24 px"),
        (
            lambda: Hidden(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
            16,
            "'attn' (HiddenAttention)",
        ),
        (lambda: timm.create_model("volo_d1_224", img_size=64), 64, "'network.0.0.attn'"),
        (lambda: timm.create_model("convit_tiny", img_size=32), 32, "twice"),
        (make_torchvision_swin, 32, "4 windows of 7 x 7"),
        (make_timm_swin, 32, "4 windows of 7 x 7"),
        (make_transformers_swin, 32, "4 windows of 7 x 7"),
        (lambda: torch.export.export(make_vit(), (draw_images(),)).module(), 16, "exported"),
        (lambda: torch.jit.trace(make_vit(), draw_images()), 16, "traced"),
    ],
)
def test_what_cannot_be_measured_is_one_line(make, size, words):
    with pytest.raises(KillickError) as problem:
        measure(make(), draw_images(2, size, size))
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_wrong_arguments():
    net, images = make_vit(), draw_images()
    for given, options in (
        (images, {"normalizer": "patches"}),
        (images, {"prefix": "dropped"}),
        (images, {"references": 3}),
        (images, {"references": 0}),
        (images, {"batch": 0}),
        (images[0], {}),
        (images[:0], {}),
        ([], {}),
        ((images * 9).to(torch.uint8), {}),
        ([images, draw_images(2, 8, 8)], {}),
    ):
        with pytest.raises(KillickError):
            measure(net, given, **options)
    with pytest.raises(KillickError):
        measure("timm:vit_tiny_patch16_224", images)


def test_images_of_two_sizes_are_refused_where_the_network_takes_both():
    net = make_vit(dynamic_img_size=True)
    with pytest.raises(KillickError, match="one size"):
        measure(net, [draw_images(2), draw_images(2, 24, 16)])


def test_maps_are_the_rows_of_the_middle_patch():
    net, images = make_vit(), draw_images(3)
    weights = timm_weights(net, images)[1]
    (found,) = attention_maps(net, images, [(1, 2)])
    row = weights[:, 2, 1 + 2 * 4 + 2, 1:]
    assert torch.allclose(found.weights, (row / row.sum(-1, keepdim=True)).view(3, 4, 4), atol=1e-6)
    assert (found.layer, found.head, found.query) == (1, 2, (2, 2))


def test_an_untrained_network_is_nearly_uniform_and_a_summary_never_gives_a_minimum_alone():
    torch.manual_seed(0)
    net = timm.create_model("vit_tiny_patch16_224", **{**TINY, "img_size": 32})
    summary = measure(net, draw_images(4, 32, 32)).summary()
    for value in (summary.minimum, summary.mean, summary.median):
        assert value == pytest.approx(0.4178, abs=0.01)
    assert (summary.local, summary.heads) == (0, 6)
    assert summary.diagonal_mass == pytest.approx(1 / 64, rel=0.1)
