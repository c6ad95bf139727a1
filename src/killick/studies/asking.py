"""One network asked in four ways: from one reference, the mean image, several, or the best one.

All ways are asked about the same corrupted pictures, and references are drawn several times, to
tell how much the draw decides. A draw is a list of different training pictures: "single" takes its
first, "marginal" its first K, "transductive" all of it as candidates. So the logits of one
reference serve "single" and "marginal", and arms of one seed are asked from the same pictures.

What a way costs is timed apart, on pictures as they are, each way on its own as a user would ask.
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
from killick.data.transforms import erase
from killick.errors import OptionError
from killick.protocols.references.reference_sampler import STATISTICS_IMAGES, make_pool
from killick.results.measurements import Measured, Record
from killick.runtime.processes import Processes
from killick.runtime.progress import DisplayFactory
from killick.studies.trained import Trained, corrupt_all, limited, open_trained
from killick.training.recipe import Recipe
from killick.training.training_data import TrainingData, load_training_data

SINGLE, MEAN, MARGINAL, TRANSDUCTIVE = "single", "mean-image", "marginal", "transductive"
TOP1, SECONDS = "top1", "seconds per 1000"
# Controls: how bad a reference can be, whether one candidate is chosen for most pictures, and how
# far the chosen residuals are from those of training.
WORST, SHARE, DISTANCE = "worst reference top1", "largest share", "distance"
_COORDINATES = ("metric", "inference", "draw", "corruption", "severity")


@dataclass(frozen=True)
class Ways:
    """The references that a network is asked from.

    Attributes:
        draws: Of each draw the candidates, `(candidates, 3, size, size)`.
        mean: The mean of the training pictures (of 5,000, where they are read from files),
            `(1, 3, size, size)`.
        k: References of "marginal".
        searched: In how many of the draws the best candidate is searched for.
        at_once: Pictures of a forward pass.
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
    """Accuracy of each way on each corrupted set, then the seconds that each way takes.

    Args:
        folder: Of a trained cell.
        options: See `killick.studies.inference.Options`.
        kept: What is there already, and where the rest goes.
        device: Where to work.
        show: Who is told.
    """
    trained = open_trained(folder, device)
    images, labels = trained.test(options["pictures"])
    known = list_corruptions("c", choose_table(images.shape[-2:]))
    names = options["corruptions"] or known
    places = [(name, severity) for name in names for severity in options["severities"]]
    left = [place for place in places if not _is_there(kept, *place)]
    timed = kept.find(metric=SECONDS, inference=TRANSDUCTIVE) is not None
    if timed and not left:
        return
    model, ways = anchored_in(trained.model), draw_ways(trained, options)
    model.set_residuals(training_residuals(trained, options["bank"]))
    with show("asking in four ways", len(places), len(places) - len(left), "set") as display:
        for name, severity in left:
            (corrupted,) = corrupt_all(images, [name], [severity])
            found = ask(model, corrupted.images, labels, ways)
            _add_missing(kept, found, corruption=name, severity=severity)
            display.update(len(places) - len(left) + left.index((name, severity)) + 1, name)
        if not timed:
            times = time_ways(model, images[: options["timed"]], ways, options["repeats"])
            _add_missing(kept, times)


def draw_ways(trained: Trained, options: Mapping[str, Any]) -> Ways:
    """The references of a cell: uniform draws from what training drew references from."""
    recipe, train = trained.recipe, trained.parts.train
    numbers = torch.arange(len(train))
    if recipe.protocol.reference_set is not None:
        pool = ReferencePool(numbers[:, None], train.labels)
        numbers = pool.choose(recipe.protocol.reference_set, seed=recipe.seed)[:, 0]
    if options["candidates"] > len(numbers):
        raise OptionError(
            f"expected at most {len(numbers)} candidates, as many pictures as references were drawn"
            f" from in training, found {options['candidates']}."
        )
    draws = []
    for draw in range(options["draws"]):
        generator = torch.Generator().manual_seed(key(recipe.seed, draw) % 2**63)
        order = torch.randperm(len(numbers), generator=generator)[: options["candidates"]]
        draws.append(trained.show(train.part(numbers[order])))
    many = limited(train, None if train.in_memory else STATISTICS_IMAGES, recipe.seed)
    mean = ReferencePool(trained.show(many)).mean()
    searched = min(options["searched"], options["draws"])
    return Ways(tuple(draws), mean, options["k"], searched, options["at_once"])


def training_residuals(trained: Trained, size: int) -> Tensor:
    """Residuals of random pairs: pictures and references with the transforms of training."""
    recipe = trained.recipe
    material = load_training_data(recipe, Processes(0, 1, trained.device))
    images = torch.cat(list(_as_trained(recipe, material, size)))
    references = None  # other pictures, augmented alike
    if recipe.protocol.references == "clean":
        pool, _ = make_pool(recipe.protocol, material.context)
        assert pool is not None
        references = ReferencePool(pool.permute(0, 3, 1, 2))
    generator = torch.Generator().manual_seed(recipe.seed)
    model = anchored_in(trained.model)
    return residual_bank(model, images, references, size=size, generator=generator)


def _as_trained(recipe: Recipe, material: TrainingData, count: int) -> Iterator[Tensor]:
    """The first pictures of the first epoch as the network saw them, at most all of that epoch."""
    batches, augment = material.batches, recipe.augment
    mixing: Mixing | None = None
    batches.begin(0, 0)
    for _ in range(min(batches.samples, count + batches.cut.batch - 1) // batches.cut.batch):
        batches.load()
        for number in range(batches.cut.passes):
            images, labels, keys = batches.batch(number)
            if augment.erase:
                fill = [255 * mean for mean in material.normalize[0]]
                images = erase(images, keys, augment.erase, fill)
            if augment.mixup or augment.cutmix:
                classes = len(material.class_names)
                mixing = mixing or Mixing(augment.mixup, augment.cutmix, classes, images.device)
                images, _ = mixing(images, labels, keys)
            yield images.clone()  # what streams is written over by the next step
        batches.advance()


def ask(model: Anchored, images: Tensor, labels: Tensor, ways: Ways) -> list[Record]:
    """Accuracy of each way and draw, and the controls, on some pictures.

    Args:
        model: In eval mode, with a bank of residuals; its stored references are replaced.
        images: uint8, on its device.
        labels: Of them.
        ways: To ask in.
    """
    parts = list(zip(images.split(ways.at_once), labels.split(ways.at_once), strict=True))
    about: list[Record] = []
    sums: list[Tensor] = []

    def note(total: Tensor, metric: str, inference: str, draw: int) -> None:
        about.append({"metric": metric, "inference": inference, "draw": draw})
        sums.append(total.double())

    for draw, candidates in enumerate(ways.draws):
        model.set_references(candidates)
        members, together = _ask_several(model, parts, ways.k)
        note(members[0], TOP1, SINGLE, draw)
        note(together, TOP1, MARGINAL, draw)
        note(members.min(), WORST, MARGINAL, draw)
        if draw < ways.searched:
            chosen = [_ask_best(model, *part, len(candidates)) for part in parts]
            correct, counts, distance = (
                torch.stack(values).sum(0) for values in zip(*chosen, strict=True)
            )
            note(correct, TOP1, TRANSDUCTIVE, draw)
            note(counts.max(), SHARE, TRANSDUCTIVE, draw)
            note(distance, DISTANCE, TRANSDUCTIVE, draw)
    model.set_references(ways.mean)
    note(_ask_several(model, parts, 1)[1], TOP1, MEAN, 0)
    values = torch.stack(sums).tolist()  # waits for the device, once
    return [
        {**each, "value": value / len(images)} for each, value in zip(about, values, strict=True)
    ]


def _ask_several(
    model: Anchored, parts: Sequence[tuple[Tensor, Tensor]], k: int
) -> tuple[Tensor, Tensor]:
    """How many are right from each of `k` references `(k,)`, and from their mean logits."""
    single, together = [], []
    for images, labels in parts:
        said = predict(model, images, "marginal", k, members=True)
        assert said.members is not None
        single.append((said.members.argmax(-1) == labels).sum(1))
        together.append((said.logits.argmax(-1) == labels).sum())
    return torch.stack(single).sum(0), torch.stack(together).sum()


def _ask_best(
    model: Anchored, images: Tensor, labels: Tensor, candidates: int
) -> tuple[Tensor, Tensor, Tensor]:
    """How many are right, how often each candidate was chosen, and the sum of distances."""
    said = predict(model, images, TRANSDUCTIVE, candidates)
    assert said.distance is not None
    correct = (said.logits.argmax(-1) == labels).sum()
    return correct, said.references.bincount(minlength=candidates), said.distance.sum()


def time_ways(model: Anchored, images: Tensor, ways: Ways, repeats: int) -> list[Record]:
    """Seconds for 1,000 pictures of each way, the best and the median of some repeats.

    The ways take turns, so that what else the machine does falls upon all of them.
    """
    candidates = ways.draws[0]
    asked: dict[str, tuple[Tensor, Callable[[Tensor], object]]] = {
        SINGLE: (candidates, lambda x: predict(model, x)),
        MEAN: (ways.mean, lambda x: predict(model, x)),
        MARGINAL: (candidates, lambda x: predict(model, x, MARGINAL, ways.k)),
        TRANSDUCTIVE: (candidates, lambda x: predict(model, x, TRANSDUCTIVE, len(candidates))),
    }
    parts = images.split(ways.at_once)
    seconds: dict[str, list[float]] = {name: [] for name in asked}
    for turn in range(repeats + 1):
        for name, (references, way) in asked.items():
            model.set_references(references)
            _wait(images.device)
            began = time.perf_counter()
            for part in parts if turn else parts[:1]:  # the first turn warms up
                way(part)
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
            "at_once": ways.at_once,
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


def _is_there(kept: Measured, corruption: str, severity: int) -> bool:
    """Whether a set was asked about: the mean image comes last."""
    known = {"corruption": corruption, "severity": severity}
    return kept.find(metric=TOP1, inference=MEAN, **known) is not None


def _add_missing(kept: Measured, records: Sequence[Record], **place: Any) -> None:
    """Keep those records that a kill did not leave there already."""
    new = [{**record, **place} for record in records]
    about = [{name: each[name] for name in _COORDINATES if name in each} for each in new]
    kept.add(*(each for each, known in zip(new, about, strict=True) if not kept.find(**known)))
