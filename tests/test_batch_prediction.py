"""Records against those made by hand, whatever the batch size, the threads and what is broken."""

import contextlib
import math
import os
import threading
import time
import tracemalloc

import pytest
import torch
from labeled_images import (
    NAMES,
    NORMALIZE,
    SIDE,
    expected,
    make_anchored,
    make_files,
    make_standard,
)
from PIL import Image
from torch import nn

import killick
from killick.core.image_model import Threshold
from killick.core.inference import Prediction
from killick.data.preprocessing import PlainView
from killick.deploy import decoding_limits
from killick.deploy import image_reading as reading
from killick.deploy.image_paths import InputImage
from killick.deploy.image_reading import MemoryBudget, read_batches, read_one
from killick.deploy.prediction_records import make_records, normalized_entropy
from killick.errors import DataError, OptionError, OutputError, ReferencesError
from killick.evaluation.classifier import Classifier
from killick.evaluation.open_classifier import open_classifier
from killick.labelling import label


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def anchored():
    return make_anchored()


def break_file(path) -> str:
    path.write_bytes(b"no image")
    return str(path)


def predicted(probs, energy) -> Prediction:
    return Prediction(probs.log(), torch.arange(1), probs=probs, energy=energy)


@pytest.mark.parametrize("k", [None, 1, 3, "standard"])
def test_records_are_those_made_by_hand(k, files, anchored):
    model = make_standard() if k == "standard" else anchored
    k = None if k == "standard" else k
    records = list(label(model, files, references=k, probabilities=True, batch=4))
    assert len(records) == len(files)
    for record, path in zip(records, files, strict=True):
        oracle = expected(model, path, k if k == 3 else None)
        found = record.to_dict()
        assert found.pop("in_distribution") is None
        assert list(found) == [*list(oracle)[:6], *(["std"] if k == 3 else []), "probabilities"]
        for name, value in oracle.items():
            assert found[name] == pytest.approx(value, abs=1e-6), name
    assert len({record.label for record in records}) > 1
    if k == 3:
        assert all(record.std > 1e-4 for record in records)


@pytest.mark.parametrize(("batch", "workers"), [(1, 1), (2, 3), (5, 1), (100, 2), (11, 8)])
def test_neither_batch_nor_threads_change_anything(batch, workers, files, anchored, tmp_path):
    images = [*files[:5], break_file(tmp_path / "x.png"), *files[5:]]
    first = list(label(anchored, images, references=2, top=2))
    again = list(label(anchored, images, references=2, top=2, batch=batch, workers=workers))
    assert [r.image for r in again] == images
    for a, b in zip(first, again, strict=True):
        assert (a.label, a.error) == (b.label, b.error)
        for name in ("confidence", "uncertainty", "energy", "std"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-6)


def test_as_many_threads_read_as_asked_for_and_by_default_one_a_core(files, anchored, monkeypatch):
    asked = []

    def noted(found, view, *, batch, workers):
        asked.append((batch, workers))
        return read_batches(found, view, batch=batch, workers=workers)

    monkeypatch.setattr("killick.deploy.batch_prediction.read_batches", noted)
    list(label(anchored, files, batch=3, workers=7))
    list(label(anchored, files))
    assert asked == [(3, 7), (100, min(16, len(os.sched_getaffinity(0))))]


@pytest.mark.parametrize("places", [[0], [5], [11], [0, 1, 2, 11], range(12)])
@pytest.mark.parametrize("batch", [1, 4, 50])
def test_broken_images_are_told_in_their_places(places, batch, files, anchored, tmp_path):
    whole = {record.image: record for record in label(anchored, files, batch=batch)}
    images = list(files)
    broken = [break_file(tmp_path / f"{number}.png") for number in range(len(places))]
    for path, place in zip(broken, places, strict=True):
        images.insert(place, path)
    if len(broken) == 12:
        images = broken
    records = list(label(anchored, images, batch=batch, workers=2))
    assert [record.image for record in records] == images
    for record in records:
        if record.image in broken:
            assert record.error.startswith(f"cannot read {record.image}: ")
            assert record.to_dict() == {"image": record.image, "error": record.error}
        else:
            assert record.error is None
            assert record.label == whole[record.image].label
            assert record.energy == pytest.approx(whole[record.image].energy, abs=1e-5)


def test_the_threshold_that_is_stored_decides_for_its_number_of_references(files, anchored):
    energies = sorted(record.energy for record in label(anchored, files))
    limit = (energies[4] + energies[5]) / 2
    anchored.threshold = Threshold(limit, 0.95, 1, "these", {"others": 0.5})
    try:
        records = list(label(anchored, files))
        assert [r.in_distribution for r in records] == [r.energy <= limit for r in records]
        assert sum(r.in_distribution for r in records) == 5
        assert {(r.fitted_on, r.refused["others"]) for r in records} == {("these", 0.5)}
        others = list(label(anchored, files, references=2))
        assert {(r.in_distribution, r.fitted_on, r.refused) for r in others} == {(None,) * 3}
        assert open_classifier(anchored).threshold == anchored.threshold
        assert open_classifier(anchored, references=2).threshold is None
    finally:
        anchored.threshold = None


def test_the_most_likely_classes_come_in_their_order(files, anchored):
    for record in label(anchored, files, top=3, probabilities=True):
        order = sorted(range(5), key=lambda index: -record.probabilities[index])[:3]
        assert [each.index for each in record.top] == order
        assert [each.label for each in record.top] == [NAMES[index] for index in order]
        assert record.top[0].probability == record.confidence
        assert [each.probability for each in record.top] == [
            record.probabilities[index] for index in order
        ]
    assert all(len(r.top) == 5 for r in label(anchored, files, top=99))
    assert all(r.top == r.probabilities == () for r in label(anchored, files))


def test_uncertainty_is_entropy_as_a_part_of_the_largest():
    probs = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.7, 0.1, 0.1, 0.1]])
    last = -(0.7 * math.log(0.7) + 0.3 * math.log(0.1)) / math.log(4)
    found = normalized_entropy(probs).tolist()
    assert found == pytest.approx([1, 0, 0.5, last], abs=1e-7)
    assert 0 <= min(found) <= max(found) <= 1


def test_of_equals_the_first_is_the_label_and_the_most_likely():
    answered = predicted(torch.full((1, 9), 1 / 9), torch.zeros(1))
    (record,) = make_records([InputImage("a", torch.zeros(1))], answered, None, top=2)
    assert (record.label, record.index) == ("0", 0)
    assert [each.index for each in record.top] == [0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["probs", "energy"])
def test_an_image_that_the_model_has_no_number_for_is_told(bad, where):
    values = {"probs": torch.tensor([[0.5, 0.5], [0.1, 0.9]]), "energy": torch.zeros(2)}
    values[where].view(-1)[0] = bad
    seen = [InputImage(name, torch.zeros(1)) for name in "ab"]
    first, second = make_records(seen, predicted(**values), ("x", "y"))
    assert first.error.startswith("cannot label a: ")
    assert (second.label, second.error) == ("y", None)


def test_the_view_is_the_one_the_model_was_trained_for(files):
    model = make_standard()
    data = {"size": SIDE, "resize": 20, "interpolation": "bicubic"}
    model.provenance = {"recipe": {"data": data}}
    cropped = list(label(model, files))
    for record, path in zip(cropped, files, strict=True):
        assert record.energy == pytest.approx(expected(model, path, None)["energy"], abs=1e-5)
    whole = list(label(make_standard(), files))
    assert any(abs(a.energy - b.energy) > 1e-3 for a, b in zip(cropped, whole, strict=True))


def test_a_saved_model_and_a_run_answer_like_the_model_itself(files, anchored, tmp_path):
    killick.save(anchored, tmp_path / "run" / "model", class_names=NAMES)
    first = list(label(anchored, files, references=2))
    for path in (tmp_path / "run", str(tmp_path / "run" / "model")):
        again = list(label(path, files, references=2, device="cpu"))
        assert [r.label for r in again] == [r.label for r in first]
        assert [r.std for r in again] == pytest.approx([r.std for r in first], abs=1e-6)


def test_one_path_a_folder_and_a_pattern_are_as_good_as_a_list(files, anchored):
    folder = os.path.dirname(files[0])
    assert [r.image for r in label(anchored, files[2])] == [files[2]]
    assert [r.image for r in label(anchored, folder)] == files
    assert [r.image for r in label(anchored, os.path.join(folder, "*.png"))] == files[::3]
    assert [r.image for r in label(anchored, (p for p in [files[1]] * 2))] == [files[1]] * 2


def test_a_classifier_that_is_open_already_stays_as_it_is(files, anchored):
    classifier = open_classifier(anchored, references=2)
    assert isinstance(classifier, Classifier)
    assert open_classifier(classifier) is classifier
    first, again = label(anchored, files, references=2), label(classifier, files)
    assert [r.to_dict() for r in first] == [r.to_dict() for r in again]


def test_no_image_at_all_is_an_error(anchored, tmp_path):
    with pytest.raises(DataError, match="no images in"):
        list(label(anchored, tmp_path))
    with pytest.raises(DataError, match="no paths"):
        list(label(anchored, []))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch": 0}, "batch must be at least 1, found 0"),
        ({"workers": 0}, "workers must be at least 1, found 0"),
        ({"top": -1}, "top must be at least 0, found -1"),
        ({"references": 0}, "references must be at least 1, found 0"),
        ({"device": "abacus"}, "expected a device such as"),
    ],
)
def test_wrong_options_are_told_before_anything_is_read(options, told, anchored):
    with pytest.raises(OptionError, match=told):
        label(anchored, "nowhere", **options)


def test_more_references_than_stored_are_refused(anchored):
    with pytest.raises(ReferencesError, match="expected 5 stored reference"):
        label(anchored, "x", references=5)
    with pytest.raises(OptionError, match="has no references"):
        label(make_standard(), "x", references=2)
    label(make_standard(), "x", references=1)


def test_a_model_that_cannot_be_shown_images_is_refused():
    floats = killick.standard(nn.Flatten(), image_shape=(3, 4, 4)).eval()
    with pytest.raises(OptionError, match="takes floats"):
        label(floats, "x")
    grey = killick.standard(nn.Flatten(), ((0.5,), (0.5,)), image_shape=(1, 4, 4)).eval()
    with pytest.raises(OptionError, match="not RGB images"):
        label(grey, "x")
    other = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 9, 2))
    other = killick.standard(other, NORMALIZE, image_shape=(3, SIDE, SIDE)).eval()
    with pytest.raises(OutputError, match="cannot run Sequential"):
        label(other, "x")
    with pytest.raises(OptionError, match="found int"):
        label(5, "x")


def test_a_strip_that_would_grow_beyond_all_memory_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)  # of 10**8, a failure would take it all
    for size in ((1, 2000), (2000, 1)):
        path = str(tmp_path / "strip.png")
        Image.new("RGB", size).save(path)
        seen = read_one(InputImage(path), PlainView(16, 32))
        assert seen.pixels is None
        told = f"its {size[0]} x {size[1]} pixels are too long a strip to be shown at 32 px"
        assert told in seen.problem
        assert path in seen.problem
        assert read_one(InputImage(path), PlainView(16)).pixels.shape == (3, 16, 16)


def test_only_so_many_images_are_read_ahead(files):
    asked = []

    def endless():
        while True:
            asked.append(None)
            yield InputImage(files[len(asked) % len(files)])

    batches = read_batches(endless(), PlainView(4), batch=8, workers=2)
    assert len(next(batches)) == 8
    time.sleep(0.3)
    assert len(asked) < 8 + 3 * 8 + 4 * 2
    batches.close()
    time.sleep(0.5)
    before = len(asked)
    time.sleep(0.3)
    assert len(asked) == before


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_what_goes_wrong_while_looking_is_raised_and_the_threads_end(files):
    def looking():
        yield from [InputImage(path) for path in files]
        raise DataError("the list broke off")

    batches = read_batches(looking(), PlainView(4), batch=2, workers=1)
    seen = [next(batches) for _ in range(3)]
    assert [each.path for batch in seen for each in batch] == files[:6]
    with pytest.raises(DataError, match="the list broke off"):
        list(batches)
    for thread in threading.enumerate():
        if thread.name.startswith("killick-"):
            thread.join(5)
    assert not [t for t in threading.enumerate() if t.name.startswith("killick-")]
    threads = []
    other = threading.Thread(target=lambda: threads.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert threads == [2] == [torch.get_num_threads()]


def test_a_slow_image_does_not_change_the_order(files, monkeypatch):
    from killick.deploy import image_reading as reading

    decode = reading.decode_limited

    def slow(path, name):
        time.sleep(0.1 if path == files[0] else 0)
        return decode(path, name)

    monkeypatch.setattr(reading, "decode_limited", slow)
    found = [InputImage(path) for path in files]
    seen = [each for b in read_batches(found, PlainView(4), batch=4, workers=4) for each in b]
    assert [each.path for each in seen] == files


def test_a_bug_while_reading_is_raised(files, monkeypatch):
    from killick.deploy import image_reading as reading

    monkeypatch.setattr(reading, "decode_limited", lambda path, name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(read_batches([InputImage(files[0])], PlainView(4), batch=1, workers=1))


def test_several_small_images_are_read_at_once_but_a_huge_one_alone():
    room, inside, most = MemoryBudget(100), [], []

    def take(size):
        with room.reserve(size):
            inside.append(size)
            most.append((sum(inside), len(inside)))
            time.sleep(0.01)
            inside.remove(size)

    threads = [threading.Thread(target=take, args=(p,)) for p in [30, 40, 200, 30, 100, 1, 60] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(most) == 21
    assert all(total <= 100 or count == 1 for total, count in most)
    assert max(count for _, count in most) > 1
    with pytest.raises(ZeroDivisionError), room.reserve(100):
        raise ZeroDivisionError
    take(100)  # there is room again


class Noted(MemoryBudget):
    """A room that writes down what is asked of it, and how much is taken at most."""

    def __init__(self, size):
        super().__init__(size)
        self.asked, self.most = [], 0

    @contextlib.contextmanager
    def reserve(self, size):
        with super().reserve(size):
            self.asked.append(size)
            self.most = max(self.most, self._taken)
            yield


def test_reading_an_image_takes_room_for_its_file_and_then_for_its_pixels_too(files, monkeypatch):
    room, expected = Noted(1), []
    monkeypatch.setattr(reading, "_BUDGET", room)
    for path in files:
        assert read_one(InputImage(path), PlainView(4)).pixels is not None
        with Image.open(path) as image:
            for_file = 3 * os.path.getsize(path)
            expected += [for_file, for_file + 22 * image.width * image.height]
    assert room.asked == expected


def test_many_threads_never_have_more_than_the_room_holds(tmp_path, monkeypatch):
    paths, largest = [], 0
    for number in range(24):
        path, side = tmp_path / f"{number}.png", 8 + 12 * (number % 5)
        Image.new("RGB", (side, side), (number, 0, 0)).save(path)
        with open(path, "ab") as file:
            file.write(bytes(20_000 * (number % 4)))
        largest = max(largest, 3 * path.stat().st_size + 22 * side * side)
        paths.append(str(path))
    room = Noted(largest)
    monkeypatch.setattr(reading, "_BUDGET", room)
    batches = read_batches(map(InputImage, paths), PlainView(4), batch=5, workers=8)
    seen = [each for batch in batches for each in batch]
    assert [each.path for each in seen] == paths
    assert [int(each.pixels[0, 0, 0]) for each in seen] == list(range(24))
    assert room.most <= largest
    assert room._taken == 0


def test_a_file_that_is_not_there_or_too_large_takes_no_more_than_may_be_read(
    tmp_path, monkeypatch
):
    room = Noted(10**12)
    monkeypatch.setattr(reading, "_BUDGET", room)
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(10**12)
    assert "Is a directory" in read_one(InputImage(str(tmp_path)), PlainView(4)).problem
    assert "No such file" in read_one(InputImage(str(tmp_path / "none.png")), PlainView(4)).problem
    assert "bytes exceed" in read_one(InputImage(str(tmp_path / "huge.png")), PlainView(4)).problem
    assert room.asked[1:] == [0, 3 * decoding_limits.LARGEST_FILE]


def test_padded_files_do_not_fill_the_memory_however_many_threads_read(tmp_path, monkeypatch):
    paths, padding = [], 10**7
    for number in range(8):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (8, 8)).save(path)
        with open(path, "ab") as file:  # a PNG ends where it says; what follows is passed over
            file.truncate(path.stat().st_size + padding)
        paths.append(str(path))
    room = 3 * padding + 10**6
    monkeypatch.setattr(reading, "_BUDGET", MemoryBudget(room))
    decode = reading.decode_limited

    def slowly(*arguments):
        time.sleep(0.05)
        return decode(*arguments)

    monkeypatch.setattr(reading, "decode_limited", slowly)
    tracemalloc.start()
    try:
        seen = list(read_batches(map(InputImage, paths), PlainView(4), batch=8, workers=8))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [each.problem for batch in seen for each in batch] == [None] * 8
    assert padding < peak < room + 10**6
