"""Frost against slow loops, OpenCV and the peer; our ice beside the originals' photographs."""

import math
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import weather as oracle
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

from killick.corruptions import frost as module
from killick.corruptions.corruption import CORRUPTIONS
from killick.corruptions.frost import frost, load_photographs
from killick.corruptions.ice import PANES, make_ice
from killick.corruptions.suites import TABLES
from killick.errors import DataError, ShapeError

CIFAR, TINY, IMAGENET = (getattr(CORRUPTIONS.find("frost"), table) for table in TABLES)
PEER = "imagecorruptions"
CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_bytes(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(seed))


def run(images: Tensor, row: tuple[float, ...], seed: int = 0, **options: object) -> Tensor:
    return frost(images, *row, generator=seeded(seed), **options)


def array(image: Tensor) -> np.ndarray:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def quietly(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


@pytest.fixture(scope="module")
def photographs() -> list[Tensor]:
    quietly(PEER)
    return load_photographs(PEER)


@pytest.mark.parametrize("row", [*CIFAR, *TINY, *IMAGENET])
@pytest.mark.parametrize("size", [(12, 12), (7, 15)])
def test_frost_is_that_of_the_slow_version(row, size):
    images, (weight, added, scale) = random_bytes(6, 3, *size), row
    textures = [random_bytes(3, 90, 97, seed=1), random_bytes(3, 82, 110, seed=2)]
    found = run(images, row, textures=textures)
    generator = seeded()
    which = torch.randint(2, (6,), generator=generator).tolist()
    down, right = torch.rand(2, 6, generator=generator).tolist()
    resized = []
    for texture in textures:
        tall, wide = round(texture.shape[1] * scale), round(texture.shape[2] * scale)
        resized.append(oracle.resize(array(texture), scale, tall, wide))
    for i in range(6):
        pane = resized[which[i]]
        top = math.floor(down[i] * (pane.shape[0] - size[0]))
        left = math.floor(right[i] * (pane.shape[1] - size[1]))
        crop = pane[top : top + size[0], left : left + size[1]]
        exact = np.minimum(weight * array(images[i]) + added * crop, 255)
        wrong = np.abs(array(found[i]) - np.floor(exact + 1e-3))
        assert wrong.max() <= (scale == 0.3)  # at 0.3 one value in 36 is halfway between levels
        assert wrong.mean() < 0.05


@pytest.mark.parametrize("row", [*CIFAR, *TINY, *IMAGENET])
def test_the_images_stay_as_they_are_and_the_same_state_gives_the_same_pixels(row):
    images = random_bytes(5, 3, 24, 31)
    before, first = images.clone(), run(images, row)
    assert torch.equal(images, before)
    assert first.dtype == torch.uint8
    assert first.shape == images.shape
    assert torch.equal(first, run(images, row))
    assert torch.equal(first, run(images.contiguous(memory_format=torch.channels_last), row))
    assert not torch.equal(first, run(images, row, seed=1))


def test_each_image_has_its_own_crop():
    images = torch.zeros(20, 3, 16, 16, dtype=torch.uint8)
    assert len(run(images, IMAGENET[2]).flatten(1).unique(dim=0)) == 20


def test_only_the_generator_is_used_or_else_torchs_own():
    images, state = random_bytes(3, 3, 16, 16), torch.get_rng_state()
    found = run(images, CIFAR[0])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    assert torch.equal(frost(images, *CIFAR[0], generator=None), found)


def test_textures_and_places_are_drawn_evenly_and_the_last_place_never():
    # Each texture has its own red level; green and blue tell the row and the column.
    rows, columns = torch.meshgrid(torch.arange(10), torch.arange(12), indexing="ij")
    textures = [torch.stack((torch.full_like(rows, k), rows, columns)).byte() for k in range(5)]
    corner = run(torch.zeros(20_000, 3, 4, 5, dtype=torch.uint8), (1, 1, 1), textures=textures)
    red, green, blue = corner[:, :, 0, 0].long().unbind(1)
    for found, expected in ((red, 5), (green, 10 - 4), (blue, 12 - 5)):
        shares = found.bincount(minlength=expected) / 20_000
        assert_close(shares, torch.full((expected,), 1 / expected), atol=0.012, rtol=0)
    assert len((red * 100 + green * 10 + blue).unique()) == 5 * 6 * 7


@pytest.mark.parametrize("scale", [0.2, 0.37, 1, 1.1])
def test_textures_are_resized_as_by_opencv(scale):
    cv2 = quietly("cv2")
    for size in ((100, 150), (63, 41)):
        texture = random_bytes(3, *size)
        exact = cv2.resize(array(texture), (0, 0), fx=scale, fy=scale)
        found = array(module._resize(texture, scale, *exact.shape[:2])).astype(int)
        assert np.abs(found - exact).max() <= (0 if scale in (0.2, 1) else 1)
        pixels, begins, heights, widths = module._prepare((texture,), scale, 4, 4, CPU)
        assert (heights.tolist(), widths.tolist()) == ([exact.shape[0]], [exact.shape[1]])
        assert len(pixels) == exact.size


@given(
    height=st.integers(1, 50), width=st.integers(1, 50), tall=st.integers(1, 40),
    wide=st.integers(1, 40), scale=st.sampled_from([0.2, 1.0]),
)  # fmt: skip
@settings(max_examples=40)
def test_textures_that_are_too_small_are_enlarged(height, width, tall, wide, scale):
    texture = random_bytes(3, tall, wide)
    panes = module._prepare((texture,), scale, height, width, CPU)
    tall, wide = max(1, round(tall * scale)), max(1, round(wide * scale))
    enough = tall > height and wide > width
    factor = 1 if enough else 1.1 * max(height / tall, width / wide)
    found = panes.heights.item(), panes.widths.item()
    assert found == (math.ceil(tall * factor), math.ceil(wide * factor))
    assert found[0] > height
    assert found[1] > width
    images = random_bytes(2, 3, height, width)
    assert run(images, (1, 0.5, scale), textures=[texture]).shape == images.shape


def test_textures_are_prepared_once(monkeypatch):
    calls, resize = [], module._resize
    monkeypatch.setattr(module, "_resize", lambda *a: calls.append(1) or resize(*a))
    images, textures = random_bytes(2, 3, 8, 8), [random_bytes(3, 30, 30)]
    first = run(images, IMAGENET[0], textures=textures)
    assert torch.equal(run(images, IMAGENET[0], textures=tuple(textures)), first)
    assert len(calls) == 1


def test_textures_that_are_none_are_refused():
    images = random_bytes(2, 3, 8, 8)
    with pytest.raises(DataError, match="at least one texture of frost, found none"):
        run(images, IMAGENET[0], textures=[])
    with pytest.raises(ShapeError, match=r"uint8 .*found torch\.float32"):
        run(images, IMAGENET[0], textures=[torch.zeros(3, 20, 20)])
    with pytest.raises(ShapeError, match=r"found torch\.uint8 \(20, 20, 3\)"):
        run(images, IMAGENET[0], textures=[random_bytes(20, 20, 3)])


def test_frost_on_a_black_image_is_never_weaker_at_a_higher_severity():
    black = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    for rows in (CIFAR, TINY, IMAGENET):
        means = [run(black, row).float().mean().item() for row in rows]
        assert means == sorted(means)
        assert means[-1] > 1.5 * means[0]


# The photographs


def save(folder: Path, *names: str, mode: str = "RGB") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        Image.new(mode, (9 + i, 7), i).save(folder / name)
    return folder


SIX = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")


@pytest.mark.parametrize("inside", [".", "frost"])
def test_the_first_five_photographs_of_a_folder_are_loaded(tmp_path, inside):
    save(tmp_path / inside, *reversed(SIX))
    (tmp_path / inside / "frost0.txt").write_text("not an image")
    for where in (tmp_path, str(tmp_path)):
        assert [tuple(p.shape) for p in load_photographs(where)] == [
            (3, 7, 9 + i) for i in (5, 4, 3, 2, 1)
        ]


def test_grey_photographs_become_coloured(tmp_path):
    found = load_photographs(save(tmp_path, *SIX[:3], "frost4.png", "frost5.png", mode="L"))
    assert [image.flatten(1).unique(dim=1).flatten().tolist() for image in found] == [
        [i] * 3 for i in range(5)
    ]


def test_too_few_photographs_are_refused(tmp_path):
    save(tmp_path, *SIX[:4])
    with pytest.raises(DataError, match=r"expected 5 photographs frost1\.png.*found fewer"):
        load_photographs(tmp_path)


def test_a_photograph_that_cannot_be_read_is_refused(tmp_path):
    save(tmp_path, *SIX)
    (tmp_path / "frost2.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot read the photograph .*frost2\.png"):
        load_photographs(tmp_path)


@pytest.mark.parametrize("where", ["no_such_package", "no/such/folder", "math", "os.path"])
def test_a_place_without_photographs_is_refused(where):
    with pytest.raises(DataError, match=f"found neither at '{where}'. Leave it out"):
        load_photographs(where)


def test_a_package_with_photographs_is_found_but_not_imported(tmp_path, monkeypatch):
    save(tmp_path / "frosty" / "frost", *SIX)
    (tmp_path / "frosty" / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(load_photographs("frosty")) == 5


def test_the_peers_photographs_are_found(photographs):
    assert [tuple(image.shape[1:]) for image in photographs] == [
        *((600, 900), (315, 560), (315, 560), (350, 527), (495, 660))
    ]


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_the_statistics_are_those_of_the_peer_with_its_photographs(severity, monkeypatch):
    corrupt = quietly(PEER).corrupt
    monkeypatch.setattr(np.random, "randint", np.random.default_rng(0).integers)
    folder = Path(quietly(PEER).__file__).parent / "frost"
    textures = []  # the peer uses all six, enlarged by a tenth
    for path in sorted(folder.glob("frost*")):
        image = Image.open(path).convert("RGB")
        larger = image.resize((math.ceil(image.width * 1.1), math.ceil(image.height * 1.1)))
        textures.append(torch.from_numpy(np.array(larger)).permute(2, 0, 1))
    image = (random_bytes(1, 3, 64, 64) // 2).expand(100, -1, -1, -1)
    arrays = [corrupt(array(i), corruption_name="frost", severity=severity) for i in image[:50]]
    theirs = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).double()
    ours = run(image, IMAGENET[severity - 1], textures=textures).double()
    ours, theirs = (
        torch.stack([found.mean((0, 2, 3)), found.std((2, 3)).mean(0)]) for found in (ours, theirs)
    )
    assert_close(ours, theirs, atol=0, rtol=0.08)


# The ice


def slope(texture: Tensor) -> float:
    """The power with which the spectrum of squares of 224 pixels falls."""
    grey = texture.double().mean(0)
    window = torch.hann_window(224, periodic=False, dtype=torch.float64)
    squares = grey.unfold(0, 224, 45).unfold(1, 224, 45).reshape(-1, 224, 224)
    squares = (squares - squares.mean((1, 2), keepdim=True)) * window * window[:, None]
    power = torch.fft.fft2(squares).abs().square().mean(0).flatten()
    along = torch.fft.fftfreq(224, dtype=torch.float64)
    frequency = torch.hypot(along[:, None], along).flatten()
    bands = torch.logspace(math.log10(2.5 / 224), math.log10(0.5), 9, dtype=torch.float64)
    inside = [(frequency >= a) & (frequency < b) for a, b in zip(bands, bands[1:], strict=False)]
    heights = torch.stack([power[band].mean() for band in inside]).log()
    middles = torch.stack([frequency[band].mean() for band in inside]).log()
    centred = middles - middles.mean()
    return float((centred * heights).sum() / centred.square().sum())


def test_ice_is_five_different_textures_always_the_same():
    first, state = make_ice(), torch.get_rng_state()
    again = make_ice.__wrapped__()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert [(texture.shape, texture.dtype) for texture in first] == [
        ((3, 512, 512), torch.uint8)
    ] * 5
    flat = torch.stack(first).flatten(2).double()
    correlated = torch.corrcoef(flat.mean(1))
    assert (correlated - torch.eye(5)).abs().max() < 0.1


def test_ice_is_the_same_on_every_machine():
    quarters = torch.stack(make_ice()).double().mean(1).view(5, 2, 256, 2, 256).mean((2, 4))
    expected = [
        *(129.6, 133.4, 131.3, 129.7, 204.6, 206.4, 205.8, 208.5, 204.9, 204.3),
        *(205.8, 209.1, 151.1, 153.2, 151.9, 151.8, 129.6, 124.7, 120.9, 117.5),
    ]
    assert_close(quarters.flatten(), torch.tensor(expected).double(), atol=0.3, rtol=0)


@pytest.mark.parametrize("number", range(5))
def test_ice_has_mean_and_spread_as_it_says(number):
    texture, pane = make_ice()[number].double(), PANES[number]
    assert_close(texture.mean((1, 2)), torch.tensor(pane.mean).double(), atol=1.5, rtol=0)
    assert_close(texture.std((1, 2)), torch.tensor(pane.std).double(), atol=2, rtol=0)


@pytest.mark.parametrize("number", range(5))
def test_ice_resembles_the_photographs(number, photographs, record_property):
    table = {}
    for name, texture in (("ice", make_ice()[number]), ("photograph", photographs[number])):
        levels = texture.double()
        table[name] = torch.tensor(
            [*levels.mean((1, 2)), *levels.std((1, 2)), slope(texture)], dtype=torch.float64
        )
        record_property(name, [round(value, 2) for value in table[name].tolist()])
    difference = (table["ice"] - table["photograph"]).abs()
    assert difference[:3].max() < 3  # mean of red, green and blue
    assert difference[3:6].max() < 3  # standard deviation
    assert difference[6] < 0.35  # slope of the spectrum
