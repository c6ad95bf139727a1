import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from killick.errors import DataError
from killick.results.predictions import (
    Predictions,
    encode,
    file_of,
    prediction_files,
    read_about,
    read_predictions,
    sample,
    write_predictions,
)
from killick.results.run_folder import read_run


def make(count: int = 5, model: str = "a", **about) -> Predictions:
    generator = np.random.default_rng(0)
    columns = {"model": model, "suite": "clean", "set": "x", "corruption": "", "severity": ""}
    return Predictions(
        about={**columns, "weights": "w1", **about},
        single={
            "prediction": generator.integers(0, 3, count),
            "confidence": generator.random(count),
            "correct": generator.random(count) > 0.5,
        },
        marginal={"spread": generator.random(count)},
        thumbnails={1: b"one", 4: b"", 3: b"three"},
        class_names=("cat", "dög", "<b>"),
    )


def test_what_is_written_is_read(tmp_path):
    (tmp_path / "predictions").mkdir()
    wanted = make()
    found = read_predictions(write_predictions(tmp_path, wanted))
    assert found.about == wanted.about
    assert found.thumbnails == wanted.thumbnails
    assert found.class_names == wanted.class_names
    assert found.count == 5
    for name, value in wanted.single.items():
        np.testing.assert_allclose(found.single[name], value, rtol=1e-6)
    np.testing.assert_allclose(found.marginal["spread"], wanted.marginal["spread"], rtol=1e-6)
    assert found.single["correct"].dtype == np.bool_


def test_many_classes_keep_their_numbers(tmp_path):
    (tmp_path / "predictions").mkdir()
    wanted = Predictions(
        make().about, {"confidence": np.ones(2), "prediction": np.array([7, 40_000])}
    )
    assert read_predictions(write_predictions(tmp_path, wanted)).single["prediction"].tolist() == [
        7,
        40_000,
    ]


def test_each_set_option_and_model_has_a_file_of_its_own(tmp_path):
    (tmp_path / "predictions").mkdir()
    kinds = [{}, {"limit": 3}, {"severity": 2}, {"k": 5}, {"model": "b"}, {"images": "other"}]
    for kind in kinds:
        write_predictions(tmp_path, make(**kind))
    write_predictions(
        tmp_path, make(weights="w2")
    )  # the same question to new weights: in its place
    assert len(prediction_files(tmp_path)) == len(kinds)
    assert read_about(file_of(tmp_path, make().about))["weights"] == "w2"


def test_a_place_is_that_of_the_images_whoever_answered():
    assert make().place == make(model="b", weights="w2", k=5).place
    assert make().place != make(images="other").place


def test_answers_of_weights_that_are_gone_are_not_read(tmp_path):
    (tmp_path / "predictions").mkdir()
    write_predictions(tmp_path, make())
    (tmp_path / "rows.csv").write_text("model,weights,metric,value\na,w2,top1,0.5\n")
    assert read_run(tmp_path).predictions == []
    (tmp_path / "rows.csv").write_text("model,weights,metric,value\na,w1,top1,0.5\n")
    assert len(read_run(tmp_path).predictions) == 1


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_told_and_runs_nothing(tmp_path, content):
    file = tmp_path / "x.npz"
    file.write_bytes(content)
    with pytest.raises(DataError, match="it is damaged"):
        read_predictions(file)
    assert read_about(file) == {}


def test_a_pickle_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", about=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="it is damaged"):
        read_predictions(tmp_path / "x.npz")


def test_small_images_are_kept_exactly_and_large_ones_small():
    import io

    from PIL import Image

    image = np.random.default_rng(0).integers(0, 256, (3, 32, 40), dtype=np.uint8)
    kept = np.asarray(Image.open(io.BytesIO(encode(image))))
    np.testing.assert_array_equal(kept.transpose(2, 0, 1), image)
    large = np.zeros((3, 300, 200), dtype=np.uint8)
    assert Image.open(io.BytesIO(encode(large))).size == (64, 96)


@given(st.integers(0, 5000), st.integers(1, 50))
def test_samples_are_spread_over_a_set_and_inside_it(count, wanted):
    numbers = sample(count, wanted)
    assert len(numbers) == min(count, wanted)
    assert list(numbers) == sorted(set(numbers))
    assert all(0 <= number < count for number in numbers)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("single_confidence", np.zeros((3, 1), np.float32)),
        ("single_prediction", np.zeros(3)),
        ("single_correct", np.array(["yes"] * 3)),
        ("single_energy", np.zeros(2, np.float32)),
        ("thumbnail_ends", np.array(3)),
        ("about", np.array("3")),
    ],
)
def test_odd_arrays_are_one_clear_error(tmp_path, name, array):
    (tmp_path / "predictions").mkdir()
    about = {"suite": "clean", "set": "mine", "corruption": "", "severity": ""}
    single = {
        "prediction": np.array([0, 1, 2]),
        "correct": np.array([True, False, True]),
        "confidence": np.array([0.5, 0.6, 0.7]),
        "energy": np.array([1.0, 2.0, 3.0]),
    }
    path = write_predictions(tmp_path, Predictions(about, single))
    assert read_predictions(path).count == 3
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    np.savez(path, **{**arrays, name: array})
    with pytest.raises(DataError, match="it is damaged"):
        read_predictions(path)
