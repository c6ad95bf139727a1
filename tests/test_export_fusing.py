"""Folded networks with fewer operations: the same function, whatever stands around the stem."""

import pytest
import torch
from torch import nn

import killick
from killick.core.folding import FoldedStem
from killick.deploy.deployed_net import AsFloats, deploy, fuse

NORMALISE = ((0.5, 0.4, 0.3), (0.25, 0.2, 0.3))


def unsettle(net: nn.Module) -> nn.Module:
    """Weights and statistics that make every mistake visible."""
    generator = torch.Generator().manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values, low, high in (
                (module.running_mean, -1, 1),
                (module.running_var, 0.5, 2),
                (module.weight, 0.5, 2),
                (module.bias, -1, 1),
            ):
                if values is None:
                    continue
                values.data.copy_(
                    torch.rand(values.shape, generator=generator) * (high - low) + low
                )
    return net.eval()


def anchored(net: nn.Module, side: int = 16, k: int = 3, normalize=NORMALISE) -> killick.Anchored:
    """Anchored, its two halves told apart, with random references."""
    example = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    model = killick.anchor(unsettle(net), normalize=normalize, example=example).eval()
    generator = torch.Generator().manual_seed(2)
    for stem in model.stems:
        weight = model.net.get_parameter(f"{stem.name}.weight").data
        weight.mul_(0.5 + torch.rand(weight.shape, generator=generator))
    references = torch.randint(256, (k, 3, side, side), generator=generator).to(torch.uint8)
    if normalize is None:
        references = references / 255
    return model.set_references(references)


def images(n: int = 5, side: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(256, (n, 3, side, side), generator=generator).to(torch.uint8)


def stems_of(folded) -> list[FoldedStem]:
    return [part for part in folded.modules() if isinstance(part, FoldedStem)]


def count_norms(net: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in net.modules())


def plain(*between: nn.Module, **conv) -> nn.Module:
    layer = nn.Conv2d(3, 8, 3, **{"padding": 1, "bias": True, **conv})
    return nn.Sequential(layer, *between, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(4))


NETWORKS = {
    "resnet": lambda: killick.nets.create("killick:resnet_small", num_classes=4),
    "bias and norm": lambda: plain(nn.BatchNorm2d(8), nn.ReLU()),
    "norm without weights": lambda: plain(nn.BatchNorm2d(8, affine=False), nn.ReLU()),
    "stride": lambda: plain(nn.BatchNorm2d(8), nn.ReLU(), stride=2),
    "reflected edges": lambda: plain(nn.BatchNorm2d(8), padding_mode="reflect"),
    "vit": lambda: killick.nets.create(
        "timm:vit_tiny_patch16_224", num_classes=4, img_size=16, patch_size=4, depth=1
    ),
    "resnet with a maximum": lambda: killick.nets.create("timm:resnet18", num_classes=4),
    "norm and activation in one": lambda: killick.nets.create("timm:regnetx_002", num_classes=4),
}


@pytest.fixture(params=NETWORKS, scope="module")
def network(request):
    torch.manual_seed(0)
    net = NETWORKS[request.param]()
    net(torch.rand(2, 3, 16, 16))  # lazy layers
    return request.param, net


@pytest.mark.parametrize("k", [1, 3])
def test_the_fused_network_computes_what_the_anchored_one_does(network, k):
    name, net = network
    model = anchored(net)
    fused = fuse(killick.fold(model, k))
    # The oracle: the anchored model itself, in float64, one reference after the other.
    exact = anchored(net.double())
    x = images()
    views = [r.expand_as(x) for r in exact.references[:k]]
    with torch.no_grad():
        expected = torch.stack([exact(x, view) for view in views]).mean(0)
        found = fused(x).double()
    net.float()
    scale = expected.abs().max()
    assert float((found - expected).abs().max() / scale) < 2e-5
    assert isinstance(fused.normalize, AsFloats), "the normalization is not in the first layer"
    if name != "vit":
        assert count_norms(fused) == count_norms(killick.fold(model, k)) - 1


def test_the_maximum_comes_before_the_relu():
    torch.manual_seed(0)
    model = anchored(killick.nets.create("timm:resnet18", num_classes=4))
    fused = fuse(killick.fold(model))
    assert isinstance(fused.net.act1, nn.Identity)
    assert [type(part) for part in fused.net.maxpool] == [nn.MaxPool2d, nn.ReLU]


def test_the_folded_network_is_left_as_it_is(network):
    _, net = network
    folded = killick.fold(anchored(net))
    before = {name: value.clone() for name, value in folded.state_dict().items()}
    fuse(folded)
    after = folded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


class Twice(nn.Module):
    """The first layer's output is used by a norm, and beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        y = self.first(x)
        return self.last((self.norm(y) + y).mean((2, 3)))


class Squared(nn.Module):
    """The first layer does not read just the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.first(x.flip(-1)).mean((2, 3)))


def test_a_norm_beside_which_the_layer_is_read_too_is_left_alone():
    torch.manual_seed(0)
    model = anchored(Twice())
    fused = fuse(killick.fold(model))
    assert count_norms(fused) == 1
    x = images()
    assert torch.allclose(fused(x), model(x), atol=1e-4)


def test_a_layer_that_reads_a_changed_image_keeps_the_normalization_outside_or_right():
    torch.manual_seed(0)
    model = anchored(Squared())
    fused = fuse(killick.fold(model))
    x = images()
    assert torch.allclose(fused(x), model(x), atol=1e-4)


def test_grouped_layers_are_left_alone():
    torch.manual_seed(0)
    rest = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(9, 3)]
    net = nn.Sequential(nn.Conv2d(3, 9, 3, groups=3), *rest)
    model = anchored(net)
    x = images()
    assert torch.allclose(fuse(killick.fold(model))(x), model(x), atol=1e-4)


def test_floats_have_no_normalization_to_take_in():
    torch.manual_seed(0)
    net = NETWORKS["bias and norm"]()
    net(torch.rand(2, 3, 16, 16))
    model = anchored(net, normalize=None)
    fused = fuse(killick.fold(model))
    assert fused.normalize is None
    assert count_norms(fused) == 0
    x = images() / 255
    assert torch.allclose(fused(x), model(x), atol=1e-4)


def oracle(members: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every output from the logits `(k, n, classes)` in float64, from the formulas."""
    members = members.double()
    k = len(members)
    logits = sum(members) / k
    weights = logits.exp()
    each = [m.exp() / m.exp().sum(1, keepdim=True) for m in members]
    mean = sum(each) / k
    found = {
        "logits": logits,
        "probabilities": weights / weights.sum(1, keepdim=True),
        "energy": -weights.sum(1).log(),
    }
    if k > 1:
        found["std"] = (sum((e - mean) ** 2 for e in each) / (k - 1)).sqrt()
    return found


@pytest.mark.parametrize("k", [1, 2, 3])
def test_what_is_deployed_returns_what_the_formulas_say(k):
    torch.manual_seed(0)
    model = anchored(NETWORKS["resnet"]())
    deployed = deploy(model, k, has_threshold=True)
    x = images(7)
    with torch.no_grad():
        members = torch.stack([model(x, r.expand_as(x)) for r in model.references[:k]])
        expected = oracle(members)
        middle = float(expected["energy"].median())
        deployed.threshold.fill_(middle)
        found = dict(zip(deployed.outputs, deployed(x), strict=True))
    assert list(found) == [
        *("logits", "probabilities", "energy"),
        *(["std"] if k > 1 else []),
        "in_distribution",
    ]
    for name, value in expected.items():
        assert torch.allclose(found[name].double(), value, atol=1e-5), name
    assert found["in_distribution"].tolist() == (found["energy"] <= middle).tolist()
    assert 0 < found["in_distribution"].sum() < 7


def test_a_standard_model_is_deployed_as_it_is():
    torch.manual_seed(0)
    net = unsettle(NETWORKS["resnet"]())
    model = killick.standard(net, NORMALISE, image_shape=(3, 16, 16)).eval()
    deployed = deploy(model, 1, has_threshold=False)
    assert deployed.outputs == ("logits", "probabilities", "energy")
    x = images()
    with torch.no_grad():
        assert torch.equal(deployed(x)[0], model(x))


def test_what_is_no_classifier_is_refused():
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 1))
    model = killick.anchor(net, normalize=NORMALISE, example=torch.rand(2, 3, 4, 4)).eval()
    model.set_references(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(killick.errors.OutputError, match="only classifiers"):
        deploy(model, 1, has_threshold=False)
