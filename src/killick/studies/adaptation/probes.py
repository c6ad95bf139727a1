"""Linear probes on frozen features, and what the study measures with them.

On an anchored network the probe is trained as the network was, with random and masked references, by
the same `ReferenceMasking`. On a standard one it sees the same images in the same batches for as many
steps, and its learning rate is chosen in the same way.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from killick import metrics
from killick.core.masking import ReferenceMasking
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.sources import load_sets
from killick.data.sources.imagefolder import read_classes
from killick.data.splits import limit_images, stratified
from killick.errors import DataError, DivergedError
from killick.results.measurements import Measured, Record
from killick.runtime.progress import DisplayFactory
from killick.studies.adaptation.features import UNMASKED, FeatureReader
from killick.studies.trained_job import TrainedJob, open_job
from killick.training.optimizers import learning_rate
from killick.training.recipe import Schedule

SAME_DATA, SAME_DOMAIN, OTHER_DOMAIN = "id", "within", "ood"  # values of "task" in records
CHOSEN = "learning_rate"  # metric of the last record of a probe
_MOMENTUM = 0.9
_HELD = 0.2  # of the training images, to choose the learning rate on; of a domain, to test on
_SPLIT_SEED = 0  # of domains
_FITTING, _CHOOSING = 0xF17, 0xC40


@dataclass(frozen=True)
class ProbeSettings:
    """How a probe is trained."""

    epochs: int
    batch: int
    weight_decay: float  # of the weights, not of the bias
    alpha: float  # share of steps with masked references
    target: str  # of masked steps: "label" or "uniform"
    seed: int


class Probe(nn.Module):
    """A linear layer over standardized features.

    They are those of the training images, unmasked, as the probe is tested on such. They are also
    divided by the root of their number, so that one learning rate fits networks of any width.
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
    reference for the whole batch. Features are those of `FeatureReader.read_training`; the learning
    rate is the highest of a cosine schedule.
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


class ProbeTask(NamedTuple):
    """What a probe is trained and tested on."""

    source: str  # name of its training data
    train: ImageSet
    tests: list[tuple[str, str, ImageSet]]  # task, name and images of each

    def last_record(self, alpha: float) -> Record:
        """What identifies the last record of a probe."""
        return {"metric": CHOSEN, "task": self.tests[0][0], "source": self.source, "alpha": alpha}


def measure(
    folder: Path, options: Record, kept: Measured, *, device: torch.device, show: DisplayFactory
) -> None:
    """Train and test probes on the features of a trained job.

    Records are kept probe by probe. Each has "task" ("id", "within" or "ood"), "source", "target",
    "alpha" of the probe and "reference", the number of the one that it was tested with.
    """
    job = open_job(folder, device)
    reader = FeatureReader(job, options["draws"])
    alphas = options["alphas"] if reader.anchored else [0.0]
    tasks = list(_find_tasks(job, options))
    with show(f"probes on {folder.name}", len(tasks), 0, "source") as display:
        for number, task in enumerate(tasks):
            display.update(number, f"probe on {task.source}")
            left = [alpha for alpha in alphas if kept.find(**task.last_record(alpha)) is None]
            if left:
                _measure_task(task, left, reader, options, kept, job.recipe.seed)


def _measure_task(
    task: ProbeTask,
    alphas: Sequence[float],
    reader: FeatureReader,
    options: Record,
    kept: Measured,
    seed: int,
) -> None:
    """Train a probe for each alpha, test it, and keep the results."""
    train = limit_images(task.train, options["train_limit"])
    features = reader.read_training(train)
    labels, classes = train.labels.to(features.device), train.classes
    references = reader.choose_references(train)
    tests = []
    for kind, name, images in task.tests:
        images = limit_images(images, options["test_limit"])
        read = reader.read_test(images, references)
        tests.append((kind, name, read, images.labels.to(features.device)))
    name_key = int.from_bytes(hashlib.sha256(task.source.encode()).digest()[:8])
    for alpha in alphas:
        epochs, batch, decay = (options[f"probe_{name}"] for name in ("epochs", "batch", "decay"))
        target, own_seed = options["probe_target"], key(seed, name_key)
        settings = ProbeSettings(epochs, batch, decay, alpha, target, own_seed)
        rate = choose_rate(features, labels, classes, options["rates"], settings)
        probe = fit_probe(features, labels, classes, rate, settings)
        about = {"source": task.source, "alpha": alpha}
        found = [
            {"metric": metric, "task": kind, **about, "target": name, "reference": number}
            | {"value": value}
            for kind, name, read, truth in tests
            for number, logits in enumerate(probe(read))
            for metric, value in score(logits, truth).items()
        ]
        kept.add(*found, {**task.last_record(alpha), "value": rate})


def _find_tasks(job: TrainedJob, options: Record) -> Iterator[ProbeTask]:
    """A probe for each of the targets, and one for each source domain, tested on all domains."""
    data = job.recipe.data
    for name in dict.fromkeys(options["targets"] or ()):
        sets = load_sets(name, root=data.root, download=data.download)
        if sets.train is None or sets.test is None:
            raise DataError(f"--targets needs data with a training and a test set, found {name}.")
        yield ProbeTask(name, sets.train, [(SAME_DATA, name, sets.test)])
    if options["domains"] is None:
        return
    sources = list(dict.fromkeys(options["sources"]))
    domains = load_domains(Path(options["domains"]), options["styles"], sources)
    for source in sources:
        tests = [(OTHER_DOMAIN, n, each.whole) for n, each in domains.items() if n != source]
        own = domains[source]
        yield ProbeTask(source, own.train, [(SAME_DOMAIN, source, own.held), *tests])


# The same classes in several domains, from folders laid out as DomainNet: `real/cat/1.jpg`


@dataclass(frozen=True)
class Domain:
    """The images of one domain."""

    train: ImageSet  # to train a probe on
    held: ImageSet  # to test that probe on the same domain
    whole: ImageSet  # to test probes of other domains on


def load_domains(
    folder: Path, wanted: Sequence[str] | None = None, sources: Sequence[str] = ()
) -> dict[str, Domain]:
    """The domains of a folder by name, with the classes that all of them have."""
    top = folder.expanduser()
    there = [path.name for path in top.iterdir() if path.is_dir()] if top.is_dir() else []
    there = sorted(name for name in there if not name.startswith("."))
    names = list(dict.fromkeys(wanted or there))
    missing = [name for name in (*names, *sources) if name not in there or name not in names]
    if missing or len(names) < 2:
        raise DataError(
            f"--domains {folder} needs at least 2 folders DOMAIN/CLASS/image"
            + (f", among them {missing[0]!r}" if missing else "")
            + f"; found {', '.join(there[:10]) or 'none'}. Choose with --styles and --sources."
        )
    read = {name: read_classes(top / name, name) for name in names}
    shared = set.intersection(*(set(images.class_names) for images in read.values()))
    if len(shared) < 2:
        raise DataError(
            f"the domains {', '.join(names)} in {folder} share"
            f" {', '.join(sorted(shared)) or 'no class'}. At least 2 common classes are needed."
        )
    return {name: _split(_keep_classes(images, sorted(shared))) for name, images in read.items()}


def _keep_classes(images: ImageSet, names: Sequence[str]) -> ImageSet:
    if list(images.class_names) == list(names):
        return images
    numbers = torch.tensor([names.index(n) if n in names else -1 for n in images.class_names])
    labels = numbers[images.labels]
    kept = (labels >= 0).nonzero().squeeze(1)
    return replace(images.part(kept), labels=labels[kept], class_names=tuple(names))


def _split(images: ImageSet) -> Domain:
    """A fixed fifth is held out, stratified by class; every class keeps an image to train on."""
    room = len(images) - len(images.labels.unique())
    count = min(round(_HELD * len(images)), room)
    kept, cut = stratified(images.labels, count, _SPLIT_SEED)
    return Domain(images.part(kept), images.part(cut), images)
