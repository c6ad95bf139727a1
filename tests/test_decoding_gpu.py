"""JPEGs decoded on a GPU against Pillow, and runs that train on them."""

import numpy as np
import pytest
import torch
from image_files import encode
from PIL import Image
from runs import losses_of, small
from torch import Tensor
from torchvision.transforms.v2 import functional

from killick.data.augment import ragged_crops
from killick.data.augment.ragged_crops import RaggedCrop
from killick.data.batches import Cut
from killick.data.device_batches import ResidentFiles, StreamedFiles
from killick.data.device_decoding import find_decoder, read_resident
from killick.data.image_set import ImageSet
from killick.data.sources.imagefolder import FileReader
from killick.data.transforms import Shift
from killick.training import train
from killick.training.checkpoint import load_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning"),
]
CUDA = torch.device("cuda:0")
OPTIONS = [
    *({}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}),
    *({"optimize": True}, {"restart_marker_blocks": 3}, {"quality": 50}),
]


def make_image(height: int, width: int, seed: int) -> Image.Image:
    """Smooth colors, as photographs have them."""
    chance = np.random.default_rng(seed)
    coarse = Image.fromarray(chance.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of 24 files, of several sizes and kinds; every eighth is a PNG, every ninth gray."""
    top = tmp_path_factory.mktemp("jpegs")
    for number in range(48):
        image = make_image(40 + 9 * number % 200, 50 + 31 * number % 170, number)
        image = image.convert("L") if number % 9 == 8 else image
        kind = "PNG" if number % 8 == 7 else "JPEG"
        options = OPTIONS[number % len(OPTIONS)] if kind == "JPEG" else {}
        (top / f"class{number % 2}").mkdir(exist_ok=True)
        file = top / f"class{number % 2}" / f"{number:02}.{kind.lower()}"
        file.write_bytes(encode(image, kind, **options))
    return top


@pytest.fixture(scope="module")
def files(folder) -> ImageSet:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    return ImageSet.of("jpegs", FileReader(folder, names), torch.arange(48) % 2, ["a", "b"])


def noise_ratio(one: Tensor, other: Tensor) -> float:
    """PSNR in dB."""
    error = (one.double() - other.double()).square().mean()
    return float(10 * torch.log10(255**2 / error.clamp_min(1e-9)))


def test_pixels_sizes_and_order_are_those_of_pillow(files):
    decoder = find_decoder(CUDA)
    assert decoder is not None
    images = read_resident(files, CUDA, decoder, 2, 0)
    assert len(images) == 48
    for number in range(48):
        expected, start = files.read(number), int(images._starts[number])
        assert tuple(map(int, images._shapes[number])) == expected.shape[1:]
        found = images.contents[start : start + expected.numel()].view(expected.shape).cpu()
        assert noise_ratio(found, expected) > 35, files.paths()[number]


def test_decoding_leaves_memory_alone_that_is_still_read():
    """The hardware decoder writes at once, whatever waits in the stream."""
    decoder = find_decoder(CUDA)
    files = [
        [torch.frombuffer(bytearray(encode(make_image(200, 300, n), "JPEG")), dtype=torch.uint8)]
        for n in range(2)
    ]
    expected = decoder(files[0])[0].clone()
    torch.cuda.synchronize()
    first = decoder(files[0])[0]
    torch.cuda._sleep(10**9)
    read = first.clone()
    place = first.data_ptr()
    del first
    second = decoder(files[1])[0]
    assert second.data_ptr() == place  # else nothing is tested
    assert torch.equal(read, expected)
    assert not torch.equal(second, expected)


@pytest.mark.parametrize("resized", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crops_by_the_kernel_and_by_products_are_those_of_the_cpu(
    files, interpolation, resized, monkeypatch
):
    crop = RaggedCrop(64, interpolation, resized, Shift(0, True, True))
    numbers, keys = torch.arange(48), torch.arange(48) * 7919
    expected = crop(read_resident(files, torch.device("cpu"), None, 0, 0), numbers, keys)
    images = read_resident(files, CUDA, None, 0, 0)
    assert ragged_crops.has_kernel(CUDA)
    assert torch.equal(crop(images, numbers, keys).cpu(), expected)
    monkeypatch.setattr(ragged_crops, "has_kernel", lambda device: False)
    assert torch.equal(crop(images, numbers, keys).cpu(), expected)


def test_streamed_samples_are_the_resident_ones(files):
    crop, shift, decoder = RaggedCrop(64, "bicubic", True, Shift()), Shift(), find_decoder(CUDA)
    images = read_resident(files, CUDA, decoder, 0, 0)
    ours = ResidentFiles(images, files.labels, crop, shift, None, Cut(8), seed=0)
    options = {"seed": 0, "device": CUDA, "workers": 2}
    theirs = StreamedFiles(files, decoder, crop, shift, None, Cut(8), **options)
    for epoch in range(2):
        ours.begin(epoch, 0)
        theirs.begin(epoch, 0)
        for _ in range(6):
            ours.load()
            theirs.load()
            for a, b in zip(ours.batch(0), theirs.batch(0), strict=True):
                assert torch.equal(a, b)
    theirs.close()


@pytest.mark.parametrize("policy", ["none", "trivialaugment"])
def test_runs_are_the_same_streamed_resident_eager_and_captured(folder, tmp_path, policy):
    curves = []
    for number, (resident, execution) in enumerate(
        (("always", "eager"), ("never", "eager"), ("auto", "captured"), ("never", "captured"))
    ):
        recipe = small(
            folder,
            augment={"crop": "resized", "flip": True, "policy": policy},
            data__resident=resident,
            data__workers=2,
            data__size=32,
            protocol__references="batch",
            execution=execution,
            precision="float32",
            epochs=3,
            batch=8,
        )
        place = tmp_path / str(number)
        train(recipe, place, device="cuda", quiet=True)
        way = load_checkpoint(place)[0]["way"]
        assert way == ("batched" if resident == "never" else "resident")
        curves.append(torch.tensor(losses_of(place)))
    for curve in curves[1:]:
        torch.testing.assert_close(curve, curves[0], atol=5e-3, rtol=5e-3)


def test_resizing_on_the_gpu_is_torchvisions(files):
    crop = RaggedCrop(48, "bilinear", False, Shift(), squash=True)
    found = crop(read_resident(files, CUDA, None, 0, 0), torch.arange(48), torch.zeros(48).long())
    for number in range(48):
        expected = functional.resize(files.read(number), [48, 48], antialias=True)
        assert (found[number].cpu().int() - expected.int()).abs().max() <= 1
