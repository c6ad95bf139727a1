"""The sections of a report: their numbers against slow loops over predictions, and their files."""

import csv
import hashlib
import io
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import example as always
from hypothesis import given
from hypothesis import strategies as st
from report_grid import CORRUPTIONS, grid_runs, make_grid
from sklearn.metrics import roc_auc_score, roc_curve

from killick.metrics import smooth_reliability
from killick.report import figures as drawing
from killick.report.figures import COLORS, Figure, choose_styles
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS, reliability
from killick.report.sections.examples import choose_examples

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def scene(report_data):
    return report_data


def draw_all(data):
    """All figures by name."""
    with drawing.drawing():
        contents = [section.make(data) for _, section in SECTIONS.items()]
    return {figure.name: figure for content in contents for figure in content.figures}


def draw(key, data):
    """The first figure of a section."""
    with drawing.drawing():
        return SECTIONS.find(key).make(data).figures[0]


@pytest.fixture(scope="module")
def figures(scene):
    return draw_all(scene)


def records_of(figure: Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(figure.csv)))


def predictions_by(scene, suite: str):
    """All predictions of a suite: arm, seed, predictions."""
    for arm in scene.comparison.arms:
        for run in arm.runs:
            for answers in run.predictions:
                if answers.about["suite"] == suite:
                    yield arm.name, int(run.job["seed"]), answers


def accuracies(scene) -> dict[tuple[str, str, int, int], float]:
    """By arm, corruption, severity and seed, counted one by one."""
    found = {}
    for suite in ("clean", "corruptions"):
        for arm, seed, answers in predictions_by(scene, suite):
            hits = sum(
                int(said) == int(label)
                for said, label in zip(
                    answers.single["prediction"], answers.single["label"], strict=True
                )
            )
            place = str(answers.about["corruption"]), int(answers.about["severity"] or 0)
            found[arm, *place, seed] = hits / answers.count
    return found


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def test_lines_against_severity_are_means_over_corruptions_and_seeds(scene, figures):
    truth = accuracies(scene)
    records = records_of(figures["severity"])
    assert len(records) == 3 * 4
    for record in records:
        severity = int(record["severity"])
        by_seed = {
            seed: mean(
                v for k, v in truth.items() if (k[0], k[2], k[3]) == (record["arm"], severity, seed)
            )
            for seed in (0, 1)
        }
        assert float(record["top1_mean"]) == pytest.approx(mean(by_seed.values()), abs=1e-6)
        spread = abs(by_seed[0] - by_seed[1]) / math.sqrt(2)
        assert float(record["top1_spread"]) == pytest.approx(spread, abs=1e-6)
        if record["arm"] == "standard":
            assert record["difference"] == ""
        else:
            low, value, high = (float(record[f"difference{end}"]) for end in ("_low", "", "_high"))
            base = mean(v for k, v in truth.items() if (k[0], k[2]) == ("standard", severity))
            assert value == pytest.approx(mean(by_seed.values()) - base, abs=1e-6)
            assert low <= value <= high


def heights_of(svg: str) -> tuple[list[float], float]:
    """Where the marks of a panel stand on its vertical axis, and how much a pixel is there."""
    root = ElementTree.fromstring(svg)
    ticks, marks = [], []
    for group in root.iter(f"{SVG}g"):
        name = (group.get("id") or "").split("-", 1)[-1]
        if re.search(r"(^|-)ytick_", name):
            label = group.find(f".//{SVG}text").text.replace("−", "-")
            ticks.append((float(group.find(f".//{SVG}use").get("y")), float(label)))
    parents = {child: parent for parent in root.iter() for child in parent}
    for use in root.iter(f"{SVG}use"):
        above = use
        while above in parents and not re.search(
            r"(tick|legend)_\d+$", parents[above].get("id") or ""
        ):
            above = parents[above]
        if above not in parents:
            marks.append(float(use.get("y")))
    slope, start = np.polyfit(*zip(*ticks, strict=True), 1)
    return [slope * mark + start for mark in marks], abs(slope)


@pytest.mark.parametrize(
    ("name", "number", "column", "chosen"),
    [
        ("severity", 0, "top1_mean", {}),
        ("severity-difference", 0, "difference", {}),
        ("severity-difference", 0, "difference_low", {}),
        ("severity-difference", 0, "difference_high", {}),
        ("uncertainty", 0, "value", {"panel": "errors"}),
        ("uncertainty", 1, "value", {"panel": "found"}),
        ("training", 0, "mean", {"what": "loss"}),
        ("training", 1, "mean", {"what": "accuracy"}),
    ],
)
def test_what_is_drawn_stands_where_its_number_belongs(figures, name, number, column, chosen):
    figure = figures[name]
    found, pixel = heights_of(figure.panels[number].svg)
    factor = 1 if chosen.get("what") == "loss" else 100
    for record in records_of(figure):
        if record[column] and all(record[name] == value for name, value in chosen.items()):
            value = factor * float(record[column])
            assert min(abs(value - each) for each in found) < pixel, record


def test_the_heat_map_shows_the_difference_of_every_corruption_in_kinds(scene, figures):
    truth = accuracies(scene)
    figure = figures["corruptions"]
    records = records_of(figure)
    assert [r["corruption"] for r in records[::3]] == list(CORRUPTIONS)
    assert [r["kind"] for r in records[::3]] == ["noise", "weather", "digital"]
    first, second = figure.panels
    for record in records:
        arm, corruption = record["arm"], record["corruption"]
        value = mean(v for k, v in truth.items() if k[:2] == (arm, corruption))
        assert float(record["top1_mean"]) == pytest.approx(value, abs=1e-6)
        assert f">{100 * value:.1f}<" in second.svg
        if arm != "standard":
            gap = value - mean(v for k, v in truth.items() if k[:2] == ("standard", corruption))
            assert float(record["difference"]) == pytest.approx(gap, abs=1e-6)
            sign = "" if abs(gap) < 5e-4 else "+" if gap > 0 else "−"
            assert f">{sign}{abs(100 * gap):.1f}<" in first.svg
    assert all(f">{kind}<" in first.svg for kind in ("noise", "weather", "digital"))
    assert "blur" not in first.svg


def test_the_colors_of_the_heat_map_are_as_strong_as_the_difference(figures):
    figure = figures["corruptions"]
    largest = max(abs(float(r["difference"])) for r in records_of(figure) if r["difference"])
    drawn = defaultdict(list)
    for role in ("gain", "loss"):
        color = COLORS[role][0]
        found = re.findall(rf'style="fill: {color}; opacity: ([\d.e-]+)"', figure.panels[0].svg)
        drawn[role] = [float(opacity) for opacity in found]
    wanted = [float(r["difference"]) / largest for r in records_of(figure) if r["difference"]]
    for role, positive in (("gain", True), ("loss", False)):
        strengths = [s for s in wanted if (s >= 0) == positive]
        expected = sorted(0.92 * abs(s) for s in strengths if abs(s) > 0.01)
        assert sorted(opacity for opacity in drawn[role] if opacity > 0.005) == pytest.approx(
            expected, abs=0.011
        )


def test_reliability_is_the_smoothed_accuracy_of_each_seed_joined_by_images(scene, figures):
    records = [r for r in records_of(figures["reliability"]) if r["images"] == "corrupted"]
    for arm in ("standard", "masked-label"):
        rights, alls = defaultdict(float), defaultdict(float)
        for seed in (0, 1):
            parts = [
                a.single
                for n, s, a in predictions_by(scene, "corruptions")
                if (n, s) == (arm, seed)
            ]
            confidence = np.concatenate([part["confidence"] for part in parts]).astype(float)
            correct = np.concatenate([part["correct"] for part in parts])
            pair = torch.from_numpy(confidence), torch.from_numpy(correct)
            sigma = smooth_reliability(*pair).bandwidth
            for step in range(60, 101, 10):
                near = [
                    sum(math.exp(-(((step / 100 - c) / sigma) ** 2) / 2) for c in (x, -x, 2 - x))
                    for x in confidence
                ]
                weight = 1 / (len(confidence) * sigma * math.sqrt(2 * math.pi))
                alls[step] += sum(near) * weight
                rights[step] += (
                    sum(k for k, right in zip(near, correct, strict=True) if right) * weight
                )
        for record in records:
            step = round(100 * float(record["confidence"]))
            if record["arm"] == arm and step in alls:
                assert float(record["accuracy"]) == pytest.approx(
                    rights[step] / alls[step], abs=2e-5
                )
                assert float(record["density"]) == pytest.approx(alls[step] / 2, rel=1e-3)
                ends = float(record["accuracy_least"]), float(record["accuracy_most"])
                assert ends[0] - 1e-9 <= float(record["accuracy"]) <= ends[1] + 1e-9


def test_a_reliability_line_ends_where_there_are_too_few_images(scene, figures, monkeypatch):
    line = [
        record
        for record in records_of(figures["reliability"])
        if (record["arm"], record["images"]) == ("standard", "corrupted")
    ]
    nearby = [float(record["images_nearby"]) for record in line]
    enough = 0.999 * np.median(nearby)
    monkeypatch.setattr(reliability, "_ENOUGH", enough)
    first = next(float(r["confidence"]) for r in line if float(r["images_nearby"]) >= enough)
    assert first > 0
    color = COLORS["arm-0"][0]
    svg = draw("reliability", scene).panels[0].svg
    paths = re.findall(r'<path d="M ([\d.]+) [^"]*"[^>]*style="([^"]*)"', svg)
    starts = [
        float(x) for x, style in paths if f"stroke: {color}" in style and "width: 2.2" in style
    ]
    # The axes begin 40 px from the left and are 288 px wide.
    assert (starts[0] - 40) / 288 == pytest.approx(first, abs=0.002)


def test_histograms_count_every_image_once(scene, figures):
    records = records_of(figures["detection-energy"])
    for arm in ("standard", "masked-label"):
        for name in ("test set", "digits", "noise"):
            title = f"{name} (synthetic)" if name == "noise" else name
            bins = [r for r in records if (r["arm"], r["set"]) == (arm, title)]
            suite = "clean" if name == "test set" else "ood"
            values = np.concatenate(
                [
                    a.single["energy"]
                    for n, _, a in predictions_by(scene, suite)
                    if n == arm and (suite == "clean" or a.about["set"] == name)
                ]
            )
            assert len(values) == 120
            assert sum(float(b["share"]) for b in bins) == pytest.approx(1, abs=1e-4)
            for b in bins[2:-2]:  # at the ends is also what lies beyond
                inside = [float(b["energy_from"]) <= v < float(b["energy_to"]) for v in values]
                assert float(b["share"]) == pytest.approx(mean(inside), abs=0.009)


def test_roc_curves_and_their_areas_are_scikit_learns_in_the_mean_over_seeds(scene, figures):
    records = records_of(figures["detection-roc"])
    shown = list(dict.fromkeys(r["set"] for r in records))
    assert shown == ["digits", "blobs (synthetic)", "noise (synthetic)"]
    for arm, title in itertools.product(("standard", "anchored"), shown):
        name = title.removesuffix(" (synthetic)")
        areas, found = [], []
        for seed in (0, 1):
            inside, outside = (
                next(
                    a.single["energy"]
                    for n, s, a in predictions_by(scene, suite)
                    if (n, s) == (arm, seed) and (suite == "clean" or a.about["set"] == name)
                )
                for suite in ("clean", "ood")
            )
            truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
            areas.append(roc_auc_score(truth, np.r_[inside, outside]))
            false, true, _ = roc_curve(truth, np.r_[inside, outside], drop_intermediate=False)
            found.append(np.interp(np.linspace(0, 1, 101), false, true))
        lines = [r for r in records if (r["arm"], r["set"]) == (arm, title)]
        assert float(lines[0]["auroc"]) == pytest.approx(mean(areas), abs=1e-5)
        rates = [float(r["true_positive_rate"]) for r in lines]
        # Between two points of a curve, which rises and goes right in steps, both are right.
        assert rates[1:] == pytest.approx(list(np.mean(found, axis=0))[1:], abs=0.02)
        assert rates[-1] == 1


def test_errors_by_spread_are_counted_in_tenths_of_each_seed(scene, figures):
    records = records_of(figures["uncertainty"])
    assert {r["arm"] for r in records} == {"anchored", "masked-label"}
    for arm in ("anchored", "masked-label"):
        tenths, fifths, by_confidence = [], [], []
        for seed in (0, 1):
            images = []
            for suite in ("clean", "corruptions"):
                for n, s, a in predictions_by(scene, suite):
                    if (n, s) == (arm, seed):
                        m = a.marginal
                        images += zip(m["spread"], m["confidence"], m["correct"], strict=True)
            images.sort(key=lambda image: image[0])
            size = len(images) // 10
            tenths.append(mean(not right for _, _, right in images[-size:]))
            wrong = sum(not right for _, _, right in images)
            most = images[-2 * size :]
            fifths.append(sum(not right for _, _, right in most) / wrong)
            images.sort(key=lambda image: image[1])
            by_confidence.append(sum(not right for _, _, right in images[: 2 * size]) / wrong)
        mine = [r for r in records if r["arm"] == arm]
        errors = [r for r in mine if r["panel"] == "errors"]
        assert float(errors[-1]["value"]) == pytest.approx(mean(tenths), abs=1e-5)
        fifth = next(r for r in mine if (r["panel"], r["share_of_images"]) == ("found", "0.2"))
        assert float(fifth["value"]) == pytest.approx(mean(fifths), abs=1e-5)
        assert float(fifth["least"]) == pytest.approx(min(fifths), abs=1e-5)
        assert float(fifth["by_confidence"]) == pytest.approx(mean(by_confidence), abs=1e-5)


def test_training_is_averaged_over_epochs_and_seeds(figures):
    records = [r for r in records_of(figures["training"]) if r["arm"] == "standard"]
    loss = [float(r["mean"]) for r in records if r["what"] == "loss"]
    # Two lines of the log, of equally many steps, make an epoch; the other seed lies 0.01 above.
    assert loss == pytest.approx(
        [(2 / (2 * e - 1) + 2 / (2 * e)) / 2 + 0.005 for e in range(1, 6)], abs=1e-5
    )
    ends = [float(r[end]) for r in records if r["what"] == "accuracy" for end in ("least", "most")]
    assert ends == pytest.approx([end + 0.08 * e for e in range(1, 6) for end in (0.5, 0.52)])


def test_what_is_no_number_in_a_log_is_not_drawn(scene):
    lines = [
        {"kind": "train", "step": 50, "epoch": 0.5, "loss": 1.0},
        {"kind": "train", "step": 100, "epoch": 1.0, "loss": 2.0},
        {"kind": "train", "step": 400, "epoch": 4.0, "loss": 3.0},
        {"kind": "train", "step": 410, "epoch": 4.1, "loss": float("nan")},
    ]
    arm = scene.comparison.arms[0]
    alone = replace(arm, runs=(replace(arm.runs[0], metrics=lines),))
    figure = draw("training", replace(scene, comparison=replace(scene.comparison, arms=(alone,))))
    assert [(r["epoch"], r["mean"]) for r in records_of(figure)] == [("1", "1.5"), ("4", "3")]


def test_every_svg_is_xml_with_text_as_text_and_a_description(figures):
    seen = set()
    for figure in figures.values():
        for panel in figure.panels:
            root = ElementTree.fromstring(drawing.to_file(panel.svg))
            assert root.get("role") == "img"
            texts = [element.text for element in root.iter(f"{SVG}text")]
            assert len(texts) > 5
            title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
            assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
            assert title.text == panel.title
            assert description.text
            ids = [element.get("id") for element in root.iter() if element.get("id")]
            assert len(ids) == len(set(ids))
            assert not seen & set(ids)
            seen |= set(ids)
            links = re.findall(r'(?:url\(|href=")#([^")]+)', panel.svg)
            assert set(links) <= set(ids)
            assert "image" not in {element.tag.removeprefix(SVG) for element in root.iter()}
            assert "DejaVu" not in panel.svg


def test_no_color_is_left_on_the_page_that_does_not_follow_it(figures):
    for figure in figures.values():
        for panel in figure.panels:
            page = drawing.to_page(panel.svg)
            assert not re.findall(r"#[0-9a-f]{6}", page)
            assert "var(--ink)" in page
            file = drawing.to_file(panel.svg)
            assert "var(" not in file
            assert "prefers-color-scheme: dark" in file


def test_settings_of_matplotlib_that_a_user_has_change_nothing_and_stay(scene, figures):
    with matplotlib.rc_context({"savefig.bbox": "tight", "axes.titlesize": 30, "font.size": 3}):
        figure = draw("severity", scene)
        assert matplotlib.rcParams["font.size"] == 3
    assert figure == figures["severity"]


def test_no_number_in_a_figure_loses_its_digits(figures):
    figure = figures["reliability"]
    shown = re.findall(r"clean, smooth ECE (\d\.\d+)<", "".join(p.svg for p in figure.panels))
    assert len(shown) == 3
    assert all(len(number) == 5 for number in shown)


@pytest.mark.parametrize("ground", [0, 1])
def test_colors_stand_out_from_the_ground_and_from_each_other_for_all_eyes(ground):
    paper = COLORS["paper"][ground]
    arms = [pair[ground] for role, pair in COLORS.items() if role.startswith("arm-")]
    for role in ("ink", "muted"):
        assert contrast(COLORS[role][ground], paper) >= 4.5
    assert all(contrast(color, paper) >= 3 for color in arms)
    for eyes in EYES.values():
        places = [lab(np.clip(np.array(eyes) @ linear(color), 0, 1)) for color in arms]
        for one, other in itertools.combinations(places, 2):
            assert np.linalg.norm(one - other) > 10
    for role in ("gain", "loss"):  # text on the strongest cells of a heat map
        color, ink = COLORS[role][ground], COLORS["ink"][ground]
        assert contrast(ink, color) >= 4.5


# What those see who lack a kind of cones (Machado, Oliveira and Fernandes 2009, severity 1).
EYES = {
    "all cones": np.eye(3),
    "no long": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no medium": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no short": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As the web's guidelines define it."""
    light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.array(to_xyz) @ rgb / [0.9505, 1, 1.089]
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_light_colors_are_all_different():
    light = [pair[0] for pair in COLORS.values()]
    assert len(set(light)) == len(light)


def test_twelve_arms_differ_by_more_than_color(scene):
    arm = scene.comparison.arms[0]
    arms = [replace(arm, name=f"arm {i}") for i in range(12)]
    styles = choose_styles(replace(scene.comparison, arms=tuple(arms), baseline=arms[0]))
    assert len({(s.role, str(s.dashes)) for s in styles.values()}) == 12
    by_role = defaultdict(set)
    for style in styles.values():
        by_role[style.role].add(style.marker)
    assert sum(map(len, by_role.values())) == 12
    assert styles["arm 0"].role == "arm-0"


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(NAMES)
@always("$x_1$ costs 2")
@always('masked\x00\x1b<&>"')
def test_any_name_can_be_drawn(name):
    with drawing.drawing():
        canvas, axes = drawing.new_chart(drawing.shorten(name), "below")
        style = drawing.Style("arm-1", "-", "o")
        drawing.put_line(axes, [0, 1], np.zeros((1, 2)), style, name)
        panel = drawing.finish(canvas, "some", name, name)
    root = ElementTree.fromstring(drawing.to_file(panel.svg))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert any(drawing.shorten(name).strip() in text.strip() for text in texts)


def test_examples_are_those_that_one_arm_alone_gets_right_in_the_order_of_their_hash(scene):
    groups = choose_examples(scene)
    by_place = defaultdict(dict)
    for suite in ("clean", "corruptions"):
        for arm, seed, predictions in predictions_by(scene, suite):
            if seed == 0:
                by_place[predictions.place][arm] = predictions
    for images, one, two in zip(
        groups.values(), ("masked-label", "standard"), ("standard", "masked-label"), strict=True
    ):
        hashes = {
            hashlib.sha256(f"{place} {number}".encode()).hexdigest(): (place, number)
            for place, arms in by_place.items()
            for number in arms["standard"].thumbnails
            if arms[one].single["correct"][number] and not arms[two].single["correct"][number]
        }
        assert [(image.place, image.number) for image in images] == [
            hashes[key] for key in sorted(hashes)
        ]
        for image in images:
            shown = image.describe()
            said = {arm: (predicted, right) for arm, predicted, _, right in shown["predictions"]}
            assert list(said) == ["standard", "anchored", "masked-label"]
            assert all(right == (predicted == shown["truth"]) for predicted, right in said.values())
            assert shown["uri"].startswith("data:image/png;base64,")


def test_the_order_of_the_runs_changes_no_example(scene):
    runs = [run for arm in scene.comparison.arms for run in arm.runs]
    other = choose_examples(make_report_data(runs[::-1], "standard"))
    assert [[image.number for image in images] for images in other.values()] == [
        [image.number for image in images] for images in choose_examples(scene).values()
    ]


def test_what_is_missing_is_named_with_the_way_to_it(tmp_path):
    folder = make_grid(tmp_path, seeds=(0,), answers=False, corruptions=(), ood_sets=())
    for each in folder.iterdir():
        (each / "metrics.jsonl").unlink()
    scene = make_report_data(grid_runs(folder))
    for key, section in SECTIONS.items():
        content = section.make(scene)
        optional = key in ("provenance", "robustness", "shifted", "attention", "costs")
        optional |= key == "severity-difference"
        assert content.missing.startswith("No ") == (not optional), key
        assert not content.figures


def test_one_arm_has_its_accuracies_and_no_differences(tmp_path):
    scene = make_report_data(grid_runs(make_grid(tmp_path, {"standard": {"protocol": "standard"}})))
    assert not SECTIONS.find("severity-difference").make(scene).figures
    assert SECTIONS.find("uncertainty").make(scene).missing  # no references, no spread
    (panel,) = draw("corruptions", scene).panels
    assert panel.name == "corruptions-accuracy"
    assert list(choose_examples(scene)) == ["Wrong", "Right"]


def test_more_arms_than_fit_into_a_heat_map_have_more_panels(scene, tmp_path):
    arms = {f"arm{i}": {"protocol": "standard", "network": f"net{i}"} for i in range(7)}
    folder = make_grid(tmp_path, arms, (0,), ood_sets=(), severities=(1,), n=12, limit=12)
    figure = draw("corruptions", make_report_data(grid_runs(folder)))
    assert [panel.name for panel in figure.panels] == [
        *("corruptions", "corruptions-2", "corruptions-accuracy", "corruptions-accuracy-2"),
    ]
    for number in range(1, 7):
        assert sum(f">arm{number}<" in panel.svg for panel in figure.panels) == 2


def test_what_goes_on_is_drawn_where_it_went_on(scene):
    arm = scene.comparison.arms[1]
    runs = tuple(
        replace(run, recipe={"epochs": 3, "schedule": {"begin": 0.25, "end": 1.0}})
        for run in arm.runs
    )
    later = replace(scene.comparison, arms=(replace(arm, runs=runs),))
    before = replace(scene.comparison, arms=(arm,))
    epochs = [
        [float(r["epoch"]) for r in records_of(draw("training", replace(scene, comparison=each)))]
        for each in (before, later)
    ]
    assert epochs[0]
    assert epochs[1] == [epoch + 1 for epoch in epochs[0]]
