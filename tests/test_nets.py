"""Killick's own networks, and all others by name."""

import pytest
import torch
from conftest import stir
from torch.nn import functional as f
from torch.testing import assert_close

import killick
from killick.errors import OptionError


def parameters(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_resnet18_has_the_parameters_of_the_paper_s():
    assert parameters(killick.nets.resnet18()) == 11_173_962
    assert parameters(killick.nets.resnet18(in_chans=6)) == 11_175_690
    assert parameters(killick.nets.resnet18(num_classes=100, in_chans=6)) == 11_221_860


def test_wrn40_2_has_forty_convolutions_and_the_parameters_of_the_paper_s():
    net = killick.nets.wrn40_2(num_classes=100, in_chans=6)
    assert sum(isinstance(module, torch.nn.Conv2d) for module in net.modules()) == 40
    assert parameters(net) == 2_255_588
    assert parameters(killick.nets.wrn40_2(num_classes=100)) == 2_255_588 - 432


def wide_resnet_40_2(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The logits from the weights alone, written down from the paper's table, not from the code."""

    def activated(x, name):
        mean, var, scale, shift = (
            weights[f"{name}.{part}"].view(-1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp_min(0)

    x = f.conv2d(x, weights["conv1.weight"], padding=1)
    for i in range(18):
        block, stride = f"blocks.{i}", 2 if i in (6, 12) else 1
        read = activated(x, f"{block}.bn1")
        if i in (0, 6, 12):
            x = f.conv2d(read, weights[f"{block}.shortcut.weight"], stride=stride)
        y = f.conv2d(read, weights[f"{block}.conv1.weight"], stride=stride, padding=1)
        x = x + f.conv2d(activated(y, f"{block}.bn2"), weights[f"{block}.conv2.weight"], padding=1)
    return activated(x, "bn").mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]


def test_wrn40_2_computes_what_the_paper_s_table_says():
    net = stir(killick.nets.wrn40_2(num_classes=7)).double().eval()
    for norm in (m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.running_mean.normal_(std=0.1)
        norm.running_var.uniform_(0.5, 2)
    x = torch.rand(2, 3, 16, 12, dtype=torch.float64)
    assert_close(net(x), wide_resnet_40_2(net.state_dict(), x))


def test_dropout_of_wrn40_2_is_off_unless_asked_for():
    x = torch.rand(2, 3, 8, 8)
    plain, dropping = killick.nets.wrn40_2().train(), killick.nets.wrn40_2(dropout=0.5).train()
    assert_close(plain(x), plain(x))
    assert (dropping(x) - dropping(x)).abs().max() > 1e-3
    assert_close(dropping.eval()(x), dropping(x))


@pytest.mark.parametrize("name", sorted({*killick.nets.NETWORKS.names()} - {"ensemble"}))
def test_own_networks_take_small_images_of_any_size(name):
    net = killick.nets.create(f"killick:{name}", num_classes=7, in_chans=1).eval()
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert net(torch.zeros(2, 1, 28, 20)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("resnet18", "'library:name', such as 'killick:resnet18' or 'timm:resnet18'"),
        ("killick:resnet17", r"did you mean 'resnet18'\?"),
        ("timm:resnet181", "and .* more, found 'resnet181'"),
        ("tim:resnet18", r"found 'tim' \(did you mean 'timm'\?\)"),
        ("torchvision:resnet", "found 'resnet'"),
    ],
)
def test_an_unknown_network_is_refused_with_the_nearest_name(name, text):
    with pytest.raises(OptionError, match=text):
        killick.nets.create(name)


def test_a_wrong_argument_is_refused_by_name():
    with pytest.raises(OptionError, match="cannot make 'killick:resnet18' with .*'depth'"):
        killick.nets.create("killick:resnet18", depth=3)
