"""Views of single images: torchvision's, decided by the key, whatever the image's size."""

import pickle

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from killick.core.standard import standard
from killick.data.keyed_random import key
from killick.data.preprocessing import PlainView, view_for
from killick.data.training_view import POLICIES, TrainView
from killick.errors import DataError, OptionError, StorageError

SIZE = 16
CROPS = ["none", "pad", "resized"]
EVERY_POLICY = ["none", *POLICIES, "pixmix"]
SIDES = [(16, 16), (1, 1), (3, 40), (40, 3), (23, 17), (300, 211)]
MIXED_IN = torch.randint(256, (4, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(9))
KEYS = [key(0, 0, number) - 2**63 for number in range(40)]  # of either sign, as samples have them


def image(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    coarse = torch.randint(256, (3, -(-height // 3), -(-width // 3)), generator=generator)
    fine = coarse.repeat_interleave(3, 1).repeat_interleave(3, 2)
    return fine[:, :height, :width].to(torch.uint8)


def view(**options) -> TrainView:
    if options.get("policy") == "pixmix":
        options["mixing_images"] = MIXED_IN.to(torch.uint8)
    return TrainView(SIZE, **options)


@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("side", SIDES[::2])
def test_views_are_uint8_of_the_asked_size_and_leave_image_and_global_state_alone(
    policy, crop, side
):
    made, given = view(crop=crop, policy=policy, flip=True, flip_vertically=True), image(*side)
    before, state = given.clone(), torch.get_rng_state()
    for number in KEYS[:4]:
        found = made(given, number)
        assert found.dtype == torch.uint8
        assert found.shape == (3, SIZE, SIZE)
        assert found.is_contiguous()
    assert torch.equal(given, before)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.parametrize("crop", CROPS)
def test_views_are_decided_by_the_key_alone(policy, crop):
    made, given = view(crop=crop, policy=policy, flip=True), image(37, 29)
    first = [made(given, number) for number in KEYS]
    torch.rand(3)
    again = view(crop=crop, policy=policy, flip=True)
    backwards = [again(given, number) for number in reversed(KEYS)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, backwards, strict=True))
    kinds = {tuple(found.flatten().tolist()) for found in first}
    expected = 2 if policy == "none" and crop == "none" else 15  # a flip or none
    assert len(kinds) >= expected


@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_every_interpolation_works_with_every_policy(policy, interpolation):
    crop = "resized"
    made = view(crop=crop, policy=policy, interpolation=interpolation)
    found = [made(image(20, 31), number) for number in KEYS[:12]]
    assert all(each.shape == (3, SIZE, SIZE) for each in found)
    if interpolation == "nearest" and policy == "none":
        assert all(
            set(each.unique().tolist()) <= {0, *image(20, 31).unique().tolist()} for each in found
        )


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_views_survive_the_way_to_a_worker(policy):
    made, given = view(crop="resized", policy=policy), image(20, 31)
    sent = pickle.loads(pickle.dumps(made))
    assert all(torch.equal(made(given, number), sent(given, number)) for number in KEYS[:5])


def test_without_augmentation_the_view_is_the_plain_one():
    for side in SIDES:
        expected = PlainView(SIZE)(image(*side))
        assert all(torch.equal(view()(image(*side), number), expected) for number in KEYS[:3])


def test_a_padded_crop_is_the_image_moved_by_at_most_the_padding():
    given, made = image(SIZE, SIZE) | 1, view(crop="pad", padding=2)
    padded = functional.pad(given, [2] * 4)
    crops = {
        tuple(functional.crop(padded, top, left, SIZE, SIZE).flatten().tolist())
        for top in range(5)
        for left in range(5)
    }
    numbers = [key(1, number) for number in range(400)]
    assert {tuple(made(given, number).flatten().tolist()) for number in numbers} == crops


@pytest.mark.parametrize(
    ("options", "turned"), [({"flip": True}, [-1]), ({"flip_vertically": True}, [-2])]
)
def test_half_of_the_images_are_flipped(options, turned):
    given, made = image(SIZE, SIZE), view(**options)
    found = [made(given, key(2, number)) for number in range(1000)]
    flipped = [torch.equal(each, given.flip(turned)) for each in found]
    stayed = [torch.equal(each, given) for each in found]
    assert sum(flipped) + sum(stayed) == 1000
    assert abs(sum(flipped) - 500) < 4 * 250**0.5


def test_a_resized_crop_is_some_part_of_the_image():
    rows = torch.arange(0, 240, 4, dtype=torch.uint8)[None, :, None].expand(3, 60, 60)
    found = [view(crop="resized")(rows, key(3, number))[0].float() for number in range(300)]
    heights = torch.stack([each[-1].mean() - each[0].mean() for each in found]) / 240
    assert all((each.diff(dim=0) >= 0).all() for each in found)
    assert heights.min() < 0.35  # torchvision's smallest part is 8 % of the area
    assert heights.max() > 0.85
    assert len({float(height) for height in heights}) > 20


@pytest.mark.parametrize("resize", [None, 16, 20, 40])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("side", SIDES[::2])
def test_the_plain_view_is_torchvisions_resize_and_middle(resize, interpolation, side):
    given = image(*side)
    short, long = resize or SIZE, int((resize or SIZE) * max(side) / min(side))
    target = [short, long] if side[0] < side[1] else [long, short]
    how = InterpolationMode(interpolation)
    resized = functional.resize(given, target, interpolation=how, antialias=True)
    expected = functional.center_crop(resized, [SIZE, SIZE])
    found = PlainView(SIZE, resize, interpolation)(given, KEYS[0])
    assert found.dtype == torch.uint8
    assert torch.equal(found, expected)
    assert torch.equal(PlainView(SIZE, resize, interpolation)(given), expected)


def test_the_plain_view_leaves_a_image_of_its_size_alone():
    assert torch.equal(PlainView(SIZE)(image(SIZE, SIZE)), image(SIZE, SIZE))
    larger = functional.resize(image(SIZE, SIZE), [20, 20], antialias=True)
    expected = functional.center_crop(larger, [SIZE, SIZE])
    assert torch.equal(PlainView(SIZE, resize=20)(image(SIZE, SIZE)), expected)


@pytest.mark.parametrize("policy", [*POLICIES, "pixmix"])
def test_arguments_that_a_policy_does_not_know_are_refused_with_its_name(policy):
    with pytest.raises(OptionError, match=f"cannot make '{policy}' with .*'color': 1.*argument"):
        view(policy=policy, policy_arguments={"color": 1})


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("augmix", {"severity": 11}),
        ("autoaugment", {"policy": "no such"}),
        ("randaugment", {"magnitude": 99}),
        ("randaugment", {"magnitude": "nine"}),
        ("trivialaugment", {"num_magnitude_bins": 0}),
    ],
)
def test_values_that_a_policy_cannot_use_are_refused_with_its_name(policy, arguments):
    with pytest.raises(OptionError, match=f"cannot make '{policy}' with"):
        view(policy=policy, policy_arguments=arguments)


def test_arguments_reach_the_policy():
    weak, strong = (
        view(policy="randaugment", policy_arguments={"num_ops": ops, "magnitude": 20})
        for ops in (0, 2)
    )
    given = image(SIZE, SIZE)
    assert all(torch.equal(weak(given, number), given) for number in KEYS[:9])
    assert any(not torch.equal(strong(given, number), given) for number in KEYS[:9])


@pytest.mark.parametrize("table", ["imagenet", "cifar10", "svhn"])
def test_the_tables_of_autoaugment_can_be_named(table):
    view(policy="autoaugment", policy_arguments={"policy": table})(image(20, 20), 0)


def test_a_strip_that_would_become_huge_is_refused_and_a_long_image_is_not():
    strip = torch.zeros(3, 1, 60000, dtype=torch.uint8)
    for view in (PlainView(224), TrainView(224), PlainView(64, resize=256)):
        with pytest.raises(DataError, match="60000 x 1 pixels are too long a strip"):
            view(strip, 0)
    assert PlainView(SIZE)(strip).shape == (3, SIZE, SIZE)
    assert PlainView(224)(torch.zeros(3, 40, 4000, dtype=torch.uint8)).shape == (3, 224, 224)


def test_a_model_is_shown_what_its_recipe_says_or_else_images_of_its_own_shape():
    model = standard(torch.nn.Flatten(), image_shape=(3, 12, 12))
    assert view_for(model).described == "12 px"
    data = {"size": 24, "resize": 32, "interpolation": "bicubic"}
    model.provenance = {"recipe": {"data": data}}
    assert view_for(model).described == "24 of 32 px, bicubic"
    model.provenance = {"recipe": {"data": {"size": 24, "resize": None}}}
    assert view_for(model).described == "24 px"
    model.provenance = {"recipe": "lost"}
    assert view_for(model).described == "12 px"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("size", [0, -3, 2**12 + 1, 10**9, "24", 24.0, True, [24], float("nan")]),
        ("resize", [0, -3, 2**14 + 1, 10**9, "32", 32.5, True, {}]),
        ("interpolation", ["lanczos", "", 3, ["bilinear"], {}]),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told_in_one_line_that_names_the_setting(key, values):
    model = standard(torch.nn.Flatten(), image_shape=(3, 12, 12))
    for value in values:
        model.provenance = {"recipe": {"data": {key: value}}}
        with pytest.raises(StorageError, match=f"recipe.*data.{key}: .* found") as told:
            view_for(model)
        assert "\n" not in str(told.value)
    model.provenance = {"recipe": {"data": {"size": 2**12, "resize": 2**14}}}
    assert view_for(model).described == "4096 of 16384 px"
    model.provenance = {"recipe": {"data": dict.fromkeys(("size", "resize", "interpolation"))}}
    assert view_for(model).described == "12 px"
