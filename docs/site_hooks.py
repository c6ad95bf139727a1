"""What happens to a page when the site is built.

- `![text](images/NAME.svg)` alone on a line is drawn into the page, if its colors can follow it.
- A link to a file of the repository outside `docs/` leads to a copy of it inside the site.
- Notebooks become pages, and links to them lead there.
"""

import os
import re
import sys
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from notebook_pages import make_page  # noqa: E402

ROOT = Path(__file__).parent.parent
_FIGURE = re.compile(r"^!\[([^\]]*)\]\(((?:\.\./)*images/[\w-]+\.svg)\)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, with a page for each notebook."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        text, figures = make_page(Path(file.abs_src_path or ""))
        place = Path(file.src_uri)
        files.append(File.generated(config, place.with_suffix(".md").as_posix(), content=text))
        for name, data in figures.items():
            files.append(File.generated(config, (place.parent / name).as_posix(), content=data))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its figures, and links into the site."""
    where = Path(config.docs_dir, page.file.src_uri).parent
    text = _FIGURE.sub(lambda found: _draw(found, where), markdown)
    return _LINK.sub(lambda found: _lead_into_site(found, where, page, config, files), text)


def _draw(found: re.Match[str], where: Path) -> str:
    """An SVG file as a part of the page, if it takes its colours from there."""
    text = (where / found[2]).read_text(encoding="utf-8")
    if "--drawing-ink" not in text:
        return found[0]  # has colours of its own
    text = re.sub(r"<\?xml.*?\?>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*", "\n", text).strip()  # Markdown takes indented lines for code
    return f'<figure class="drawing" aria-label="{escape(found[1])}">\n{text}\n</figure>'


def _lead_into_site(
    found: re.Match[str], where: Path, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """A link, as it is or to the copy of a file that lies outside `docs/`."""
    if found[1].endswith(".ipynb"):
        return f"]({found[1].removesuffix('.ipynb')}.md{found[2] or ''})"
    target = (where / found[1]).resolve()
    outside = target.is_relative_to(ROOT) and not target.is_relative_to(config.docs_dir)
    if not outside or not target.is_file():
        return found[0]  # the site's own, or missing: which the build tells
    inside = f"files/{target.relative_to(ROOT).as_posix()}"
    if files.get_file_from_path(inside) is None:
        files.append(File.generated(config, inside, abs_src_path=str(target)))
    start = Path(page.file.src_uri).parent.as_posix()
    return f"]({os.path.relpath(inside, start)}{found[2] or ''})"
