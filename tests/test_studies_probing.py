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
from killick.data.image_set import ImageSet
from killick.data.sources.shapes import SEED as SHAPES_SEED
from killick.errors import DataError, DivergedError, StemError
from killick.nets import create
from killick.studies import domains as styled
from killick.studies import probing
from killick.studies.domains import STYLES, load_domains
from killick.studies.features import MASKED, UNMASKED, Backbone, Reader, find_head
from killick.studies.probing import Probe, Settings, choose_rate, fit_probe, score
from killick.studies.trained import Trained
from killick.training import make_recipe

CPU = torch.device("cpu")
NORMALISE = ((0.5,) * 3, (0.25,) * 3)
SETTINGS = Settings(epochs=3, batch=16, weight_decay=0.0, alpha=0.4, target="label", seed=1)


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
    plain = killick.standard(stir(net.eval()), NORMALISE, image_shape=(3, 32, 32))
    model = stir(killick.anchor(plain)).eval()
    x, r = uint8(6, seed=1), uint8(6, seed=2)
    backbone = Backbone(model)
    head = model.net.get_submodule(name)
    assert backbone.anchored
    assert backbone.width == head.in_features
    read = {masked: backbone.read(x, r, masked) for masked in (False, True)}
    for masked, found in read.items():
        expected = seen_by(head, lambda m=masked: model(x, r, masked=m))
        assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(read[False], read[True], atol=1e-3)
    own = Backbone(plain)
    assert not own.anchored
    assert torch.allclose(own.read(x), seen_by(net.get_submodule(name), lambda: plain(x)))


def test_the_network_stays_as_it_is_and_reading_leaves_no_hooks_and_no_gradients():
    model = killick.anchor(small_cnn(), normalize=NORMALISE).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = Backbone(model).read(uint8(4), uint8(4, seed=3))
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
    with pytest.raises(StemError, match="expected a linear layer that computes the logits, found"):
        find_head(net.eval(), torch.randn(2, 4))


def trained_on(model: nn.Module, seed: int = 0, size: int = 16) -> Trained:
    recipe = make_recipe({"data": {"size": size}, "seed": seed, "protocol": {"name": "anchored"}})
    return Trained(model.eval(), recipe, CPU)


def some_pictures(counts: list[int], size: int = 16) -> ImageSet:
    labels = torch.cat([torch.full((n,), kind) for kind, n in enumerate(counts)])
    names = [f"class{kind}" for kind in range(len(counts))]
    return ImageSet.of("some", uint8(len(labels), size, seed=4), labels, names)


def anchored_cnn() -> killick.Anchored:
    return stir(killick.anchor(small_cnn(), normalize=NORMALISE, example=torch.rand(2, 3, 16, 16)))


def test_training_pictures_are_read_from_their_own_references_each_masked_too():
    reader, images = Reader(trained_on(anchored_cnn()), 3), some_pictures([20, 3])
    found = reader.read_training(images)
    n = len(images)
    assert found.shape == (3, 2, n, 8)
    assert reader.seen == 3 * 2 * n
    x, pool = images.images(), images.images()
    drawn = torch.full((3, n), -1)
    for number in range(n):
        same = x[number].expand(pool.shape)
        unmasked = reader.backbone.read(same, pool)
        masked = reader.backbone.read(same, pool, masked=True)
        for draw in range(3):
            gaps = (unmasked - found[draw, UNMASKED, number]).abs().amax(1)
            drawn[draw, number] = gaps.argmin()
            assert gaps.min() < 1e-5
            expected = masked[gaps.argmin()]
            assert torch.allclose(found[draw, MASKED, number], expected, atol=1e-5)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    # Classes alike: the 3 pictures of the second are references about as often as the other 20.
    assert 0.3 < (drawn >= 20).double().mean() < 0.7


def test_features_are_the_same_again_and_others_with_another_seed():
    model, images = anchored_cnn(), some_pictures([6, 6])
    first, again, other = (
        Reader(trained_on(model, seed), 2).read_training(images) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_test_pictures_are_all_seen_from_the_same_references_of_the_training_set():
    reader, images = Reader(trained_on(anchored_cnn()), 4), some_pictures([300, 300])
    references = reader.choose_references(images)
    chosen = {each.numpy().tobytes() for each in references}
    own = [each.numpy().tobytes() for each in images.images()]
    assert len(chosen) == 4
    assert chosen <= set(own)
    kinds = sorted(int(images.labels[own.index(each)]) for each in chosen)
    assert kinds == [0, 0, 1, 1]
    found = reader.read_test(images, references)  # more than a block
    for number, reference in enumerate(references):
        expected = reader.backbone.read(images.images(), reference.expand(600, -1, -1, -1))
        assert torch.allclose(found[number], expected, atol=1e-5)
    few = some_pictures([1, 1])
    assert len(reader.read_test(images, reader.choose_references(few))) == 2


def test_a_standard_network_has_one_draw_of_one_kind():
    plain = killick.standard(small_cnn().eval(), NORMALISE, image_shape=(3, 16, 16))
    reader, images = Reader(trained_on(plain), 4), some_pictures([5, 5])
    found = reader.read_training(images)
    assert found.shape == (1, 1, 10, 8)
    assert reader.choose_references(images) is None
    assert torch.equal(found[0, 0], reader.backbone.read(images.images()))
    assert torch.equal(reader.read_test(images, None), found[0])
    assert reader.seen == 20


def test_references_of_a_set_too_large_are_drawn_from_a_part_of_each_class(monkeypatch):
    monkeypatch.setattr("killick.studies.features._POOL_BYTES", 4 * 3 * 16 * 16)
    reader, images = Reader(trained_on(anchored_cnn()), 8), some_pictures([10, 10])
    found = reader.read_training(images)[:, UNMASKED, 0]
    seen = reader.backbone.read(images.images()[:1].expand(20, -1, -1, -1), images.images())
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


def test_minibatches_come_near_the_same_solution():
    features, labels = blobs(300)
    settings = replace(SETTINGS, epochs=150, batch=32, weight_decay=1e-3)
    probe = fit_probe(features, labels, 3, 2.0, settings)
    x = features[0, 0].double().numpy()
    x = (x - x.mean(0)) / x.std(0) / np.sqrt(6)
    oracle = LogisticRegression(C=1 / (300 * 1e-3), max_iter=10_000).fit(x, labels)
    found = score(probe(features[0, 0]), labels)
    assert found["top1"] == pytest.approx(oracle.score(x, labels), abs=0.02)
    assert found["nll"] == pytest.approx(log_loss(labels, oracle.predict_proba(x)), abs=0.01)


def with_masked(draws: int = 2) -> tuple[Tensor, Tensor]:
    """Features whose masked kind, and each draw, are the same pictures in another order.

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

    monkeypatch.setattr(probing, "ReferenceMasking", Recording)
    features, labels = with_masked()
    weight_of(features, labels, alpha=0.4, epochs=100)
    assert len(drawn) == 700
    assert all(each.shape == () for each in drawn)
    assert 0.33 < torch.stack(drawn).double().mean() < 0.47


def test_masked_towards_uniform_in_every_step_nothing_is_learnt():
    features, labels = with_masked()
    assert weight_of(features, labels, alpha=1.0, target="uniform").abs().max() < 1e-5
    assert weight_of(features, labels, alpha=1.0, target="label").abs().max() > 0.1


def test_every_draw_is_seen_and_each_picture_draws_for_itself():
    features, labels = with_masked(3)
    found = weight_of(features, labels, alpha=0.0)
    for draw in range(3):
        alone = features[[draw]]
        assert not torch.allclose(found, weight_of(alone, labels, alpha=0.0), atol=1e-2)


def test_all_arms_see_the_same_pictures_in_the_same_batches():
    features, labels = blobs()
    state = torch.get_rng_state()
    plain = weight_of(features, labels)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn from the global state
    as_anchored = features.expand(4, 2, -1, -1).contiguous()
    assert torch.allclose(weight_of(as_anchored, labels, alpha=0.4), plain, atol=1e-5)
    assert not torch.allclose(weight_of(features, labels, seed=2), plain, atol=1e-4)
    assert torch.equal(weight_of(features, labels), plain)


def test_a_feature_that_never_changes_does_no_harm_and_fewer_pictures_than_a_batch_are_one():
    features, labels = blobs(10)
    features[..., 0] = 7.0
    probe = fit_probe(features, labels, 3, 3.0, replace(SETTINGS, batch=64))
    assert bool(probe(features).isfinite().all())
    assert not probe.linear.weight[:, 0].any()


def test_features_are_standardised_by_the_unmasked_training_ones():
    features, _ = with_masked()
    features[:, MASKED] += 100
    probe = Probe(features, 3)
    seen = (features[:, UNMASKED] - probe.mean) * probe.scale
    assert torch.allclose(seen.mean((0, 1)), torch.zeros(6), atol=1e-5)
    assert torch.allclose(seen.std((0, 1), correction=0), torch.full((6,), 6**-0.5), atol=1e-5)


def chosen_among(monkeypatch, logits_of: dict[float, Tensor], labels: Tensor) -> float:
    """The rate that is chosen where each gives these logits to the pictures held back."""
    fitted = []

    def fit(features, own, classes, rate, settings):
        assert len(own) == 16
        assert own.bincount().tolist() == [8, 8]
        fitted.append(features[0, 0, :, 0].tolist())
        return lambda held: held.new_zeros(len(held), 2) + logits_of[rate][held[:, 0].long()]

    monkeypatch.setattr(probing, "fit_probe", fit)
    features = torch.arange(20.0).view(1, 1, 20, 1)
    rate = choose_rate(features, labels, 2, list(logits_of), SETTINGS)
    assert all(each == fitted[0] for each in fitted)
    return rate


def test_the_rate_is_the_best_on_pictures_held_back_then_the_least_surprised(monkeypatch):
    labels = torch.arange(20) % 2
    right = torch.stack([1.0 - labels, labels], 1)
    assert chosen_among(monkeypatch, {1.0: -right, 2.0: right, 3.0: -right}, labels) == 2.0
    assert chosen_among(monkeypatch, {1.0: right, 2.0: 3 * right, 3.0: 2 * right}, labels) == 2.0
    unsure, half = 0.01 * right, torch.where(labels[:, None] == 0, 5 * right, -0.01 * right)
    assert chosen_among(monkeypatch, {1.0: half, 2.0: unsure}, labels) == 2.0
    broken = right * torch.nan
    assert chosen_among(monkeypatch, {1.0: broken, 2.0: -right}, labels) == 2.0
    with pytest.raises(DivergedError, match=r"found none among \[1.0\]|found none among \[1.0, 2"):
        chosen_among(monkeypatch, {1.0: broken, 2.0: broken}, labels)


def test_the_rate_is_chosen_without_a_look_at_held_back_pictures_in_training():
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


def test_the_styles_are_deterministic_and_all_different():
    images = uint8(5)
    made = {name: style(images, torch.Generator().manual_seed(0)) for name, style in STYLES.items()}
    for name, style in STYLES.items():
        assert made[name].dtype == torch.uint8
        assert made[name].shape == images.shape
        assert torch.equal(style(images, torch.Generator().manual_seed(0)), made[name])
        if name != "painting":  # whose grain is drawn picture by picture
            assert torch.equal(style(images[2:3], torch.Generator()), made[name][2:3])
    assert torch.equal(made["real"], images)
    assert len({each.numpy().tobytes() for each in made.values()}) == 4


def test_a_sketch_is_white_but_for_edges_and_clipart_has_four_levels():
    images = torch.full((2, 3, 16, 16), 90, dtype=torch.uint8)
    images[1, :, :, 8:] = 200
    lines = styled.sketch(images, torch.Generator())
    assert bool((lines[0] == 255).all())
    assert bool((lines[1, :, :, 7:9] == 0).all())
    assert bool((lines[1, :, :, :5] == 255).all())
    flat = styled.clipart(uint8(4), torch.Generator())
    assert set(flat.unique().tolist()) <= {0, 85, 170, 255}


def test_a_painting_has_the_mean_of_the_quietest_corner_under_its_grain():
    images = uint8(1, 8)
    found = styled.painting(images, torch.Generator().manual_seed(3)).double()
    grain = torch.randn(1, 1, 8, 12, generator=torch.Generator().manual_seed(3)).double()
    grain = torch.stack([grain[..., k : k + 5].mean(-1) for k in range(8)], -1)
    for row in range(8):
        for column in range(8):
            corners = []
            for down in (-1, 1):
                for across in (-1, 1):
                    rows = torch.tensor([row + down * k for k in range(3)]).clamp(0, 7)
                    columns = torch.tensor([column + across * k for k in range(3)]).clamp(0, 7)
                    part = images[0][:, rows][:, :, columns].double().flatten(1)
                    corners.append((part.var(1, correction=0).sum().item(), part.mean(1)))
            mean = min(corners, key=lambda corner: corner[0])[1]
            expected = (mean + 18 * grain[0, 0, row, column]).round().clamp(0, 255)
            assert torch.allclose(found[0, :, row, column], expected, atol=1.01)


def test_embedded_domains_show_the_same_new_pictures_in_each_style():
    found = load_domains(None, ["real", "clipart"], ["real"])
    assert list(found) == ["real", "clipart"]
    real, clipart = found.values()
    assert torch.equal(real.train.labels, clipart.train.labels)
    drawn = styled.clipart(real.train.images(), torch.Generator())
    assert torch.equal(drawn, clipart.train.images())
    assert real.held is real.foreign
    assert len(real.train) == 2000
    assert len(real.held) == 1000
    assert styled._SHAPES_SEED != SHAPES_SEED
    trained = {each.numpy().tobytes() for each in real.train.images()}
    assert not any(each.numpy().tobytes() in trained for each in real.held.images())


def make_domains(top: Path, classes: dict[str, list[str]], count: int = 5) -> Path:
    """A folder as DomainNet has it: small pictures whose colour is that of their class."""
    for place, (domain, kinds) in enumerate(classes.items()):
        for kind in kinds:
            (top / domain / kind).mkdir(parents=True)
            for number in range(count):
                colour = (40 * (len(kind) % 6), 30 * place, 12 * number)
                Image.new("RGB", (20, 18), colour).save(top / domain / kind / f"{number}.png")
    (top / "real_train.txt").write_text("real/cat/0.png 0\n")
    return top


def test_domains_of_a_folder_are_cut_once_and_compared_on_their_common_classes(tmp_path):
    kinds = {"real": ["bird", "cat", "mouse"], "sketch": ["cat", "mouse"], "quick": ["ant", "cat"]}
    top = make_domains(tmp_path, {**kinds, "quick": ["ant", "cat", "mouse"]})
    found = load_domains(str(top), None, ["real"])
    assert list(found) == ["quick", "real", "sketch"]
    for name, domain in found.items():
        assert domain.train.class_names == domain.foreign.class_names == ("cat", "mouse")
        assert len(domain.foreign) == 10
        assert len(domain.held) == 2
        assert len(domain.train) == 8
        assert domain.held.labels.tolist() == [0, 1]
        parts = torch.cat([domain.train.rows, domain.held.rows]).sort().values
        assert torch.equal(parts, domain.foreign.rows.sort().values)
        for number, label in enumerate(domain.foreign.labels.tolist()):
            path = domain.foreign.source.path(int(domain.foreign.rows[number]))
            assert path.split("/")[-3:-1] == [name, ("cat", "mouse")[label]]
    lacking = {name: domain.lacking for name, domain in found.items()}
    assert lacking == {"quick": ("bird",), "real": ("ant",), "sketch": ("ant", "bird")}
    assert list(load_domains(str(top), ["sketch", "real"])) == ["sketch", "real"]


@pytest.mark.parametrize(
    ("classes", "wanted", "sources", "message"),
    [
        ({}, None, [], "expected at least 2 domains in .*, found no folders"),
        ({"real": ["cat", "dog"]}, None, [], "at least 2 domains in .*, found 'real'"),
        ({"real": ["a", "b"], "art": ["a", "b"]}, ["real"], [], "at least 2 domains"),
        ({"real": ["a", "b"], "art": ["a", "b"]}, None, ["sketch"], "the domain 'sketch' in"),
        ({"real": ["a", "b"], "art": ["a", "b"]}, ["real", "x"], [], "domain 'x' in .*, found"),
        ({"real": ["a", "b"], "art": ["b", "c"]}, None, [], "at least 2 classes .*, found 'b'"),
        ({"real": ["a", "b"], "art": ["c", "d"]}, None, [], "at least 2 classes .*, found none"),
    ],
)
def test_folders_that_are_no_domains_are_told_in_a_line(
    classes, wanted, sources, message, tmp_path
):
    make_domains(tmp_path, classes)
    with pytest.raises(DataError, match=message) as problem:
        load_domains(str(tmp_path), wanted, sources)
    assert "\n" not in str(problem.value)


def test_missing_and_empty_folders_of_domains_are_told_in_a_line(tmp_path):
    with pytest.raises(DataError, match="found nothing there"):
        load_domains(str(tmp_path / "none"))
    top = make_domains(tmp_path / "top", {"real": ["a", "b"], "art": ["a", "b"]})
    with pytest.raises(DataError, match="found a file there"):
        load_domains(str(top / "real_train.txt"))
    (top / "art" / "c").mkdir()
    with pytest.raises(DataError, match="found none in .*art/c"):
        load_domains(str(top))
    few = make_domains(tmp_path / "few", {"real": ["a", "b"], "art": ["a", "b"]}, count=1)
    with pytest.raises(DataError, match="pictures enough in the domain art"):
        load_domains(str(few))
    with pytest.raises(DataError, match="the domain 'quick' in the styles of the shapes"):
        load_domains(None, ["real", "quick"])
