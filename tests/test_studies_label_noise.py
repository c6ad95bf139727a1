from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from killick.errors import KillickError
from killick.results.measurements import Measured
from killick.runtime.progress import Display
from killick.studies import label_noise
from killick.studies.label_noise import (
    CORRECTED,
    FLIPPED,
    MEMORIZED,
    STUDY,
    TRUE_TOP1,
    compare_labels,
)
from killick.studies.study import make_plan
from killick.studies.trained_job import open_job
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
    label_noise.measure(folder, {}, kept, device=CPU, show=lambda *about: nullcontext(Display()))
    return {each["metric"]: (each["value"], each["count"]) for each in kept.records}


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_shares_are_those_of_a_slow_count(images):
    predicted, trained_with, true = (torch.tensor(column) for column in zip(*images, strict=True))
    found = {each["metric"]: each for each in compare_labels(predicted, trained_with, true)}
    wrong = [(s, g, t) for s, g, t in images if g != t]
    clean = [(s, g, t) for s, g, t in images if g == t]
    expected = {FLIPPED: (len(wrong), len(images))}
    if wrong:
        expected[MEMORIZED] = (sum(s == g for s, g, _ in wrong), len(wrong))
        expected[CORRECTED] = (sum(s == t for s, _, t in wrong), len(wrong))
    if clean:
        expected[TRUE_TOP1] = (sum(s == t for s, _, t in clean), len(clean))
    assert found.keys() == expected.keys()
    for metric, (count, of) in expected.items():
        assert found[metric]["value"] == pytest.approx(count / of)
        assert found[metric]["count"] == of


@pytest.mark.parametrize("protocol", [STANDARD, MASKED], ids=["standard", "masked"])
def test_training_images_are_shown_plain_and_one_by_one_gives_the_same(protocol, tmp_path):
    settings = {"data.label_noise": 0.3, "augment.crop": "pad", "augment.flip": True, "seed": 2}
    folder = trained_with(tmp_path / "run", **protocol, **settings)
    found = measure(folder, tmp_path)
    trained = open_job(folder, CPU)
    parts = trained.parts
    true = open_job(
        trained_with(tmp_path / "clean", **protocol, seed=2, **{"data.label_noise": 0.0}), CPU
    ).parts.train.labels
    right, memorized, corrected = [], [], []
    with torch.no_grad():
        for number, label in enumerate(parts.train.labels.tolist()):
            predicted = int(trained.model(parts.train.read(number)[None]).argmax())
            if parts.flipped[number]:
                memorized.append(predicted == label)
                corrected.append(predicted == true[number])
            else:
                right.append(predicted == label)
    expected = {TRUE_TOP1: right, MEMORIZED: memorized, CORRECTED: corrected}
    assert {name: found[name] for name in expected} == {
        name: (pytest.approx(sum(each) / len(each)), len(each)) for name, each in expected.items()
    }
    assert found[FLIPPED] == (pytest.approx(0.3), 60)
    assert len(memorized) == 18


def test_without_noise_nothing_is_said_of_flipped_labels_and_nothing_is_measured_twice(
    tmp_path, monkeypatch
):
    folder = trained_with(tmp_path / "run", **STANDARD, epochs=1)
    found = measure(folder, tmp_path)
    assert found.keys() == {FLIPPED, TRUE_TOP1}
    assert found[FLIPPED] == (0.0, 60)
    monkeypatch.setattr(label_noise, "compare_labels", None)
    assert measure(folder, tmp_path) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": [1.5]}, "at most 1"),
        ({"levels": [-0.1]}, "at least 0"),
        ({"levels": [0.1], "protocols": ["maskd"]}, "masked-label"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(options, message):
    with pytest.raises(KillickError, match=message):
        make_plan(STUDY, "smoke", options=options)
