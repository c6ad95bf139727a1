"""Protocols and components: one class gives settings, hooks, state, facts and a name in lists."""

import json
from dataclasses import dataclass

import pytest
import torch
from runs import assert_same, losses_of, small, train_and_stop, weights_of
from torch import nn

import killick
from killick.cli import main
from killick.errors import RecipeError
from killick.protocols import COMPONENTS, PROTOCOLS, Component, TrainingProtocol
from killick.settings import setting
from killick.training import load_recipe, make_recipe, recipe_of, train
from killick.training.loggers import LOGGERS, Logger
from killick.training.recipe_files import settings

CALLS: list[str] = []


@dataclass
class Everything(Component):
    """Uses every hook, and has a state that decides the weights."""

    name: str = "everything"
    strength: float = setting(0.1, "factor of the penalty", least=0)

    def network(self, model):
        CALLS.append("network")
        with torch.no_grad():
            last = list(model.parameters())[-1]
            last += torch.randn(last.shape)  # from the seed of the run
        return model

    def setup(self, model, run):
        CALLS.append("setup")
        self.module = nn.Linear(run.classes, run.classes)
        self._model, self._sum = model, torch.zeros(run.classes)
        assert (run.classes, run.steps_per_epoch, run.pass_size, run.rank) == (4, 3, 4, 0)

    def batch(self, batch):
        CALLS.append("batch")
        return batch.with_images(255 - batch.images)

    def targets(self, seen):
        CALLS.append("targets")
        return nn.functional.one_hot(seen.targets, seen.logits.shape[1]).float() * 0.9 + 0.025

    def criterion(self, logits, targets):
        CALLS.append("criterion")
        return nn.functional.mse_loss(logits.softmax(1), targets)

    def loss(self, seen, loss):
        CALLS.append("loss")
        logits, other = seen.logits, seen.model(seen.batch.images.flip(3))
        self._sum += logits.detach().mean(0)
        distance = (self.module(other) - logits).square().mean()
        return loss + self.strength * distance + 0.01 * (self._sum * logits.mean(0)).sum()

    def step(self, number):
        CALLS.append(f"step {number}")
        with torch.no_grad():
            next(self._model.parameters()).mul_(0.999)

    def epoch(self, number):
        CALLS.append(f"epoch {number}")
        self._sum *= 0.5

    def inference(self, model):
        CALLS.append("inference")
        return model

    def state_dict(self):
        return {"sum": self._sum, "module": self.module.state_dict()}

    def load_state_dict(self, state):
        self._sum.copy_(state["sum"])
        self.module.load_state_dict(state["module"])


@dataclass
class Inverted(TrainingProtocol):
    """A protocol that trains on inverted images, with a state."""

    name: str = setting("inverted", "how the network is trained")
    level: int = setting(255, "of white", least=0)

    def check(self, recipe):
        return ["protocol.level: expected more than epochs"] if self.level < recipe.epochs else []

    def facts(self):
        return {"level": self.level, "target": "label"}

    def setup(self, model, run):
        self._steps = 0

    def forward(self, model, images, labels, draw):
        self._steps += 1
        return model(self.level - images) + 0.01 * self._steps * torch.arange(4), labels

    def state_dict(self):
        return {"steps": self._steps}

    def load_state_dict(self, state):
        self._steps = state["steps"]


@pytest.fixture(autouse=True)
def entries():
    COMPONENTS.register("everything", Everything)
    PROTOCOLS.register("inverted", Inverted)
    CALLS.clear()
    yield
    COMPONENTS.remove("everything")
    PROTOCOLS.remove("inverted")


def recipe_with(image_folder, **changes):
    return small(image_folder, data__validation=4, data__workers=0, **changes)


@pytest.mark.parametrize("protocol", ["standard", "masked"])
def test_a_component_of_one_class_trains_and_resumes_to_the_same_bits(
    image_folder, tmp_path, monkeypatch, protocol
):
    components = [{"name": "everything", "strength": 0.2}]
    recipe = recipe_with(image_folder, protocol__name=protocol, components=components)
    outcome = train(recipe, tmp_path / "whole", quiet=True)
    assert set(CALLS) == {
        *("network", "setup", "batch", "targets", "criterion", "loss", "inference"),
        *(f"step {number}" for number in range(1, 10)),
        *("epoch 1", "epoch 2", "epoch 3"),
    }
    for row in outcome.rows:
        assert json.loads(row["components"]) == {"everything": {"strength": 0.2}}
    assert recipe_of(tmp_path / "whole").components == [Everything(strength=0.2)]
    train_and_stop(recipe, tmp_path / "cut", 4, monkeypatch)  # in the middle of an epoch
    train(None, tmp_path / "cut", resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "cut")
    plain = recipe_with(image_folder, protocol__name=protocol)
    train(plain, tmp_path / "plain", quiet=True)
    assert losses_of(tmp_path / "plain") != losses_of(tmp_path / "whole")


def test_a_protocol_of_one_class_trains_and_resumes_to_the_same_bits(
    image_folder, tmp_path, monkeypatch
):
    recipe = recipe_with(image_folder, protocol={"name": "inverted", "level": 250})
    outcome = train(recipe, tmp_path / "whole", quiet=True)
    assert isinstance(outcome.model, killick.Standard)
    for row in outcome.rows:
        assert (row["protocol"], row["target"], row["alpha"]) == ("inverted", "label", "")
        assert json.loads(row["components"]) == {"inverted": {"level": 250}}
    train_and_stop(recipe, tmp_path / "cut", 5, monkeypatch)
    train(None, tmp_path / "cut", resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "cut")


def test_entries_are_listed_and_their_settings_are_settings_of_recipes(capsys):
    for kind, name in (("protocols", "inverted"), ("components", "everything")):
        assert main(["list", kind]) == 0
        assert name in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert {"everything", "protocol.level"} <= set(capsys.readouterr().out.split())
    assert list(PROTOCOLS.names())[-1] == "inverted"
    assert {"mixup", "label_smoothing", "weight_average", "everything"} <= set(COMPONENTS.names())
    assert "inverted" in settings()["protocol.name"].metadata["among"]
    assert settings()["protocol.level"].default == 255


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"protocol": {"name": "inverted", "level": 1}}, "protocol.level: expected more"),
        ({"protocol": {"name": "inverted", "level": -1}}, "protocol.level: expected at least 0"),
        ({"protocol": {"name": "invented"}}, "invented"),
        ({"protocol": {"name": "masked", "target": "label", "level": -1}}, "at least 0"),
        ({"components": [{"name": "nothing"}]}, r"components\[0\].name: .*nothing"),
        ({"components": [{"strength": 1}]}, r"components\[0\].name"),
        ({"components": "everything"}, "components: expected a list"),
        ({"components": [{"name": "everything", "strength": -1}]}, r"components\[0\].strength"),
        ({"components": [{"name": "everything", "strenght": 1}]}, "did you mean"),
        ({"components": ["everything", "everything"]}, "everything is listed twice"),
        ({"components": ["everything", "label_smoothing"]}, "only one may replace the loss"),
        ({"components": ["mixup"]}, "mixup needs"),
    ],
)
def test_mistakes_are_named(values, problem):
    with pytest.raises(RecipeError, match=problem):
        make_recipe({"protocol": "standard", **values})


def test_components_of_the_list_equal_those_of_the_older_keys(image_folder, tmp_path):
    older = recipe_with(
        image_folder,
        augment__mixup=0.3,
        augment__smoothing=0.1,
        average__decay=0.9,
        average__every=2,
    )
    listed = recipe_with(
        image_folder,
        components=[
            {"name": "mixup", "mixup": 0.3},
            {"name": "label_smoothing", "smoothing": 0.1},
            {"name": "weight_average", "decay": 0.9, "every": 2},
        ],
    )
    rows = [
        train(recipe, tmp_path / name, quiet=True).rows
        for name, recipe in (("older", older), ("listed", listed))
    ]
    assert_same(weights_of(tmp_path / "older"), weights_of(tmp_path / "listed"))
    first, second = (json.loads(each[0]["components"]) for each in rows)
    assert first == second
    assert first["weight_average"] == {"decay": 0.9, "every": 2}


def test_overrides_choose_components_and_protocols():
    words = {"components": ["weight_average"], "protocol.name": "inverted", "protocol.level": 9}
    recipe = load_recipe("shapes-small", words)
    assert [each.name for each in recipe.components] == ["weight_average"]
    assert recipe.protocol == Inverted(level=9)


class Noted(Logger):
    """A logger that keeps what it gets."""

    def __init__(self, folder, recipe, step):
        CALLS.append(f"open {folder.name} {recipe.epochs} {step}")

    def log(self, kind, step, values):
        CALLS.append(f"{kind} {step} {'loss' in values}")

    def close(self):
        CALLS.append("close")


def test_a_logger_of_one_class_gets_all_that_is_measured(image_folder, tmp_path, monkeypatch):
    LOGGERS.register("noted", Noted)
    try:
        recipe = recipe_with(image_folder, loggers=["noted"], epochs=1, log_every=2)
        train_and_stop(recipe, tmp_path / "run", 2, monkeypatch)
        assert CALLS == ["open run 1 None", "train 2 True", "close"]
        CALLS.clear()
        train(None, tmp_path / "run", resume=True, quiet=True)
        assert CALLS == [
            "open run 1 2",
            "train 3 True",
            "validation 3 True",
            "test 3 False",
            "close",
        ]
    finally:
        LOGGERS.remove("noted")


@pytest.mark.slow
def test_hooks_compile(image_folder, tmp_path, monkeypatch):
    compile_it = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda what, **options: compile_it(what, **options, backend="aot_eager")
    )
    recipe = recipe_with(image_folder, components=["everything"], execution="compiled", epochs=1)
    train(recipe, tmp_path / "compiled", quiet=True)
    eager = recipe_with(image_folder, components=["everything"], execution="eager", epochs=1)
    train(eager, tmp_path / "eager", quiet=True)
    found, expected = (torch.tensor(losses_of(tmp_path / n)) for n in ("compiled", "eager"))
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
