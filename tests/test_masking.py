"""When references are masked, what is trained towards then, and that nothing is drawn in secret."""

import pytest
import torch
from conftest import small_cnn, stir
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.testing import assert_close

import killick
from killick.errors import DtypeError, OptionError, ReferencesError, ShapeError

SCOPES, TARGETS = ("batch", "sample"), ("label", "uniform")


class Spy:
    """Stands for a model: keeps what it was called with, returns given logits."""

    def __init__(self, logits):
        self.logits, self.calls = logits, []

    def __call__(self, *args):
        self.calls.append(args)
        return self.logits


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.5, 0.9])
def test_references_are_masked_as_often_as_alpha_says(scope, alpha, generator):
    masking = killick.ReferenceMasking(alpha=alpha, target="label", scope=scope)
    draws = [masking.draw(20, "cpu", generator=generator).masked for _ in range(2000)]
    masked = torch.stack([d.expand(20) for d in draws]).float()
    count = 2000 if scope == "batch" else 40_000
    four_sigma = 4 * (alpha * (1 - alpha) / count) ** 0.5
    assert masked.mean().item() == pytest.approx(alpha, abs=four_sigma)
    whole = ((masked.mean(1) == 0) | (masked.mean(1) == 1)).float().mean().item()
    assert (whole == 1) == (scope == "batch")


@pytest.mark.parametrize("scope", SCOPES)
def test_alpha_one_masks_all_and_alpha_zero_none(scope):
    always = killick.ReferenceMasking(alpha=1.0, target="label", scope=scope)
    never = killick.ReferenceMasking(alpha=0.0, target="uniform", scope=scope)
    assert all(always.draw(5, "cpu").masked.all() for _ in range(200))
    assert all(never.draw(5, "cpu").masked is None for _ in range(200))


def test_every_fifth_batch_is_masked_beginning_with_the_first():
    masking = killick.ReferenceMasking(every=5, target="label")
    masked = [bool(masking.draw(4, "cpu").masked) for _ in range(11)]
    assert [i for i, m in enumerate(masked) if m] == [0, 5, 10]
    assert masking.alpha == 0.2


@given(
    st.sampled_from(SCOPES),
    st.sampled_from(TARGETS),
    st.booleans(),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
def test_the_loss_is_the_mean_over_images_of_cross_entropy_to_label_or_uniform(
    scope, target, soft, alpha, seed
):
    g = torch.Generator().manual_seed(seed)
    n, classes = 6, 4
    logits = torch.randn(n, classes, generator=g, dtype=torch.float64)
    index = torch.randint(classes, (n,), generator=g)
    probs = torch.rand(n, classes, generator=g, dtype=torch.float64).softmax(1)
    masking = killick.ReferenceMasking(alpha=alpha, target=target, scope=scope)
    draw = masking.draw(n, "cpu", generator=g)
    labels = probs if soft else index
    found = cross_entropy(*masking.forward(Spy(logits), torch.zeros(n, 3), labels, draw))
    masked = torch.zeros(n) if draw.masked is None else draw.masked.expand(n)
    total = 0.0
    for i in range(n):  # from the paper's figure 3, one image at a time
        aim = probs[i] if soft else torch.eye(classes, dtype=torch.float64)[index[i]]
        if masked[i] and target == "uniform":
            aim = torch.full((classes,), 1 / classes, dtype=torch.float64)
        total -= sum(aim[c] * (logits[i, c] - logits[i].exp().sum().log()) for c in range(classes))
    assert_close(found, torch.as_tensor(total / n))


def test_the_model_is_called_with_images_references_and_mask_alone(generator):
    x = torch.arange(12.0).reshape(6, 2)
    spy = Spy(torch.zeros(6, 3))
    masking = killick.ReferenceMasking(alpha=0.5, target="label")
    masking.loss(spy, x, torch.zeros(6, dtype=torch.long), generator=generator)
    ((got_x, references, masked),) = spy.calls
    assert_close(got_x, x)
    assert_close(references.sort(0).values, x)
    assert not (references == x).any()
    assert masked.shape == ()


def test_references_come_from_a_pool_or_a_tensor_where_given(generator):
    x, spy = torch.zeros(5, 2), Spy(torch.zeros(5, 3))
    labels = torch.zeros(5, dtype=torch.long)
    masking = killick.ReferenceMasking(alpha=0.0, target="label")
    pool = killick.ReferencePool(torch.full((3, 2), 7.0))
    masking.loss(spy, x, labels, pool, generator)
    masking.loss(spy, x, labels, x + 2, generator)
    assert (spy.calls[0][1] == 7).all()
    assert (spy.calls[1][1] == 2).all()


def test_a_step_repeats_with_its_generator_and_leaves_the_global_state_alone():
    masking = killick.ReferenceMasking(alpha=0.5, target="label", scope="sample")
    state = torch.get_rng_state()
    draws = [masking.draw(9, "cpu", generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(draws[0].chosen, draws[1].chosen)
    assert torch.equal(draws[0].masked, draws[1].masked)
    assert torch.equal(state, torch.get_rng_state())


def test_references_do_not_depend_on_alpha():
    chosen = [
        killick.ReferenceMasking(alpha=alpha, target="label")
        .draw(9, "cpu", generator=torch.Generator().manual_seed(3))
        .chosen
        for alpha in (0.0, 0.25, 1.0)
    ]
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])


def test_nothing_is_drawn_in_forward():
    model = stir(killick.anchor(small_cnn())).train()
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform", scope="sample")
    x, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 5
    draw = masking.draw(6, "cpu")
    state = torch.get_rng_state()
    first, _ = masking.forward(model, x, labels, draw)
    second, _ = masking.forward(model, x, labels, draw)
    assert_close(first, second)
    assert torch.equal(state, torch.get_rng_state())


def test_any_criterion_and_label_smoothing_work_beside_masking(generator):
    model = killick.anchor(nn.Linear(4, 3))
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform", scope="sample")
    x, labels = torch.randn(8, 4), torch.randint(3, (8,))
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    masking.loss(model, x, labels, generator=generator, criterion=smooth).backward()
    assert model.net.weight.grad.abs().sum() > 0


def test_regression_trains_towards_the_label():
    model = killick.anchor(nn.Linear(4, 1))
    masking = killick.ReferenceMasking(alpha=0.5, target="label")
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    loss = masking.loss(model, x, y, criterion=mse_loss)
    assert loss.item() > 0
    uniform = killick.ReferenceMasking(alpha=0.5, target="uniform")
    with pytest.raises(DtypeError, match="For regression use target='label'"):
        uniform.loss(killick.anchor(nn.Linear(4, 2)), x, y, criterion=mse_loss)


def test_alpha_may_change_while_training_within_its_range():
    masking = killick.ReferenceMasking(alpha=0.0, target="label")
    masking.alpha = 1
    assert masking.draw(3, "cpu").masked.all()
    with pytest.raises(OptionError, match="alpha between 0 and 1, found 1.5"):
        masking.alpha = 1.5
    with pytest.raises(OptionError, match="every=3"):
        killick.ReferenceMasking(every=3, target="label").alpha = 0.5


def test_a_run_goes_on_from_its_state_and_refuses_another_s():
    first, second = (killick.ReferenceMasking(every=3, target="label") for _ in range(2))
    for _ in range(4):
        first.draw(3, "cpu")
    second.load_state_dict(first.state_dict())
    for masking in (first, second):
        assert [bool(masking.draw(3, "cpu").masked) for _ in range(3)] == [False, False, True]
    with pytest.raises(OptionError, match="with target='uniform', found 'label'"):
        killick.ReferenceMasking(every=3, target="uniform").load_state_dict(first.state_dict())


def test_the_settings_are_recorded():
    masking = killick.ReferenceMasking(alpha=0.25, target="label", scope="sample", ranks="own")
    expected = {"alpha": 0.25, "every": None, "target": "label", "scope": "sample", "ranks": "own"}
    assert masking.record() == expected
    assert repr(masking) == "ReferenceMasking(alpha=0.25, target='label', scope='sample')"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"alpha": 0.25}, "no default"),
        ({"alpha": -0.1, "target": "label"}, "alpha between 0 and 1, found -0.1"),
        ({"alpha": float("nan"), "target": "label"}, "found nan"),
        ({"alpha": "0.25", "target": "label"}, "alpha between 0 and 1, found '0.25'"),
        ({"every": "2", "target": "label"}, "whole number from 1, found '2'"),
        ({"alpha": 0.2, "target": "lable"}, r"found 'lable' \(did you mean 'label'\?\)"),
        ({"alpha": 0.2, "target": "label", "scope": "epoch"}, "scope to be one of 'batch'"),
        ({"alpha": 0.2, "target": "label", "ranks": "all"}, "ranks to be one of 'shared'"),
        ({"target": "label"}, "either alpha .* or every"),
        ({"alpha": 0.2, "every": 5, "target": "label"}, "found alpha=0.2 and every=5"),
        ({"every": 0, "target": "label"}, "whole number from 1, found 0"),
        ({"every": 2, "target": "label", "scope": "sample"}, "scope='batch' with every="),
    ],
)
def test_wrong_settings_are_refused(arguments, text):
    with pytest.raises(OptionError, match=text):
        killick.ReferenceMasking(**arguments)


def test_labels_that_do_not_fit_are_refused():
    masking = killick.ReferenceMasking(alpha=0.5, target="uniform")
    model, x = killick.anchor(nn.Linear(4, 3)), torch.randn(8, 4)
    with pytest.raises(ShapeError, match="a label for each of 8 images, found 7"):
        masking.loss(model, x, torch.zeros(7, dtype=torch.long))
    with pytest.raises(DtypeError, match=r"probabilities \(n, 3\).*found labels of shape \(8, 2\)"):
        masking.loss(model, x, torch.zeros(8, 2))
    with pytest.raises(ReferencesError, match="found 1: one image alone would be its own"):
        masking.loss(model, x[:1], torch.zeros(1, dtype=torch.long))


def test_a_plain_network_is_refused_as_not_anchored():
    masking = killick.ReferenceMasking(alpha=0.5, target="label")
    with pytest.raises(OptionError, match="expected an anchored model, found Linear"):
        masking.loss(nn.Linear(4, 3), torch.randn(8, 4), torch.zeros(8, dtype=torch.long))


def test_short_integer_labels_work_with_either_target():
    model, x = killick.anchor(nn.Linear(4, 3)), torch.randn(8, 4)
    for target in TARGETS:
        masking = killick.ReferenceMasking(alpha=0.5, target=target)
        assert masking.loss(model, x, torch.zeros(8, dtype=torch.int32)).isfinite()


@pytest.mark.parametrize("target", ["label", "uniform"])
@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([0, 1, 2, 0, 1, 2, 0, 1], "expected labels as a torch.Tensor, found list"),
        (torch.zeros(8, 1, dtype=torch.long), r"found torch.int64 of shape \(8, 1\)"),
        (torch.zeros(8), r"found torch.float32 of shape \(8,\)"),
        (torch.zeros(7, dtype=torch.long), "a label for each of 8 images, found 7"),
        (torch.tensor(1), r"of shape \(\)"),
    ],
)
def test_labels_of_another_kind_are_refused_in_a_line(labels, told, target):
    model = killick.anchor(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), example=torch.rand(1, 3, 2, 2)
    )
    masking = killick.ReferenceMasking(alpha=0.5, target=target)
    with pytest.raises((DtypeError, ShapeError), match=told):
        masking.loss(model, torch.rand(8, 3, 2, 2), labels)


def test_another_criterion_compares_with_what_it_likes():
    model = killick.anchor(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 1)), example=torch.rand(1, 3, 2, 2)
    )
    masking = killick.ReferenceMasking(alpha=0.5, target="label")
    loss = masking.loss(
        model, torch.rand(8, 3, 2, 2), torch.rand(8, 1), criterion=nn.functional.mse_loss
    )
    assert loss.ndim == 0


@pytest.mark.parametrize(
    ("alpha", "protocol", "target"), [(0.5, "masked", "uniform"), (0, "anchored", "")]
)
def test_a_model_trained_in_a_loop_of_ones_own_says_how(tmp_path, alpha, protocol, target):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    model = killick.anchor(net, normalize=((0.5,) * 3, (0.5,) * 3))
    images, labels = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8), torch.arange(9) % 3
    killick.ReferenceMasking(alpha, target="uniform").loss(model, images, labels).backward()
    model.set_references(images[:2]).eval()
    killick.save(model, tmp_path / "model", provenance={"note": "mine"})
    loaded = killick.load(tmp_path / "model", net=net)
    assert loaded.provenance["note"] == "mine"
    for each in (model, loaded):
        rows = killick.evaluate(each, (images, labels), suites=("clean",))
        facts = {(row["protocol"], row["target"], row["references"]) for row in rows}
        assert facts == {(protocol, target, "batch")}


def test_masking_that_ends_is_still_recorded():
    model, x = killick.anchor(nn.Linear(4, 3)), torch.randn(8, 4)
    masking = killick.ReferenceMasking(0.5, target="label")
    masking.loss(model, x, torch.arange(8) % 3)
    masking.alpha = 0
    masking.loss(model, x, torch.arange(8) % 3)
    assert (model.trained_with["protocol"], model.trained_with["alpha"]) == ("masked", 0.5)


@pytest.mark.parametrize("target", ["label", "uniform"])
@pytest.mark.parametrize("bad", [3, -1])
def test_labels_out_of_range_are_refused(target, bad):
    model = killick.anchor(torch.nn.Linear(4, 3))
    masking = killick.ReferenceMasking(alpha=0.5, target=target)
    with pytest.raises(ShapeError, match=f"labels from 0 to 2, .*found {bad}"):
        masking.loss(model, torch.randn(4, 4), torch.tensor([0, 1, 2, bad]))


def test_images_of_nan_are_refused_but_a_loss_that_diverged_is_not():
    model = killick.anchor(torch.nn.Linear(4, 3)).set_references(torch.randn(1, 4))
    masking, x = killick.ReferenceMasking(alpha=0.5, target="label"), torch.randn(4, 4)
    labels = torch.tensor([0, 1, 2, 0])
    x[2, 1] = float("nan")
    with pytest.raises(DtypeError, match="NaN or infinity in number 2"):
        masking.loss(model, x, labels)
    with pytest.raises(DtypeError, match="NaN or infinity in number 2"):
        killick.predict(model.eval(), x)
    with torch.no_grad():
        model.train().net.bias.fill_(float("nan"))
    assert masking.loss(model, torch.randn(4, 4), labels).isnan()
