"""Policies on batches: torchvision's operations and distributions, decided by each image's key."""

import collections

import numpy as np
import pytest
import torch
from scipy import stats
from test_augment_operations import make_images
from torch import Tensor
from torchvision.transforms import v2

from killick.data.augment.operations import OPERATIONS, number_of
from killick.data.augment.policies import BatchAugMix, BatchPolicy, Chosen, batch_policy
from killick.data.batches import Batch, Cut, Resident
from killick.data.keyed_random import sample_keys
from killick.data.training_view import TrainView
from killick.data.transforms import Shift

CPU = torch.device("cpu")
SIZE = 32
COLOR = [12.0, 200.0, 77.0]
TABLES = [v2.AutoAugmentPolicy(name) for name in ("imagenet", "cifar10", "svhn")]
TRANSFORMS = {
    "trivial": v2.TrivialAugmentWide(interpolation="bilinear"),
    "trivial, 7 bins": v2.TrivialAugmentWide(num_magnitude_bins=7, fill=COLOR),
    "rand": v2.RandAugment(interpolation="bilinear"),
    "rand, 3 of 11": v2.RandAugment(3, magnitude=10, num_magnitude_bins=11, fill=128),
    **{f"auto, {table.value}": v2.AutoAugment(table) for table in TABLES},
    "mix": v2.AugMix(),
    "mix, other": v2.AugMix(7, 2, 2, 0.5, all_ops=False, interpolation="nearest", fill=[9]),
}
PLAIN = [name for name in TRANSFORMS if not name.startswith("mix")]


def keys_of(n: int, epoch: int = 0) -> Tensor:
    return sample_keys(0, epoch, torch.arange(n))


def make(name: str, size: int = SIZE) -> BatchPolicy:
    policy = batch_policy(TRANSFORMS[name], size, CPU)
    assert policy is not None
    return policy


def step_by_step(name: str, image: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """One image, by the functions of torchvision's transform."""
    transform = TRANSFORMS[name]
    for number, magnitude in zip(operations.tolist(), magnitudes.tolist(), strict=True):
        image = transform._apply_image_or_video_transform(
            image, OPERATIONS[number], magnitude, transform.interpolation, transform._fill
        )
    return image


@pytest.mark.parametrize(("size", "n"), [(32, 300), (224, 12)])
@pytest.mark.parametrize("name", PLAIN)
def test_images_are_those_of_torchvisions_functions(name, size, n):
    """Step by step, each from the same images: at most one level apart, and that is rare."""
    policy, images = make(name, size), make_images(n, size)
    chosen, augmented = policy.draw(keys_of(n)), policy(images, keys_of(n))
    for step in zip(*(part.split(1, 1) for part in chosen), strict=True):
        ours = policy.apply(images, Chosen(*step))
        theirs = [step_by_step(name, *each) for each in zip(images, *step, strict=True)]
        difference = (ours.int() - torch.stack(theirs).int()).abs()
        assert difference.max() <= 1
        assert (difference > 0).double().mean() < 1e-2
        images = ours
    assert torch.equal(images, augmented)


@pytest.mark.parametrize("name", ["mix", "mix, other"])
def test_mixed_images_are_those_of_torchvisions_functions(name):
    policy, images, keys = make(name), make_images(100, SIZE), keys_of(100)
    assert isinstance(policy, BatchAugMix)
    chosen, shares = policy.draw(keys), policy.shares(keys)
    chains = shares.shape[1] - 1
    theirs = []
    for image, share, *steps in zip(images, shares, *chosen, strict=True):
        mixed = share[0] * image
        for weight, *chain in zip(share[1:], *(s.chunk(chains) for s in steps), strict=True):
            mixed = mixed + weight * step_by_step(name, image, *chain)
        theirs.append(mixed.to(torch.uint8))
    difference = (policy(images, keys).int() - torch.stack(theirs).int()).abs()
    assert (difference > 0).double().mean() < 1e-3
    assert (difference > 2).double().mean() < 1e-4  # later operations enlarge a level of rounding


def drawn_by_torchvision(name: str, n: int) -> list[list[tuple[str, float]]]:
    """What a transform of torchvision does to each of `n` images, written down instead of done."""
    transform, steps = TRANSFORMS[name], []

    def note(image, kind, magnitude, interpolation, fill):
        steps[-1].append((kind, round(magnitude, 5)))
        return image

    image = torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)
    with torch.random.fork_rng(), pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)
        patch.setattr(transform, "_apply_image_or_video_transform", note)
        for _ in range(n):
            steps.append([])
            transform(image)
    return steps


def drawn_by_us(name: str, n: int) -> list[list[tuple[str, float]]]:
    operations, magnitudes = (part.tolist() for part in make(name).draw(keys_of(n)))
    space = TRANSFORMS[name]._AUGMENTATION_SPACE
    return [
        [
            (OPERATIONS[number], round(magnitude, 5) if kept else 0.0)
            for number, magnitude in zip(*row, strict=True)
            if (kept := OPERATIONS[number] in space) or not name.startswith(("auto", "mix"))
        ]
        for row in zip(operations, magnitudes, strict=True)
    ]


def frequencies(found: list) -> collections.Counter:
    """How often each operation and magnitude comes, and how many steps an image has.

    -0.0 and 0.0 are the same number.
    """
    steps = collections.Counter(step for row in found for step in row)
    return steps + collections.Counter(("steps", float(len(row))) for row in found)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_operations_and_magnitudes_have_torchvisions_distribution(name):
    ours = frequencies(drawn_by_us(name, 20_000))
    theirs = frequencies(drawn_by_torchvision(name, 1_500 if name.startswith("mix") else 5_000))
    assert set(theirs) <= set(ours)
    counts = np.array([[ours[each], theirs[each]] for each in ours if ours[each] > 25])
    assert len(counts) > 10
    assert stats.chi2_contingency(counts).pvalue > 1e-3


@pytest.mark.parametrize("name", [name for name in PLAIN if name.startswith("auto")])
def test_pairs_of_autoaugment_come_with_their_probabilities(name):
    """Each pair in 1 of 25 images, and each of its operations with the probability of the table."""
    expected: collections.Counter = collections.Counter()
    transform, n = TRANSFORMS[name], 100_000
    for pair in transform._policies:
        steps = []
        for kind, probability, place in pair:
            values, signed = transform._AUGMENTATION_SPACE[kind]
            table = values(10, SIZE, SIZE)
            size = 0.0 if table is None else round(float(table[place]), 5)
            signs = [(size, 0.5), (-size, 0.5)] if signed else [(size, 1.0)]
            outcomes = [((kind, value), probability * share) for value, share in signs]
            steps.append([*outcomes, (None, 1 - probability)])
        for first, share in steps[0]:
            for second, other in steps[1]:
                done = tuple(each for each in (first, second) if each is not None)
                expected[done] += share * other / 25
    found = collections.Counter(tuple(row) for row in drawn_by_us(name, n))
    kinds = [kind for kind, probability in expected.items() if probability > 0]
    assert set(found) <= set(kinds)
    observed = [found[kind] for kind in kinds]
    assert stats.chisquare(observed, [n * expected[kind] for kind in kinds]).pvalue > 1e-3


@pytest.mark.parametrize(("alpha", "width"), [(1.0, 3), (0.4, 2), (3.0, 4), (1.0, 1)])
def test_shares_of_augmix_have_their_distribution(alpha, width):
    """That of the image is Beta-distributed; those of the chains, of the rest, by Dirichlet."""
    policy = batch_policy(v2.AugMix(mixture_width=width, alpha=alpha), SIZE, CPU)
    assert isinstance(policy, BatchAugMix)
    shares = policy.shares(keys_of(20_000)).double()
    assert shares.shape == (20_000, 1 + width)
    assert torch.allclose(shares.sum(1), torch.ones(20_000).double(), atol=1e-6)
    assert stats.kstest(shares[:, 0].numpy(), stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    shares = shares[shares[:, 0] < 0.999]  # where chains have something to divide
    rest = (shares[:, 1:] / (1 - shares[:, :1])).numpy()
    if width > 1:
        for chain in range(width):  # of a Dirichlet distribution every part is Beta-distributed
            expected = stats.beta(alpha, alpha * (width - 1))
            assert stats.kstest(rest[:, chain], expected.cdf).pvalue > 1e-3
        known = np.cov(stats.dirichlet([alpha] * width).rvs(20_000, random_state=0).T)
        assert np.allclose(np.cov(rest.T), known, atol=0.01)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_sample_depends_on_its_key_alone(name):
    policy, images, keys = make(name), make_images(70, SIZE), keys_of(70)
    state = torch.get_rng_state()
    whole = policy(images, keys)
    assert torch.equal(state, torch.get_rng_state())
    assert whole.dtype == torch.uint8
    assert whole.is_contiguous(memory_format=torch.channels_last)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make(name)(images[order], keys[order]), whole[order])
    alone = [policy(images[row : row + 1], keys[row : row + 1]) for row in range(70)]
    assert torch.equal(torch.cat(alone), whole)
    assert not torch.equal(policy(images, keys_of(70, epoch=1)), whole)


@pytest.mark.parametrize("name", ["trivial, 7 bins", "auto, svhn", "mix, other"])
def test_a_policy_is_one_graph_without_breaks(name):
    """So it needs no value on the host, and can be captured."""
    policy, images, keys = make(name), make_images(60, SIZE), keys_of(60)
    torch.compiler.reset()
    graph = torch.compile(policy, fullgraph=True, dynamic=False, backend="eager")
    assert torch.equal(graph(images, keys), policy(images, keys))


@pytest.mark.parametrize("name", ["trivial", "mix"])
def test_resident_samples_do_not_depend_on_how_a_step_is_cut(name):
    images = make_images(48, SIZE).permute(0, 2, 3, 1).contiguous()

    def run(cut: Cut, first: int = 0, policy: BatchPolicy | None = None) -> Batch:
        batches = Resident(images, torch.arange(48), Shift(4, True), cut, seed=0, policy=policy)
        batches.begin(1, first)
        parts = []
        for _ in range(first, 48 // cut.batch):
            parts += [batches.batch(number) for number in range(cut.passes)]
            batches.advance()
        return Batch(*map(torch.stack, zip(*(part[:4] for part in parts), strict=True)))

    policy, shifted = make(name), run(Cut(24))
    whole = run(Cut(24), policy=policy).images.flatten(0, 1)
    assert torch.equal(whole, policy(shifted.images.flatten(0, 1), shifted.keys.flatten()))
    ranks = [run(Cut(24, rank, 2, 3), policy=policy).images for rank in (0, 1)]
    assert torch.equal(torch.stack(ranks, 1).flatten(0, 2), whole)
    resumed = run(Cut(24), first=1, policy=policy).images
    assert torch.equal(resumed.flatten(0, 1), whole[24:])
    assert not torch.equal(whole, shifted.images.flatten(0, 1))


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("augmix", {"alpha": 0.0}),
        ("augmix", {"mixture_width": 0}),
        ("trivialaugment", {"fill": {"others": 3}}),
    ],
)
def test_arguments_for_single_images_alone_have_no_policy_for_batches(policy, arguments):
    kinds = {"augmix": v2.AugMix, "trivialaugment": v2.TrivialAugmentWide}
    assert batch_policy(kinds[policy](**arguments), SIZE, CPU) is None


def test_only_torchvisions_policies_have_one_for_batches():
    assert batch_policy(v2.RandomInvert(), SIZE, CPU) is None
    assert batch_policy(TrainView(SIZE, policy="none").policy, SIZE, CPU) is None
    made = TrainView(SIZE, policy="randaugment", policy_arguments={"num_ops": 4}).policy
    policy = batch_policy(made, SIZE, CPU)
    assert policy is not None
    assert policy.draw(keys_of(5)).operations.shape == (5, 4)
    assert number_of("Identity") == 0
