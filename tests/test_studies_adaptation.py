"""The adaptation study: features of any network, probes against scikit-learn, domains, resume."""

import hashlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from conftest import small_cnn, stir
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor, nn
from torchvision.models import SwinTransformer, VisionTransformer

import killick
from killick.core.residual_blocks import find_head
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.data.sources import load_sets
from killick.data.splits import limit_images
from killick.errors import DataError, DivergedError, OptionError, StemError
from killick.nets import create
from killick.results.measurements import Measured
from killick.runtime.progress import Display
from killick.studies.adaptation import STUDY, probes
from killick.studies.adaptation.features import (
    MASKED,
    UNMASKED,
    FeatureReader,
)
from killick.studies.adaptation.probes import (
    CHOSEN,
    OTHER_DOMAIN,
    SAME_DATA,
    SAME_DOMAIN,
    Probe,
    ProbeSettings,
    choose_rate,
    fit_probe,
    load_domains,
    score,
)
from killick.studies.findings import Results
from killick.studies.study import make_plan
from killick.studies.study_runner import run_study
from killick.studies.trained_job import TrainedJob, open_job
from killick.training import make_recipe
from killick.training.loop import train
from killick.training.recipe_files import load_recipe

CPU = torch.device("cpu")
NORMALIZE = ((0.5,) * 3, (0.25,) * 3)
SETTINGS = ProbeSettings(epochs=3, batch=16, weight_decay=0.0, alpha=0.4, target="label", seed=1)


# Small networks of all families, and what their last layer is called.
NETWORKS = {
    "killick": (lambda: create("killick:resnet_small", num_classes=5), "fc"),
    "sequential": (small_cnn, "7"),
    "timm resnet": (lambda: timm.create_model("resnet10t", num_classes=5), "fc"),
    "timm vit": (
        lambda: timm.create_model("test_vit", num_classes=5, img_size=32, patch_size=8),
        "head",
    ),
    "torchvision vit": (
        lambda: VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=5),
        "heads.head",
    ),
    "torchvision swin": (
        lambda: SwinTransformer([4, 4], 8, [1, 1], [1, 1], [2, 2], num_classes=5),
        "head",
    ),
}


def uint8(n: int, size: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


def seen_by(layer: nn.Module, call) -> Tensor:
    """What a layer reads during a call."""
    seen = []
    handle = layer.register_forward_pre_hook(lambda _, read: seen.append(read[0]))
    with torch.no_grad():
        call()
    handle.remove()
    return seen[-1]


@pytest.mark.parametrize("family", list(NETWORKS))
def test_features_are_what_the_last_layer_of_any_network_reads_masked_or_not(family):
    make, name = NETWORKS[family]
    net = make()
    plain = killick.standard(stir(net.eval()), NORMALIZE, image_shape=(3, 32, 32))
    model = stir(killick.anchor(plain)).eval()
    x, r = uint8(6, seed=1), uint8(6, seed=2)
    reader = FeatureReader(trained_on(model), 1)
    head = model.net.get_submodule(name)
    assert reader.anchored
    assert reader.width == head.in_features
    read = {masked: reader.read(x, r, masked) for masked in (False, True)}
    for masked, found in read.items():
        expected = seen_by(head, lambda m=masked: model(x, r, masked=m))
        assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(read[False], read[True], atol=1e-3)
    own = FeatureReader(trained_on(plain), 1)
    assert not own.anchored
    assert torch.allclose(own.read(x), seen_by(net.get_submodule(name), lambda: plain(x)))


def test_the_network_stays_as_it_is_and_reading_leaves_no_hooks_and_no_gradients():
    model = killick.anchor(small_cnn(), normalize=NORMALIZE)
    job = trained_on(model)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = FeatureReader(job, 1).read(uint8(4), uint8(4, seed=3))
    assert model.training
    assert not found.requires_grad
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_hidden_layer_as_wide_as_the_classes_is_not_taken_for_the_last():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.Identity())
    assert find_head(net, torch.randn(2, 4)) == "2"


class TwoHeads(nn.Module):
    """The mean of two layers is no layer's."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return (self.one(x) + self.two(x)) / 2


@pytest.mark.parametrize("net", [TwoHeads(), nn.Sequential(nn.Linear(4, 3), nn.ReLU())])
def test_a_network_that_does_not_end_with_a_linear_layer_is_refused(net):
    with pytest.raises(StemError, match="computes the logits"):
        find_head(net.eval(), torch.randn(2, 4))


def trained_on(model: nn.Module, seed: int = 0, size: int = 16) -> TrainedJob:
    recipe = make_recipe({"data": {"size": size}, "seed": seed, "protocol": {"name": "anchored"}})
    return TrainedJob(model.eval(), recipe, CPU)


def some_images(counts: list[int], size: int = 16) -> ImageSet:
    labels = torch.cat([torch.full((n,), kind) for kind, n in enumerate(counts)])
    names = [f"class{kind}" for kind in range(len(counts))]
    return ImageSet.of("some", uint8(len(labels), size, seed=4), labels, names)


def anchored_cnn() -> killick.Anchored:
    return stir(killick.anchor(small_cnn(), normalize=NORMALIZE, example=torch.rand(2, 3, 16, 16)))


def test_training_images_are_read_from_their_own_references_each_masked_too():
    reader, images = FeatureReader(trained_on(anchored_cnn()), 3), some_images([20, 3])
    found = reader.read_training(images)
    n = len(images)
    assert found.shape == (3, 2, n, 8)
    x, pool = images.images(), images.images()
    drawn = torch.full((3, n), -1)
    for number in range(n):
        same = x[number].expand(pool.shape)
        unmasked = reader.read(same, pool)
        masked = reader.read(same, pool, masked=True)
        for draw in range(3):
            gaps = (unmasked - found[draw, UNMASKED, number]).abs().amax(1)
            drawn[draw, number] = gaps.argmin()
            assert gaps.min() < 1e-5
            expected = masked[gaps.argmin()]
            assert torch.allclose(found[draw, MASKED, number], expected, atol=1e-5)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    # Classes alike: the 3 images of the second are references about as often as the other 20.
    assert 0.3 < (drawn >= 20).double().mean() < 0.7


def test_features_are_the_same_again_and_others_with_another_seed():
    model, images = anchored_cnn(), some_images([6, 6])
    first, again, other = (
        FeatureReader(trained_on(model, seed), 2).read_training(images) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_test_images_are_all_seen_from_the_same_references_of_the_training_set():
    reader, images = FeatureReader(trained_on(anchored_cnn()), 4), some_images([300, 300])
    references = reader.choose_references(images)
    chosen = {each.numpy().tobytes() for each in references}
    own = [each.numpy().tobytes() for each in images.images()]
    assert len(chosen) == 4
    assert chosen <= set(own)
    kinds = sorted(int(images.labels[own.index(each)]) for each in chosen)
    assert kinds == [0, 0, 1, 1]
    found = reader.read_test(images, references)  # more than a block
    for number, reference in enumerate(references):
        expected = reader.read(images.images(), reference.expand(600, -1, -1, -1))
        assert torch.allclose(found[number], expected, atol=1e-5)
    few = some_images([1, 1])
    assert len(reader.read_test(images, reader.choose_references(few))) == 2


def test_a_standard_network_has_one_draw_of_one_kind():
    plain = killick.standard(small_cnn().eval(), NORMALIZE, image_shape=(3, 16, 16))
    reader, images = FeatureReader(trained_on(plain), 4), some_images([5, 5])
    found = reader.read_training(images)
    assert found.shape == (1, 1, 10, 8)
    assert reader.choose_references(images) is None
    assert torch.equal(found[0, 0], reader.read(images.images()))
    assert torch.equal(reader.read_test(images, None), found[0])


def test_references_of_a_set_too_large_are_drawn_from_a_part_of_each_class(monkeypatch):
    monkeypatch.setattr("killick.studies.adaptation.features._POOL_BYTES", 4 * 3 * 16 * 16)
    reader, images = FeatureReader(trained_on(anchored_cnn()), 8), some_images([10, 10])
    found = reader.read_training(images)[:, UNMASKED, 0]
    seen = reader.read(images.images()[:1].expand(20, -1, -1, -1), images.images())
    nearest = torch.cdist(found, seen).argmin(1)
    assert len(set(nearest.tolist())) <= 4
    assert {0, 1} == {number // 10 for number in nearest.tolist()}


def blobs(n: int = 120, width: int = 6, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features `(1, 1, n, width)` of different scales, and labels that they tell in part."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    middles = torch.randn(classes, width, generator=generator)
    noise = torch.randn(n, width, generator=generator)
    scales = torch.logspace(-2, 2, width)
    return ((middles[labels] + noise) * scales + 5 * scales)[None, None], labels


@pytest.mark.parametrize("decay", [1e-2, 1e-3])
def test_a_probe_is_the_logistic_regression_of_another_library(decay):
    features, labels = blobs()
    settings = replace(SETTINGS, epochs=1500, batch=120, weight_decay=decay)
    probe = fit_probe(features, labels, 3, 5.0, settings)
    x = features[0, 0].double().numpy()
    x = (x - x.mean(0)) / x.std(0) / np.sqrt(6)
    oracle = LogisticRegression(C=1 / (120 * decay), tol=1e-10, max_iter=10_000).fit(x, labels)
    probs = probe(features[0, 0]).softmax(1)
    assert np.allclose(probs, oracle.predict_proba(x), atol=2e-3)
    weights = probe.linear.weight - probe.linear.weight.mean(
        0
    )  # what is common makes no difference
    assert np.allclose(weights, oracle.coef_ - oracle.coef_.mean(0), atol=0.02)


def with_masked(draws: int = 2) -> tuple[Tensor, Tensor]:
    """Features whose masked kind, and each draw, are the same images in another order.

    So all have the same mean and spread.
    """
    one, labels = blobs()
    generator = torch.Generator().manual_seed(5)
    parts = [one[0, 0][torch.randperm(120, generator=generator)] for _ in range(2 * draws)]
    return torch.stack(parts).view(draws, 2, 120, -1), labels


def weight_of(features: Tensor, labels: Tensor, **changes) -> Tensor:
    return fit_probe(features, labels, 3, 3.0, replace(SETTINGS, **changes)).linear.weight


def test_with_alpha_0_masked_features_are_never_seen():
    features, labels = with_masked()
    expected = weight_of(features, labels, alpha=0.0)
    features[:, MASKED] = torch.nan
    assert torch.equal(weight_of(features, labels, alpha=0.0), expected)
    assert torch.equal(weight_of(features[:, :1], labels, alpha=0.0), expected)


def test_with_alpha_1_nothing_but_masked_features_is_seen():
    features, labels = with_masked()
    found = weight_of(features, labels, alpha=1.0)
    as_unmasked = features[:, [MASKED]]
    assert torch.allclose(found, weight_of(as_unmasked, labels, alpha=0.0), atol=1e-5)
    assert not torch.allclose(found, weight_of(features, labels, alpha=0.0), atol=1e-2)


def test_whole_batches_are_masked_with_the_probability_alpha(monkeypatch):
    drawn = []

    class Recording(killick.ReferenceMasking):
        def draw(self, *arguments):
            draw = super().draw(*arguments)
            drawn.append(draw.masked)
            return draw

    monkeypatch.setattr(probes, "ReferenceMasking", Recording)
    features, labels = with_masked()
    weight_of(features, labels, alpha=0.4, epochs=100)
    assert len(drawn) == 700
    assert all(each.shape == () for each in drawn)
    assert 0.33 < torch.stack(drawn).double().mean() < 0.47


def test_masked_towards_uniform_in_every_step_nothing_is_learnt():
    features, labels = with_masked()
    assert weight_of(features, labels, alpha=1.0, target="uniform").abs().max() < 1e-5
    assert weight_of(features, labels, alpha=1.0, target="label").abs().max() > 0.1


def test_every_draw_is_seen_and_each_image_draws_for_itself():
    features, labels = with_masked(3)
    found = weight_of(features, labels, alpha=0.0)
    for draw in range(3):
        alone = features[[draw]]
        assert not torch.allclose(found, weight_of(alone, labels, alpha=0.0), atol=1e-2)


def test_all_arms_see_the_same_images_in_the_same_batches():
    features, labels = blobs()
    state = torch.get_rng_state()
    plain = weight_of(features, labels)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn from the global state
    as_anchored = features.expand(4, 2, -1, -1).contiguous()
    assert torch.allclose(weight_of(as_anchored, labels, alpha=0.4), plain, atol=1e-5)
    assert not torch.allclose(weight_of(features, labels, seed=2), plain, atol=1e-4)
    assert torch.equal(weight_of(features, labels), plain)


def test_a_feature_that_never_changes_does_no_harm_and_fewer_images_than_a_batch_are_one():
    features, labels = blobs(10)
    features[..., 0] = 7.0
    probe = fit_probe(features, labels, 3, 3.0, replace(SETTINGS, batch=64))
    assert bool(probe(features).isfinite().all())
    assert not probe.linear.weight[:, 0].any()


def test_features_are_standardized_by_the_unmasked_training_ones():
    features, _ = with_masked()
    features[:, MASKED] += 100
    probe = Probe(features, 3)
    seen = (features[:, UNMASKED] - probe.mean) * probe.scale
    assert torch.allclose(seen.mean((0, 1)), torch.zeros(6), atol=1e-5)
    assert torch.allclose(seen.std((0, 1), correction=0), torch.full((6,), 6**-0.5), atol=1e-5)


def chosen_among(monkeypatch, logits_of: dict[float, Tensor], labels: Tensor) -> float:
    """The rate that is chosen where each gives these logits to the images held back."""
    fitted = []

    def fit(features, own, classes, rate, settings):
        assert len(own) == 16
        assert own.bincount().tolist() == [8, 8]
        fitted.append(features[0, 0, :, 0].tolist())
        return lambda held: held.new_zeros(len(held), 2) + logits_of[rate][held[:, 0].long()]

    monkeypatch.setattr(probes, "fit_probe", fit)
    features = torch.arange(20.0).view(1, 1, 20, 1)
    rate = choose_rate(features, labels, 2, list(logits_of), SETTINGS)
    assert all(each == fitted[0] for each in fitted)
    return rate


def test_the_rate_is_the_best_on_images_held_back_then_the_least_surprised(monkeypatch):
    labels = torch.arange(20) % 2
    right = torch.stack([1.0 - labels, labels], 1)
    assert chosen_among(monkeypatch, {1.0: -right, 2.0: right, 3.0: -right}, labels) == 2.0
    assert chosen_among(monkeypatch, {1.0: right, 2.0: 3 * right, 3.0: 2 * right}, labels) == 2.0
    unsure, half = 0.01 * right, torch.where(labels[:, None] == 0, 5 * right, -0.01 * right)
    assert chosen_among(monkeypatch, {1.0: half, 2.0: unsure}, labels) == 2.0
    broken = right * torch.nan
    assert chosen_among(monkeypatch, {1.0: broken, 2.0: -right}, labels) == 2.0
    with pytest.raises(DivergedError, match=r"\[1.0, 2.0\]"):
        chosen_among(monkeypatch, {1.0: broken, 2.0: broken}, labels)


def test_the_rate_is_chosen_without_a_look_at_held_back_images_in_training():
    features, labels = blobs(100)
    assert choose_rate(features, labels, 3, [1e-9, 3.0], SETTINGS) == 3.0
    assert choose_rate(features, labels, 3, [1e30, 3.0], SETTINGS) == 3.0
    assert choose_rate(features, labels, 3, [0.5], SETTINGS) == 0.5


def test_scores_are_those_of_another_library():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 4, generator=generator), torch.arange(50) % 4
    found = score(logits, labels)
    probs = logits.double().softmax(1)
    assert found["top1"] == pytest.approx(accuracy_score(labels, logits.argmax(1)))
    assert found["nll"] == pytest.approx(log_loss(labels, probs))
    sure = probs.amax(1)
    assert found["smooth_ece"] == killick.metrics.smooth_ece(sure, logits.argmax(1) == labels)


# Domains


def make_domains(top: Path, kinds: dict[str, list[str]]) -> Path:
    generator = torch.Generator().manual_seed(0)
    for domain, names in kinds.items():
        for place, kind in enumerate(names):
            (top / domain / kind).mkdir(parents=True)
            for number in range(5):
                noise = torch.randint(0, 80, (30, 40, 3), generator=generator)
                pixels = (noise + 70 * place).to(torch.uint8)
                Image.fromarray(pixels.numpy()).save(top / domain / kind / f"{number}.jpg")
    return top


def test_domains_are_split_once_and_compared_on_their_common_classes(tmp_path):
    kinds = {"real": ["bird", "cat", "mouse"], "sketch": ["cat", "mouse"]}
    top = make_domains(tmp_path, {**kinds, "quick": ["ant", "cat", "mouse"]})
    found = load_domains(top, None, ["real"])
    assert list(found) == ["quick", "real", "sketch"]
    for name, domain in found.items():
        assert domain.train.class_names == domain.whole.class_names == ("cat", "mouse")
        assert (len(domain.whole), len(domain.held), len(domain.train)) == (10, 2, 8)
        assert domain.held.labels.tolist() == [0, 1]
        parts = torch.cat([domain.train.rows, domain.held.rows]).sort().values
        assert torch.equal(parts, domain.whole.rows.sort().values)
        for number, label in enumerate(domain.whole.labels.tolist()):
            path = domain.whole.source.path(int(domain.whole.rows[number]))
            assert path.split("/")[-3:-1] == [name, ("cat", "mouse")[label]]
    assert list(load_domains(top, ["sketch", "real"])) == ["sketch", "real"]


@pytest.mark.parametrize(
    ("classes", "wanted", "sources", "message"),
    [
        ({}, None, [], "found none"),
        ({"real": ["cat", "dog"]}, None, [], "found real"),
        ({"real": ["a", "b"], "art": ["a", "b"]}, ["real"], [], "at least 2"),
        ({"real": ["a", "b"], "art": ["a", "b"]}, None, ["sketch"], "'sketch'"),
        ({"real": ["a", "b"], "art": ["a", "b"]}, ["real", "x"], [], "'x'"),
        ({"real": ["a", "b"], "art": ["b", "c"]}, None, [], "share b"),
        ({"real": ["a", "b"], "art": ["c", "d"]}, None, [], "no class"),
    ],
)
def test_folders_that_are_no_domains_are_refused(classes, wanted, sources, message, tmp_path):
    make_domains(tmp_path, classes)
    with pytest.raises(DataError, match=message):
        load_domains(tmp_path, wanted, sources)


# Measuring


OPTIONS = {
    "targets": ["digits"],
    "domains": None,
    "styles": None,
    "sources": ["sketch"],
    "alphas": [0.4, 0.0],
    "probe_target": "label",
    "draws": 2,
    "probe_epochs": 3,
    "probe_batch": 16,
    "rates": [1.0, 10.0],
    "probe_decay": 1e-5,
    "train_limit": 50,
    "test_limit": 30,
}


def quiet(title, steps, done, what):
    return nullcontext(Display())


def trained_with(folder: Path, protocol: str) -> Path:
    settings = {"data.limit": 60, "data.validation": 0, "epochs": 1, "batch": 20, "seed": 3}
    settings |= {"protocol.name": protocol}
    settings |= {"protocol.target": "label"} if protocol == "masked" else {}
    train(load_recipe("shapes-compare", settings), folder, device="cpu", quiet=True)
    return folder


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> Path:
    return trained_with(tmp_path_factory.mktemp("cell") / "run", "masked")


@pytest.fixture(scope="module")
def standard_cell(tmp_path_factory) -> Path:
    return trained_with(tmp_path_factory.mktemp("cell") / "run", "standard")


@pytest.fixture(scope="module")
def domains(tmp_path_factory) -> str:
    top = tmp_path_factory.mktemp("domains")
    names = ("clipart", "real", "sketch")
    return str(make_domains(top, {name: ["cat", "dog"] for name in names}))


@pytest.fixture(scope="module")
def options(domains) -> dict:
    return {**OPTIONS, "domains": domains}


def measure(folder: Path, where: Path, options: dict) -> list[dict]:
    where.mkdir(exist_ok=True)
    kept = Measured(where, options)
    probes.measure(folder, options, kept, device=CPU, show=quiet)
    return kept.records


@pytest.fixture(scope="module")
def records(cell, options, tmp_path_factory) -> list[dict]:
    return measure(cell, tmp_path_factory.mktemp("kept"), options)


def coordinates(records: list[dict], metric: str = "top1") -> list[tuple]:
    names = ("task", "source", "target", "alpha", "reference")
    return [tuple(each.get(n) for n in names) for each in records if each["metric"] == metric]


TESTS = [
    (SAME_DATA, "digits", "digits"),
    (SAME_DOMAIN, "sketch", "sketch"),
    (OTHER_DOMAIN, "sketch", "clipart"),
    (OTHER_DOMAIN, "sketch", "real"),
]


def test_every_probe_is_tested_on_its_own_data_and_on_all_other_domains(records):
    expected = [(*test, alpha, r) for test in TESTS for alpha in (0.4, 0.0) for r in (0, 1)]
    for metric in ("top1", "nll", "smooth_ece"):
        assert sorted(coordinates(records, metric)) == sorted(expected)
    assert all(0 <= each["value"] <= 1 for each in records if each["metric"] == "top1")
    chosen = [each for each in records if each["metric"] == CHOSEN]
    assert [(each["source"], each["alpha"]) for each in chosen] == [
        ("digits", 0.4),
        ("digits", 0.0),
        ("sketch", 0.4),
        ("sketch", 0.0),
    ]
    assert {each["value"] for each in chosen} <= {1.0, 10.0}


def test_a_standard_network_has_one_probe_and_no_references(standard_cell, options, tmp_path):
    found = measure(standard_cell, tmp_path, options)
    assert coordinates(found) == [(*test, 0.0, 0) for test in TESTS]


def test_the_numbers_are_those_of_a_probe_made_by_hand(cell, records):
    trained = open_job(cell, CPU)
    reader, sets = FeatureReader(trained, 2), load_sets("digits")
    train_set, test = limit_images(sets.train, 50), limit_images(sets.test, 30)
    features = reader.read_training(train_set)
    read = reader.read_test(test, reader.choose_references(train_set))
    seed = key(3, int.from_bytes(hashlib.sha256(b"digits").digest()[:8]))
    settings = ProbeSettings(3, 16, 1e-5, 0.4, "label", seed)
    rate = choose_rate(features, train_set.labels, 10, [1.0, 10.0], settings)
    probe = fit_probe(features, train_set.labels, 10, rate, settings)
    for number in range(2):
        expected = score(probe(read[number]), test.labels)
        for metric, value in expected.items():
            (found,) = [
                each["value"]
                for each in records
                if (each["metric"], each["source"], each["alpha"]) == (metric, "digits", 0.4)
                and each["reference"] == number
            ]
            assert found == pytest.approx(value)
    assert features.shape[:2] == (2, 2)
    assert not torch.allclose(features[0, UNMASKED], features[1, UNMASKED])


class Stop(Exception):
    pass


def stop_after(monkeypatch, calls: int) -> None:
    """Raise instead of keeping records for the so-manieth time and later."""
    add, done = Measured.add, []

    def interrupted(self, *records):
        done.append(1)
        if len(done) > calls:
            raise Stop
        add(self, *records)

    monkeypatch.setattr(Measured, "add", interrupted)


@pytest.mark.parametrize("done", [1])
def test_an_interrupted_measurement_goes_on_with_the_next_probe(
    done, cell, options, records, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, done)
        with pytest.raises(Stop):
            measure(cell, tmp_path, options)
    read = []
    read_training = FeatureReader.read_training

    def counted(self, images):
        read.append(images.name)
        return read_training(self, images)

    monkeypatch.setattr(FeatureReader, "read_training", counted)
    assert measure(cell, tmp_path, options) == records
    assert read == (["digits", "sketch"] if done == 1 else ["sketch"])
    assert measure(cell, tmp_path, options) == records
    assert len(read) == (2 if done == 1 else 1)


def test_what_was_cut_off_in_the_middle_of_a_probe_is_not_kept_twice(
    cell, options, records, tmp_path
):
    kept = Measured(tmp_path, options)
    kept.add(*records[:5])
    probes.measure(cell, options, kept, device=CPU, show=quiet)
    assert kept.records == records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphas": [1.5]}, "at most 1"),
        ({"rates": [0.0, 1.0]}, "more than 0"),
        ({"probe_target": "lable"}, "label"),
        ({"protocols": ["maksed"]}, "expected a protocol"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(options, message):
    with pytest.raises(OptionError, match=message):
        make_plan(STUDY, "smoke", options=options)


# Findings


FLOWERS = (SAME_DATA, "imagefolder:/data/flowers102", "imagefolder:/data/flowers102")
SKETCH = (OTHER_DOMAIN, "real", "sketch")


def made_up(protocol: str, seed: int, alpha: float, test: tuple, values: list[float]) -> list:
    place = dict(zip(("task", "source", "target"), test, strict=True))
    about = {"metric": "top1", "protocol": protocol, "seed": seed, "alpha": alpha, **place}
    return [{**about, "reference": r, "value": v} for r, v in enumerate(values)]


@pytest.fixture
def some_results():
    records = []
    for test, base in ((FLOWERS, 0.5), (SKETCH, 0.2)):
        for seed in (0, 1):
            records += made_up("standard", seed, 0.0, test, [base + 0.02 * seed])
            for alpha, more in ((0.4, 0.1), (0.0, 0.2)):
                value = base + more + 0.04 * seed
                records += made_up("masked-label", seed, alpha, test, [value, value + 0.02])
    plan = make_plan(STUDY, "smoke", options={"protocols": ["standard", "masked-label"]})
    factors = {name: {"protocol": name} for name in ("standard", "masked-label")}
    return Results(plan, None, factors, tuple(records))


def test_the_table_has_first_references_differences_other_alphas_and_the_paper(some_results):
    (table,) = STUDY.findings(some_results).tables
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["real → sketch"][:2] == ("21.0 ± 1.4", "32.0 ± 2.8")
    assert rows["real → sketch"][2].startswith("+11.0 [")
    assert rows["real → sketch"][3:] == ("42.0 ± 2.8", "25.85", "28.02")
    assert rows["flowers102 → flowers102"][-2:] == ("94.68", "95.70")
    assert rows["cifar10 → cifar10"] == ("–", "–", "–", "–", "95.48", "96.29")
    assert len(rows) == 11


def test_the_figure_has_a_panel_for_each_source(some_results):
    (figure,) = STUDY.findings(some_results).figures
    assert [panel.title for panel in figure.panels] == ["The same data", "Trained on real"]
    assert len(figure.records) == 2 * 2 * 2
    record = ("Trained on real", "masked-label", "sketch", 1, pytest.approx(34.0))
    assert record in figure.records


def test_a_probe_that_an_arm_lacks_leaves_a_gap(some_results):
    there = [
        each
        for each in some_results.measured
        if (each["protocol"], each["task"]) != ("standard", OTHER_DOMAIN)
    ]
    found = STUDY.findings(replace(some_results, measured=tuple(there)))
    (row,) = [row for row in found.tables[0].rows if row[0] == "real → sketch"]
    assert (row[1], row[3]) == ("–", "–")
    assert len(found.figures[0].panels) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("here", "few_shapes")
def test_the_smoke_size_runs_to_its_report(tmp_path, domains):
    options = {"domains": domains, "sources": ["real"]}
    ran = run_study(make_plan(STUDY, "smoke", options=options), tmp_path, device="cpu", quiet=True)
    assert ran.failed == []
    assert STUDY.title in ran.report.read_text()
    (table,) = ran.findings.tables
    rows = [row[0] for row in table.rows[:2]]
    assert rows == ["digits → digits", "real → real"]
