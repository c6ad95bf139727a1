"""Checkpoints of LLNL/anchoring, the code of the paper's authors, read as weights of pair networks.

CIFAR: `{"net": ...}` of a ResNet-18 whose first layer reads 6 channels. ImageNet: `{"model": ...,
"model_ema": ...}` of torchvision's Swin-V2 or ViT, likewise; the average is what they evaluate.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from killick.errors import CheckpointError, one_line, show
from killick.nets import NetworkPreprocessing
from killick.storage.weights import load_plain, refuse_bomb

_PARTS = ("model_ema", "model", "net")  # the first that is there
_CIFAR = NetworkPreprocessing(32, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
# What their script evaluates Swin-V2 with; ViT as torchvision does.
_SWIN = NetworkPreprocessing(256, 256, "bicubic")
_VIT = NetworkPreprocessing(224, 256)
_BLOCK = re.compile(r"layer(\d)\.(\d)\.")


@dataclass(frozen=True)
class LlnlCheckpoint:
    """Weights of a pair network, the name of its architecture, and its preprocessing."""

    network: str
    weights: dict[str, Tensor]
    preprocessing: NetworkPreprocessing


def read_llnl(path: Path) -> LlnlCheckpoint:
    """A checkpoint of LLNL/anchoring; nothing in it can run code."""
    if not path.is_file():
        raise CheckpointError(f"cannot read {path}: there is no such file.")
    try:
        refuse_bomb(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # their options; plain values
            found: Any = load_plain(path)
    except Exception as problem:  # whatever a file of another kind makes its readers raise
        raise CheckpointError(
            f"cannot read {path}: it is damaged, or not a checkpoint of LLNL/anchoring"
            f" ({one_line(problem)})."
        ) from None
    part = next((p for p in _PARTS if isinstance(found, Mapping) and p in found), None)
    weights = _without_wrappers(found[part]) if part else {}
    if "linear.weight" in weights and "layer1.0.conv1.weight" in weights:
        checkpoint = LlnlCheckpoint("killick:resnet18", _as_killick(weights), _CIFAR)
        first = weights.get("conv1.weight")
    elif "conv_proj.weight" in weights:
        checkpoint = LlnlCheckpoint("torchvision:vit_b_16", weights, _VIT)
        first = weights["conv_proj.weight"]
    elif "features.0.0.weight" in weights:
        checkpoint = LlnlCheckpoint(f"torchvision:{_name_swin(weights)}", weights, _SWIN)
        first = weights["features.0.0.weight"]
    else:
        raise CheckpointError(
            f"cannot read {path}: expected a checkpoint of LLNL/anchoring, a ResNet-18 of CIFAR or a"
            f" Swin-V2 or ViT of ImageNet, found {show(list(weights) or type(found).__name__)}."
        )
    if first is None or first.ndim != 4 or first.shape[1] != 6:
        shape = None if first is None else tuple(first.shape)
        raise CheckpointError(
            f"cannot read {path}: expected a first layer of 6 channels, found {shape}. A network for"
            " images is converted without --format llnl."
        )
    return checkpoint


def _without_wrappers(state: Any) -> dict[str, Tensor]:
    """The weights without what wrappers put before all names: `module.`, and the pairing one's."""
    if not isinstance(state, Mapping):
        return {}
    weights = {str(k): v for k, v in state.items() if isinstance(v, Tensor) and k != "n_averaged"}
    while weights and len({name.partition(".")[0] for name in weights}) == 1:
        if not all("." in name for name in weights):
            return {}
        weights = {name.partition(".")[2]: weight for name, weight in weights.items()}
    return weights


def _as_killick(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of Killick's ResNet-18: `layer2.1.conv1` is `blocks.3.conv1`, `linear` is `fc`."""

    def rename(name: str) -> str:
        name = re.sub(r"^linear\.", "fc.", name)
        return _BLOCK.sub(lambda at: f"blocks.{2 * (int(at[1]) - 1) + int(at[2])}.", name)

    return {rename(name): weight for name, weight in weights.items()}


def _name_swin(weights: dict[str, Tensor]) -> str:
    """By width and depth."""
    if weights["features.0.0.weight"].shape[0] == 128:
        return "swin_v2_b"
    deep = any(name.startswith("features.5.6.") for name in weights)  # a seventh block
    return "swin_v2_s" if deep else "swin_v2_t"
