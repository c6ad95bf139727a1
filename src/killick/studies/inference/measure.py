"""Four inference protocols on one network: one reference, the mean image, several, or the best one.

All see the same corrupted images, and references are drawn several times. A draw is a list of
different training images: "single" takes its first, "marginal" its first K, "transductive" all of it
as candidates. Seconds are measured separately, on clean images, one protocol at a time.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.core.anchored import Anchored, anchored_in
from killick.core.inference import predict
from killick.core.references import ReferencePool
from killick.core.transduction import residual_bank
from killick.corruptions.corruption import choose_table
from killick.corruptions.suites import list_corruptions
from killick.data.keyed_random import key
from killick.data.mixing import Mixing
from killick.data.splits import limit_images
from killick.data.transforms import erase
from killick.errors import OptionError
from killick.protocols.anchored_protocol import AnchoredProtocol
from killick.protocols.references.reference_sampler import STATISTICS_IMAGES, make_pool
from killick.results.measurements import Measured, Record
from killick.runtime.processes import Processes
from killick.runtime.progress import DisplayFactory
from killick.studies.inference import (
    DISTANCE,
    MARGINAL,
    MEAN,
    SECONDS,
    SHARE,
    SINGLE,
    TOP1,
    TRANSDUCTIVE,
    WORST,
)
from killick.studies.trained_job import TrainedJob, corrupt_all, open_job
from killick.training.recipe import Recipe
from killick.training.training_data import TrainingData, load_training_data

_COORDINATES = ("metric", "inference", "draw", "corruption", "severity")


@dataclass(frozen=True)
class ReferenceDraws:
    """The references of all inference protocols.

    Attributes:
        draws: Of each draw the candidates, `(candidates, 3, size, size)`.
        mean: The mean of the training images (of 5,000, where they are read from files),
            `(1, 3, size, size)`.
        k: References of "marginal".
        searched: In how many of the draws transduction is run.
        at_once: Images of a forward pass.
    """

    draws: tuple[Tensor, ...]
    mean: Tensor
    k: int
    searched: int
    at_once: int


def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: torch.device,
    show: DisplayFactory,
) -> None:
    """Accuracy of each inference protocol on each corrupted set, then its seconds."""
    job = open_job(folder, device)
    images, labels = job.load_test(options["images"])
    known = list_corruptions("c", choose_table(images.shape[-2:]))
    names = options["corruptions"] or known
    places = [(name, severity) for name in names for severity in options["severities"]]
    left = [place for place in places if not _is_measured(kept, *place)]
    timed = kept.find(metric=SECONDS, inference=TRANSDUCTIVE) is not None
    if timed and not left:
        return
    model, references = anchored_in(job.model), draw_references(job, options)
    model.set_residuals(training_residuals(job, options["bank"]))
    done = len(places) - len(left)
    with show("inference protocols", len(places), done, "set") as display:
        for number, (name, severity) in enumerate(left, done + 1):
            (corrupted,) = corrupt_all(images, [name], [severity])
            found = score_all(model, corrupted.images, labels, references)
            _add_missing(kept, found, corruption=name, severity=severity)
            display.update(number, name)
        if not timed:
            times = time_all(model, images[: options["timed"]], references, options["repeats"])
            _add_missing(kept, times)


def draw_references(job: TrainedJob, options: Mapping[str, Any]) -> ReferenceDraws:
    """Uniform draws from the images that training drew references from."""
    recipe, train = job.recipe, job.parts.train
    numbers = torch.arange(len(train))
    assert isinstance(recipe.protocol, AnchoredProtocol)
    if recipe.protocol.reference_set is not None:
        pool = ReferencePool(numbers[:, None], train.labels)
        numbers = pool.choose(recipe.protocol.reference_set, seed=recipe.seed)[:, 0]
    if options["candidates"] > len(numbers):
        raise OptionError(
            f"--candidates must be at most {len(numbers)}, the images that training drew references"
            f" from, found {options['candidates']}."
        )
    draws = []
    for draw in range(options["draws"]):
        generator = torch.Generator().manual_seed(key(recipe.seed, draw) % 2**63)
        order = torch.randperm(len(numbers), generator=generator)[: options["candidates"]]
        draws.append(job.load_images(train.part(numbers[order])))
    many = limit_images(train, None if train.in_memory else STATISTICS_IMAGES, recipe.seed)
    mean = ReferencePool(job.load_images(many)).mean()
    searched = min(options["searched"], options["draws"])
    return ReferenceDraws(tuple(draws), mean, options["k"], searched, options["at_once"])


def training_residuals(job: TrainedJob, size: int) -> Tensor:
    """Residuals of random pairs, with the transforms of training."""
    recipe = job.recipe
    data = load_training_data(recipe, Processes(0, 1, job.device))
    images = torch.cat(list(_as_trained(recipe, data, size)))
    references = None  # other images, augmented alike
    assert isinstance(recipe.protocol, AnchoredProtocol)
    if recipe.protocol.references == "clean":
        pool, _ = make_pool(recipe.protocol, data.context)
        assert pool is not None
        references = ReferencePool(pool.permute(0, 3, 1, 2))
    generator = torch.Generator().manual_seed(recipe.seed)
    model = anchored_in(job.model)
    return residual_bank(model, images, references, size=size, generator=generator)


def _as_trained(recipe: Recipe, data: TrainingData, count: int) -> Iterator[Tensor]:
    """The first images of the first epoch as the network saw them, at most all of that epoch."""
    batches, augment = data.batches, recipe.augment
    mixing: Mixing | None = None
    batches.begin(0, 0)
    for _ in range(min(batches.samples, count + batches.cut.batch - 1) // batches.cut.batch):
        batches.load()
        for number in range(batches.cut.passes):
            images, labels, keys = batches.batch(number)
            if augment.erase:
                fill = [255 * mean for mean in data.normalize[0]]
                images = erase(images, keys, augment.erase, fill)
            if augment.mixup or augment.cutmix:
                classes = len(data.class_names)
                mixing = mixing or Mixing(augment.mixup, augment.cutmix, classes, images.device)
                images, _ = mixing(images, labels, keys)
            yield images.clone()  # what streams is written over by the next step
        batches.advance()


def score_all(
    model: Anchored, images: Tensor, labels: Tensor, references: ReferenceDraws
) -> list[Record]:
    """Accuracy of each inference protocol and draw, and the controls."""
    parts = list(
        zip(images.split(references.at_once), labels.split(references.at_once), strict=True)
    )
    keys: list[Record] = []
    sums: list[Tensor] = []

    def add(total: Tensor, metric: str, inference: str, draw: int) -> None:
        keys.append({"metric": metric, "inference": inference, "draw": draw})
        sums.append(total.double())

    for draw, candidates in enumerate(references.draws):
        model.set_references(candidates)
        members, together = _score_mean(model, parts, references.k)
        add(members[0], TOP1, SINGLE, draw)
        add(together, TOP1, MARGINAL, draw)
        add(members.min(), WORST, MARGINAL, draw)
        if draw < references.searched:
            chosen = [_score_best(model, *part, len(candidates)) for part in parts]
            correct, counts, distance = (
                torch.stack(values).sum(0) for values in zip(*chosen, strict=True)
            )
            add(correct, TOP1, TRANSDUCTIVE, draw)
            add(counts.max(), SHARE, TRANSDUCTIVE, draw)
            add(distance, DISTANCE, TRANSDUCTIVE, draw)
    model.set_references(references.mean)
    add(_score_mean(model, parts, 1)[1], TOP1, MEAN, 0)
    values = torch.stack(sums).tolist()  # waits for the device, once
    return [
        {**each, "value": value / len(images)} for each, value in zip(keys, values, strict=True)
    ]


def _score_mean(
    model: Anchored, parts: Sequence[tuple[Tensor, Tensor]], k: int
) -> tuple[Tensor, Tensor]:
    """How many are right from each of `k` references `(k,)`, and from their mean logits."""
    single, together = [], []
    for images, labels in parts:
        found = predict(model, images, "marginal", k, members=True)
        assert found.members is not None
        single.append((found.members.argmax(-1) == labels).sum(1))
        together.append((found.logits.argmax(-1) == labels).sum())
    return torch.stack(single).sum(0), torch.stack(together).sum()


def _score_best(
    model: Anchored, images: Tensor, labels: Tensor, candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """How many are right, how often each candidate was chosen, and the sum of distances."""
    found = predict(model, images, TRANSDUCTIVE, candidates)
    assert found.distance is not None
    correct = (found.logits.argmax(-1) == labels).sum()
    return correct, found.references.bincount(minlength=candidates), found.distance.sum()


def time_all(
    model: Anchored, images: Tensor, references: ReferenceDraws, repeats: int
) -> list[Record]:
    """Seconds for 1,000 images, the fastest and the median of some repeats.

    The protocols take turns, so that other load on the machine affects all of them.
    """
    candidates = references.draws[0]
    protocols: dict[str, tuple[Tensor, Callable[[Tensor], object]]] = {
        SINGLE: (candidates, lambda x: predict(model, x)),
        MEAN: (references.mean, lambda x: predict(model, x)),
        MARGINAL: (candidates, lambda x: predict(model, x, MARGINAL, references.k)),
        TRANSDUCTIVE: (candidates, lambda x: predict(model, x, TRANSDUCTIVE, len(candidates))),
    }
    parts = images.split(references.at_once)
    seconds: dict[str, list[float]] = {name: [] for name in protocols}
    for turn in range(repeats + 1):
        for name, (stored, infer) in protocols.items():
            model.set_references(stored)
            _wait(images.device)
            began = time.perf_counter()
            for part in parts if turn else parts[:1]:  # the first turn warms up
                infer(part)
            _wait(images.device)
            if turn:
                seconds[name].append((time.perf_counter() - began) * 1000 / len(images))
    where = _describe(images.device)
    return [
        {
            "metric": SECONDS,
            "inference": name,
            "value": min(times),
            "median": sorted(times)[len(times) // 2],
            "at_once": references.at_once,
            "on": where,
        }
        for name, times in seconds.items()
    ]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{threads} {'thread' if threads == 1 else 'threads'} of a CPU"


def _is_measured(kept: Measured, corruption: str, severity: int) -> bool:
    """Whether a set is done: the mean image comes last."""
    known = {"corruption": corruption, "severity": severity}
    return kept.find(metric=TOP1, inference=MEAN, **known) is not None


def _add_missing(kept: Measured, records: Sequence[Record], **place: Any) -> None:
    """Add the records that are not there yet."""
    new = [{**record, **place} for record in records]
    about = [{name: each[name] for name in _COORDINATES if name in each} for each in new]
    kept.add(*(each for each, known in zip(new, about, strict=True) if not kept.find(**known)))
