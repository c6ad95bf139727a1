"""`killick convert`: exact anchoring without training, and the authors' checkpoints."""

import argparse

import pytest
import torch
import torchvision
from hub_cache import use_caches
from test_pretrained import fill_hf_hub
from torch import nn
from torch.nn import functional as f
from torch.testing import assert_close

import killick
from killick.cli import main
from killick.data.preprocessing import view_for
from killick.deploy.converter import convert
from killick.errors import CheckpointError, OptionError
from killick.results.rows import read_rows
from killick.storage.llnl_checkpoints import read_llnl

CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def normalized(images, mean, std):
    shape = (1, 3, 1, 1)
    return (images / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


class Block(nn.Module):
    """As the authors name its parts."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.bn2(self.conv2(f.relu(self.bn1(self.conv1(x)))))
        return f.relu(out + self.shortcut(x))


class PairResNet18(nn.Module):
    """A ResNet-18 for CIFAR with a first layer for pairs."""

    def __init__(self, classes, channels=6):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for stage in range(1, 5):
            first = Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2)
            second = Block(widths[stage], widths[stage], 1)
            setattr(self, f"layer{stage}", nn.Sequential(first, second))
        self.linear = nn.Linear(512, classes)

    def forward(self, x):
        x = f.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(f.avg_pool2d(x, 4).flatten(1))


def shaken(net, seed=0):
    """Also the statistics of BatchNorm differ from their defaults."""
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return net.eval()


def wrap(state, prefix):
    return {prefix + name: weight for name, weight in state.items()}


@pytest.mark.parametrize("prefix", ["module.net.", "net.", "module."])
def test_a_cifar_checkpoint_of_the_authors_computes_what_it_did(tmp_path, prefix):
    torch.manual_seed(0)
    net = shaken(PairResNet18(7))
    state = {"net": wrap(net.state_dict(), prefix), "acc": 93.5, "epoch": 199}
    torch.save(state, tmp_path / "ckpt.pth")
    words = [str(tmp_path / "ckpt.pth"), str(tmp_path / "out"), "--format", "llnl", "--quiet"]
    assert main(["convert", *words]) == 0
    model = killick.load(tmp_path / "out")
    x, r = torch.randint(0, 256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    ours = model(x, r)
    a, b = normalized(x, *CIFAR), normalized(r, *CIFAR)
    with torch.no_grad():
        assert_close(ours, net(torch.cat([b, a - b], 1)), rtol=1e-3, atol=1e-4)
    masked = model(x, r, masked=True)
    with torch.no_grad():
        assert_close(masked, net(torch.cat([0 * b, a - b], 1)), rtol=1e-3, atol=1e-4)
    assert view_for(model).described == "32 px"
    model.set_references(r[:1])
    assert_close(killick.fold(model)(x), model(x), rtol=1e-3, atol=1e-3)


def test_a_converted_checkpoint_is_evaluated_with_references_of_the_data(tmp_path, capsys):
    torch.manual_seed(0)
    state = {"net": wrap(PairResNet18(10).state_dict(), "module.net.")}
    torch.save(state, tmp_path / "ckpt.pth")
    out = str(tmp_path / "out")
    words = [str(tmp_path / "ckpt.pth"), out, "--format", "llnl"]
    assert main(["convert", *words, "--data", "digits", "--references", "3"]) == 0
    assert len(killick.load(out).references) == 3
    rows = ["--data", "digits", "--suite", "clean", "--limit", "20", "--quiet"]
    assert main(["evaluate", out, *rows, "--output", str(tmp_path / "rows")]) == 0
    assert {row["protocol"] for row in read_rows(tmp_path / "rows")} == {"anchored"}
    capsys.readouterr()
    assert main(["convert", *words]) == 2  # not written over
    assert "it exists" in capsys.readouterr().err
    other = [*words[:1], str(tmp_path / "bare"), *words[2:]]
    assert main(["convert", *other]) == 0
    assert "No references are stored" in capsys.readouterr().err


def imagenet_state(net, wrapper="module.net."):
    """As torchvision's script saves it, with its options and an average of the weights."""
    zeros = {name: torch.zeros_like(weight) for name, weight in net.state_dict().items()}
    average = {"n_averaged": torch.tensor(7), **wrap(net.state_dict(), f"module.{wrapper}")}
    return {
        "model": wrap(zeros, wrapper.removeprefix("module.")),
        "model_ema": average,
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 372,
        "args": argparse.Namespace(model="x", corrupt_prob=0.2),
    }


@pytest.mark.parametrize("name", ["swin_v2_t", "swin_v2_s", "swin_v2_b", "vit_b_16"])
def test_networks_of_imagenet_are_known_by_their_layers(tmp_path, name, monkeypatch):
    """With weights without numbers; see the slow test for the whole."""
    with torch.device("meta"):
        net = torchvision.models.get_model(name)
        if name == "vit_b_16":
            net.conv_proj = nn.Conv2d(6, 768, 16, 16)
        else:
            net.features[0][0] = nn.Conv2d(6, net.features[0][0].out_channels, 4, 4)
    state = {k: torch.zeros(()).expand(v.shape) for k, v in net.state_dict().items()}
    monkeypatch.setattr(net, "state_dict", lambda: state)
    torch.save(imagenet_state(net), tmp_path / "372_top1_84.06.pth")
    found = read_llnl(tmp_path / "372_top1_84.06.pth")
    assert found.network == f"torchvision:{name}"
    assert found.weights.keys() == state.keys()
    assert found.preprocessing.size == (224 if name == "vit_b_16" else 256)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_v2_t", "vit_b_16"])
def test_an_imagenet_checkpoint_of_the_authors_computes_what_it_did(tmp_path, name):
    torch.manual_seed(0)
    net = torchvision.models.get_model(name)
    if name == "vit_b_16":
        net.conv_proj = nn.Conv2d(6, 768, 16, 16)
        nn.init.normal_(net.heads.head.weight, std=0.1)  # torchvision's zeros tell nothing
    else:
        net.features[0][0] = nn.Conv2d(6, 96, 4, 4)
    net.eval()
    torch.save(imagenet_state(net), tmp_path / "net.pth")
    model = convert(tmp_path / "net.pth", tmp_path / "out", format="llnl")
    x, r = torch.randint(0, 256, (2, 2, *model.image_shape), dtype=torch.uint8)
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    a, b = normalized(x, *imagenet), normalized(r, *imagenet)
    with torch.no_grad():
        expected = net(torch.cat([b, a - b], 1))
        assert_close(killick.load(tmp_path / "out")(x, r), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"net": PairResNet18(10, channels=3).state_dict()}, "6 channels, found .64, 3, 3, 3."),
        ({"net": {"module.a.weight": torch.zeros(2)}}, "LLNL/anchoring"),
        ({"net": {"weight": torch.zeros(2)}}, "LLNL/anchoring"),
        ({"net": 3}, "LLNL/anchoring"),
        ([1, 2], "LLNL/anchoring"),
        ({"net": PairResNet18(10), "epoch": 3}, "damaged, or not"),  # a pickled network
    ],
)
def test_other_files_are_no_checkpoints_of_the_authors(tmp_path, content, message):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=message):
        read_llnl(tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="no such file"):
        read_llnl(tmp_path / "y.pth")


def test_a_pretrained_network_is_anchored_exactly(tmp_path, monkeypatch, capsys):
    net, _ = fill_hf_hub(use_caches(monkeypatch, tmp_path / "caches"))
    out = tmp_path / "out"
    assert main(["convert", "hf-hub:me/net", str(out)]) == 0
    assert "32 of 40 px" in capsys.readouterr().out
    model = killick.load(out)
    assert model.class_names == ("class0", "class1", "class2", "class3")
    x, r = torch.randint(0, 256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    half = ((0.4,) * 3, (0.3,) * 3)
    for found in (model(x), model(x, r)):
        assert_close(found, net(normalized(x, *half)), rtol=1e-3, atol=1e-4)
    assert model.reference_kind == "mean"  # no training image
    assert main(["convert", str(out), str(tmp_path / "again")]) == 2
    assert "anchored model already" in capsys.readouterr().err


def test_a_file_with_weights_of_either_kind_is_converted(tmp_path, capsys):
    torch.manual_seed(0)
    plain = shaken(killick.nets.create("killick:resnet18", num_classes=5))
    paired = shaken(killick.nets.create("killick:resnet18", num_classes=5, in_chans=6), 1)
    x, r = torch.randint(0, 256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    for name, net in (("plain", plain), ("paired", paired)):
        torch.save(net.state_dict(), tmp_path / f"{name}.pth")
        words = [str(tmp_path / f"{name}.pth"), str(tmp_path / name), "--quiet"]
        words += ["--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2"]
        assert main(["convert", *words]) == 2
        assert "--network" in capsys.readouterr().err
        assert main(["convert", *words, "--network", "killick:resnet18"]) == 0
    half = ((0.5,) * 3, (0.2,) * 3)
    a, b = normalized(x, *half), normalized(r, *half)
    with torch.no_grad():
        expected = plain(a), paired(torch.cat([b, a - b], 1))
        for name, wanted in zip(("plain", "paired"), expected, strict=True):
            found = killick.load(tmp_path / name)(x, r)
            assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_network_written_for_pairs_is_converted(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Pairs(nn.Sequential):\n"
        "    def __init__(self, num_classes=3):\n"
        "        super().__init__(nn.Conv2d(6, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),\n"
        "                         nn.Linear(8, num_classes))\n"
    )
    monkeypatch.setenv("KILLICK_NETWORKS", str(tmp_path / "mine.py"))
    net = killick.nets.create("mine:Pairs", num_classes=3)
    torch.save(net.state_dict(), tmp_path / "net.pth")
    words = ["mine:Pairs", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "net.pth")]
    words += ["--size", "16", "--mean", "0,0,0", "--std", "1,1,1", "--quiet"]
    assert main(["convert", *words, "--pairs"]) == 0
    x, r = torch.randint(0, 256, (2, 4, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        expected = net(torch.cat([r / 255, x / 255 - r / 255], 1))
    assert_close(killick.load(tmp_path / "out")(x, r), expected, rtol=1e-3, atol=1e-4)


def test_contradictions_are_refused(tmp_path):
    with pytest.raises(OptionError, match="llnl requires a checkpoint"):
        convert("timm:resnet18", tmp_path / "out", format="llnl")
    with pytest.raises(OptionError, match="--network is for a file"):
        convert("timm:resnet18", tmp_path / "out", network="timm:resnet18")
    with pytest.raises(OptionError, match="no weights"):
        convert("timm:resnet18", tmp_path / "out")
    assert not (tmp_path / "out").exists()
