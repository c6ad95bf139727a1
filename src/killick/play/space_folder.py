"""A folder that runs as a Hugging Face Space: the page, with a model in it.

```
folder/
  README.md          the card, with what the hub reads
  app.py             runs the page
  requirements.txt   the libraries that Killick needs
  killick-*.whl      Killick itself
  models/NAME/       the model, as `killick publish` writes it
```
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.deploy.model_card import MARK, text
from killick.deploy.publisher import CARD, Published, publish
from killick.errors import FileError, OptionError
from killick.nets.custom import LIBRARIES
from killick.play import space_app
from killick.play.own_wheel import find_requirements, write_wheel
from killick.results.rows import Row
from killick.runtime.atomic_files import atomic_folder, check_replaceable
from killick.runtime.plain_files import read_text
from killick.storage.saving import note_on_references

GRADIO = "6.31.0"  # the version that the hub installs
PYTHON = "3.12"  # the hub's own default is older than Killick needs

_CARD = """\
---
{front}---

# {title}

Corrupt an image and see what the model predicts: [models/{name}](models/{name}/README.md).

- Run it here: `pip install -r requirements.txt`, then `python app.py`.
- Send it to the hub: `hf upload OWNER/NAME . --repo-type space`.
- Visitors pick from the test images of the model if its data are built into Killick; else put some into a
  folder `images/` beside `app.py`. They will be public.

{privacy}

{mark}.
"""


def write_space(
    model: Anchored | Standard,
    folder: str | os.PathLike[str],
    name: str,
    *,
    rows: Iterable[Row],
    license: str | None = None,
) -> Published:
    """Write the folder, with the model called `name`; one written before is replaced."""
    folder = Path(os.path.realpath(folder))
    check_replaceable(folder, _own_files(folder))
    front = {
        "title": name,
        "sdk": "gradio",
        "sdk_version": GRADIO,
        "python_version": PYTHON,
        "app_file": "app.py",
        "pinned": False,
        **({"license": license.lower()} if license else {}),
    }
    privacy = note_on_references(model)
    with atomic_folder(folder) as beside:
        place = beside / "models" / name
        published = publish(model, place, rows=rows, license=license)
        extras = _extras(json.loads(read_text(place / "config.json"))["architecture"])
        shutil.copyfile(space_app.__file__, beside / "app.py")
        requirements = "".join(f"{line}\n" for line in find_requirements(*extras))
        (beside / "requirements.txt").write_text(requirements, encoding="utf-8")
        write_wheel(beside)
        header = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
        card = _CARD.format(front=header, title=text(name), name=name, privacy=privacy, mark=MARK)
        (beside / CARD).write_text(card, encoding="utf-8", newline="\n")
    return replace(published, folder=folder)


def _extras(architecture: dict[str, Any] | None) -> list[str]:
    """The extras of Killick that the page and the network need."""
    library = str((architecture or {}).get("name")).partition(":")[0]
    if library not in LIBRARIES:
        raise OptionError(
            "a Space cannot make the network of this model, which is your own code. Publish it"
            " without --space."
        )
    return ["play", "transformers"] if library == "hf" else ["play"]


def _own_files(folder: Path) -> set[str]:
    """The files of a Space that was written there; else none."""
    try:
        ours = MARK in read_text(folder / CARD) and (folder / "models").is_dir()
    except FileError:
        return set()
    wheels = {path.name for path in folder.glob("killick-*.whl")}
    return {CARD, "app.py", "requirements.txt", "models", *wheels} if ours else set()
