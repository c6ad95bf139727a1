"""Options of commands that take a network by name: its weights, and its preprocessing."""

import argparse
from pathlib import Path
from typing import Any

from killick.cli.arguments import FLAG, NUMBER, read_names
from killick.data.data_settings import INTERPOLATIONS
from killick.errors import OptionError

MODELS = (
    "a Killick folder or run, OWNER/NAME on the hub; or timm:NAME, torchvision:NAME,"
    " hf-hub:OWNER/NAME, hf:OWNER/NAME"
)


def add_network(parser: Any) -> None:
    """Add the options of a network by name."""
    add = parser.add_argument
    add("--checkpoint", metavar="FILE", type=Path, help="weights of a network by name")
    add("--pretrained", **FLAG, help="the weights of its library, cached or downloaded")
    add("--size", **NUMBER, help="height and width of the network's input")
    add("--resize", **NUMBER, help="shorter side before the center crop")
    add("--interpolation", choices=INTERPOLATIONS, help="of resizing")
    add("--mean", metavar="R,G,B", type=read_names, help="of each channel, 0 to 1")
    add("--std", metavar="R,G,B", type=read_names, help="of each channel, 0 to 1")


def read_network(options: argparse.Namespace) -> dict[str, Any]:
    """These options, as arguments of `open_classifier`."""
    names = ("checkpoint", "pretrained", "size", "resize", "interpolation")
    found = {name: getattr(options, name) for name in names}
    if options.mean is not None or options.std is not None:
        found["normalize"] = _normalization(options)
    return found


def _normalization(options: argparse.Namespace) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, std = (tuple(float(word) for word in part) for part in (options.mean, options.std))
    except (TypeError, ValueError):
        raise OptionError(
            "--mean and --std require each other, and take numbers such as 0.5,0.5,0.5."
        ) from None
    return mean, std
