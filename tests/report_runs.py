"""Run folders as an evaluation leaves them, made up: rows and answers of models of known skill."""

import json
from pathlib import Path

import numpy as np
import torch
import yaml

from killick import metrics
from killick.data.synthetic_ood import SYNTHETIC
from killick.evaluation.corruption_means import summarize_corruptions
from killick.results.predictions import Predictions, write_predictions
from killick.results.rows import make_row, merge, write_rows
from killick.results.run_folder import Run, read_run

LABEL = {"protocol": "masked", "target": "label", "alpha": 0.25, "scope": "batch"}
UNIFORM = {**LABEL, "target": "uniform"}
ANCHORED = {"protocol": "anchored"}
STANDARD = {"protocol": "standard"}


def make_run(
    folder: Path,
    name: str,
    facts: dict = STANDARD,
    *,
    seed: int | str = 0,
    skill: float = 1.0,
    n: int = 40,
    limit: int | str = 40,
    k: int = 3,
    corruptions: tuple[str, ...] = ("fog", "snow"),
    cbar: tuple[str, ...] = (),
    severities: tuple[int, ...] = (1, 2, 3, 4, 5),
    ood_sets: tuple[str, ...] = ("digits", "noise", "blobs"),
    shift: tuple[str, ...] = (),
    images_digest: str = "0123456789ab",
    labels: int = 5,
    answers: bool = True,
    job: dict | None = None,
    recipe: dict | None = None,
    add: bool = False,
    **columns,
) -> Run:
    """A run folder `name` in `folder`.

    Args:
        folder: Where.
        name: Of the run, and of its model.
        facts: How it was trained, as rows have it.
        seed: Of training.
        skill: The higher, the more often it is right.
        n: Images in each set.
        limit: As rows have it.
        k: References of a model that has them.
        corruptions: Of the suite corruptions.
        cbar: Of the suite cbar.
        severities: Of both.
        ood_sets: Sets of the suite ood; those that Killick makes are known by their names.
        shift: Sets of the suite shift.
        images: Digest of the images.
        labels: How many classes they have.
        answers: Whether answers are kept.
        job: As in `job.json`.
        recipe: As `recipe.yaml`.
        add: To what is there already: another evaluation of the same model.
        columns: Other columns of all rows.
    """
    anchored = facts.get("protocol") in ("anchored", "masked")
    common = {
        **make_row(model=name, network="killick:resnet_small", data="shapes", epochs=12),
        **dict(weights=f"weights of {name}", precision="float32", evaluation_seed=0),
        **dict(seed=seed, limit=limit, view="32 px", images=images_digest),
        **(
            {"references": "clean", "reference_policy": "random by class, clean"}
            if anchored
            else {}
        ),
        **facts,
        **columns,
    }
    shown = [{"suite": "clean", "set": "shapes"}]
    for suite, names in (("corruptions", corruptions), ("cbar", cbar)):
        shown += [
            {"suite": suite, "set": "shapes", "source": "generated", "table": "cifar"}
            | {"corruption": corruption, "severity": severity}
            for corruption in names
            for severity in severities
        ]
    shown += [{"suite": "shift", "set": each, "source": "given"} for each in shift]
    sources = {each: "generated" if each in SYNTHETIC else "files" for each in ood_sets}
    shown += [{"suite": "ood", "set": each, "source": source} for each, source in sources.items()]
    where = folder / name
    (where / "predictions").mkdir(parents=True, exist_ok=True)
    kept = [_answer({**common, **each}, skill, n, labels, k if anchored else "") for each in shown]
    rows = [row for each in kept for row in _rows(each, kept[0])]
    write_rows(
        where, merge(read_run(where).rows if add else [], [*rows, *summarize_corruptions(rows)])
    )
    for each in kept if answers else ():
        write_predictions(where, each)
    if job is not None:
        (where / "job.json").write_text(json.dumps(job))
    if recipe is not None:
        (where / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return read_run(where)


def _answer(about: dict, skill: float, n: int, labels: int, k: int | str) -> Predictions:
    """Images are as hard for one model as for the other; each model has luck of its own."""
    ood = about["suite"] == "ood"
    hardness = np.random.default_rng(0).normal(size=n)
    luck = np.random.default_rng([ord(c) for c in json.dumps(about, default=str)])
    level = skill - 0.3 * int(about.get("severity") or 0)

    def ask() -> dict:
        margin = level - hardness + 0.5 * luck.normal(size=n)
        right = margin > 0
        confidence = 1 / (1 + np.exp(-np.abs(margin)))
        values = {
            "prediction": np.where(right, np.arange(n) % labels, (np.arange(n) + 1) % labels),
            "confidence": confidence.astype(np.float32),
            "energy": (luck.normal(size=n) - level + ood).astype(np.float32),
        }
        if not ood:
            values["label"] = np.arange(n) % labels
            values["correct"] = right
            values["nll"] = -np.log(np.where(right, confidence, 1 - confidence)).astype(np.float32)
        return values

    single = ask()
    return Predictions({**about, "k": k, "count": n}, single, ask() if k not in ("", 1) else {})


def _rows(answers: Predictions, clean: Predictions) -> list[dict]:
    """The rows of one set, with some that no report is about."""
    asked = [("single", 1 if answers.about["k"] else "", answers.single, clean.single)]
    if answers.marginal:
        asked.append(("marginal", answers.about["k"], answers.marginal, clean.marginal))
    return [
        make_row(**{**answers.about, "inference": inference, "k": k, **measure})
        for inference, k, values, inside in asked
        for measure in _measure(answers.about["suite"], values, inside)
    ]


def _measure(suite: str, values: dict, inside: dict) -> list[dict]:
    if suite == "ood":
        pair = torch.from_numpy(inside["energy"]), torch.from_numpy(values["energy"])
        return [
            {"metric": "auroc", "score": "energy", "value": metrics.auroc(*pair)},
            {"metric": "auroc", "score": "max_logit", "value": 0.123},
            {"metric": "fpr_at_95_tpr_in", "score": "energy"}
            | {"value": metrics.fpr_at_tpr_in(*pair)},
        ]
    confidence, correct = (torch.from_numpy(values[name]) for name in ("confidence", "correct"))
    return [
        {"metric": "top1", "value": correct.double().mean().item()},
        {"metric": "nll", "value": float(values["nll"].astype(float).mean())},
        {"metric": "smooth_ece", "value": metrics.smooth_ece(confidence, correct)},
        *(
            {"metric": metric, "scaling": "temperature", "value": value}
            for metric, value in (
                ("smooth_ece", 0.6 * metrics.smooth_ece(confidence, correct)),
                ("nll", 0.8 * float(values["nll"].astype(float).mean())),
            )
        ),
        {"metric": "smooth_ece", "value": 0.123, "scaling": "another"},
        {"metric": "brier", "value": 0.123},
    ]
