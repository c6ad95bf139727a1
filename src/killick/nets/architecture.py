"""The registry of networks, and how a network remembers by which name it was made."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from killick.registry import Registry

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# `killick:NAME`: a function or class that makes the network from `num_classes=` and plain arguments.
NETWORKS: Registry[Callable[..., nn.Module]] = Registry("networks", "network", "killick.nets")


def network(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Register a function as a network: `killick:NAME`, or `FILE:NAME` in a file of your own.

    What is neither registered nor a class of `nn.Module` is never called because a model names it.
    """
    make.is_network = True  # type: ignore[attr-defined]
    if make.__module__.partition(".")[0] == "killick":
        NETWORKS.register(make.__name__, make)
    return make


@dataclass(frozen=True)
class Architecture:
    """How to make a network again: `library:name` and the arguments, plain values."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def remembered(net: nn.Module) -> Architecture | None:
    """How `net` was made, if it was made by `create`."""
    found = getattr(net, "killick_architecture", None)
    return found if isinstance(found, Architecture) else None


_given: ContextVar[nn.Module | None] = ContextVar("given network", default=None)


@contextmanager
def given_net(net: nn.Module | None) -> Iterator[None]:
    """Within this block, `copy_given` copies this network, which was not made by name."""
    token = _given.set(net)
    try:
        yield
    finally:
        _given.reset(token)


def copy_given() -> nn.Module | None:
    """A copy of the network that was given in Python, weights included, if there is one."""
    net = _given.get()
    return None if net is None else copy.deepcopy(net)
