"""Checks of the data of jobs, once before any of them begins."""

from collections.abc import Sequence

from killick.data.data_settings import EMBEDDED
from killick.data.sources import load_whole, read_once
from killick.data.training_sets import cut_sets
from killick.errors import DataError
from killick.evaluation.class_mapping import Alignment
from killick.experiments.jobs import Job


@read_once()
def check_data(jobs: Sequence[Job]) -> None:
    """Refuse data that would fail in every job: no test set, or shifted sets of other classes."""
    evaluation = jobs[0].evaluation
    given = {kind: dict(evaluation.get(kind) or {}) for kind in ("ood", "shift")}
    found = {
        (kind, name): load_whole(data) if isinstance(data, str) else data
        for kind, sets in given.items()
        for name, data in sets.items()
    }
    shifted = {
        name: images.class_names for (kind, name), images in found.items() if kind == "shift"
    }
    recipes = (phase.recipe for job in jobs for phase in job.phases)
    for recipe in {repr(recipe.data): recipe for recipe in recipes}.values():
        if recipe.data.name in EMBEDDED and not shifted:
            continue
        parts = cut_sets(recipe.data, recipe.seed)
        if parts.test is None and "data" not in evaluation:
            raise DataError(
                f"{recipe.data.name} has no test set, which the evaluation after training needs."
                " Give it a folder 'test' beside 'train', or more images of each class."
            )
        ours = parts.train.class_names
        for name, theirs in shifted.items():
            Alignment(name, theirs, ours, len(ours), evaluation.get("class_map"))
