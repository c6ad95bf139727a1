"""The registry of metrics and of OOD scores: evaluation computes every entry, tables are read from it.

To add a metric, register one `Metric` in a file of this folder, or in another package (entry point
`killick.metrics`, with the metric's key as its name); CONTRIBUTING.md has an example. Rows, report,
terminal, model card and `killick list metrics` then have it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from killick.registry import Registry

Input = Literal["logits", "confidence", "scores", "derived"]


@dataclass(frozen=True)
class Metric:
    """A number about a set of images.

    Attributes:
        key: Its name in rows.
        title: For tables and figures, as in "clean accuracy".
        about: One line for `killick list metrics`.
        direction: +1 if higher is better, -1 if lower is, 0 if neither.
        unit: "%" for shares, which are stored from 0 to 1; "nats"; or empty.
        input: What `compute` takes. `logits`: logits `(..., n, classes)` and labels `(n,)` of a
            batch, to a value for each image, `(..., n)`; the metric is their mean over the set.
            `confidence`: the confidence of each image and whether the prediction is right, `(n,)`
            each, to a number. `scores`: the OOD scores of in-distribution and of OOD images, to a
            number. `derived`: evaluation computes it from other rows or settings.
        compute: None for derived metrics.
        short: For narrow columns; the title by default.
        suite: Only computed if this suite was chosen; by default with every labeled set.
        scaled: Also computed of logits divided by a fitted temperature.
        estimator: How it is computed, where there are several ways.
        interval: Makes a bootstrap interval from confidence, correctness and a generator.
        min_classes: Only computed for sets with at least so many classes.
        summary: Whether it belongs in summary tables; otherwise it is in rows only.
        chance: What guessing reaches, where lower values are flagged.
    """

    key: str
    title: str
    about: str
    direction: int
    unit: str = ""
    input: Input = "derived"
    compute: Callable[[Tensor, Tensor], Any] | None = None
    short: str = ""
    suite: str = ""
    scaled: bool = True
    estimator: str = ""
    interval: Callable[..., tuple[float, float]] | None = None
    min_classes: int = 1
    summary: bool = True
    chance: float = -math.inf

    @property
    def factor(self) -> float:
        """What a stored value is multiplied by to be in the metric's unit."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def digits(self) -> int:
        """Decimals to show."""
        return 1 if self.unit == "%" else 3

    @property
    def column(self) -> str:
        """The head of a narrow column: short title and percent sign."""
        return f"{self.short or self.title}{' %' if self.unit == '%' else ''}"

    def format(self, value: float, *, unit: bool = False, sign: bool = False) -> str:
        """A stored value as text: 0.934 of accuracy is `93.4`, with `unit` `93.4 %`."""
        text = f"{self.factor * value:{'+' if sign else ''}.{self.digits}f}"
        return f"{text} {self.unit}" if unit and self.unit else text


@dataclass(frozen=True)
class OODScore:
    """An OOD score: a number for each image, higher for images farther from the training data.

    Attributes:
        key: Its name in rows.
        title: For tables.
        about: One line for `killick list scores`.
        input: What `compute` takes. `logits`: `(..., n, classes)`. `members`: the logits of each
            reference, `(references, n, classes)`. `images`: evaluation has its own way.
        compute: To a value for each image; None with `images`.
    """

    key: str
    title: str
    about: str
    input: Literal["logits", "members", "images"] = "logits"
    compute: Callable[[Tensor], Tensor] | None = None


METRICS: Registry[Metric] = Registry("metrics", "metric", package="killick.metrics")
SCORES: Registry[OODScore] = Registry("scores", "score", package="killick.metrics")


def register_metric(metric: Metric) -> Metric:
    """Add a metric; its key can be taken only once."""
    return METRICS.register(metric.key, metric)


def register_score(score: OODScore) -> OODScore:
    """Add an OOD score; its key can be taken only once."""
    return SCORES.register(score.key, score)
