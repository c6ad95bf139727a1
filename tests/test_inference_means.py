"""Predictions that are means: over shifted and mirrored views, dropout draws or an ensemble."""

import pytest
import torch
from small_models import MEAN_STD, find, make_set
from test_ensemble import member
from torch import nn

import killick
from killick.cli import main
from killick.errors import OptionError
from killick.evaluation.attacks import ATTACKS, attacked_logits
from killick.evaluation.augmented_views import AugmentedViews
from killick.evaluation.image_blocks import BLOCK
from killick.evaluation.mc_dropout import MCDropout
from killick.evaluation.open_classifier import open_classifier


def make_model(rate: float = 0.4) -> killick.Standard:
    """A network for the images of `make_set`, with dropout, that is not symmetric."""
    torch.manual_seed(1)
    data = make_set()
    side, classes = data.images().shape[-1], data.classes
    layers = [nn.Flatten(), nn.Linear(3 * side * side, 32), nn.ReLU(), nn.Dropout(rate)]
    net = nn.Sequential(*layers, nn.Linear(32, classes))
    return killick.standard(net, MEAN_STD, image_shape=(3, side, side)).eval()


def slow_views(image, flip):
    """The views of one image, pixel by pixel."""
    channels, height, width = image.shape
    step = max(1, height // 32)
    for mirrored in (False, True) if flip else (False,):
        for shift in (0, -step, step):
            view = torch.empty_like(image)
            for row in range(height):
                for column in range(width):
                    y = min(max(row - shift, 0), height - 1)
                    x = min(max(column - shift, 0), width - 1)
                    view[:, row, column] = image[:, y, width - 1 - x if mirrored else x]
            yield view


@pytest.mark.parametrize("side", [8, 64])
def test_views_are_those_of_a_loop_over_pixels(side):
    images = torch.randint(256, (2, 3, side, side)).byte()
    for flip in (True, False):
        views = AugmentedViews(flip)
        found = torch.stack(list(views(images)))
        assert len(found) == len(views) == (6 if flip else 3)
        for number, image in enumerate(images):
            assert torch.equal(found[:, number], torch.stack(list(slow_views(image, flip))))


def test_tta_is_the_mean_of_probabilities_over_views():
    model, data = make_model(), make_set()
    rows = killick.evaluate(model, data, ("clean",), inference="tta")
    with torch.no_grad():
        views = [model(view).double() for view in AugmentedViews(True)(data.images())]
    probs = torch.stack(views).softmax(2)
    nll = -probs.mean(0)[torch.arange(len(data)), data.labels].log().mean()
    row = find(rows, "nll")
    assert row["value"] == pytest.approx(float(nll), rel=1e-5)
    assert (row["inference"], row["inference_cost"]) == ("tta", 6)
    assert row["model"].endswith("-tta")
    plain = find(killick.evaluate(model, data, ("clean",)), "nll")
    assert plain["value"] != pytest.approx(float(nll), rel=1e-4)
    assert plain["inference_cost"] == 1


def test_what_was_trained_without_flips_is_not_mirrored():
    model, data = make_model(), make_set()
    for flip, cost in ((True, 6), (False, 3)):
        model.provenance = {"recipe": {"augment": {"flip": flip}, "data": {"name": "other"}}}
        rows = killick.evaluate(model, data, ("clean",), inference="tta")
        assert find(rows, "nll")["inference_cost"] == cost


def count_slowly(members, base):
    """Ambiguity and discrepancy, image by image."""
    anyone, each = 0, [0] * len(members)
    for number, chosen in enumerate(base):
        differs = [int(member[number] != chosen) for member in members]
        anyone += max(differs)
        each = [count + one for count, one in zip(each, differs, strict=True)]
    return anyone / len(base), max(each) / len(base)


def test_multiplicity_of_an_ensemble_is_over_its_networks():
    from killick.deploy.ensemble_builder import make_ensemble

    members = [member(seed) for seed in range(3)]
    images = torch.randint(256, (80, 3, 2, 2)).byte()
    images = images.repeat_interleave(16, 2).repeat_interleave(16, 3)
    with torch.no_grad():
        for each in members:  # so that no class has all images
            (*_, head) = (layer for layer in each.modules() if isinstance(layer, nn.Linear))
            head.bias -= each(images).mean(0)
    model = make_ensemble(members)
    labels = torch.arange(80) % 4
    rows = killick.evaluate(model, (images, labels), ("clean", "multiplicity"))
    with torch.no_grad():
        chosen = [each(images).argmax(1).tolist() for each in members]
        base = model(images).argmax(1).tolist()
    ambiguity, discrepancy = count_slowly(chosen, base)
    assert 0 < discrepancy < ambiguity
    assert find(rows, "ambiguity")["value"] == pytest.approx(ambiguity)
    assert find(rows, "discrepancy")["value"] == pytest.approx(discrepancy)
    assert {row["inference_cost"] for row in rows} == {3}
    alone = killick.evaluate(model, (images, labels), ("clean",))
    assert find(rows, "nll")["value"] == find(alone, "nll")["value"]


def test_multiplicity_of_dropout_is_over_its_draws():
    model, data = make_model(0.8), make_set()
    suites = ("clean", "multiplicity")
    options = {"inference": "mc-dropout", "draws": 4, "batch": len(data)}
    rows = killick.evaluate(model, data, suites, **options)
    dropout = MCDropout(model, {}, 4, 0)
    blocks = []
    for number, images in enumerate(data.images().split(BLOCK)):
        dropout.begin(f"clean {data.name}", number)
        with torch.no_grad():
            for _ in range(4):
                with dropout.drawing():
                    blocks.append(model(images))
    drawn = [torch.cat(blocks[draw::4]) for draw in range(4)]
    base = torch.stack([each.double().softmax(1) for each in drawn]).mean(0).argmax(1).tolist()
    expected = count_slowly([each.argmax(1).tolist() for each in drawn], base)
    assert expected[1] > 0
    found = [find(rows, name)["value"] for name in ("ambiguity", "discrepancy")]
    assert found == pytest.approx(expected)
    alone = killick.evaluate(model, data, ("clean",), **options)
    assert find(rows, "nll")["value"] == find(alone, "nll")["value"]


def test_one_prediction_has_no_multiplicity():
    model, data = make_model(0.0), make_set()
    with pytest.raises(OptionError, match="predicts once"):
        killick.evaluate(model, data, ("multiplicity",))
    rows = killick.evaluate(model, data, ("clean", "multiplicity"))
    assert "multiplicity" not in {row["suite"] for row in rows}


def test_draws_of_a_test_set_do_not_depend_on_what_was_evaluated_before():
    model, data = make_model(), make_set()
    options = {"inference": "mc-dropout", "draws": 3, "corruptions": ["fog"], "severities": [3]}
    both = killick.evaluate(model, data, ("clean", "corruptions"), **options)
    alone = killick.evaluate(model, data, ("corruptions",), **options)
    where = {"suite": "corruptions", "corruption": "fog", "mean_of": ""}
    assert find(both, "nll", **where)["value"] == find(alone, "nll", **where)["value"]


def test_dropout_is_attacked_in_the_mean_over_ten_draws():
    model, data = make_model(), make_set()
    classifier = open_classifier(model)
    images = data.images()[:6].float()
    classifier.dropout = MCDropout(model, {}, 3, 0)
    classifier.dropout.begin("here", 0)
    found = attacked_logits(classifier, images)
    classifier.dropout.begin("here", 0)
    drawn = []
    for _ in range(10):
        with classifier.dropout.drawing():
            drawn.append(model(images.byte()).double().softmax(1))
    assert torch.allclose(found.softmax(1).double(), torch.stack(drawn).mean(0), atol=1e-5)
    moved = ATTACKS["fgsm"].perturb(
        lambda x: attacked_logits(classifier, x), images, data.labels[:6], 8.0
    )
    assert (moved - images).abs().amax() == 8
    options = {"inference": "mc-dropout", "draws": 2, "limit": 20}
    rows = killick.evaluate(model, data, ("clean", "adversarial"), **options)
    hurt = find(rows, "top1", corruption="pgd20", severity=8)["value"]
    assert hurt <= find(rows, "top1", suite="clean")["value"]


def test_draws_have_rows_of_their_own(tmp_path):
    model, data = make_model(), make_set()
    for draws in (2, 3):
        options = {"inference": "mc-dropout", "draws": draws, "folder": tmp_path}
        rows = killick.evaluate(model, data, ("clean",), name="mine", **options)
        assert {row["inference_cost"] for row in rows} == {draws}


def test_the_command_line_has_them(tmp_path, image_folder, capsys):
    assert main(["evaluate", "nowhere", "--inference", "flips"]) == 2
    assert "tta" in capsys.readouterr().err
