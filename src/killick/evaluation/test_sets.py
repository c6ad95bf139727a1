"""The test sets of an evaluation: clean, corrupted, shifted and OOD images.

All data are opened and checked here, so that a mistake is reported before anything is computed.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from killick.corruptions.corruption import Photographs, choose_table, corrupt
from killick.corruptions.occlusion import COVERED, occlude
from killick.data.batches import read_all
from killick.data.corrupted_files import CorruptedFiles
from killick.data.image_set import ImageSet, digest
from killick.data.preprocessing import PlainView
from killick.data.sources import load_whole
from killick.data.splits import limit_images
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import DataError
from killick.evaluation.attacks import ATTACKS, RADII, Attack, why_not_attacked
from killick.evaluation.class_mapping import Alignment, ClassMap
from killick.evaluation.classifier import Classifier
from killick.evaluation.evaluation_settings import EvaluationSettings
from killick.evaluation.image_blocks import ImageBlocks
from killick.results.predictions import sample
from killick.runtime.processes import Processes

ATTENTION_IMAGES = 1000
_COLOR_IMAGES = 500  # of which the mean color is taken, evenly over the set


@dataclass(frozen=True)
class TestSet:
    """Images that a classifier is evaluated on; most fields are columns of `killick.results.rows`."""

    __test__ = False  # for pytest

    suite: str
    set: str
    open: Callable[[], ImageBlocks]
    count: int
    alignment: Alignment | None = None  # from the model's classes to the set's; None for OOD images
    transform: Callable[..., Tensor] | None = None  # of each block, with a generator: a corruption
    attack: Attack | None = None  # on the classifier, within `severity` gray levels
    corruption: str = ""
    severity: int | str = ""
    source: str = ""
    frost: str = ""
    class_map: str = ""
    table: str = ""
    view: str = ""
    access: str = ""
    images: str = ""

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.corruption} {self.severity}" if self.corruption else self.set

    @property
    def draw(self) -> int:
        """What the random numbers depend on beside the corruption: the severity.

        Those of occlusion are the same at all severities, so that more squares are added to fewer.
        """
        return 0 if self.suite == "occlusion" else int(self.severity or 0)

    @property
    def samples(self) -> Sequence[int]:
        """The numbers of images that are kept as examples."""
        return sample(self.count, 24) if self.severity in ("", 3, 5) else ()

    def columns(self) -> dict[str, Any]:
        """The columns of its rows."""
        others = ("open", "count", "alignment", "transform", "attack")
        return {name: value for name, value in vars(self).items() if name not in others}


class TestSetPlanner:
    """Makes the test sets of an evaluation, for one classifier."""

    __test__ = False  # for pytest

    def __init__(
        self, classifier: Classifier, settings: EvaluationSettings, processes: Processes
    ) -> None:
        self._classifier, self._settings, self._processes = classifier, settings, processes
        # For images that were resized and cropped before.
        own = classifier.view
        self._cropped = PlainView(own.size, None, own.interpolation, own.squash)

    def plan(self, test: ImageSet, notes: list[str]) -> list[TestSet]:
        """All test sets, in their order; the first is the clean one, `test`.

        Messages for the user are added to `notes`.
        """
        classifier, settings = self._classifier, self._settings
        if "references" in settings.suites and classifier.outputs == 1:
            found = f"{classifier.name} has {classifier.references or 'none'}"
            reason = f"it requires an anchored model with several references; {found}"
            settings.leave_out("references", reason, notes)
        if "multiplicity" in settings.suites and not classifier.several:
            reason = (
                "it requires several references, an ensemble, or --inference mc-dropout or tta;"
                f" {classifier.name} predicts once"
            )
            settings.leave_out("multiplicity", reason, notes)
        clean, alignment = self._align(test.name, self._limited(test))
        open_clean = cache(partial(self._open, clean, keep=True))  # for all sets made from them
        same = partial(
            TestSet,
            open=open_clean,
            count=len(clean),
            view=self._choose_view(clean).described,
            access=clean.access,
            images=digest(clean),
        )
        sets = [same("clean", test.name, alignment=alignment)]
        table = choose_table((classifier.view.size,) * 2, settings.table)
        for suite, files in (
            ("corruptions", settings.corruption_files),
            ("cbar", settings.cbar_files),
        ):
            chosen = settings.choose_corruptions(suite, table) if suite in settings.suites else ()
            if files is not None:
                sets += self._read_corrupted(files, chosen, suite, test.name, clean, notes)
                continue
            for name, severity in product(chosen, settings.severities):
                own = name in settings.own_corruptions
                corrupted = same(
                    suite,
                    test.name,
                    alignment=alignment,
                    transform=partial(
                        corrupt,
                        name=settings.find_corruption(name),
                        severity=severity,
                        table=table,
                        frost=settings.frost,
                    ),
                    corruption=name,
                    severity=severity,
                    source="generated",
                    frost=_describe_frost(settings.frost) if name == "frost" else "",
                    table="" if own else settings.find_corruption(name).choose_table(table),
                )
                sets.append(corrupted)
        same = partial(same, set=test.name, alignment=alignment, source="generated")
        if "occlusion" in settings.suites:
            sets += self._occluded(clean, same)
        if "adversarial" in settings.suites and self._can_be_attacked(notes):
            for (name, attack), radius in product(ATTACKS.items(), RADII):
                attacked = {"attack": attack, "corruption": name, "severity": radius}
                sets.append(same("adversarial", **attacked))
        if "shift" in settings.suites:
            sets += [self._other("shift", name, given) for name, given in settings.shift.items()]
        if "ood" in settings.suites:
            sets += [self._other("ood", name, given) for name, given in settings.ood.items()]
            for name in settings.synthetic:
                made = {"set": name, "alignment": None, "transform": SYNTHETIC[name]}
                sets.append(same("ood", **made))
        return sets

    def _occluded(self, clean: ImageSet, same: Callable[..., TestSet]) -> Iterable[TestSet]:
        """The clean images behind squares of their mean color, the same for every model."""

        @cache
        def find_color() -> tuple[int, int, int]:
            some = clean.part(torch.tensor(sample(len(clean), _COLOR_IMAGES)))
            means = [
                part.sum((2, 3), dtype=torch.int64).double() / part[0, 0].numel()
                for part in read_all(some, self._choose_view(clean))
            ]
            red, green, blue = torch.cat(means).mean(0).round().int().tolist()
            return red, green, blue

        def cover(images: Tensor, percent: int, generator: torch.Generator) -> Tensor:
            return occlude(images, percent, find_color(), generator=generator)

        for percent in COVERED:
            transform = partial(cover, percent=percent)
            yield same("occlusion", transform=transform, corruption="occlusion", severity=percent)

    def _can_be_attacked(self, notes: list[str]) -> bool:
        reason = why_not_attacked(self._classifier)
        if reason:
            self._settings.leave_out("adversarial", f"it requires gradients, and {reason}", notes)
        return not reason

    def plan_validation(self, images: ImageSet) -> TestSet:
        """The set that temperature and threshold are fitted on."""
        part, alignment = self._align(images.name, self._limited(images))
        opened = partial(self._open, part)
        return TestSet("validation", part.name, opened, len(part), alignment, images=digest(part))

    def plan_attention(self, test: ImageSet) -> TestSet:
        """Images on which attention is measured, evenly over the set; by one process alone."""
        clean, _ = self._align(test.name, self._limited(test))
        part = clean.part(torch.tensor(sample(len(clean), ATTENTION_IMAGES)))
        alone = Processes(0, 1, self._processes.device)
        shown, workers = self._choose_view(clean), self._settings.workers
        return TestSet(
            "attention",
            test.name,
            partial(ImageBlocks, part, shown, alone, workers),
            len(part),
            view=shown.described,
            access=part.access,
            images=digest(part),
        )

    def _limited(self, images: ImageSet) -> ImageSet:
        return limit_images(images, self._settings.limit, self._settings.seed)

    def _open(
        self, images: ImageSet, view: PlainView | None = None, *, keep: bool = False
    ) -> ImageBlocks:
        view, workers = view or self._choose_view(images), self._settings.workers
        return ImageBlocks(images, view, self._processes, workers, keep=keep)

    def _choose_view(self, images: ImageSet) -> PlainView:
        """The model's view; images that are given in its size are not resized and cropped again."""
        view = self._classifier.view
        return self._cropped if images.side == view.size else view

    def _align(
        self, name: str, images: ImageSet, class_map: ClassMap | None = None
    ) -> tuple[ImageSet, Alignment]:
        """The images of classes that the model has, and how its classes map to theirs."""
        classifier = self._classifier
        if class_map is not None and not set(class_map) & set(images.class_names):
            class_map = None  # it is about another set
        ours, classes = classifier.class_names, classifier.classes
        alignment = Alignment(name, images.class_names, ours, classes, class_map)
        return alignment.restrict(images), alignment

    def _read_corrupted(
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
        part, alignment = self._align(files.path.name, self._limited(first))

        def open_files(corruption: str, severity: int) -> ImageBlocks:
            images = self._limited(files.load(corruption, severity))
            return self._open(alignment.restrict(images), self._cropped)

        for corruption, severity in product(files.names, self._settings.severities):
            yield TestSet(
                suite,
                name,
                partial(open_files, corruption, severity),
                len(part),
                alignment,
                corruption=corruption,
                severity=severity,
                source="files",
                table=files.path.name,
                view=self._cropped.described,
                access=part.access,
                images=files.digest(corruption),
            )

    def _other(self, suite: str, name: str, given: "str | ImageSet") -> TestSet:
        """A shifted set, with the model's classes, or OOD images."""
        images = self._limited(given if isinstance(given, ImageSet) else load_whole(given))
        alignment = None
        if suite == "shift":
            if images.class_names == ("unknown",):
                raise DataError(
                    f"the images of --shift {name} have no classes. Name class folders,"
                    " imagefolder:PATH, or use them as --ood."
                )
            images, alignment = self._align(name, images, self._settings.class_map)
        return TestSet(
            suite,
            name,
            partial(self._open, images),
            len(images),
            alignment,
            source="files" if isinstance(given, str) else "given",
            class_map="" if alignment is None else alignment.map_digest,
            view=self._choose_view(images).described,
            access=images.access,
            images=digest(images),
        )


def _describe_frost(frost: Photographs) -> str:
    """The textures of the corruption frost."""
    if frost is None:
        return "procedural"
    return os.fspath(frost) if isinstance(frost, str | os.PathLike) else "given"
