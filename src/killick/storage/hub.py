"""Models by their name on the Hugging Face hub: what a name looks like, fetching, what goes wrong.

The client, `huggingface_hub`, is optional and imported when a name is asked for. What it raises is
known by the names of its classes, which have stayed while the module they are in has moved.
"""

import importlib
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killick.errors import InstallError, OptionError, StorageError

_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@(\S+))?", re.ASCII)
# The first that fits: some of these classes are kinds of others further down.
_REASONS = (
    ("GatedRepoError", "its owner has to let you in. Ask there, then log in: hf auth login"),
    (
        "RevisionNotFoundError",
        "there is no such revision of it. Name a branch, a tag or a commit that is there",
    ),
    (
        "RepositoryNotFoundError",
        "there is no such model, or it is private. Check the name, or log in: hf auth login",
    ),
    ("DisabledRepoError", "it was disabled there"),
    (
        "OfflineModeIsEnabled",
        "the client is offline (HF_HUB_OFFLINE), and it was not fetched before. Unset that once",
    ),
    (
        "LocalEntryNotFoundError",
        "the hub could not be reached, and it was not fetched before. Check the connection",
    ),
    ("LocalTokenNotFoundError", "nobody is logged in. Log in: hf auth login"),
    ("HFValidationError", "the hub knows no such names. It is called OWNER/NAME"),
)
_STATUSES = {
    401: "the hub does not know who you are. Log in: hf auth login",
    403: "you may not. Log in as someone who may: hf auth login",
}


@dataclass(frozen=True)
class HubName:
    """A model on the hub.

    Attributes:
        repo: Such as `owner/name`.
        revision: A branch, tag or commit; None for the newest.
    """

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
    if revision is not None and found[2] not in (None, revision):
        raise OptionError(
            f"expected one revision of {found[1]}, found {found[2]!r} in its name and"
            f" revision={revision!r}."
        )
    return HubName(found[1], revision or found[2])


def fetch(name: HubName, files: Sequence[str]) -> Path:
    """The folder that these files of a model are in, once they are fetched.

    Args:
        name: Of the model.
        files: Names of those wanted. Nothing else is fetched: no code, no pickles.

    Raises:
        InstallError: If the client is not installed.
        StorageError: If there is no such model, nobody may have it, or there is no connection.
    """
    client = import_client(f"to load {name}, which is no folder here")
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
    """The client's module.

    Args:
        purpose: What it is needed for, such as "to load owner/name".
    """
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as problem:
        raise InstallError(
            f"expected the client of the Hugging Face hub {purpose}, but it is not installed."
            " Install it: pip install 'killick[hub]'."
        ) from problem


def explain(problem: BaseException) -> str:
    """Why the hub did not do what was asked, in a line without a full stop, with the way out."""
    kinds = {kind.__name__ for each in _chain(problem) for kind in type(each).__mro__}
    for kind, reason in _REASONS:
        if kind in kinds:
            return reason
    status = getattr(getattr(problem, "response", None), "status_code", None)
    if status in _STATUSES:
        return _STATUSES[status]
    said = " ".join((str(problem) or type(problem).__name__).split())
    return textwrap.shorten(said, 200, placeholder=" …").rstrip(". ")


def _chain(problem: BaseException) -> list[BaseException]:
    """A problem and those that it was raised from."""
    found: list[BaseException] = []
    each: BaseException | None = problem
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__
    return found
