"""A linear probe on any model: how well the features of a backbone fit other data."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.image_model import image_model_in
from killick.core.standard import Standard
from killick.data.image_set import digest
from killick.data.sources import load_sets
from killick.data.splits import limit_images
from killick.errors import DataError, OptionError
from killick.evaluation.classifier import Classifier
from killick.evaluation.metric_values import value_columns
from killick.evaluation.open_classifier import open_classifier
from killick.results.rows import Row, make_row
from killick.runtime.devices import choose_device
from killick.runtime.progress import DisplayFactory, choose_display
from killick.studies.adaptation.features import FeatureReader
from killick.studies.adaptation.probes import ProbeSettings, choose_rate, fit_probe, score
from killick.studies.trained_job import TrainedJob
from killick.training.recipe_files import make_recipe


def probe_model(
    model: str,
    data: str,
    *,
    alpha: float = 0.4,
    target: str = "label",
    references: int = 4,
    epochs: int = 60,
    batch: int = 128,
    weight_decay: float = 1e-5,
    rates: Sequence[float] = (1.0, 3.0, 10.0, 30.0),
    limit: int | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    root: str | None = None,
    device: str = "auto",
    show: DisplayFactory | None = None,
) -> list[Row]:
    """Train a linear probe on the frozen features of a model, and test it; as rows.

    Args:
        model: A folder, or the name of a network.
        data: Data with a training and a test set.
        alpha: Share of steps with masked references, of an anchored model; 0.4 as in the paper.
        target: What masked steps are trained towards: "label" or "uniform".
        references: References of each image, and references to test with.
        epochs: Of the probe.
        batch: Images of a step.
        weight_decay: Of the probe's weights.
        rates: Learning rates; the best on held-out training images is used.
        limit: At most so many images of each set.
        seed: Of all that is drawn.
        checkpoint: Weights, for a network by name.
        root: Where downloaded data are.
        device: As for `killick.evaluate`.
        show: Makes the progress display; none by default.
    """
    sets = load_sets(data, root=root)
    if sets.train is None or sets.test is None:
        raise DataError(f"a probe needs data with a training and a test set, found {data}.")
    train, test = (limit_images(each, limit, seed) for each in (sets.train, sets.test))
    classifier = open_classifier(model, device=choose_device(device), checkpoint=checkpoint)
    with choose_display(show, quiet=show is None)("probing", 3, 0, "part") as display:
        reader = FeatureReader(_make_job(classifier, seed), references)
        features = reader.read_training(train)
        display.update(1, f"features of {len(train):,} training images")
        labels = train.labels.to(features.device)
        own_alpha = alpha if reader.anchored else 0.0
        settings = ProbeSettings(epochs, batch, weight_decay, own_alpha, target, seed)
        rate = choose_rate(features, labels, train.classes, rates, settings)
        probe = fit_probe(features, labels, train.classes, rate, settings)
        display.update(2, f"probe, learning rate {rate:g}")
        logits = probe(reader.read_test(test, reader.choose_references(train)))
        display.update(3, f"{len(test):,} test images")
    common = {
        "model": f"{classifier.name}-probe",
        **classifier.facts,
        "components": json.dumps({"probe": {**asdict(settings), "rate": rate}}),
        "data": data,
        "suite": "clean",
        "set": data,
        "view": classifier.view.described,
        "limit": limit,
        "evaluation_seed": seed,
        "precision": "float32",
        "count": len(test),
        "weights": classifier.weights,
        "images": digest(test),
    }
    return _make_rows(logits, test.labels.to(logits.device), common, reader.anchored)


def _make_job(classifier: Classifier, seed: int) -> TrainedJob:
    model, view = image_model_in(classifier.model), classifier.view
    if not isinstance(model, Anchored | Standard) or model.normalize is None:
        raise OptionError(
            f"cannot probe {classifier.name}: only anchored and standard models that normalize by"
            " themselves have a backbone to probe."
        )
    recipe = make_recipe({"protocol": "standard", "seed": seed, "data": view.settings()})
    return TrainedJob(model.eval(), recipe, classifier.device)


def _make_rows(
    logits: Tensor, labels: Tensor, common: dict[str, object], anchored: bool
) -> list[Row]:
    """Rows of the first reference with the spread over all, and of their mean."""
    several = [("marginal", len(logits), logits.mean(0)[None])] if len(logits) > 1 else []
    rows = []
    for inference, k, members in (("single", 1, logits), *several):
        found = [score(each, labels) for each in members]
        for metric in found[0]:
            columns = value_columns([each[metric] for each in found], None)
            own = {"inference": inference, "k": k if anchored else "", "metric": metric}
            rows.append(make_row(**{**common, **own, **columns}))
    return rows
