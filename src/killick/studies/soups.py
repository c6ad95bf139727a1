"""Model soups: the mean of the weights of several runs from one start (Wortsman et al. 2022).

Weights can be averaged where runs went on from the same trained network: they lie in one basin. The
BatchNorm statistics of such a mean are not the mean of the statistics; they are estimated anew on
training samples, for anchored models on unmasked pairs.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.core.anchored import Anchored
from killick.core.batchnorm import estimate, tracked_norms
from killick.core.references import ReferencePool
from killick.core.settle import settle
from killick.core.standard import Standard
from killick.data.batches import Batches
from killick.errors import DataError, OptionError
from killick.evaluation.evaluator import evaluate
from killick.experiments.jobs import Job
from killick.protocols.references.reference_sampler import make_pool
from killick.results.run_folder import JOB, read_job
from killick.runtime.atomic_files import write_atomic
from killick.runtime.processes import Processes, choose_device
from killick.runtime.progress import DisplayFactory
from killick.storage.model_folder import load, save
from killick.studies.study import Plan
from killick.studies.trained import Trained, open_trained
from killick.training.output_folder import open_folder
from killick.training.recipe import Recipe
from killick.training.training_data import load_training_data
from killick.training.validation import ValidationSet, validate

PICTURES = 1024  # that BatchNorm statistics are estimated on
Model = Anchored | Standard


@dataclass(frozen=True)
class Samples:
    """What BatchNorm statistics are estimated on.

    Attributes:
        batches: Training samples, uint8, augmented as in training.
        pool: What references are drawn from; None: from each batch itself.
        seed: Of these draws.
    """

    batches: tuple[Tensor, ...]
    pool: ReferencePool | None = None
    seed: int = 0


def take_samples(recipe: Recipe, device: torch.device) -> Samples:
    """The first training samples of a run, and what it draws references from."""
    material = load_training_data(recipe, Processes(0, 1, device))
    batches: Batches = material.batches
    cut = batches.cut
    steps = min(-(-PICTURES // cut.batch), batches.samples // cut.batch)
    batches.begin(0, 0)
    taken = []
    for _ in range(steps):
        batches.load()
        taken += [batches.batch(number).images.clone() for number in range(cut.passes)]
        batches.advance()
    anchored = recipe.protocol.anchored
    drawn = make_pool(recipe.protocol, material.context)[0] if anchored else None
    pool = None if drawn is None else ReferencePool(drawn.permute(0, 3, 1, 2))
    return Samples(tuple(taken), pool, recipe.seed)


def average(models: Sequence[Model], samples: Samples) -> Model:
    """A model with the mean of the weights of several, and BatchNorm statistics of its own.

    References, names and all else are those of the first. Where all weights are the same, so is
    the model, with its statistics.

    Args:
        models: Of one architecture, from one start; they are left as they are.
        samples: For the statistics, where there are some.
    """
    for other in models[1:]:
        _check_alike(models[0], other)
    soup = copy.deepcopy(models[0]).eval()
    weights = [dict(model.named_parameters()) for model in models]
    changed = False
    with torch.no_grad():
        for name, weight in soup.named_parameters():
            mean = torch.stack([each[name].double() for each in weights]).mean(0)
            changed |= any(not torch.equal(each[name], weight) for each in weights[1:])
            weight.copy_(mean)
    if changed:
        settle_again(soup, samples)
    return soup


def settle_again(model: Model, samples: Samples) -> None:
    """Estimate BatchNorm statistics anew: on unmasked pairs, or on images for a standard model."""
    norms = tracked_norms(model)
    if not norms:
        return
    if isinstance(model, Anchored):
        device = next(model.parameters()).device
        generator = torch.Generator(device).manual_seed(samples.seed)
        settle(model, samples.batches, references=samples.pool, generator=generator)
    else:
        estimate(norms, model, (partial(model, images) for images in samples.batches))


def average_greedily(
    models: Sequence[Model], samples: Samples, score: Callable[[Model], float]
) -> tuple[Model, list[int]]:
    """The soup that begins with the best model and takes up each next that does not harm it.

    Args:
        models: See `average`.
        samples: Likewise.
        score: Higher is better; from pictures that no result is about.

    Returns:
        The soup, and which models are in it, the best first.
    """
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


def finish(
    plan: Plan, cells: Sequence[Job], output: Path, *, device: str, show: DisplayFactory
) -> list[Path]:
    """The soups of a study, each evaluated in a run folder of its own; what is there is kept.

    Ingredients are the finished cells of treatments that have `soup` among their factors, by
    protocol and seed; where there are fewer than two, there is no soup.
    """
    factors = {each.arm.name: each.factors for each in plan.treatments}
    pots: dict[tuple[str, int], list[Job]] = {}
    for cell in cells:
        own = factors.get(cell.arm, {})
        if own.get("soup"):
            pots.setdefault((str(own["protocol"]), cell.seed), []).append(cell)
    ways = ["soup", *(["greedy-soup"] if plan.options.greedy else [])]
    found = []
    for (protocol, seed), ingredients in pots.items():
        for way in ways if len(ingredients) > 1 else []:
            about = {"way": way, "protocol": protocol}
            found.append(_serve(about, seed, ingredients, plan, output, device, show))
    return found


def _serve(
    factors: Mapping[str, str],
    seed: int,
    ingredients: Sequence[Job],
    plan: Plan,
    output: Path,
    device: str,
    show: DisplayFactory,
) -> Path:
    """One soup: made if it is not there, and evaluated as far as it is not."""
    arm = f"{factors['way']}-{factors['protocol']}"
    names = [cell.folder.name for cell in ingredients]
    asked = _digest([arm, names, dict(plan.evaluation)])
    folder = output.absolute() / f"{arm}-seed{seed}-{_digest([arm, names])[:6]}"
    there = read_job(folder)
    if there.get("finished") is True and there.get("asked") == asked:
        return folder
    began = time.monotonic()
    if not (folder / "model" / "config.json").exists():
        _cook(factors["way"], [cell.folder for cell in ingredients], folder, choose_device(device))
    made = time.monotonic()
    name = folder.name
    evaluate(str(folder), **plan.evaluation, name=name, device=device, folder=folder, show=show)
    taken = {"train": made - began, "evaluate": time.monotonic() - made}
    about = {
        "arm": arm,
        "seed": seed,
        "finished": True,
        "asked": asked,
        "factors": dict(factors),
        "seconds": {stage: round(seconds, 1) for stage, seconds in taken.items()},
        "ingredients": names,
    }
    write_atomic(folder / JOB, json.dumps(about, indent=2) + "\n")
    return folder


def _cook(way: str, places: Sequence[Path], folder: Path, device: torch.device) -> None:
    """Make a soup of the models in some run folders, and save it."""
    first = open_trained(places[0], device)
    models = [load(place / "model").to(device).eval() for place in places]
    samples = take_samples(first.recipe, device)
    if way == "soup":
        soup, kept = average(models, samples), list(range(len(models)))
    else:
        soup, kept = average_greedily(models, samples, _judge_on_validation(first))
    open_folder(folder, first.recipe, device)
    save(
        soup,
        folder / "model",
        class_names=soup.class_names,
        provenance={
            "recipe": models[0].provenance.get("recipe"),
            "facts": models[0].provenance.get("facts"),
            "soup": {"way": way, "of": [places[number].name for number in kept]},
        },
    )


def _judge_on_validation(trained: Trained) -> Callable[[Model], float]:
    """Accuracy on what was cut from the training set: the test set chooses nothing."""
    images = trained.parts.validation
    if images is None:
        raise DataError(
            f"expected a validation part of {trained.recipe.data.name} to choose a greedy soup on,"
            " found none. Cut one off (--data.validation 0.1), or leave greedy soups out (--greedy"
            " false)."
        )
    alone = Processes(0, 1, trained.device)
    held = ValidationSet(images, trained.view, alone, resident=True)
    return lambda model: validate(model, held, alone).accuracy


def _check_alike(first: Model, other: Model) -> None:
    """Refuse models whose mean would mean nothing."""
    for what, one, two in (
        ("of one kind", type(first).__name__, type(other).__name__),
        ("of one network", _shapes(first), _shapes(other)),
        ("with the same normalization", _normalization(first), _normalization(other)),
        ("with the same classes", first.class_names, other.class_names),
        ("with the same references", _policy(first), _policy(other)),
        ("from one start", _start(first), _start(other)),
    ):
        if one != two:
            raise OptionError(
                f"expected models {what} for a soup, found {_tell(one, two)}. Average runs that"
                " went on from the same trained network."
            )


def _tell(one: Any, two: Any) -> str:
    """What differs; of long lists the first place."""
    if isinstance(one, tuple) and isinstance(two, tuple):
        if len(one) != len(two):
            return f"{len(one)} and {len(two)} entries"
        one, two = next((a, b) for a, b in zip(one, two, strict=True) if a != b)
    return f"{one} and {two}"


def _shapes(model: Model) -> tuple[str, ...]:
    return tuple(f"{name} {tuple(weight.shape)}" for name, weight in model.named_parameters())


def _normalization(model: Model) -> str:
    return "" if model.normalize is None else f"{model.normalize.mean} {model.normalize.std}"


def _policy(model: Model) -> str:
    return f"{model.reference_policy or 'unknown'}" if isinstance(model, Anchored) else "none"


def _start(model: Model) -> str:
    """What a model went on from, by its own word; fresh weights are known by their seed."""
    facts = model.provenance.get("facts") or {}
    return str(facts.get("start") or f"fresh weights of seed {facts.get('seed', 'unknown')}")


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
