"""Settings that cannot act are told where somebody typed them, and nowhere else."""

import dataclasses

import pytest
import torch

from killick.cli import main
from killick.errors import OptionError
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs
from killick.training import train
from killick.training.recipe import Recipe
from killick.training.recipe_files import load_recipe, settings, shipped
from killick.training.unused_settings import NEEDS, find_idle, refuse_idle


def recipe_with(**values):
    return load_recipe("shapes-small", {name.replace("__", "."): v for name, v in values.items()})


@pytest.mark.parametrize("dotted", NEEDS)
def test_each_acts_with_what_it_needs_and_not_without(dotted):
    other, wanted = NEEDS[dotted]
    field = settings()[other]
    assert dotted in settings()
    names = field.metadata["among"] or ("shapes", "cifar10", "cifar100")
    assert set(wanted) < set(names)
    for name in names:
        recipe = load_recipe("shapes-small", {"protocol.target": "label", other: name})
        idle = find_idle(recipe, [dotted, "epochs"])
        assert (dotted in idle) == (name not in wanted)
        if name not in wanted:
            assert other in idle[dotted]
            assert idle[dotted].endswith(f"found {name}")
            with pytest.raises(OptionError, match=f"a setting cannot act: {dotted}: expected"):
                refuse_idle(recipe, ["seed", dotted])
        else:
            refuse_idle(recipe, ["seed", dotted])


OTHER_VALUES = {
    "protocol.target": "uniform",
    "protocol.alpha": 1.0,
    "protocol.alpha_end": 1.0,
    "protocol.every": 1,
    "protocol.scope": "sample",
    "protocol.ranks": "own",
    "protocol.batchnorm": "running",
    "protocol.references": "augmented",
    "protocol.reference_set": 5,
    "protocol.stored": 3,
    "protocol.stored_as": "mean",
    "protocol.stem": "exact",
    "optimizer.momentum": 0.1,
    "optimizer.nesterov": False,
    "optimizer.betas": [0.5, 0.5],
    "schedule.milestones": [0.1],
    "schedule.gamma": 0.9,
    "schedule.final": 0.9,
    "augment.padding": 1,
    "augment.policy_arguments": {"magnitude": 3},
    "data.root": "elsewhere",
    "data.download": True,
}


def _same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.slow
@pytest.mark.parametrize("dotted", NEEDS)
def test_what_is_said_to_be_idle_changes_no_weight(dotted, tmp_path):
    """And with what it needs, what can be seen in a short run does."""
    other, wanted = NEEDS[dotted]
    names = settings()[other].metadata["among"] or ("shapes",)
    usual = {
        "epochs": 1,
        "batch": 16,
        "data.limit": 128,
        "data.validation": 0,
        "optimizer.lr": 0.01,
    }
    usual |= {"protocol.target": "label", "network.arguments": {"width": 4}}
    for number, name in enumerate(names):
        if name in wanted and (other == "augment.policy" or dotted == "protocol.ranks"):
            continue  # each policy takes other values; ranks are of several processes
        found = []
        for changed in ({}, {dotted: OTHER_VALUES[dotted]}):
            recipe = load_recipe("shapes-small", {**usual, other: name, **changed})
            folder = tmp_path / f"{number}-{len(changed)}"
            model = train(recipe, folder, quiet=True).model
            found.append(model.state_dict())
        same = _same(*found)
        if name not in wanted:
            assert same, f"{dotted} acts with {other} {name}"
        else:
            assert not same, f"{dotted} does nothing with {other} {name}"


def test_the_table_agrees_with_what_the_settings_say_of_themselves():
    """Where the meaning of a setting names another one's value, it is in the table."""
    for dotted, field in settings().items():
        group = dotted.partition(".")[0]
        about = field.metadata["about"]
        for name in ("sgd", "adamw", "multistep"):
            if about.startswith(f"of {name}"):
                assert name in NEEDS[dotted][1], dotted
                assert NEEDS[dotted][0] == f"{group}.name"


def test_alpha_beside_every_cannot_act():
    recipe = recipe_with(protocol__every=2)
    assert "found 2" in find_idle(recipe, ["protocol.alpha"])["protocol.alpha"]
    assert find_idle(recipe, ["protocol.every"]) == {}


def test_several_are_told_at_once():
    with pytest.raises(OptionError, match=r"2 settings cannot act: .*alpha.*; .*target.*them out"):
        refuse_idle(recipe_with(protocol__name="standard"), ["protocol.alpha", "protocol.target"])


@pytest.mark.parametrize("name", shipped())
def test_what_recipes_hold_is_never_refused(name, capsys):
    for protocol in ("standard", "anchored"):
        words = ["train", "--recipe", name, "--protocol", protocol, "--print-recipe"]
        assert main(words) == 0
        assert f"name: {protocol}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --protocol standard --alpha 0.5", "protocol.alpha: expected protocol.name masked"),
        ("train --protocol anchored --alpha_end 0", "protocol.alpha_end: expected protocol.name"),
        ("train --protocol.every 2 --alpha 0.9", "protocol.alpha: expected no protocol.every"),
        ("train --schedule.milestones 0.5 --schedule.name cosine", "found cosine"),
        ("train --network.new_head true", "expected --from, a trained network, with"),
        (
            "compare --protocol standard --dry-run",
            "cannot act in any of the arms: protocol.name: each has its own",
        ),
        ("study label-noise --size smoke --protocol standard", "protocol.name: each has its own"),
        ("compare --arm standard:alpha=0.5", "cannot act in the arm standard: protocol.alpha"),
        ("compare --arm standard --alpha 0.5", "cannot act in any of the arms: protocol.alpha"),
    ],
)
def test_commands_refuse_them_and_leave_nothing(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) != 0
    found = capsys.readouterr()
    assert told in found.err
    assert found.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_acts_in_one_arm_is_taken_and_changes_no_other(tmp_path):
    arms = parse_arms(["standard", "masked-label"])
    plain, masked = make_jobs("shapes-compare", {}, arms, [0], tmp_path, {})
    same, other = make_jobs("shapes-compare", {"protocol.alpha": 0.5}, arms, [0], tmp_path, {})
    assert same.folder == plain.folder
    assert same.phases == plain.phases
    assert other.folder != masked.folder
    assert other.phases[0].recipe.protocol.alpha == 0.5
    changed = dataclasses.replace(other.phases[0].recipe.protocol, alpha=0.25)
    assert changed == masked.phases[0].recipe.protocol


def test_what_acts_in_one_arm_is_accepted_by_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "compare --arm standard --arm masked-label --alpha 0.5 --seeds 0 --dry-run"
    assert main(words.split()) == 0
    assert "2 cells, 2 to run" in capsys.readouterr().out


def test_without_settings_nothing_is_idle():
    assert find_idle(Recipe(), []) == {}
