"""`killick.corrupt`: what holds for every corruption, whatever it does."""

import pytest
import torch
from torch import Tensor

import killick
from killick.corruptions.corruption import (
    CORRUPTIONS,
    Corruption,
    choose_table,
    describe,
)
from killick.corruptions.suites import PUBLISHED, SUITES, TABLES, list_corruptions
from killick.errors import DataError, DtypeError, OptionError, ShapeError

EVERY = [(name, table) for name in PUBLISHED for table in CORRUPTIONS.find(name).tables]
# These draw nothing.
FIXED = {
    *("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"),
    *("gaussian_blur", "saturate", "circular_motion_blur"),
}


def photographs(count: int = 8, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Smooth images with edges and some noise, in mid tones."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator) * 160 + 40
    large = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    large[:, :, height // 3 : height // 2] += 30
    noise = 6 * torch.randn(count, 3, height, width, generator=generator)
    return (large + noise).clamp(0, 255).to(torch.uint8)


def corrupt(images, name, severity=3, table="cifar", seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return killick.corrupt(images, name, severity, table=table, generator=generator, **options)


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_shape_and_dtype_are_kept_and_the_input_is_untouched(name, table):
    images = photographs(4)
    before = images.clone()
    for severity in range(1, 6):
        made = corrupt(images, name, severity, table)
        assert made.shape == images.shape
        assert made.dtype == torch.uint8
        assert made.data_ptr() != images.data_ptr()
        assert torch.equal(images, before)
        assert not torch.equal(made, images)


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_pixels_depend_on_the_generator_alone(name, table):
    images = photographs(3)
    state = torch.random.get_rng_state()
    made = corrupt(images, name, 4, table)
    assert torch.equal(made, corrupt(images, name, 4, table))
    assert torch.equal(state, torch.random.get_rng_state())  # nothing else is drawn from
    assert torch.equal(made, corrupt(images, name, 4, table, seed=1)) == (name in FIXED)
    # Without a generator the default one is drawn from.
    torch.manual_seed(0)
    assert torch.equal(killick.corrupt(images, name, 4, table=table), made)
    # The memory layout makes no difference.
    sparse = images.to(memory_format=torch.channels_last)
    assert torch.equal(made, corrupt(sparse, name, 4, table))


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_each_image_has_its_own_randomness(name, table):
    images = photographs(1).expand(6, -1, -1, -1).contiguous()
    made = corrupt(images, name, 5, table)
    different = sum(not torch.equal(made[0], other) for other in made[1:])
    assert different == 0 if name in FIXED else different >= 4


@pytest.mark.parametrize(("name", "table"), EVERY)
def test_any_size_works(name, table):
    for size in [(8, 8), (33, 20), (24, 61), (1, 1), (2, 1), (1, 90)]:
        images = photographs(2, *size)
        for severity in (1, 5):
            assert corrupt(images, name, severity, table).shape == images.shape


@pytest.mark.parametrize(
    "name", [n for n in SUITES["c"] if n not in ("saturate", "elastic_transform")]
)
@pytest.mark.parametrize("table", TABLES)
def test_severity_rises(name, table):
    """In mean absolute change, over enough images; where the constants themselves rise."""
    images = photographs(64)
    changes = [
        float((corrupt(images, name, severity, table).float() - images.float()).abs().mean())
        for severity in range(1, 6)
    ]
    # Some steps trade one constant for another; the ends are what the benchmark promises.
    assert changes[4] > changes[0]
    steps = sum(b > a for a, b in zip(changes, changes[1:], strict=False))
    falling = {"snow": 2, "spatter": 2, "glass_blur": 2, "frost": 2, "fog": 1, "motion_blur": 1}
    assert steps >= 4 - falling.get(name, 0)


@pytest.mark.parametrize("name", [n for n in PUBLISHED if n not in SUITES["c"]])
def test_severity_of_cbar_rises(name):
    """With the same draws, a higher number changes more."""
    images = photographs(32)
    for table in CORRUPTIONS.find(name).tables:
        made = [corrupt(images, name, severity, table).float() for severity in range(1, 6)]
        changes = [float((m - images.float()).abs().mean()) for m in made]
        assert changes == sorted(set(changes))


def test_big_batches_are_cut_and_put_together():
    images = photographs(200)
    made = corrupt(images, "brightness")
    assert torch.equal(made[150:], corrupt(images[150:], "brightness"))
    noisy = corrupt(images, "gaussian_noise").float() - images.float()
    first, last = noisy[:64].std(), noisy[-64:].std()
    assert float(first) == pytest.approx(float(last), rel=0.05)


def test_no_images_give_none():
    assert corrupt(photographs(0), "fog").shape == (0, 3, 32, 32)


def test_half_precision_around_it_changes_nothing():
    images = photographs()
    for name in ("gaussian_blur", "zoom_blur", "fog", "pinch_and_twirl"):
        with torch.autocast("cpu", torch.bfloat16):
            inside = corrupt(images, name)
        assert torch.equal(inside, corrupt(images, name))


def test_the_table_belongs_to_the_size_unless_said():
    assert choose_table((32, 32)) == choose_table((48, 48)) == "cifar"
    assert choose_table((64, 64)) == choose_table((32, 49)) == choose_table((96, 96)) == "tiny"
    assert choose_table((224, 224)) == choose_table((32, 97)) == "imagenet"
    assert choose_table((224, 224), "cifar") == "cifar"
    images = photographs(2)
    usual = killick.corrupt(images, "contrast", 3)
    assert torch.equal(usual, corrupt(images, "contrast", 3, "cifar"))
    assert not torch.equal(usual, corrupt(images, "contrast", 3, "imagenet"))


@pytest.mark.parametrize(
    "name", [n for n in SUITES["c"] if n not in ("zoom_blur", "elastic_transform")]
)
def test_constants_for_64_px_lie_between_those_of_the_other_sizes(name):
    """At severity 5; zoom_blur has CIFAR's, and elastic_transform trades one for another."""
    images = photographs(48, 64, 64)
    cifar, tiny, imagenet = (
        float((corrupt(images, name, 5, table).float() - images.float()).abs().mean())
        for table in TABLES
    )
    assert tiny > cifar * 1.02
    assert tiny < imagenet * 1.01


def test_cbar_at_64_px_has_cifars_constants():
    images = photographs(4, 64, 64)
    assert list_corruptions("cbar", "tiny") == SUITES["cbar-cifar"]
    assert CORRUPTIONS.find("lines").choose_table("tiny") == "cifar"
    assert CORRUPTIONS.find("fog").choose_table("tiny") == "tiny"
    assert torch.equal(corrupt(images, "lines", 4, "tiny"), corrupt(images, "lines", 4, "cifar"))


def test_the_suites_are_those_that_were_published():
    sizes = {"c": 19, "c15": 15, "cbar-cifar": 10, "cbar-imagenet": 10}
    assert {name: len(set(suite)) for name, suite in SUITES.items()} == sizes
    assert set(SUITES["c15"]) < set(SUITES["c"])
    assert len(PUBLISHED) == 34
    assert set(PUBLISHED) == set(CORRUPTIONS.names())
    assert list_corruptions("cbar", "imagenet") == SUITES["cbar-imagenet"]
    for name, table in EVERY:
        entry = CORRUPTIONS.find(name)
        assert len({entry.arguments(severity, table) for severity in range(1, 6)}) == 5
        assert entry.description.endswith(".")


def darken(images: Tensor, severity: int, *, generator: torch.Generator | None) -> Tensor:
    """Darker images."""
    return images // severity


def test_a_corruption_of_the_users_own_is_applied():
    images = photographs(2)
    entry = describe("darken", darken)
    assert entry.description == "Darker images."
    assert torch.equal(killick.corrupt(images, entry, 3), images // 3)
    CORRUPTIONS.register("darken", entry)
    try:
        assert torch.equal(killick.corrupt(images, "darken", 2, table="imagenet"), images // 2)
        assert "darken" not in {name for suite in SUITES.values() for name in suite}
    finally:
        CORRUPTIONS.remove("darken")
    constants = tuple((float(k),) for k in range(5))
    only = Corruption("only", lambda x, add, generator: x + int(add), cifar=constants)
    assert torch.equal(killick.corrupt(images, only, 3, table="cifar"), images + 2)
    with pytest.raises(OptionError, match="table='cifar'"):
        killick.corrupt(images, only, 3, table="imagenet")
    broken = Corruption("broken", lambda x, severity, generator: x.float())
    with pytest.raises(ShapeError, match=r"broken .*torch\.float32"):
        killick.corrupt(images, broken, 1)


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"name": "fogg"}, OptionError, "fogg.*did you mean 'fog'"),
        ({"severity": 6}, OptionError, "found 6"),
        ({"severity": 0}, OptionError, "found 0"),
        ({"severity": True}, OptionError, "found True"),
        ({"severity": 2.5}, OptionError, r"found 2\.5"),
        ({"table": "cifar100"}, OptionError, "did you mean 'cifar'"),
        ({"name": "ripple", "table": "imagenet"}, OptionError, "ripple .*table='cifar'"),
        (
            {"name": "perlin_noise", "table": "cifar"},
            OptionError,
            "perlin_noise .*table='imagenet'",
        ),
        (
            {"images": photographs().float()},
            DtypeError,
            r"expected uint8 .*found torch\.float32",
        ),
        ({"images": photographs()[0]}, ShapeError, r"found \(3, 32, 32\)\. For a single one"),
        ({"images": photographs()[:, :1]}, ShapeError, r"found \(8, 1, 32, 32\)"),
        ({"name": "frost", "frost": "no_such_place"}, DataError, "no_such_place"),
    ],
)
def test_mistakes_are_told_in_one_line(change, kind, match):
    arguments = {"images": photographs(), "name": "fog", "severity": 3, "table": "cifar", **change}
    images, name = arguments.pop("images"), arguments.pop("name")
    with pytest.raises(kind, match=match) as problem:
        killick.corrupt(images, name, arguments.pop("severity"), **arguments)
    assert "\n" not in str(problem.value)
