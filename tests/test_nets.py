"""Kedge's own networks, and all others by name."""

import pytest
import torch

import kedge
from kedge.errors import OptionError


def parameters(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_resnet18_has_the_parameters_of_the_paper_s():
    assert parameters(kedge.nets.resnet18()) == 11_173_962
    assert parameters(kedge.nets.resnet18(in_chans=6)) == 11_175_690
    assert parameters(kedge.nets.resnet18(num_classes=100, in_chans=6)) == 11_221_860


@pytest.mark.parametrize("name", sorted(kedge.nets.OWN))
def test_own_networks_take_small_images_of_any_size(name):
    net = kedge.nets.create(f"kedge:{name}", num_classes=7, in_chans=1).eval()
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert net(torch.zeros(2, 1, 28, 20)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("resnet18", "'library:name', such as 'kedge:resnet18' or 'timm:resnet18'"),
        ("kedge:resnet17", r"did you mean 'resnet18'\?"),
        ("timm:resnet181", "and .* more, found 'resnet181'"),
        ("tim:resnet18", r"found 'tim' \(did you mean 'timm'\?\)"),
        ("torchvision:resnet", "found 'resnet'"),
    ],
)
def test_an_unknown_network_is_refused_with_the_nearest_name(name, text):
    with pytest.raises(OptionError, match=text):
        kedge.nets.create(name)


def test_a_wrong_argument_is_refused_by_name():
    with pytest.raises(OptionError, match="cannot make 'kedge:resnet18' with .*'depth'"):
        kedge.nets.create("kedge:resnet18", depth=3)
