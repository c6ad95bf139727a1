"""Networks of your own, by name: from Python files and modules that `KILLICK_NETWORKS` lists.

    KILLICK_NETWORKS=nets.py killick train --network nets:SmallNet

`nets:SmallNet` is the class `SmallNet` in `nets.py`, or a function decorated with
`killick.nets.network`, called with `num_classes=` and the arguments of the recipe. A module that
Python finds is listed and named by its name: `mine.nets:SmallNet`. Several are separated like the
entries of `PATH`.

Making a network runs its code. A model or recipe from elsewhere can name any network, so a file is
imported only if the variable lists it.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from killick.errors import OptionError, check_option, one_line

VARIABLE = "KILLICK_NETWORKS"
LIBRARIES = ("killick", "timm", "torchvision", "hf", "hf-hub")
HOW_TO_LIST = f"Networks of your own: {VARIABLE}=FILE.py, which runs the file; then 'FILE:NAME'."


def is_network_name(model: object) -> bool:
    """Whether a model is given as `timm:NAME` or the like."""
    library, colon, _ = model.partition(":") if isinstance(model, str) else ("", "", "")
    return bool(colon) and library in (*LIBRARIES, *own_libraries())


def own_libraries() -> dict[str, str]:
    """The name of each listed library, and its file or module. No code is run."""
    found: dict[str, str] = {}
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        name = entry
        if entry.endswith(".py"):
            entry = os.path.abspath(os.path.expanduser(entry))
            name = os.path.basename(entry)[: -len(".py")]
        if name in LIBRARIES:
            raise OptionError(f"{VARIABLE} lists {entry}, but {name!r} is taken. Rename the file.")
        if found.setdefault(name, entry) != entry:
            raise OptionError(
                f"{VARIABLE} lists two files of one name, {found[name]} and {entry}. Rename one."
            )
    return found


def find_own(library: str, name: str) -> Callable[..., Any]:
    """The class or function of that name in a listed file or module; it is imported."""
    source = own_libraries()[library]
    module = _import(library, source)
    makers: dict[str, Callable[..., Any]] = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and _is_network(value)
    }
    if not makers:
        raise OptionError(
            f"{source} ({VARIABLE}) has no networks: neither a class of torch.nn.Module nor a"
            " function decorated with @killick.nets.network."
        )
    try:
        check_option(f"the network of {source}", name, makers)
    except OptionError as problem:
        hint = "A function must be decorated with @killick.nets.network."
        raise OptionError(f"{problem} {hint}") from None
    return makers[name]


def read_source(library: str) -> bytes | None:
    """The text of a listed file; None for a module, and for what is not listed."""
    source = own_libraries().get(library, "")
    if not source.endswith(".py"):
        return None
    with contextlib.suppress(OSError):  # an error comes when the network is made
        return Path(source).read_bytes()
    return None


def _is_network(value: Any) -> bool:
    """Whether it is a network's class or a registered function: an untrusted model may name it."""
    while isinstance(value, functools.partial):
        value = value.func
    is_class = isinstance(value, type) and issubclass(value, nn.Module)
    return is_class or getattr(value, "is_network", False) is True


@functools.cache
def _import(library: str, source: str) -> ModuleType:
    try:
        if not source.endswith(".py"):
            return importlib.import_module(source)
        return _run_file(f"killick_networks_{library}", source)
    except Exception as problem:  # whatever is wrong with a user's code
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [f" (line {frame.lineno})" for frame in frames if frame.filename == source]
        raise OptionError(
            f"cannot import {source} ({VARIABLE}): {type(problem).__name__}: {one_line(problem)}"
            f"{''.join(lines[-1:])}."
        ) from problem


def _run_file(name: str, source: str) -> ModuleType:
    """A file as a module of that name; it can import its neighbors, as a script can."""
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(source)
    sys.modules[name] = module  # before it is made: dataclasses look for it there
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module
