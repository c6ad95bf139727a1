"""The stem is found by running a network, doubled exactly, and folded back: for every family."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from conftest import small_cnn, stir
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import killick
from killick.core.inspection import logits_of
from killick.errors import StemError

SMALL = (2, 3, 64, 64)

# name, image to run it on (None: found by itself), arguments
TIMM = [
    ("resnet18", SMALL, {}),
    ("vit_tiny_patch16_224", None, {"img_size": 64}),
    ("deit3_small_patch16_224", None, {"img_size": 64}),
    ("swinv2_cr_tiny_ns_224", None, {"img_size": 64, "window_size": 2}),
    ("convnext_atto", SMALL, {}),
    ("efficientnet_b0", SMALL, {}),
    ("tf_efficientnet_b0", SMALL, {}),  # pads by itself
    ("mobilenetv3_small_100", None, {}),
    ("mobileone_s0", SMALL, {}),  # two branches read the image
    ("fastvit_t8", SMALL, {}),
    ("repvgg_a0", SMALL, {}),
    ("nfnet_l0", SMALL, {}),  # weight standardised
    ("resnetv2_50x1_bit", SMALL, {}),
    ("tresnet_m", SMALL, {}),  # space to depth before the first layer
    ("naflexvit_base_patch16_gap", (2, 3, 32, 32), {"depth": 2, "embed_dim": 64, "num_heads": 2}),
    ("mixer_s16_224", None, {"img_size": 64}),
    ("densenet121", SMALL, {}),
    ("regnetx_002", SMALL, {}),
    ("levit_128s", None, {}),
    ("xcit_nano_12_p16_224", SMALL, {}),
    ("crossvit_tiny_240", None, {}),  # a branch resizes the image first
    ("edgenext_xx_small", SMALL, {}),
    ("mobilevit_xxs", SMALL, {}),
    ("eva02_tiny_patch14_224", None, {"img_size": 56}),
    ("poolformer_s12", SMALL, {}),
    ("ghostnet_100", SMALL, {}),
    ("hgnet_tiny", SMALL, {}),
]
TORCHVISION = [
    ("resnet18", None, {}),
    ("vit_b_32", None, {"image_size": 64}),
    ("swin_v2_t", None, {}),
    ("convnext_tiny", None, {}),
    ("googlenet", None, {"transform_input": True, "aux_logits": False, "init_weights": False}),
    ("inception_v3", None, {"transform_input": True, "init_weights": False}),
    ("shufflenet_v2_x0_5", None, {}),
    ("squeezenet1_0", None, {}),
]


# Like others in the lists, where the first layer is read: minutes all together.
SLOW = {
    *("mobilenetv3_small_100", "fastvit_t8", "repvgg_a0", "resnetv2_50x1_bit", "densenet121"),
    *("regnetx_002", "levit_128s", "xcit_nano_12_p16_224", "edgenext_xx_small", "mobilevit_xxs"),
    *("eva02_tiny_patch14_224", "poolformer_s12", "ghostnet_100", "hgnet_tiny", "inception_v3"),
    *("shufflenet_v2_x0_5", "squeezenet1_0"),
}


def listed(rows: list[tuple]) -> list:
    """The rows as parameters of a test: some quickly and shortened, all of them slowly."""
    slow = [pytest.param(*row, "all", id=row[0], marks=pytest.mark.slow) for row in rows]
    quick = [
        pytest.param(*row, "short", id=f"{row[0]}-short") for row in rows if row[0] not in SLOW
    ]
    return [*quick, *slow]


def shorten(net: nn.Module) -> None:
    """Drop blocks like the one before: behind the first layers, and nearly all of the time."""

    def kind(block: nn.Module) -> tuple:
        return type(block), [parameter.shape for parameter in block.parameters()]

    for row in list(net.modules()):
        if isinstance(row, nn.Sequential | nn.ModuleList):
            for place in reversed(range(2, len(row))):
                if kind(row[place]) == kind(row[place - 1]):
                    del row[place]


def check_exact_and_foldable(net: nn.Module, example: Tensor | None = None) -> killick.Anchored:
    """Anchor, compare, change the weights, fold, compare; in float64.

    The sum `W r + W (x - r)` rounds differently than `W x`, by some 1e-16 of its size; a deep
    network at random weights carries that up to about 1e-12. A wrong kernel is off by 0.1.
    """
    net = stir(net.double().eval())
    example = None if example is None else example.double()
    model = killick.anchor(net, example=example).eval()
    x, references = torch.rand(2, 2, *model.image_shape, dtype=torch.float64)
    with torch.no_grad():
        expected = logits_of(net(x))
        scale = expected.abs().max().item()
        assert scale > 0
        assert_close(model(x, references), expected, rtol=0, atol=1e-9 * scale)
        stir(model).set_references(references)
        one, both = killick.fold(model), killick.fold(model, k=2)
        members = torch.stack([model(x, r.expand_as(x)) for r in references])
        scale = members.abs().max().item()
        assert_close(one(x), members[0], rtol=0, atol=1e-9 * scale)
        assert_close(both.members(x), members, rtol=0, atol=1e-9 * scale)
        assert_close(both(x), members.mean(0), rtol=0, atol=1e-9 * scale)
    return model


def test_as_many_networks_are_tried_as_the_readme_says():
    of_transformers = 3
    count = len(TIMM) + len(TORCHVISION) + of_transformers
    assert count >= 20
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert f"{count} networks" in readme


@pytest.mark.parametrize(("name", "shape", "arguments", "much"), listed(TIMM))
def test_a_network_of_timm_is_anchored_exactly_and_folded_back(name, shape, arguments, much):
    net = killick.nets.create(f"timm:{name}", num_classes=7, **arguments)
    if much == "short":
        shorten(net)
    check_exact_and_foldable(net, None if shape is None else torch.rand(shape))


@pytest.mark.parametrize(("name", "shape", "arguments", "much"), listed(TORCHVISION))
def test_a_network_of_torchvision_is_anchored_exactly_and_folded_back(name, shape, arguments, much):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's own, about initialisation
        net = killick.nets.create(f"torchvision:{name}", num_classes=7, **arguments)
    if much == "short":
        shorten(net)
    check_exact_and_foldable(net, None if shape is None else torch.rand(shape))


def test_networks_of_transformers_are_anchored_exactly_and_folded_back():
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28}
    vit = transformers.ViTConfig(**small, intermediate_size=64, patch_size=7, num_labels=5)
    dino = transformers.Dinov2Config(**small, patch_size=14, num_labels=5)
    swin = transformers.SwinConfig(
        embed_dim=16, depths=[1, 1], num_heads=[2, 2], image_size=32, patch_size=4, window_size=4
    )
    model = check_exact_and_foldable(transformers.ViTForImageClassification(vit))
    assert model.counts  # it checks its channel count, which had to be doubled
    check_exact_and_foldable(transformers.Dinov2ForImageClassification(dino))
    check_exact_and_foldable(transformers.SwinForImageClassification(swin))


class Rescale(nn.Module):
    """A normalization as people write it: buffers and arithmetic."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(0.3, 0.6, channels)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / 0.25


def head(features: int) -> list[nn.Module]:
    return [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 5)]


class GrayAsColour(nn.Module):
    """Repeats one channel three times before its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_cnn()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.repeat(1, 3, 1, 1))


class TokensFirst(nn.Module):
    """Patches along the first axis, images along the second, as old transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Linear(48, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = nn.functional.unfold(x, 4, stride=4).permute(2, 0, 1)
        return self.fc(self.embed(tokens).tanh().mean(0))


class Aliased(nn.Module):
    """Its first layer is registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.layers = nn.Sequential(self.stem, *head(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 8, 3)), *head(8))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), *head(6)), None),
        (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, padding=1), *head(8)), None),
        (lambda: nn.Conv2d(4, 8, 1, groups=4), (2, 4, 1, 1)),
        (lambda: nn.Sequential(nn.Conv2d(1, 6, 3, bias=False, stride=2), *head(6)), None),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), *head(6)),
            None,
        ),
        (lambda: nn.Sequential(nn.Conv1d(2, 6, 3), nn.Flatten(), nn.Linear(180, 3)), (2, 2, 32)),
        (lambda: nn.Linear(6, 3), None),
        (lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)), None),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), (2, 3, 8, 8)),
        (lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 8, 3), *head(8)), (2, 3, 8, 8)),
        (lambda: nn.Sequential(nn.Upsample(scale_factor=2), small_cnn()), (2, 3, 8, 8)),
        (lambda: nn.Sequential(Rescale(), small_cnn()), None),
        (lambda: nn.Sequential(Rescale(), nn.Sequential(Rescale(), small_cnn())), None),
        (lambda: nn.Sequential(nn.Tanh(), small_cnn()), None),
        (weight_normed, None),
        (lambda: nn.Sequential(nn.Hardtanh(), small_cnn()), None),
        (lambda: nn.Sequential(nn.InstanceNorm2d(3), small_cnn()), None),
        (GrayAsColour, (2, 1, 8, 8)),
        (TokensFirst, (2, 3, 8, 8)),
        (Aliased, (2, 3, 8, 8)),
    ],
)
def test_unusual_stems_are_anchored_exactly_and_folded_back(make, shape):
    net = make()
    if isinstance(net, nn.Conv2d):
        net = nn.Sequential(net, nn.Flatten())
    check_exact_and_foldable(net, None if shape is None else torch.rand(shape))


def test_a_normalization_in_front_is_done_before_pairing_so_that_a_mask_is_the_mean_colour():
    model = killick.anchor(nn.Sequential(Rescale(), small_cnn())).eval()
    assert isinstance(model.front, Rescale)
    x, references = torch.rand(2, 2, 3, 8, 8)
    pairs = killick.pair(model.front(x), model.front(references), masked=True)
    assert_close(model(x, references, True), model.net(pairs))


def test_four_channels_are_found_where_the_network_says_three():
    net = killick.nets.create("timm:resnet18", num_classes=3, in_chans=4)
    assert killick.anchor(net).image_shape[0] == 4


def test_a_tuple_and_an_output_with_logits_both_give_the_logits():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_cnn()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.net(x), x.mean()

    model = killick.anchor(Pair()).eval()
    x, references = torch.rand(2, 2, 3, 8, 8)
    assert model(x, references).shape == (2, 5)


class Method(nn.Module):
    """Changes the image inside `forward`, where it cannot be taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_cnn()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(2 * x - 1)


class Clamped(nn.Module):
    """Clips inside `forward`, which noise in -1 to 1 would not show."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_cnn()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.clamp(-3, 3))


class Skip(nn.Module):
    """Reads the image twice, once past every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((self.conv(x) + x[:, :3]).mean((2, 3)))


def spectral_normed() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)), *head(8))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Method, "found Conv2d.* at 'net.0' .* something changes the image before it.*normalize="),
        (Clamped, "something changes the image before it"),
        (Skip, "found Conv2d.* at 'conv' .* something else reads the image too.*stem="),
        (
            lambda: nn.Sequential(nn.BatchNorm2d(3), small_cnn()),
            "read by a convolution or a linear layer, found BatchNorm2d.* at '0'",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm2d(3, affine=False), small_cnn()),
            "found Conv2d.* at '1.0' .* does not run on 6 channels .*running_mean",
        ),
        (spectral_normed, "at '0' reading the image, .*remove_parametrizations"),
        (lambda: nn.Flatten(), "found no parameters at all"),
        (lambda: nn.Sequential(nn.Embedding(3, 3)), "ran on none of .*Pass example="),
        (lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.LayerNorm(192)), "found LayerNorm"),
    ],
)
def test_what_cannot_be_anchored_is_refused_by_name_with_the_way_out(make, text):
    shape = (2, 3, 8, 8) if make is not None else None
    net = make()
    example = None if isinstance(net, nn.Flatten) or "Embedding" in str(net) else torch.rand(shape)
    with pytest.raises(StemError, match=text):
        killick.anchor(net, example=example)


def test_the_stem_can_be_named():
    net = small_cnn().eval()
    model = killick.anchor(net, stem="0")
    assert [stem.name for stem in model.stems] == ["0"]
    with pytest.raises(
        StemError, match="expected stem='1' to name a conv.* found BatchNorm2d.*0, 3"
    ):
        killick.anchor(net, stem="1")
    with pytest.raises(StemError, match="expected stem='first' .* there is none"):
        killick.anchor(net, stem=["first"])
    with pytest.raises(StemError, match="found Conv2d"):
        killick.anchor(net, stem="3")  # not the one that reads the image


def test_an_example_the_network_does_not_accept_is_refused():
    with pytest.raises(
        StemError, match=r"not run on the example of shape \(2, 5, 8, 8\).*5 channels"
    ):
        killick.anchor(small_cnn(), example=torch.rand(2, 5, 8, 8))
    with pytest.raises(StemError, match=r"expected example to be a batch .* found shape \(3,\)"):
        killick.anchor(small_cnn(), example=torch.rand(3))


def test_timm_s_own_rule_for_six_channels_would_change_every_prediction():
    net = killick.nets.create("timm:resnet18", num_classes=5).eval()
    from timm.models._manipulate import adapt_input_conv

    model = killick.anchor(net)
    halved = copy.deepcopy(model)
    halved.net.conv1.weight.data = adapt_input_conv(6, net.conv1.weight.data)
    x, references = torch.rand(2, 2, 3, 64, 64)
    assert_close(model.eval()(x, references), net(x), atol=1e-4, rtol=1e-4)
    assert (halved.eval()(x, references) - net(x)).abs().max() > 1e-3


@pytest.mark.parametrize("init", ["exact", "random"])
def test_a_second_reader_of_the_image_is_refused_for_either_init(init):
    with pytest.raises(StemError, match="something else reads the image too"):
        killick.anchor(Skip(), init=init, example=torch.rand(2, 3, 8, 8))


@pytest.mark.parametrize("example", [torch.zeros(2, 3, 8, 8), torch.ones(1, 3, 8, 8)])
def test_an_example_may_be_constant_or_a_single_image(example):
    assert killick.anchor(small_cnn(), example=example).image_shape == (3, 8, 8)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_folding_a_constant_reference_is_checked_as_any_other(value):
    model = stir(killick.anchor(TokensFirst(), example=torch.rand(2, 3, 8, 8))).eval()
    model.set_references(torch.full((1, 3, 8, 8), value))
    x = torch.rand(6, 3, 8, 8)
    assert_close(killick.fold(model)(x), model(x), atol=1e-5, rtol=1e-5)


def test_a_stem_that_cannot_be_folded_is_refused_and_says_so():
    class TokensInBatch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.fc = nn.Linear(48, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            tokens = nn.functional.unfold(x, 4, stride=4).transpose(1, 2)
            return self.fc(self.embed(tokens.flatten(0, 1)).tanh().view(len(x), -1, 16).mean(1))

    model = killick.anchor(TokensInBatch(), example=torch.rand(2, 3, 8, 8)).eval()
    model.set_references(torch.rand(1, 3, 8, 8))
    with pytest.raises(
        StemError, match=r"an axis for the images .* \(8, 16\) for two .* for three"
    ):
        killick.fold(model)


def test_what_is_no_network_or_anchored_already_is_refused():
    with pytest.raises(
        killick.errors.OptionError, match="expected a network.*found str.*nets.create"
    ):
        killick.anchor("resnet18")
    with pytest.raises(StemError, match="anchored already"):
        killick.anchor(killick.anchor(small_cnn()))
    with pytest.raises(killick.errors.OptionError, match=r"normalize=\(mean, std\), a pair"):
        killick.anchor(small_cnn(), normalize=[0.5, 0.5, 0.5])
    with pytest.raises(killick.errors.OptionError, match="images in 0 to 1, found a mean of 123"):
        killick.anchor(small_cnn(), normalize=((123, 116, 103), (58, 57, 57)))


def test_a_compiled_network_is_anchored_as_what_it_was_made_from():
    net = small_cnn().eval()
    model = killick.anchor(torch.compile(net, backend="eager"))
    x, references = torch.rand(2, 2, 3, 8, 8)
    assert_close(model(x, references), net(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("given", [True, False])
def test_few_passes_go_beyond_the_first_layers(given):
    """All but two in anchoring, and all but two in folding, stop after the stem."""
    net = small_cnn()
    example = torch.rand(2, 3, 32, 32) if given else None
    ends: list[int] = []
    net[-1].register_forward_hook(lambda *_: ends.append(1))
    model = killick.anchor(net, example=example).eval()
    assert len(ends) <= 2
    ends.clear()
    killick.fold(model.set_references(torch.rand(1, *model.image_shape)))
    assert len(ends) <= 2
