"""What the study `adaptation` measures of a cell: probes on its network, on other data and domains.

A probe is trained on some data and tested on more of the same, or on the same classes in another
domain.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.sources import load_sets
from killick.errors import DataError
from killick.results.measurements import Measured, Record
from killick.runtime.progress import Display, DisplayFactory
from killick.studies.domains import load_domains, quoted
from killick.studies.features import Reader
from killick.studies.probing import Settings, choose_rate, fit_probe, score
from killick.studies.trained import Trained, limited, open_trained

ID, WITHIN, OOD = "id", "within", "ood"  # the same data; the same domain; another domain
CHOSEN = "learning_rate"  # metric of the record that is written last of a probe
LACKING = "classes_lacking"  # metric of a record about a domain


@dataclass(frozen=True)
class Task:
    """What a probe is trained on, and what it is tested on.

    Attributes:
        source: Name of what it is trained on.
        train: Its pictures.
        tests: How each test stands to the source, its name, and its pictures.
    """

    source: str
    train: ImageSet
    tests: tuple[tuple[str, str, ImageSet], ...]

    def closing(self, alpha: float) -> Record:
        """What the record has that is written last of a probe."""
        return {"metric": CHOSEN, "task": self.tests[0][0], "source": self.source, "alpha": alpha}

    def passes(self, draws: int, kinds: int) -> int:
        """Pictures that a network is shown."""
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
    """Probes on the features of a trained cell, each tested on all that it is to be tested on.

    Records are kept probe by probe. Each has "task" ("id", "within" or "ood"), "source", "target",
    "alpha" of the probe and "reference", the number of the one that it was tested from.

    Args:
        folder: Of the run.
        options: Of the study `adaptation`.
        kept: Records of what was measured before.
        device: Where to work.
        show: Tells how it goes.
    """
    trained = open_trained(folder, device)
    reader = Reader(trained, options["draws"])
    alphas = options["alphas"] if reader.backbone.anchored else [0.0]
    tasks = [*_same_data(trained, options), *_domains(kept, options)]
    sizes = [task.passes(reader.draws, reader.kinds) for task in tasks]
    todo = [[a for a in alphas if kept.find(**task.closing(a)) is None] for task in tasks]
    done = sum(size for size, wanted in zip(sizes, todo, strict=True) if not wanted)
    with show(f"probes on {folder.name}", sum(sizes), done, "picture") as display:
        reader.seen = done
        for task, wanted in zip(tasks, todo, strict=True):
            if wanted:
                text = f"probe on {task.source}"
                reader.tick = partial(_tell, display, text)
                _measure_task(task, wanted, reader, options, kept, trained.recipe.seed)


def _tell(display: Display, text: str, seen: int) -> None:
    display.update(seen, text)


def _measure_task(
    task: Task,
    alphas: Sequence[float],
    reader: Reader,
    options: Mapping[str, Any],
    kept: Measured,
    seed: int,
) -> None:
    """Train a probe for each alpha, test it, and keep what is found."""
    features = reader.read_training(task.train)
    labels, classes = task.train.labels.to(features.device), task.train.classes
    references = reader.choose_references(task.train)
    tests = [
        (kind, name, reader.read_test(images, references), images.labels.to(features.device))
        for kind, name, images in task.tests
    ]
    for alpha in alphas:
        settings = Settings(
            options["probe_epochs"],
            options["probe_batch"],
            options["probe_decay"],
            alpha,
            options["probe_target"],
            key(seed, _number_of(task.source)),
        )
        rate = choose_rate(features, labels, classes, options["rates"], settings)
        probe = fit_probe(features, labels, classes, rate, settings)
        whose = {"source": task.source, "alpha": alpha}
        found: list[Record] = [
            {
                "metric": metric,
                "value": value,
                "task": kind,
                **whose,
                "target": name,
                "reference": r,
            }
            for kind, name, read, truth in tests
            for r, logits in enumerate(probe(read))
            for metric, value in score(logits, truth).items()
        ]
        new = [each for each in found if kept.find(**_without_value(each)) is None]
        kept.add(*new, {**task.closing(alpha), "value": rate})


def _without_value(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != "value"}


def _same_data(trained: Trained, options: Mapping[str, Any]) -> list[Task]:
    """Probes that are trained and tested on the same data."""
    tasks = []
    data = trained.recipe.data
    for name in dict.fromkeys(options["targets"]):
        sets = load_sets(name, root=data.root, download=data.download)
        if sets.train is None or sets.test is None:
            raise DataError(
                f"expected pictures to train and to test a probe on in {name}, found only one of"
                " them. Name data with both."
            )
        tasks.append(_limit(Task(name, sets.train, ((ID, name, sets.test),)), options))
    return tasks


def _domains(kept: Measured, options: Mapping[str, Any]) -> list[Task]:
    """Probes that are trained on one domain and tested on that and all others."""
    sources = list(dict.fromkeys(options["sources"]))
    if not sources:
        return []
    domains = load_domains(options["domains"], options["styles"], sources)
    for domain in domains.values():
        if domain.lacking and kept.find(metric=LACKING, target=domain.name) is None:
            record = {"metric": LACKING, "value": len(domain.lacking), "target": domain.name}
            kept.add({**record, "classes": quoted(domain.lacking)})
    tasks = []
    for source in sources:
        within = (WITHIN, source, domains[source].held)
        others = [(OOD, name, each.foreign) for name, each in domains.items() if name != source]
        tasks.append(_limit(Task(source, domains[source].train, (within, *others)), options))
    return tasks


def _limit(task: Task, options: Mapping[str, Any]) -> Task:
    """The task with as many pictures as the options allow, of every class in proportion."""
    tests = [(kind, name, limited(i, options["test_limit"])) for kind, name, i in task.tests]
    return Task(task.source, limited(task.train, options["train_limit"]), tuple(tests))


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
