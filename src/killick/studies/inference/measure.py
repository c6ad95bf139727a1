"""Four inference protocols on one network: one reference, the mean image, several, or the best one.

All see the same corrupted images, and references are drawn several times. A draw is a list of
different training images: "single" takes its first, "marginal" its first K, "transductive" all of it
as candidates. Seconds are measured separately, on clean images, one protocol at a time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from killick.protocols.anchored_protocol import AnchoredProtocol
from killick.protocols.references.reference_sampler import STATISTICS_IMAGES, choose_numbers
from killick.results.measurements import Measured, Record
from killick.runtime.devices import describe_device, wait_for
from killick.runtime.processes import Processes
from killick.runtime.progress import DisplayFactory
from killick.studies.inference import MARGINAL, MEAN, SECONDS, SINGLE, TOP1, TRANSDUCTIVE
from killick.studies.trained_job import (
    TrainedJob,
    corrupt_images,
    first_batches,
    open_job,
    reference_pool,
)
from killick.training.training_data import load_training_data


class ReferenceDraws(NamedTuple):
    """The references of all inference protocols."""

    draws: list[Tensor]  # of each draw the candidates, `(candidates, 3, size, size)`
    mean: Tensor  # of the training images, `(1, 3, size, size)`


def measure(
    folder: Path, options: Record, kept: Measured, *, device: torch.device, show: DisplayFactory
) -> None:
    """Accuracy of each inference protocol on each corrupted set, then its seconds."""
    job = open_job(folder, device)
    images, labels = job.load_test(options["images"])
    names = options["corruptions"] or list_corruptions("c", choose_table(images.shape[-2:]))
    places = [{"corruption": n, "severity": s} for n in names for s in options["severities"]]
    # The mean image comes last of a set, and transduction of the times.
    left = [each for each in places if not kept.find(metric=TOP1, inference=MEAN, **each)]
    timed = kept.find(metric=SECONDS, inference=TRANSDUCTIVE) is not None
    if timed and not left:
        return
    model, references = anchored_in(job.model), draw_references(job, options)
    model.set_residuals(training_residuals(job, options["bank"]))
    done = len(places) - len(left)
    with show("inference protocols", len(places), done, "set") as display:
        for number, place in enumerate(left, done + 1):
            corrupted = corrupt_images(images, place["corruption"], place["severity"])
            found = score_all(model, corrupted, labels, references, options)
            kept.add(*({**record, **place} for record in found))
            display.update(number, place["corruption"])
        if not timed:
            kept.add(*time_all(model, images[: options["timed"]], references, options))


def draw_references(job: TrainedJob, options: Mapping[str, Any]) -> ReferenceDraws:
    """Uniform draws from the images that training drew references from."""
    recipe, train = job.recipe, job.parts.train
    numbers = torch.arange(len(train))
    assert isinstance(recipe.protocol, AnchoredProtocol)
    if recipe.protocol.reference_set is not None:
        numbers = choose_numbers(train, recipe.protocol.reference_set, recipe.seed)
    draws = []
    for draw in range(options["draws"]):
        generator = torch.Generator().manual_seed(key(recipe.seed, draw) % 2**63)
        order = torch.randperm(len(numbers), generator=generator)[: options["candidates"]]
        draws.append(job.load_images(train.part(numbers[order])))
    many = limit_images(train, STATISTICS_IMAGES if train.paths() else None, recipe.seed)
    return ReferenceDraws(draws, ReferencePool(job.load_images(many)).mean())


def training_residuals(job: TrainedJob, size: int) -> Tensor:
    """Residuals of random pairs, with the transforms of training."""
    recipe, augment = job.recipe, job.recipe.augment
    data = load_training_data(recipe, Processes(0, 1, job.device))
    mixing = Mixing(augment.mixup, augment.cutmix, len(data.class_names), job.device)
    shown = []
    fill = [255 * mean for mean in data.normalize[0]]
    for batch in first_batches(data, size):
        images = batch.images
        if augment.erase:
            images = erase(images, batch.keys, augment.erase, fill)
        shown.append(mixing(images, batch.labels, batch.keys)[0].clone())
    assert isinstance(recipe.protocol, AnchoredProtocol)
    clean = recipe.protocol.references == "clean"  # else other images, augmented alike
    references = reference_pool(recipe, data) if clean else None
    generator = torch.Generator().manual_seed(recipe.seed)
    model = anchored_in(job.model)
    return residual_bank(model, torch.cat(shown), references, size=size, generator=generator)


def score_all(
    model: Anchored,
    images: Tensor,
    labels: Tensor,
    references: ReferenceDraws,
    options: Mapping[str, Any],
) -> list[Record]:
    """Accuracy of each inference protocol and draw, and the controls."""
    size = options["at_once"]
    parts = list(zip(images.split(size), labels.split(size), strict=True))
    sums: dict[tuple[str, str, int], Tensor] = {}  # by metric, inference protocol and draw
    for draw, candidates in enumerate(references.draws):
        model.set_references(candidates)
        members, together = _score_mean(model, parts, options["k"])
        sums[TOP1, SINGLE, draw] = members[0]
        sums[TOP1, MARGINAL, draw] = together
        sums["worst_reference_top1", MARGINAL, draw] = members.min()
        if draw < options["searched"]:
            chosen = [_score_best(model, *part, len(candidates)) for part in parts]
            correct, counts, distance = (
                torch.stack(values).sum(0) for values in zip(*chosen, strict=True)
            )
            sums[TOP1, TRANSDUCTIVE, draw] = correct
            sums["largest_candidate_share", TRANSDUCTIVE, draw] = counts.max()
            sums["residual_distance", TRANSDUCTIVE, draw] = distance
    model.set_references(references.mean)
    sums[TOP1, MEAN, 0] = _score_mean(model, parts, 1)[1]
    values = torch.stack([each.double() for each in sums.values()]).tolist()  # waits once
    return [
        {"metric": metric, "inference": inference, "draw": draw, "value": value / len(images)}
        for (metric, inference, draw), value in zip(sums, values, strict=True)
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
    model: Anchored, images: Tensor, references: ReferenceDraws, options: Mapping[str, Any]
) -> list[Record]:
    """Seconds for 1,000 images, the fastest of some repeats.

    The protocols take turns, so that other load on the machine affects all of them.
    """
    candidates = references.draws[0]
    protocols: dict[str, tuple[Tensor, Callable[[Tensor], object]]] = {
        SINGLE: (candidates, lambda x: predict(model, x)),
        MEAN: (references.mean, lambda x: predict(model, x)),
        MARGINAL: (candidates, lambda x: predict(model, x, MARGINAL, options["k"])),
        TRANSDUCTIVE: (candidates, lambda x: predict(model, x, TRANSDUCTIVE, len(candidates))),
    }
    parts = images.split(options["at_once"])
    seconds: dict[str, list[float]] = {name: [] for name in protocols}
    for turn in range(options["repeats"] + 1):
        for name, (stored, infer) in protocols.items():
            model.set_references(stored)
            wait_for(images.device)
            began = time.perf_counter()
            for part in parts if turn else parts[:1]:  # the first turn warms up
                infer(part)
            wait_for(images.device)
            if turn:
                seconds[name].append((time.perf_counter() - began) * 1000 / len(images))
    where = describe_device(images.device)
    return [
        {"metric": SECONDS, "inference": name, "value": min(times), "on": where}
        for name, times in seconds.items()
    ]
