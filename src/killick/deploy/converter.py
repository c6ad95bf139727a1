"""Converting a trained network to an anchored model, without training."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from killick.core.anchored import Anchored, anchor
from killick.data.sources import load_sets
from killick.deploy.export_sets import read_some
from killick.errors import CheckpointError, OptionError, StorageError, check_least, check_option
from killick.evaluation.other_networks import (
    Normalization,
    open_model,
    wrap_network,
)
from killick.nets import NetworkPreprocessing, create
from killick.nets.custom import is_network_name
from killick.storage.llnl_checkpoints import read_llnl
from killick.storage.saving import save
from killick.storage.weights import count_classes, find_misfit, read_weights

FORMATS = ("auto", "llnl")


def convert(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    network: str | None = None,
    checkpoint: Path | None = None,
    pretrained: bool = False,
    format: str = "auto",
    pairs: bool = False,
    normalize: Normalization | None = None,
    size: int | None = None,
    resize: int | None = None,
    interpolation: str | None = None,
    data: str | None = None,
    root: str | None = None,
    references: int = 10,
    say: Callable[[str], None] | None = None,
) -> Anchored:
    """Anchor a trained network exactly, and save it as a folder; nothing is trained.

    The anchored model predicts what the network predicted, whatever the reference. Weights of a
    network that was trained on pairs, with twice the channels in its first layer, are kept as they
    are.

    Args:
        source: A network by name; a file with weights, with `network`; or a folder written by
            `killick.save`, or a run folder.
        folder: For the model; must not exist.
        network: The name of the network, if `source` is a file.
        checkpoint: A file with weights, if `source` is a name.
        pretrained: The weights of the name's library.
        format: "auto", or "llnl" for a checkpoint of LLNL/anchoring.
        pairs: The network itself is written for pairs, with twice the channels of an image.
        normalize: `(mean, std)`; by default those of the weights, as the following.
        size: Of the images.
        resize: The shorter side is resized to this before the center crop.
        interpolation: "nearest", "bilinear" or "bicubic".
        data: References are taken from its training set; without it, an exactly anchored network
            gets one of a single color, since they make no difference.
        root: Where downloaded data are.
        references: How many.
        say: Gets messages.

    Returns:
        The model, in eval mode.
    """
    check_option("format", format, FORMATS)
    report, folder = say or (lambda sentence: None), Path(folder)
    if folder.exists():
        raise StorageError(f"cannot convert into {folder}: it exists. Choose another folder.")
    check_least("references", references)
    given, view = (
        os.fspath(source),
        {"size": size, "resize": resize, "interpolation": interpolation},
    )
    if not is_network_name(given) and Path(given).is_file():
        if checkpoint is not None:
            raise OptionError(f"{given} is a file with weights already, found --checkpoint too.")
        given, checkpoint = network or "", Path(given)
    elif network is not None:
        raise OptionError(f"--network is for a file with weights, and {given} is none.")
    if format == "llnl":
        if checkpoint is None:
            raise OptionError("--format llnl requires a checkpoint file.")
        model = _open_llnl(checkpoint, given, normalize, view)
    elif checkpoint is not None and not given:
        raise OptionError(f"say which network {checkpoint} is of: --network timm:resnet50.")
    else:
        model = _open(given, checkpoint, pretrained, pairs, normalize, view)
    if data is not None:
        train = load_sets(data, root=root).train
        if train is None:
            raise OptionError(f"{data} has no training set to take references from.")
        images, _ = read_some(model, train, references)
        model.set_references(
            images, policy=f"{len(images)} of {train.name}, class-balanced, seed 0"
        )
    elif model.provenance["anchored"] == "exactly":
        _store_color(model)
    else:
        report(
            "No references are stored, which evaluation requires. Name the training data: --data."
        )
    save(model, folder)
    return model


def _open(
    given: str,
    checkpoint: Path | None,
    pretrained: bool,
    pairs: bool,
    normalize: Normalization | None,
    view: dict[str, Any],
) -> Anchored:
    """A network or saved model as an anchored one."""
    if checkpoint is not None and is_network_name(given) and not pairs:
        weights = read_weights(checkpoint)
        paired = _fill_pairs(given, weights, normalize, view)
        if paired is not None:
            paired.provenance |= {"weights": checkpoint.name}
            return paired.eval()
    found = open_model(
        given, checkpoint=checkpoint, pretrained=pretrained, normalize=normalize, **view
    )
    if isinstance(found, Anchored):
        raise OptionError(f"{given} is an anchored model already.")
    if found.normalize is None:
        raise OptionError(
            f"{given} does not normalize images. Save it with killick.standard(net, normalize=...)."
        )
    model = anchor(found, pairs=pairs)
    model.provenance = {**found.provenance, "anchored": "trained on pairs" if pairs else "exactly"}
    if isinstance(facts := found.provenance.get("facts"), dict):
        model.provenance["facts"] = {**facts, "protocol": "anchored"}
    if checkpoint is not None:
        model.provenance["weights"] = checkpoint.name
    return model.eval()


def _fill_pairs(
    name: str,
    weights: dict[str, torch.Tensor],
    normalize: Normalization | None,
    view: dict[str, Any],
    known: NetworkPreprocessing | None = None,
) -> Anchored | None:
    """The named network, anchored, with weights that were trained on pairs; None if they do not fit."""

    def make(classes: dict[str, int]) -> Anchored:
        net = create(name, **classes)
        if known is not None:
            net.killick_preprocessing = known  # type: ignore[assignment]
        plain = wrap_network(net.eval(), None, normalize, **view)
        model = anchor(plain)
        model.provenance = {**plain.provenance, "anchored": "trained on pairs"}
        return model

    first = {key for key, weight in weights.items() if weight.ndim == 4 and weight.shape[1] == 6}
    if not first:
        return None
    model = make({})
    if classes := count_classes(model.net.state_dict(), weights):
        model = make({"num_classes": classes})
    if find_misfit(model.net.state_dict(), weights) is not None:
        return None
    model.net.load_state_dict(weights)
    return model


def _open_llnl(
    checkpoint: Path, name: str, normalize: Normalization | None, view: dict[str, Any]
) -> Anchored:
    found = read_llnl(checkpoint)
    model = _fill_pairs(name or found.network, found.weights, normalize, view, found.preprocessing)
    if model is None:
        expected = name or found.network
        raise CheckpointError(
            f"cannot read {checkpoint}: its weights are not those of {expected}, which it looks like."
            " Name its network: --network."
        )
    model.provenance |= {"weights": checkpoint.name, "format": "llnl"}
    return model.eval()


def _store_color(model: Anchored) -> None:
    """Store an image of the mean color as the reference; it stands for no training image."""
    assert model.normalize is not None
    color = torch.tensor(model.normalize.mean).mul(255).round().clamp(0, 255).to(torch.uint8)
    image = color.view(1, -1, 1, 1).expand(1, *model.image_shape)
    model.set_references(image, policy="the mean color of the normalization")
    model.reference_kind = "mean"
