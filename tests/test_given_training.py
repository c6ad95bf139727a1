"""`killick.train` and `killick.compare` with networks and data given in Python."""

import json
import os
import signal

import pytest
import timm
import torch
from conftest import small_cnn
from runs import assert_same, losses_of
from test_given_data import CLASSES, NORMALIZE, SIDE, Listed, Streaming, make_images, normalized
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import killick
from killick.errors import CheckpointError, DataError, KillickError, OptionError
from killick.results.run_folder import find_runs
from killick.training import loop
from killick.training.checkpoint import load_checkpoint

SHORT = {"epochs": 3, "batch": 8, "log_every": 1, "protocol.stored": 2, "data.workers": 0}


class Augmented(Listed):
    """Normalized floats, flipped at random."""

    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        return v2.RandomHorizontalFlip()(normalized(image)), label


class Sized(Streaming):
    def __len__(self) -> int:
        return len(self.samples)


def make_net():
    torch.manual_seed(0)
    return small_cnn()


def fit(data, folder, net=None, **options):
    net = net or make_net()
    settings = {**SHORT, **options.pop("settings", {})}
    options = {"normalize": NORMALIZE, "quiet": True, **options}
    return killick.train(net, data, folder, settings=settings, **options)


FORMS = {
    "tensors": lambda images, labels: (images, labels),
    "normalized tensors": lambda images, labels: TensorDataset(normalized(images), labels),
    "data set": lambda images, labels: Augmented(images, labels),
    "loader": lambda images, labels: DataLoader(
        Augmented(images, labels), batch_size=5, shuffle=True
    ),
    "loader with workers": lambda images, labels: DataLoader(
        Augmented(images, labels), batch_size=8, shuffle=True, num_workers=1
    ),
    "stream": lambda images, labels: Sized(images, labels),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_network_is_trained_on_every_form_of_data_and_resumed_exactly(
    form, tmp_path, monkeypatch
):
    def data():
        train, test = FORMS[form](*make_images()), make_images(20)
        return {"train": train, "validation": make_images(10), "test": test}

    net = make_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    whole = fit(data(), tmp_path / "whole", net)
    assert whole.finished
    assert_same(net.state_dict(), before)  # it is copied
    assert isinstance(whole.model, killick.Anchored)
    assert {row["count"] for row in whole.rows} == {20}

    take, stop = loop.TrainingRun.take_step, 7  # of 15, in the second epoch

    def interrupted(run):
        take(run)
        if run.done == stop:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.TrainingRun, "take_step", interrupted)
    assert not fit(data(), tmp_path / "part").finished
    monkeypatch.setattr(loop.TrainingRun, "take_step", take)
    streams = form in ("loader", "loader with workers", "stream")
    assert load_checkpoint(tmp_path / "part")[0]["step"] == (5 if streams else 7)
    part = fit(data(), tmp_path / "part", resume=True)
    assert part.finished
    assert_same(part.model.state_dict(), whole.model.state_dict())


def test_each_epoch_of_an_augmented_set_is_augmented_anew(tmp_path):
    images, labels = make_images(8)
    seen: list[torch.Tensor] = []

    class Watched(Augmented):
        def __getitem__(self, number):
            image, label = super().__getitem__(number)
            seen.append(image) if number == 3 else None
            return image, label

    killick.train(
        make_net(),
        Watched(images, labels),
        tmp_path / "run",
        settings={
            "epochs": 8,
            "data.validation": 0,
            "data.workers": 0,
            "protocol.name": "standard",
        },
        normalize=NORMALIZE,
        quiet=True,
    )
    assert len({bytes(image.numpy()) for image in seen[-8:]}) == 2  # flipped, and not


def test_data_are_recorded_and_not_looked_for_elsewhere(tmp_path):
    images, labels = make_images()
    outcome = fit((images, labels), tmp_path / "run")
    recipe = killick.training.recipe_of(tmp_path / "run")
    assert recipe.data.name.startswith("given:images-")
    assert recipe.network.name.startswith("given:Sequential-")
    assert recipe.data.size == SIDE
    assert recipe.data.mean == list(NORMALIZE[0])
    with pytest.raises(DataError, match="given in Python"):
        killick.evaluate(outcome.model)
    rows = killick.evaluate(outcome.model, make_images(20), ("clean", "ood"))
    assert {row["data"] for row in rows} == {"images"}
    assert losses_of(tmp_path / "run")


def test_other_data_do_not_resume_a_run(tmp_path, monkeypatch):
    images, labels = make_images()
    take = loop.TrainingRun.take_step

    def interrupted(run):
        take(run)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.TrainingRun, "take_step", interrupted)
    fit((images, labels), tmp_path / "run")
    monkeypatch.setattr(loop.TrainingRun, "take_step", take)
    with pytest.raises(DataError, match="other data"):
        fit((255 - images, labels), tmp_path / "run", resume=True)
    with pytest.raises(KillickError, match="given in Python"):
        killick.training.train(None, tmp_path / "run", resume=True, quiet=True)
    with pytest.raises(CheckpointError, match="holds a run"):
        fit((images, labels), tmp_path / "run")


def test_a_recipe_is_trained_on_given_data(tmp_path):
    images, labels = make_images()
    names = ["a", "b", "c", "d", "e"]
    outcome = killick.train(
        "shapes-small",
        {"train": (images, labels), "test": Listed(images[:10], labels[:10])},
        tmp_path / "run",
        settings={"epochs": 1, "batch": 8},
        class_names=names,
        quiet=True,
    )
    assert outcome.model.class_names == tuple(names)
    recipe = killick.training.recipe_of(tmp_path / "run")
    assert (recipe.data.limit, recipe.data.validation, recipe.data.size) == (None, 0.1, SIDE)
    again = killick.train(recipe, (images, labels), tmp_path / "again", quiet=True)
    assert again.finished


def bad_training():
    images, labels = make_images()
    loader = DataLoader(Listed(images, labels), batch_size=8)
    yield "no length", {"data": Streaming(images, labels)}, "data.samples"
    yield "once only", {"data": iter(loader)}, "once only"
    yield "labels", {"data": (images, labels + 3)}, "5 classes: 0 to 4"
    yield "labels of a loader", {"data": DataLoader(Listed(images, labels + 3), 8)}, "5 classes"
    yield "no normalize", {"data": (images, labels), "normalize": None}, "normalize=(mean, std)"
    yield "parts", {"data": {"train": (images, labels), "tset": loader}}, "'tset'"
    yield "no train", {"data": {"test": (images, labels)}}, "'train'"
    yield "limit", {"data": loader, "settings": {"data.limit": 4}}, "a stream"
    yield "setting", {"data": loader, "settings": {"epoch": 4}}, "epoch"
    yield "one-hot", {"data": Listed(images, torch.eye(CLASSES)[labels])}, "argmax"
    yield "unused", {"data": loader, "settings": {"data.download": True}}, "no effect"


@pytest.mark.parametrize(
    ("options", "says"), [pytest.param(o, s, id=n) for n, o, s in bad_training()]
)
def test_bad_training_data_are_refused_in_one_line(options, says, tmp_path):
    with pytest.raises(KillickError) as problem:
        fit(folder=tmp_path / "run", **options)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "run").exists()


def test_a_stream_without_length_or_names_is_trained_on_with_both_given(tmp_path):
    data = Streaming(*make_images())
    with pytest.raises(DataError, match="class_names"):
        killick.train("finetune", data, tmp_path / "run", quiet=True)
    outcome = killick.train(
        "finetune",
        data,
        tmp_path / "run",
        settings={**SHORT, "data.samples": 48, "epochs": 1},  # more than a pass has
        class_names="abcde",
        quiet=True,
    )
    assert outcome.finished
    assert load_checkpoint(tmp_path / "run")[0]["step"] == 6


def test_networks_and_data_are_compared_in_this_process(tmp_path):
    train, test = make_images(), make_images(30)
    options = {
        "settings": {"epochs": 2, "batch": 8},
        "seeds": (0,),
        "arms": ["standard", "masked-label", "finetuned"],
        "evaluation": {"suites": ("clean",), "workers": 0},
        "normalize": NORMALIZE,
        "output": tmp_path / "out",
        "device": "cpu",
        "quiet": True,
    }
    data = {"train": train, "test": test}
    found = killick.compare(make_net(), data, **options)
    assert not found.failed
    assert found.report is not None
    runs = find_runs([tmp_path / "out"])
    assert len(runs) == 3
    assert {row["count"] for run in runs for row in run.rows if row["metric"] == "top1"} == {30}
    times = {job.folder: (job.folder / "job.json").stat().st_mtime_ns for job in found.jobs}
    again = killick.compare(make_net(), data, **options)  # finished jobs are not run again
    assert {job.folder: (job.folder / "job.json").stat().st_mtime_ns for job in again.jobs} == times
    others = {"train": (255 - train[0], train[1]), "test": test}
    assert {job.folder for job in killick.compare(make_net(), others, **options).jobs}.isdisjoint(
        times
    )
    assert json.loads((found.jobs[0].folder / "job.json").read_text())["finished"]
    with pytest.raises(OptionError, match="this process"):
        killick.compare(make_net(), data, engine="ray", **options)


def test_tensors_are_shown_in_their_own_size_to_a_network_that_resizes(tmp_path):
    """timm's networks bring files to a larger size first: what is given as tensors stays."""
    net = timm.create_model("test_resnet", num_classes=CLASSES)
    images, labels = make_images()
    data = {"train": (images, labels), "test": (images, labels)}
    outcome = fit(data, tmp_path / "run", net, settings={"epochs": 1})
    recipe = killick.training.recipe_of(tmp_path / "run")
    assert (recipe.data.size, recipe.data.resize) == (SIDE, None)
    (top1,) = [row["value"] for row in outcome.rows if row["metric"] == "top1"][:1]
    images = {tuple(image.flatten().tolist()) for image in images}
    pixels = outcome.model.references
    found = killick.evaluate(outcome.model, data["test"], ("clean",))
    assert found[0]["value"] == top1
    assert pixels.shape[-1] == SIDE


def test_classes_are_named_by_whichever_set_names_them(image_folder, tmp_path):
    named = ImageFolder(image_folder, v2.Compose([v2.ToImage(), v2.Resize((SIDE, SIDE))]))
    numbered = ConcatDataset([named])
    outcome = killick.train(
        "shapes-small",
        {"train": numbered, "test": named},
        tmp_path / "run",
        settings={"epochs": 1, "batch": 4, "data.workers": 0},
        quiet=True,
    )
    assert outcome.model.class_names == tuple(named.classes)


def test_loaders_of_other_images_are_compared_anew(tmp_path):
    images, labels = make_images()
    found = []
    for given in (images, images.flip(0)):
        killick.compare(
            make_net(),
            {"train": DataLoader(Listed(given, labels), 8), "test": (given, labels)},
            arms=["standard"],
            seeds=[0],
            settings={"epochs": 1, "batch": 8, "data.workers": 0},
            normalize=NORMALIZE,
            output=tmp_path / "grid",
            evaluation={"suites": ("clean",)},
            quiet=True,
        )
        found.append({run.folder for run in find_runs([tmp_path / "grid"])})
    assert found[0] < found[1]


def test_a_network_can_be_named(tmp_path):
    images, labels = make_images()
    settings = {"epochs": 1, "batch": 8}
    outcome = killick.train(
        "timm:test_resnet", (images, labels), tmp_path / "run", settings=settings, quiet=True
    )
    assert outcome.finished
    assert killick.training.recipe_of(tmp_path / "run").network.name == "timm:test_resnet"
