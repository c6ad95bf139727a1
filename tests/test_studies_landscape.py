import math
import subprocess
import sys
from dataclasses import dataclass

import pytest

from killick.errors import OptionError
from killick.report.figures import COLOURS, to_page
from killick.results.measurements import read_measured
from killick.studies import plane
from killick.studies.landscape import STUDY, count_passes
from killick.studies.optima import collect_optima, judge_width, spread_over_draws
from killick.studies.plane import order_points
from killick.studies.results import Results
from killick.studies.running import run_study
from killick.studies.study import make_plan
from killick.studies.width import RADII, arrange, measure_widths

pytestmark = pytest.mark.usefixtures("here", "few_shapes")


@dataclass(frozen=True)
class Made(Results):
    """Results without folders."""

    @property
    def classes(self) -> int:
        return 10

    @property
    def seeds(self) -> int:
        return len({record["seed"] for record in self.measured})


def cone(height: float, slope: float, points: int = 21, span: float = 1.0) -> dict:
    """Accuracies by place, falling evenly from the centre down to chance."""
    return {
        (x, y): max(0.1, height - slope * math.hypot(x, y)) for x, y in order_points(points, span)
    }


def make_results(slopes: dict[str, list[float]], height: float = 0.8, **options) -> Made:
    """Cones of known slopes, one for each protocol and seed, as if they had been measured."""
    chosen = {"points": 21, "batchnorm": ["kept"], "protocols": list(slopes), **options}
    plan = make_plan(STUDY, "smoke", options=chosen)
    records = []
    for protocol, found in slopes.items():
        for seed, slope in enumerate(found):
            whose = {"arm": protocol, "protocol": protocol, "seed": seed}
            values = cone(height, slope)
            where = {"batchnorm": "kept", "draw": 0}
            points = [
                {"metric": "top1", "value": value, "x": x, "y": y, **where, **whose}
                for (x, y), value in values.items()
            ]
            records += points
            for name, width in measure_widths(arrange(points), 1.0, 0.1).items():
                value = {"metric": name, "value": width.radius, "cut": int(width.cut)}
                records.append({**value, **where, **whose})
    factors = {protocol: {"protocol": protocol} for protocol in slopes}
    return Made(plan, None, factors, tuple(records))


def judged(**slopes: list[float]) -> str:
    base, one = collect_optima(make_results(slopes), "kept")
    return judge_width(one, base, RADII[0])


def test_the_study_can_be_read_without_torch():
    code = "import sys, killick.studies.landscape; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"points": 10}, "expected an odd number of points, with one in the centre, found 10"),
        ({"batchnorm": ["stale"]}, "batchnorm"),
        ({"span": 0}, "span"),
        ({"protocols": ["plain"]}, "protocol"),
        ({"pictures": 0}, "pictures"),
    ],
)
def test_planes_that_cannot_be_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        make_plan(STUDY, "smoke", options=options)


def test_every_size_has_all_arms_and_a_point_in_the_centre():
    for size in STUDY.sizes:
        plan = make_plan(STUDY, size)
        assert [t.factors["protocol"] for t in plan.treatments] == [
            *("standard", "anchored", "masked-label")
        ]
        assert plan.options.points % 2 == 1
    assert make_plan(STUDY, "paper").options.points == 51


def test_passes_are_the_pictures_shown_at_all_points():
    options = make_plan(
        STUDY,
        "smoke",
        options={"points": 5, "pictures": 70, "statistics": 30, "draws": 2},
    ).options
    assert count_passes(options) == 2 * 25 * (70 + 70 + 30)


def test_the_radius_told_is_that_of_the_cone():
    results = make_results({"standard": [0.4, 0.401], "masked-label": [0.2, 0.2]})
    shown = STUDY.show(results)
    (table,) = shown.tables
    rows = {row[0]: row for row in table.rows}
    assert rows["standard"][2] == "80.0 ± 0.0"
    assert rows["standard"][3] == "0.25 ± 0.00"
    assert rows["masked-label"][3] == "0.50 ± 0.00"
    assert rows["masked-label"][4] == "0.35 ± 0.00"  # 90 % of the way from chance
    assert rows["masked-label"][5].startswith("at least")  # 1.75, beyond the edge
    assert rows["masked-label"][6].startswith("+0.25 (+0.25 to +0.26), wider")
    assert "standard 0.25 ± 0.00, masked-label 0.50 ± 0.00" in shown.says
    assert "against standard: masked-label wider" in shown.says


def test_wider_is_said_only_of_what_the_seeds_carry():
    assert judged(standard=[0.4, 0.41, 0.4], anchored=[0.2, 0.21, 0.2]) == "wider"
    assert judged(standard=[0.2, 0.21, 0.2], anchored=[0.4, 0.41, 0.4]) == "narrower"
    unclear = "no clear difference"
    assert judged(standard=[0.4], anchored=[0.2]) == unclear  # one seed
    assert judged(standard=[0.4, 0.2], anchored=[0.39, 0.35]) == unclear  # the interval holds 0
    # Narrower in each seed by the same, but less than the seeds themselves differ by.
    assert judged(standard=[0.2, 0.4, 0.3], anchored=[0.204, 0.416, 0.309]) == unclear
    assert judged(standard=[0.4, 0.4], anchored=[0.2, 0.2]) == unclear  # alike to the digit
    assert judged(standard=[0.05, 0.05], anchored=[0.01, 0.01]) == unclear  # both beyond the edge
    assert judged(standard=[0.095, 0.095], anchored=[0.05, 0.05]) == unclear  # both reach it
    assert judged(standard=[0.4, 0.401], anchored=[0.01, 0.01]) == "wider"  # at least so much


def test_radii_are_averaged_over_draws_of_directions():
    results = make_results({"standard": [0.4]})
    others = [
        {**r, "draw": 1, "value": r["value"] + (1 if r["metric"] in RADII else 0.02)}
        for r in results.measured
    ]
    both = Made(results.plan, None, results.factors, (*results.measured, *others))
    (one,), (mean,) = collect_optima(results, "kept"), collect_optima(both, "kept")
    assert mean.radii[RADII[0]][0] == pytest.approx(one.radii[RADII[0]][0] + 0.5)
    assert mean.centre == pytest.approx(one.centre + 0.01)
    assert spread_over_draws(results, "kept") is None
    assert spread_over_draws(both, "kept") == pytest.approx(math.sqrt(0.5))  # of 0 and 1
    assert any("standard deviation of 0.71" in note for note in STUDY.show(both).notes)


def test_maps_have_one_scale_and_only_colours_that_follow_the_page():
    results = make_results({"standard": [0.6, 0.5], "anchored": [0.3, 0.35]})
    (figure,) = STUDY.show(results).figures
    assert [panel.name for panel in figure.panels] == [
        f"study-landscape-kept-{name}" for name in ("standard", "anchored", "profile")
    ]
    maps = [panel.svg for panel in figure.panels[:2]]
    scales = [svg[svg.index(">%</text>") - 200 :].count("<text") for svg in maps]
    assert scales[0] == scales[1]
    for panel in figure.panels:
        drawn = to_page(panel.svg)
        assert "var(--gain)" in drawn or panel.name.endswith("profile")
        assert not any(light in drawn for light, _ in COLOURS.values())
    assert len(figure.records) == 2 * 21 * 21
    assert "80.0 %" in figure.says


def test_a_flat_plane_is_drawn_too():
    results = make_results({"standard": [0.0], "anchored": [0.0]}, height=0.5)
    shown = STUDY.show(results)
    assert len(shown.figures[0].panels) == 3
    assert "at least 1.13" in shown.says


def test_a_study_of_seconds_from_training_to_the_page(tmp_path, monkeypatch):
    plan = make_plan(STUDY, "smoke", options={"protocols": ["standard", "masked-label"]})
    ran = run_study(plan, tmp_path, jobs=2, device="cpu", quiet=True)
    assert not ran.failed
    assert ran.shown is not None
    assert "BatchNorm kept: standard" in ran.shown.says
    assert len(ran.shown.tables[0].rows) == 4
    page = ran.report.read_text()
    assert "study-landscape-settled-masked-label" in page
    assert "Width of the optimum" in page
    folders = [folder for folder in tmp_path.iterdir() if list(folder.glob("measured-*.jsonl"))]
    assert len(folders) == 2
    for folder in folders:
        assert len(read_measured(folder, plan.measuring)) == 2 * (9 + len(RADII))

    def never(*given, **named):
        raise AssertionError("a finished cell was measured again")

    monkeypatch.setattr(plane, "measure", never)
    again = run_study(plan, tmp_path, jobs=2, device="cpu", quiet=True)
    assert again.shown.says == ran.shown.says
