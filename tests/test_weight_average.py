"""The moving average of the weights: torch's own, and right for anchored networks."""

import copy

import pytest
import torch
from conftest import small_cnn
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

import killick
from killick.protocols.components.weight_average import WeightAverage


def follow(model: nn.Module, **settings) -> WeightAverage:
    average = WeightAverage(**settings)
    average.setup(model, None)
    return average


def change(model: nn.Module) -> None:
    """One step of training, roughly: other weights, and statistics of another batch."""
    model.train()
    with torch.no_grad():
        model(torch.rand(8, 3, 8, 8) * 3)
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)


def floats(model: nn.Module) -> list[torch.Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor.clone() for tensor in tensors if tensor.is_floating_point()]


@pytest.mark.parametrize("decay", [0.5, 0.99, 0.9999])
@pytest.mark.parametrize("every", [1, 3])
def test_weights_and_statistics_are_those_of_torchs_average(decay, every):
    model = small_cnn()
    ours = follow(model, decay=decay, every=every)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    for step in range(1, 11):
        change(model)
        ours.step(step)
        if step % every == 0:
            theirs.update_parameters(model)
        assert_close(floats(ours.average), floats(theirs.module))


@pytest.mark.parametrize("every", [1, 4])
def test_it_follows_after_every_so_many_steps_and_not_between(every):
    model = small_cnn()
    average = follow(model, decay=0.5, every=every)
    for step in range(1, 9):
        before = floats(average.average)
        change(model)
        average.step(step)
        moved = any(
            not torch.equal(a, b) for a, b in zip(before, floats(average.average), strict=True)
        )
        assert moved == (step % every == 0)


def test_it_starts_at_the_first_update_and_the_share_of_the_model_is_one_less_decay():
    model = nn.Linear(1, 1, bias=False)
    average = follow(model, decay=0.75)
    model.weight.data.fill_(8.0)
    average.step(1)  # the weights before training mean nothing
    assert average.average.weight.item() == 8
    model.weight.data.fill_(0.0)
    average.step(2)
    assert average.average.weight.item() == 6
    average.step(3)
    assert average.average.weight.item() == 4.5


def test_whole_number_buffers_are_copied():
    model = small_cnn()
    average = follow(model, decay=0.999)
    for step in range(1, 4):
        change(model)
        average.step(step)
    assert average.average[1].num_batches_tracked == model[1].num_batches_tracked == 3
    change(model)
    assert average.average[1].num_batches_tracked == 3


def test_the_model_is_left_alone_and_the_average_is_ready_to_be_judged():
    model = small_cnn().train()
    before = copy.deepcopy(model.state_dict())
    average = follow(model, decay=0.9)
    average.step(1)
    assert_close(model.state_dict(), before)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not average.average.training
    assert not any(parameter.requires_grad for parameter in average.average.parameters())


def test_updates_draw_nothing_and_keep_no_graph():
    model = small_cnn()
    average, before = follow(model, decay=0.9), torch.get_rng_state()
    average.step(1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad_fn is None for parameter in average.average.parameters())


def trained(decay: float, alpha: float) -> tuple[killick.Anchored, WeightAverage, list]:
    """An anchored model after some masked steps, its average, and the pairs it has seen."""
    model = killick.anchor(small_cnn()).set_references(torch.rand(1, 3, 8, 8)).train()
    average = follow(model, decay=decay)
    masking = killick.ReferenceMasking(alpha=alpha, target="label")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator, seen = torch.Generator().manual_seed(0), []
    for step in range(1, 9):
        x = torch.rand(8, 3, 8, 8, generator=generator)
        draw = masking.draw(8, "cpu", generator=generator)
        seen.append((x, x[draw.chosen]))
        logits, targets = masking.forward(model, x, torch.arange(8) % 5, draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, targets).backward()
        optimizer.step()
        average.step(step)
    return model, average, seen


def first_statistics(model: killick.Anchored, pairs: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the first BatchNorm over unmasked pairs, by hand: mean over batches of 32."""
    x, references = (torch.cat(parts).split(32) for parts in zip(*pairs, strict=True))
    with torch.no_grad():
        found = [model.net[0](torch.cat([r, i - r], 1)) for i, r in zip(x, references, strict=True)]
    means = torch.stack([f.mean((0, 2, 3)) for f in found])
    variances = torch.stack([f.transpose(0, 1).flatten(1).var(1) for f in found])
    return means.mean(0), variances.mean(0)


@pytest.mark.parametrize("switched", [False, True])
def test_an_anchored_average_has_batchnorm_statistics_of_its_own_weights(switched):
    model, average, seen = trained(decay=0.9, alpha=0.5)
    if switched:
        average.average.train()
    model.eval()
    average.average.eval()(torch.rand(2, 3, 8, 8))
    for judged in (model, average.average):
        mean, variance = first_statistics(judged, seen)
        assert_close(judged.net[1].running_mean, mean)
        assert_close(judged.net[1].running_var, variance)
    apart = (model.net[1].running_mean - average.average.net[1].running_mean).abs().max()
    assert apart > 1e-3


def test_an_anchored_average_that_goes_on_is_settled_again():
    model, average, seen = trained(decay=0.9, alpha=0.5)
    average.average.eval()(torch.rand(2, 3, 8, 8))
    average.step(9)
    average.average(torch.rand(2, 3, 8, 8))
    assert_close(average.average.net[1].running_mean, first_statistics(average.average, seen)[0])


def test_an_anchored_average_without_masks_averages_the_statistics():
    torch.manual_seed(0)
    _, average, _ = trained(decay=0.9, alpha=0.0)
    before = average.average.net[1].running_mean.clone()
    average.average.eval()(torch.rand(2, 3, 8, 8))
    assert_close(average.average.net[1].running_mean, before)


def test_an_anchored_average_keeps_the_stored_references():
    model, average, _ = trained(decay=0.5, alpha=0.5)
    assert torch.equal(average.average.references, model.references)
