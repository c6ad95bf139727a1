"""Paths of the machine a model was trained on, which are nobody's business elsewhere."""

import re
from typing import Any

# A path from the root, from home or from a drive, at the start of a text or of what follows a
# colon or a space: its folders. Of an address, as in https://host/path, nothing is taken.
_FOLDERS = re.compile(r"(^|[\s:=])(?:~|(?=/\S)|[A-Za-z]:(?=[\\/]))(?!//)[^\n]*[\\/](?=[^\\/])")


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
