"""Writing a folder that a model hub takes as it is: whole, or not at all.

```
folder/
  README.md              the model card
  config.json            what the model is, with the digests of the next two
  model.safetensors      weights and references
  examples.safetensors   two pairs and the logits the model must give for them
  rows.csv               all that was measured, if anything was
```
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from killick.core.anchored import Anchored
from killick.core.standard import Standard, model_in
from killick.deploy.card_results import Evaluation, gather_evaluations
from killick.deploy.model_card import MARK, Subject, make_card
from killick.deploy.private_paths import without_folders
from killick.errors import DataError, OptionError, StorageError
from killick.results.rows import Row, make_row, read_rows, write_rows
from killick.runtime.atomic_files import atomic_folder
from killick.storage.hub import read_hub_name
from killick.storage.model_files import FORMAT, PLAIN_NAMES, Contents, write_plain
from killick.storage.model_folder import digest_weights, gather, load

CARD, ROWS = "README.md", "rows.csv"
FILES = frozenset({CARD, ROWS, "config.json", *PLAIN_NAMES.values()})
_log = logging.getLogger("killick")


@dataclass(frozen=True)
class Published:
    """What was written.

    Attributes:
        folder: Where.
        rows: How many rows the card tells of.
        left_out: How many were of other weights or other references.
    """

    folder: Path
    rows: int
    left_out: int


def publish(
    model: nn.Module | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    rows: Iterable[Row] | str | os.PathLike[str] | None = None,
    licence: str | None = None,
    repo: str | None = None,
) -> Published:
    """Write a folder for a model hub: the model, a card about it, and what was measured.

    The card is made from facts alone. Only rows of these very weights and references count; others
    are left out, and the card says so. Absolute paths, in how the model was trained and in rows,
    are cut to their last part. The same model and rows give the same files, byte for byte.

    Args:
        model: Anchored or standard; or a folder of `killick.save`, or a run folder.
        folder: Written as a whole. One that was published before is replaced; any other that is not
            empty is refused.
        rows: What was measured: rows, a run folder or a file with them. By default those in the
            model's run folder, or else those that training left with the model.
        licence: An identifier that the hub knows, such as "apache-2.0".
        repo: Where it will be on the hub, `owner/name`: for the title, and the code that loads it.

    Raises:
        StorageError: If it cannot be written, or does not load again; what was there stays.
    """
    licence, repo = _check_licence(licence), _check_repo(repo)
    folder = Path(os.path.realpath(folder))
    _check_replaceable(folder)
    loaded = model_in(model) if isinstance(model, nn.Module) else load(model)
    found = find_rows(loaded, None if isinstance(model, nn.Module) else model, rows)
    contents = _without_folders(gather(loaded))
    weights = digest_weights(loaded)
    kept = [row for row in found if row["weights"] == weights]
    left_out = len(found) - len(kept)
    if left_out:
        _log.warning(
            "%d of %d rows are of other weights or other references: the card leaves them out.%s",
            left_out,
            len(found),
            "" if kept else " It says: not evaluated.",
        )
    kept = [make_row(**without_folders(row)) for row in kept]
    outputs = contents.examples["logits"].shape[-1]
    card = make_card(
        Subject(
            loaded,
            {**contents.config, "outputs": outputs},
            _name(repo, kept, contents),
            repo,
            licence,
            weights,
            _gather_evaluations(kept),
            left_out,
        )
    )
    _write(folder, contents, card, kept, weights)
    return Published(folder, len(kept), left_out)


def _check_licence(licence: str | None) -> str | None:
    if licence is None:
        return None
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", licence.lower()):
        raise OptionError(
            "expected a licence by its identifier, such as apache-2.0, mit or cc-by-4.0, found"
            f" {licence!r}."
        )
    return licence.lower()


def _check_repo(repo: str | None) -> str | None:
    if repo is None:
        return None
    found = read_hub_name(repo)
    if found is None or found.revision is not None:
        raise OptionError(f"expected a place on the hub such as owner/name, found {repo!r}.")
    return found.repo


def _check_replaceable(folder: Path) -> None:
    """Refuse a folder that holds anything but what was published there before."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError(f"cannot write {folder}: expected a folder, found a file.")
    names = {path.name for path in folder.iterdir()}
    ours = _published_files(folder)
    foreign = sorted(names - FILES - ours)
    if not foreign and (not names or ours):
        return
    found = foreign[0] if foreign else "files of something else"
    raise StorageError(
        f"cannot write {folder}: expected no such folder, an empty one or one written by killick"
        f" publish, found {found} in it. Choose another folder."
    )


def _published_files(folder: Path) -> set[str]:
    """The data files of a model that was published there, perhaps saved again since; else none.

    A card that somebody wrote has no such last line, and is not replaced.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        card = (folder / CARD).read_text(encoding="utf-8")
        ours = config["format"] == FORMAT and MARK in card
        return {str(config[key]) for key in PLAIN_NAMES} if ours else set()
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return set()


def find_rows(
    model: Anchored | Standard,
    place: str | os.PathLike[str] | None,
    given: Iterable[Row] | str | os.PathLike[str] | None = None,
) -> list[Row]:
    """The rows that were given; or those beside the model; or those that training left in it.

    Args:
        model: That they are about.
        place: Where it was loaded from, if it was.
        given: Rows, or a folder or file with them.
    """
    if isinstance(given, str | os.PathLike):
        found = read_rows(Path(given))
        if not found:
            raise DataError(
                f"expected rows.jsonl or rows.csv with rows in {Path(given)}, found none. Evaluate"
                " the model first: killick evaluate."
            )
        return found
    if given is not None:
        return [make_row(**row) for row in given]
    folder = None if place is None else Path(place).absolute()
    if folder is not None and folder.is_dir():
        for each in [folder, folder.parent] if folder.name == "model" else [folder]:
            if found := read_rows(each):
                return found
    kept = model.provenance.get("rows")
    try:
        return [make_row(**row) for row in kept] if isinstance(kept, list) else []
    except (TypeError, AssertionError):  # provenance is anybody's
        return []


def _gather_evaluations(rows: list[Row]) -> list[Evaluation]:
    try:
        return gather_evaluations(rows)
    except (ValueError, TypeError) as problem:
        raise DataError(
            "expected rows as killick evaluate writes them, found some that cannot be read:"
            f" {problem}. Evaluate the model again."
        ) from problem


def _without_folders(contents: Contents) -> Contents:
    """The same, with absolute paths cut to their last part where people write them down."""
    config = dict(contents.config)
    for key in ("provenance", "threshold"):
        config[key] = without_folders(config[key])
    return Contents(config, contents.weights, contents.examples)


def _name(repo: str | None, rows: Sequence[Row], contents: Contents) -> str:
    """What the card calls the model. Not by the folder: the same model gives the same card."""
    if repo is not None:
        return repo.partition("/")[2]
    if rows and rows[0]["model"]:
        return str(rows[0]["model"])
    made = contents.config["architecture"]
    return "A model" if made is None else str(made["name"])


def _write(folder: Path, contents: Contents, card: str, rows: list[Row], weights: str) -> None:
    """All files beside `folder` first, loaded again as a check; then in its place."""
    try:
        with atomic_folder(folder) as beside:
            write_plain(beside, contents)
            (beside / CARD).write_text(card, encoding="utf-8", newline="\n")
            if rows:
                write_rows(beside, rows)
                (beside / "rows.jsonl").unlink()  # the same once more
            if contents.config["architecture"] is not None:
                _check_again(beside, weights)
    except OSError as problem:
        raise StorageError(
            f"cannot write {folder}: {problem.strerror or problem}. What was there before is as it"
            " was. Make room there, or choose another folder."
        ) from problem


def _check_again(folder: Path, weights: str) -> None:
    found = digest_weights(load(folder))
    if found != weights:
        raise StorageError(
            f"expected the model that was written to be the same when loaded, found weights {found}"
            f" instead of {weights}. This is a mistake in Killick."
        )
