"""Attention of transformers: distance by layer, distance against entropy, and attention maps."""

import io
import statistics
from typing import Any

import numpy as np
from PIL import Image

from killick.report import figures
from killick.report.figures import Figure, Panel
from killick.report.formatting import image_uri
from killick.report.head_values import SUMMARY, RunHeads, mean_text, read_heads, summary_cells
from killick.report.run_groups import ArmRuns, seed_of
from killick.report.sections import SECTIONS, Content, ReportData, Section, render
from killick.report.tables import TextTable
from killick.results.attention_files import AttentionMaps, read_maps
from killick.results.run_folder import Run

KEY = "attention"
_HOW = {
    "count": "images",
    "grid": "patches",
    "windows": "windows",
    "normalizer": "normalizer",
    "prefix": "prefix tokens",
}
_MOST_JITTER = 0.3  # of a layer, so that dots do not hide each other
_TEMPLATE = """
{% for arm, lines in arms.items() %}
<h3>{{ arm }}</h3>
<table>
{% for head, cells in lines %}
<tr><th scope="row">{{ head }}</th>
{% for uri in cells %}
<td><img src="{{ uri }}" width="64" height="64" class="pixels" alt="{{ head }}"></td>
{% endfor %}
</tr>
{% endfor %}
</table>
{% endfor %}
"""
Found = dict[str, dict[int, RunHeads]]  # by arm and seed


def make(data: ReportData) -> Content:
    """Figures, a table and maps; nothing if attention was not measured."""
    found: Found = {}
    for arm in data.comparison.arms:
        by_seed = {seed_of(run): heads for run in arm.runs if (heads := read_heads(run))}
        if by_seed:
            found[arm.name] = by_seed
    if not found:
        return Content()
    records = tuple(
        (arm, seed, *head)
        for arm, by_seed in found.items()
        for seed, run in by_seed.items()
        for head in run.heads
    )
    measures = ("distance", "entropy", "diagonal mass", "prefix mass", "spread over references")
    columns = ("arm", "seed", "layer", "head", *measures)
    layers = [
        _draw_layers(data, arm, f"{KEY}-layers-{number}", found[arm])
        for number, arm in enumerate(found)
    ]
    by_layer = Figure(f"{KEY}-layers", "A dot is a head.", tuple(layers), columns, records)
    against = Figure(
        f"{KEY}-entropy", "A dot is a head.", (_draw_entropy(data, found),), columns, records
    )
    maps = {arm.name: lines for arm in data.comparison.arms if (lines := _map_lines(arm))}
    note = "Maps: where the middle patch looks, in the most local, the median and the least local head."
    return Content(
        (by_layer, against),
        (_table(found),),
        notes=(note,) if maps else (),
        html=render(_TEMPLATE, arms=maps),
    )


def _draw_layers(data: ReportData, arm: str, file: str, by_seed: dict[int, RunHeads]) -> Panel:
    canvas, axes = figures.new_chart(figures.shorten(arm), "distance of each head, by layer")
    for run in by_seed.values():
        count = 1 + max(head.head for head in run.heads)
        places = [h.layer + _MOST_JITTER * (2 * (h.head + 0.5) / count - 1) for h in run.heads]
        _dots(axes, places, [head.distance for head in run.heads], data, arm)
    axes.set(xlabel="layer", ylim=(0, _room(by_seed)))
    axes.locator_params(axis="x", integer=True)
    return figures.finish(canvas, file, f"Attention distance of {arm}", "By layer, a dot per head.")


def _draw_entropy(data: ReportData, found: Found) -> Panel:
    canvas, axes = figures.new_chart("Distance against entropy", "each head")
    for arm, by_seed in found.items():
        heads = [head for run in by_seed.values() for head in run.heads]
        values = [head.distance for head in heads], [head.entropy for head in heads]
        _dots(axes, *values, data, arm, label=arm)
    axes.set(xlabel="distance", ylim=(0, 1.05))
    axes.set_xlim(0, max(_room(by_seed) for by_seed in found.values()))
    return figures.finish(canvas, f"{KEY}-entropy-0", "Distance against entropy", "A dot per head.")


def _room(by_seed: dict[int, RunHeads]) -> float:
    """Where an axis of distances ends."""
    return 1.08 * max(head.distance for run in by_seed.values() for head in run.heads)


def _dots(
    axes: Any, x: list[float], y: list[float], data: ReportData, arm: str, **more: Any
) -> None:
    style = data.styles[arm]
    axes.plot(x, y, linestyle="", marker=style.marker, color=style.color, markersize=3, **more)


def _table(found: Found) -> TextTable:
    rows = []
    for arm, by_seed in found.items():
        runs = list(by_seed.values())
        measures = {
            name: [run.measures[name] for run in runs if name in run.measures]
            for name in (*SUMMARY, "heads", "change")
        }
        norms = [
            max(run.layers["norm_max"]) / statistics.fmean(run.layers["norm_mean"])
            for run in runs
            if run.layers.get("norm_mean")
        ]
        changes = measures["change"]
        rows.append(
            {
                "arm": arm,
                **summary_cells(measures),
                "change by doubling images": f"{max(changes):.4f}" if changes else "–",
                "largest token norm / mean": mean_text(norms, 1),
                **{title: runs[0].about[name] for name, title in _HOW.items()},
            }
        )
    cells = tuple(tuple(row.values()) for row in rows)
    return TextTable(f"{KEY}-heads", "Attention over all heads and layers", tuple(rows[0]), cells)


def _map_lines(arm: ArmRuns) -> list[tuple[str, list[str]]]:
    """The images and the maps of each head, of the first run that has them."""
    found = next((maps for run in arm.runs for maps in _maps_of(run)), None)
    if found is None:
        return []
    lines = [("image", [image_uri(image) for image in found.images])]
    for each in found.maps:
        maps = [image_uri(_draw_map(weights, each.query)) for weights in each.weights]
        lines.append((f"layer {each.layer}, head {each.head}", maps))
    return lines


def _maps_of(run: Run) -> list[AttentionMaps]:
    """Those of the weights that its rows are about."""
    known = {(str(row["model"]), str(row["weights"])) for row in run.rows}
    return [each for each in read_maps(run.folder) if (each.model, each.weights) in known]


def _draw_map(weights: Any, query: tuple[int, int]) -> bytes:
    """Weights from black (none) to white (the largest), the patch that looks framed in orange."""
    gray = np.round(255 * weights / max(float(weights.max()), 1e-30)).astype(np.uint8)
    image = np.repeat(np.repeat(gray, 4, 0), 4, 1)[..., None].repeat(3, 2)
    top, left = 4 * query[0], 4 * query[1]
    frame = image[top : top + 4, left : left + 4]
    inner = frame[1:3, 1:3].copy()
    frame[:] = (234, 148, 64)
    frame[1:3, 1:3] = inner
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


SECTIONS.register(KEY, Section(KEY, "Attention", 46, make))
