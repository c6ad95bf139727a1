"""An evaluation, from a model and data to rows. Read `evaluate` top to bottom."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from killick.core.image_model import image_model_in
from killick.core.inference import CANDIDATES
from killick.corruptions.corruption import CorruptionFunction, Photographs
from killick.corruptions.suites import SEVERITIES
from killick.data.given_data import Given
from killick.data.image_set import ImageSet, Sets
from killick.data.sources import load_sets, read_once
from killick.data.synthetic_ood import SYNTHETIC
from killick.data.worker_processes import dead_workers_explained
from killick.errors import OptionError, check_option
from killick.evaluation.attention_suite import measure_attention, plan_attention
from killick.evaluation.augmented_views import AugmentedViews
from killick.evaluation.class_mapping import ClassMap
from killick.evaluation.classifier import Classifier
from killick.evaluation.corruption_means import read_baseline
from killick.evaluation.evaluation_data import (
    Data,
    load_test,
    load_test_for,
    load_train,
    load_validation,
    number_classes,
    open_given,
)
from killick.evaluation.evaluation_settings import EvaluationSettings, make_settings
from killick.evaluation.evaluation_suites import DEFAULT_SUITES
from killick.evaluation.mc_dropout import MCDropout
from killick.evaluation.metric_values import Fitted
from killick.evaluation.model_runner import ModelRunner
from killick.evaluation.open_classifier import open_classifier, place_of
from killick.evaluation.other_networks import Normalization
from killick.evaluation.residual_banks import find_run, keep_bank
from killick.evaluation.row_recorder import RowRecorder
from killick.evaluation.test_sets import TestSet, TestSetPlanner
from killick.metrics import threshold
from killick.nets.custom import is_network_name
from killick.results.rows import Row
from killick.runtime.devices import describe_device
from killick.runtime.processes import joined
from killick.runtime.progress import DisplayFactory, choose_display

USUAL_REFERENCES = 5
INFERENCES = ("marginal", "transductive", "mc-dropout", "tta")
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
    references: int | None = None,
    inference: str = "marginal",
    draws: int = 30,
    limit: int | None = None,
    seed: int = 0,
    validation: Given | None = None,
    baseline: str | None = None,
    acceptance: float = 0.95,
    class_map: ClassMap | None = None,
    name: str | None = None,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
    root: str | None = None,
    download: bool = False,
    batch: int | None = None,
    precision: str = "float32",
    workers: int | None = None,
    device: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    again: bool = False,
    predictions: bool = True,
    trust: bool = False,
    quiet: bool = True,
    show: DisplayFactory | None = None,
) -> list[Row]:
    """Evaluate a classifier: accuracy, calibration, robustness and OOD detection, as rows.

    Every number of an anchored model is that of its first reference, with the standard deviation
    over the first `references` ones; a second row (inference "marginal") is for the mean of the
    logits over all of them. This costs as many passes.

    Args:
        model: Anchored, standard, folded, or any network or function that maps images to logits; a
            folder written by `killick.save` or a run folder; a file or folder of `killick export`; or
            a network by name, with `checkpoint` or `pretrained`: `timm:NAME`,
            `torchvision:NAME`, `hf-hub:OWNER/NAME`, `hf:OWNER/NAME`; see `killick.nets`.
        data: A name or folder, as for `--data`, whose test set is used; a `Dataset` of PyTorch or
            Hugging Face, or a `DataLoader`, that yields `(image, label)`; or tensors
            `(images, labels)`. Images are uint8, floats in 0 to 1, floats normalized by
            `normalize`, or PIL. By default what the model was trained on.
        suites: Of "clean", "corruptions", "cbar", "calibration", "ood", "shift", "occlusion",
            "adversarial", "conformal", "attention", "references" and "multiplicity"; `killick list
            suites` describes them.
        ood: OOD sets beside the synthetic ones, by name: data as above, with or without labels.
        shift: Sets with classes of the model, by name: data as above.
        corruption_files: A folder like CIFAR-10-C or ImageNet-C, instead of making them.
        cbar_files: Likewise, for "cbar".
        corruptions: Only these, by name; or your own, `{"mine": function}`, called as
            `function(images, severity, generator=generator)` with uint8 images
            `(n, 3, height, width)`.
        severities: Only these.
        synthetic: Which built-in sets of "ood": noise, blobs, scrambled.
        table: Constants of the corruptions, "cifar", "tiny" or "imagenet"; by default by size.
        frost: Photographs for "frost"; see `killick.corrupt`.
        references: How many stored references of an anchored model are evaluated, 5 by default; with
            "transductive" the candidates, 50 by default.
        inference: "marginal": from the first reference, and the mean over all. "transductive": for
            each image from the reference whose residual looks most like those of training; rows
            then have the name of the model with "-transductive". "mc-dropout": the mean of
            predictions with dropout on, from the first reference; needs dropout in the network or
            in its training. "tta": the mean over shifted views, mirrored too unless the training
            had no flips. For "transductive", the bank of training residuals is kept in the run
            folder; a model in memory must have one (`set_residuals`).
        draws: For "mc-dropout".
        limit: At most so many images of each set, of every class in proportion.
        seed: Of the subsets and of the corruptions.
        validation: To fit temperature, threshold and conformal sets; by default that of the model's
            own training.
        baseline: For mCE: "alexnet", or a folder or file with rows of another model.
        acceptance: Share of validation images that the threshold accepts.
        class_map: For "shift": from each of a set's classes to one or several of the model's.
        name: Of the model, in rows.
        checkpoint: Weights, for a network by name.
        pretrained: Its library's weights; a name with a tag, `timm:resnet50.a1_in1k`, has them.
        normalize: `(mean, std)`, for a network that does not normalize itself, and of images that
            are normalized already.
        size: Of the images, for a network that does not know it.
        resize: The shorter side is resized to this before the center crop.
        interpolation: "nearest", "bilinear" or "bicubic".
        root: Where downloaded data are.
        download: Download `data` there if they are missing: cifar10, cifar100, wds:URL.
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
        quiet: Show no progress; False shows it on the terminal.
        show: Shows progress, instead of a terminal.

    Returns:
        The rows of this evaluation: dictionaries with the columns of `rows.csv`, which
        `pandas.DataFrame(rows)` takes. The column `access` is "stream" for images of a loader or
        iterable, whose order is their own: reports pair no differences over them.
    """
    settings = make_settings(locals())
    check_option("inference", inference, INFERENCES)
    own = not isinstance(data, str | os.PathLike | None)
    opened = open_given(data, normalize)
    held_out = open_given(validation, normalize, "validation")
    if own and isinstance(model, str | os.PathLike) and not is_network_name(model):
        normalize = None  # of the data alone: a saved model has its own
    with joined(place_of(model, device)) as processes, read_once():
        if download and isinstance(opened, str):
            if processes.first:
                load_sets(opened, root=root, download=True, test_only=True)
            processes.wait()
        classifier = open_classifier(
            model,
            name=name,
            device=processes.device if device in (None, "auto") else str(processes.device),
            trust=trust,
            checkpoint=checkpoint,
            pretrained=pretrained,
            normalize=normalize,
            size=size,
            resize=resize,
            interpolation=interpolation,
            like=None if opened is None else partial(load_test, opened, root),
        )
        if classifier.exported is not None and precision != "float32":
            raise OptionError(f"{classifier.name} has its own precision, found {precision}.")
        test = load_test_for(classifier, opened, root)
        test = number_classes(test, opened, classifier)
        if set(test.class_names) <= set(classifier.class_ids or ()):
            classifier.class_names = classifier.class_ids
        if classifier.class_names is None and test.classes == classifier.classes:
            classifier.class_names = test.class_names
        notes = [f"on {describe_device(processes.device)}"]
        notes += [classifier.describe_view()] if is_network_name(model) else []
        if (anchored := classifier.anchored) is not None:
            stored = len(anchored.references)
            classifier.references = min(references or USUAL_REFERENCES, stored)
            if inference == "transductive":
                _use_transduction(
                    classifier, model, references, partial(load_train, opened), root, seed
                )
            elif "ood" in settings.suites:
                train = load_train(opened, classifier, root)
                classifier.store_residuals(anchored, train, seed)
            if USUAL_REFERENCES < (references or 0) > stored:
                notes.append(f"evaluated with the {stored} stored references, not {references}")
        elif inference == "transductive":
            raise OptionError(
                f"--inference transductive requires an anchored model; {classifier.name} is not one."
            )
        if inference == "mc-dropout":
            _use_dropout(classifier, draws, seed)
        elif inference == "tta":
            flip = (classifier.recipe.get("augment") or {}).get("flip", True)
            classifier.views = AugmentedViews(bool(flip))
            classifier.references = classifier.references and 1
            classifier.name += "-tta"
        assert not isinstance(held_out, Sets)
        held = load_validation(held_out, classifier, test, root)
        if held is not None and validation is None and classifier.provenance.get("validation_seen"):
            notes.append(
                "temperature and threshold are fitted on images that the network may have been"
                " trained on before this run. Give others: --validation DATA"
            )
        planner = TestSetPlanner(classifier, settings, processes)
        sets = planner.plan(test, notes)
        fitting = None if held is None else planner.plan_validation(held)
        attention = plan_attention(classifier, settings, planner, test, notes)
        common = {
            "model": classifier.name,
            **classifier.facts,
            "name": classifier.name if inference != "marginal" else name,
            "data": test.name,
            "limit": limit,
            "evaluation_seed": seed,
            "precision": classifier.exported.about.precision if classifier.exported else precision,
            "weights": classifier.weights,
        }
        recorder = RowRecorder(
            classifier,
            settings,
            common,
            sets,
            fitting=fitting,
            baseline=read_baseline(baseline, common, sets, classifier) if baseline else None,
            folder=None if folder is None else Path(folder),
            writes=processes.first,
        )
        runner = ModelRunner(classifier, processes, settings)
        try:
            display = choose_display(show, (quiet and show is None) or not processes.first)
            with dead_workers_explained(test.name):
                _run(runner, recorder, sets, fitting, settings, notes, display)
                if attention is not None and processes.first:
                    place = Path(folder) if folder is not None and predictions else None
                    measure_attention(
                        classifier, recorder, attention, settings.batch, place, display
                    )
                processes.wait()
        except BaseException:
            recorder.write()  # what there is so far
            raise
        return recorder.finish()


def _use_transduction(
    classifier: Classifier,
    model: object,
    candidates: int | None,
    load: Callable[[Classifier, str | None], ImageSet | None],
    root: str | None,
    seed: int,
) -> None:
    """Let a classifier choose the reference of each image; its rows are those of another model."""
    anchored = classifier.anchored
    assert anchored is not None

    def make() -> Tensor | None:
        classifier.store_residuals(anchored, load(classifier, root), seed)
        return classifier.bank

    if not len(anchored.residuals):
        loaded = isinstance(model, str | os.PathLike)
        identity = {
            "seed": str(seed),
            "view": classifier.view.described,
            "weights": classifier.weights,
        }
        bank = keep_bank(find_run(model), identity, make) if loaded else None
        if bank is None:
            raise OptionError(
                f"{classifier.name} has no bank of training residuals, which --inference transductive"
                " needs. Store one: model.set_residuals(killick.residual_bank(model, images))."
            )
        anchored.set_residuals(bank)
    classifier.bank = anchored.residuals
    classifier.candidates = min(candidates or CANDIDATES, len(anchored.references))
    classifier.name += "-transductive"


def _use_dropout(classifier: Classifier, draws: int, seed: int) -> None:
    """Let a classifier predict with dropout on; its rows are those of another model."""
    inner = image_model_in(classifier.model)
    if inner is None or draws < 2:
        raise OptionError(
            f"--inference mc-dropout requires a network of torch and at least 2 draws, found {draws}"
            f" for {classifier.name}."
        )
    classifier.dropout = MCDropout(inner, classifier.recipe, draws, seed)
    classifier.references = None if classifier.references is None else 1
    classifier.name += f"-mc-dropout{draws}"


def _run(
    runner: ModelRunner,
    recorder: RowRecorder,
    sets: list[TestSet],
    fitting: TestSet | None,
    settings: EvaluationSettings,
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
    if len(todo) < len(sets):
        notes = [*notes, f"{len(sets) - len(todo)} of {len(sets)} sets are there already"]
    if fitting is not None and fitting.count < FEW:
        notes = [*notes, f"only {fitting.count} validation images. Give more: --validation DATA"]
    if fitting is None and "calibration" in settings.suites:
        notes = [*notes, "no temperature scaling, which requires --validation DATA"]
    if fitting is None and "conformal" in settings.suites:
        notes = [*notes, "the suite conformal is left out: it requires --validation DATA"]
    total = sum(each.count for each in todo) + (0 if fitting is None else fitting.count)
    with show(f"evaluating {runner.classifier.name}", total, 0, "image") as display:
        runner.tick = lambda done: display.advance(done * runner.processes.count)
        for note in notes:
            display.message(note)
        limit = None if fitting is None else threshold(runner.fit(fitting), settings.acceptance)
        inside = None
        for each in todo:
            outputs = runner.run(each)
            if each is clean:
                inside = outputs
                energies = outputs.values["single"]["energy"][0]
                limit = threshold(energies, settings.acceptance) if limit is None else limit
            text = recorder.add(each, outputs, inside, Fitted(limit, runner.temperatures))
            display.update(runner.done, text)
        display.message(runner.watch.describe())
