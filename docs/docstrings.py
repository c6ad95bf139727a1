"""For mkdocstrings: an `Example:` of a docstring is shown as the code that it is."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Griffe knows the section under the name `Examples:` alone."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Called for each object that was found."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
