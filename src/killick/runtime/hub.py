"""Models on the Hugging Face hub: their names, downloading them, and its errors.

The client, `huggingface_hub`, is optional and imported when a name is asked for. What it raises is
known by the names of its classes, which have stayed while the module they are in has moved.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killick.errors import StorageError, import_library, one_line

_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@(\S+))?", re.ASCII)
# The first that fits: some of these classes are kinds of others further down.
_REASONS = {
    "GatedRepoError": "its owner has to let you in. Ask there, then log in: hf auth login",
    "RevisionNotFoundError": "it has no such branch, tag or commit",
    "RepositoryNotFoundError": "there is no such model, or it is private. Check the name, or log in:"
    " hf auth login",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and it was not fetched before",
    "LocalEntryNotFoundError": "the hub cannot be reached, and it was not fetched before",
    "LocalTokenNotFoundError": "not logged in. Log in: hf auth login",
}


@dataclass(frozen=True)
class HubName:
    """A model on the hub, and a branch, tag or commit of it; None is the newest."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def read_hub_name(given: str | os.PathLike[str], revision: str | None = None) -> HubName | None:
    """What `given` is on the hub: `owner/name` or `owner/name@revision`; None if it is no name.

    Example:
        >>> read_hub_name("owner/name@v1")
        HubName(repo='owner/name', revision='v1')
        >>> read_hub_name("/home/me/owner/name") is None
        True
    """
    found = _NAME.fullmatch(given if isinstance(given, str) else Path(given).as_posix())
    if found is None or "--" in found[1] or ".." in found[1]:
        return None
    return HubName(found[1], revision or found[2])


def fetch(name: HubName, files: Sequence[str]) -> Path:
    """The folder that these files of a model are in, once they are fetched, and no others."""
    client = import_client(f"loading {name}, which is no folder here,")
    try:
        folder = client.snapshot_download(
            name.repo, revision=name.revision, allow_patterns=list(files), library_name="killick"
        )
    except Exception as problem:  # of the client, of what it fetches with, of the file system
        raise StorageError(
            f"cannot load {name}: expected a folder written by killick.save, found no such folder."
            f" The Hugging Face hub was asked too: {explain(problem)}."
        ) from problem
    return Path(folder)


def import_client(purpose: str) -> Any:
    """The client's module; `purpose` is for the error, such as "loading owner/name"."""
    return import_library("huggingface_hub", "hub", purpose)


def explain(problem: BaseException) -> str:
    """Why the hub did not do what was asked, in a line without a full stop, with the way out."""
    each: BaseException | None = problem
    kinds: set[str] = set()
    while each is not None:  # what it was raised from is often more precise
        kinds |= {kind.__name__ for kind in type(each).__mro__}
        each = each.__cause__
    return next((_REASONS[kind] for kind in _REASONS if kind in kinds), one_line(problem))
