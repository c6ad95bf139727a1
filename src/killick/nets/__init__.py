"""Networks by name: Killick's own for small images, all of timm and torchvision, and your own.

In: a name and plain arguments. Out: a network with fresh weights, which remembers both, so that
`killick.save` can write them down and `killick.load` make it again. Imports only `errors` and
`registry`. To add a network, decorate its function with `@network` in a file of this folder, or let
an entry point `killick.networks` of another package name it: both are `killick:NAME`.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from killick.errors import OptionError, check_option
from killick.nets.architecture import IMAGENET_MEAN as IMAGENET_MEAN
from killick.nets.architecture import IMAGENET_STD as IMAGENET_STD
from killick.nets.architecture import NETWORKS as NETWORKS
from killick.nets.architecture import Architecture as Architecture
from killick.nets.architecture import network as network
from killick.nets.architecture import remember as remember
from killick.nets.architecture import remembered as remembered
from killick.nets.custom import LIBRARIES, describe_unknown, find_own, own_libraries
from killick.nets.resnet import ResNet as ResNet
from killick.nets.resnet import resnet18 as resnet18
from killick.nets.resnet import resnet_small as resnet_small
from killick.nets.wideresnet import WideResNet as WideResNet
from killick.nets.wideresnet import wrn40_2 as wrn40_2

# Arguments that would download or read files when a network is made.
_FORBIDDEN = ("pretrained", "weights", "checkpoint", "cache_dir")


def create(name: str, **arguments: Any) -> nn.Module:
    """A network with fresh weights: "killick:resnet18", "timm:convnext_atto", "torchvision:vit_b_16".

    One of your own is named by its file, if `KILLICK_NETWORKS` lists that: "nets:Small" (see
    `killick.nets.custom`).

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
            f"name a network as 'library:name', such as 'killick:resnet18' or 'timm:{name}', found"
            f" {name!r}."
        )
    if library not in (known := [*LIBRARIES, *own_libraries()]):
        try:
            check_option("the library", library, known)
        except OptionError as problem:
            raise OptionError(f"{problem}{describe_unknown(name)}") from None
    for key in arguments:
        if key.startswith(_FORBIDDEN):
            raise OptionError(
                f"the argument {key!r} does not shape the network. Make the network first, then"
                " load weights into it."
            )
    try:
        plain = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as problem:
        raise OptionError(f"JSON must be able to hold the arguments: {problem}.") from problem
    net = _make(library, model, plain)
    remember(net, Architecture(name, plain))
    return net


def _make(library: str, model: str, arguments: dict[str, Any]) -> nn.Module:
    make: Callable[..., nn.Module]
    if library == "killick":
        make = NETWORKS.find(model)
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
    except Exception as problem:  # whatever a user's code raises
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:300].rstrip(".")
        raise OptionError(
            f"cannot make '{library}:{model}' with {arguments}: {reason}. Networks of your own are"
            " called with num_classes= and the recipe's network.arguments."
        ) from problem
    if not isinstance(net, nn.Module):
        raise OptionError(
            f"'{library}:{model}' must make a torch.nn.Module, found {type(net).__name__}."
        )
    return net
