"""Measures of some arms as points: one for each seed, their mean, and a bar for their spread."""

import statistics
from collections.abc import Mapping, Sequence

from killick.report.figures import Figure, Panel, drawing, finish, new_canvas, put_axes, put_heading
from killick.studies.drawing import find_measure, mean_and_spread
from killick.studies.results import Results

_LINE = 22  # px of height for each arm
_NAMES = 150  # px of width for their names


def draw_points(
    results: Results, arms: Mapping[str, str], measures: Sequence[str], *, name: str, says: str
) -> Figure:
    """A panel for each measure with a line for each arm.

    Args:
        results: Of the study.
        arms: In order from the top, and how each is spelled.
        measures: Their keys.
        name: Of the figure; begins with "study".
        says: What to see.
    """
    panels = tuple(_draw(results, arms, key, f"{name}-{key}") for key in measures)
    records = tuple(
        (arm, seed, key, value)
        for key in measures
        for arm in arms
        for seed, value in results.values(arm, key).items()
    )
    return Figure(name, says, panels, ("arm", "seed", "measure", "value"), records)


def _draw(results: Results, arms: Mapping[str, str], key: str, name: str) -> Panel:
    shown = find_measure(key)
    words = []
    with drawing():
        canvas = new_canvas(44 + _LINE * len(arms) + 24)
        heading = f"{shown.title[:1].upper()}{shown.title[1:]}"
        put_heading(canvas, heading, shown.unit)
        height = _LINE * len(arms)
        axes = put_axes(canvas, left=_NAMES, top=44, width=332 - _NAMES, height=height)
        for place, (arm, spelled) in enumerate(arms.items()):
            values = [shown.factor * value for value in results.values(arm, key).values()]
            if not values:
                continue
            style = results.style(str(results.factors[arm].get("protocol")))
            spread = statistics.stdev(values) if len(values) > 1 else None
            axes.errorbar(
                [statistics.fmean(values)],
                [place],
                xerr=None if spread is None else [spread],
                color=style.colour,
                marker=style.marker,
                markersize=6,
                elinewidth=1.2,
                capsize=3,
            )
            if spread is not None:
                axes.plot(values, [place] * len(values), ".", color=style.colour, markersize=4)
            told = mean_and_spread(results.values(arm, key).values(), shown.factor, shown.digits)
            words.append(f"{spelled}: {told}")
        axes.set_yticks(range(len(arms)), list(arms.values()))
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.margins(x=0.1)
        return finish(canvas, name, heading, f"{heading}. {'; '.join(words)}.")
