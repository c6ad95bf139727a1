"""An evaluation, from a model and data to rows. Read `evaluate` top to bottom."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from torch import Tensor, nn

from killick.core.image_model import image_model_in
from killick.corruptions.corruption import CorruptionFunction, Photographs, describe
from killick.corruptions.suites import SEVERITIES
from killick.data.sources import Given, as_sets, read_once
from killick.data.synthetic_ood import SYNTHETIC
from killick.errors import OptionError, check_option
from killick.evaluation.class_mapping import ClassMap
from killick.evaluation.classifier import Classifier, open_classifier
from killick.evaluation.corruption_means import read_baseline
from killick.evaluation.evaluation_data import (
    Data,
    load_test,
    load_train,
    load_validation,
    number_classes,
    own_test,
)
from killick.evaluation.evaluation_settings import DEFAULT_SUITES, EvaluationSettings
from killick.evaluation.model_runner import ModelRunner
from killick.evaluation.other_networks import Normalization
from killick.evaluation.row_recorder import RowRecorder
from killick.evaluation.test_sets import TestSet, plan_test_sets, plan_validation
from killick.results.rows import Row
from killick.runtime.processes import Processes, joined
from killick.runtime.progress import DisplayFactory, choose_display
from killick.storage.exported_file import is_export

USUAL_REFERENCES = 5
FEW = 100  # validation images: fewer do not fit a temperature


def evaluate(
    model: "nn.Module | Callable[[Tensor], Tensor] | str | os.PathLike[str]",
    data: Data | None = None,
    suites: Sequence[str] = DEFAULT_SUITES,
    *,
    ood: Mapping[str, Given] | None = None,
    shift: Mapping[str, Given] | None = None,
    corruption_files: str | None = None,
    cbar_files: str | None = None,
    corruptions: Sequence[str] | Mapping[str, CorruptionFunction] | None = None,
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
    predictions: bool = True,
    trust: bool = False,
    quiet: bool = False,
    show: DisplayFactory | None = None,
) -> list[Row]:
    """Evaluate a classifier: accuracy, calibration, robustness and OOD detection, as rows.

    Suites: "clean"; "corruptions", the 19 of ImageNet-C made on the device, at five severities;
    "cbar", C-bar's ten; "calibration", calibration errors of all these sets, also after temperature
    scaling; "ood", OOD detection; "shift", other sets with the same classes; "references", how much
    the choice of the reference matters.

    Every number of an anchored model is that of its first reference, with the standard deviation
    over the first `references` ones; a second row (inference "marginal") is for the mean of the
    logits over all of them. This costs as many passes.

    Args:
        model: Anchored, standard, folded, or any network or function that maps images to logits; a
            folder written by `killick.save` or a run folder; a file or folder of `killick export`; or
            `timm:NAME`, `torchvision:NAME`.
        data: A name, as for `--data`, whose test set is used; or `(images, labels)`, uint8
            `(n, 3, height, width)` and class numbers. By default what the model was trained on.
        suites: See above.
        ood: OOD sets beside the synthetic ones: by name, or uint8 images.
        shift: Sets with classes of the model: by name, or images and labels.
        corruption_files: A folder like CIFAR-10-C or ImageNet-C, instead of making them.
        cbar_files: Likewise, for "cbar".
        corruptions: Only these, by name; or your own, `{"mine": function}`, called as
            `function(images, severity, generator=generator)` with uint8 images
            `(n, 3, height, width)`.
        severities: Only these.
        synthetic: Which built-in sets of "ood": noise, blobs, scrambled.
        table: Constants of the corruptions, "cifar" or "imagenet"; by default by image size.
        frost: Photographs for "frost"; see `killick.corrupt`.
        references: How many stored references of an anchored model are evaluated.
        limit: At most so many images of each set, of every class in proportion.
        seed: Of the subsets and of the corruptions.
        validation: To fit temperature and threshold; by default that of the model's own training.
        baseline: For mCE: "alexnet", or a folder or file with rows of another model.
        acceptance: Share of validation images that the threshold accepts.
        class_map: For "shift": from each of a set's classes to one or several of the model's.
        name: Of the model, in rows.
        checkpoint: Weights, for a network by name.
        normalize: `(mean, std)`, for a network that does not normalize itself.
        size: Of the images, for a network that does not know it.
        resize: The shorter side is resized to this before the center crop.
        root: Where CIFAR is.
        batch: Images of a forward pass; no result depends on it. By default 1,000 on a GPU and 100
            on a CPU, a quarter of it if they are larger than 64 px.
        precision: "float32" or "bfloat16".
        workers: Processes that read files.
        device: "auto", "cpu", "cuda"; by default where the model is.
        folder: Where `rows.csv` and `rows.jsonl` are kept. Rows that are there already are not
            computed again, so that an interrupted evaluation can be resumed.
        again: Compute them again all the same.
        predictions: Keep also the prediction of each image, in `predictions/`: reports take
            intervals, curves and examples from them. A few bytes an image.
        trust: Needed for an exported .pt2 file, which can run code when it is opened.
        quiet: Show no progress.
        show: Shows progress, instead of a terminal.

    Returns:
        The rows of this evaluation: dictionaries with the columns of `rows.csv`.
    """
    check_option("precision", precision, ["float32", "bfloat16"])
    if _is_export(model) and precision != "float32":
        raise OptionError(f"the exported file {model} takes no precision, found {precision}.")
    for option, value in (("references", references), ("batch", 1 if batch is None else batch)):
        if type(value) is not int or value < 1:
            raise OptionError(f"{option} must be at least 1, found {value!r}.")
    if not 0 < acceptance < 1:
        raise OptionError(f"acceptance must be between 0 and 1, found {acceptance!r}.")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise OptionError(f"seed must be from 0 to 2**63 - 1, found {seed!r}.")
    own = corruptions if isinstance(corruptions, Mapping) else {}
    settings = EvaluationSettings(
        suites=_listed(suites),
        ood=as_sets(ood, "ood"),
        shift=as_sets(shift, "shift"),
        corruption_files=corruption_files,
        cbar_files=cbar_files,
        corruptions=None if corruptions is None else _listed(corruptions),
        own_corruptions={each: describe(each, function) for each, function in own.items()},
        severities=(severities,) if isinstance(severities, int) else tuple(severities),
        synthetic=_listed(synthetic),
        table=table,
        frost=frost,
        limit=limit,
        seed=seed,
        class_map=class_map,
        workers=workers,
    )
    settings.check()
    with joined(_place(device, model)) as processes, read_once():
        by_name = isinstance(model, str) and ":" in model and not os.path.exists(model)
        test = load_test(data, root) if by_name and data is not None else None
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
        stored = classifier.stored
        if stored:
            classifier.references = min(references, stored)
        if test is None:
            trained_on = classifier.recipe.get("data", {}).get("name")
            test = own_test(classifier, root) if data is None else load_test(data, root, trained_on)
        if isinstance(data, tuple):
            test = number_classes(test, classifier)
        if classifier.class_names is None and test.classes == classifier.classes:
            classifier.class_names = test.class_names
        if "ood" in settings.suites and stored:
            classifier.store_residuals(load_train(data, classifier, root), seed)
        held = load_validation(validation, classifier, test, root)
        notes = [_describe_view(classifier)] if by_name else []
        if stored and USUAL_REFERENCES < references > stored:
            notes.append(f"evaluated with the {stored} stored references, not {references}")
        sets = plan_test_sets(classifier, test, settings, processes, notes)
        fitting = None if held is None else plan_validation(classifier, held, settings, processes)
        common = {
            "model": classifier.name,
            **classifier.facts,
            "data": test.name,
            "limit": limit,
            "evaluation_seed": seed,
            "precision": classifier.precision or precision,
            "weights": classifier.weights,
        }
        errors = None if baseline is None else read_baseline(baseline, common, sets, classifier)
        recorder = RowRecorder(
            classifier,
            settings,
            common,
            sets,
            fitting=fitting,
            acceptance=acceptance,
            baseline=errors,
            folder=Path(folder) if folder is not None else None,
            writes=processes.first,
            again=again,
            predictions=predictions and folder is not None,
        )
        batch = batch or classifier.usual_batch
        runner = ModelRunner(classifier, processes, seed=seed, batch=batch, precision=precision)
        try:
            display = choose_display(show, quiet or not processes.first)
            _run(runner, recorder, sets, fitting, notes, display)
        except BaseException:
            recorder.write_table()  # what there is so far
            raise
        return recorder.finish()


def _is_export(model: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(model, str | os.PathLike) and is_export(Path(model))


def _listed(names: str | Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    """Names as a tuple; a single name is one."""
    return (names,) if isinstance(names, str) else tuple(names)


def _are_images(data: Any) -> TypeGuard[tuple[Tensor, Tensor]]:
    return isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Tensor)


def _run(
    runner: ModelRunner,
    recorder: RowRecorder,
    sets: list[TestSet],
    fitting: TestSet | None,
    notes: list[str],
    show: DisplayFactory,
) -> None:
    """Evaluate all test sets that have no rows yet."""
    todo = [each for each in sets if not recorder.has(each)]
    if not todo:
        return
    clean = sets[0]
    if clean not in todo and any(each.suite == "ood" for each in todo):
        todo = [clean, *todo]  # OOD images are compared with it
    total = sum(each.count for each in todo) + (0 if fitting is None else fitting.count)
    with show(f"evaluating {runner.classifier.name}", total, 0, "image") as display:
        runner.tick = _count_all(display.advance, runner.processes)
        if len(todo) < len(sets):
            notes = [*notes, f"{len(sets) - len(todo)} of {len(sets)} sets are there already"]
        for note in notes:
            display.message(note)
        if fitting is not None:
            if fitting.count < FEW:
                display.message(
                    f"temperature and threshold are fitted on only {fitting.count} validation"
                    " images. Give more: --validation DATA"
                )
            recorder.set_threshold(runner.fit(fitting))
        elif recorder.calibrates:
            display.message(
                "no validation set: no temperature scaling, and the threshold is fitted on the test"
                " set. Give one: --validation DATA"
            )
        inside = None
        for each in todo:
            outputs = runner.run(each)
            inside = outputs if each is clean else inside
            text = recorder.add(each, outputs, inside, runner.temperatures)
            display.update(runner.done, text)


def _describe_view(classifier: Classifier) -> str:
    """The preprocessing of a network by name, which nobody may have given."""
    text = f"{classifier.name}: images of {classifier.size} px"
    if classifier.resize is not None:
        text += f", the center of {classifier.resize} px"
    normalize = getattr(image_model_in(classifier.model), "normalize", None)
    if normalize is not None:
        text += f", normalized by mean {normalize.mean} and std {normalize.std}"
    return f"{text} (--size, --resize, --mean, --std)"


def _place(device: str | None, model: object) -> str:
    """The device given; else where the model is, if it is one already."""
    if device is not None or not isinstance(model, nn.Module):
        return device or "auto"
    weights = next(iter(model.parameters()), None)
    return "cpu" if weights is None else str(weights.device)


def _count_all(advance: Callable[[int], None], processes: Processes) -> Callable[[int], None]:
    return lambda done: advance(done * processes.count)
