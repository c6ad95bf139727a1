"""How long single things take on this machine: steps, forward passes, corruptions, reading."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from killick.core.anchored import Anchored, evaluating
from killick.corruptions.registry import corrupt
from killick.data.batches import Cut, Resident, Streamed
from killick.data.transforms import Shift
from killick.evaluation.classifier import make_subject
from killick.nets import IMAGENET_MEAN, IMAGENET_STD
from killick.runtime.processes import Processes
from killick.training.initial_weights import make_model
from killick.training.recipe import Recipe
from killick.training.reference_sampling import Draws
from killick.training.run_inputs import Material, gather_material
from killick.training.run_state import Run

# Pixels that are worked on at once, so that a timing takes no longer than it must.
_PIXELS = {"cpu": 2**17, "cuda": 2**24}
_SECONDS = 0.5  # for one timing
_SECONDS_OF_CORRUPTIONS = 2.0  # for all of them
_MOST = 30  # repetitions
_STEPS = 4  # of an epoch of made-up pictures


class Timing(Protocol):
    """Seconds of what cells are made of."""

    def step(self, recipe: Recipe, classes: int) -> float:
        """Of a training step; reading apart."""
        ...

    def forward(self, recipe: Recipe, classes: int) -> float:
        """Of showing one picture to the network in evaluation, once."""
        ...

    def read(self, recipe: Recipe) -> float:
        """Of reading and augmenting one training picture, in one process."""
        ...

    def corruptions(self, names: Sequence[str], size: int) -> dict[str, float]:
        """Of making each corruption of one picture."""
        ...


@dataclass(frozen=True)
class Stopwatch:
    """Times on this machine, in some seconds: networks have random weights, pictures are noise.

    Steps on a GPU are timed one operation after the other, not in a CUDA graph: at most so long.

    Attributes:
        device: Where cells run.
        threads: That a cell has on a CPU.
    """

    device: torch.device
    threads: int

    def step(self, recipe: Recipe, classes: int) -> float:
        """See `Timing`."""
        batch = self._fitting(recipe.batch, recipe.data.size)
        small = replace(
            recipe,
            batch=batch,
            accumulate=1,
            epochs=_MOST,
            execution="eager",
            sync_batchnorm=False,
        )
        with self._alone():
            material = _make_up(small, classes, self.device)
            run = Run(small, material, Processes(0, 1, self.device), None)

            def step() -> None:
                if run.done % _STEPS == 0:
                    material.batches.begin(run.done // _STEPS, 0)
                run.take_step()

            return self._median(step) * recipe.batch / batch

    def forward(self, recipe: Recipe, classes: int) -> float:
        """See `Timing`."""
        size = recipe.data.size
        batch = self._fitting(100 if self.device.type == "cpu" else 1000, size)
        names = tuple(str(number) for number in range(classes))
        images = _noise(batch, size).to(self.device)
        with self._alone():
            model = make_model(recipe, (IMAGENET_MEAN, IMAGENET_STD), names, 0).model
            if isinstance(model, Anchored):
                model.set_references(_noise(1, size))
            subject = make_subject(model, device=self.device, size=size)
            with evaluating(subject.model):
                return self._median(lambda: subject.ask(images)) / batch

    def read(self, recipe: Recipe) -> float:
        """See `Timing`."""
        batch = self._fitting(min(recipe.batch, 16), recipe.data.size)
        data = replace(recipe.data, resident="never", workers=0, download=False, label_noise=0.0)
        data = replace(data, limit=_STEPS * batch, validation=0.0)
        protocol = replace(recipe.protocol, name="standard")
        small = replace(recipe, data=data, protocol=protocol, batch=batch, accumulate=1)
        with self._alone():
            batches = gather_material(small, Processes(0, 1, torch.device("cpu"))).batches
            assert isinstance(batches, Streamed)
            done = 0

            def read() -> None:
                nonlocal done
                if done % (batches.samples // batches.cut.batch) == 0:
                    batches.begin(done, 0)
                batches.load()
                done += 1

            return self._median(read) / batches.cut.batch

    def corruptions(self, names: Sequence[str], size: int) -> dict[str, float]:
        """See `Timing`; those for which there is no time get the mean of the others."""
        images = _noise(self._fitting(250, size), size).to(self.device)
        taken: dict[str, float] = {}
        began = time.perf_counter()
        with self._alone():
            for name in names:
                if time.perf_counter() - began > _SECONDS_OF_CORRUPTIONS and taken:
                    break
                corrupt(images[:2], name, 3)  # what is made once is left out
                taken[name] = self._time(partial(corrupt, images, name, 3)) / len(images)
        mean = statistics.mean(taken.values()) if taken else 0.0
        return {name: taken.get(name, mean) for name in names}

    def _fitting(self, batch: int, size: int) -> int:
        """As many as are asked for, or as can be worked on at once; even, as mixing wants it."""
        room = min(batch, _PIXELS[self.device.type] // size**2)
        return max(2, room - room % 2)

    def _median(self, act: Callable[[], object]) -> float:
        act()
        act()  # the first ones allocate and choose kernels
        taken: list[float] = []
        began = time.perf_counter()
        while not taken or (len(taken) < _MOST and time.perf_counter() - began < _SECONDS):
            taken.append(self._time(act))
        return statistics.median(taken)

    def _time(self, act: Callable[[], object]) -> float:
        self._wait()
        since = time.perf_counter()
        act()
        self._wait()
        return time.perf_counter() - since

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With a cell's threads; torch's threads and random state are put back at the end."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        cuda = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=cuda):
                yield
        finally:
            torch.set_num_threads(before)


def _make_up(recipe: Recipe, classes: int, device: torch.device) -> Material:
    """What a run works on, of noise that is kept on the device."""
    size, augment = recipe.data.size, recipe.augment
    count = _STEPS * recipe.batch
    images = _noise(count, size)
    pixels = images.permute(0, 2, 3, 1).contiguous().to(device)
    labels = (torch.arange(count) % classes).to(device)
    shift = Shift(augment.padding if augment.crop == "pad" else 0, augment.flip)
    anchored = recipe.protocol.anchored
    pool = None if recipe.protocol.references == "batch" else pixels
    return Material(
        Resident(pixels, labels, shift, Cut(recipe.batch), seed=0),
        Draws(recipe.protocol, pool, None, 0) if anchored else None,
        images[:1] if anchored else None,
        "",
        None,
        None,
        normalise=(IMAGENET_MEAN, IMAGENET_STD),
        class_names=tuple(str(number) for number in range(classes)),
        description="",
        fingerprint="",
    )


def _noise(count: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
