"""Optimizers: which weights decay, and states that move between devices."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import killick
from killick.training.optimizers import make_optimizer, restore_optimizer, set_rate, weight_groups
from killick.training.recipe import Optimizer

CPU = torch.device("cpu")


def test_all_weights_decay_or_matrices_alone():
    net = killick.nets.create("torchvision:vit_b_16", num_classes=3, image_size=32)
    (whole,) = weight_groups([net], Optimizer(weight_decay=0.3))
    assert len(whole["params"]) == len(list(net.parameters()))
    decaying, exempt = weight_groups([net], Optimizer(weight_decay=0.3, decay="matrices"))
    assert (decaying["weight_decay"], exempt["weight_decay"]) == (0.3, 0.0)
    left_out = {id(weight) for weight in exempt["params"]}
    for name, weight in net.named_parameters():
        special = name in ("class_token", "encoder.pos_embedding")
        norm_or_bias = weight.ndim == 1
        assert (id(weight) in left_out) == (special or norm_or_bias), name


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_an_optimizer_goes_on_from_its_state(name):
    def steps(net, optimizer, count):
        for number in range(count):
            set_rate(optimizer, 0.1 / (number + 1))
            optimizer.zero_grad()
            net(torch.ones(1, 2)).square().sum().backward()
            optimizer.step()

    settings = Optimizer(name=name, nesterov=True)
    torch.manual_seed(0)
    whole, cut = nn.Linear(2, 2), nn.Linear(2, 2)
    cut.load_state_dict(whole.state_dict())
    first, second = (make_optimizer([net], settings, CPU) for net in (whole, cut))
    steps(whole, first, 3)
    steps(cut, second, 3)
    again = make_optimizer([cut], settings, CPU)
    restore_optimizer(again, second.state_dict())
    steps(whole, first, 2)
    steps(cut, again, 2)
    assert torch.equal(whole.weight, cut.weight)


def test_a_state_moves_as_this_devices_optimizer_wants_it():
    """As from a CPU to a GPU: there the count of steps must lie beside the weights."""
    net = nn.Linear(2, 2)
    optimizer = make_optimizer([net], Optimizer(name="adamw"), CPU)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    other = nn.Linear(2, 2, device="meta")
    moved = torch.optim.AdamW(other.parameters(), lr=torch.tensor(0.1), capturable=True)
    restore_optimizer(moved, optimizer.state_dict())
    assert all(state["step"].device.type == "meta" for state in moved.state.values())
    assert moved.param_groups[0]["capturable"]


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_an_optimizer_computes_and_calls_hooks_as_torchs_own_does(name, kind):
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    settings = Optimizer(name=name, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    options = {"sgd": {"momentum": 0.9, "nesterov": True}, "adamw": {"betas": settings.betas}}
    usual = kind(theirs.parameters(), lr=0.1, weight_decay=0.01, **options[name])
    called = []
    for net, optimizer in ((ours, make_optimizer([ours], settings, CPU)), (theirs, usual)):
        assert isinstance(optimizer, kind)
        optimizer.register_step_pre_hook(lambda *given: called.append("before"))
        optimizer.register_step_post_hook(lambda *given: called.append("after"))
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for number in range(4):
            optimizer.zero_grad()
            net(torch.arange(3.0) + number).square().sum().backward()
            optimizer.step()
            decay.step()
    assert called == ["before", "after"] * 8
    for mine, usual in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, usual)


def test_an_eager_run_does_not_import_the_compiler(tmp_path):
    words = ["--recipe", "small-shapes", "--epochs", "1", "--data.limit", "64", "--device", "cpu"]
    code = (
        "import sys; from killick.cli import main;"
        f" assert main({['train', *words, '--output', str(tmp_path / 'run')]}) == 0;"
        " assert not {'torch._dynamo', 'torch._inductor'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
