"""Linear probes on frozen features, and what the study measures with them.

On an anchored network the probe is trained as the network was, with random and masked references, by
the same `ReferenceMasking`. On a standard one it sees the same images in the same batches for as many
steps, and its learning rate is chosen in the same way.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from killick import metrics
from killick.core.masking import ReferenceMasking
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.sources import load_sets
from killick.data.splits import limit_images, stratified
from killick.errors import DataError, DivergedError
from killick.results.measurements import Measured, Record
from killick.runtime.progress import Display, DisplayFactory
from killick.studies.adaptation.domains import load_domains
from killick.studies.adaptation.features import UNMASKED, FeatureReader
from killick.studies.trained_job import TrainedJob, open_job
from killick.training.optimizers import learning_rate
from killick.training.recipe import Schedule

SAME_DATA, SAME_DOMAIN, OTHER_DOMAIN = "id", "within", "ood"  # values of "task" in records
CHOSEN = "learning_rate"  # metric of the last record of a probe
_MOMENTUM = 0.9
_HELD = 0.2  # of the training images, to choose the learning rate on
_FITTING, _CHOOSING = 0xF17, 0xC40


@dataclass(frozen=True)
class ProbeSettings:
    """How a probe is trained.

    Attributes:
        epochs: Passes over its training images.
        batch: Images of a step.
        weight_decay: Of the weights, not of the bias.
        alpha: Share of steps with masked references.
        target: Of masked steps: "label" or "uniform".
        seed: Of everything random.
    """

    epochs: int
    batch: int
    weight_decay: float
    alpha: float
    target: str
    seed: int


class Probe(nn.Module):
    """A linear layer over standardized features.

    They are also divided by the root of their number, so that one learning rate fits networks of any
    width.

    Args:
        features: Of the training images, `(draws, kinds, n, width)`; the unmasked ones are
            standardized, as the probe is tested on such.
        classes: How many there are.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: Tensor, classes: int) -> None:
        super().__init__()
        seen = features[:, UNMASKED].flatten(0, 1)
        spread, mean = torch.std_mean(seen.double(), 0, correction=0)
        varies = spread > 1e-6 * (1 + mean.abs())  # a constant feature is left out
        scale = torch.where(varies, 1 / spread.clamp_min(1e-12), 0) / math.sqrt(seen.shape[1])
        self.register_buffer("mean", mean.float())
        self.register_buffer("scale", scale.float())
        # Not initialized by torch: that would draw from the global state.
        self.linear = nn.utils.skip_init(nn.Linear, seen.shape[1], classes, device=features.device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(…, classes)` of features `(…, width)`."""
        logits: Tensor = self.linear((features - self.mean) * self.scale)
        return logits


def fit_probe(
    features: Tensor, labels: Tensor, classes: int, rate: float, settings: ProbeSettings
) -> Probe:
    """A probe trained on cached features.

    Each step draws one of the references of every image, and with probability `alpha` masks the
    reference for the whole batch.

    Args:
        features: `(draws, kinds, n, width)`, see `FeatureReader.read_training`; with one kind nothing
            can be masked.
        labels: `(n,)`, on the same device.
        classes: How many there are.
        rate: Highest learning rate of a cosine schedule.
        settings: See there.
    """
    draws, kinds, n, _ = features.shape
    probe = Probe(features, classes)
    groups: list[dict[str, Any]] = [
        {"params": [probe.linear.weight], "weight_decay": settings.weight_decay},
        {"params": [probe.linear.bias]},
    ]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=_MOMENTUM)
    alpha = settings.alpha if kinds > 1 else 0.0
    masking = ReferenceMasking(alpha, settings.target, scope="batch")
    generator = torch.Generator().manual_seed(key(settings.seed, _FITTING) % 2**63)

    def forward(places: Tensor, drawn: Tensor, masked: Tensor | None) -> Tensor:
        """The probe as `ReferenceMasking` calls a model: images and references are numbers."""
        kind = torch.zeros_like(drawn) if masked is None else masked.long().expand(drawn.shape)
        logits: Tensor = probe(features[drawn, kind, places])
        return logits

    batch = min(settings.batch, n)
    steps = settings.epochs * (n // batch)
    for step in range(steps):
        if step % (n // batch) == 0:
            order = torch.randperm(n, generator=generator).to(features.device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, rate, Schedule())
        begin = step % (n // batch) * batch
        places = order[begin : begin + batch]
        drawn = torch.randint(draws, (batch,), generator=generator).to(features.device)
        loss = masking.loss(forward, places, labels[places], drawn, generator)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return probe.requires_grad_(False)


def choose_rate(
    features: Tensor, labels: Tensor, classes: int, rates: Sequence[float], settings: ProbeSettings
) -> float:
    """The learning rate with the best accuracy, then NLL, on held-out training images."""
    if len(rates) == 1:
        return rates[0]
    count = max(1, round(_HELD * len(labels)))
    kept, cut = stratified(labels.cpu(), count, key(settings.seed, _CHOOSING) % 2**63)
    kept, cut = kept.to(labels.device), cut.to(labels.device)
    found = []
    for rate in rates:
        probe = fit_probe(features[:, :, kept], labels[kept], classes, rate, settings)
        logits = probe(features[0, UNMASKED, cut])
        if bool(logits.isfinite().all()):
            right, nll = metrics.top_k(logits, labels[cut]), metrics.nll(logits, labels[cut])
            found.append((-right, nll, rate))
    if not found:
        raise DivergedError(f"the probe diverges at all --rates {list(rates)}. Try smaller ones.")
    return min(found)[2]


def score(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL and smooth ECE."""
    confidence, predicted = logits.double().softmax(1).max(1)
    return {
        "top1": metrics.top_k(logits, labels),
        "nll": metrics.nll(logits, labels),
        "smooth_ece": metrics.smooth_ece(confidence, predicted == labels),
    }


@dataclass(frozen=True)
class ProbeTask:
    """What a probe is trained and tested on.

    Attributes:
        source: Name of its training data.
        train: Its training images.
        tests: The task, name and images of each test.
    """

    source: str
    train: ImageSet
    tests: tuple[tuple[str, str, ImageSet], ...]

    def last_record(self, alpha: float) -> Record:
        """What identifies the last record of a probe."""
        return {"metric": CHOSEN, "task": self.tests[0][0], "source": self.source, "alpha": alpha}

    def passes(self, draws: int, kinds: int) -> int:
        """Forward passes, in images."""
        tested = sum(len(images) for _, _, images in self.tests)
        return draws * (kinds * len(self.train) + tested)


def measure(
    folder: Path,
    options: Mapping[str, Any],
    kept: Measured,
    *,
    device: torch.device,
    show: DisplayFactory,
) -> None:
    """Train and test probes on the features of a trained job.

    Records are kept probe by probe. Each has "task" ("id", "within" or "ood"), "source", "target",
    "alpha" of the probe and "reference", the number of the one that it was tested with.
    """
    job = open_job(folder, device)
    reader = FeatureReader(job, options["draws"])
    alphas = options["alphas"] if reader.backbone.anchored else [0.0]
    tasks = [*_data_tasks(job, options), *_domain_tasks(options)]
    sizes = [task.passes(reader.draws, reader.kinds) for task in tasks]
    todo = [[a for a in alphas if kept.find(**task.last_record(a)) is None] for task in tasks]
    done = sum(size for size, wanted in zip(sizes, todo, strict=True) if not wanted)
    with show(f"probes on {folder.name}", sum(sizes), done, "image") as display:
        reader.seen = done
        for task, wanted in zip(tasks, todo, strict=True):
            if wanted:
                reader.tick = partial(_report, display, f"probe on {task.source}")
                _measure_task(task, wanted, reader, options, kept, job.recipe.seed)


def _report(display: Display, text: str, seen: int) -> None:
    display.update(seen, text)


def _measure_task(
    task: ProbeTask,
    alphas: Sequence[float],
    reader: FeatureReader,
    options: Mapping[str, Any],
    kept: Measured,
    seed: int,
) -> None:
    """Train a probe for each alpha, test it, and keep the results."""
    features = reader.read_training(task.train)
    labels, classes = task.train.labels.to(features.device), task.train.classes
    references = reader.choose_references(task.train)
    tests = [
        (kind, name, reader.read_test(images, references), images.labels.to(features.device))
        for kind, name, images in task.tests
    ]
    name_key = int.from_bytes(hashlib.sha256(task.source.encode()).digest()[:8])
    for alpha in alphas:
        settings = ProbeSettings(
            options["probe_epochs"],
            options["probe_batch"],
            options["probe_decay"],
            alpha,
            options["probe_target"],
            key(seed, name_key),
        )
        rate = choose_rate(features, labels, classes, options["rates"], settings)
        probe = fit_probe(features, labels, classes, rate, settings)
        found = [
            (
                {"metric": metric, "task": kind, "source": task.source, "alpha": alpha}
                | {"target": name, "reference": number},
                value,
            )
            for kind, name, read, truth in tests
            for number, logits in enumerate(probe(read))
            for metric, value in score(logits, truth).items()
        ]
        new = [{**which, "value": value} for which, value in found if not kept.find(**which)]
        kept.add(*new, {**task.last_record(alpha), "value": rate})


def _data_tasks(job: TrainedJob, options: Mapping[str, Any]) -> list[ProbeTask]:
    """Probes that are trained and tested on the same data."""
    tasks = []
    data = job.recipe.data
    for name in dict.fromkeys(options["targets"]):
        sets = load_sets(name, root=data.root, download=data.download)
        if sets.train is None or sets.test is None:
            raise DataError(f"--targets needs data with a training and a test set, found {name}.")
        tasks.append(_limit(name, sets.train, [(SAME_DATA, name, sets.test)], options))
    return tasks


def _domain_tasks(options: Mapping[str, Any]) -> list[ProbeTask]:
    """Probes that are trained on one domain and tested on that and all others."""
    if options["domains"] is None:
        return []
    sources = list(dict.fromkeys(options["sources"]))
    domains = load_domains(Path(options["domains"]), options["styles"], sources)
    tasks = []
    for source in sources:
        own = domains[source]
        tests = [(SAME_DOMAIN, source, own.held)]
        tests += [(OTHER_DOMAIN, n, each.whole) for n, each in domains.items() if n != source]
        tasks.append(_limit(source, own.train, tests, options))
    return tasks


def _limit(
    source: str,
    train: ImageSet,
    tests: Sequence[tuple[str, str, ImageSet]],
    options: Mapping[str, Any],
) -> ProbeTask:
    """A task with as many images as the options allow, stratified by class."""
    limited = [(kind, n, limit_images(images, options["test_limit"])) for kind, n, images in tests]
    return ProbeTask(source, limit_images(train, options["train_limit"]), tuple(limited))
