"""Images on which the arms disagree, with the prediction of each arm."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from killick.report.evaluations import predictions_of
from killick.report.formatting import count_words, image_uri, is_png, spell_corruption
from killick.report.run_groups import ArmRuns, seed_of
from killick.report.sections import SECTIONS, Content, ReportData, Section, render
from killick.results.predictions import Predictions

KEY = "examples"
PER_GROUP = 6
_TEMPLATE = """
{% for title, images in groups.items() %}
<h3>{{ title }}</h3>
<ul class="examples">
{% for image in images %}
<li>
<img src="{{ image.uri }}" width="96" height="96"{% if image.png %} class="pixels"{% endif %} alt="Image {{ image.number }}: {{ image.truth }}, {{ image.shown }}">
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


class ExampleImage(NamedTuple):
    """A stored image, with the predictions of each arm for its test set."""

    place: tuple[str, ...]  # the test set
    number: int  # of the image in it
    by_arm: dict[str, Predictions]

    def right(self, arm: ArmRuns) -> bool:
        """Whether an arm's prediction is right."""
        return bool(self.by_arm[arm.name].single["correct"][self.number])

    def describe(self) -> dict[str, Any]:
        """What the page shows of it; image and label are the same in all predictions."""
        first = next(iter(self.by_arm.values()))
        corruption, thumbnail = first.about.get("corruption"), first.thumbnails[self.number]
        names = ("prediction", "confidence", "correct")
        found = []
        for arm, each in self.by_arm.items():
            predicted, confidence, right = (each.single[name][self.number] for name in names)
            found.append((arm, _class_name(each, predicted), confidence, right))
        shown = f"{spell_corruption(str(corruption))} {first.about.get('severity')}"
        return {
            "number": self.number,
            "png": is_png(thumbnail),
            "uri": image_uri(thumbnail),
            "shown": shown if corruption else "clean",
            "truth": _class_name(first, first.single["label"][self.number]),
            "predictions": found,
        }


def make(data: ReportData) -> Content:
    """Some images of each group, see `choose_examples`."""
    shown = {}
    for title, images in choose_examples(data).items():
        once = {image.number: image for image in images[::-1]}  # it is stored with many corruptions
        some = [image.describe() for image in images if once[image.number] is image]
        shown[f"{title}: {count_words(len(images), 'image')}"] = some[:PER_GROUP]
    if not any(shown.values()):
        return Content(
            missing="No images stored for all arms: evaluate all alike and without --no-predictions."
        )
    return Content(notes=("Chosen at random, by a hash.",), html=render(_TEMPLATE, groups=shown))


def choose_examples(data: ReportData) -> dict[str, list[ExampleImage]]:
    """Images that only the main arm or only the baseline gets right; of one arm, by right."""
    arms, baseline, main = data.comparison.arms, data.comparison.baseline, data.main_arm
    images = _stored_images(arms)
    if baseline is None:
        return {
            "Wrong": [image for image in images if not image.right(main)],
            "Right": [image for image in images if image.right(main)],
        }
    return {
        f"{one.name} is right, {two.name} is wrong": [
            image for image in images if image.right(one) and not image.right(two)
        ]
        for one, two in ((main, baseline), (baseline, main))
    }


def _stored_images(arms: Sequence[ArmRuns]) -> list[ExampleImage]:
    """Those of the first seed that all arms have, in random order: by a hash of their place."""
    seed = min(set.intersection(*(set(arm.seeds) for arm in arms)), default=None)
    sets: dict[tuple[str, ...], dict[str, Predictions]] = defaultdict(dict)
    for arm in arms:
        for run in arm.runs:
            for each in predictions_of(run) if seed_of(run) == seed else ():
                sets[each.place][arm.name] = each
    found = [
        ExampleImage(place, number, by_arm)
        for place, by_arm in sets.items()
        if len(by_arm) == len(arms) and all("correct" in each.single for each in by_arm.values())
        for number in next(iter(by_arm.values())).thumbnails
    ]
    return sorted(
        found, key=lambda each: hashlib.sha256(f"{each.place} {each.number}".encode()).hexdigest()
    )


def _class_name(predictions: Predictions, number: int) -> str:
    known = 0 <= number < len(predictions.class_names)
    return predictions.class_names[number] if known else f"class {number}"


SECTIONS.register(KEY, Section(KEY, "Example images", 70, make))
