"""Publishing a model: a folder as the Hugging Face hub takes it, and sending it there.

```
folder/
  README.md              the model card
  config.json            what the model is, with the digests of the next two
  model.safetensors      weights and references
  examples.safetensors   two pairs and the logits the model must give for them
  rows.csv               all results, if there are any
```
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from killick.core.anchored import Anchored
from killick.core.standard import Standard, model_in
from killick.deploy.model_card import MARK, make_card
from killick.errors import DataError, OptionError, StorageError
from killick.results.rows import Row, make_row, read_rows, write_rows
from killick.runtime.atomic_files import atomic_folder, check_replaceable
from killick.runtime.plain_files import read_text
from killick.storage.hub import explain, import_client, read_hub_name
from killick.storage.loading import FORMAT, PLAIN_NAMES, load
from killick.storage.saving import gather, write_files
from killick.storage.weights import digest_weights

CARD = "README.md"
FILES = frozenset({CARD, "rows.csv", "config.json", *PLAIN_NAMES.values()})
# A path from the root, from home or from a drive, at the start of a text or of what follows a
# colon or a space: its folders. Of an address, as in https://host/path, nothing is taken.
_FOLDERS = re.compile(r"(^|[\s:=])(?:~|(?=/\S)|[A-Za-z]:(?=[\\/]))(?!//)[^\n]*[\\/](?=[^\\/])")


@dataclass(frozen=True)
class Published:
    """What was written: how many rows it holds, and how many were of other weights."""

    folder: Path
    rows: int
    left_out: int


def publish(
    model: nn.Module | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    rows: Iterable[Row] | str | os.PathLike[str] | None = None,
    license: str | None = None,
    repo: str | None = None,
) -> Published:
    """Write a folder for a model hub: the model, its card and its results.

    Only rows of these weights and references are used. Absolute paths, in how the model was trained
    and in rows, are cut to their last part. The same model and rows give the same files, byte for
    byte.

    Args:
        model: Anchored or standard; or a folder of `killick.save`, or a run folder.
        folder: Written as a whole. One that was published before is replaced; any other that is not
            empty is refused.
        rows: Results: rows, a run folder or a file with them. By default those in the model's run
            folder, or else those that training left with the model.
        license: An identifier that the hub knows, such as "apache-2.0".
        repo: Where it will be on the hub, `owner/name`: for the title, and the code that loads it.

    Raises:
        StorageError: If it cannot be written, or does not load again; what was there stays.
    """
    folder = Path(os.path.realpath(folder))
    if license is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", license):
        raise OptionError(f"{license!r} is no license identifier such as apache-2.0 or cc-by-4.0.")
    if repo is not None and ((hub := read_hub_name(repo)) is None or hub.revision is not None):
        raise OptionError(f"expected a place on the hub such as owner/name, found {repo!r}.")
    check_replaceable(folder, _published_files(folder))
    loaded = model_in(model) if isinstance(model, nn.Module) else load(model)
    found = find_rows(loaded, None if isinstance(model, nn.Module) else model, rows)
    contents = gather(loaded)
    for key in ("provenance", "threshold"):
        contents.config[key] = without_folders(contents.config[key])
    weights = digest_weights(loaded)
    kept = [without_folders(row) for row in found if row["weights"] == weights]
    left_out = len(found) - len(kept)
    license = license and license.lower()
    card = make_card(loaded, contents, kept, left_out, license=license, repo=repo)
    with atomic_folder(folder) as beside:
        write_files(beside, contents, plain=True)
        (beside / CARD).write_text(card, encoding="utf-8", newline="\n")
        if kept:
            write_rows(beside, kept)
            (beside / "rows.jsonl").unlink()  # the same once more
        if contents.config["architecture"] is not None:
            load(beside)  # it must give its stored examples
    return Published(folder, len(kept), left_out)


def push(folder: Path, repo: str, *, private: bool = False) -> str:
    """Send a published folder to the hub, to `owner/name`, and return its address there.

    A repository is made if it is not there, `private` or not; one that is there stays as it is.
    """
    client = import_client(f"to push {repo}")
    try:
        api = client.HfApi(library_name="killick")
        api.create_repo(repo, repo_type="model", private=private, exist_ok=True)
        sent = api.upload_folder(
            repo_id=repo,
            repo_type="model",
            folder_path=str(folder),
            allow_patterns=sorted(FILES),
            delete_patterns=sorted(FILES),  # of these, what was there before and is not sent now
            commit_message="Publish with Killick",
        )
    except Exception as problem:  # of the client, of what it sends with, of the file system
        raise StorageError(
            f"cannot push to {repo}: {explain(problem)}. The folder is written: {folder}."
        ) from problem
    return str(sent)


def find_rows(
    model: Anchored | Standard,
    place: str | os.PathLike[str] | None,
    given: Iterable[Row] | str | os.PathLike[str] | None = None,
) -> list[Row]:
    """The rows that were given, else those at the model's `place`, else those stored in it."""
    if given is not None and not isinstance(given, str | os.PathLike):
        return [make_row(**row) for row in given]
    if given is not None:
        if found := read_rows(Path(given)):
            return found
        raise DataError(
            f"no rows.jsonl or rows.csv with rows in {Path(given)}. Evaluate the model first:"
            " killick evaluate."
        )
    if place is not None and os.path.isdir(place):
        folder = Path(place).absolute()
        found = read_rows(folder) or (read_rows(folder.parent) if folder.name == "model" else [])
        if found:
            return found
    try:
        return [make_row(**row) for row in model.provenance["rows"]]
    except (KeyError, TypeError, AssertionError):  # provenance may hold anything
        return []


def without_folders(value: Any) -> Any:
    """`value`, however deep, with the folders taken off every absolute path in its texts.

    Example:
        >>> without_folders({"data": {"name": "imagefolder:/home/me/pets"}, "epochs": 3})
        {'data': {'name': 'imagefolder:pets'}, 'epochs': 3}
    """
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    return _FOLDERS.sub(r"\1", value) if isinstance(value, str) else value


def _published_files(folder: Path) -> set[str]:
    """The files of a model that was published there, perhaps saved again since; else none."""
    try:
        config = json.loads(read_text(folder / "config.json"))
        card = read_text(folder / CARD)
        ours = config["format"] == FORMAT and MARK in card
        return {*FILES, *(str(config[key]) for key in PLAIN_NAMES)} if ours else set()
    except (ValueError, RecursionError, TypeError, KeyError):  # FileError is one
        return set()
