"""Batches decoded on a device: every format, every sample once, the same however a step is cut.

The GPU's decoder is the one thing that is replaced here, by Pillow's.
"""

import gc
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from image_files import encode
from PIL import Image
from runs import losses_of, small, train_and_stop
from test_batches import assert_same, joined, run
from torch import Tensor

from killick.data import device_batches
from killick.data.augment.ragged_crops import RaggedCrop
from killick.data.batches import Cut
from killick.data.decoding import decode
from killick.data.device_batches import ResidentFiles, StreamedFiles, made_ahead
from killick.data.device_decoding import (
    FileFacts,
    as_read,
    decode_batch,
    find_decoder,
    join,
    look_at_files,
    read_resident,
    to_read,
)
from killick.data.image_set import ImageSet
from killick.data.jpeg_header import suits_gpu
from killick.data.sample_loader import read_in_order
from killick.data.sources import load_sets
from killick.data.sources.hf import RowReader
from killick.data.sources.imagefolder import FileReader
from killick.data.transforms import Shift, gather
from killick.errors import DataError
from killick.evaluation import image_blocks
from killick.runtime import devices
from killick.runtime.processes import Processes
from killick.training import load_recipe, train, training_input
from killick.training.callbacks import Callback
from killick.training.training_data import load_training_data
from killick.training.training_input import BATCHED, RESIDENT, SINGLE, BatchPlan, MemoryRoom

CPU = torch.device("cpu")
PROCESSES = Processes(0, 1, CPU)


class PillowDecoder:
    """In place of the GPU's; notes what it is given, and fails at a file that Pillow cannot read."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __call__(self, files: list[Tensor]) -> list[Tensor]:
        self.given.append(len(files))
        try:
            return [decode(file.numpy().tobytes(), "it") for file in files]
        except DataError as problem:
            raise RuntimeError("a batch fails as a whole") from problem


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> ImageSet:
    """24 files of several sizes: JPEGs, and among them PNGs, a gray, a turned and a CMYK JPEG."""
    folder, chance = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    names = []
    for number in range(24):
        shape = (int(chance.integers(5, 60)), int(chance.integers(5, 60)), 3)
        image = Image.fromarray(chance.integers(0, 256, shape, dtype=np.uint8))
        kind, options = "PNG" if number % 6 == 1 else "JPEG", {}
        if number == 3:
            image = image.convert("L")
        elif number == 4:
            options["exif"] = Image.Exif()
            options["exif"][274] = 6
        elif number == 5:
            image = image.convert("CMYK")
        names.append(f"{number:02}.{kind.lower()}")
        (folder / names[-1]).write_bytes(encode(image, kind, **options))
    return ImageSet.of("files", FileReader(folder, names), torch.arange(24) % 3, ["a", "b", "c"])


def read(images: ImageSet, decoder, workers: int = 0) -> list[Tensor]:
    """All images of a set by batches of 7."""
    batches = read_in_order(to_read(images, decoder), as_read, workers, 7, join)
    return [image for batch in batches for image in decode_batch(batch, images, decoder)]


@pytest.mark.parametrize("workers", [0, 2])
def test_all_formats_come_in_order_and_only_usual_jpegs_are_given_to_the_decoder(files, workers):
    decoder = PillowDecoder()
    found = read(files, decoder, workers)
    assert sum(decoder.given) == 24 - 4 - 3
    assert len(found) == 24
    for number, image in enumerate(found):
        assert torch.equal(image, files.read(number))


def test_rows_of_the_datasets_library_are_files_for_the_decoder(files):
    cells = [
        {"bytes": None, "path": path} if number % 2 else {"bytes": data, "path": None}
        for number, path in enumerate(files.paths())
        for data in [files.source.encoded(number)]
    ]
    rows = replace(files, source=RowReader("pets", [{"image": cell} for cell in cells], "image"))
    decoder = PillowDecoder()
    for ours, theirs in zip(read(rows, decoder), read(files, None), strict=True):
        assert torch.equal(ours, theirs)
    assert sum(decoder.given) == 24 - 4 - 3
    assert look_at_files(rows) == look_at_files(files)
    recipe = load_recipe("small-shapes", {"augment.crop": "resized"})
    assert BatchPlan.of(recipe, rows, lambda: None, CPU).files


def test_without_a_decoder_workers_decode(files):
    for number, image in enumerate(read(files, None)):
        assert torch.equal(image, files.read(number))


def test_a_part_of_a_set_is_read_by_its_numbers(files):
    part = files.part(torch.tensor([20, 3, 7]))
    for number, image in enumerate(read(part, PillowDecoder())):
        assert torch.equal(image, part.read(number))


def damaged(files: ImageSet, folder, content: bytes) -> ImageSet:
    (folder / "good.jpg").write_bytes(files.source.encoded(0))
    (folder / "bad.jpg").write_bytes(content)
    reader = FileReader(folder, ["good.jpg", "bad.jpg"])
    return ImageSet.of("damaged", reader, torch.tensor([0, 1]), ["a", "b"])


def test_a_damaged_image_is_named(files, tmp_path):
    whole = files.source.encoded(0)
    no_table = whole.replace(b"\xff\xdb", b"\xff\xfe")  # found by the decoder alone
    assert suits_gpu(no_table)
    for content in (b"", whole[:100], whole[:-2], no_table):
        images = damaged(files, tmp_path, content)
        for decoder in (PillowDecoder(), None):
            with pytest.raises(DataError, match=r"bad\.jpg: .* killick check DATA"):
                read_resident(images, CPU, decoder, 0, 0)
    images.source.path = lambda number: str(tmp_path / "missing.jpg")
    with pytest.raises(DataError, match=r"missing\.jpg: No such file"):
        read_resident(images, CPU, PillowDecoder(), 0, 0)


def test_what_the_decoder_refuses_and_pillow_reads_is_used(files):
    def refuse(given: list[Tensor]) -> list[Tensor]:
        raise RuntimeError("nvjpeg status 6")

    for number, image in enumerate(read(files, refuse)):
        assert torch.equal(image, files.read(number))


def test_the_size_of_a_set_is_estimated_from_headers(files, monkeypatch):
    size = sum(files.read(number).numel() for number in range(24))
    monkeypatch.setattr(FileReader, "__getitem__", None)  # nothing is decoded
    facts = look_at_files(files)
    assert facts.size == pytest.approx(1.1 * size, abs=3)
    assert facts.suit_gpu
    assert not look_at_files(files.part(torch.tensor([1, 7, 3]))).suit_gpu
    assert find_decoder(CPU) is None


CROPS = {
    "resized": (RaggedCrop(16, "bilinear", True, Shift(0, True, True)), Shift(0, True, True)),
    "padded": (RaggedCrop(16, "bicubic", False, Shift(2, True)), Shift(2, True)),
    "plain": (RaggedCrop(16, "bilinear", False, Shift(), True), Shift()),
}


def resident(files: ImageSet, how: str, cut: Cut, **options) -> ResidentFiles:
    images = read_resident(files, CPU, PillowDecoder(), 0, 0)
    return ResidentFiles(images, files.labels, *CROPS[how], None, cut, seed=0, **options)


def streamed(files: ImageSet, how: str, cut: Cut, workers: int = 0, **options) -> StreamedFiles:
    options = {"seed": 0, "device": CPU, "workers": workers, **options}
    return StreamedFiles(files, PillowDecoder(), *CROPS[how], None, cut, **options)


@pytest.mark.parametrize("how", CROPS)
def test_streamed_samples_are_the_resident_ones_however_a_step_is_cut(files, how):
    whole = joined(run(resident(files, how, Cut(12)), epoch=1))
    assert sorted(whole.numbers.tolist()) == list(range(24))
    assert torch.equal(whole.labels, files.labels[whole.numbers])
    batches = streamed(files, how, Cut(12), workers=2)
    assert_same(joined(run(batches, epoch=1)), whole)
    assert_same(joined(run(batches, 1, step=1)), joined(run(resident(files, how, Cut(12)), 1, 1)))
    batches.close()
    for make in (resident, streamed):
        parts = [list(run(make(files, how, Cut(12, rank, 2, 3)), 1)) for rank in (0, 1)]
        assert_same(joined(each for both in zip(*parts, strict=True) for each in both), whole)
    other = joined(run(resident(files, how, Cut(12)), epoch=2))
    assert not torch.equal(other.images, whole.images)


def test_padded_crops_are_shifts_of_the_middle(files):
    crop, shift = CROPS["padded"]
    batch = joined(run(resident(files, "padded", Cut(12)), 0))
    images = read_resident(files, CPU, None, 0, 0)
    middle = crop(images, batch.numbers, batch.keys).permute(0, 2, 3, 1).contiguous()
    expected = gather(middle, torch.arange(24), *shift.draw(batch.keys))
    assert torch.equal(batch.images, expected)


def test_repetitions_of_a_sample_are_augmented_anew(files):
    batch = joined(run(resident(files, "resized", Cut(12), repeats=3), 0))
    assert len(set(batch.numbers.tolist())) == 8
    assert len({image.numpy().tobytes() for image in batch.images}) == 24


def test_batches_are_made_ahead_in_one_thread_which_ends():
    made, threads = [], set()

    def make():
        for number in range(5):
            made.append(number)
            threads.add(threading.current_thread())
            yield number

    batches = made_ahead(make(), CPU)
    assert next(batches) == 0
    assert next(batches) == 1
    batches.close()
    assert made[:2] == [0, 1]
    assert len(made) <= 3
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    assert list(made_ahead(iter("abc"), CPU)) == ["a", "b", "c"]


def test_a_thread_that_waits_for_ever_holds_up_no_end(monkeypatch):
    monkeypatch.setattr(device_batches, "_SECONDS_TO_END", 0.1)
    go_on = threading.Event()

    def make():
        yield 1
        go_on.wait(60)
        yield 2

    batches = made_ahead(made_ahead(make(), CPU), CPU)
    assert next(batches) == 1
    began = time.monotonic()
    batches.close()
    assert time.monotonic() - began < 5
    go_on.set()


def test_a_gpu_without_memory_is_no_file_for_pillow(files):
    def full(given: list[Tensor]) -> list[Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        read(files, full)


def test_sets_that_the_gpu_refuses_are_not_sent_there(tmp_path):
    for number in range(6):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.new("L", (20, 20)).save(folder / f"{number}.jpg")
    images = load_sets(f"imagefolder:{tmp_path}").train
    assert not look_at_files(images).suit_gpu


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_finished_run_leaves_no_images_behind(image_folder, tmp_path):
    steps = []

    class Keep(Callback):
        def on_epoch(self, progress):
            steps.append(weakref.ref(progress.run._step))

    gc.collect()
    gc.disable()
    try:
        train(recipe_of(image_folder), tmp_path / "run", quiet=True, callbacks=[Keep()])
        assert steps[0]() is None
    finally:
        gc.enable()


def test_processes_share_the_memory_of_their_host(monkeypatch):
    monkeypatch.setattr(image_blocks, "free_memory", lambda place: 1000)
    assert image_blocks.find_room(CPU, 200, 2) == CPU
    assert image_blocks.find_room(CPU, 200, 3) is None


def test_problems_of_the_thread_are_raised_where_batches_are_used(files, tmp_path):
    batches = streamed(damaged(files, tmp_path, b"no image"), "resized", Cut(2))
    batches.begin(0, 0)
    with pytest.raises(DataError, match=r"bad\.jpg"):
        batches.load()
    batches.close()


def recipe_of(image_folder, **changes):
    fixed = {"data__mean": [0.5] * 3, "data__std": [0.25] * 3, "protocol__reference_set": 8}
    changes = {"epochs": 1, "data__workers": 0, **fixed, **changes}
    return small(image_folder, augment__crop="resized", **changes)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """JPEGs are decoded in batches, and batches are as fast as on a GPU."""
    monkeypatch.setattr(training_input, "find_decoder", lambda device: PillowDecoder())
    facts = FileFacts(6000, suit_gpu=True)  # the files are PNGs
    monkeypatch.setattr(training_input, "look_at_files", lambda images: facts)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_streamed_run_is_the_resident_one_also_across_a_stop(image_folder, tmp_path, monkeypatch):
    for how in ("always", "never"):
        train(recipe_of(image_folder, data__resident=how), tmp_path / how, quiet=True)
        cut = tmp_path / f"{how}-cut"
        train_and_stop(recipe_of(image_folder, data__resident=how), cut, 2, monkeypatch)
        state = torch.load(cut / "checkpoint.pt", weights_only=True)
        assert state["way"] == (RESIDENT if how == "always" else BATCHED)
        monkeypatch.setattr(training_input, "find_decoder", lambda device: None)
        train(None, cut, resume=True, quiet=True)  # on a machine without a GPU
        assert losses_of(cut) == losses_of(tmp_path / how)
        monkeypatch.setattr(training_input, "find_decoder", lambda device: PillowDecoder())
    assert losses_of(tmp_path / "always") == losses_of(tmp_path / "never")


@pytest.mark.parametrize(
    ("crop", "resident", "free", "ways"),
    [  # on a CPU, and where JPEGs are decoded in batches
        ("resized", "auto", 10**9, (SINGLE, BATCHED)),
        ("resized", "always", 1, (RESIDENT, RESIDENT)),
        ("resized", "never", 10**9, (SINGLE, BATCHED)),
        ("resized", "never", 1, (SINGLE, SINGLE)),  # no room for what is decoded
        ("pad", "auto", 10**9, (RESIDENT, RESIDENT)),
        ("pad", "auto", 16 * 3 * 16**2, (SINGLE, BATCHED)),  # a share of it is too little
    ],
)
def test_the_way_is_chosen_from_free_memory(
    image_folder, request, monkeypatch, crop, resident, free, ways
):
    monkeypatch.setattr(training_input, "free_memory", lambda device: free)
    recipe = recipe_of(image_folder, data__resident=resident)
    recipe = replace(recipe, augment=replace(recipe.augment, crop=crop))
    assert load_training_data(recipe, PROCESSES).way == ways[0]
    request.getfixturevalue("as_on_a_gpu")
    assert load_training_data(recipe, PROCESSES).way == ways[1]


def test_room_is_a_share_of_free_memory_given_out_once(monkeypatch):
    monkeypatch.setattr(training_input, "free_memory", lambda device: 1000)
    room = MemoryRoom(PROCESSES, "auto")
    assert (room.total, room.take(300), room.take(101), room.take(100)) == (400, True, False, True)
    assert MemoryRoom(PROCESSES, "always").take(10**9)
    assert not MemoryRoom(PROCESSES, "never").take(1)
    monkeypatch.setattr(Processes, "highest", lambda self, values: values.clamp_min(-200))
    assert MemoryRoom(Processes(0, 2, CPU), "auto").total == 80  # the least of any process
    monkeypatch.setattr(Processes, "highest", lambda self, values: values)
    assert MemoryRoom(Processes(0, 2, CPU), "auto").total == 200  # of the memory both share


def test_free_memory_is_the_devices_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 999))
    assert devices.free_memory(torch.device("cuda:0")) == 123
    assert devices.free_memory(CPU) > 10**6
