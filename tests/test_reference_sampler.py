"""References and masks of a step: drawn from keys, alike over processes where that is asked."""

import pytest
import torch
from oracles import transforms as oracle
from scipy import stats
from torch import Tensor

import killick
from killick.core.masking import Draw
from killick.data.batches import Batch
from killick.data.keyed_random import Stream, sample_keys, uniform
from killick.data.transforms import Shift
from killick.errors import ReferencesError
from killick.protocols.base import PROTOCOLS
from killick.protocols.references.reference_sampler import (
    MaskSampler,
    ReferenceSampler,
    random_cycle_of_keys,
)

POOL = torch.randint(
    256, (40, 7, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
)
STEP = torch.tensor(0)


def batch_of(n: int, epoch: int = 0, first: int = 0) -> Batch:
    numbers = torch.arange(first, first + n)
    images = (numbers % 256).to(torch.uint8)[:, None, None, None].expand(n, 3, 7, 5)
    return Batch(images, numbers % 4, sample_keys(0, epoch, numbers), numbers)


def draws(
    pool: Tensor | None = POOL,
    shift: Shift | None = None,
    rank: int = 0,
    steps: int = 1,
    seed: int = 0,
    **protocol,
) -> ReferenceSampler:
    settings = PROTOCOLS.find("masked")(**{"target": "label", **protocol})
    process = rank if settings.ranks == "own" else 0
    mask = None if settings.share == 0 else MaskSampler(settings, seed, process, steps)
    return ReferenceSampler(pool, shift, mask)


def shown(batch: Batch, draw: Draw) -> Tensor:
    """The references that `ReferenceMasking` shows to a model."""
    seen = []

    def model(x: Tensor, references: Tensor, masked: Tensor | None) -> Tensor:
        seen.append(references)
        return torch.zeros(len(x), 4)

    masking = killick.ReferenceMasking(alpha=0.5, target="label")
    masking.forward(model, batch.images, batch.labels, draw)
    return seen[0]


def masks(steps: int, **options) -> Tensor:
    """Whether each step of a run is masked, `(steps,)`: its batch, or a sample of its own."""
    batch = batch_of(steps) if options.get("scope") == "sample" else batch_of(2)
    return draws(steps=steps, **options).draw(batch, torch.arange(steps)).masked


def chances(steps: int, scope: str, process: int = 0) -> Tensor:
    """The numbers that `masks` compares with alpha."""
    keys = sample_keys(0, torch.arange(steps), torch.full((steps,), process))
    return uniform(batch_of(steps).keys if scope == "sample" else keys, Stream.MASK)


def test_clean_references_are_images_of_the_pool_and_shown_as_chosen():
    batch = batch_of(30)
    draw = draws().draw(batch, STEP)
    assert torch.equal(shown(batch, draw), POOL[draw.chosen].permute(0, 3, 1, 2))


def test_every_image_of_the_pool_is_equally_likely():
    chosen = draws().draw(batch_of(100_000), STEP).chosen
    assert 1e-3 < stats.chisquare(chosen.bincount(minlength=40).numpy()).pvalue < 1 - 1e-3


@pytest.mark.parametrize("shift", [None, Shift(2, True, True, reference=True)])
def test_the_reference_of_a_sample_depends_on_its_key_alone(shift):
    batch, order = batch_of(30), torch.randperm(30)
    whole = shown(batch, draws(shift=shift).draw(batch, STEP))
    mixed_up = Batch(*(t[order] for t in batch[:4]))
    other = draws(shift=shift, rank=3, scope="sample", alpha=0.9)
    assert torch.equal(shown(mixed_up, other.draw(mixed_up, torch.tensor(77))), whole[order])
    part = Batch(*(t[10:17] for t in batch[:4]))
    assert torch.equal(shown(part, draws(shift=shift).draw(part, STEP)), whole[10:17])


def test_references_are_others_in_the_next_epoch():
    first, second = (draws().draw(batch_of(400, epoch), STEP).chosen for epoch in (0, 1))
    assert (first == second).sum() < 10 + 4 * 10**0.5


def test_augmented_references_are_pool_images_moved_by_draws_of_their_own():
    batch, moves = batch_of(60), Shift(2, True, True, reference=True)
    references = shown(batch, draws(shift=moves).draw(batch, STEP))
    chosen = draws().draw(batch, STEP).chosen.tolist()
    drawn = zip(*(d.tolist() for d in moves.draw(batch.keys)), strict=True)
    for i, (top, left, flip, vertically) in enumerate(drawn):
        image = POOL[chosen[i]].permute(2, 0, 1)
        assert torch.equal(references[i], oracle.move(image, 2, top, left, flip, vertically))


@pytest.mark.parametrize("n", [2, 3, 7, 128, 1000])
def test_the_batchs_own_references_lie_on_one_cycle_through_all(n):
    successor = random_cycle_of_keys(batch_of(n).keys).tolist()
    place, seen = 0, []
    for _ in range(n):
        seen.append(place)
        place = successor[place]
    assert place == 0
    assert sorted(seen) == list(range(n))


def test_the_batchs_own_references_are_its_images_where_the_cycle_points():
    batch = batch_of(50)
    draw = draws(pool=None).draw(batch, STEP)
    assert torch.equal(draw.chosen, random_cycle_of_keys(batch.keys))
    assert torch.equal(shown(batch, draw), batch.images[draw.chosen])


def test_every_cycle_is_equally_likely():
    keys = sample_keys(0, 0, torch.arange(4 * 3000)).view(-1, 4)
    cycles = torch.stack([random_cycle_of_keys(row) for row in keys])
    kinds, counts = cycles.unique(dim=0, return_counts=True)
    assert len(kinds) == 6  # (4 - 1)!
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_one_sample_cannot_be_its_own_reference():
    with pytest.raises(ReferencesError, match="at least 2 samples in each pass, found 1"):
        draws(pool=None).draw(batch_of(1), STEP)


@pytest.mark.parametrize(
    "options", [{}, {"ranks": "own", "rank": 3}, {"every": 4}, {"alpha_end": 0.9}]
)
def test_a_mask_is_one_value_that_depends_on_the_step_alone(options):
    drawing = draws(steps=60, **options)
    found = [drawing.draw(batch_of(5, first=5 * s), torch.tensor(s)).masked for s in range(60)]
    assert all(masked.shape == () and masked.dtype == torch.bool for masked in found)
    assert torch.equal(torch.stack(found), masks(60, **options))


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.9])
@pytest.mark.parametrize("options", [{"ranks": "shared"}, {"ranks": "own", "rank": 3}])
def test_batches_are_masked_as_often_as_alpha_says(alpha, options):
    masked = masks(40_000, alpha=alpha, **options)
    assert abs(masked.float().mean() - alpha) < 4 * (alpha * (1 - alpha) / 40_000) ** 0.5


def test_masked_steps_do_not_depend_on_those_before():
    masked = masks(40_001, alpha=0.25).long()
    counts = (masked[:-1] * 2 + masked[1:]).bincount(minlength=4).numpy()
    expected = [0.75 * 0.75, 0.75 * 0.25, 0.25 * 0.75, 0.25 * 0.25]
    assert stats.chisquare(counts, [40_000 * share for share in expected]).pvalue > 1e-3


def test_processes_share_their_masks_or_have_their_own():
    shared = [masks(40_000, rank=rank, ranks="shared") for rank in (0, 1, 5)]
    own = torch.stack([masks(40_000, rank=rank, ranks="own") for rank in (0, 1, 5)]).double()
    assert torch.equal(shared[0], shared[1])
    assert torch.equal(shared[0], shared[2])
    together = (own @ own.T / 40_000)[~torch.eye(3, dtype=torch.bool)]
    assert (together - 0.25**2).abs().max() < 4 * (0.0625 * 0.9375 / 40_000) ** 0.5


def test_all_passes_of_a_step_are_masked_alike():
    drawing = draws(alpha=0.5)
    for step in map(torch.tensor, range(50)):
        masked = [bool(drawing.draw(batch_of(4, first=f), step).masked) for f in (0, 4, 8)]
        assert len(set(masked)) == 1


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_single_samples_are_masked_as_often_as_alpha_says(alpha):
    masked = draws(scope="sample", alpha=alpha).draw(batch_of(40_000), STEP).masked
    assert masked.shape == (40_000,)
    assert abs(masked.float().mean() - alpha) < 4 * (alpha * (1 - alpha) / 40_000) ** 0.5
    by_hundreds = masked.view(-1, 100).float().mean(1)
    spread = (alpha * (1 - alpha) / 100) ** 0.5
    assert 0.8 * spread < by_hundreds.std() < 1.2 * spread


def test_whether_a_sample_is_masked_depends_on_its_key_alone():
    batch, part = batch_of(100), batch_of(30, first=20)
    whole = draws(scope="sample").draw(batch, STEP).masked
    found = draws(scope="sample", rank=2, ranks="own").draw(part, torch.tensor(9)).masked
    assert torch.equal(found, whole[20:50])


def test_every_third_step_is_masked_beginning_with_the_first():
    assert masks(8, every=3).tolist() == [s % 3 == 0 for s in range(8)]
    assert masks(8, every=3, rank=1, ranks="own").tolist() == [s % 3 == 0 for s in range(8)]
    assert masks(4, every=1).all()


def test_nothing_is_masked_with_alpha_zero():
    for options in ({"alpha": 0.0}, {"alpha": 0.0, "alpha_end": 0.0}):
        assert draws(**options).draw(batch_of(4), STEP).masked is None


@pytest.mark.parametrize("scope", ["batch", "sample"])
def test_alpha_one_masks_always(scope):
    assert draws(scope=scope, alpha=1.0).draw(batch_of(3000), torch.arange(3000)).masked.all()


SCOPES = [{"scope": "batch"}, {"scope": "batch", "ranks": "own", "rank": 3}, {"scope": "sample"}]


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.9])
@pytest.mark.parametrize("options", SCOPES)
def test_an_alpha_that_stays_is_compared_with_the_same_numbers_in_runs_of_any_length(
    alpha, options
):
    chance = chances(20_000, options["scope"], options.get("rank", 0))
    expected = chance < alpha
    assert torch.equal(masks(20_000, alpha=alpha, **options), expected)
    assert not masks(20_000, alpha=chance[5].item(), **options)[5]  # less, not equal
    shorter = draws(steps=7, alpha=alpha, **options)
    assert torch.equal(shorter.draw(batch_of(20_000), torch.arange(20_000)).masked, expected)


@pytest.mark.parametrize(("first", "last"), [(0.1, 0.9), (0.8, 0.0), (0.0, 0.3)])
@pytest.mark.parametrize("options", SCOPES)
def test_an_alpha_that_moves_masks_along_a_line_over_the_run(first, last, options):
    masked = masks(24_000, alpha=first, alpha_end=last, **options)
    line = torch.linspace(first, last, 24_000, dtype=torch.float64)
    for found, expected in zip(masked.split(2_000), line.split(2_000), strict=True):
        spread = (expected * (1 - expected)).sum() ** 0.5
        assert abs(found.sum() - expected.sum()) < 4 * spread


@pytest.mark.parametrize("options", SCOPES)
def test_an_alpha_that_moves_is_compared_with_the_same_numbers(options):
    share = torch.arange(4097) / 4096  # no rounding
    chance = chances(4097, options["scope"], options.get("rank", 0))
    assert torch.equal(masks(4097, alpha=0.0, alpha_end=1.0, **options), chance < share)
    assert torch.equal(masks(4097, alpha=1.0, alpha_end=0.0, **options), chance < 1 - share)


@pytest.mark.parametrize("steps", [2, 3, 50])
def test_a_run_begins_with_alpha_and_ends_with_alpha_end(steps):
    batch, end = batch_of(20_000), torch.tensor(steps - 1)
    rising = draws(scope="sample", alpha=0.3, alpha_end=0.7, steps=steps)
    for step, alpha in ((STEP, 0.3), (end, 0.7)):
        stays = draws(scope="sample", alpha=alpha).draw(batch, step).masked
        assert torch.equal(rising.draw(batch, step).masked, stays)
    for seed in range(300):  # a batch is masked as a whole, so it takes many runs to see
        run = draws(alpha=0.0, alpha_end=1.0, steps=steps, seed=seed)
        assert not run.draw(batch_of(2), STEP).masked
        assert run.draw(batch_of(2), end).masked


def test_all_samples_of_a_step_are_masked_as_often_as_its_alpha_says():
    drawing = draws(scope="sample", alpha=0.2, alpha_end=0.6, steps=20_001)
    for step, alpha in ((0, 0.2), (5_000, 0.3), (10_000, 0.4), (20_000, 0.6)):
        masked = drawing.draw(batch_of(20_000, first=step), torch.tensor(step)).masked
        assert masked.shape == (20_000,)
        assert abs(masked.float().mean() - alpha) < 4 * (alpha * (1 - alpha) / 20_000) ** 0.5


@pytest.mark.parametrize("scope", ["batch", "sample"])
def test_a_run_of_one_step_has_the_first_alpha(scope):
    batch = batch_of(5)
    assert draws(scope=scope, alpha=1.0, alpha_end=0.0).draw(batch, STEP).masked.all()
    assert not draws(scope=scope, alpha=0.0, alpha_end=1.0).draw(batch, STEP).masked.any()


def test_references_do_not_depend_on_alpha_and_masks_not_on_the_references():
    batch, steps = batch_of(20), [torch.tensor(s) for s in range(40)]
    assert torch.equal(
        draws(alpha=0.0).draw(batch, STEP).chosen, draws(alpha=1.0).draw(batch, STEP).chosen
    )
    of_pool, of_batch = (
        [bool(drawing.draw(batch, s).masked) for s in steps] for drawing in (draws(), draws(None))
    )
    assert of_pool == of_batch


def test_drawing_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    for drawing in (draws(), draws(None), draws(shift=Shift(1, True)), draws(scope="sample")):
        drawing.draw(batch_of(5), STEP)
    assert torch.equal(before, torch.get_rng_state())
