"""Pictures on which the arms disagree, with what each of them said."""

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, UnidentifiedImageError

from killick.report.comparison import Arm, answers_of, seed_of
from killick.report.figures import Missing
from killick.report.formatting import capitalise, count_words, spell_corruption
from killick.report.scene import Scene
from killick.results.predictions import Answers

OF_A_KIND = 6  # pictures
_SMALL = 64  # px; up to this, pixels are shown as squares

_HOW = "a hash of their place, those of images and corruptions not shown yet first"

_Place = tuple[str, ...]


@dataclass(frozen=True)
class Saying:
    """What an arm said of a picture."""

    arm: str
    said: str
    confidence: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A picture, and what it was taken for.

    Attributes:
        picture: As a data URI.
        small: Whether its pixels are to be seen.
        shown: "clean", or the corruption and its severity.
        truth: The class.
        number: Of the image in its set.
        sayings: Of all arms.
    """

    picture: str
    small: bool
    shown: str
    truth: str
    number: int
    sayings: tuple[Saying, ...]


@dataclass(frozen=True)
class Group:
    """Examples of one kind."""

    title: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Examples:
    """All examples, and how they were chosen."""

    says: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class _Candidate:
    """A kept picture that all arms were asked about."""

    place: _Place
    number: int
    answers: tuple[Answers, ...]  # of the arms, in order

    def right(self, arm: int) -> bool:
        return bool(self.answers[arm].single["correct"][self.number])

    @property
    def corruption(self) -> str:
        return str(self.answers[0].about.get("corruption") or "clean")

    @property
    def order(self) -> str:
        """By which some are taken before others: as good as by lot, but always the same."""
        return hashlib.sha256(f"{self.place} {self.number}".encode()).hexdigest()


def choose_examples(scene: Scene) -> Examples | Missing:
    """As many pictures that one side alone gets right as the other; of one arm, right and wrong.

    They are taken without a look at the pictures or the confidences: by the hash of their place,
    those of other images and corruptions before a second of any.
    """
    arms = scene.comparison.arms
    seed = _common_seed(arms)
    if seed is None:
        return Missing("No examples: the arms have no seed in common.")
    candidates = _candidates(arms, seed)
    if not candidates:
        return Missing(
            "No examples: they need the answers to each image, with some of the pictures, of all"
            " arms on the same sets. Evaluate all of them alike and without --no-answers."
        )
    baseline, subject = scene.comparison.baseline, scene.subject
    if baseline is None or subject is None:
        return _of_one(arms[0], seed, candidates)
    return _of_two(arms, baseline, subject, seed, candidates)


def _common_seed(arms: Sequence[Arm]) -> int | None:
    common = set.intersection(*({seed_of(run) for run in arm.runs} for arm in arms))
    return min(common, default=None)


def _candidates(arms: Sequence[Arm], seed: int) -> list[_Candidate]:
    sets: dict[_Place, list[Answers]] = defaultdict(list)
    for arm in arms:
        run = next(run for run in arm.runs if seed_of(run) == seed)
        for answers in answers_of(run):
            if "correct" in answers.single:
                sets[answers.place].append(answers)
    found = []
    for place, several in sets.items():
        if len(several) == len(arms) and len({each.count for each in several}) == 1:
            numbers = sorted(several[0].thumbnails)
            found += [_Candidate(place, number, tuple(several)) for number in numbers]
    return sorted(found, key=lambda candidate: candidate.order)


def _of_two(
    arms: Sequence[Arm], baseline: Arm, subject: Arm, seed: int, candidates: list[_Candidate]
) -> Examples:
    one, two = arms.index(subject), arms.index(baseline)
    wins = [c for c in candidates if c.right(one) and not c.right(two)]
    losses = [c for c in candidates if c.right(two) and not c.right(one)]
    shown = min(OF_A_KIND, max(len(wins), len(losses)))
    if len(wins) and len(losses):
        shown = min(OF_A_KIND, len(wins), len(losses))
    groups = (
        _group(f"{capitalise(subject.name)} is right, {baseline.name} wrong", arms, wins, shown),
        _group(f"{capitalise(baseline.name)} is right, {subject.name} wrong", arms, losses, shown),
    )
    says = (
        f"{_say_kept(candidates, seed)} {subject.name} is right and {baseline.name} wrong about"
        f" {len(wins)}, the other way round about {len(losses)}. {_say_shown(shown, wins, losses)}"
        f" Chosen by {_HOW}, whatever the other arms say."
    )
    return Examples(says, tuple(group for group in groups if group.examples))


def _of_one(arm: Arm, seed: int, candidates: list[_Candidate]) -> Examples:
    right = [c for c in candidates if c.right(0)]
    wrong = [c for c in candidates if not c.right(0)]
    groups = (
        _group("Wrong", [arm], wrong, OF_A_KIND),
        _group("Right", [arm], right, OF_A_KIND),
    )
    says = (
        f"{_say_kept(candidates, seed)} {arm.name} is wrong about {len(wrong)}. Some of each kind,"
        f" chosen by {_HOW}."
    )
    return Examples(says, tuple(group for group in groups if group.examples))


def _say_kept(candidates: list[_Candidate], seed: int) -> str:
    images = len({candidate.number for candidate in candidates})
    pictures = count_words(len(candidates), "picture")
    return f"Of {pictures} kept ({count_words(images, 'image')}, clean and corrupted; seed {seed}),"


def _say_shown(shown: int, wins: list[_Candidate], losses: list[_Candidate]) -> str:
    if wins and losses:
        return f"Shown are {shown} of each."
    return f"Shown are {shown} of the one kind that there is." if shown else "None can be shown."


def _group(title: str, arms: Sequence[Arm], candidates: list[_Candidate], shown: int) -> Group:
    chosen = [_example(candidate, arms) for candidate in _in_turn(candidates, shown)]
    return Group(title, tuple(chosen))


def _in_turn(candidates: list[_Candidate], wanted: int) -> list[_Candidate]:
    """Those of images and corruptions that were shown least so far, else in their order."""
    chosen: list[_Candidate] = []
    images: Counter[int] = Counter()
    corruptions: Counter[str] = Counter()
    left = list(candidates)
    while left and len(chosen) < wanted:
        best = min(left, key=lambda c: images[c.number] + corruptions[c.corruption])
        left.remove(best)
        chosen.append(best)
        images[best.number] += 1
        corruptions[best.corruption] += 1
    return chosen


def _example(candidate: _Candidate, arms: Sequence[Arm]) -> Example:
    first = candidate.answers[0]
    number = candidate.number
    corruption, severity = first.about.get("corruption"), first.about.get("severity")
    picture = first.thumbnails[number]
    sayings = [
        Saying(
            arm.title,
            _class_name(answers, int(answers.single["prediction"][number])),
            float(answers.single["confidence"][number]),
            bool(answers.single["correct"][number]),
        )
        for arm, answers in zip(arms, candidate.answers, strict=True)
    ]
    return Example(
        _data_uri(picture),
        _is_small(picture),
        f"{spell_corruption(str(corruption))} {severity}" if corruption else "clean",
        _class_name(first, int(first.single["label"][number])),
        number,
        tuple(sayings),
    )


def _class_name(answers: Answers, number: int) -> str:
    known = 0 <= number < len(answers.class_names)
    return answers.class_names[number] if known else f"class {number}"


def _data_uri(picture: bytes) -> str:
    kind = "png" if picture.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def _is_small(picture: bytes) -> bool:
    try:
        with Image.open(BytesIO(picture)) as image:
            return max(image.size) <= _SMALL
    except (UnidentifiedImageError, OSError):
        return False
