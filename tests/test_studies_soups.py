import copy
from dataclasses import replace

import pytest
import torch
from runs import small
from torch import nn

import killick
from killick.core.batchnorm import tracked_norms
from killick.core.references import ReferencePool
from killick.core.standard import standard
from killick.errors import DataError, OptionError
from killick.nets import create
from killick.studies.soups import (
    Samples,
    _judge_on_validation,
    average,
    average_greedily,
    settle_again,
    take_samples,
)
from killick.studies.trained import Trained

MEAN = ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def images(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 3, 16, 16)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def plain_model():
    return standard(create("killick:resnet_small", num_classes=4), MEAN, image_shape=(3, 16, 16))


def anchored_model():
    model = killick.anchor(plain_model())
    return model.set_references(images(3, 7), policy="random by class, clean, seed 0")


def tuned(base, seed: int, size: float = 0.02):
    """As after some more training: other weights, other statistics."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(base)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=generator))
        for norm in tracked_norms(model):
            norm.running_mean.add_(torch.randn(norm.running_mean.shape, generator=generator))
    return model.eval()


def samples(pool: bool = True) -> Samples:
    references = ReferencePool(images(20, 3)) if pool else None
    return Samples((images(32, 1), images(32, 2)), references, 5)


def statistics(model) -> list[torch.Tensor]:
    return [t for norm in tracked_norms(model) for t in (norm.running_mean, norm.running_var)]


def assert_equal_models(one, two) -> None:
    mine, theirs = one.state_dict(), two.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("make", [plain_model, anchored_model])
def test_weights_are_the_mean_as_a_slow_loop_finds_it(make):
    base = make()
    models = [tuned(base, seed) for seed in range(3)]
    soup = average(models, samples())
    for name, weight in soup.named_parameters():
        found = weight.flatten().tolist()
        values = [dict(m.named_parameters())[name].flatten().tolist() for m in models]
        for place, each in enumerate(found[:200]):
            slow = sum(own[place] for own in values) / 3  # in double precision
            assert each == pytest.approx(slow, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("make", [plain_model, anchored_model])
@pytest.mark.parametrize("count", [1, 4])
def test_a_soup_of_one_or_of_the_same_is_itself(make, count):
    model = tuned(make(), 0)
    assert_equal_models(average([model] * count, samples()), model)


def test_models_in_a_soup_stay_as_they_are():
    models = [tuned(anchored_model(), seed) for seed in range(2)]
    before = [copy.deepcopy(model) for model in models]
    average(models, samples())
    for model, was in zip(models, before, strict=True):
        assert_equal_models(model, was)


@pytest.mark.parametrize("pool", [True, False])
def test_statistics_of_an_anchored_soup_are_those_that_settle_finds_on_the_same_pairs(pool):
    base, given = anchored_model(), samples(pool)
    soup = average([tuned(base, seed) for seed in range(2)], given)
    expected = tuned(soup, 9, size=0.0)  # the same weights under other statistics
    generator = torch.Generator().manual_seed(given.seed)
    killick.settle(expected, given.batches, references=given.pool, generator=generator)
    assert_equal_models(soup, expected)


def test_statistics_of_a_standard_soup_are_the_means_over_its_own_batches():
    base, given = plain_model(), samples()
    soup = average([tuned(base, seed) for seed in range(2)], given)
    seen: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    trial = copy.deepcopy(soup).double()
    trial.normalize.float()  # as it takes images
    for norm in tracked_norms(trial):
        norm.register_forward_pre_hook(
            lambda norm, args: seen.setdefault(norm, []).append(
                (args[0].mean((0, 2, 3)), args[0].transpose(0, 1).flatten(1).var(1))
            )
        )
        norm.training = True
    for batch in given.batches:
        with torch.no_grad():
            trial.net(trial.normalize(batch).double())
    for mine, own in zip(tracked_norms(soup), tracked_norms(trial), strict=True):
        for place, statistic in enumerate((mine.running_mean, mine.running_var)):
            expected = sum(each[place] for each in seen[own]) / len(seen[own])
            torch.testing.assert_close(statistic.double(), expected, rtol=1e-4, atol=1e-5)


def test_statistics_are_not_the_mean_of_statistics():
    models = [tuned(plain_model(), seed) for seed in range(2)]
    soup = average(models, samples())
    pairs = zip(statistics(soup), *(statistics(model) for model in models), strict=True)
    assert not any(torch.allclose(own, (a + b) / 2, atol=1e-3) for own, a, b in pairs)


def test_a_network_without_batchnorm_needs_no_samples():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    models = [tuned(standard(net, MEAN, image_shape=(3, 16, 16)), seed) for seed in range(2)]
    average(models, Samples(()))
    settle_again(models[0], Samples(()))


def test_a_soup_keeps_references_and_names_of_the_first():
    base = anchored_model()
    base.class_names = ("a", "b", "c", "d")
    soup = average([tuned(base, seed) for seed in range(2)], samples())
    assert torch.equal(soup.references, base.references)
    assert (soup.class_names, soup.reference_policy) == (base.class_names, base.reference_policy)
    assert not soup.training


def from_start(model, start):
    model.provenance = {"facts": {"start": start, "seed": 0}}
    return model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: plain_model(), "of one kind for a soup, found Anchored and Standard"),
        (
            lambda model: killick.anchor(
                standard(
                    create("killick:resnet_small", num_classes=5), MEAN, image_shape=(3, 16, 16)
                )
            ),
            "of one network",
        ),
        (lambda model: model.set_references(images(3, 8), policy="mean"), "the same references"),
        (lambda model: from_start(model, "elsewhere"), "from one start.*elsewhere"),
        (
            lambda model: setattr(model, "class_names", ("a", "b", "c", "d")) or model,
            "the same classes",
        ),
        (
            lambda model: killick.anchor(
                standard(
                    create("killick:resnet_small", num_classes=4),
                    ((0.4,) * 3, (0.2,) * 3),
                    image_shape=(3, 16, 16),
                )
            ),
            "the same normalization",
        ),
    ],
)
def test_models_that_do_not_belong_together_are_refused(change, words):
    first = anchored_model()
    other = change(copy.deepcopy(first))
    with pytest.raises(OptionError, match=words):
        average([first, other], samples())


def test_fresh_weights_of_two_seeds_are_no_one_start():
    models = [from_start(anchored_model(), "") for _ in range(2)]
    models[1].provenance["facts"]["seed"] = 1
    with pytest.raises(OptionError, match="fresh weights of seed 0 and fresh weights of seed 1"):
        average(models, samples())


def test_a_greedy_soup_takes_up_what_does_not_harm():
    base = plain_model()
    models = [tuned(base, seed) for seed in range(4)]
    marks = [1.0, 4.0, 2.0, 3.0]
    for model, mark in zip(models, marks, strict=True):
        with torch.no_grad():
            model.net.fc.weight.fill_(mark)

    def score(model) -> float:
        """Best at 3.5: models 1 and 3 together; model 2 would bring it to 3."""
        return -abs(float(model.net.fc.weight.detach().mean()) - 3.5)

    soup, kept = average_greedily(models, samples(), score)
    assert kept == [1, 3]
    assert score(soup) == 0
    assert_equal_models(soup, average([models[1], models[3]], samples()))


def test_a_greedy_soup_of_the_best_alone_is_the_best_itself():
    models = [tuned(plain_model(), seed) for seed in range(2)]
    scores = iter([0.2, 0.9, 0.5])  # the third is that of both together
    soup, kept = average_greedily(models, samples(), lambda model: next(scores))
    assert kept == [1]
    assert_equal_models(soup, models[1])


def test_a_greedy_soup_takes_up_what_is_as_good():
    models = [tuned(plain_model(), seed) for seed in range(2)]
    assert average_greedily(models, samples(), lambda model: 0.5)[1] == [0, 1]


def test_samples_are_the_first_of_training_with_the_references_it_draws_from(pictures):
    recipe = small(pictures, data__workers=0)
    found = take_samples(recipe, torch.device("cpu"))
    assert [len(batch) for batch in found.batches] == [4, 4, 4, 4]
    assert found.batches[0].dtype == torch.uint8
    assert not torch.equal(found.batches[0], found.batches[1])
    assert len(found.pool) == 16
    own = small(pictures, data__workers=0, protocol__references="batch", batch=8, accumulate=2)
    again = take_samples(own, torch.device("cpu"))
    assert again.pool is None
    assert [len(batch) for batch in again.batches] == [4, 4, 4, 4]
    none = take_samples(small(pictures, protocol__name="standard"), torch.device("cpu"))
    assert none.pool is None


def test_a_greedy_soup_needs_validation_pictures_and_never_sees_the_test_set(pictures, monkeypatch):
    model = anchored_model()
    recipe = small(pictures, data__workers=0)
    with pytest.raises(DataError, match="--data.validation"):
        _judge_on_validation(Trained(model, recipe, torch.device("cpu")))
    held = replace(recipe, data=replace(recipe.data, validation=4))
    trained = Trained(model, held, torch.device("cpu"))
    score = _judge_on_validation(trained)(model)
    shown, parts = trained.parts.validation, trained.parts
    logits = model.eval()(trained.show(shown))
    assert score == pytest.approx(float((logits.argmax(1) == shown.labels).float().mean()))
    assert not set(shown.rows.tolist()) & set(parts.test.rows.tolist())
