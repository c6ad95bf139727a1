"""An evaluation, from a model and data to rows. Read `evaluate` top to bottom."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor, nn

from killick.core.image_model import image_model_in, takes_normalise
from killick.corruptions.corruption import Photographs
from killick.corruptions.suites import SEVERITIES
from killick.data.sources import Given, as_sets
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import OptionError, check_option
from killick.evaluation.class_mapping import ClassMap
from killick.evaluation.classifier import Classifier, open_classifier
from killick.evaluation.corruption_means import read_baseline
from killick.evaluation.model_runner import Asking
from killick.evaluation.other_networks import Normalization
from killick.evaluation.plan import DEFAULT_SUITES, Choices, Unit, plan, plan_validation
from killick.evaluation.recorder import Recording
from killick.evaluation.test_sets import (
    Data,
    load_test,
    load_train,
    load_validation,
    number_classes,
    own_test,
)
from killick.results.rows import Row
from killick.runtime.processes import Processes, joined
from killick.runtime.progress import Display, DisplayFactory, choose_display
from killick.storage.exported_file import is_export

USUAL_REFERENCES = 5
FEW = 100  # validation pictures: fewer do not fit a temperature


@takes_normalise
def evaluate(
    model: "nn.Module | Callable[[Tensor], Tensor] | str | os.PathLike[str]",
    data: Data | None = None,
    suites: Sequence[str] = DEFAULT_SUITES,
    *,
    ood: Mapping[str, Given] | None = None,
    shift: Mapping[str, Given] | None = None,
    corruption_files: str | None = None,
    cbar_files: str | None = None,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    synthetic: Sequence[str] = tuple(SYNTHETIC),
    table: str | None = None,
    frost: Photographs = None,
    references: int = USUAL_REFERENCES,
    limit: int | None = None,
    seed: int = 0,
    validation: Given | None = None,
    baseline: str | None = None,
    acceptance: float = 0.95,
    class_map: ClassMap | None = None,
    name: str | None = None,
    checkpoint: Path | None = None,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    root: str | None = None,
    batch: int | None = None,
    precision: str = "float32",
    workers: int | None = None,
    device: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    again: bool = False,
    answers: bool = True,
    trust: bool = False,
    quiet: bool = False,
    show: DisplayFactory | None = None,
) -> list[Row]:
    """How good and how trustworthy a classifier is: one row for each number.

    Suites: "clean"; "corruptions", the 19 of ImageNet-C made on the device, at five severities;
    "cbar", C-bar's ten; "calibration", calibration errors of all sets that are looked at, also
    after temperature scaling; "ood", telling other pictures from those of the data; "shift", other
    sets with the same classes; "references", what the choice of the reference decides.

    Every number of an anchored model is that from its first reference, with the standard deviation
    over the first `references` ones; a second row (inference "marginal") has the mean of the logits
    over all of them. This costs as many passes.

    Args:
        model: Anchored, standard, folded, or any network or function that maps images to logits; a
            folder written by `killick.save` or a run folder; a file or folder of `killick export`; or
            `timm:NAME`, `torchvision:NAME`.
        data: A name, as for `--data`, whose test set is used; or `(images, labels)`, uint8
            `(n, 3, height, width)` and class numbers. By default what the model was trained on.
        suites: See above.
        ood: Sets of other pictures, beside the synthetic ones: by name, or uint8 images.
        shift: Sets with classes of the model: by name, or images and labels.
        corruption_files: A folder like CIFAR-10-C or ImageNet-C, instead of making them.
        cbar_files: Likewise, for "cbar".
        corruptions: Only these.
        severities: Only these.
        synthetic: Which built-in sets of "ood": noise, blobs, scrambled.
        table: Constants of the corruptions, "cifar" or "imagenet"; by default by image size.
        frost: Photographs for "frost"; see `killick.corrupt`.
        references: From how many stored references an anchored model is asked.
        limit: At most so many pictures of each set, of every class in proportion.
        seed: Of the subsets and of the corruptions.
        validation: To fit temperature and threshold; by default that of the model's own training.
        baseline: For mCE: "alexnet", or a folder or file with rows of another model.
        acceptance: Share of validation data that the threshold accepts.
        class_map: For "shift": from each of a set's classes to one or several of the model's.
        name: What rows call the model.
        checkpoint: Weights, for a network by name.
        normalize: `(mean, std)`, for a network that does not say.
        size: Of the images, likewise.
        resize: The shorter side is brought to this, and the middle cut out.
        root: Where CIFAR is.
        batch: Images of a forward pass; no result depends on it. By default 1,000 on a GPU and 100
            on a CPU, a quarter of it if they are larger than 64 px.
        precision: "float32" or "bfloat16".
        workers: Processes that read files.
        device: "auto", "cpu", "cuda"; by default where the model is.
        folder: Where `rows.csv` and `rows.jsonl` are kept: rows that are there already are not
            computed again, so that an interrupted evaluation goes on where it stopped.
        again: Compute them again all the same.
        answers: Keep also what was answered to each image, in `answers/`: reports take intervals,
            curves and examples from them. A few bytes an image.
        trust: Needed for an exported .pt2 file, which can run code when it is opened.
        quiet: Show nothing.
        show: Who is told how it goes, instead of a terminal.

    Returns:
        The rows of this evaluation: dictionaries with the columns of `rows.csv`.
    """
    check_option("precision", precision, ["float32", "bfloat16"])
    if _is_export(model) and precision != "float32":
        raise OptionError(f"the exported file {model} takes no precision, found {precision}.")
    if type(references) is not int or references < 1:
        raise OptionError(f"references must be at least 1, found {references!r}.")
    if batch is not None and (type(batch) is not int or batch < 1):
        raise OptionError(f"expected batch of at least 1, found {batch!r}.")
    if not 0 < acceptance < 1:
        raise OptionError(f"expected acceptance between 0 and 1, found {acceptance!r}.")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise OptionError(f"expected a seed from 0 to 2**63 - 1, found {seed!r}.")
    choices = Choices(
        suites=_listed(suites),
        ood=as_sets(ood, "ood"),
        shift=as_sets(shift, "shift"),
        corruption_files=corruption_files,
        cbar_files=cbar_files,
        corruptions=None if corruptions is None else _listed(corruptions),
        severities=(severities,) if isinstance(severities, int) else tuple(severities),
        synthetic=_listed(synthetic),
        table=table,
        frost=frost,
        limit=limit,
        seed=seed,
        class_map=class_map,
        workers=workers,
    )
    choices.check()
    with joined(_place(device, model)) as processes:
        named = isinstance(model, str) and ":" in model
        test = load_test(data, root) if named and data is not None else None
        classifier = open_classifier(
            model,
            name=name,
            device=processes.device if device in (None, "auto") else str(processes.device),
            trust=trust,
            checkpoint=checkpoint,
            normalize=normalize,
            size=size,
            resize=resize,
            classes=None if test is None else test.classes,
            usual_size=data[0].shape[-1] if _are_images(data) else None,
        )
        if classifier.stored:
            classifier.references = min(references, classifier.stored)
        if test is None:
            trained_on = classifier.recipe.get("data", {}).get("name")
            test = own_test(classifier, root) if data is None else load_test(data, root, trained_on)
        if isinstance(data, tuple):
            test = number_classes(test, classifier)
        if classifier.class_names is None and test.classes == classifier.classes:
            classifier.class_names = test.class_names  # as their order is
        if "ood" in choices.suites:
            classifier.store_residuals(load_train(data, classifier, root), seed)
        held = load_validation(validation, classifier, test, root)
        by_name = isinstance(model, str) and not os.path.exists(model) and ":" in model
        notes = [_describe_view(classifier)] if by_name else []
        stored = classifier.stored
        if stored and USUAL_REFERENCES < references > stored:
            notes.append(f"asked from the {stored} references that are stored, not {references}")
        units = plan(classifier, test.name, test, choices, processes, notes)
        fitting = None if held is None else plan_validation(classifier, held, choices, processes)
        common = {
            "model": classifier.name,
            **classifier.facts,
            "data": test.name,
            "limit": limit,
            "evaluation_seed": seed,
            "precision": classifier.precision or precision,
            "weights": classifier.weights,
        }
        recording = Recording(
            classifier,
            choices,
            common,
            units,
            fitting=fitting,
            acceptance=acceptance,
            baseline=None
            if baseline is None
            else read_baseline(baseline, common, units, classifier),
            folder=Path(folder) if folder is not None else None,
            writes=processes.first,
            again=again,
            answers=answers and folder is not None,
        )
        batch = batch or classifier.usual_batch
        asking = Asking(classifier, processes, seed=seed, batch=batch, precision=precision)
        try:
            told = choose_display(show, quiet or not processes.first)
            _run(asking, recording, units, fitting, notes, told)
        except BaseException:
            recording.write_table()  # of what was seen
            raise
        return recording.finish()


def _is_export(model: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(model, str | os.PathLike) and is_export(Path(model))


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names as a tuple; one name alone is one."""
    return (names,) if isinstance(names, str) else tuple(names)


def _are_images(data: Any) -> TypeGuard[tuple[Tensor, Tensor]]:
    return isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor)


def _run(
    asking: Asking,
    recording: Recording,
    units: list[Unit],
    fitting: Unit | None,
    notes: list[str],
    show: DisplayFactory,
) -> None:
    """See all units that are not recorded yet, and record them."""
    todo = [unit for unit in units if not recording.has(unit)]
    if not todo:
        return
    clean = units[0]
    if clean not in todo and any(unit.suite == "ood" for unit in todo):
        todo = [clean, *todo]  # what others are told from
    looked_at = [*([] if fitting is None else [fitting]), *todo]
    total = sum(unit.count for unit in looked_at)
    with show(f"evaluating {asking.classifier.name}", total, 0, "image") as display:
        asking.tick = _ticking(display, asking.processes)
        for note in notes:
            display.message(note)
        if len(todo) < len(units):
            display.message(f"{len(units) - len(todo)} of {len(units)} sets are there already")
        if fitting is not None:
            if fitting.count < FEW:
                display.message(
                    f"temperature and threshold are fitted on {fitting.count} validation pictures,"
                    " too few to trust them: --validation DATA"
                )
            recording.fitted(asking.fit(fitting))
        elif recording.calibrates:
            display.message(
                "no validation set: no temperature scaling (give one: --validation DATA), and the"
                " threshold is that of the test set"
            )
        inside = None
        for unit in todo:
            outcomes = asking.see(unit)
            inside = outcomes if unit is clean else inside
            display.update(asking.seen, recording.add(unit, outcomes, inside, asking.temperatures))


def _describe_view(classifier: Classifier) -> str:
    """What a network made by name is shown, where nobody may have said it."""
    told = f"{classifier.name} is shown pictures of {classifier.size} px"
    if classifier.resize is not None:
        told += f", the middle of {classifier.resize} px"
    normalize = getattr(image_model_in(classifier.model), "normalize", None)
    if normalize is not None:
        told += f", normalized by mean {normalize.mean} and std {normalize.std}"
    return f"{told} (--size, --resize, --mean, --std)"


def _place(device: str | None, model: object) -> str:
    """Where to work: as asked for; else where the model is, if it is one already."""
    if device is not None or not isinstance(model, nn.Module):
        return device or "auto"
    weights = next(iter(model.parameters()), None)
    return "cpu" if weights is None else str(weights.device)


def _ticking(display: Display, processes: Processes) -> Any:
    return lambda seen: display.advance(seen * processes.count)
