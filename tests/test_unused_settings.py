"""Settings without effect are refused where somebody typed them, and nowhere else."""

import dataclasses

import pytest

from killick.cli import main
from killick.errors import OptionError
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs
from killick.protocols.base import PROTOCOLS
from killick.training.recipe import Recipe
from killick.training.recipe_files import (
    NEEDS,
    find_unused,
    load_recipe,
    refuse_unused,
    settings,
    shipped,
)


@pytest.mark.parametrize("dotted", NEEDS)
def test_each_works_with_what_it_needs_and_not_without(dotted):
    other, wanted = NEEDS[dotted]
    assert dotted in settings()
    names = settings()[other].metadata["among"] or ("shapes", "cifar10", "cifar100", "wds")
    assert set(wanted) < set(names)
    for name in names:
        recipe = load_recipe("shapes-small", {other: name})
        unused = find_unused(recipe, [dotted, "epochs"])
        assert (dotted in unused) == (name not in wanted)
        if name in wanted:
            refuse_unused(recipe, ["seed", dotted])
        else:
            with pytest.raises(OptionError, match=f"{dotted}: requires {other}.*found {name}"):
                refuse_unused(recipe, ["seed", dotted])


def test_settings_of_another_protocol_are_dropped_and_refused_where_given():
    masked = load_recipe("shapes-small", {"protocol.target": "uniform"})
    for name, kind in PROTOCOLS.items():
        recipe = load_recipe("shapes-small", {"protocol.name": name, "protocol.target": "label"})
        own = {each.name for each in dataclasses.fields(kind)}
        assert dataclasses.asdict(recipe.protocol).keys() == own
        for each in dataclasses.fields(masked.protocol):
            unused = find_unused(recipe, [f"protocol.{each.name}"])
            assert bool(unused) == (each.name not in own)


@pytest.mark.parametrize("name", shipped())
def test_what_recipes_hold_is_never_refused(name, capsys):
    for protocol in ("standard", "anchored"):
        words = ["train", "--recipe", name, "--protocol", protocol, "--print-recipe"]
        assert main(words) == 0
        assert f"name: {protocol}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("train --protocol standard --alpha 0.5", "protocol.alpha"),
        ("train --protocol anchored --alpha_end 0", "protocol.alpha_end"),
        ("train --schedule.milestones 0.5 --schedule.name cosine", "found cosine"),
        ("train --network.new_head true", "--from"),
        ("compare --protocol standard --dry-run", "in any of the arms: protocol.name"),
        ("compare --arm standard:alpha=0.5", "in the arm standard: protocol.alpha"),
        ("compare --arm standard --alpha 0.5", "in any of the arms: protocol.alpha"),
    ],
)
def test_commands_refuse_them_and_leave_nothing(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) != 0
    found = capsys.readouterr()
    assert named in found.err
    assert found.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_works_in_one_arm_is_taken_and_changes_no_other(tmp_path):
    arms = parse_arms(["standard", "masked-label"])
    plain, masked = make_jobs("shapes-compare", {}, arms, [0], tmp_path, {})
    same, other = make_jobs("shapes-compare", {"protocol.alpha": 0.5}, arms, [0], tmp_path, {})
    assert same.folder == plain.folder
    assert same.phases == plain.phases
    assert other.folder != masked.folder
    assert other.phases[0].recipe.protocol.alpha == 0.5
    changed = dataclasses.replace(other.phases[0].recipe.protocol, alpha=0.25)
    assert changed == masked.phases[0].recipe.protocol


def test_without_settings_nothing_is_unused():
    assert find_unused(Recipe(), []) == {}
