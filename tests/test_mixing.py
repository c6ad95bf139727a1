"""Mixup and CutMix: each image with its neighbour, by torchvision's rules, from its own key."""

import numpy as np
import pytest
import torch
from oracles import mixing as oracle
from scipy import stats
from torch import Tensor
from torch.testing import assert_close
from torchvision.transforms import v2

from killick.data.batches import epoch_order
from killick.data.keyed_random import Stream, sample_keys, uniform
from killick.data.mixing import Mixing, beta_quantiles, boxes, interpolate, neighbors

CLASSES = 7
KINDS = {"mixup": (0.8, 0.0), "cutmix": (0.0, 1.0), "both": (0.2, 1.0)}
CPU = torch.device("cpu")


def samples(n: int, height: int = 9, width: int = 14) -> tuple[Tensor, Tensor, Tensor]:
    """Images in the channels_last layout, labels and keys."""
    g = torch.Generator().manual_seed(3)
    images = torch.randint(256, (n, height, width, 3), dtype=torch.uint8, generator=g)
    labels = torch.randint(CLASSES, (n,), generator=g)
    return images.permute(0, 3, 1, 2), labels, sample_keys(0, 1, torch.arange(n))


def shares(keys: Tensor, alpha: float) -> list[float]:
    """What the images draw, by scipy's own quantiles."""
    drawn = uniform(keys, Stream.MIX_SHARE).double().numpy()
    return [float(share) for share in stats.beta.ppf(drawn, alpha, alpha)]


def is_rounded(found: Tensor, exact: np.ndarray) -> bool:
    """Whether `found` is `exact` rounded to whole numbers, up to what float32 can tell."""
    return bool((np.abs(found.numpy().astype(float) - exact) <= 0.5 + 2e-3).all())


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_mixup_is_that_of_the_slow_version(alpha):
    images, labels, keys = samples(24)
    mixed, soft, _ = Mixing(alpha, 0.0, CLASSES, "cpu")(images, labels, keys)
    assert mixed.dtype == torch.uint8
    pixels = images.numpy()
    for i, share in enumerate(shares(keys, alpha)):
        other = i + 1 if i % 2 == 0 else i - 1
        assert is_rounded(mixed[i], oracle.blend(pixels[i], pixels[other], share))
        probs = oracle.mix_labels(int(labels[i]), int(labels[other]), share, CLASSES)
        assert_close(soft[i].double(), torch.from_numpy(probs), atol=2e-6, rtol=0)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
@pytest.mark.parametrize("side", [(8, 8), (9, 14), (20, 3)])
def test_cutmix_is_that_of_the_slow_version(alpha, side):
    images, labels, keys = samples(60, *side)
    mixed, soft, _ = Mixing(0.0, alpha, CLASSES, "cpu")(images, labels, keys)
    places, pixels = uniform(keys, Stream.MIX_PLACE, 2).tolist(), images.numpy()
    for i, share in enumerate(shares(keys, alpha)):
        other = i + 1 if i % 2 == 0 else i - 1
        box = oracle.cutting_box(share, places[i], *side)
        pasted, stayed = oracle.paste(pixels[i], pixels[other], box)
        assert np.array_equal(mixed[i].numpy(), pasted)
        probs = oracle.mix_labels(int(labels[i]), int(labels[other]), stayed, CLASSES)
        assert_close(soft[i].double(), torch.from_numpy(probs), atol=2e-7, rtol=0)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.37, 0.5, 0.93, 0.999, 1.0])
@pytest.mark.parametrize("centre", [(0, 0), (4, 5), (8, 13), (2, 12)])
def test_boxes_and_labels_are_those_of_torchvisions_cutmix(share, centre, monkeypatch):
    height, width = 9, 14
    images, labels, _ = samples(2, height, width)
    transform = v2.CutMix(num_classes=CLASSES)
    monkeypatch.setattr(transform._dist, "sample", lambda shape: torch.tensor(share))
    drawn = iter([centre[1], centre[0]])  # torchvision draws the column first
    monkeypatch.setattr(torch, "randint", lambda high, size: torch.tensor([next(drawn)]))
    theirs, soft = transform(images, labels)
    place = (torch.tensor([centre]) + 0.5) / torch.tensor([height, width])
    inside = boxes(torch.tensor([share]), place, height, width)
    ours = torch.where(inside[:, None], images.flip(0), images)
    assert torch.equal(ours, theirs)
    stays = 1 - inside.float().mean()
    whole = torch.nn.functional.one_hot(labels, CLASSES)
    assert_close(stays * whole + (1 - stays) * whole.flip(0), soft)


def test_blended_images_and_labels_are_those_of_torchvisions_mixup(monkeypatch):
    images, labels, keys = samples(2)
    keys = keys[:1].expand(2)  # one share for both, as torchvision has it
    share = interpolate(beta_quantiles(0.8), uniform(keys, Stream.MIX_SHARE))[0]
    transform = v2.MixUp(alpha=0.8, num_classes=CLASSES)
    monkeypatch.setattr(transform._dist, "sample", lambda shape: share)
    pixels, probs = transform(images.float(), labels)
    mixed, soft, _ = Mixing(0.8, 0.0, CLASSES, "cpu")(images, labels, keys)
    assert is_rounded(mixed, pixels.double().numpy())
    assert_close(soft, probs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_labels_sum_to_one_and_the_last_of_an_odd_batch_stays_as_it_is(kind, n):
    images, labels, keys = samples(n)
    mixed, soft, _ = Mixing(*KINDS[kind], CLASSES, "cpu")(images, labels, keys)
    assert_close(soft.sum(1), torch.ones(n))
    assert (soft >= 0).all()
    if n % 2:
        assert torch.equal(mixed[-1], images[-1])
        assert soft[-1, labels[-1]] == 1


def test_neighbors_are_each_others_and_the_odd_one_its_own():
    assert neighbors(6, CPU).tolist() == [1, 0, 3, 2, 5, 4]
    assert neighbors(5, CPU).tolist() == [1, 0, 3, 2, 4]
    assert neighbors(1, CPU).tolist() == [0]


def test_without_either_images_stay_and_labels_become_probabilities():
    images, labels, keys = samples(5)
    mixed, soft, _ = Mixing(0.0, 0.0, CLASSES, "cpu")(images, labels, keys)
    assert torch.equal(mixed, images)
    assert torch.equal(soft.argmax(1), labels)
    assert torch.equal(soft, soft.round())


def test_with_both_kinds_each_has_half_of_the_images():
    n = 20_000
    images = torch.tensor([0, 255], dtype=torch.uint8).repeat(n // 2)[:, None, None, None]
    images, keys = images.expand(n, 3, 2, 2), sample_keys(0, 0, torch.arange(n))
    labels = torch.arange(n) % 2
    both, _, _ = Mixing(1.0, 1.0, 2, "cpu")(images, labels, keys)
    cut = uniform(keys, Stream.MIX_KIND) < 0.5
    pasted, blended = (
        Mixing(*alphas, 2, "cpu")(images, labels, keys)[0] for alphas in ((0, 1.0), (1.0, 0))
    )
    assert torch.equal(both, torch.where(cut[:, None, None, None], pasted, blended))
    assert abs(float(cut.float().mean()) - 0.5) < 4 * 0.5 / n**0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_cut_into_even_parts_is_mixed_as_the_whole(kind):
    images, labels, keys = samples(48)
    mixing = Mixing(*KINDS[kind], CLASSES, "cpu")
    whole = mixing(images, labels, keys)
    for size in (2, 4, 6, 16, 24):
        parts = zip(images.split(size), labels.split(size), keys.split(size), strict=True)
        mixed, soft, _ = zip(*(mixing(*part) for part in parts), strict=True)
        assert torch.equal(torch.cat(mixed), whole[0])
        assert torch.equal(torch.cat(soft), whole[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_the_images_is_mixed_and_the_others_stay(kind):
    images, labels, keys = samples(4000, 3, 3)
    always, soft, _ = Mixing(*KINDS[kind], CLASSES, "cpu")(images, labels, keys)
    found, targets, mixed = Mixing(*KINDS[kind], CLASSES, "cpu", 0.3)(images, labels, keys)
    assert float(mixed.float().mean()) == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 4000) ** 0.5)
    assert torch.equal(found[mixed], always[mixed])
    assert torch.equal(found[~mixed], images[~mixed])
    assert torch.equal(targets[mixed], soft[mixed])
    assert torch.equal(targets[~mixed], torch.eye(CLASSES)[labels[~mixed]])


def test_mixed_images_keep_the_channels_last_layout_and_the_given_ones_stay():
    images, labels, keys = samples(8)
    before = images.clone()
    mixed, _, _ = Mixing(0.2, 1.0, CLASSES, "cpu")(images, labels, keys)
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_quantiles_are_those_of_the_beta_distribution(alpha):
    knots = np.linspace(0, 1, 4097)
    expected = torch.from_numpy(stats.beta.ppf(knots, alpha, alpha)).float()
    assert_close(beta_quantiles(alpha), expected, atol=1e-7, rtol=1e-5)
    between = torch.linspace(0, 1 - 2**-24, 9973)
    exact = torch.from_numpy(stats.beta.ppf(between.double().numpy(), alpha, alpha)).float()
    assert (interpolate(beta_quantiles(alpha), between) - exact).abs().max() < 2e-5


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_shares_are_distributed_as_beta(alpha):
    keys = sample_keys(1, 0, torch.arange(100_000))
    drawn = interpolate(beta_quantiles(alpha), uniform(keys, Stream.MIX_SHARE)).double().numpy()
    edges = stats.beta.ppf(np.linspace(0, 1, 21), alpha, alpha)
    assert stats.chisquare(np.histogram(drawn, edges)[0]).pvalue > 1e-3
    below = 0.99  # of what is nearer to 1, float32 keeps too little to compare
    cut_off = stats.beta.cdf(below, alpha, alpha)
    test = stats.kstest(drawn[drawn < below], lambda x: stats.beta.cdf(x, alpha, alpha) / cut_off)
    assert test.pvalue > 1e-3


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_repeated_sample_is_not_mixed_with_itself(repeats):
    samples_of_batch = epoch_order(600, seed=0, epoch=0, repeats=repeats)[:120] % 600
    partners = samples_of_batch[neighbors(120, CPU)]
    assert (partners != samples_of_batch).all()
