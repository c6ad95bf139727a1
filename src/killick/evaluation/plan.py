"""What an evaluation will look at: units, each a set of pictures, changed or not.

All data are opened and checked here, so that a mistake is told before anything is computed.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from killick.corruptions.corruption import Photographs, choose_table, corrupt
from killick.corruptions.suites import SEVERITIES, check_severity, list_corruptions
from killick.data.corrupted_files import CorruptedFiles
from killick.data.image_set import ImageSet, digest
from killick.data.preprocessing import PlainView
from killick.data.sources import load_whole
from killick.data.splits import stratified
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import DataError, OptionError, check_option
from killick.evaluation.class_mapping import Alignment, ClassMap
from killick.evaluation.classifier import Classifier
from killick.evaluation.image_blocks import Pictures, block_generator
from killick.results.predictions import sample
from killick.runtime.processes import Processes

SUITES = ("clean", "corruptions", "cbar", "calibration", "ood", "shift", "references")
DEFAULT_SUITES = ("clean", "corruptions", "calibration", "ood")
Change = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Choices:
    """What to evaluate on, and how; see `killick.evaluate`."""

    suites: tuple[str, ...] = DEFAULT_SUITES
    ood: Mapping[str, str | ImageSet] = field(default_factory=dict)
    shift: Mapping[str, str | ImageSet] = field(default_factory=dict)
    corruption_files: str | None = None
    cbar_files: str | None = None
    corruptions: tuple[str, ...] | None = None
    severities: tuple[int, ...] = SEVERITIES
    synthetic: tuple[str, ...] = tuple(SYNTHETIC)
    table: str | None = None
    frost: Photographs = None
    limit: int | None = None
    seed: int = 0
    class_map: ClassMap | None = None
    workers: int | None = None

    def check(self) -> None:
        """Refuse what does not exist."""
        if not self.suites:
            raise OptionError(f"expected some suites of {', '.join(SUITES)}, found none.")
        for suite in self.suites:
            check_option("a suite", suite, SUITES)
        for name in self.synthetic:
            check_option("a synthetic set", name, SYNTHETIC)
        if not self.severities:
            raise OptionError("expected some severities from 1 to 5, found none.")
        for severity in self.severities:
            check_severity(severity)
        self._check_corruptions()
        for option, given, suite in (
            ("corruption_files", self.corruption_files, "corruptions"),
            ("cbar_files", self.cbar_files, "cbar"),
            ("class_map", self.class_map, "shift"),
        ):
            if given is not None and suite not in self.suites:
                flag = "--" + option.replace("_", "-")
                raise OptionError(f"expected the suite {suite} with {flag}, found others alone.")
        if "ood" in self.suites and not self.ood and not self.synthetic:
            raise OptionError(
                "expected some pictures for the suite ood, found neither --ood nor --synthetic."
            )
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise OptionError(f"expected limit of at least 1 picture, found {self.limit!r}.")
        if self.shift and "shift" not in self.suites:
            raise OptionError("expected --suite shift with --shift, found other suites alone.")
        if "shift" in self.suites and not self.shift:
            raise OptionError(
                "expected shifted sets for --suite shift, as in --shift NAME=imagefolder:PATH,"
                " found none."
            )
        if self.ood and "ood" not in self.suites:
            raise OptionError("expected --suite ood with --ood, found other suites alone.")
        taken = set(self.ood) & set(self.synthetic)
        if taken:
            raise OptionError(f"expected another name for --ood {min(taken)}: it is a built-in.")

    def _check_corruptions(self) -> None:
        """Refuse names that do not exist, or that no suite asked for has."""
        lists = {
            "corruptions": list_corruptions("c", "cifar"),
            "cbar": list_corruptions("cbar", "cifar") + list_corruptions("cbar", "imagenet"),
        }
        everything = dict.fromkeys(lists["corruptions"] + lists["cbar"])
        for corruption in self.corruptions or ():
            check_option("the corruption", corruption, everything)
            suite = next(suite for suite, names in lists.items() if corruption in names)
            if suite not in self.suites:
                raise OptionError(
                    f"expected the suite {suite} for {corruption}, found {', '.join(self.suites)}."
                )


@dataclass(frozen=True)
class Unit:
    """A set of pictures that a model is shown.

    Attributes:
        suite: To which it belongs.
        set: Its name.
        open: Makes its pictures ready.
        count: How many.
        alignment: From the model's classes to its own; None if its pictures belong to no class.
        change: What is done to each block first.
        corruption, severity, source, table, view, pictures: As in a row.
    """

    suite: str
    set: str
    open: Callable[[], Pictures]
    count: int
    alignment: Alignment | None = None
    change: Change | None = None
    corruption: str = ""
    severity: int | str = ""
    source: str = ""
    table: str = ""
    view: str = ""
    pictures: str = ""

    @property
    def title(self) -> str:
        """In a few words."""
        if self.corruption:
            return f"{self.corruption} {self.severity}"
        return self.set

    @property
    def samples(self) -> Sequence[int]:
        """Which of its pictures are kept for people to see."""
        return sample(self.count, 24) if self.severity in ("", 3, 5) else ()

    def columns(self) -> dict[str, Any]:
        """As a row has it."""
        names = ("suite", "set", "source", "table", "corruption", "severity", "view", "pictures")
        return {name: getattr(self, name) for name in names}

    def generator(self, seed: int, block: int, device: torch.device) -> torch.Generator:
        """Of a block; see `block_generator`."""
        severity = self.severity if isinstance(self.severity, int) else 0
        return block_generator(seed, self.corruption or self.set, severity, block, device)


class Opener:
    """Sets to pictures, each made ready once, as a model is shown them."""

    def __init__(self, classifier: Classifier, choices: Choices, processes: Processes) -> None:
        self._classifier, self._choices, self._processes = classifier, choices, processes
        self._made: dict[str, Pictures] = {}

    def limited(self, images: ImageSet) -> ImageSet:
        """At most `limit` pictures, of every class in proportion, the same for the same seed."""
        limit, seed = self._choices.limit, self._choices.seed
        if limit is None or limit >= len(images):
            return images
        _, kept = stratified(images.labels, limit, seed)
        return images.part(kept.sort().values)

    def open(self, images: ImageSet, *, keep: str | None = None, cut: bool = False) -> Pictures:
        """Pictures of a set.

        Args:
            images: The set.
            keep: A name under which they are kept for the next time.
            cut: Whether they were resized and cut before.
        """
        if keep is not None and keep in self._made:
            return self._made[keep]
        classifier, view = self._classifier, self.view(cut)
        made = Pictures(
            images,
            view,
            classifier.size,
            self._processes,
            self._choices.workers,
            keep=keep is not None,
        )
        if keep is not None:
            self._made[keep] = made
        return made

    def view(self, cut: bool = False) -> PlainView:
        """What the model is shown of a picture."""
        classifier = self._classifier
        return PlainView(
            classifier.size, None if cut else classifier.resize, classifier.interpolation
        )

    def align(self, name: str, images: ImageSet, *, mapped: bool = False) -> Alignment:
        """From the classifier's classes to those of a set."""
        classifier = self._classifier
        given = self._choices.class_map if mapped else None
        if given is not None and not set(given) & set(images.class_names):
            given = None  # it is about another set
        if mapped and images.class_names == ("unknown",):
            raise DataError(
                f"expected pictures with classes for --shift {name}, found some without. Name"
                " class folders, imagefolder:PATH; or use them as --ood."
            )
        return Alignment(
            name, images.class_names, classifier.class_names, classifier.classes, given
        )


def plan(
    classifier: Classifier,
    name: str,
    test: ImageSet,
    choices: Choices,
    processes: Processes,
    notes: list[str],
) -> list[Unit]:
    """The units of an evaluation, in their order; the first is the clean test set.

    Args:
        classifier: Who is evaluated.
        name: Of the data.
        test: The set that it is evaluated on.
        choices: What to look at.
        processes: This one and the others.
        notes: What a person should know is added here.
    """
    if "references" in choices.suites and classifier.outputs == 1:
        if choices.suites == ("references",):
            raise OptionError(
                "expected an anchored model with several references for --suite references, found"
                f" {classifier.name}, which has {classifier.references or 'none'}."
            )
        notes.append("one reference or none: nothing to tell for the suite references")
    opener = Opener(classifier, choices, processes)
    clean = opener.limited(test)
    alignment = opener.align(name, clean)
    clean = alignment.restrict(clean)
    open_clean = partial(opener.open, clean, keep="clean")
    view, pictures = opener.view().described, digest(clean)
    whole = partial(Unit, open=open_clean, count=len(clean), view=view, pictures=pictures)
    units = [whole("clean", name, alignment=alignment)]
    table = choose_table((classifier.size, classifier.size), choices.table)
    for suite, kind, files in (
        ("corruptions", "c", choices.corruption_files),
        ("cbar", "cbar", choices.cbar_files),
    ):
        if suite not in choices.suites:
            continue
        known = list_corruptions(kind, table)
        chosen = _chosen(known, choices, suite)
        if files is not None:
            units += _published(files, chosen, suite, name, opener, choices, clean, notes)
            continue
        for corruption in chosen:
            for severity in choices.severities:
                units.append(
                    whole(
                        suite,
                        name,
                        alignment=alignment,
                        change=_corrupting(corruption, severity, table, choices.frost),
                        corruption=corruption,
                        severity=severity,
                        source=_source(corruption, choices.frost),
                        table=table,
                    )
                )
    if "shift" in choices.suites:
        units += [_shifted(kind, given, opener) for kind, given in choices.shift.items()]
    if "ood" in choices.suites:
        for kind, given in choices.ood.items():
            images = opener.limited(_load(given))
            units.append(
                Unit(
                    "ood",
                    kind,
                    partial(opener.open, images),
                    len(images),
                    source=_origin(given),
                    view=opener.view().described,
                    pictures=digest(images),
                )
            )
        for kind in choices.synthetic:
            units.append(whole("ood", kind, change=SYNTHETIC[kind], source="generated"))
    return units


def plan_validation(
    classifier: Classifier, images: ImageSet, choices: Choices, processes: Processes
) -> Unit:
    """The unit that temperature and threshold are fitted on."""
    opener = Opener(classifier, choices, processes)
    images = opener.limited(images)
    alignment = opener.align(images.name, images)
    images = alignment.restrict(images)
    opened, count = partial(opener.open, images), len(images)
    return Unit("validation", images.name, opened, count, alignment, pictures=digest(images))


def _chosen(known: tuple[str, ...], choices: Choices, suite: str) -> tuple[str, ...]:
    """Those of a suite's corruptions that are asked for; all, if none of them is."""
    if choices.corruptions is None:
        return known
    chosen = tuple(name for name in known if name in choices.corruptions)
    if not chosen:
        raise OptionError(
            f"expected some of the {len(known)} corruptions of the suite {suite}, found"
            f" {', '.join(choices.corruptions)} alone. Name one of its own too, or the suites"
            " without it."
        )
    return chosen


def _corrupting(name: str, severity: int, table: str, frost: Photographs) -> Change:
    def change(images: Tensor, generator: torch.Generator) -> Tensor:
        return corrupt(images, name, severity, table=table, generator=generator, frost=frost)

    return change


def _source(corruption: str, frost: Photographs) -> str:
    if corruption != "frost":
        return "generated"
    if frost is None:
        return "generated, procedural ice"
    where = os.fspath(frost) if isinstance(frost, str | os.PathLike) else "given"
    return f"generated, photographs ({where})"


def _published(
    path: str,
    chosen: tuple[str, ...],
    suite: str,
    name: str,
    opener: Opener,
    choices: Choices,
    clean: ImageSet,
    notes: list[str],
) -> Iterable[Unit]:
    files = CorruptedFiles(path, chosen, clean.class_names)
    files.check()
    missing = [corruption for corruption in chosen if corruption not in files.names]
    if missing:
        notes.append(f"{len(missing)} not in {files.path}, left out: {', '.join(missing)}")
    first = files.load(files.names[0], choices.severities[0])
    alignment = opener.align(files.path.name, first)

    def open_files(corruption: str, severity: int) -> Pictures:
        images = opener.limited(files.load(corruption, severity))
        if images.class_names != first.class_names:
            raise DataError(
                f"expected the same {first.classes} classes throughout {files.path}, found"
                f" {images.classes} for {corruption} {severity}."
            )
        return opener.open(alignment.restrict(images), cut=True)

    for corruption in files.names:
        for severity in choices.severities:
            yield Unit(
                suite,
                name,
                partial(open_files, corruption, severity),
                len(opener.limited(first)),
                alignment,
                corruption=corruption,
                severity=severity,
                source="files",
                table=files.path.name,
                view=opener.view(cut=True).described,
                pictures=files.digest(corruption),
            )


def _shifted(name: str, given: "str | ImageSet", opener: Opener) -> Unit:
    images = opener.limited(_load(given))
    alignment = opener.align(name, images, mapped=True)
    images, map_digest = alignment.restrict(images), alignment.map_digest
    return Unit(
        "shift",
        name,
        partial(opener.open, images),
        len(images),
        alignment,
        source=_origin(given) + ("" if map_digest is None else f", map {map_digest}"),
        view=opener.view().described,
        pictures=digest(images),
    )


def _origin(given: "str | ImageSet") -> str:
    return "files" if isinstance(given, str) else "given"


def _load(given: "str | ImageSet") -> ImageSet:
    return given if isinstance(given, ImageSet) else load_whole(given)
