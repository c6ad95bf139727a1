"""The suite `adversarial`: attacks against slow ones in float64, and whoever cannot be attacked."""

import pytest
import torch
from conftest import small_cnn, stir
from small_models import MEAN_STD, find, make_anchored, make_set, make_standard
from torch import nn

import killick
from killick.errors import OptionError
from killick.evaluation.attacks import ATTACKS, RADII, Attack
from killick.evaluation.image_blocks import block_generator

PGD, FGSM = ATTACKS["pgd20"], ATTACKS["fgsm"]


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return stir(small_cnn(classes=4)).eval()


def make_images(n: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images with black and white pixels too, labels, and numbers for the random start."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(-60, 316, (n, 3, 8, 8), generator=generator).clamp(0, 255)
    uniform = torch.rand(images.shape, generator=generator, dtype=torch.float64)
    return images.float(), torch.arange(n) % 4, uniform


def slow_attack(network, image, label, eps, steps, uniform=None):
    """One image in 0 to 1, in float64, from the definition: gradients of the cross-entropy."""
    image = image.double()
    alpha = eps if uniform is None else 2.5 * eps / 20
    x = image.clone()
    if uniform is not None:
        x = torch.clamp(x + (2 * uniform - 1) * eps, 0, 1)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        loss = nn.functional.cross_entropy(network(x[None]), torch.tensor([label]))
        loss.backward()
        moved = x.detach() + alpha * x.grad.sign()
        moved = torch.maximum(torch.minimum(moved, image + eps), image - eps)
        x = torch.clamp(moved, 0, 1)
    return x


@pytest.mark.parametrize("radius", RADII)
def test_attacks_are_those_of_a_loop_in_float64(radius):
    net = make_net().double()
    images, labels, uniform = make_images()
    for attack, steps in ((FGSM, 1), (PGD, 20)):
        start = uniform if steps == 20 else None
        found = attack.perturb(lambda x: net(x / 255), images.double(), labels, radius, start)
        for i in range(len(images)):
            own = None if start is None else start[i]
            x = slow_attack(net, images[i] / 255, int(labels[i]), radius / 255, steps, own)
            assert torch.allclose(found[i] / 255, x, atol=1e-6)


def test_fgsm_of_a_linear_network_has_a_closed_form():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    images, labels, _ = make_images()
    labels = labels % 2
    weight = net[1].weight.detach()
    away = (weight[1 - labels] - weight[labels]).sign().view(images.shape)
    expected = (images + 2 * away).clamp(0, 255)
    assert torch.equal(FGSM.perturb(net, images, labels, 2), expected)
    # So it is where the network is so sure that the gradient of its cross-entropy is 0.
    assert torch.equal(FGSM.perturb(lambda x: 1e4 * net(x), images, labels, 2), expected)


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("attack", [FGSM, PGD])
def test_the_bound_holds_exactly(attack, radius):
    net, (images, labels, uniform) = make_net(), make_images()
    found = attack.perturb(lambda x: net(x / 255), images, labels, radius, uniform.float())
    assert found.dtype == torch.float32
    assert float((found - images).abs().max()) == radius
    assert 0 <= float(found.min()) <= float(found.max()) <= 255


def accuracies(model, **options) -> dict[tuple[str, int], float]:
    rows = killick.evaluate(model, make_set(), ("adversarial",), **options)
    top1 = [row for row in rows if row["metric"] == "top1" and row["inference"] == "single"]
    return {(row["corruption"], row["severity"] or 0): row["value"] for row in top1}


def test_rows_of_an_anchored_model_are_those_of_its_first_reference():
    """Against attacks on the folded network, block by block."""
    model, data = make_anchored(), make_set()
    found = accuracies(model)
    assert len(found) == 7
    folded = killick.fold(model)
    for name, attack in ATTACKS.items():
        hits = 0
        for number, first in enumerate(range(0, 300, 250)):
            images = data.images()[first : first + 250].float()
            labels = data.labels[first : first + 250]
            generator = block_generator(0, name, 8, number, torch.device("cpu"))
            uniform = torch.rand(images.shape, generator=generator)

            def network(x):
                return folded.net(folded.normalize(x))

            attacked = attack.perturb(network, images, labels, 8, uniform)
            hits += int((network(attacked).argmax(1) == labels).sum())
        assert found[name, 8] == pytest.approx(hits / 300, abs=1e-2)
    assert accuracies(folded) == pytest.approx(found, abs=1e-2)
    clean = found["", 0]
    assert found["fgsm", 8] < found["fgsm", 2] < clean
    assert all(found["pgd20", radius] <= found["fgsm", radius] + 0.01 for radius in RADII)


def test_only_the_attacked_reference_has_rows():
    rows = killick.evaluate(make_anchored(), make_set(), ("adversarial",), limit=40)
    attacked = [row for row in rows if row["suite"] == "adversarial"]
    assert {(row["inference"], row["k"], row["std"]) for row in attacked} == {("single", 1, "")}
    assert find(rows, "nll", corruption="pgd20", severity=8)["count"] == 40


def test_models_that_take_floats_are_attacked_as_those_that_normalize():
    inside, outside = make_anchored(), killick.anchor(make_net(), example=torch.rand(2, 3, 16, 16))
    outside.load_state_dict(inside.state_dict(), strict=False)
    outside.set_references(inside.normalize(inside.references)).eval()
    assert accuracies(outside, normalize=MEAN_STD) == pytest.approx(accuracies(inside), abs=1e-2)


def test_neither_batch_size_nor_precision_changes_the_attacked_images(monkeypatch):
    perturb, kept = Attack.perturb, []

    def keep(self, *arguments):
        kept.append(perturb(self, *arguments))
        return kept[-1]

    monkeypatch.setattr(Attack, "perturb", keep)
    found = []
    for options in ({}, {"batch": 61}, {"precision": "bfloat16"}):
        kept.clear()
        accuracies(make_standard(), **options)
        found.append(torch.cat(kept))
    assert all(torch.equal(found[0], each) for each in found[1:])


class Frozen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().mean((2, 3)).repeat(1, 2)[:, :4]


def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy().mean((2, 3))).repeat(1, 2)[:, :4]


@pytest.mark.parametrize("network", [Frozen(), through_numpy])
def test_networks_without_gradients_are_refused_or_left_out(network):
    options = {"normalize": MEAN_STD, "size": 16}
    with pytest.raises(OptionError, match=r"^[^\n]*requires gradients, [^\n]* none[^\n]*\.$"):
        killick.evaluate(network, make_set(), ("adversarial",), **options)
    rows = killick.evaluate(network, make_set(), ("clean", "adversarial"), **options)
    assert {row["suite"] for row in rows} == {"clean"}
