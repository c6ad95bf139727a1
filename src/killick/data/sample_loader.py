"""Worker processes that read images and make samples of them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from killick.data.image_set import ImageSet
from killick.data.worker_processes import begin_worker, iterate
from killick.errors import DataError, KillickError

View = Callable[[Tensor, int], Any]  # makes a sample of an image and its key
Collate = Callable[[list[Any]], Any]


class SampleLoader:
    """Workers that stay, and make batches of the samples (numbers and keys) that `places` yields."""

    def __init__(
        self,
        images: ImageSet,
        view: View,
        places: Callable[[], Iterator[list[tuple[int, int]]]],
        collate: Collate,
        *,
        workers: int,
        pinned: bool,
    ) -> None:
        self._name = images.name
        self._loader = _loader(
            images,
            view,
            workers,
            collate_fn=collate,
            batch_sampler=_Restarted(places),
            pin_memory=pinned,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )

    def begin(self) -> Iterator[Any]:
        """The batches of what `places` yields now; workers begin at once."""
        return iterate(self._loader, self._name)

    def close(self) -> None:
        """End the workers, which would be waited for when they are collected as garbage."""
        running: Any = self._loader._iterator
        if running is not None and hasattr(running, "_shutdown_workers"):
            running._shutdown_workers()
        self._loader._iterator = None


def read_in_order(
    images: ImageSet, view: View, workers: int, batch: int, collate: Collate
) -> Iterator[Any]:
    """What `collate` makes of the samples (view, label, key and number; or an error) of each batch."""
    places = [(number, 0) for number in range(len(images))]
    options = {"sampler": places, "batch_size": batch, "collate_fn": collate}
    yield from iterate(_loader(images, view, workers, **options), images.name)


def _loader(images: ImageSet, view: View, workers: int, **options: Any) -> DataLoader[Any]:
    # Without a generator of its own it would draw from the global one.
    options |= {"num_workers": workers, "generator": torch.Generator()}
    return DataLoader(_Samples(images, view), worker_init_fn=begin_worker, **options)


class _Restarted:
    """Calls a generator function anew each time it is iterated over."""

    def __init__(self, generate: Callable[[], Iterator[Any]]) -> None:
        self._generate = generate

    def __iter__(self) -> Iterator[Any]:
        return self._generate()


class _Samples(Dataset[tuple[Any, int, int, int] | KillickError]):
    """Samples by (number, key).

    What is wrong with an image is returned: raised in a worker, it would arrive as pages of traceback.
    """

    def __init__(self, images: ImageSet, view: View) -> None:
        self._images, self._view = images, view

    def __getitem__(self, place: tuple[int, int]) -> tuple[Any, int, int, int] | KillickError:
        number, sample_key = place
        try:
            image = self._view(self._images.read(number, sample_key), sample_key)
        except KillickError as problem:
            return problem
        return image, int(self._images.labels[number]), sample_key, number


def find_problem(samples: list[Any]) -> KillickError | None:
    """The first problem among samples, if there is one."""
    return next((sample for sample in samples if isinstance(sample, KillickError)), None)


def collate(samples: list[Any]) -> Any:
    """A batch; or the first problem in it."""
    return find_problem(samples) or default_collate(samples)


def checked(batch: Any) -> Any:
    """What a worker made; a problem is raised here, in the process that trains."""
    if isinstance(batch, DataError):
        raise DataError(f"{batch} To find all broken images: killick check DATA.") from batch
    if isinstance(batch, KillickError):
        raise batch
    return batch
