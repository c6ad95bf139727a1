import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from killick.errors import OptionError
from killick.experiments.arms import ARMS, Arm, parse_arm, parse_arms


def test_without_arms_standard_training_is_compared_with_two_ways_of_masking():
    names = ["standard", "masked-label", "masked-tuning"]
    assert [arm.name for arm in parse_arms([])] == names
    assert ARMS["finetuned"].first == 0.5


def test_short_and_dotted_names_are_the_same_settings():
    short = parse_arm("x:protocol=masked,target=uniform,alpha=0.5,lr=0.01")
    dotted = parse_arm(
        "x:protocol.name=masked,protocol.target=uniform,protocol.alpha=0.5,optimizer.lr=0.01"
    )
    assert short == dotted
    assert short.settings == {
        "protocol.name": "masked",
        "protocol.target": "uniform",
        "protocol.alpha": 0.5,
        "optimizer.lr": 0.01,
    }


def test_a_known_arm_is_changed_and_not_replaced():
    changed = parse_arm("finetuned:alpha=0.5,first=0.25")
    assert changed.settings == {**ARMS["finetuned"].settings, "protocol.alpha": 0.5}
    assert changed.first == 0.25
    tuned = parse_arm("masked-tuning:alpha=0.5")
    assert tuned.after == ARMS["standard"]
    assert parse_arm("masked-tuning:from=net").after is None  # tuned is another network


def test_values_may_hold_commas_in_brackets():
    arm = parse_arm("x:schedule.milestones=[0.3, 0.6],network.arguments={stride: 2, width: 8}")
    assert arm.settings == {
        "schedule.milestones": [0.3, 0.6],
        "network.arguments": {"stride": 2, "width": 8},
    }


def test_a_trained_network_to_start_from_is_no_setting():
    arm = parse_arm("tuned:from=runs/a:b,protocol=standard")
    assert (arm.start, arm.settings) == ("runs/a:b", {"protocol.name": "standard"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("maskd-label", "did you mean 'masked-label'"),
        ("unknown", "NAME:key=value"),
        ("x:alpha", "found 'alpha'"),
        ("x:", "found ''"),
        ("x:alpha=", "found 'alpha='"),
        ("x:first=1.5", "between 0 and 1"),
        ("x:first=half", "between 0 and 1"),
        ("x:first=0.5,from=net", "choose one"),
        ("x:seed=3", "--seeds"),
        ("../x:alpha=1", "letters, digits"),
        (":alpha=1", "letters, digits"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(text, told):
    with pytest.raises(OptionError, match=told):
        parse_arm(text)


def test_two_arms_of_one_name_are_refused():
    with pytest.raises(OptionError, match="'standard'"):
        parse_arms(["standard", "standard:lr=0.1"])


@given(st.text(max_size=30))
def test_whatever_is_typed_is_an_arm_or_a_line_about_it(text):
    with contextlib.suppress(OptionError):
        assert isinstance(parse_arm(text), Arm)
