"""The data set of textures: what is drawn, that it is always the same, and that it can be learned."""

import hashlib
import math

import pytest
import torch

from killick.data.sources import load_sets, textures
from killick.data.sources.shapes import make_shapes
from killick.data.sources.textures import CLASS_NAMES, make_textures

DIGESTS = {
    make_shapes: "6c5e58c7801f1c15d40c8de4f04e7f8dc7f99cb7882218b6c5715a45cf66e5a0",
    make_textures: "186949b665b271fa377f9960ba7f30ca5a6749a0ca4270c51a6197315a39a7fe",
}


@pytest.mark.parametrize("make", DIGESTS)
def test_results_refer_to_these_very_images(make):
    found = hashlib.sha256()
    for part in make(100, 50, seed=0):
        found.update(part.numpy().tobytes())
    assert found.hexdigest() == DIGESTS[make]


def test_classes_are_balanced_and_test_images_do_not_depend_on_the_training_images():
    images, labels, test_images, test_labels = make_textures(105, 30, seed=1)
    assert images.shape == (105, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert sorted(labels.bincount().tolist()) == [10] * 5 + [11] * 5
    assert test_labels.bincount().tolist() == [3] * 10
    _, _, again, _ = make_textures(10, 30, seed=1)
    assert torch.equal(test_images, again)
    assert not torch.equal(make_textures(10, 30, seed=2)[2], again)


def test_the_source_reads_the_same_images_from_its_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path))
    monkeypatch.setattr(textures, "TRAIN_COUNT", 40)
    monkeypatch.setattr(textures, "TEST_COUNT", 20)
    drawn, kept = load_sets("textures"), load_sets("textures")
    assert len(list(tmp_path.glob("textures-*.npz"))) == 1
    assert drawn.train.class_names == CLASS_NAMES
    assert torch.equal(drawn.train.images(), kept.train.images())
    assert torch.equal(drawn.test.images(), make_textures(40, 20, seed=0)[2])


def slow_pattern(name: str, u: float, v: float) -> float:
    """By the definition of each pattern, a point at a time."""
    across, upwards = math.sin(u), math.sin(v)
    rising, falling = (math.sin((u + sign * v) / math.sqrt(2)) for sign in (-1, 1))
    if name == "bricks":
        odd = math.floor(v / (2 * math.pi)) % 2 == 1
        joint = abs(math.cos(u / 2) if odd else math.sin(u / 2))
        return 2 * min(joint, abs(math.sin(v / 2))) - 1
    if name == "zigzag":  # the rows follow a triangle wave that rises by 3/4 of a unit per unit
        place = (u / 2 + math.pi / 2) % (2 * math.pi)
        triangle = place - math.pi / 2 if place < math.pi else 3 * math.pi / 2 - place
        return math.sin(v + 1.5 * triangle)
    return {
        "rows": upwards,
        "columns": across,
        "rising": rising,
        "falling": falling,
        "checks": across * upwards,
        "diamonds": rising * falling,
        "dots": 2 * max(across, 0) * max(upwards, 0) - 0.4,
        "grid": max(across, upwards),
    }[name]


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_patterns_are_as_defined(name):
    generator = torch.Generator().manual_seed(0)
    u, v = 40 * torch.rand(2, 200, generator=generator, dtype=torch.float64) - 20
    found = textures._PATTERNS[name](u, v)
    expected = [slow_pattern(name, *place) for place in zip(u.tolist(), v.tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_contrast_and_period_are_within_their_ranges():
    rows = torch.zeros(200, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    drawn = textures._draw_patterns(rows, (4.0, 4.0), generator)[:, 0, :, 16]
    waves = torch.fft.rfft(drawn).abs()[:, 1:].argmax(1) + 1  # in 32 px, a little less when turned
    assert set(waves.tolist()) <= {7, 8, 9}
    plain, faint = (make_textures(10, 400, 0, contrast=(c, c))[2].float() for c in (0.5, 0.0))
    assert plain.std((2, 3)).mean() > 1.5 * faint.std((2, 3)).mean()


def test_labels_can_be_learned_from_the_spectrum():
    images, labels, test_images, test_labels = make_textures(2000, 500, seed=0)

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft2(x.float().mean(1)).abs().log1p().flatten(1)

    features = spectrum(images)
    mean = features.mean(0)
    targets = torch.nn.functional.one_hot(labels, 10).float()
    inverse = torch.linalg.inv((features - mean).T @ (features - mean) + 100 * torch.eye(len(mean)))
    weights = inverse @ (features - mean).T @ targets
    right = ((spectrum(test_images) - mean) @ weights).argmax(1) == test_labels
    assert right.float().mean() > 0.5
