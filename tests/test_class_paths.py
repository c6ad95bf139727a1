"""Transforms, optimizers, schedulers and losses of one's own, in Python and by class path."""

import random
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from own_classes import HalfLoss, Noise, darker
from PIL import Image
from runs import assert_same, losses_of, small, train_and_stop, weights_of
from torch import nn
from torchvision.transforms import v2

import killick
from killick.cli import main
from killick.data.own_transform import OwnTransform
from killick.data.preprocessing import PlainView
from killick.data.training_view import TrainView
from killick.errors import DataError, OptionError, RecipeError
from killick.results.rows import read_rows
from killick.training import load_recipe, make_recipe, to_yaml, train
from killick.training.class_paths import import_classes, make_rates
from killick.training.optimizers import make_optimizer
from killick.training.training_data import load_training_data

ROTATION = {"class_path": "torchvision.transforms.v2.RandomRotation", "init_args": {"degrees": 30}}
NOISE = {"class_path": "own_classes.Noise", "init_args": {"strength": 30.0}}
OWN = {
    "augment__transform": NOISE,
    "optimizer__class_path": "timm.optim.Lamb",
    "optimizer__init_args": {"betas": [0.8, 0.99]},
    "schedule__class_path": "torch.optim.lr_scheduler.ExponentialLR",
    "schedule__init_args": {"gamma": 0.9},
    "loss__class_path": "own_classes.HalfLoss",
    "loss__init_args": {"factor": 0.25},
}


def image(seed: int = 0, side: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (3, side, side), dtype=torch.uint8, generator=generator)


# Transforms ---------------------------------------------------------------------------------------


def test_what_a_transform_draws_depends_on_the_key_alone_and_no_global_state_changes():
    view = OwnTransform(Noise())
    first = view(image(), 7)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    others = [view(image(), key) for key in (1, 2, 3)]
    assert torch.equal(view(image(), 7), first)
    assert not any(torch.equal(each, first) for each in others)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_a_transform_comes_first_and_what_follows_does_not_depend_on_it():
    def hungry(given):
        torch.rand(100)
        return given

    options = {"crop": "pad", "padding": 3, "flip": True}
    plain, own = TrainView(16, **options), TrainView(16, **options, transform=hungry)
    assert all(torch.equal(plain(image(), key), own(image(), key)) for key in range(20))
    sized = TrainView(16, transform=v2.CenterCrop(24))
    whole = image(side=40)
    assert torch.equal(sized(whole, 0), PlainView(16)(v2.CenterCrop(24)(whole)))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x,
        lambda x: x.float() / 255,
        lambda x: Image.fromarray(x.permute(1, 2, 0).numpy()),
        lambda x: x.permute(1, 2, 0).numpy(),
        v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    ],
)
def test_tensors_arrays_and_pil_images_are_taken(made):
    assert torch.equal(OwnTransform(made)(image(), 0), image())


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda x: x.float(), "not 0 to 1. Leave normalization out"),
        (lambda x: x.float() / 255 * float("nan"), "not 0 to 1"),
        (lambda x: x[:1], r"RGB image, found shape \(1, 16, 16\)"),
        (lambda x: None, "found NoneType"),
        (lambda x: x.long(), "found torch.int64"),
        (lambda x: 1 / 0, "failed on an image of 3 x 16 x 16: .*zero"),
    ],
)
def test_what_is_no_image_is_refused_in_a_line(made, match):
    with pytest.raises(DataError, match=match) as caught:
        OwnTransform(made)(image(), 0)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_transforms_of_kornia():
    kornia = pytest.importorskip("kornia")
    view = OwnTransform(kornia.augmentation.ColorJitter(0.5, 0.5, 0.5, 0.5, p=1.0))
    found = [view(image(), key) for key in (1, 2, 1)]
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(
        OwnTransform(kornia.augmentation.RandomHorizontalFlip(p=0.0))(image(), 0), image()
    )


@pytest.mark.slow
def test_transforms_of_albumentations():
    albumentations = pytest.importorskip("albumentations")
    steps = [albumentations.ColorJitter(p=1.0), albumentations.RandomCrop(8, 8)]
    view = OwnTransform(albumentations.Compose(steps))
    found = [view(image(), key) for key in (1, 2, 1)]
    assert found[0].shape == (3, 8, 8)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


# Class paths --------------------------------------------------------------------------------------


def test_classes_functions_and_nested_classes_are_made():
    nested = {"class_path": "torchvision.transforms.v2.Compose"}
    nested["init_args"] = {"transforms": [ROTATION, NOISE]}
    found = import_classes(make_recipe({"protocol": "standard", "augment": {"transform": nested}}))
    assert [type(each).__name__ for each in found.transform.transforms] == [
        "RandomRotation",
        "Noise",
    ]
    assert found.transform.transforms[1].strength == 30
    for spec, expected in (
        ({"class_path": "own_classes.darker"}, image() // 2),
        ({"class_path": "own_classes.darker", "init_args": {"by": 3}}, image() // 3),
    ):
        recipe = make_recipe({"protocol": "standard", "augment": {"transform": spec}})
        assert torch.equal(import_classes(recipe).transform(image()), expected)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"augment": {"transform": {"init_args": {}}}}, "transform.class_path: expected"),
        ({"augment": {"transform": {"class_path": "x"}}}, "expected module.Class, found 'x'"),
        ({"augment": {"transform": {**NOISE, "args": 1}}}, "expected class_path and init_args"),
        ({"optimizer": {"init_args": {"a": 1}}}, "requires optimizer.class_path"),
        (
            {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1}}},
            "lr is a setting of its own",
        ),
        ({"augment": {"transform": {"class_path": "nowhere.X"}}}, "cannot import nowhere.X"),
        (
            {"augment": {"transform": {"class_path": "own_classes.X"}}},
            "cannot import own_classes.X",
        ),
        ({"augment": {"transform": {**NOISE, "init_args": {"size": 1}}}}, "size"),
        ({"optimizer": {"class_path": "own_classes.Noise"}}, "no subclass of Optimizer"),
        ({"optimizer": {"class_path": "torch.optim.LBFGS"}}, "LBFGS needs a closure"),
        ({"schedule": {"class_path": "torch.optim.SGD"}}, "no subclass of LRScheduler"),
        ({"loss": {"class_path": "own_classes.HalfLoss", "init_args": {"x": 1}}}, "x"),
        ({"loss": {"class_path": "os.sep"}}, "cannot be called"),
    ],
)
def test_mistakes_are_told_in_a_line(settings, match):
    with pytest.raises(RecipeError, match=match) as caught:
        import_classes(make_recipe({"protocol": "standard", **settings}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        *("torch.optim.RMSprop", "torch.optim.Adamax", "timm.optim.Lion"),
        pytest.param("pytorch_optimizer.Lamb", marks=pytest.mark.slow),
    ],
)
def test_optimizers_of_several_libraries(path):
    pytest.importorskip(path.partition(".")[0])
    recipe = make_recipe({"protocol": "standard", "optimizer": {"class_path": path, "lr": 0.01}})
    layer = torch.nn.Linear(4, 3)
    kind = import_classes(recipe).optimizer
    optimizer = make_optimizer([layer], recipe.optimizer, torch.device("cpu"), kind)
    assert type(optimizer).__name__ == path.rpartition(".")[2]
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["weight_decay"] == recipe.optimizer.weight_decay
    before = layer.weight.detach().clone()
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight, before)


def test_weight_decay_that_an_optimizer_does_not_have_is_refused():
    recipe = make_recipe({"protocol": "standard", "optimizer": {"class_path": "torch.optim.Rprop"}})
    with pytest.raises(RecipeError, match="Rprop has no weight decay, found .* 0.0005"):
        make_optimizer(
            [torch.nn.Linear(2, 2)], recipe.optimizer, torch.device("cpu"), torch.optim.Rprop
        )


def test_rates_are_those_that_a_scheduler_sets_step_by_step():
    def rates(every: str, **more) -> list[float]:
        schedule = {"class_path": "torch.optim.lr_scheduler.StepLR", "every": every, **more}
        schedule["init_args"] = {"step_size": 2, "gamma": 0.5}
        values = {"protocol": "standard", "schedule": schedule, "optimizer": {"lr": 1.0}}
        return make_rates(torch.optim.lr_scheduler.StepLR, make_recipe(values), 6, 3)

    assert rates("step") == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates("epoch") == [1, 1, 1, 1, 1, 1]
    assert rates("step", begin=0.5) == [0.125, 0.125, 0.0625, 0.0625, 0.03125, 0.03125]
    cycle = {"class_path": "torch.optim.lr_scheduler.OneCycleLR"}
    cycle["init_args"] = {"max_lr": 1.0, "total_steps": 9}
    recipe = make_recipe({"protocol": "standard", "schedule": cycle})
    with pytest.raises(RecipeError, match="OneCycleLR"):  # cycles momentum too
        make_rates(torch.optim.lr_scheduler.OneCycleLR, recipe, 6, 3)


def test_settings_that_a_class_path_replaces_are_refused_on_the_command_line(capsys):
    words = ["--optimizer.class_path", "torch.optim.RMSprop", "--optimizer.momentum", "0.5"]
    assert main(["train", *words]) == 2
    assert "optimizer.momentum" in capsys.readouterr().err


# Runs ---------------------------------------------------------------------------------------------


def test_a_run_with_classes_is_trained_by_them_and_resumed_bit_by_bit(
    image_folder, tmp_path, monkeypatch
):
    recipe = small(image_folder, data__workers=0, **OWN)
    train(recipe, tmp_path / "whole", quiet=True)
    plain = small(image_folder, data__workers=0)
    train(plain, tmp_path / "plain", quiet=True)
    assert losses_of(tmp_path / "whole")[0] < 0.6 * losses_of(tmp_path / "plain")[0]  # a quarter
    (row, *_) = read_rows(tmp_path / "whole")
    assert yaml.safe_load(row["components"])["transform"] == NOISE
    train_and_stop(recipe, tmp_path / "cut", 5, monkeypatch)
    train(recipe, tmp_path / "cut", resume=True, quiet=True)
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "cut")


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_the_same_in_workers_and_here(image_folder, tmp_path, workers):
    for name, count in (("here", 0), ("there", workers)):
        recipe = small(image_folder, epochs=1, data__workers=count, augment__transform=NOISE)
        train(recipe, tmp_path / name, quiet=True)
    assert losses_of(tmp_path / "here") == losses_of(tmp_path / "there")


def test_callables_in_python_must_be_given_again(image_folder, tmp_path, monkeypatch):
    recipe = small(image_folder, data__workers=0)
    own = {"transform": darker, "loss": HalfLoss()}
    train(recipe, tmp_path / "whole", quiet=True, **own)
    train_and_stop(recipe, tmp_path / "cut", 5, monkeypatch, **own)
    for missing in ({}, {"transform": darker}):
        with pytest.raises(OptionError, match="callables of your own: transform, loss"):
            train(None, tmp_path / "cut", resume=True, quiet=True, **missing)
    train(None, tmp_path / "cut", resume=True, quiet=True, **own)
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


def test_the_command_line_resumes_only_with_the_recipe(image_folder, tmp_path, monkeypatch, capsys):
    recipe = small(image_folder, data__workers=0, **OWN)
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(recipe))
    train_and_stop(load_recipe(file), tmp_path / "run", 5, monkeypatch)
    resume = ["train", "--resume", str(tmp_path / "run"), "--quiet"]
    assert main(resume) == 2
    assert "--recipe FILE" in capsys.readouterr().err
    other = small(image_folder, data__workers=0, **{**OWN, "loss__init_args": {}})
    (tmp_path / "other.yaml").write_text(to_yaml(other))
    assert main([*resume, "--recipe", str(tmp_path / "other.yaml")]) == 2
    assert "another loss" in capsys.readouterr().err
    assert main([*resume, "--recipe", str(file)]) == 0


def test_classes_that_were_options_are_named_again(image_folder, tmp_path, monkeypatch, capsys):
    own = {"optimizer__class_path": "torch.optim.RMSprop"}
    train_and_stop(small(image_folder, data__workers=0, **own), tmp_path / "run", 5, monkeypatch)
    resume = ["train", "--resume", str(tmp_path / "run"), "--quiet"]
    assert main([*resume, "--epochs", "9", "--optimizer.class_path", "torch.optim.RMSprop"]) == 2
    assert "no --epochs" in capsys.readouterr().err
    assert main([*resume, "--optimizer.class_path", "torch.optim.Adam"]) == 2
    assert "another optimizer" in capsys.readouterr().err
    assert main([*resume, "--optimizer.class_path", "torch.optim.RMSprop"]) == 0


class Weighted(nn.Module):
    """Scales the loss by a number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, logits, targets):
        self.calls += 1
        return nn.functional.cross_entropy(logits, targets) / self.calls


def test_the_state_of_a_loss_is_resumed(image_folder, tmp_path, monkeypatch):
    recipe = small(image_folder, data__workers=0)
    train(recipe, tmp_path / "whole", quiet=True, loss=Weighted())
    train_and_stop(recipe, tmp_path / "cut", 5, monkeypatch, loss=Weighted())
    train(None, tmp_path / "cut", resume=True, quiet=True, loss=Weighted())
    assert_same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (nn.MSELoss(), "MSELoss fails on logits"),
        (nn.CrossEntropyLoss(reduction="none"), "one differentiable number"),
        (nn.Sequential(nn.Linear(2, 2)), "trainable parameters"),
    ],
)
def test_losses_that_do_not_fit_are_refused_before_anything_is_written(
    image_folder, tmp_path, loss, says
):
    with pytest.raises(OptionError, match=says):
        train(small(image_folder), tmp_path / "run", quiet=True, loss=loss)
    assert not (tmp_path / "run").exists()


def test_no_file_in_a_run_folder_causes_an_import(image_folder, tmp_path, monkeypatch):
    """A folder whose recipe names a class is loaded, evaluated and reported, and resumed by no one."""
    mark = tmp_path / "imported"
    text = f"open({str(mark)!r}, 'w').close()\nfrom own_classes import HalfLoss, Noise\n"
    (tmp_path / "noticed.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"augment__transform": {"class_path": "noticed.Noise"}}
    own |= {"loss__class_path": "noticed.HalfLoss"}
    folder = tmp_path / "run"
    train_and_stop(small(image_folder, data__workers=0, **own), folder, 5, monkeypatch)
    train(small(image_folder, data__workers=0, **own), folder, resume=True, quiet=True)
    assert mark.exists()
    mark.unlink()
    del sys.modules["noticed"]
    killick.load(folder)
    assert main(["evaluate", str(folder), "--suite", "clean", "--quiet"]) == 0
    assert main(["report", str(folder), "--quiet"]) == 0
    shutil.rmtree(folder / "model")
    assert main(["train", "--resume", str(folder), "--quiet"]) == 2
    assert not mark.exists()
    recipe = ["--recipe", str(folder / "recipe.yaml")]  # named by the user
    assert main(["train", "--resume", str(folder), *recipe, "--quiet"]) == 0
    assert mark.exists()


def test_data_of_a_stored_recipe_with_a_transform_are_not_loaded_for_training(image_folder):
    from killick.runtime.processes import Processes

    recipe = small(image_folder, augment__transform=NOISE)
    with pytest.raises(OptionError, match="class_path"):
        load_training_data(recipe, Processes(0, 1, torch.device("cpu")))


def test_the_recipe_in_the_docs_can_be_imported(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
    (text,) = re.findall(r"^```yaml\n(# mine.yaml.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.yaml").write_text(text)
    found = import_classes(load_recipe(tmp_path / "mine.yaml"))
    assert None not in (found.transform, found.optimizer, found.scheduler, found.loss)


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    script = Path(__file__).parent.parent / "examples" / "own_transform.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "run")])
    runpy.run_path(str(script))
    assert "top1" in capsys.readouterr().out
