"""Where references come from: cycles within a batch, pools, subsets, means, synthetic images."""

import cmath
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from killick import ReferencePool
from killick.core import references
from killick.core.references import random_cycle
from killick.errors import OptionError, ReferencesError, ShapeError

CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**32 - 1)
RARE = [0] * 90 + [1] * 9 + [2]  # labels: one class has one image


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(n: int) -> Tensor:
    """Images that are their own number."""
    return torch.arange(float(n)).unsqueeze(1)


def labelled(labels: list[int], **options: bool) -> ReferencePool:
    return ReferencePool(numbered(len(labels)), torch.tensor(labels), **options)


def kept(pool: ReferencePool) -> list[int]:
    return pool.images.squeeze(1).long().tolist()


def chi_square(counts: Tensor) -> float:
    """Of counts that should be equal."""
    expected = counts.double().mean()
    return float(((counts - expected) ** 2 / expected).sum())


@given(st.integers(2, 60), SEEDS)
def test_a_cycle_passes_through_every_image_once(n, seed):
    successor = random_cycle(n, CPU, seeded(seed)).tolist()
    path = [0]
    for _ in range(n - 1):
        path.append(successor[path[-1]])
    assert sorted(path) == list(range(n))
    assert successor[path[-1]] == 0


@given(st.integers(2, 60), SEEDS)
def test_no_image_is_its_own_reference(n, seed):
    successor = random_cycle(n, CPU, seeded(seed))
    assert not (successor == torch.arange(n)).any()
    assert successor.sort().values.tolist() == list(range(n))


def test_every_cycle_comes_as_often(generator):
    counts = Counter(tuple(random_cycle(4, CPU, generator).tolist()) for _ in range(6000))
    assert len(counts) == 6
    assert chi_square(torch.tensor(list(counts.values()))) < 25.7  # 5 degrees, p = 1e-4


def test_every_other_image_is_as_often_the_reference_in_larger_batches(generator):
    draws = torch.stack([random_cycle(7, CPU, generator) for _ in range(3500)])
    for i in range(7):
        counts = draws[:, i].bincount(minlength=7)
        assert counts[i] == 0
        assert chi_square(counts[counts > 0]) < 28  # 5 degrees, p = 4e-5


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_images_have_no_cycle(n):
    with pytest.raises(ReferencesError, match=f"at least 2 images .* found {n}: one image alone"):
        random_cycle(n, CPU)


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: random_cycle(30, CPU, generator),
        lambda generator: labelled(RARE).draw(30, generator),
        lambda generator: labelled(RARE, balanced=True).draw(30, generator),
    ],
    ids=["cycle", "uniform", "balanced"],
)
def test_a_draw_depends_on_its_generator_alone(draw):
    state = torch.get_rng_state()
    first, again, other = draw(seeded(5)), draw(seeded(5)), draw(seeded(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_draw_without_a_generator_follows_the_global_seed():
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append((random_cycle(30, CPU).tolist(), labelled(RARE).draw(30).tolist()))
    assert draws[0] == draws[1]


def test_a_subset_depends_on_its_seed_alone():
    pool, state = labelled(RARE), torch.get_rng_state()
    first = kept(pool.subset(20, seed=5))
    torch.manual_seed(99)
    assert kept(pool.subset(20, seed=5)) == first
    assert kept(pool.subset(20, seed=6)) != first
    torch.set_rng_state(state)
    pool.choose(5, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_uniform_draws_are_even_and_independent(generator):
    draws = ReferencePool(numbered(4)).draw(16_001, generator)
    both = 4 * draws[:-1] + draws[1:]
    assert chi_square(draws.bincount(minlength=4)) < 21.1  # 3 degrees, p = 1e-4
    assert chi_square(both.bincount(minlength=16)) < 44.3  # 15 degrees, p = 1e-4


def test_draws_ignore_classes_unless_balanced(generator):
    draws = labelled(RARE).draw(20_000, generator)
    assert chi_square(draws.bincount(minlength=100)) < 158  # 99 degrees, p = 1e-4


def test_balanced_draws_are_even_over_classes_and_within_each(generator):
    draws = labelled(RARE, balanced=True).draw(30_000, generator)
    assert chi_square(torch.tensor(RARE)[draws].bincount(minlength=3)) < 18.4  # 2 degrees, p = 1e-4
    counts = draws.bincount(minlength=100)
    assert chi_square(counts[:90]) < 146  # 89 degrees, p = 1e-4
    assert chi_square(counts[90:99]) < 31.8  # 8 degrees, p = 1e-4


def test_balanced_draws_take_labels_in_any_order_and_of_any_value(generator):
    labels = torch.tensor([1000, -1, 7, -1, 1000, -1])
    draws = ReferencePool(numbered(6), labels, balanced=True).draw(9000, generator)
    counts = draws.bincount(minlength=6)
    assert chi_square(torch.stack([counts[labels == c].sum() for c in (-1, 7, 1000)])) < 18.4
    assert chi_square(counts[labels == -1]) < 18.4  # 2 degrees, p = 1e-4


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), SEEDS, st.data())
def test_a_smaller_subset_lies_inside_a_larger_one(labels, seed, data):
    pool = labelled(labels)
    small, large = sorted(data.draw(st.integers(1, len(labels))) for _ in range(2))
    for balanced in (True, False):
        inner = kept(pool.subset(small, seed=seed, balanced=balanced))
        outer = kept(pool.subset(large, seed=seed, balanced=balanced))
        assert (len(set(inner)), len(set(outer))) == (small, large)
        assert set(inner) <= set(outer)


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=40), SEEDS, st.data())
def test_a_subset_has_as_many_of_each_class_to_within_one_as_far_as_there_are(labels, seed, data):
    size = data.draw(st.integers(1, len(labels)))
    there = Counter(labels)
    taken = Counter(labelled(labels).subset(size, seed=seed).labels.tolist())
    most = max(taken.values())
    assert all(taken[c] >= min(there[c], most - 1) for c in there)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), SEEDS)
def test_a_subset_keeps_each_image_with_its_label(labels, seed):
    part = labelled(labels).subset((len(labels) + 1) // 2, seed=seed)
    assert [labels[i] for i in kept(part)] == part.labels.tolist()


def test_over_seeds_every_image_comes_as_often():
    pool = ReferencePool(numbered(6))
    firsts = torch.tensor([kept(pool.subset(2, seed=seed)) for seed in range(1500)])
    assert chi_square(firsts.flatten().bincount(minlength=6)) < 25.7  # 5 degrees, p = 1e-4


def test_over_seeds_every_class_comes_first_as_often_and_every_image_in_it():
    pool = labelled([0, 0, 0, 0, 1, 2])
    firsts = torch.tensor([kept(pool.subset(1, seed=seed)) for seed in range(1500)])
    counts = firsts.flatten().bincount(minlength=6)
    assert chi_square(torch.stack([counts[:4].sum(), counts[4], counts[5]])) < 18.4  # 2 degrees
    assert chi_square(counts[:4]) < 21.1  # 3 degrees, p = 1e-4


def test_a_subset_can_ignore_classes():
    pool = labelled([0] * 30 + [1])
    balanced = [set(pool.subset(2, seed=s).labels.tolist()) for s in range(20)]
    ignored = [set(pool.subset(2, seed=s, balanced=False).labels.tolist()) for s in range(20)]
    assert all(labels == {0, 1} for labels in balanced)
    assert sum(labels == {0, 1} for labels in ignored) < 10


def test_part_of_a_balanced_pool_draws_balanced(generator):
    part = labelled([0] * 30 + [1], balanced=True).subset(20, seed=0)
    share = part.labels[part.draw(2000, generator)].double().mean()
    assert 0.44 < share < 0.56


@given(st.integers(1, 12), SEEDS)
def test_chosen_images_are_different_and_those_of_the_subset(k, seed):
    pool = labelled([0, 1, 2] * 4)
    chosen = pool.choose(k, seed=seed)
    assert len(chosen.unique(dim=0)) == k
    assert torch.equal(chosen, pool.subset(k, seed=seed).images)


def test_the_mean_of_floats_is_their_mean_as_one_reference():
    images = torch.tensor([[[1.0, 2.0]], [[2.0, 4.0]], [[3.0, 9.0]]])
    assert torch.equal(ReferencePool(images).mean(), torch.tensor([[[2.0, 5.0]]]))


def test_the_mean_of_bytes_is_rounded_and_does_not_overflow():
    images = torch.tensor([[255, 1, 0], [255, 2, 1], [254, 2, 0]], dtype=torch.uint8)
    mean = ReferencePool(images).mean()
    assert mean.dtype == torch.uint8
    assert mean.tolist() == [[255, 2, 0]]


def slow_amplitudes(image: list[list[float]]) -> list[list[float]]:
    """The size of every frequency of one channel, as the definition says it."""
    rows, columns = len(image), len(image[0])

    def size(u: int, v: int) -> float:
        turns = (
            image[y][x] * cmath.exp(-2j * math.pi * (u * y / rows + v * x / columns))
            for y in range(rows)
            for x in range(columns)
        )
        return abs(sum(turns))

    return [[size(u, v) for v in range(columns)] for u in range(rows)]


def wide_pool(sides: tuple[int, int], n: int = 6) -> Tensor:
    """Coloured floats, with two pixels so far out that no image made of them is clipped."""
    images = torch.randn(n, 3, *sides, generator=seeded(1), dtype=torch.float64)
    images += torch.tensor([2.0, -1.0, 0.5])[:, None, None]
    images[0, 0, 0, 0], images[1, 0, 0, 0] = 1000, -1000
    return images


@pytest.mark.parametrize("sides", [(4, 4), (5, 3), (4, 5), (3, 6)])
def test_every_synthetic_image_has_the_mean_spectrum_of_the_pool(sides):
    images = wide_pool(sides)
    slow = [[slow_amplitudes(channel.tolist()) for channel in image] for image in images]
    expected = torch.tensor(slow, dtype=torch.float64).mean(0)
    for made in ReferencePool(images).synthetic(3, seed=0):
        slow = [slow_amplitudes(channel.tolist()) for channel in made]
        found = torch.tensor(slow, dtype=torch.float64)
        colour = found[:, 0, 0] / math.prod(sides)
        assert torch.allclose(colour, images.mean((0, 2, 3)).abs(), rtol=1e-9)
        found[:, 0, 0] = expected[:, 0, 0]  # the level is that of the mean colour
        assert torch.allclose(found, expected, rtol=1e-9)


def test_synthetic_images_have_the_mean_colour_with_its_sign():
    images = wide_pool((6, 6))
    made = ReferencePool(images).synthetic(4, seed=3)
    assert torch.allclose(made.mean((2, 3)), images.mean((0, 2, 3)).expand(4, 3), rtol=1e-9)


def test_the_channels_of_a_synthetic_image_share_their_phases():
    made = ReferencePool(wide_pool((8, 8))).synthetic(2, seed=0)
    inner = torch.fft.fft2(made).sgn()[:, :, 1:, 1:]
    assert torch.allclose(inner, inner[:, :1].expand_as(inner), atol=1e-6)
    assert not torch.allclose(inner[0], inner[1], atol=0.1)


def test_the_phases_of_synthetic_images_are_even_around_the_circle():
    made = ReferencePool(wide_pool((4, 4))).synthetic(2000, seed=0)
    angles = torch.fft.fft2(made[:, 0])[:, 1, 2].angle()  # neither real nor mirrored
    counts = ((angles / (2 * math.pi) + 0.5) * 8).long().clamp(0, 7).bincount(minlength=8)
    assert chi_square(counts) < 29.9  # 7 degrees, p = 1e-4


def test_synthetic_images_of_bytes_are_rounded_bytes_like_those_of_the_pool():
    generator = seeded(0)
    images = torch.randint(60, 180, (200, 3, 8, 8), generator=generator).to(torch.uint8)
    images[0, 0, 0, 0], images[1, 0, 0, 0] = 0, 255
    made = ReferencePool(images).synthetic(50, seed=0)
    exact = ReferencePool(images.double()).synthetic(50, seed=0)
    assert made.dtype == torch.uint8
    assert torch.equal(made, exact.round().to(torch.uint8))
    spectrum = torch.fft.fft2(images.double()).abs().mean(0)
    ours = torch.fft.fft2(made.double()).abs().mean(0)
    assert torch.allclose(ours, spectrum, rtol=0.05)  # rounding, and nothing else


def test_bright_synthetic_bytes_are_clipped_and_do_not_wrap_around():
    images = torch.zeros(4, 1, 4, 4, dtype=torch.uint8)
    images[:, :, :2] = 255  # half is white: no image with these frequencies fits in 0 to 255
    made = ReferencePool(images).synthetic(100, seed=0)
    clipped = ReferencePool(images.double()).synthetic(100, seed=0)
    assert (clipped == 255).any()
    assert (clipped == 0).any()
    assert torch.equal(made.double(), clipped.round())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_synthetic_floats_stay_in_the_range_of_the_pool(dtype):
    images = (torch.rand(9, 2, 5, 5, generator=seeded(0)) < 0.5).to(dtype) * 3 - 1
    made = ReferencePool(images).synthetic(40, seed=0)
    assert made.dtype == dtype
    assert (made.min(), made.max()) == (-1, 2)


@pytest.mark.parametrize("shape", [(30, 3, 6, 6), (30, 2, 7), (30, 1, 2, 3, 4), (40, 3), (12, 9)])
def test_fewer_synthetic_images_are_the_first_of_more_and_depend_on_the_seed_alone(shape):
    pool, state = ReferencePool(torch.randn(shape, generator=seeded(0))), torch.get_rng_state()
    more = pool.synthetic(5, seed=7)
    assert more.shape == (5, *shape[1:])
    torch.manual_seed(99)
    assert torch.equal(pool.synthetic(2, seed=7), more[:2])
    torch.set_rng_state(state)
    assert torch.equal(pool.synthetic(5, seed=7), more)
    assert not torch.equal(pool.synthetic(5, seed=8), more)
    assert len(more.unique(dim=0)) == 5
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shape", [(40, 3, 4, 4), (50, 4)])
def test_a_pool_worked_on_in_parts_makes_what_it_makes_at_once(shape, monkeypatch):
    pool = ReferencePool(torch.randint(0, 256, shape, generator=seeded(0)).to(torch.uint8))
    whole = pool.mean(), pool.synthetic(3, seed=0)
    sizes = []

    def doubles(images, original=references._doubles):
        for part in original(images):
            sizes.append(len(part))
            yield part

    monkeypatch.setattr(references, "_NUMBERS_AT_ONCE", 7 * pool.images[0].numel())
    monkeypatch.setattr(references, "_doubles", doubles)
    assert torch.equal(pool.mean(), whole[0])
    assert torch.equal(pool.synthetic(3, seed=0), whole[1])
    assert max(sizes) == 7


def test_synthetic_vectors_have_the_mean_and_covariance_of_the_pool():
    mixing = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, -1.0, 3.0]])
    vectors = torch.randn(400, 3, generator=seeded(0)) @ mixing.T + torch.tensor([5.0, -7.0, 0.0])
    vectors[0] += 60  # no vector is clipped
    vectors[1] -= 60
    made = ReferencePool(vectors.double()).synthetic(20_000, seed=0)
    rows = vectors.double().tolist()
    middle = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    expected = [
        [sum((r[i] - middle[i]) * (r[j] - middle[j]) for r in rows) / 399 for j in range(3)]
        for i in range(3)
    ]
    expected = torch.tensor(expected, dtype=torch.float64)
    largest = expected.diagonal().sqrt()
    assert ((made.mean(0) - torch.tensor(middle)).abs() < 0.03 * largest).all()
    wrong = (made.T.cov() - expected) / (largest[:, None] * largest)
    assert wrong.abs().max() < 0.04


def test_of_few_samples_the_variances_alone_are_taken():
    base = torch.randn(19, 1, generator=seeded(0), dtype=torch.float64)
    vectors = torch.cat([base, 3 * base + 1], dim=1)  # 19 of 2 features: one too few
    vectors[:2] += torch.tensor([[300.0], [-300.0]])
    made = ReferencePool(vectors).synthetic(20_000, seed=0)
    assert torch.allclose(made.std(0), vectors.std(0), rtol=0.03)
    assert made.T.corrcoef()[0, 1].abs() < 0.03
    more = ReferencePool(torch.cat([vectors, vectors[5:6]])).synthetic(20_000, seed=0)
    assert more.T.corrcoef()[0, 1] > 0.9


def test_a_feature_that_never_changes_stays_as_it_is():
    vectors = torch.randn(50, 3, generator=seeded(0)).double()
    vectors[:, 1] = 0.25
    made = ReferencePool(vectors).synthetic(20, seed=0)
    assert torch.allclose(made[:, 1], torch.full((20,), 0.25).double(), atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_features_that_follow_from_each_other_do_so_in_synthetic_vectors(seed):
    factors = torch.randn(8, generator=seeded(seed), dtype=torch.float64)
    vectors = torch.randn(200, 1, generator=seeded(9), dtype=torch.float64) * factors
    vectors[:2] = 50 * torch.stack([factors, -factors])  # none is clipped
    made = ReferencePool(vectors).synthetic(20, seed=0)
    assert torch.allclose(made, made[:, :1] / factors[0] * factors, atol=1e-5)


def test_no_synthetic_image_is_one_of_the_pool():
    images = torch.randint(0, 256, (100, 3, 8, 8), generator=seeded(0)).to(torch.uint8)
    made = ReferencePool(images).synthetic(20, seed=0)
    nearest = torch.cdist(made.flatten(1).double(), images.flatten(1).double()).min()
    among = torch.cdist(images.flatten(1).double(), images.flatten(1).double())
    assert nearest > 0.5 * among[among > 0].min()


@pytest.mark.parametrize("k", [0, -1])
def test_less_than_one_synthetic_image_is_refused(k):
    with pytest.raises(OptionError, match=f"k of at least 1 image to make, found {k}"):
        ReferencePool(numbered(4)).synthetic(k, seed=0)


def test_a_pool_says_its_size_and_how_it_draws():
    assert len(labelled(RARE)) == 100
    assert repr(labelled(RARE)) == "ReferencePool(100 images (1,), uniform draws)"
    assert "class-balanced draws" in repr(labelled(RARE, balanced=True))


def test_a_pool_moved_to_a_device_draws_as_before():
    pool = labelled(RARE, balanced=True)
    moved = pool.to("cpu")
    assert torch.equal(moved.draw(50, seeded(1)), pool.draw(50, seeded(1)))
    assert torch.equal(
        moved.images[moved.draw(50, seeded(1))], pool.images[pool.draw(50, seeded(1))]
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_images_that_are_not_finite_are_refused_by_number(bad):
    images = torch.zeros(4, 3, 2, 2)
    images[2, 1, 0, 1] = bad
    with pytest.raises(ReferencesError, match="NaN or infinity in number 2 of the pool"):
        ReferencePool(images)


@pytest.mark.parametrize("shape", [(0, 3, 2, 2), (0, 4), (5,)])
def test_a_pool_that_is_empty_or_has_no_channels_is_refused(shape):
    with pytest.raises(ShapeError, match="with n > 0, found shape"):
        ReferencePool(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3,), (4, 1), ()])
def test_labels_of_another_shape_are_refused(shape):
    with pytest.raises(
        ShapeError, match="class index for each of the pool's 4 images, found labels"
    ):
        ReferencePool(numbered(4), torch.zeros(shape, dtype=torch.long))


def test_a_balanced_pool_needs_labels():
    with pytest.raises(OptionError, match="expected labels for balanced=True, found none"):
        ReferencePool(numbered(4), balanced=True)


def test_a_balanced_subset_needs_labels():
    with pytest.raises(OptionError, match="expected labels for a balanced subset, found none"):
        ReferencePool(numbered(4)).subset(2, seed=0, balanced=True)


@pytest.mark.parametrize("size", [-1, 0, 5])
def test_a_size_outside_the_pool_is_refused(size):
    pool = ReferencePool(numbered(4))
    with pytest.raises(OptionError, match=f"between 1 and the pool's 4 images, found {size}"):
        pool.subset(size, seed=0)
    with pytest.raises(OptionError, match=f"between 1 and the pool's 4 images, found {size}"):
        pool.choose(size, seed=0)
