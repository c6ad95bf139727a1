"""Images on which the arms disagree, with the prediction of each arm."""

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from killick.report.evaluations import predictions_of
from killick.report.figures import Missing
from killick.report.formatting import count_words, spell_corruption
from killick.report.run_groups import ArmRuns, seed_of
from killick.report.sections import SECTIONS, Content, ReportData, Section, render
from killick.results.predictions import Predictions

KEY = "examples"
PER_GROUP = 6
_TEMPLATE = """
{% for title, images in groups %}
<h3>{{ title }}</h3>
<ul class="examples">
{% for image in images %}
<li>
<img src="{{ image.uri }}" width="96" height="96"{% if image.kind == 'png' %} class="pixels"{% endif %} alt="Image {{ image.number }}: {{ image.truth }}, {{ image.shown }}">
<div>
<p><strong>{{ image.truth }}</strong><br><span class="shown">{{ image.shown }}</span></p>
<ul>
{% for arm, predicted, confidence, right in image.predictions %}
<li class="{{ 'right' if right else 'wrong' }}"><span class="sign" aria-hidden="true">{{ '✓' if right else '✗' }}</span><span class="unseen">{{ 'right' if right else 'wrong' }}: </span><span class="arm">{{ arm }}</span> {{ predicted }}, {{ '%.0f' | format(100 * confidence) }}&nbsp;%</li>
{% endfor %}
</ul>
</div>
</li>
{% endfor %}
</ul>
{% endfor %}
"""  # noqa: E501


@dataclass(frozen=True)
class ExampleImage:
    """A stored image and its predictions by arm."""

    place: tuple[str, ...]  # the test set
    number: int  # of the image in it
    predictions_by_arm: dict[str, Predictions]  # of that test set

    @property
    def first(self) -> Predictions:
        """The predictions of the first arm; its image and label are those of all."""
        return next(iter(self.predictions_by_arm.values()))

    def right(self, arm: ArmRuns) -> bool:
        """Whether an arm's prediction is right."""
        return bool(self.predictions_by_arm[arm.name].single["correct"][self.number])

    @property
    def corruption(self) -> str:
        """The corruption, or "clean"."""
        return str(self.first.about.get("corruption") or "clean")

    @property
    def shown(self) -> str:
        """The corruption and its severity, or "clean"."""
        severity = self.first.about.get("severity")
        return f"{spell_corruption(self.corruption)} {severity or ''}".strip()

    @property
    def truth(self) -> str:
        """The name of its class."""
        return _class_name(self.first, int(self.first.single["label"][self.number]))

    @property
    def predictions(self) -> list[tuple[str, str, float, bool]]:
        """Arm, predicted class, confidence, whether that is right."""
        found = []
        for arm, each in self.predictions_by_arm.items():
            predicted, confidence, right = (
                each.single[name][self.number] for name in ("prediction", "confidence", "correct")
            )
            found.append((arm, _class_name(each, int(predicted)), float(confidence), bool(right)))
        return found

    @property
    def kind(self) -> str:
        """Small images are stored as PNG files, and their pixels shown as squares."""
        return "png" if self.first.thumbnails[self.number].startswith(b"\x89PNG") else "jpeg"

    @property
    def uri(self) -> str:
        """The image as a data URI."""
        encoded = base64.b64encode(self.first.thumbnails[self.number]).decode()
        return f"data:image/{self.kind};base64,{encoded}"

    @property
    def order(self) -> str:
        """A hash of its place: random, but always the same."""
        return hashlib.sha256(f"{self.place} {self.number}".encode()).hexdigest()


def make(data: ReportData) -> Content:
    """Groups of images, see `choose_examples`."""
    groups = choose_examples(data)
    if not groups:
        why = "No images stored for all arms: evaluate all alike and without --no-predictions."
        return Content((Missing(why),))
    counts = "; ".join(f"{title}: {count_words(len(all_), 'image')}" for title, all_ in groups)
    shown = min((len(all_) for _, all_ in groups if all_), default=0)
    chosen = [(title, _varied(all_, min(PER_GROUP, shown))) for title, all_ in groups if all_]
    note = f"{counts}. Those shown are chosen at random, by a hash."
    return Content(notes=(note,), html=render(_TEMPLATE, groups=chosen))


def choose_examples(data: ReportData) -> list[tuple[str, list[ExampleImage]]]:
    """The images that only the main arm or only the baseline gets right; of one arm, by right."""
    arms, baseline, main = data.comparison.arms, data.comparison.baseline, data.main_arm
    images = _stored_images(arms)
    if not images:
        return []
    if baseline is None:
        wrong, right = ([i for i in images if i.right(main) == wanted] for wanted in (False, True))
        return [("Wrong", wrong), ("Right", right)]
    return [
        (
            f"{one.name} is right, {two.name} is wrong",
            [image for image in images if image.right(one) and not image.right(two)],
        )
        for one, two in ((main, baseline), (baseline, main))
    ]


def _stored_images(arms: Sequence[ArmRuns]) -> list[ExampleImage]:
    """Those of the first seed that all arms have, in random order."""
    seed = min(set.intersection(*(set(arm.seeds) for arm in arms)), default=None)
    if seed is None:
        return []
    sets: dict[tuple[str, ...], dict[str, Predictions]] = defaultdict(dict)
    for arm in arms:
        run = next(run for run in arm.runs if seed_of(run) == seed)
        for each in predictions_of(run):
            if "correct" in each.single:
                sets[each.place][arm.name] = each
    found = [
        ExampleImage(place, number, by_arm)
        for place, by_arm in sets.items()
        if len(by_arm) == len(arms) and len({each.count for each in by_arm.values()}) == 1
        for number in next(iter(by_arm.values())).thumbnails
    ]
    return sorted(found, key=lambda image: image.order)


def _varied(images: Sequence[ExampleImage], wanted: int) -> list[ExampleImage]:
    """The first ones, but other images and corruptions before a second of any."""
    chosen: list[ExampleImage] = []
    numbers: Counter[int] = Counter()
    corruptions: Counter[str] = Counter()
    left = list(images)
    while left and len(chosen) < wanted:
        best = min(left, key=lambda image: numbers[image.number] + corruptions[image.corruption])
        left.remove(best)
        chosen.append(best)
        numbers[best.number] += 1
        corruptions[best.corruption] += 1
    return chosen


def _class_name(predictions: Predictions, number: int) -> str:
    known = 0 <= number < len(predictions.class_names)
    return predictions.class_names[number] if known else f"class {number}"


SECTIONS.register(KEY, Section(KEY, "Example images", 70, make))
