"""The test sets of an evaluation: clean, corrupted, shifted and OOD images.

All data are opened and checked here, so that a mistake is reported before anything is computed.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from killick.corruptions.corruption import Corruption, choose_table, corrupt
from killick.data.corrupted_files import CorruptedFiles
from killick.data.image_set import ImageSet, digest
from killick.data.preprocessing import PlainView
from killick.data.sources import load_whole
from killick.data.splits import limit_images
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import DataError, OptionError
from killick.evaluation.class_mapping import Alignment
from killick.evaluation.classifier import Classifier
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.image_blocks import ImageBlocks, block_generator
from killick.results.predictions import sample
from killick.runtime.processes import Processes

Transform = Callable[[Tensor, torch.Generator], Tensor]
COLUMNS = (
    *("suite", "set", "source", "frost", "class_map", "table", "corruption", "severity", "view"),
    "images",
)


@dataclass(frozen=True)
class TestSet:
    """Images that a classifier is evaluated on.

    Attributes:
        open: Gives the images.
        count: Number of images.
        alignment: From the model's classes to the set's; None for OOD images.
        transform: Applied to each block of images, as a corruption.
        suite, set, source, frost, class_map, table, corruption, severity, view, images: See
            `killick.results.rows`.
    """

    __test__ = False  # for pytest

    suite: str
    set: str
    open: Callable[[], ImageBlocks]
    count: int
    alignment: Alignment | None = None
    transform: Transform | None = None
    corruption: str = ""
    severity: int | str = ""
    source: str = ""
    frost: str = ""
    class_map: str = ""
    table: str = ""
    view: str = ""
    images: str = ""

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.corruption} {self.severity}" if self.corruption else self.set

    @property
    def samples(self) -> Sequence[int]:
        """The numbers of images that are kept as examples."""
        return sample(self.count, 24) if self.severity in ("", 3, 5) else ()

    def columns(self) -> dict[str, Any]:
        """The columns of its rows."""
        return {name: getattr(self, name) for name in COLUMNS}

    def generator(self, seed: int, block: int, device: torch.device) -> torch.Generator:
        """For a block; see `block_generator`."""
        severity = self.severity if isinstance(self.severity, int) else 0
        return block_generator(seed, self.corruption or self.set, severity, block, device)


def plan_test_sets(
    classifier: Classifier,
    test: ImageSet,
    settings: EvaluationSettings,
    processes: Processes,
    notes: list[str],
) -> list[TestSet]:
    """The test sets of an evaluation, in their order; the first is the clean one.

    Args:
        classifier: To evaluate.
        test: The clean images.
        settings: Of the evaluation.
        processes: This one and the others.
        notes: Messages for the user are added here.
    """
    if "references" in settings.suites and classifier.outputs == 1:
        if settings.suites == ("references",):
            raise OptionError(
                "--suite references requires an anchored model with several references;"
                f" {classifier.name} has {classifier.references or 'none'}."
            )
        notes.append("one reference or none: the suite references is left out")
    planner = _Planner(classifier, settings, processes)
    clean = planner.limited(test)
    alignment = planner.align(test.name, clean)
    clean = alignment.restrict(clean)
    blocks: list[ImageBlocks] = []  # read once, for all sets made from them

    def open_clean() -> ImageBlocks:
        if not blocks:
            blocks.append(planner.open(clean, keep=True))
        return blocks[0]

    view, images = planner.view().described, digest(clean)
    same = partial(TestSet, open=open_clean, count=len(clean), view=view, images=images)
    sets = [same("clean", test.name, alignment=alignment)]
    table = choose_table((classifier.size, classifier.size), settings.table)
    for suite, files in (
        ("corruptions", settings.corruption_files),
        ("cbar", settings.cbar_files),
    ):
        if suite not in settings.suites:
            continue
        chosen = settings.choose_corruptions(suite, table)
        if files is not None:
            sets += planner.read_corrupted(files, chosen, suite, test.name, clean, notes)
            continue
        for name in chosen:
            corruption = settings.find_corruption(name)
            for severity in settings.severities:
                corrupted = same(
                    suite,
                    test.name,
                    alignment=alignment,
                    transform=planner.corrupt(corruption, severity, table),
                    corruption=name,
                    severity=severity,
                    source="generated",
                    frost=planner.describe_frost() if name == "frost" else "",
                    table="" if name in settings.own_corruptions else table,
                )
                sets.append(corrupted)
    if "shift" in settings.suites:
        sets += [planner.shifted(name, given) for name, given in settings.shift.items()]
    if "ood" in settings.suites:
        sets += [planner.ood(name, given) for name, given in settings.ood.items()]
        for name in settings.synthetic:
            sets.append(same("ood", name, transform=SYNTHETIC[name], source="generated"))
    return sets


def plan_validation(
    classifier: Classifier, images: ImageSet, settings: EvaluationSettings, processes: Processes
) -> TestSet:
    """The set that temperature and threshold are fitted on."""
    planner = _Planner(classifier, settings, processes)
    images = planner.limited(images)
    alignment = planner.align(images.name, images)
    images = alignment.restrict(images)
    opened = partial(planner.open, images)
    return TestSet("validation", images.name, opened, len(images), alignment, images=digest(images))


class _Planner:
    """Makes test sets of images for one classifier."""

    def __init__(
        self, classifier: Classifier, settings: EvaluationSettings, processes: Processes
    ) -> None:
        self._classifier, self._settings, self._processes = classifier, settings, processes

    def limited(self, images: ImageSet) -> ImageSet:
        """At most `limit` images, of every class in proportion, the same for the same seed."""
        return limit_images(images, self._settings.limit, self._settings.seed)

    def open(self, images: ImageSet, *, keep: bool = False, cropped: bool = False) -> ImageBlocks:
        view, workers = self.view(cropped), self._settings.workers
        return ImageBlocks(images, view, self._processes, workers, keep=keep)

    def view(self, cropped: bool = False) -> PlainView:
        """How images are resized and cropped; not at all if they were before."""
        view = self._classifier.view
        return PlainView(view.size, None, self._classifier.interpolation) if cropped else view

    def align(self, name: str, images: ImageSet, *, mapped: bool = False) -> Alignment:
        """From the model's classes to those of a set."""
        classifier = self._classifier
        given = self._settings.class_map if mapped else None
        if given is not None and not set(given) & set(images.class_names):
            given = None  # it is about another set
        if mapped and images.class_names == ("unknown",):
            raise DataError(
                f"the images of --shift {name} have no classes. Name class folders,"
                " imagefolder:PATH, or use them as --ood."
            )
        ours, classes = classifier.class_names, classifier.classes
        return Alignment(name, images.class_names, ours, classes, given)

    def corrupt(self, corruption: Corruption, severity: int, table: str) -> Transform:
        frost = self._settings.frost

        def transform(images: Tensor, generator: torch.Generator) -> Tensor:
            return corrupt(
                images, corruption, severity, table=table, generator=generator, frost=frost
            )

        return transform

    def describe_frost(self) -> str:
        """The textures of the corruption frost."""
        frost = self._settings.frost
        if frost is None:
            return "procedural"
        return os.fspath(frost) if isinstance(frost, str | os.PathLike) else "given"

    def read_corrupted(
        self,
        path: str,
        chosen: tuple[str, ...],
        suite: str,
        name: str,
        clean: ImageSet,
        notes: list[str],
    ) -> Iterable[TestSet]:
        """Published corrupted images."""
        files = CorruptedFiles(path, chosen, clean.class_names)
        missing = [corruption for corruption in chosen if corruption not in files.names]
        if missing:
            notes.append(f"{len(missing)} not in {files.path}, left out: {', '.join(missing)}")
        first = files.load(files.names[0], self._settings.severities[0])
        alignment = self.align(files.path.name, first)

        def open_files(corruption: str, severity: int) -> ImageBlocks:
            images = self.limited(files.load(corruption, severity))
            if images.class_names != first.class_names:
                raise DataError(
                    f"{corruption} {severity} in {files.path} has {images.classes} classes, the"
                    f" first set {first.classes}. They must be the same."
                )
            return self.open(alignment.restrict(images), cropped=True)

        for corruption in files.names:
            for severity in self._settings.severities:
                yield TestSet(
                    suite,
                    name,
                    partial(open_files, corruption, severity),
                    len(self.limited(first)),
                    alignment,
                    corruption=corruption,
                    severity=severity,
                    source="files",
                    table=files.path.name,
                    view=self.view(cropped=True).described,
                    images=files.digest(corruption),
                )

    def shifted(self, name: str, given: "str | ImageSet") -> TestSet:
        """A set with the model's classes, from another source."""
        images = self.limited(_load(given))
        alignment = self.align(name, images, mapped=True)
        return self._other("shift", name, given, alignment.restrict(images), alignment)

    def ood(self, name: str, given: "str | ImageSet") -> TestSet:
        """OOD images."""
        return self._other("ood", name, given, self.limited(_load(given)))

    def _other(
        self,
        suite: str,
        name: str,
        given: "str | ImageSet",
        images: ImageSet,
        alignment: Alignment | None = None,
    ) -> TestSet:
        return TestSet(
            suite,
            name,
            partial(self.open, images),
            len(images),
            alignment,
            source="files" if isinstance(given, str) else "given",
            class_map="" if alignment is None else alignment.map_digest or "",
            view=self.view().described,
            images=digest(images),
        )


def _load(given: "str | ImageSet") -> ImageSet:
    return given if isinstance(given, ImageSet) else load_whole(given)
