"""The HTML of the page: what the models predict, side by side, and the figures of their runs."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2
from PIL import Image
from torch import Tensor

from killick.errors import KillickError
from killick.play.playground import ModelResult
from killick.report.figures import drawing, to_file
from killick.report.formatting import data_uri
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS
from killick.results.run_folder import find_runs


def render_results(results: Sequence[ModelResult]) -> str:
    """A panel for each model."""
    return _ENVIRONMENT.get_template("panels.html").render(results=results)


def render_figures(places: Iterable[str]) -> str:
    """The figures of a report about runs; a line that says why, where there are none."""
    sections, problem = [], ""
    try:
        data = make_report_data(find_runs(map(Path, places)))
        with drawing():
            for _, section in sorted(SECTIONS.items(), key=lambda item: item[1].order):
                if figures := section.make(data).figures:
                    sections.append((section.title, figures))
    except KillickError as reason:
        problem = str(reason)
    return _ENVIRONMENT.get_template("figures.html").render(sections=sections, problem=problem)


def png(image: Tensor) -> str:
    """The address of an image, uint8 `(3, height, width)`, with the image in it."""
    file = io.BytesIO()
    Image.fromarray(image.cpu().permute(1, 2, 0).numpy()).save(file, "PNG", compress_level=1)
    return data_uri("image/png", file.getvalue())


def heat(attention: Tensor, image: Tensor) -> str:
    """The address of an image, dark where the attention is low."""
    return png((image.float() * (0.15 + 0.85 * attention)).byte())


def gauge_place(result: ModelResult) -> float:
    """Where the energy is on a gauge whose middle is the threshold, in percent.

    The ends are twice as far from the threshold as that is from 0, at least 1.
    """
    assert result.threshold is not None
    assert result.record.energy is not None
    middle = result.threshold.energy
    offset = (result.record.energy - middle) / max(1, 2 * abs(middle))
    return 50 + 50 * min(1, max(-1, offset))


def _svg(drawn: str) -> str:
    return data_uri("image/svg+xml", to_file(drawn).encode())


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_ENVIRONMENT.filters.update(png=png, heat=heat, place=gauge_place, svg=_svg)
