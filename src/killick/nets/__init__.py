"""Networks by name: Killick's own for small images, all of timm and torchvision, and your own.

A network made by `create` remembers its name and arguments, so that `killick.save` can write them
down and `killick.load` make it again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from killick.errors import OptionError, check_option
from killick.nets.custom import TAKEN, describe_unknown, find_own, own_libraries
from killick.nets.resnet import ResNet as ResNet
from killick.nets.resnet import resnet18 as resnet18
from killick.nets.resnet import resnet_small as resnet_small
from killick.nets.wideresnet import WideResNet as WideResNet
from killick.nets.wideresnet import wrn40_2 as wrn40_2

OWN: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet_small": resnet_small,
    "wrn40_2": wrn40_2,
}

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Arguments that would fetch or read files when a network is made.
_FORBIDDEN = ("pretrained", "weights", "checkpoint", "cache_dir")


@dataclass(frozen=True)
class Architecture:
    """What it takes to make a network again: `library:name` and the arguments, plain values."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def create(name: str, **arguments: Any) -> nn.Module:
    """A network with fresh weights: "killick:resnet18", "timm:convnext_atto", "torchvision:vit_b_16".

    One of your own is known by the name of its file, if `KILLICK_NETWORKS` lists that: "nets:Small"
    (see `killick.nets.custom`).

    Args:
        name: The library and the name it has there.
        arguments: Passed on, such as `num_classes`. Only what JSON can write down.

    Example:
        >>> net = create("killick:resnet18", num_classes=10)
        >>> sum(p.numel() for p in net.parameters())
        11173962
    """
    library, colon, model = name.partition(":")
    if not colon:
        raise OptionError(
            f"expected a network as 'library:name', such as 'killick:resnet18' or 'timm:{name}',"
            f" found {name!r}."
        )
    if library not in (known := [*TAKEN, *own_libraries()]):
        try:
            check_option("the library", library, known)
        except OptionError as problem:
            raise OptionError(f"{problem}{describe_unknown(name)}") from None
    for key in arguments:
        if key.startswith(_FORBIDDEN):
            raise OptionError(
                f"expected arguments that only shape the network, found {key!r}. Make the network"
                " first, then load weights into it."
            )
    try:
        plain = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as problem:
        raise OptionError(f"expected arguments that JSON can write down: {problem}.") from problem
    net = _make(library, model, plain)
    remember(net, Architecture(name, plain))
    return net


def _make(library: str, model: str, arguments: dict[str, Any]) -> nn.Module:
    make: Callable[..., nn.Module]
    if library == "killick":
        check_option("the network", model, OWN)
        make = OWN[model]
    elif library == "timm":
        import timm

        check_option("the network", model.split(".")[0], timm.list_models())
        make = partial(timm.create_model, model, pretrained=False)
    elif library == "torchvision":
        import torchvision

        check_option("the network", model, torchvision.models.list_models(torchvision.models))
        make = partial(torchvision.models.get_model, model, weights=None)
    else:
        return _make_own(library, model, arguments)
    try:
        return make(**arguments)
    except TypeError as problem:
        raise OptionError(f"cannot make '{library}:{model}' with {arguments}: {problem}.") from None


def _make_own(library: str, model: str, arguments: dict[str, Any]) -> nn.Module:
    make = find_own(library, model)
    try:
        net = make(**arguments)
    except Exception as problem:  # whatever somebody's code raises
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:300].rstrip(".")
        raise OptionError(
            f"cannot make '{library}:{model}' with {arguments}: {reason}. Networks of your own are"
            " called with num_classes= and the recipe's network.arguments."
        ) from problem
    if not isinstance(net, nn.Module):
        raise OptionError(
            f"expected '{library}:{model}' to make a torch.nn.Module, found {type(net).__name__}."
        )
    return net


def remember(net: nn.Module, architecture: Architecture) -> None:
    """Note on `net` how it was made."""
    net.killick_architecture = architecture  # type: ignore[assignment]


def remembered(net: nn.Module) -> Architecture | None:
    """How `net` was made, if it was made by `create`."""
    found = getattr(net, "killick_architecture", None)
    return found if isinstance(found, Architecture) else None
