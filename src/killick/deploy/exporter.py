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

import killick
from killick import metrics
from killick.core.anchored import Anchored, evaluating
from killick.core.image_model import Threshold
from killick.core.standard import Standard, model_in
from killick.data.preprocessing import view_for
from killick.deploy import check_export as check
from killick.deploy.deployed_net import deploy
from killick.deploy.export_files import OPSET, make_file
from killick.deploy.export_sets import ExportData, find_export_sets, read_some, require
from killick.deploy.parity import (
    BATCH,
    check_calibrated,
    compare_examples,
    compare_images,
    file_outputs,
    make_examples,
    model_outputs,
)
from killick.deploy.private_references import replace_by_statistics
from killick.errors import OptionError, check_least, check_option
from killick.evaluation.open_classifier import name_model
from killick.evaluation.other_networks import Normalization, open_model
from killick.nets import remembered
from killick.nets.custom import is_network_name
from killick.runtime.atomic_files import atomic_folder, check_replaceable
from killick.runtime.plain_files import read_text
from killick.storage.export_metadata import FILE_FORMATS, PRECISIONS, ExportMetadata, read_metadata
from killick.storage.exported_file import FILES, Exported, open_export
from killick.storage.saving import FOLDED_NOTE, folded_references
from killick.storage.weights import digest_weights

REFERENCES = ("stored", "mean", "synthetic")
ACCEPTANCE = 0.95
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
    checkpoint: Path | None = None,
    pretrained: bool = False,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Exported:
    """Write `model` as a file that runs without Killick, checked against the model.

    The folded network with normalization inside takes any number of uint8 images and returns
    `logits`, `probabilities`, `energy`, `std` (with several references) and `in_distribution`.

    Args:
        model: Anchored or standard; a folder written by `killick.save`; a run folder; or a network
            by name, such as `timm:resnet50`, with `checkpoint` or `pretrained`.
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
        checkpoint: Weights, for a network by name.
        pretrained: Its library's weights.
        normalize: `(mean, std)`, for a network by name; by default those of its weights.
        size: Of the images, likewise.
        resize: The shorter side is resized to this before the center crop.
        interpolation: "nearest", "bilinear" or "bicubic".
        say: Gets messages about what is done and left out.

    Returns:
        The file, opened; `about.measured` has the figures.

    Raises:
        OutputError: If the file does not compute what the model does; nothing is written then.
    """
    check_option("format", format, FILE_FORMATS)
    check_option("precision", precision, PRECISIONS)
    check_option("references", references, REFERENCES)
    check_least("k", k)
    if acceptance is not None and not 0 < acceptance <= 1:
        raise OptionError(f"acceptance must be between 0 and 1, found {acceptance!r}.")
    if precision == "int8" and format != "onnx":
        raise OptionError(f"int8 requires format 'onnx', found {format!r}.")
    report = say or (lambda sentence: None)
    folder = Path(folder)
    check_replaceable(folder, _exported_files(folder))
    if isinstance(model, str | os.PathLike):
        given = open_model(
            model,
            checkpoint=checkpoint,
            pretrained=pretrained,
            normalize=normalize,
            size=size,
            resize=resize,
            interpolation=interpolation,
        )
    else:
        given = model_in(model)
    with evaluating(given):
        original = copy.deepcopy(given).cpu().float().eval()
    if isinstance(original, Standard) and k != 1:
        raise OptionError(f"a standard model has no references, found k={k}. Leave it out.")
    sets = find_export_sets(original, data, validation, root, report)
    if acceptance is not None and sets.validation is None:
        raise OptionError(
            f"no validation images are known to accept {acceptance:.0%} of. Name some:"
            " --validation DATA."
        )
    source, weights = original, digest_weights(given)
    if references != "stored":
        source = copy.deepcopy(original)
        replace_by_statistics(source, references, sets, k=k)  # type: ignore[arg-type]
        weights = digest_weights(source)
    threshold = source.threshold  # none where references were replaced
    threshold = threshold if threshold is not None and threshold.k == k else None
    is_good = threshold is not None and acceptance is None and precision == "float32"
    refit = sets.validation is not None and not is_good
    if threshold is None and not refit:
        report(
            f"No threshold: none is stored for k={k}, and no validation images are known:"
            " --validation DATA."
        )
    deployed = deploy(source, k, has_threshold=threshold is not None or refit)
    view = view_for(source) if len(source.image_shape) == 3 else None
    made_by = remembered(source.net)
    about = ExportMetadata(
        name=name or name_of(folder if isinstance(model, torch.nn.Module) else model),
        file_format=format,
        precision=precision,
        network=type(source.net).__name__ if made_by is None else made_by.name,
        image_shape=tuple(source.image_shape),
        takes="float32" if source.normalize is None else "uint8",
        outputs=deployed.outputs,
        k=deployed.k if isinstance(source, Anchored) else 0,
        references=describe_references(source, deployed.k),
        class_names=source.class_names,
        resize=None if view is None else view.resize,
        interpolation="bilinear" if view is None else view.interpolation,
        squash=view is not None and view.squash,
        threshold=None,
        weights=weights,
        made_with={"killick": killick.__version__, "torch": torch.__version__.split("+")[0]},
    )
    calibrated = None
    if precision == "int8":
        train = require(sets.train or sets.validation, "to calibrate int8 with (--data)")
        calibrated = read_some(source, train, calibration)[0]
    made = make_file(deployed, about, calibrated, opset or OPSET)
    with atomic_folder(folder) as part:
        path = part / FILES[format]
        if refit and sets.validation is not None:
            chosen = original.threshold
            share = acceptance or (chosen.acceptance if chosen is not None else ACCEPTANCE)
            made.write(replace(about, threshold=NO_THRESHOLD), path)
            images, _ = read_some(source, sets.validation, limit)
            energies = file_outputs(open_export(path, trust=True), images)["energy"]
            fitted_on = f"{sets.validation.name} ({len(images)})"
            threshold = Threshold(float(metrics.threshold(energies, share)), share, k, fitted_on)
        about = replace(about, threshold=threshold)
        made.write(about, path)
        exported = open_export(path, trust=True)
        images = make_examples(source.image_shape, about.takes)
        figures, examples = compare_examples(exported, images, model_outputs(source, images, k))
        if calibrated is not None:
            seen = calibrated[:BATCH]
            check_calibrated(exported, seen, model_outputs(source, seen, k))
        measured: dict[str, Any] = {"examples": figures}
        if sets.test is None:
            report("No labeled images are known, so accuracy was not measured: --data.")
        else:
            compared = k if isinstance(original, Standard) else min(k, len(original.references))
            measured["images"] = compare_images(
                lambda images: file_outputs(exported, images), original, compared, sets.test, limit
            )
            if (same := measured["images"]["same_label"]) < FEW:
                report(
                    f"Only {same:.1%} of the images get the model's label. Use a higher"
                    " --precision, or other references."
                )
        about = replace(about, measured=measured)
        made.write(about, path)
        (part / "examples.npz").write_bytes(examples)
        (part / "model.json").write_text(about.to_json() + "\n", encoding="utf-8")
        shutil.copyfile(check.__file__, part / "check.py")
    return open_export(folder / FILES[format], trust=True)


def name_of(place: str | os.PathLike[str]) -> str:
    """The name of a model by its folder, or by the run folder it is in."""
    if is_network_name(place):
        return str(place).replace(":", "-").replace("/", "-")
    return name_model(os.fspath(place))


def _exported_files(folder: Path) -> set[str]:
    """The files of an export that is there; none if there is something else."""
    path = folder / "model.json"
    try:
        read_metadata(read_text(path), path)
    except ValueError:  # FileError and StorageError are some
        return set()
    return {*FILES.values(), "model.json", "examples.npz", "check.py"}


def describe_references(model: Anchored | Standard, k: int) -> str:
    """Whether training images can be recognized in the file, in words."""
    if isinstance(model, Standard):
        return FOLDED_NOTE if "images" in folded_references(model) else "none: a standard model"
    policy = model.reference_policy or "images that were given"
    if model.reference_kind != "images":
        return f"{policy}; no training image is in the file"
    what = "one reference" if k == 1 else f"{k} references"
    return (
        f"{what} ({policy}), usually training images, folded into the first layer, where they may"
        " still be recognized. To export without: mean or synthetic references"
    )
