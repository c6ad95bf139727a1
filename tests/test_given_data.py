"""Data given in Python: data sets, loaders, iterables and tensors, evaluated; and bad ones refused."""

import os
import random

import numpy as np
import pytest
import torch
from conftest import small_cnn
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import v2

import killick
from killick.data.dataset_reader import read_dataset
from killick.data.given_data import as_set
from killick.data.given_samples import PixelConverter
from killick.data.streams import SampleStream, read_stream
from killick.errors import DataError, KillickError, OptionError
from killick.report.bootstrap import BootstrapDraws, resample
from killick.results.predictions import prediction_files, read_predictions

SIDE, CLASSES = 16, 5
NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SHORT = {"suites": ("clean", "corruptions"), "corruptions": ["contrast"], "severities": [2]}


def make_images(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, SIDE, SIDE), generator=generator)
    return images.to(torch.uint8), torch.arange(count) % CLASSES


class Listed:
    """A map-style data set of given samples."""

    def __init__(self, images, labels) -> None:
        self.images, self.labels = list(images), list(labels)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number):
        return self.images[number], self.labels[number]


class Streaming(IterableDataset):
    """The same samples without length and numbers."""

    def __init__(self, images, labels) -> None:
        self.samples = list(zip(images, labels, strict=True))

    def __iter__(self):
        return iter(self.samples)


def normalized(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in NORMALIZE)
    return (images / 255 - mean) / std


def to_pil(images: torch.Tensor) -> list[Image.Image]:
    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return small_cnn().eval()


def score(net, data, **options) -> dict[tuple[str, str], float]:
    rows = killick.evaluate(net, data, normalize=NORMALIZE, size=SIDE, **SHORT, **options)
    return {(row["suite"], row["metric"]): row["value"] for row in rows}


FORMS = {
    "uint8 data set": lambda images, labels: Listed(images, labels.tolist()),
    "float data set": lambda images, labels: Listed(images / 255, labels),
    "normalized data set": lambda images, labels: Listed(normalized(images), labels),
    "PIL data set": lambda images, labels: Listed(to_pil(images), labels.numpy()),
    "tensor data set": lambda images, labels: TensorDataset(normalized(images), labels),
    "normalized tensors": lambda images, labels: (normalized(images), labels),
    "half precision": lambda images, labels: ((images / 255).half(), labels),
    "loader": lambda images, labels: DataLoader(Listed(images / 255, labels), batch_size=7),
    "normalized loader": lambda images, labels: DataLoader(
        Listed(normalized(images), labels), batch_size=7, num_workers=1
    ),
    "dictionaries": lambda images, labels: DataLoader(
        [
            {"pixel_values": image, "labels": label}
            for image, label in zip(images, labels, strict=True)
        ],
        batch_size=9,
    ),
    "stream of samples": lambda images, labels: Streaming(images, labels),
    "stream of PIL images": lambda images, labels: Streaming(to_pil(images), labels),
    "generator": lambda images, labels: (pair for pair in zip(images, labels, strict=True)),
}


@pytest.fixture(scope="module")
def expected(net):
    return score(net, make_images())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_gives_the_results_of_uint8_tensors(net, expected, form):
    found = score(net, FORMS[form](*make_images()), workers=0)
    assert found == expected


def test_all_256_values_survive_normalization_and_its_inverse():
    values = torch.arange(256).to(torch.uint8).view(1, 16, 16).expand(3, 16, 16)
    for dtype in (torch.float32, torch.float64):
        given = normalized(values).to(dtype)
        convert = PixelConverter.like(
            "data", [given], killick.core.image_model.Normalize(*NORMALIZE)
        )
        assert convert.inverts
        assert torch.equal(convert(given), values)


def test_a_data_set_of_the_hub_library_is_read_by_its_columns(net, expected):
    datasets = pytest.importorskip("datasets")
    images, labels = make_images()
    features = datasets.Features(
        {
            "photo": datasets.Image(),
            "kind": datasets.ClassLabel(names=[str(number) for number in range(CLASSES)]),
        }
    )
    columns = {"photo": to_pil(images), "kind": labels.tolist()}
    given = datasets.Dataset.from_dict(columns, features=features)
    assert score(net, given, workers=0) == expected

    def transform(rows):
        pixels = [v2.functional.pil_to_tensor(image) / 255 for image in rows["photo"]]
        return {"pixel_values": pixels, "label": rows["kind"]}

    assert score(net, given.with_transform(transform), workers=0) == expected
    assert score(net, given.to_iterable_dataset(), workers=0) == expected


def test_nothing_is_printed_and_pandas_reads_the_rows(net, capsys):
    pandas = pytest.importorskip("pandas")
    rows = killick.evaluate(net, make_images(), normalize=NORMALIZE, **SHORT)
    assert capsys.readouterr() == ("", "")
    table = pandas.DataFrame(rows)
    assert table.value.dtype == float
    assert table[(table.suite == "clean") & (table.metric == "top1")].value.between(0, 1).all()
    killick.evaluate(net, make_images(), ("clean", "calibration"), normalize=NORMALIZE, quiet=False)
    assert capsys.readouterr().out


def test_streams_say_so_in_rows_and_have_no_paired_intervals(net, tmp_path):
    images, labels = make_images()
    loader = DataLoader(Listed(images, labels), batch_size=8, shuffle=True)
    for access, data in (("indexed", (images, labels)), ("stream", loader)):
        folder = tmp_path / access
        rows = killick.evaluate(net, data, normalize=NORMALIZE, folder=folder, **SHORT)
        assert {row["access"] for row in rows} == {access}
        predictions = [read_predictions(file) for file in prediction_files(folder)]
        assert bool(resample(predictions, BootstrapDraws(10), {})) == (access == "indexed")


def test_images_given_in_the_networks_size_are_not_resized_again(net):
    images, labels = make_images()
    plain = {"normalize": NORMALIZE, "suites": ("clean",), "resize": 20}
    for data in ((images, labels), Listed(images / 255, labels)):
        rows = killick.evaluate(net, data, size=SIDE, workers=0, **plain)
        assert {row["view"] for row in rows} == {f"{SIDE} px"}
    rows = killick.evaluate(net, Listed(to_pil(images), labels), size=SIDE, workers=0, **plain)
    assert {row["view"] for row in rows} == {f"{SIDE} of 20 px"}


def test_ood_images_need_no_labels(net):
    images, labels = make_images()
    others = {"tensors": images, "dataset": Unlabeled(images / 255)}
    others["stream"] = DataLoader(Listed(images, labels), batch_size=10)
    others["unlabeled"] = DataLoader(Unlabeled(images), batch_size=10)
    rows = killick.evaluate(
        net,
        (images, labels),
        ("clean", "ood"),
        ood=others,
        synthetic=(),
        normalize=NORMALIZE,
        workers=0,
    )
    found = {row["set"] for row in rows if row["suite"] == "ood"}
    assert found == set(others)


def test_what_a_data_set_draws_depends_on_key_and_number_alone():
    images, labels = make_images(8)

    class Noisy(Listed):
        def __getitem__(self, number):
            image, label = super().__getitem__(number)
            drawn = (int(torch.randint(200, (1,))), random.randrange(200))
            drawn = torch.tensor([*drawn, np.random.randint(200)])  # noqa: NPY002
            return drawn.to(torch.uint8).view(3, 1, 1).expand_as(image), label

    data = read_dataset("noisy", Noisy(images, labels), workers=0)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = [data.read(number, 1) for number in range(8)]
    again = [data.read(number, 1) for number in reversed(range(8))][::-1]
    other = [data.read(number, 2) for number in range(8)]
    assert all(map(torch.equal, first, again))
    for channel in range(3):  # of torch, Python and NumPy
        drawn, others = ([int(image[channel, 0, 0]) for image in each] for each in (first, other))
        assert len(set(drawn)) > 1
        assert drawn != others
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002


def test_labels_are_read_from_targets_only_if_the_data_set_yields_them(image_folder):
    plain = ImageFolder(image_folder)
    found = read_dataset("folder", plain)
    assert found.labels.tolist() == plain.targets
    assert found.class_names == tuple(plain.classes)
    assert not found.augmented
    part = read_dataset("part", Subset(plain, [19, 0, 7]))
    assert part.labels.tolist() == [3, 0, 1]
    turned = ImageFolder(image_folder, target_transform=lambda label: 3 - label)
    assert read_dataset("turned", turned, workers=0).labels.tolist() == [
        3 - label for label in plain.targets
    ]
    assert read_dataset("fake", FakeData(6, (3, 8, 8), 3), workers=1).labels.max() < 3


class Dying(Listed):
    """Its third sample ends the process that reads it, if that is a worker."""

    home = os.getpid()

    def __getitem__(self, number):
        if number == 2 and os.getpid() != self.home:
            os._exit(3)
        return super().__getitem__(number)


class Failing(Listed):
    def __getitem__(self, number):
        if number == 2:
            raise KeyError("no such thing")
        return super().__getitem__(number)


def bad_data():
    images, labels = make_images()
    one_hot = torch.eye(CLASSES)[labels]
    yield "floats", Listed(normalized(images), labels), "0 to 1, found -2"
    yield "float loader", DataLoader(Listed(images.float(), labels)), "0 to 1, found"
    yield "float tensors", (normalized(images), labels), "normalize=(mean, std)"
    yield "whole numbers", Listed(images.int(), labels), "int32"
    yield "channels last", Listed(images.permute(0, 2, 3, 1), labels), "permute"
    yield "one-hot", Listed(images, one_hot), "argmax"
    yield "one-hot loader", DataLoader(Listed(images, one_hot), 8), "argmax"
    yield "one-hot tensors", (images, one_hot), "argmax"
    yield "float labels", Listed(images, labels.float()), "class number"
    yield "out of range", (images, labels + 3), "5 classes"
    yield "out of range in a loader", DataLoader(Listed(images, labels + 3), 8), "5 classes"
    yield "negative", Listed(images, labels - 1), "-1"
    yield "no labels", Unlabeled(images), "(image, label)"
    yield "a loader without labels", DataLoader(Unlabeled(images), 8), "(image, label)"
    yield "empty", Listed([], []), "empty"
    yield "empty stream", Streaming([], []), "empty"
    yield "two sizes", Streaming([images[0], images[1, :, :8, :8]], [0, 1]), "one size"
    yield "arrays", Listed(images.numpy(), labels), "ndarray"
    yield "a worker that dies", DataLoader(Dying(images, labels), num_workers=1), "worker process"
    yield "a data set that raises", Failing(images, labels), "image 2 of Failing: KeyError"
    yield (
        "a loader that raises",
        DataLoader(Failing(images, labels), 8),
        "KeyError: 'no such thing'",
    )
    workers = DataLoader(Failing(images, labels), 8, num_workers=1)
    yield "a worker that raises", workers, "cannot read DataLoader: KeyError"
    yield "nothing", object(), "found object"
    yield "a dictionary", {"train": 1}, "found dict"


class Unlabeled(Listed):
    def __init__(self, images) -> None:
        super().__init__(images, images)

    def __getitem__(self, number):
        return self.images[number]


@pytest.mark.parametrize(("data", "says"), [pytest.param(d, s, id=n) for n, d, s in bad_data()])
def test_bad_data_are_refused_in_one_line(net, data, says, tmp_path):
    network = killick.standard(net, NORMALIZE, image_shape=(3, SIDE, SIDE))
    with pytest.raises(KillickError) as problem:
        killick.evaluate(network, data, ("clean",), folder=tmp_path / "rows", workers=0)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "rows").exists()


def test_a_worker_of_a_map_style_set_that_dies_is_one_line(net):
    images, labels = make_images()
    data = Dying(images, labels)
    data.targets = labels
    with pytest.raises(DataError, match="worker process that reads Dying died"):
        killick.evaluate(net, data, ("clean",), normalize=NORMALIZE, workers=1)


def test_wrong_normalize_is_refused():
    images, _ = make_images(4)
    with pytest.raises(DataError, match="do not fit normalize"):
        as_set("data", normalized(images), normalize=((0.5,) * 3, (0.5,) * 3))
    with pytest.raises(OptionError):
        as_set("data", (1, 2))


def test_a_stream_is_kept_in_a_file_that_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    images, labels = make_images()
    found = read_stream(SampleStream("stream", Streaming(images, labels)))
    assert torch.equal(found.images(), images)
    assert found.labels.tolist() == labels.tolist()
    assert os.listdir(tmp_path) == []


class OwnGenerator(Listed):
    """Noise from a generator that nobody else can seed."""

    generator = torch.Generator()

    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return torch.randint(256, image.shape, generator=self.generator).byte(), label


def test_a_data_set_with_a_generator_of_its_own_is_not_indexed(caplog):
    images, labels = make_images()
    assert as_set("plain", Listed(images, labels)).access == "indexed"
    assert not caplog.text
    assert as_set("odd", OwnGenerator(images, labels)).access == "stream"
    assert "a resumed run is not exact" in caplog.text
