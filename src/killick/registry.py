"""Named entries that can be added in one file: corruptions, metrics, protocols, report sections, ...

An entry is added in one of three ways:

- a module of Killick's own package for that kind registers it; all modules of the package are found;
- code of the user calls `register`;
- an installed package has an entry point in the group `killick.<kind>`. Its code is imported only if
  the user lists the package: `KILLICK_PLUGINS=package`, `--plugin package`, or `enable_plugin`.
  Naming the entry in a recipe, model or run folder is not enough.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions, entry_points
from types import ModuleType
from typing import Generic, TypeVar

from killick.errors import OptionError, check_option

VARIABLE = "KILLICK_PLUGINS"
T = TypeVar("T")


def enabled_plugins() -> tuple[str, ...]:
    """The packages whose entry points may be imported."""
    return tuple(name for name in os.environ.get(VARIABLE, "").replace(",", " ").split() if name)


def enable_plugin(package: str) -> None:
    """Let the entry points of an installed package be used, here and in processes started later."""
    every = (point for each in distributions() for point in each.entry_points)
    points = [point for point in every if point.group.startswith("killick.")]
    if not any(package in _packages_of(point) for point in points):
        found = ", ".join(sorted({_package_of(point) for point in points})) or "none"
        raise OptionError(f"no installed package {package!r} extends Killick, found {found}.")
    names = enabled_plugins()
    if package not in names:
        os.environ[VARIABLE] = ",".join((*names, package))


class Registry(Generic[T]):
    """The entries of one kind, by name, in the order in which they were registered.

    Args:
        kind: Plural, as in the entry-point group `killick.<kind>`.
        title: Singular, for error messages.
        package: Whose modules register Killick's own entries when they are imported.
    """

    def __init__(self, kind: str, title: str, package: str | None = None) -> None:
        self.kind, self.title = kind, title
        self._package = package
        self._entries: dict[str, T] = {}

    def register(self, name: str, entry: T) -> T:
        """Add an entry; a name can be taken only once."""
        if self._entries.setdefault(name, entry) is not entry:
            raise OptionError(f"the {self.title} {name!r} is registered already.")
        return entry

    def remove(self, name: str) -> None:
        """Forget an entry that was registered."""
        self._entries.pop(name, None)

    def find(self, name: str) -> T:
        """The entry with this name; an unknown name is an error that lists the known ones."""
        self._import_own()
        if name not in self._entries and name in (offered := self._offered()):
            self._load(offered[name])
        if name not in self._entries:
            check_option(f"the {self.title}", name, self.names())
        return self._entries[name]

    def names(self) -> tuple[str, ...]:
        """Of all entries, those of enabled packages last; packages are not imported for it."""
        self._import_own()
        enabled = [name for name, point in self._offered().items() if _is_enabled(point)]
        return tuple(dict.fromkeys([*self._entries, *enabled]))

    def items(self) -> Iterator[tuple[str, T]]:
        """All entries with their names."""
        return ((name, self.find(name)) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def _import_own(self) -> None:
        name, self._package = self._package, None  # modules may look up entries while they load
        if name is None:
            return
        try:
            package = importlib.import_module(name)
            for module in pkgutil.iter_modules(package.__path__, f"{name}."):
                importlib.import_module(module.name)
        except BaseException:
            self._package = name
            raise

    def _offered(self) -> dict[str, EntryPoint]:
        return _entry_points(self.kind, tuple(sys.path))

    def _load(self, point: EntryPoint) -> None:
        if not _is_enabled(point):
            raise OptionError(
                f"the {self.title} {point.name!r} comes from the package {_package_of(point)!r},"
                f" which is not enabled. If you trust it: {VARIABLE}={_package_of(point)} or"
                f" --plugin {_package_of(point)}."
            )
        found = point.load()  # the entry, or a module or function that registers it
        if not isinstance(found, ModuleType):
            self._entries.setdefault(point.name, found)


@lru_cache
def _entry_points(kind: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Those of installed packages; finding them reads a file of every package on the path."""
    return {point.name: point for point in entry_points(group=f"killick.{kind}")}


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]


def _packages_of(point: EntryPoint) -> set[str]:
    """The names by which its package may be called."""
    return {_package_of(point), point.module.partition(".")[0]}


def _is_enabled(point: EntryPoint) -> bool:
    return not _packages_of(point).isdisjoint(enabled_plugins())
