"""Model soups: the mean of the weights of runs from one start (Wortsman et al. 2022).

BatchNorm statistics of the mean are not the mean of the statistics: they are re-estimated on training
images, for anchored models on unmasked pairs.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.batchnorm import estimate, tracked_norms
from killick.core.references import ReferencePool
from killick.core.settle import settle
from killick.core.standard import Standard
from killick.errors import DataError
from killick.evaluation.evaluator import evaluate
from killick.experiments.jobs import Job
from killick.results.run_folder import JOB, read_job
from killick.runtime.atomic_files import write_atomic
from killick.runtime.processes import Processes, choose_device
from killick.runtime.progress import DisplayFactory
from killick.storage.saving import save
from killick.studies.study import Plan
from killick.studies.trained_job import TrainedJob, first_batches, open_job, reference_pool
from killick.training.output_folder import claimed, open_folder
from killick.training.recipe import Recipe
from killick.training.training_data import load_training_data
from killick.training.validation import ValidationSet, validate

IMAGES = 1024  # for BatchNorm statistics
Model = Anchored | Standard


@dataclass(frozen=True)
class StatisticsImages:
    """Training images for BatchNorm statistics."""

    batches: tuple[Tensor, ...]  # uint8, augmented as in training
    pool: ReferencePool | None = None  # of references; None: each batch itself
    seed: int = 0  # of the draws of references


def take_samples(recipe: Recipe, device: torch.device) -> StatisticsImages:
    """The first training images of a run, and its reference pool."""
    data = load_training_data(recipe, Processes(0, 1, device))
    batches = tuple(batch.images.clone() for batch in first_batches(data, IMAGES))
    return StatisticsImages(batches, reference_pool(recipe, data), recipe.seed)


def average(models: Sequence[Model], samples: StatisticsImages) -> Model:
    """A model with the mean of the weights of several, and its own BatchNorm statistics.

    Everything else is that of the first. If all weights are equal, its statistics stay too.
    """
    soup = copy.deepcopy(models[0]).eval()
    weights = [dict(model.named_parameters()) for model in models]
    changed = False
    with torch.no_grad():
        for name, weight in soup.named_parameters():
            mean = torch.stack([each[name].double() for each in weights]).mean(0)
            changed |= any(not torch.equal(each[name], weight) for each in weights[1:])
            weight.copy_(mean)
    if changed and (norms := tracked_norms(soup)):
        if isinstance(soup, Anchored):
            generator = torch.Generator(weight.device).manual_seed(samples.seed)
            settle(soup, samples.batches, references=samples.pool, generator=generator)
        else:
            estimate(norms, soup, (partial(soup, images) for images in samples.batches))
    return soup


def average_greedily(
    models: Sequence[Model], samples: StatisticsImages, score: Callable[[Model], float]
) -> tuple[Model, list[int]]:
    """A greedy soup, and which models are in it: the best, then each next that does not hurt."""
    scores = [score(model) for model in models]
    best, *others = sorted(range(len(models)), key=lambda number: -scores[number])
    kept, soup, reached = [best], average([models[best]], samples), scores[best]
    for number in others:
        trial = average([models[each] for each in (*kept, number)], samples)
        found = score(trial)
        if found >= reached:
            soup, reached = trial, found
            kept.append(number)
    return soup, kept


def make_soups(
    plan: Plan, jobs: Sequence[Job], output: Path, *, device: str, show: DisplayFactory
) -> list[Path]:
    """The soups of a study, each evaluated in its own run folder; finished ones are kept.

    Ingredients are the finished jobs of arms with the factor `soup`, by protocol and seed; a soup
    needs two.
    """
    factors = {each.arm.name: each.factors for each in plan.study_arms}
    ingredients: dict[tuple[str, int], list[Job]] = {}
    for job in jobs:
        if factors[job.arm].get("soup"):
            protocol = str(factors[job.arm]["protocol"])
            ingredients.setdefault((protocol, job.seed), []).append(job)
    folders = []
    for way in ["soup", "greedy-soup"] if plan.options.greedy else ["soup"]:
        for (protocol, seed), several in ingredients.items():
            if len(several) < 2:
                continue
            arm, names = f"{way}-{protocol}", [job.folder.name for job in several]
            digest = hashlib.sha256(json.dumps([arm, names]).encode()).hexdigest()[:6]
            folder = output.absolute() / f"{arm}-seed{seed}-{digest}"
            folders.append(folder)
            about = {"arm": arm, "seed": seed, "finished": True, "ingredients": names}
            about["evaluation_digest"] = several[0].evaluation_digest
            about["factors"] = {"way": way, "protocol": protocol}
            if read_job(folder) == about:
                continue
            if not (folder / "model" / "config.json").exists():
                _save_soup(way, [job.folder for job in several], folder, choose_device(device))
            how = {**plan.evaluation, "name": folder.name, "device": device}
            evaluate(str(folder), **how, folder=folder, show=show)
            write_atomic(folder / JOB, json.dumps(about, indent=2) + "\n")
    return folders


def _save_soup(way: str, places: Sequence[Path], folder: Path, device: torch.device) -> None:
    """Average the models in some run folders, and save the result."""
    jobs = [open_job(place, device) for place in places]
    first, models = jobs[0], [job.model for job in jobs]
    samples = take_samples(first.recipe, device)
    if way == "soup":
        soup, kept = average(models, samples), list(range(len(models)))
    else:
        soup, kept = average_greedily(models, samples, _validation_accuracy(first))
    provenance = {name: first.model.provenance.get(name) for name in ("recipe", "facts")}
    provenance["soup"] = {"way": way, "of": [places[number].name for number in kept]}
    with claimed(folder):
        open_folder(folder, first.recipe, device)
        save(soup, folder / "model", class_names=soup.class_names, provenance=provenance)


def _validation_accuracy(job: TrainedJob) -> Callable[[Model], float]:
    """Accuracy on the validation images, as a function of the model."""
    images = job.parts.validation
    if images is None:
        raise DataError(
            "greedy soups need validation images: --data.validation 0.1, or --greedy false."
        )
    alone = Processes(0, 1, job.device)
    held = ValidationSet(images, job.view, alone, resident=True)
    return lambda model: validate(model, held, alone).accuracy
