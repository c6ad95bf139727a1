"""Networks that were written for pairs, with twice the channels of an image."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import killick
from killick.cli import main
from killick.errors import OptionError, StemError


def plain_conv(channels):
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        nn.Linear(8 * 7 * 7, 4),
    )


def patches(channels):
    """A network that reorders its input before its first layer."""
    return nn.Sequential(
        *(nn.PixelUnshuffle(4), nn.Conv2d(channels * 16, 6, 1), nn.GELU(), nn.Flatten()),
        nn.Linear(6 * 16, 4),
    )


NETS = {
    "conv": lambda: plain_conv(6),
    "patches": lambda: patches(6),
    "timm": lambda: killick.nets.create("timm:test_vit", in_chans=6, num_classes=4, img_size=16),
    "own": lambda: killick.nets.create("killick:resnet_small", in_chans=6, num_classes=4, width=4),
}


@pytest.mark.parametrize("name", NETS)
def test_a_pair_network_computes_what_it_is_and_folds(name):
    torch.manual_seed(0)
    net = NETS[name]().eval()
    x, r = torch.rand(2, 5, 3, 16, 16)
    model = killick.anchor(net, pairs=True, example=x)
    assert_close(model(x, r), net(torch.cat([r, x - r], 1)))
    assert_close(model(x, r, masked=True), net(torch.cat([0 * r, x - r], 1)))
    assert model.image_shape == (3, 16, 16)
    model.set_references(r)
    expected = torch.stack([net(torch.cat([e.expand_as(x), x - e], 1)) for e in r[:3]]).mean(0)
    assert_close(killick.fold(model, 3)(x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["timm", "own"])
def test_a_pair_network_is_saved_and_loaded(tmp_path, name):
    torch.manual_seed(0)
    net = NETS[name]().eval()
    half = ((0.5,) * 3, (0.25,) * 3)
    x, r = torch.randint(0, 256, (2, 5, 3, 16, 16), dtype=torch.uint8)
    model = killick.anchor(net, normalize=half, pairs=True, example=torch.rand(2, 3, 16, 16))
    model.set_references(r)
    killick.save(model, tmp_path / "saved")
    again = killick.load(tmp_path / "saved")
    assert again.written_for_pairs
    assert_close(again(x), model.eval()(x))
    assert_close(killick.fold(again)(x), model(x), rtol=1e-3, atol=1e-4)


def test_networks_of_other_channels_are_refused():
    with pytest.raises(StemError, match="expected twice the channels"):
        killick.anchor(plain_conv(3), pairs=True)
    with pytest.raises(StemError):
        killick.anchor(plain_conv(3), pairs=True, example=torch.rand(2, 3, 16, 16))


def test_a_pair_network_is_trained_by_name(tmp_path, image_folder, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Pairs(nn.Module):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(6, 8, 3, stride=2)\n"
        "        self.fc = nn.Linear(8, num_classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.conv(x).relu().mean((2, 3)))\n"
    )
    monkeypatch.setenv("KILLICK_NETWORKS", str(tmp_path / "mine.py"))
    words = ["--network", "mine:Pairs", "--network.pairs", "true", "--epochs", "1", "--batch", "4"]
    words += ["--data", f"imagefolder:{image_folder}", "--data.size", "16", "--data.workers", "0"]
    assert main(["train", *words, "--output", str(tmp_path / "run"), "--quiet"]) == 0
    model = killick.load(tmp_path / "run")
    assert model.net.conv.weight.shape[1] == 6
    x = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    normalized, reference = (
        model.normalize(x),
        model.normalize(model.references[:1]).expand(2, -1, -1, -1),
    )
    assert_close(model(x), model.net(torch.cat([reference, normalized - reference], 1)))
    plain = ["train", *words, "--protocol", "standard", "--output", str(tmp_path / "plain")]
    assert main(plain) == 2
    assert "anchored model cannot be trained" in capsys.readouterr().err


def test_an_anchored_model_is_not_anchored_again():
    model = killick.anchor(plain_conv(6), pairs=True, example=torch.rand(2, 3, 16, 16))
    with pytest.raises((StemError, OptionError), match="anchored already"):
        killick.anchor(model)
