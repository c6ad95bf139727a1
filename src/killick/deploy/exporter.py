"""Exporting a model: read `export` top to bottom.

```
folder/
  model.onnx     or model.pt2: the network, with normalization and threshold inside
  model.json     its metadata, and how it compares with the model; also in the file
  examples.npz   synthetic images and the outputs of the network
  check.py       compares the two on the target machine, without Killick
```
"""

import copy
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from killick import metrics
from killick.core.anchored import Anchored, evaluating
from killick.core.image_model import Threshold
from killick.core.standard import Standard, model_in
from killick.core.synthetic_references import replace_references
from killick.data.image_set import ImageSet
from killick.data.preprocessing import view_for
from killick.deploy import check_export as check
from killick.deploy.deployed_net import Deployed, deploy
from killick.deploy.export_files import OPSET, OnnxFile, TorchFile
from killick.deploy.export_sets import (
    ExportData,
    ExportSets,
    find_export_sets,
    labels_for,
    read_some,
    require,
)
from killick.deploy.parity import (
    BATCH,
    choose_examples,
    compare_calibrated,
    compare_examples,
    compare_images,
    file_outputs,
    make_candidates,
    model_outputs,
)
from killick.errors import OptionError, StorageError, check_option
from killick.nets import remembered
from killick.runtime.atomic_files import atomic_folder
from killick.storage.export_metadata import FILE_FORMATS, PRECISIONS, ExportMetadata, read_metadata
from killick.storage.exported_file import FILES, Exported, open_export
from killick.storage.loading import load
from killick.storage.weights import digest_weights

REFERENCES = ("stored", "mean", "synthetic")
ACCEPTANCE = 0.95
STATISTICS_IMAGES = 5000  # of which mean and synthetic references are made
FEW = 0.9  # a file with a lower share of equal labels is warned of
NO_THRESHOLD = Threshold(0.0, 1.0, 1, "nothing yet")


def export(
    model: "torch.nn.Module | str | os.PathLike[str]",
    folder: str | os.PathLike[str],
    *,
    format: str = "onnx",
    k: int = 1,
    precision: str = "float32",
    references: str = "stored",
    acceptance: float | None = None,
    data: ExportData | None = None,
    validation: ExportData | None = None,
    limit: int = 1000,
    calibration: int = 256,
    opset: int | None = None,
    name: str | None = None,
    root: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Exported:
    """Write `model` as a file that runs without Killick, checked against the model.

    The folded network with normalization inside takes any number of uint8 images and returns
    `logits`, `probabilities`, `energy`, `std` (with several references) and `in_distribution`.

    Args:
        model: Anchored or standard; a folder written by `killick.save`; or a run folder.
        folder: For the file and what belongs to it; an export that is there is replaced, whole.
        format: "onnx", for onnxruntime and others, or "torch", for `torch.export.load`.
        k: How many of the stored references it averages over.
        precision: "float32"; "float16" or "bfloat16", half the size (bfloat16 ONNX files are
            computed in float32, since onnxruntime cannot); or "int8", a quarter, in ONNX files.
        references: "stored" ones, which are usually training images; or, made from the training
            set, its "mean", or "synthetic" ones. The cost is measured.
        acceptance: Share of validation images that are to be in distribution; by default the
            threshold that is stored with the model, else 0.95.
        data: To measure and calibrate on, with classes; by default what it was trained on.
        validation: To fit the threshold on; by default the validation set of its training.
        limit: At most so many images to fit and to measure on.
        calibration: Training images for int8.
        opset: Version of ONNX's operators.
        name: Of the model, in the metadata.
        root: Where downloaded sets are.
        say: Gets messages about what is done and left out.

    Returns:
        The file, opened; `about.measured` has the figures.

    Raises:
        OutputError: If the file does not compute what the model does; nothing is written then.
    """
    check_option("format", format, FILE_FORMATS)
    check_option("precision", precision, PRECISIONS)
    check_option("references", references, REFERENCES)
    report = say or (lambda sentence: None)
    given = load(os.fspath(model)) if isinstance(model, str | os.PathLike) else model_in(model)
    _check(given, format, k, precision, references, acceptance)
    folder = Path(folder)
    _check_free(folder)
    if name is None:
        whole = (folder if isinstance(model, torch.nn.Module) else Path(model)).absolute()
        name = whole.parent.name if whole.name == "model" else whole.name
    weights = digest_weights(given)
    with evaluating(given):
        original = copy.deepcopy(given).cpu().float().eval()
    sets = find_export_sets(original, data, validation, root, report)
    source = _with_references(original, references, k, sets)
    if source is not original:
        weights = digest_weights(source)
    stored, wanted = _plan_threshold(original, source, k, acceptance, precision, sets, report)
    deployed = deploy(source, k, has_threshold=stored is not None or wanted is not None)
    about = replace(_describe(source, deployed, name, format, precision), weights=weights)
    made = _make(deployed, about, sets, source, calibration, opset)
    try:
        with atomic_folder(Path(os.path.realpath(folder))) as part:
            path = part / FILES[format]
            if wanted is not None:
                made.write(replace(about, threshold=NO_THRESHOLD), path)
                stored = _fit(open_export(path, trust=True), source, sets, wanted, limit)
            if stored is not None:
                about = replace(about, threshold=stored)
                made.set_threshold(stored.energy)
            made.write(about, path)
            exported = open_export(path, trust=True)
            images = choose_examples(exported, make_candidates(source.image_shape, about.takes))
            figures, examples = compare_examples(exported, images, model_outputs(source, images, k))
            if precision == "int8":
                seen, _ = read_some(source, _calibration_set(sets), BATCH)
                compare_calibrated(exported, seen, model_outputs(source, seen, k))
            measured: dict[str, Any] = {"examples": figures}
            if sets.test is None:
                report("No labeled images are known, so accuracy was not measured: --data.")
            else:
                measured["images"] = _measure(exported, original, sets.test, k, limit, report)
            about = replace(about, measured=measured)
            made.write(about, path)
            (part / "examples.npz").write_bytes(examples)
            (part / "model.json").write_text(about.to_json() + "\n", encoding="utf-8")
            shutil.copyfile(check.__file__, part / "check.py")
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is"
            " unchanged. Free some space, or choose another folder: --output."
        ) from problem
    return open_export(folder / FILES[format], trust=True)


def _check(
    model: Anchored | Standard,
    format: str,
    k: int,
    precision: str,
    references: str,
    acceptance: float | None,
) -> None:
    """Refuse what is impossible, before anything is read or written."""
    if type(k) is not int or k < 1:
        raise OptionError(f"k must be at least 1 reference, found {k!r}.")
    if acceptance is not None and not 0 < acceptance <= 1:
        raise OptionError(f"acceptance must be between 0 and 1, found {acceptance!r}.")
    if precision == "int8" and format != "onnx":
        raise OptionError(f"int8 requires format 'onnx', found {format!r}.")
    if references == "mean" and k != 1:
        raise OptionError(f"the mean is one reference: k must be 1, found {k}.")
    if isinstance(model, Anchored):
        if references == "stored":
            model.stored_references(k)
    elif k != 1 or references != "stored":
        option = f"k={k}" if k != 1 else f"references={references!r}"
        raise OptionError(f"a standard model has no references, found {option}. Leave it out.")


def _with_references(
    model: Anchored | Standard, kind: str, k: int, sets: ExportSets
) -> Anchored | Standard:
    """The model with the references that the file is to have."""
    if kind == "stored":
        return model
    assert isinstance(model, Anchored)
    train = require(sets.train, f"to make {kind} references of", "Name the training set: --data.")
    replaced = copy.deepcopy(model)
    images, _ = read_some(model, train, STATISTICS_IMAGES)
    replace_references(replaced, kind, images, k=None if kind == "mean" else k)  # type: ignore[arg-type]
    return replaced.eval()


def _plan_threshold(
    original: Anchored | Standard,
    model: Anchored | Standard,
    k: int,
    acceptance: float | None,
    precision: str,
    sets: ExportSets,
    report: Callable[[str], None],
) -> tuple[Threshold | None, float | None]:
    """The threshold to take as it is, or the share of validation images to fit one to."""
    chosen, stored = original.threshold, model.threshold  # none where references were replaced
    usable = stored if stored is not None and stored.k == k else None
    if acceptance is None and usable is not None and precision == "float32":
        return usable, None
    if sets.validation is not None:
        return None, acceptance or (ACCEPTANCE if chosen is None else chosen.acceptance)
    if acceptance is not None:
        raise OptionError(
            f"no validation images are known to accept {acceptance:.0%} of. Name some:"
            " --validation DATA."
        )
    if usable is not None:
        report(f"The threshold was fitted in float32; no images are known to fit {precision}'s.")
        return usable, None
    why = "none is stored" if stored is None else f"the stored one is for k={stored.k}"
    report(f"No threshold: {why}, and no validation images are known: --validation DATA.")
    return None, None


def _describe(
    model: Anchored | Standard, deployed: Deployed, name: str, format: str, precision: str
) -> ExportMetadata:
    from killick import __version__

    view = view_for(model) if len(model.image_shape) == 3 else None
    made = remembered(model.net)
    return ExportMetadata(
        name=name,
        file_format=format,
        precision=precision,
        network=type(model.net).__name__ if made is None else made.name,
        image_shape=tuple(model.image_shape),
        takes="float32" if model.normalize is None else "uint8",
        outputs=deployed.outputs,
        k=deployed.k if isinstance(model, Anchored) else 0,
        references=describe_references(model, deployed.k),
        class_names=model.class_names,
        resize=None if view is None else view.resize,
        interpolation="bilinear" if view is None else view.interpolation,
        threshold=None,
        weights="",
        made_with={"killick": __version__, "torch": torch.__version__.split("+")[0]},
    )


def describe_references(model: Anchored | Standard, k: int) -> str:
    """What the file holds of training images, for whoever passes it on."""
    if isinstance(model, Standard):
        return "none: a standard model"
    policy = model.reference_policy or "images that were given"
    if model.reference_kind != "images":
        return f"{policy}; no training image is in the file"
    what = "one reference" if k == 1 else f"{k} references"
    return (
        f"{what} ({policy}), usually training images, folded into the first layer, where they may"
        " still be recognized. To export without: mean or synthetic references"
    )


def _make(
    deployed: Deployed,
    about: ExportMetadata,
    sets: ExportSets,
    source: Anchored | Standard,
    calibration: int,
    opset: int | None,
) -> "OnnxFile | TorchFile":
    """The network in its format and precision, ready to be written."""
    dtype = torch.uint8 if about.takes == "uint8" else torch.float32
    image = torch.zeros(about.image_shape, dtype=dtype)
    if about.file_format == "torch":
        if about.precision != "float32":
            deployed = deployed.to_precision(getattr(torch, about.precision))
        return TorchFile(deployed, image)
    batches = None
    if about.precision == "int8":
        batches = read_some(source, _calibration_set(sets), calibration)[0].split(BATCH)
    return OnnxFile(deployed, image, about.precision, batches, opset or OPSET)


def _calibration_set(sets: ExportSets) -> ImageSet:
    return require(
        sets.train or sets.validation,
        "to calibrate int8 with",
        "Name data with a training set (--data DATA), or validation images (--validation).",
    )


def _fit(
    exported: Exported,
    model: Anchored | Standard,
    sets: ExportSets,
    acceptance: float,
    limit: int,
) -> Threshold:
    """The energy up to which the file accepts that share of validation images."""
    assert sets.validation is not None
    images, _ = read_some(model, sets.validation, limit)
    energies = file_outputs(exported, images)["energy"]
    found = float(metrics.threshold(energies, acceptance))
    return Threshold(found, acceptance, exported.k or 1, f"{sets.validation.name} ({len(images)})")


def _measure(
    exported: Exported,
    original: Anchored | Standard,
    test: ImageSet,
    k: int,
    limit: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """File against model on test images."""
    images, labels = read_some(original, test, limit)
    found = file_outputs(exported, images)
    known = labels_for(original, test, labels, found["logits"].shape[1])
    if known is None:
        report(f"{test.name} has other classes than the model: no accuracy.")
    k = k if isinstance(original, Anchored) and len(original.references) >= k else 1
    figures = compare_images(found, model_outputs(original, images, k), known, f"{test.name}, test")
    if figures["same_label"] < FEW:
        report(
            f"Only {figures['same_label']:.1%} of the images get the model's label. Use a higher"
            " --precision, or other references."
        )
    return figures


def _check_free(folder: Path) -> None:
    """Refuse a place where anything else is than an export."""
    if not folder.exists():
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    others = sorted(names - {*FILES.values(), "model.json", "examples.npz", "check.py"})
    if not others and (not names or _is_export_metadata(folder / "model.json")):
        return
    found = f"{others[0]!r} in it" if others and folder.is_dir() else "something else"
    raise StorageError(
        f"cannot write {folder}: expected a new folder, or an export to replace, found {found}."
        " Choose another: --output FOLDER."
    )


def _is_export_metadata(path: Path) -> bool:
    try:
        read_metadata(path.read_text(encoding="utf-8"), path)
    except (OSError, ValueError):  # StorageError is one
        return False
    return True
