"""Batches: every sample once, the same however a step is cut, interrupted or read."""

import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from runs import small
from torch import Tensor
from torchvision.transforms.v2 import functional

from killick.data.batches import (
    Batch,
    Batches,
    Cut,
    Resident,
    Streamed,
    epoch_order,
    read_all,
)
from killick.data.image_set import ImageSet
from killick.data.keyed_random import sample_keys
from killick.data.transforms import Shift
from killick.training import train

CPU = torch.device("cpu")
SIZE = 6


def image_set(n: int) -> ImageSet:
    """Random images whose first pixel is their number, and their label the number by 7."""
    g = torch.Generator().manual_seed(1)
    images = torch.randint(256, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=g)
    images[:, 0, 0, 0] = torch.arange(n)
    return ImageSet.of("numbers", images, torch.arange(n) % 7, [str(i) for i in range(7)])


def same(image: Tensor, key: int) -> Tensor:
    """A view that changes nothing."""
    return image


def by_key(image: Tensor, key: int) -> Tensor:
    """A view that can be told from those of other keys."""
    return image ^ (key % 256)


def resident(n: int, cut: Cut, shift: Shift | None = None, **options) -> Resident:
    images = image_set(n)
    pixels = images.images().permute(0, 2, 3, 1).contiguous()
    return Resident(pixels, images.labels, shift or Shift(), cut, **{"seed": 0, **options})


def streamed(n: int, cut: Cut, view=same, workers: int = 0, **options) -> Streamed:
    settings = {"seed": 0, "device": CPU, "workers": workers, **options}
    return Streamed(image_set(n), view, SIZE, cut, **settings)


def run(batches: Batches, epoch: int, step: int = 0, steps: int | None = None) -> Iterator[Batch]:
    """The passes of an epoch from a step on, one after the other, as copies."""
    batches.begin(epoch, step)
    last = batches.samples // batches.cut.batch if steps is None else step + steps
    for _ in range(step, last):
        batches.load()
        for number in range(batches.cut.passes):
            yield Batch(*(t.clone() for t in batches.batch(number)[:4]))
        batches.advance()


def joined(passes: Iterator[Batch]) -> Batch:
    return Batch(*map(torch.cat, zip(*(each[:4] for each in passes), strict=True)))


def numbers(batch: Batch) -> list[int]:
    return batch.images[:, 0, 0, 0].tolist()


def assert_same(one: Batch, other: Batch) -> None:
    for field, a, b in zip(Batch._fields[:4], one[:4], other[:4], strict=True):
        assert torch.equal(a, b), field


@pytest.mark.parametrize("make", [resident, streamed])
def test_samples_have_the_numbers_of_their_images(make):
    for batch in run(make(40, Cut(20)), epoch=3):
        assert torch.equal(image_set(40).labels[batch.numbers], batch.labels)
        assert batch.numbers.unique().numel() == 20


@pytest.mark.parametrize("make", [resident, streamed])
@pytest.mark.parametrize("n", [96, 100])
def test_an_epoch_has_every_sample_once_but_for_the_incomplete_batch(make, n):
    seen = joined(run(make(n, Cut(16)), epoch=3))
    assert len(seen.images) == 96
    assert len(set(numbers(seen))) == 96
    assert seen.labels.tolist() == [number % 7 for number in numbers(seen)]
    assert torch.equal(seen.images, image_set(n).images()[numbers(seen)])


def test_other_samples_are_left_out_in_other_epochs():
    batches = resident(100, Cut(16))
    left_out = [set(range(100)) - set(numbers(joined(run(batches, epoch)))) for epoch in range(12)]
    assert all(len(missing) == 4 for missing in left_out)
    assert len(set.union(*left_out)) > 20


@pytest.mark.parametrize("make", [resident, streamed])
@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_the_parts_of_a_step_are_together_its_batch(make, processes, passes):
    whole = joined(run(make(100, Cut(24)), epoch=1))
    cuts = [Cut(24, rank, processes, passes) for rank in range(processes)]
    ranks = [list(run(make(100, cut), epoch=1)) for cut in cuts]
    assert len(ranks[0]) == 4 * passes
    in_order = joined(part for parts in zip(*ranks, strict=True) for part in parts)
    assert_same(in_order, whole)


def test_augmentation_does_not_depend_on_how_a_step_is_cut():
    shift = Shift(2, True, True)
    whole = joined(run(resident(100, Cut(24), shift), epoch=1))
    ranks = [list(run(resident(100, Cut(24, rank, 2, 3), shift), epoch=1)) for rank in (0, 1)]
    assert_same(joined(part for parts in zip(*ranks, strict=True) for part in parts), whole)
    assert not torch.equal(whole.images, image_set(100).images()[epoch_order(100, 0, 1)[:96]])


@pytest.mark.parametrize("make", [resident, streamed])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_going_to_a_step_is_having_stepped_there(make, step):
    cut = Cut(20, passes=2)
    stepped = list(run(make(100, cut), epoch=2))
    assert_same(joined(run(make(100, cut), epoch=2, step=step)), joined(iter(stepped[2 * step :])))


@pytest.mark.parametrize("make", [resident, streamed])
def test_one_can_go_back_in_the_middle_of_an_epoch(make):
    batches = make(100, Cut(20))
    first = joined(run(batches, epoch=1))
    list(run(batches, epoch=2, steps=2))
    assert_same(joined(run(batches, epoch=1)), first)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_samples_are_those_of_the_resident_set(workers, repeats):
    cut = Cut(24, rank=1, processes=2, passes=3)
    ours, theirs = (
        streamed(100, cut, workers=workers, repeats=repeats),
        resident(100, cut, repeats=repeats),
    )
    for epoch, step in ((0, 0), (1, 2)):
        assert_same(joined(run(ours, epoch, step)), joined(run(theirs, epoch, step)))
    list(run(ours, 2, steps=1))  # left in the middle, with the workers ahead
    assert_same(joined(run(ours, 1, 2)), joined(run(theirs, 1, 2)))


@pytest.mark.parametrize("workers", [0, 2])
def test_views_are_made_with_the_keys_of_their_samples(workers):
    batch = joined(run(streamed(40, Cut(20), by_key, workers), epoch=1))
    order = epoch_order(40, 0, 1)
    assert torch.equal(batch.keys, sample_keys(0, 1, order))
    shades = (batch.keys % 256).to(torch.uint8)
    assert torch.equal(batch.images, image_set(40).images()[order] ^ shades.view(-1, 1, 1, 1))


def test_streamed_images_are_in_the_channels_last_layout():
    batch = next(run(streamed(40, Cut(20)), epoch=0))
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert [t.dtype for t in batch[:4]] == [torch.uint8, *[torch.int64] * 3]


@pytest.mark.parametrize("make", [resident, streamed])
@pytest.mark.parametrize(("n", "repeats"), [(96, 2), (96, 3), (100, 3)])
def test_repeated_samples_come_close_together_with_keys_of_their_own(make, n, repeats):
    batch = joined(run(make(n, Cut(1), repeats=repeats), epoch=0))
    places: dict[int, list[int]] = {}
    for place, number in enumerate(numbers(batch)):
        places.setdefault(number, []).append(place)
    assert len(batch.keys) == len(batch.keys.unique()) == n
    assert max(map(len, places.values())) == repeats
    assert len(places) in (-(-n // repeats), -(-n // repeats) + 1)  # the last may be cut off
    assert all(max(each) - min(each) < 2 * repeats for each in places.values())


def test_repeated_samples_are_augmented_anew_and_one_of_them_is_as_without_repeats():
    shift = Shift(2, True, True)
    batch = joined(run(resident(96, Cut(1), shift, repeats=3), epoch=0))
    plain = joined(run(resident(96, Cut(1), shift), epoch=0))
    assert torch.isin(batch.keys, plain.keys).sum() == 32
    for place, key in enumerate(plain.keys[:32]):  # the first third of the order is what is seen
        assert torch.equal(batch.images[batch.keys == key][0], plain.images[place])
    assert len({tuple(image.flatten().tolist()) for image in batch.images}) > 85


def test_the_order_depends_on_seed_and_epoch_alone():
    before = torch.get_rng_state()
    orders = {(s, e): epoch_order(50, s, e) for s in (0, 1, 2**63 - 1) for e in (0, 1, 2)}
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    for (seed, epoch), order in orders.items():
        assert torch.equal(epoch_order(50, seed, epoch), order)
        assert order.sort().values.tolist() == list(range(50))
    assert len({tuple(order.tolist()) for order in orders.values()}) == 9


def test_every_place_of_the_order_is_equally_likely():
    orders = torch.stack([epoch_order(6, 0, epoch) for epoch in range(3000)])
    counts = torch.stack([(orders == number).sum(0) for number in range(6)]).double()
    spread = (3000 * 1 / 6 * 5 / 6) ** 0.5
    assert (counts - 500).abs().max() < 4.5 * spread
    pairs = orders[:-1] == orders[1:]  # neighbouring epochs have nothing in common
    assert abs(pairs.double().mean() - 1 / 6) < 4.5 * (1 / 6 * 5 / 6 / pairs.numel()) ** 0.5


def test_keys_are_new_in_every_epoch_and_seed():
    keys = [joined(run(resident(48, Cut(16), seed=s), e)).keys for s in (0, 1) for e in (0, 1)]
    assert len(torch.cat(keys).unique()) == 4 * 48


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [7, 256])
def test_all_images_of_a_set_are_read_in_order(workers, batch):
    images = image_set(30).part(torch.arange(29, -1, -1))
    read = list(read_all(images, lambda image, key: functional.invert(image), workers, batch))
    assert [len(part) for part in read] == ([7] * 4 + [2] if batch == 7 else [30])
    assert torch.equal(torch.cat(read), 255 - images.images())


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_draws_nothing_from_the_global_state(workers):
    batches, before = streamed(40, Cut(20), workers=workers), torch.get_rng_state()
    list(run(batches, epoch=0))
    list(read_all(image_set(4), same, workers))
    assert torch.equal(before, torch.get_rng_state())


def test_a_cut_says_where_each_pass_begins():
    starts = [[Cut(24, rank, 2, 3).start(p) for rank in (0, 1)] for p in range(3)]
    assert starts == [[0, 4], [8, 12], [16, 20]]
    assert Cut(24, 1, 2, 3).size == 4


def test_workers_end_with_the_run(image_folder, tmp_path):
    before = set(multiprocessing.active_children())
    streamed = {"data__resident": "never", "data__workers": 2, "protocol__reference_set": 4}
    train(small(image_folder, epochs=1, **streamed), tmp_path / "a", quiet=True)
    assert set(multiprocessing.active_children()) <= before
