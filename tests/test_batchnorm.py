"""BatchNorm statistics after masked training: those of unmasked pairs, whoever trains."""

import copy
import pickle

import pytest
import torch
from conftest import small_cnn
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

import killick
from killick.core.batchnorm import REMEMBERED_BYTES, RecentPairs, tracked_norms
from killick.errors import OptionError
from killick.nets import ResNet

MASKED = torch.tensor(True)


def trained(steps: int = 6, scope: str = "batch", **options) -> tuple[killick.Anchored, list]:
    """A small network after some masked steps, and the pairs it has seen."""
    model = killick.anchor(small_cnn()).train()
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform", scope=scope)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(0)
    seen = []
    for _ in range(steps):
        x = torch.rand(8, 3, 8, 8, generator=generator)
        draw = masking.draw(8, "cpu", generator=generator)
        seen.append((x, x[draw.chosen]))
        logits, targets = masking.forward(model, x, torch.arange(8) % 5, draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, targets).backward()
        optimizer.step()
    return model, seen


def statistics(model: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(n.running_mean.clone(), n.running_var.clone()) for n in tracked_norms(model)]


def fresh_statistics(model: killick.Anchored, pairs: list) -> tuple[torch.Tensor, torch.Tensor]:
    """The first BatchNorm's statistics over unmasked pairs, by hand: mean over batches of 32."""
    x, r = (torch.cat(parts).split(32) for parts in zip(*pairs, strict=True))
    features = [model.net[0](killick.pair(*both)) for both in zip(x, r, strict=True)]
    means = torch.stack([f.mean((0, 2, 3)) for f in features])
    variances = torch.stack([f.transpose(0, 1).flatten(1).var(1, correction=1) for f in features])
    return means.mean(0), variances.mean(0)


def test_running_statistics_equal_those_of_a_fresh_pass_over_unmasked_pairs():
    model, seen = trained()
    before = statistics(model)[0]
    model.eval()
    mean, variance = fresh_statistics(model, seen)
    assert_close(model.net[1].running_mean, mean)
    assert_close(model.net[1].running_var, variance)
    assert (before[0] - mean).abs().max() > 0.05  # what training had left was something else


def test_with_the_handling_off_running_statistics_are_not_those_of_unmasked_pairs():
    model, seen = trained()
    model.recent = None
    model.eval()
    mean, _ = fresh_statistics(model, seen)
    assert (model.net[1].running_mean - mean).abs().max() > 0.05


def test_digits_keep_their_accuracy_with_the_handling_and_lose_it_without():
    # Uniform target, alpha 0.5, constant learning rate 0.1, 12 epochs, after each of which the same
    # weights are judged with and without: statistics do not feed back into training.
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(digits.target)
    torch.manual_seed(2)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    generator = torch.Generator().manual_seed(2)
    model = killick.anchor(ResNet((16, 32, 64), 2, in_chans=1), example=x[:2])
    model.set_references(x[:1])
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with_handling, without = [], []
    for _ in range(12):
        model.train()
        for batch in torch.randperm(1300, generator=generator).split(64):
            optimizer.zero_grad()
            masking.loss(model, x[batch], y[batch], generator=generator).backward()
            optimizer.step()
        plain = copy.deepcopy(model)
        plain.recent = None
        for accuracies, judged in ((without, plain), (with_handling, model)):
            with torch.no_grad():
                right = judged.eval()(x[1300:]).argmax(1) == y[1300:]
            accuracies.append(right.float().mean().item())
    settled, left = torch.tensor(with_handling[2:]), torch.tensor(without[2:])
    assert settled[-1] > 0.95
    assert settled.mean() > 0.93
    assert left.mean() < settled.mean() - 0.06
    assert left.min() < 0.8


def test_only_the_last_pairs_are_remembered():
    model, seen = trained(steps=1)
    recent = RecentPairs()
    for i in range(300):
        recent.keep(torch.full((8, 1), float(i)), torch.zeros(8, 1), MASKED, (True,))
    kept = torch.cat([images for images, _ in recent.batches()]).flatten()
    assert sorted(set(kept.tolist())) == [float(i) for i in range(300 - 128, 300)]
    assert len(kept) == 1024


def test_large_images_are_remembered_within_bounds():
    recent = RecentPairs()
    recent.keep(torch.zeros(2, 3, 512, 512), torch.zeros(2, 3, 512, 512), MASKED, (True,))
    taken = 2 * recent.images.numel() * recent.images.element_size()
    assert REMEMBERED_BYTES / 2 < taken <= REMEMBERED_BYTES


def test_a_batch_larger_than_what_is_remembered_is_kept_in_part():
    recent = RecentPairs()
    recent.keep(torch.rand(1500, 2), torch.rand(1500, 2), MASKED, (True,))
    assert [len(images) for images, _ in recent.batches()] == [1024]


def test_training_statistics_stay_where_single_samples_are_masked():
    model, _ = trained(scope="sample")
    before = statistics(model)
    model.eval()
    assert_close(statistics(model), before)


def test_training_statistics_stay_where_nothing_is_masked():
    model = killick.anchor(small_cnn()).train()
    x = torch.rand(8, 3, 8, 8)
    killick.ReferenceMasking(alpha=0.0, target="label").loss(model, x, torch.arange(8) % 5)
    before = statistics(model)
    model.eval()
    assert_close(statistics(model), before)


def test_a_mask_given_by_hand_counts_as_masked_training():
    model = killick.anchor(small_cnn()).train()
    x = torch.rand(8, 3, 8, 8)
    model(x, x.flip(0), True)
    model.eval()
    mean, _ = fresh_statistics(model, [(x, x.flip(0))])
    assert_close(model.net[1].running_mean, mean)


def test_averaged_weights_get_statistics_of_their_own():
    model = killick.anchor(small_cnn()).train()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.rand(8, 3, 8, 8)
    for _ in range(5):
        optimizer.zero_grad()
        masking.loss(model, x, torch.arange(8) % 5).backward()
        optimizer.step()
        average.update_parameters(model)
    model.eval()
    average.eval()
    pairs = list(model.recent.batches())
    for judged in (model, average.module):
        mean, variance = fresh_statistics(judged, pairs)
        assert_close(judged.net[1].running_mean, mean)
        assert_close(judged.net[1].running_var, variance)
    assert (model.net[1].running_mean - average.module.net[1].running_mean).abs().max() > 1e-3


def test_a_copy_that_is_never_switched_to_eval_again_is_settled_when_called():
    model, seen = trained()
    average = copy.deepcopy(model).eval()
    with torch.no_grad():
        average.net[0].weight.add_(0.1)
    average.set_references(torch.rand(1, 3, 8, 8))(torch.rand(2, 3, 8, 8))
    assert_close(average.net[1].running_mean, fresh_statistics(average, seen)[0])


def test_a_state_dict_taken_in_train_mode_is_settled():
    model, seen = trained()
    state = model.state_dict()
    mean, _ = fresh_statistics(model, seen)
    assert_close(state["net.1.running_mean"], mean)
    assert model.training


def test_loaded_statistics_are_not_estimated_again_from_older_pairs():
    model, _ = trained()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    state["net.1.running_mean"] += 1
    x = torch.rand(8, 3, 8, 8)
    model(x, x.flip(0), True)
    model.load_state_dict(state)
    model.eval()
    assert_close(model.net[1].running_mean, state["net.1.running_mean"])


def test_a_copy_that_is_trained_itself_remembers_its_own_pairs():
    model, seen = trained()
    other = copy.deepcopy(model)
    x = torch.rand(8, 3, 8, 8)
    other(x, x.flip(0), True)
    other.eval()
    model.eval()
    assert_close(other.net[1].running_mean, fresh_statistics(other, [(x, x.flip(0))])[0])
    assert_close(model.net[1].running_mean, fresh_statistics(model, seen)[0])


def step(model: killick.Anchored, x: torch.Tensor, masked: object = True) -> None:
    """One masked step of training that changes the weights."""
    model.train()
    model(x, x.flip(0), masked).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad.sign()
            parameter.grad = None


@pytest.mark.parametrize("side", [8, 12])
def test_statistics_follow_a_change_of_the_image_size(side):
    model = killick.anchor(small_cnn())
    first, second = torch.rand(8, 3, 8, 8), torch.rand(8, 3, side, side) + 3
    for x in (first, second):
        step(model, x)
        model.eval()
    kept = [(second, second.flip(0))] if side == 12 else list(model.recent.batches())
    assert_close(model.net[1].running_mean, fresh_statistics(model, kept)[0])


def test_a_snapshot_stays_as_it_was_while_its_original_is_trained():
    model = killick.anchor(small_cnn()).set_references(torch.rand(1, 3, 8, 8))
    x = torch.rand(8, 3, 8, 8)
    step(model, x)
    best = copy.deepcopy(model.eval())
    before = best(x)
    step(model, x + 5)
    model.eval()
    assert_close(best.eval()(x), before)
    assert_close(copy.deepcopy(best).double().float()(x), before)


def test_a_teacher_that_averages_a_trained_copy_is_settled():
    teacher = killick.anchor(small_cnn()).set_references(torch.rand(1, 3, 8, 8)).eval()
    student, x = copy.deepcopy(teacher), torch.rand(8, 3, 8, 8)
    step(student, x)
    with torch.no_grad():
        for mine, its in zip(teacher.parameters(), student.parameters(), strict=True):
            mine.lerp_(its, 0.5)
    teacher(x)
    assert_close(teacher.net[1].running_mean, fresh_statistics(teacher, [(x, x.flip(0))])[0])


def test_a_state_dict_taken_without_gradients_is_not_settled_at_every_step_of_an_average():
    model, _ = trained()
    before = statistics(model)
    with torch.no_grad():
        model.state_dict()
    assert_close(statistics(model), before)


def test_loading_weights_without_statistics_does_not_pass_for_settled():
    model, seen = trained()
    model.load_state_dict({"net.7.bias": torch.zeros(5)}, strict=False)
    model.eval()
    assert_close(model.net[1].running_mean, fresh_statistics(model, seen)[0])


def test_a_mask_of_the_whole_batch_given_for_each_image_counts_as_such():
    model, x = killick.anchor(small_cnn()), torch.rand(8, 3, 8, 8)
    step(model, x, torch.ones(8, dtype=torch.bool))
    model.eval()
    assert_close(model.net[1].running_mean, fresh_statistics(model, [(x, x.flip(0))])[0])


def test_a_model_cast_to_another_dtype_is_settled_in_it():
    model, _ = trained()
    assert model.double().eval().net[1].running_mean.isfinite().all()


def test_batches_of_one_are_joined_before_statistics_are_taken():
    model = killick.anchor(small_cnn()).train()
    images = torch.rand(40, 3, 8, 8)
    with torch.no_grad():
        for x in images.split(1):
            model(x, torch.zeros_like(x), True)
    model.eval()
    pairs = [(images, torch.zeros_like(images))]
    assert_close(model.net[1].running_mean, fresh_statistics(model, pairs)[0])


def test_a_layer_used_twice_gets_the_mean_over_its_uses():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.norm(self.norm(self.stem(x)).relu()))

    model, x = killick.anchor(Twice()).train(), torch.rand(64, 3)
    killick.settle(model, [x], references=killick.ReferencePool(torch.zeros(1, 3)))
    first = model.net.stem(killick.pair(x, torch.zeros_like(x)))
    second = nn.functional.batch_norm(first, None, None, training=True).relu()
    assert_close(model.net.norm.running_mean, (first.mean(0) + second.mean(0)) / 2)


def test_settle_leaves_a_frozen_batchnorm_alone():
    model, _ = trained()
    model.train().net[1].eval()
    before = statistics(model)
    with pytest.raises(OptionError, match="at least one batch"):
        killick.settle(model, [])
    killick.settle(model, [torch.rand(8, 3, 8, 8)])
    assert_close(statistics(model), before)


def test_a_frozen_batchnorm_is_left_alone():
    model = killick.anchor(small_cnn()).train()
    model.net[1].eval()
    x = torch.rand(8, 3, 8, 8)
    model(x, x.flip(0), True)
    before = statistics(model)
    model.eval()
    assert_close(statistics(model), before)


def test_settling_draws_nothing_and_restores_modes_momentum_and_counters():
    model, _ = trained()
    model.net.add_module("dropout", nn.Dropout(0.5))
    norm = model.net[1]
    norm.momentum, counter = 0.3, norm.num_batches_tracked.clone()
    state = torch.get_rng_state()
    with killick.core.anchored.evaluating(model):
        assert not model.net[1].training
    assert model.training
    assert norm.training
    assert norm.momentum == 0.3
    assert torch.equal(norm.num_batches_tracked, counter)
    assert torch.equal(state, torch.get_rng_state())


def test_settle_estimates_from_given_batches_and_is_not_undone_by_eval(generator):
    model, _ = trained()
    batches = [torch.rand(32, 3, 8, 8, generator=generator) for _ in range(3)]
    pool = killick.ReferencePool(torch.zeros(1, 3, 8, 8))
    killick.settle(model, [(x, None) for x in batches], references=pool)
    mean, variance = fresh_statistics(model, [(x, torch.zeros_like(x)) for x in batches])
    model.eval()
    assert_close(model.net[1].running_mean, mean)
    assert_close(model.net[1].running_var, variance)
    with pytest.raises(OptionError, match="at least one batch"):
        killick.settle(model, [])


def test_settle_pairs_within_the_batch_by_default(generator):
    model, _ = trained()
    x = torch.rand(2, 3, 8, 8)
    killick.settle(model, [x], generator=generator)  # of two images each is the other's reference
    mean, _ = fresh_statistics(model, [(x, x.flip(0))])
    assert_close(model.net[1].running_mean, mean)


def test_synchronised_batchnorm_is_estimated_without_waiting_for_other_processes(monkeypatch):
    model, seen = trained()
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(model.net)[1]
    assert isinstance(norm, nn.SyncBatchNorm)
    refuse = pytest.fail
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda *_: refuse("waited for the others"))
    model.net[1] = norm
    with killick.core.anchored.evaluating(model):
        pass
    mean, _ = fresh_statistics(model, seen)
    assert_close(norm.running_mean, mean)


def test_a_pickled_model_does_not_carry_the_remembered_pairs():
    model, seen = trained()
    again = pickle.loads(pickle.dumps(model))
    assert again.recent.count == 0
    assert_close(again.net[1].running_mean, fresh_statistics(model, seen)[0])
    again.set_references(torch.rand(1, 3, 8, 8)).eval()(torch.rand(2, 3, 8, 8))
    assert_close(again.net[1].running_mean, fresh_statistics(model, seen)[0])


def test_the_remembered_pairs_round_trip_so_that_a_run_can_be_resumed():
    model, _ = trained()
    fresh = killick.anchor(small_cnn())
    fresh.load_state_dict(model.state_dict())
    fresh.recent.load_state_dict(model.recent.state_dict())
    assert_close(statistics(fresh.eval()), statistics(model.eval()))


def test_a_network_without_batchnorm_remembers_nothing():
    assert killick.anchor(nn.Linear(3, 2)).recent is None
