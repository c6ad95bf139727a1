"""Data sources: a name, such as `shapes` or `imagefolder:PATH`, to its training and test sets.

One module for each source; `killick list data` lists them. To add one, register a `DataSource` in a
module of this folder, or let an entry point `killick.data_sources` of another package name it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from killick.data.data_settings import full_name
from killick.data.image_set import ImageSet, Sets
from killick.errors import DataError, OptionError, suggest
from killick.registry import Registry


@dataclass(frozen=True)
class LoadOptions:
    """What a source may make use of; see `load_sets`."""

    root: str | None = None
    download: bool = False
    test_only: bool = False

    @property
    def folder(self) -> Path:
        """Where downloaded data are."""
        root = self.root or os.environ.get("KILLICK_DATA") or "data"
        return Path(os.path.abspath(os.path.expanduser(root)))


@dataclass(frozen=True)
class DataSource:
    """A kind of data, by name."""

    name: str  # what comes before the colon
    # called with what comes after the colon, and the options
    load: Callable[[str, LoadOptions], Sets]
    description: str  # one line for lists
    argument: str = ""  # what comes after the colon, such as "PATH"; "" for nothing

    @property
    def written(self) -> str:
        """How a user writes it."""
        return f"{self.name}:{self.argument}" if self.argument else self.name


DATA_SOURCES: Registry[DataSource] = Registry("data_sources", "data source", __name__)
GIVEN = "given:"  # what the name of data given in Python begins with
_given: ContextVar[dict[str, Sets]] = ContextVar("given", default={})  # noqa: B039
_loaded: ContextVar[dict[tuple[str, LoadOptions], Sets] | None] = ContextVar("loaded", default=None)


def load_sets(
    name: str, *, root: str | None = None, download: bool = False, test_only: bool = False
) -> Sets:
    """The training and test sets of a name.

    Args:
        name: As `killick list data` shows them, or a path; see `full_name`.
        root: Where downloaded data are; `$KILLICK_DATA` or `./data` if None.
        download: Whether to download what is missing.
        test_only: The training set is not needed, and may be left out if it takes long to read.
    """
    if name.startswith(GIVEN):
        return _find_given(name)
    name = full_name(name)
    kind, colon, argument = name.partition(":")
    if not colon and os.sep in name:
        raise DataError(f"no such folder or file: {os.path.abspath(os.path.expanduser(name))}.")
    if kind not in DATA_SOURCES:
        raise DataError(
            f"no folder and no data source {name!r}{suggest(kind, DATA_SOURCES.names())}."
            " killick list data shows the sources."
        )
    source = DATA_SOURCES.find(kind)
    if bool(source.argument) != bool(argument) or (colon and not source.argument):
        raise OptionError(f"write {kind} as '{source.written}', found {name!r}.")
    loaded = _loaded.get()
    loaded = {} if loaded is None else loaded
    whole = LoadOptions(root, download)
    options = LoadOptions(root, download, test_only)
    if (name, whole) not in loaded and (name, options) not in loaded:
        loaded[name, options] = source.load(argument, options)
    return loaded.get((name, whole)) or loaded[name, options]


def split_options(argument: str, known: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """What comes before `#`, and the options after it, such as `split=test,streaming`.

    Example:
        >>> split_options("beans#split=test,streaming", ("split", "streaming"))
        ('beans', {'split': 'test', 'streaming': ''})
    """
    place, mark, rest = argument.rpartition("#")
    if not mark:
        return argument, {}
    options = dict(part.partition("=")[::2] for part in rest.split(","))
    unknown = [name for name in options if name not in known]
    if unknown:
        raise OptionError(
            f"unknown option {unknown[0]!r} in {argument!r}; known are {', '.join(known)}."
        )
    return place, options


@contextmanager
def given_sets(name: str, sets: Sets) -> Iterator[str]:
    """Within this block, `load_sets` knows these sets by the name that is yielded."""
    token = _given.set({GIVEN + name: sets})
    try:
        yield GIVEN + name
    finally:
        _given.reset(token)


def is_there(name: str) -> bool:
    """Whether data can be loaded by this name: not if they were given in Python, elsewhere."""
    return not name.startswith(GIVEN) or name in _given.get()


def _find_given(name: str) -> Sets:
    known = _given.get()
    if name not in known:
        found = f"other data, {min(known)}" if known else "none here"
        raise DataError(
            f"{name} are data that were given in Python, found {found}. Give them again:"
            " killick.train(network, data, folder, resume=True), killick.evaluate(model, data)."
        )
    return known[name]


@contextmanager
def read_once() -> Iterator[None]:
    """Within this block, data that are named several times are loaded once."""
    token = _loaded.set({} if _loaded.get() is None else _loaded.get())
    try:
        yield
    finally:
        _loaded.reset(token)


def load_whole(name: str, *, root: str | None = None) -> ImageSet:
    """One set to evaluate on: the test set of a name; all images if it has no split of its own."""
    sets = load_sets(name, root=root, test_only=True)
    found = sets.whole or sets.test or sets.train
    assert found is not None
    return found
