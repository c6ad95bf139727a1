from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from killick.errors import KillickError
from killick.experiments.job_runner import run_job
from killick.results.measurements import Measured
from killick.runtime.progress import SilentDisplay
from killick.studies import memorising
from killick.studies.label_noise import STUDY
from killick.studies.memorised import check_flipped, values_of
from killick.studies.memorising import BY_HEART, FLIPPED, RIGHT, SEEN_THROUGH, compare_labels
from killick.studies.running import plan_cells, run_study
from killick.studies.study import make_plan
from killick.studies.trained import open_trained
from killick.training.loop import train
from killick.training.recipe_files import load_recipe

pytestmark = pytest.mark.usefixtures("here", "few_shapes")

CPU = torch.device("cpu")
MASKED = {"protocol.name": "masked", "protocol.target": "label"}
STANDARD = {"protocol.name": "standard"}


def trained_with(folder: Path, **settings) -> Path:
    common = {"data.limit": 60, "data.validation": 0, "epochs": 2, "batch": 20}
    train(load_recipe("shapes-compare", {**common, **settings}), folder, device="cpu", quiet=True)
    return folder


def measure(folder: Path, where: Path) -> dict[str, tuple[float, int]]:
    kept = Measured(where, {})
    memorising.measure(
        folder, {}, kept, device=CPU, show=lambda *about: nullcontext(SilentDisplay())
    )
    return {each["metric"]: (each["value"], each["count"]) for each in kept.records}


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_shares_are_those_of_a_slow_count(pictures):
    said, trained_with, true = (torch.tensor(column) for column in zip(*pictures, strict=True))
    found = {each["metric"]: each for each in compare_labels(said, trained_with, true)}
    wrong = [(s, g, t) for s, g, t in pictures if g != t]
    clean = [(s, g, t) for s, g, t in pictures if g == t]
    expected = {FLIPPED: (len(wrong), len(pictures))}
    if wrong:
        expected[BY_HEART] = (sum(s == g for s, g, _ in wrong), len(wrong))
        expected[SEEN_THROUGH] = (sum(s == t for s, _, t in wrong), len(wrong))
    if clean:
        expected[RIGHT] = (sum(s == t for s, _, t in clean), len(clean))
    assert found.keys() == expected.keys()
    for metric, (count, of) in expected.items():
        assert found[metric]["value"] == pytest.approx(count / of)
        assert found[metric]["count"] == of


@pytest.mark.parametrize("protocol", [STANDARD, MASKED], ids=["standard", "masked"])
def test_training_pictures_are_shown_plain_and_one_by_one_gives_the_same(protocol, tmp_path):
    settings = {"data.label_noise": 0.3, "augment.crop": "pad", "augment.flip": True, "seed": 2}
    folder = trained_with(tmp_path / "run", **protocol, **settings)
    found = measure(folder, tmp_path)
    trained = open_trained(folder, CPU)
    parts = trained.parts
    true = open_trained(
        trained_with(tmp_path / "clean", **protocol, seed=2, **{"data.label_noise": 0.0}), CPU
    ).parts.train.labels
    right, by_heart, seen_through = [], [], []
    with torch.no_grad():
        for number, label in enumerate(parts.train.labels.tolist()):
            said = int(trained.model(parts.train.read(number)[None]).argmax())
            if parts.flipped[number]:
                by_heart.append(said == label)
                seen_through.append(said == true[number])
            else:
                right.append(said == label)
    expected = {RIGHT: right, BY_HEART: by_heart, SEEN_THROUGH: seen_through}
    assert {name: found[name] for name in expected} == {
        name: (pytest.approx(sum(each) / len(each)), len(each)) for name, each in expected.items()
    }
    assert found[FLIPPED] == (pytest.approx(0.3), 60)
    assert len(by_heart) == 18


def test_who_repeats_all_labels_knows_the_wrong_ones_by_heart(tmp_path, monkeypatch):
    folder = trained_with(tmp_path / "run", **STANDARD, **{"data.label_noise": 0.2, "epochs": 1})
    labels = open_trained(folder, CPU).parts.train.labels
    monkeypatch.setattr(memorising, "answer_training", lambda trained, display: labels)
    found = measure(folder, tmp_path)
    assert found == {
        FLIPPED: (pytest.approx(0.2), 60),
        BY_HEART: (1.0, 12),
        SEEN_THROUGH: (0.0, 12),
        RIGHT: (1.0, 48),
    }


def test_without_noise_nothing_is_said_of_flipped_labels_and_nothing_is_measured_twice(
    tmp_path, monkeypatch
):
    folder = trained_with(tmp_path / "run", **STANDARD, epochs=1)
    found = measure(folder, tmp_path)
    assert found.keys() == {FLIPPED, RIGHT}
    assert found[FLIPPED] == (0.0, 60)
    monkeypatch.setattr(memorising, "open_trained", None)
    assert measure(folder, tmp_path) == found


def test_every_protocol_is_trained_at_every_level():
    plan = make_plan(STUDY, "paper")
    assert len(plan.arms) == 21
    assert plan.arms[0].name == "standard-noise0.5"
    assert plan.arms[-1].name == "masked-label-noise20"
    assert plan.arms[-1].settings["data.label_noise"] == 0.2
    assert plan.treatments[-1].factors == {"protocol": "masked-label", "noise": 20}
    assert [t.factors["noise"] for t in plan.treatments[::3]] == [0.5, 1, 2, 5, 10, 15, 20]
    assert 0.0 in make_plan(STUDY).options.levels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": [1.5]}, "between 0 and 1, found 1.5"),
        ({"levels": [-0.1]}, "between 0 and 1"),
        ({"levels": [0.1], "protocols": ["maskd"]}, "masked-label"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(options, message):
    with pytest.raises(KillickError, match=message):
        make_plan(STUDY, "smoke", options=options)


def results_with(*records):
    def find(**known):
        return [r for r in records if all(r.get(name) == value for name, value in known.items())]

    return SimpleNamespace(records=find)


def test_another_share_of_wrong_labels_than_asked_for_is_told():
    exact = {"metric": FLIPPED, "noise": 20, "value": 0.2, "count": 60}
    near = {"metric": FLIPPED, "noise": 0.5, "value": 1 / 150, "count": 150}  # 0.75 pictures
    (check,) = check_flipped(results_with(exact, near))
    assert check.holds
    (check,) = check_flipped(results_with(exact, {**exact, "value": 0.18}))
    assert not check.holds
    assert "18 %" in check.found
    assert check_flipped(results_with()) == ()


def test_a_seed_counts_once():
    record = {"metric": RIGHT, "protocol": "standard", "noise": 5, "seed": 0, "value": 0.5}
    results = results_with(record, record, {**record, "seed": 1, "value": 0.7})
    assert values_of(results, RIGHT, "standard", 5) == [0.5, 0.7]


def test_the_smoke_size_runs_to_its_page(tmp_path):
    plan = make_plan(STUDY, "smoke")
    cells = plan_cells(plan, tmp_path)
    assert len(cells) == 4
    for each in cells:
        assert run_job(each, threads=1, device="cpu")["status"] == "finished"
    ran = run_study(plan, tmp_path, device="cpu", quiet=True)
    assert ran.failed == []
    assert ran.report.exists()
    shown = ran.shown
    assert "With 20 % of the labels flipped" in shown.says
    assert "learned by heart" in shown.says
    sweep, training = shown.tables
    assert sweep.rows[-1][0] == "20"
    assert sweep.rows[-1][-3:] == ("38.1", "38.5", "41.85")
    assert [row[0] for row in training.rows] == [
        "0 %, standard",
        "0 %, masked-label",
        "20 %, standard",
        "20 %, masked-label",
    ]
    assert training.rows[0][2:4] == ("–", "–")
    assert all(cell != "–" for row in training.rows[2:] for cell in row)
    assert len(shown.figures) == 2
    assert len(shown.figures[1].panels) == 3
    assert len(shown.figures[1].records) == 4 + 2 + 2
    (check,) = shown.checks
    assert check.holds
