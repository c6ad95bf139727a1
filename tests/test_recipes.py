"""Recipes: typed, whole, and every mistake told at once."""

import dataclasses
from dataclasses import dataclass

import pytest
import yaml

from killick.errors import OptionError, RecipeError
from killick.protocols.masked_protocol import MaskedProtocol
from killick.registry import Registry
from killick.settings import read_settings, registered, setting, settings_of
from killick.training.recipe import Recipe
from killick.training.recipe_files import (
    load_recipe,
    make_recipe,
    read_setting,
    settings,
    shipped,
    to_yaml,
)

SHIPPED = {
    *("shapes-small", "digits-small", "cifar10-resnet18", "cifar100-resnet18", "cifar100-wrn40-2"),
    *("imagenet-swinv2-t", "imagenet-swinv2-s", "imagenet-swinv2-b", "imagenet-vit-b16"),
    "imagenette-resnet18",
    *("finetune", "shapes-compare", "shapes-wide", "cifar10-vit", "cifar10-convnext"),
    *("textures-compare", "small-shapes", "small-shapes-long", "shapes-federated"),
}


def mistakes(text: str) -> str:
    with pytest.raises(RecipeError) as problem:
        make_recipe(yaml.safe_load(text), "mine.yaml")
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_the_shipped_recipes_are_all_there_and_explained():
    assert set(shipped()) == SHIPPED
    for name in SHIPPED:
        assert len(load_recipe(name).about) > 40, name


def test_a_recipe_comes_back_from_its_yaml():
    for name in SHIPPED:
        recipe = load_recipe(name)
        assert make_recipe(yaml.safe_load(to_yaml(recipe))) == recipe


def test_every_setting_says_what_it_means():
    found = settings()
    assert len(found) > 60
    for name, field in found.items():
        assert field.metadata["about"] or field.metadata["among"], name


def test_an_unknown_key_is_refused_with_the_nearest():
    text = mistakes("{protocol: {name: standard}, optimizer: {rl: 0.1}, epoch: 3}")
    assert "optimizer.rl: no such setting (did you mean optimizer.lr?)" in text
    assert "epoch: no such setting (did you mean epochs?)" in text


def test_a_key_in_the_wrong_place_is_told_where_it_belongs():
    text = mistakes("{protocol: {name: standard}, alpha: 0.1}")
    assert "alpha: no such setting (did you mean protocol.alpha?)" in text
    assert "alfa: no such setting (did you mean protocol.alpha?)" in mistakes("{alfa: 0.1}")


def test_all_mistakes_of_a_file_are_told_at_once():
    text = mistakes(
        """
        epochs: ten
        batch: 0
        precision: float16
        optimizer: {lr: -1, clip: x, nesterov: 1}
        schedule: {milestones: 0.5}
        network: [killick, resnet18]
        data: {mean: [a, b, c], nmae: x}
        """
    )
    assert text.startswith("mine.yaml has 10 mistakes: ")
    for part in (
        "epochs: expected a whole number, found 'ten'",
        "batch: expected at least 1, found 0",
        "precision: expected one of auto, float32, bfloat16 (did you mean bfloat16?), found"
        " 'float16'",
        "optimizer.lr: expected more than 0, found -1",
        "optimizer.clip: expected a number, found 'x'",
        "optimizer.nesterov: expected true or false, found 1",
        "schedule.milestones: expected numbers such as [0.3, 0.6], found 0.5",
        "network: expected settings such as network.name, found ['killick', 'resnet18']",
        "data.mean: expected numbers such as [0.3, 0.6], found ['a', 'b', 'c']",
        "data.nmae: no such setting (did you mean data.name?)",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("{}", "protocol.target: expected label .* or uniform .*no default"),
        (
            "{protocol: {name: masked, target: label, every: 5, scope: sample}}",
            "protocol.every: requires scope: batch, and no alpha_end",
        ),
        (
            "{protocol: {name: masked, target: label, every: 5, alpha_end: 0.0}}",
            "has one mistake: protocol.every: requires scope: batch, and no alpha_end",
        ),
        (
            "{protocol: {name: standard}, data: {mean: [0.5, 0.5, 0.5]}}",
            "data.mean, data.std: expected both or neither",
        ),
        (
            "{protocol: {name: standard}, schedule: {milestones: [60, 120]}}",
            "schedule.milestones: expected shares",
        ),
        (
            "{protocol: {name: standard}, optimizer: {betas: [0.9]}}",
            "optimizer.betas: expected two",
        ),
        (
            "{protocol: {name: standard}, augment: {mixing_set: x}}",
            "augment.mixing_set: requires policy: pixmix",
        ),
        ("{protocol: {name: standard}, data: {validation: 1.5}}", "data.validation: expected"),
        ("{protocol: standard, optimizer: {betas: [0.9, 1.5]}}", "optimizer.betas: expected two"),
        (
            "{protocol: standard, optimizer: {momentum: 0, nesterov: true}}",
            "nesterov: requires optimizer.mom",
        ),
        (
            "{protocol: {name: standard}, network: {arguments: {num_classes: 3}}}",
            "network.arguments: num_classes",
        ),
        (
            "{protocol: {name: standard}, data: {mean: [0.5], std: [0.5]}}",
            "data.mean, data.std: expected both or neither, 3 numbers each",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, told):
    with pytest.raises(RecipeError, match=told):
        make_recipe(yaml.safe_load(settings))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("{alpha_end: -0.1}", "protocol.alpha_end: expected at least 0, found -0.1"),
        ("{alpha_end: 1.1}", "protocol.alpha_end: expected at most 1, found 1.1"),
        ("{alpha_end: high}", "protocol.alpha_end: expected a number, found 'high'"),
        ("{batchnorm: settle}", "protocol.batchnorm: expected one of settled, running (did you me"),
    ],
)
def test_how_masking_goes_on_has_limits(settings, told):
    assert told in mistakes(f"protocol: {settings}")


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({}, 0.25),
        ({"alpha": 0.3}, 0.3),
        ({"alpha": 0.0}, 0.0),
        ({"alpha": 0.3, "alpha_end": 0.9}, 0.6),
        ({"alpha": 1.0, "alpha_end": 0.0}, 0.5),
        ({"alpha": 0.0, "alpha_end": 0.5}, 0.25),
        ({"every": 5}, 0.2),
        ({"every": 5, "alpha": 0.9}, 0.2),
    ],
)
def test_the_share_of_a_protocol_is_how_often_it_masks_in_the_mean(settings, share):
    assert MaskedProtocol(target="label", **settings).share == pytest.approx(share)


def test_a_number_that_yaml_takes_for_a_text_is_a_number():
    recipe = make_recipe({"protocol": {"name": "standard"}, "optimizer": {"lr": "1e-4"}})
    assert recipe.optimizer.lr == 1e-4


@pytest.mark.parametrize("value", [".nan", ".inf", "true", "[1]", "{}"])
def test_what_is_no_number_is_refused(value):
    assert "optimizer.lr: expected a number" in mistakes(f"{{optimizer: {{lr: {value}}}}}")


def test_overrides_replace_single_settings():
    recipe = load_recipe("cifar10-resnet18", {"optimizer.lr": 0.05, "epochs": 60})
    assert (recipe.optimizer.lr, recipe.epochs, recipe.optimizer.momentum) == (0.05, 60, 0.9)
    with pytest.raises(RecipeError, match="optimizer.rl: no such setting"):
        load_recipe("cifar10-resnet18", {"optimizer.rl": 0.05})
    with pytest.raises(RecipeError, match="no such setting: epochs.x"):
        load_recipe("cifar10-resnet18", {"epochs.x": 1})


def test_a_recipe_builds_on_another(tmp_path):
    (tmp_path / "under.yaml").write_text("base: cifar10-resnet18\nepochs: 7\n")
    (tmp_path / "mine.yaml").write_text("base: under.yaml\nprotocol: {alpha: 0.5}\n")
    recipe = load_recipe(tmp_path / "mine.yaml")
    expected = load_recipe("cifar10-resnet18", {"epochs": 7, "protocol.alpha": 0.5})
    assert recipe == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1, 2]", "no settings such as 'epochs: 10'"),
        ("a: [", "not YAML"),
        ("base: mine.yaml", "its own base"),
        ("base: 3", "no base 3"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, told):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(RecipeError, match=told):
        load_recipe(tmp_path / "mine.yaml")


def test_a_recipe_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"did you mean 'cifar10-resnet18'\?"):
        load_recipe("cifar10-resnet")
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(tmp_path / "none.yaml")


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().epochs = 3


def test_the_papers_settings():
    cifar = load_recipe("cifar10-resnet18")
    assert (cifar.epochs, cifar.batch, cifar.optimizer.lr) == (200, 128, 0.1)
    assert [round(share * 200) for share in cifar.schedule.milestones] == [60, 120, 160]
    assert (cifar.protocol.alpha, cifar.protocol.target) == (0.25, "label")
    assert load_recipe("cifar100-wrn40-2").network.arguments == {"dropout": 0.3}
    swin, vit = load_recipe("imagenet-swinv2-b"), load_recipe("imagenet-vit-b16")
    assert (swin.epochs, swin.batch, swin.protocol.alpha, swin.data.size) == (330, 1024, 0.2, 256)
    assert (vit.epochs, vit.batch, vit.optimizer.weight_decay, vit.data.size) == (
        330,
        4096,
        0.3,
        224,
    )
    assert swin.protocol.references == vit.protocol.references == "batch"


def test_other_networks_on_cifar10_differ_in_what_their_kind_needs_and_in_nothing_else():
    asdict = dataclasses.asdict
    cifar, vit, convnext = (
        asdict(load_recipe(f"cifar10-{name}")) for name in ("resnet18", "vit", "convnext")
    )
    assert {key for key in cifar if cifar[key] != vit[key]} == {
        *("about", "network", "optimizer", "schedule", "epochs"),
    }
    assert {key for key in vit if vit[key] != convnext[key]} == {"about", "network"}
    assert convnext["network"]["arguments"] == {"patch_size": 2}  # and none of the ViT's


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("data: {resize: 16}", "data.resize: expected at least data.size"),
        ("augment: {crop: resized}", "protocol.references: augmented"),
        ("augment: {policy: augmix}", "protocol.references: augmented"),
    ],
)
def test_views_that_would_surprise_are_refused(settings, told):
    values = {
        "protocol": {"name": "anchored", "references": "augmented"},
        **yaml.safe_load(settings),
    }
    with pytest.raises(RecipeError, match=told):
        make_recipe(values)


def test_british_spellings_are_accepted(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: shapes-small\noptimiser: {lr: 0.5}\n")
    recipe = load_recipe(tmp_path / "mine.yaml", {"optimiser.momentum": 0.8})
    assert (recipe.optimizer.lr, recipe.optimizer.momentum) == (0.5, 0.8)
    assert recipe.optimizer.nesterov  # of the base
    assert "optimiser" not in to_yaml(recipe)
    assert make_recipe({"protocol": "standard", "optimiser": {"lr": 1}}).optimizer.lr == 1


def test_a_group_may_be_given_by_its_name_alone():
    recipe = make_recipe({"protocol": "standard", "schedule": "constant", "data": "digits"})
    assert (recipe.protocol.name, recipe.schedule.name, recipe.data.name) == (
        *("standard", "constant", "digits"),
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("data.mean", "0.5,0.5,0.25", [0.5, 0.5, 0.25]),
        ("data.mean", "[0.5, 0.5, 0.25]", [0.5, 0.5, 0.25]),
        ("data.std", "none", None),
        ("schedule.milestones", "0.5", [0.5]),
        ("epochs", "3", 3),
        ("loggers", "tensorboard", ["tensorboard"]),
        ("components", "weight_average", ["weight_average"]),
        ("components", "[{name: mixup, mixup: 1}]", [{"name": "mixup", "mixup": 1}]),
    ],
)
def test_lists_may_be_written_without_brackets(name, text, value):
    assert read_setting(name, text) == value


def test_an_entry_may_leave_its_name_undescribed():
    @dataclass
    class First:
        name: str = "first"

    @dataclass
    class Usual:
        name: str = setting("usual", "which one")

    registry = Registry("kinds", "kind")
    registry.register("first", First)
    registry.register("usual", Usual)

    @dataclass
    class Settings:
        kind: Usual = registered(registry, "usual")

    assert settings_of(Settings)["kind.name"].metadata["about"] == "which one"
    assert read_settings(Settings, {"kind": "first"}, "", []).kind == First()


def test_settings_under_standard_hold_for_the_standard_protocol_alone(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("{base: shapes-small, epochs: 9, standard: {epochs: 7, optimizer: {lr: 0.3}}}")
    usual = load_recipe("shapes-small")
    assert (load_recipe(file).epochs, load_recipe(file).optimizer.lr) == (9, usual.optimizer.lr)
    standard = load_recipe(file, {"protocol.name": "standard"})
    assert (standard.epochs, standard.optimizer.lr) == (7, 0.3)
    assert standard.optimizer.momentum == usual.optimizer.momentum
    assert load_recipe(file, {"protocol": "standard", "epochs": 3}).epochs == 3
    above = tmp_path / "above.yaml"
    above.write_text("{base: mine.yaml, epochs: 5}")
    for protocol in ("standard", "anchored"):
        assert load_recipe(above, {"protocol.name": protocol}).epochs == 5
    assert load_recipe(above, {"protocol.name": "standard"}).optimizer.lr == 0.3
    file.write_text("{base: shapes-small, standard: 3}")
    with pytest.raises(RecipeError, match="under standard no settings"):
        load_recipe(file)


def test_vit_decays_all_of_its_weights_as_torchvisions_command_does():
    recipe = load_recipe("imagenet-vit-b16")
    assert (recipe.optimizer.weight_decay, recipe.optimizer.decay) == (0.3, "all")
    assert recipe.data.repeats == 3
    assert load_recipe("imagenet-swinv2-t").optimizer.decay == "matrices"
