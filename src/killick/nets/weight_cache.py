"""Files of pretrained weights: from the usual caches, else fetched into them.

Those of the Hugging Face hub are in its cache, those with an address of their own in torch's.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import safetensors.torch
import torch
from torch import Tensor

from killick.errors import StorageError, one_line
from killick.runtime.hub import HubName, explain, import_client


def find_hub_files(
    name: HubName, patterns: Sequence[str], is_complete: Callable[[Path], bool]
) -> Path:
    """The folder with these files of a hub model: cached, if it is complete, or fetched."""
    client = import_client(f"to fetch {name}")
    options = {"revision": name.revision, "allow_patterns": list(patterns)}
    try:
        folder = Path(client.snapshot_download(name.repo, local_files_only=True, **options))
        if is_complete(folder):
            return folder
    except Exception:  # not in the cache; whatever else is wrong is seen below
        folder = None
    try:
        folder = Path(client.snapshot_download(name.repo, library_name="killick", **options))
        reason = "" if is_complete(folder) else f"it has no {' or '.join(patterns)}"
    except Exception as problem:  # of the client, of what it fetches with, of the file system
        folder, reason = None, explain(problem)
    if folder is None or reason:
        raise StorageError(
            f"cannot find {name} in the cache of the Hugging Face hub, and cannot fetch it:"
            f" {reason}. Fetch it where there is a network, into {client.constants.HF_HUB_CACHE}:"
            f" {hub_command(name, patterns)}"
        )
    return folder


def hub_command(name: HubName, patterns: Sequence[str]) -> str:
    """The command that fetches files of a hub model."""
    revision = [] if name.revision is None else ["--revision", name.revision]
    included = [word for each in patterns for word in ("--include", each)]
    return shlex.join(["hf", "download", name.repo, *included, *revision])


def find_url_file(url: str) -> Path:
    """The file of an address: in torch's cache, or fetched there."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    if path.is_file():
        return path
    found = torch.hub.HASH_REGEX.search(path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(
            url, str(path), found and found[1], progress=sys.stderr.isatty()
        )
    except Exception as problem:  # of the network, or of the file system
        raise StorageError(
            f"cannot find {path}, and cannot fetch it: {one_line(problem)}. Fetch it where there is"
            f" a network: {url_command(url, path)}"
        ) from problem
    return path


def url_command(url: str, path: Path) -> str:
    """The command that fetches a file."""
    return shlex.join(["curl", "--create-dirs", "-Lo", str(path), url])


def read_cached(path: Path, command: str) -> dict[str, Tensor]:
    """The weights in a file of a cache; nothing in it can run code. `command` fetches it again."""
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # whatever half a file makes its readers raise
        raise damaged(path, problem, command) from None
    return dict(found.get("state_dict", found))


def damaged(path: Path, problem: BaseException, command: str) -> StorageError:
    """The error about a file in a cache that cannot be read."""
    place = path.resolve()  # the hub's cache has links; the file behind them must go
    return StorageError(
        f"{place} is truncated or damaged ({one_line(problem)}). Delete it, and fetch it again:"
        f" {command}"
    )
