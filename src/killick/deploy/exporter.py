"""Exporting a model: read `export` top to bottom.

```
folder/
  model.onnx     or model.pt2: the network, normalization and threshold inside
  model.json     what it is, how to show it images, how it compares with the model; also in the file
  examples.npz   images of nothing, and what the network makes of them
  check.py       compares the two on the machine where it is to run, without Killick
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
from killick.deploy.export_images import (
    Given,
    Pictures,
    find_pictures,
    labels_for,
    read_some,
    require,
)
from killick.deploy.onnx_file import OPSET, OnnxFile
from killick.deploy.parity import (
    BATCH,
    ask_file,
    ask_model,
    choose_examples,
    compare_calibrated,
    compare_examples,
    compare_pictures,
    make_candidates,
)
from killick.deploy.torch_file import TorchFile
from killick.errors import OptionError, StorageError, check_option
from killick.nets import remembered
from killick.runtime.atomic_files import atomic_folder
from killick.storage.export_metadata import FILE_FORMATS, PRECISIONS, About, read_about
from killick.storage.exported_file import FILES, Exported, open_export
from killick.storage.model_folder import digest_weights, load

REFERENCES = ("stored", "mean", "synthetic")
ACCEPTANCE = 0.95
TRAIN_PICTURES = 5000  # of which mean and synthetic references are made
FEW = 0.9  # below which share of equal labels a file is warned of
NONE_YET = Threshold(0.0, 1.0, 1, "nothing yet")


def export(
    model: "torch.nn.Module | str | os.PathLike[str]",
    folder: str | os.PathLike[str],
    *,
    format: str = "onnx",
    k: int = 1,
    precision: str = "float32",
    references: str = "stored",
    acceptance: float | None = None,
    data: Given | None = None,
    validation: Given | None = None,
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
        precision: "float32"; "float16" or "bfloat16", half the size (bfloat16 in ONNX files is
            for keeping: it is computed in float32, since onnxruntime cannot); or "int8", a
            quarter, in ONNX files.
        references: "stored" ones, which are usually training images; or, made from the training
            set, its "mean", or "synthetic" ones. The cost is measured.
        acceptance: Share of validation pictures that are to be in distribution; by default the
            threshold that is stored with the model, else 0.95.
        data: To measure and calibrate on, with classes; by default what it was trained on.
        validation: To fit the threshold on; by default what its training set aside.
        limit: At most so many pictures to fit and to measure on.
        calibration: Training pictures for int8.
        opset: Version of ONNX's operators.
        name: What the file calls the model.
        root: Where downloaded sets are.
        say: Told what is done and left out, in sentences.

    Returns:
        The file, opened; `about.measured` has the figures.

    Raises:
        OutputError: If the file is not the model; nothing is written then.
    """
    check_option("format", format, FILE_FORMATS)
    check_option("precision", precision, PRECISIONS)
    check_option("references", references, REFERENCES)
    say = say or _ignore
    given = load(os.fspath(model)) if isinstance(model, str | os.PathLike) else model_in(model)
    _check(given, format, k, precision, references, acceptance)
    folder = Path(folder)
    _check_free(folder)
    if name is None:
        name = _name_of(folder if isinstance(model, torch.nn.Module) else Path(model))
    weights = digest_weights(given)
    with evaluating(given):
        original = copy.deepcopy(given).cpu().float().eval()
    pictures = find_pictures(original, data, validation, root, say)
    source = _with_references(original, references, k, pictures)
    if source is not original:
        weights = digest_weights(source)
    stored, wanted = _plan_threshold(original, source, k, acceptance, precision, pictures, say)
    deployed = deploy(source, k, judges=stored is not None or wanted is not None)
    about = replace(_describe(source, deployed, name, format, precision), weights=weights)
    made = _make(deployed, about, pictures, source, calibration, opset)
    try:
        with atomic_folder(Path(os.path.realpath(folder))) as part:
            path = part / FILES[format]
            if wanted is not None:
                made.write(replace(about, threshold=NONE_YET), path)
                stored = _fit(open_export(path, trust=True), source, pictures, wanted, limit)
            if stored is not None:
                about = replace(about, threshold=stored)
                made.set_threshold(stored.energy)
            made.write(about, path)
            exported = open_export(path, trust=True)
            images = choose_examples(exported, make_candidates(source.image_shape, about.takes))
            shown, examples = compare_examples(exported, images, ask_model(source, images, k))
            if precision == "int8":
                seen, _ = read_some(source, _calibrating(pictures), BATCH)
                compare_calibrated(exported, seen, ask_model(source, seen, k))
            measured: dict[str, Any] = {"examples": shown}
            if pictures.test is None:
                say("No pictures with classes are known, so accuracy was not measured: --data.")
            else:
                measured["pictures"] = _measure(exported, original, pictures.test, k, limit, say)
            about = replace(about, measured=measured)
            made.write(about, path)
            (part / "examples.npz").write_bytes(examples)
            (part / "model.json").write_text(about.to_json() + "\n", encoding="utf-8")
            shutil.copyfile(check.__file__, part / "check.py")
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is as it"
            " was. Make room there, or choose another folder: --output."
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
    """Refuse what cannot be, before anything is read or written."""
    if type(k) is not int or k < 1:
        raise OptionError(f"expected k of at least 1 reference, found {k!r}.")
    if acceptance is not None and not 0 < acceptance <= 1:
        raise OptionError(f"expected acceptance between 0 and 1, found {acceptance!r}.")
    if precision == "int8" and format != "onnx":
        raise OptionError(
            "expected int8 with format 'onnx', whose runtime does it, found it with 'torch'."
        )
    if isinstance(model, Anchored):
        if references == "stored":
            model.stored_references(k)
        return
    if k != 1 or references != "stored":
        asked = f"k={k}" if k != 1 else f"references={references!r}"
        raise OptionError(
            f"expected no {asked} with a standard model, which has no references. Leave it out."
        )


def _with_references(
    model: Anchored | Standard, kind: str, k: int, pictures: Pictures
) -> Anchored | Standard:
    """The model with the references that may travel."""
    if kind == "stored":
        return model
    assert isinstance(model, Anchored)
    if kind == "mean" and k != 1:
        raise OptionError(f"expected k=1 with the mean image, which is one reference, found {k}.")
    train = require(
        pictures.train, f"to make {kind} references of", "Name the training set: --data DATA."
    )
    replaced = copy.deepcopy(model)
    images, _ = read_some(model, train, TRAIN_PICTURES)
    assert kind in ("mean", "synthetic")
    replace_references(replaced, kind, images, k=None if kind == "mean" else k)  # type: ignore[arg-type]
    return replaced.eval()


def _plan_threshold(
    original: Anchored | Standard,
    model: Anchored | Standard,
    k: int,
    acceptance: float | None,
    precision: str,
    pictures: Pictures,
    say: Callable[[str], None],
) -> tuple[Threshold | None, float | None]:
    """The threshold to take as it is, or the share of validation pictures to fit one to."""
    chosen, stored = original.threshold, model.threshold  # none where references were replaced
    usable = stored if stored is not None and stored.k == k else None
    if acceptance is None and usable is not None and precision == "float32":
        return usable, None
    if pictures.validation is not None:
        share = acceptance or (ACCEPTANCE if chosen is None else chosen.acceptance)
        return None, share
    if acceptance is not None:
        raise OptionError(
            f"expected validation pictures to accept {acceptance:.0%} of, found none: its training"
            " set none aside, or they are not known. Name some: --validation DATA."
        )
    if usable is not None:
        say(f"The threshold was fitted in float32, and no pictures are known to fit {precision}'s.")
        return usable, None
    why = "none is stored" if stored is None else f"that which is stored is for k={stored.k}"
    say(
        f"No threshold: {why}, and no validation pictures are known to fit one. So the file does"
        " not say what is in distribution; give --validation DATA."
    )
    return None, None


def _describe(
    model: Anchored | Standard, deployed: Deployed, name: str, format: str, precision: str
) -> About:
    anchored = isinstance(model, Anchored)
    images = len(model.image_shape) == 3
    view = view_for(model) if images else None
    made = remembered(model.net)
    return About(
        name=name,
        file_format=format,
        precision=precision,
        network=type(model.net).__name__ if made is None else made.name,
        image_shape=tuple(model.image_shape),
        takes="float32" if model.normalize is None else "uint8",
        outputs=deployed.outputs,
        k=deployed.k if anchored else 0,
        references=describe_references(model, deployed.k),
        class_names=model.class_names,
        resize=None if view is None else view.resize,
        interpolation="bilinear" if view is None else view.interpolation,
        threshold=None,
        weights="",
        made_with={"killick": _own_version(), "torch": torch.__version__.split("+")[0]},
    )


def describe_references(model: Anchored | Standard, k: int) -> str:
    """What is in the file of the training images, said to whoever passes it on."""
    if isinstance(model, Standard):
        return "none: a standard model"
    policy = model.reference_policy or "images that were given"
    if model.reference_kind != "images":
        return f"{policy}; no training image is in the file"
    what = "one reference" if k == 1 else f"{k} references"
    return (
        f"{what} ({policy}), usually training images: folded into the first layer, in which they"
        " may still be recognised. Where they must not leave, export with mean or synthetic"
        " references"
    )


def _make(
    deployed: Deployed,
    about: About,
    pictures: Pictures,
    source: Anchored | Standard,
    calibration: int,
    opset: int | None,
) -> "OnnxFile | TorchFile":
    """The network in its format and precision, ready to be written."""
    image = torch.zeros(
        about.image_shape, dtype=torch.uint8 if about.takes == "uint8" else torch.float32
    )
    if about.file_format == "torch":
        kinds = {"float16": torch.float16, "bfloat16": torch.bfloat16}
        dtype = kinds.get(about.precision)
        return TorchFile(deployed if dtype is None else deployed.to_precision(dtype), image)
    batches = None
    if about.precision == "int8":
        images, _ = read_some(source, _calibrating(pictures), calibration)
        batches = images.split(BATCH)
    return OnnxFile(deployed, image, about.precision, batches, opset or OPSET)


def _calibrating(pictures: Pictures) -> ImageSet:
    """The pictures that int8 takes its ranges from."""
    return require(
        pictures.train or pictures.validation,
        "to calibrate int8 with",
        "Name data with a training set (--data DATA), or validation pictures (--validation).",
    )


def _fit(
    exported: Exported,
    model: Anchored | Standard,
    pictures: Pictures,
    acceptance: float,
    limit: int,
) -> Threshold:
    """The energy up to which the file accepts that share of validation pictures."""
    assert pictures.validation is not None
    images, _ = read_some(model, pictures.validation, limit)
    energies = ask_file(exported, images)["energy"]
    found = float(metrics.threshold(energies, acceptance))
    fitted_on = f"{pictures.validation.name} ({len(images)})"
    return Threshold(found, acceptance, exported.k or 1, fitted_on)


def _measure(
    exported: Exported,
    original: Anchored | Standard,
    test: ImageSet,
    k: int,
    limit: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """File against model on pictures it was not trained on."""
    images, labels = read_some(original, test, limit)
    found = ask_file(exported, images)
    known = labels_for(original, test, labels, found["logits"].shape[1])
    if known is None:
        say(f"The classes of {test.name} are others than the model's: no accuracy.")
    k = k if isinstance(original, Anchored) and len(original.references) >= k else 1
    figures = compare_pictures(found, ask_model(original, images, k), known, f"{test.name}, test")
    if figures["same_label"] < FEW:
        say(
            f"Beware: only {figures['same_label']:.1%} of the pictures get the model's label."
            " Take a higher --precision, or other references."
        )
    return figures


def _name_of(folder: Path) -> str:
    """A run is called by its folder, also when the model in it was named."""
    whole = folder.absolute()
    return whole.parent.name if whole.name == "model" else whole.name


def _check_free(folder: Path) -> None:
    """Refuse a place where anything else is than an export."""
    if not folder.exists():
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
    foreign = sorted(names - {*FILES.values(), "model.json", "examples.npz", "check.py"})
    if not foreign and (not names or _is_ours(folder / "model.json")):
        return
    found = f"{foreign[0]!r} in it" if foreign and folder.is_dir() else "something else"
    raise StorageError(
        f"cannot write {folder}: expected a new folder, or an export to replace, found {found}."
        " Choose another: --output FOLDER."
    )


def _is_ours(path: Path) -> bool:
    try:
        read_about(path.read_text(encoding="utf-8"), path)
    except (OSError, ValueError):  # which StorageError is, too
        return False
    return True


def _ignore(sentence: str) -> None:
    pass


def _own_version() -> str:
    from killick import __version__

    return __version__
