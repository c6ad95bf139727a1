"""The sections of a report: one module each, with one registered entry, as in CONTRIBUTING.md.

The page shows them in their order, and their figures and tables are saved beside the page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from killick.registry import Registry
from killick.report.figures import Figure
from killick.report.report_data import ReportData as ReportData
from killick.report.tables import TextTable


@dataclass(frozen=True)
class Content:
    """What a section shows, in this order; a section without content is left out."""

    figures: tuple[Figure, ...] = ()  # their names and those of tables begin with the section's key
    tables: tuple[TextTable, ...] = ()
    notes: tuple[str, ...] = ()  # one line each
    html: Markup = Markup()  # as `render` makes it
    missing: str = ""  # why there is nothing to show, and how to get it


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    key: str  # its anchor on the page
    title: str  # its heading
    order: int  # sections are sorted by it; below 0 they come before the table of arms
    make: Callable[[ReportData], Content]  # what it shows of a comparison


SECTIONS: Registry[Section] = Registry(
    "report_sections", "report section", package="killick.report.sections"
)


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parents[1]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render(template: str, **values: Any) -> Markup:
    """HTML from a Jinja template; values are escaped."""
    return Markup(ENVIRONMENT.from_string(template).render(values))
