"""Networks by name, with fresh or pretrained weights, and their preprocessing.

They are Killick's own for small images, those of timm, torchvision and transformers, and your own.

In: a name and plain arguments. Out: a network with fresh weights (`create`) or pretrained ones
(`load_pretrained`), which remembers how it was made, so that `killick.save` can write that down and
`killick.load` make it again. Imports `errors`, `registry` and `runtime`. To add a network, decorate
its function with `@network` in a file of this folder, or let an entry point `killick.networks` of
another package name it: both are `killick:NAME`.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from killick.errors import OptionError, check_option, one_line
from killick.nets.architecture import IMAGENET_MEAN as IMAGENET_MEAN
from killick.nets.architecture import IMAGENET_STD as IMAGENET_STD
from killick.nets.architecture import NETWORKS as NETWORKS
from killick.nets.architecture import Architecture as Architecture
from killick.nets.architecture import copy_given as copy_given
from killick.nets.architecture import given_net as given_net
from killick.nets.architecture import network as network
from killick.nets.architecture import remembered as remembered
from killick.nets.custom import HOW_TO_LIST, LIBRARIES, find_own, own_libraries
from killick.nets.hf_networks import create_hf
from killick.nets.network_preprocessing import NetworkPreprocessing as NetworkPreprocessing
from killick.nets.network_preprocessing import preprocessing_by_name as preprocessing_by_name
from killick.nets.network_preprocessing import preprocessing_of as preprocessing_of
from killick.nets.pretrained import load_pretrained as load_pretrained
from killick.nets.pretrained import names_weights as names_weights
from killick.nets.pretrained import weights_of as weights_of
from killick.nets.pretrained import with_classes as with_classes
from killick.nets.resnet import ResNet as ResNet
from killick.nets.resnet import resnet18 as resnet18
from killick.nets.resnet import resnet_small as resnet_small
from killick.nets.size_limit import limited_size
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
            raise OptionError(f"{problem} {HOW_TO_LIST}") from None
    refuse_arguments(arguments)
    try:
        plain = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as problem:
        raise OptionError(f"JSON must be able to hold the arguments: {problem}.") from problem
    make = _find(library, model)
    try:
        inspect.signature(make).bind(**plain)  # before any of its code runs
        with limited_size():
            net = make(**plain)
    except Exception as problem:  # whatever a library, or a user's code, raises
        raise OptionError(
            f"cannot make {name!r} with {plain}: {type(problem).__name__}: {one_line(problem)}."
        ) from problem
    if not isinstance(net, nn.Module):
        raise OptionError(f"{name!r} must make a torch.nn.Module, found {type(net).__name__}.")
    net.killick_architecture = Architecture(name, plain)  # type: ignore[assignment]
    return net


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would download or read files: an untrusted model may name them."""
    for key in arguments:
        if key.startswith(_FORBIDDEN):
            raise OptionError(
                f"the argument {key!r} does not shape the network. For pretrained weights:"
                " killick.nets.load_pretrained(NAME), or --pretrained."
            )


def _find(library: str, model: str) -> Callable[..., nn.Module]:
    """The function or class that makes a network."""
    if library == "killick":
        return NETWORKS.find(model)
    if library == "timm":
        import timm

        check_option("the network", model.split(".")[0], timm.list_models())
        return partial(timm.create_model, model, pretrained=False)
    if library == "torchvision":
        import torchvision

        model, _, tag = model.partition("#")
        check_option("the network", model, torchvision.models.list_models(torchvision.models))
        if tag:
            known = [each.name for each in torchvision.models.get_model_weights(model)]
            check_option(f"the weights of torchvision:{model}", tag, known)
        return partial(torchvision.models.get_model, model, weights=None)
    if library == "hf":
        return partial(create_hf, model)
    if library == "hf-hub":
        raise OptionError(
            f"hf-hub:{model} stands for trained weights: killick.nets.load_pretrained('hf-hub:{model}')."
        )
    return find_own(library, model)
