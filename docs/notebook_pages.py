"""Notebooks as pages of the site: Markdown, with the text, tables and figures that are in the file."""

import base64
import json
import re
from pathlib import Path
from typing import Any

Figures = dict[str, bytes]


def make_page(path: Path) -> tuple[str, Figures]:
    """The Markdown of a notebook, and its figures by file name."""
    figures: Figures = {}
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_show(output, path.stem, figures) for output in cell["outputs"]]
    link = f'<a href="{path.name}" download>Download this notebook</a>'
    return "\n\n".join([parts[0], link, *parts[1:]]) + "\n", figures


def _show(output: dict[str, Any], stem: str, figures: Figures) -> str:
    """One output of a cell."""
    if output["output_type"] == "stream":
        return _as_text(output["text"])
    data = output["data"]
    if "image/png" in data:
        name = f"{stem}-{len(figures) + 1}.png"
        figures[name] = base64.b64decode(data["image/png"])
        return f"![Figure made by the code above]({name})"
    table = re.search(r"<table.*</table>", "".join(data.get("text/html", "")), re.DOTALL)
    if table is None:
        return _as_text(data["text/plain"])
    return re.sub(r"<(table|tr)[^>]*>", r"<\1>", table[0])  # the looks are the site's


def _as_text(lines: list[str]) -> str:
    return f"```text\n{''.join(lines).rstrip()}\n```"
