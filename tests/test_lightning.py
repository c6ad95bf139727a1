"""Anchored training under Lightning: it learns, measures exactly, and goes on where it stopped."""

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
import torch
from conftest import small_cnn, stir
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import killick
from killick.errors import DataError, InstallError, OptionError, ReferencesError
from killick.integrations.lightning_module import AnchoredClassifier, AnchoredMixin

CLASSES, SIDE = 4, 8

# Lightning's own, about its use of torch and about what these tests leave out on purpose.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        r"`isinstance\(treespec, LeafSpec\)` is deprecated",
        r"The '\w+' does not have many workers",
        r"GPU available but not used",
        r"You defined a `validation_step` but have no `val_dataloader`",
    )
]


def images_and_labels(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A class is the quarter of the image that is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    x = torch.randn(n, 3, SIDE, SIDE, generator=generator)
    for i, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        x[i, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] += 2
    return x, labels


def loader(n: int = 128, seed: int = 0, size: int = 16) -> DataLoader:
    return DataLoader(TensorDataset(*images_and_labels(n, seed)), batch_size=size)


def network() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES)),
    )


def fresh() -> killick.Anchored:
    return killick.anchor(network())


def small(model: nn.Module | None = None, alpha: float = 0.5, **options) -> AnchoredClassifier:
    masking = killick.ReferenceMasking(alpha=alpha, target="label")
    return AnchoredClassifier(fresh() if model is None else model, masking, **options)


def trainer(epochs: int = 2, **options) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        **{"max_epochs": epochs, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1}
        | {**quiet, "enable_checkpointing": False}
        | options
    )


def test_two_epochs_learn_what_can_be_learnt():
    runner, module = trainer(), small()
    runner.fit(module, loader(), loader(50, seed=1))
    assert runner.callback_metrics["val/cls/Acc"] > 0.75  # chance is 0.25
    assert runner.callback_metrics["val/loss"] < 1
    expected = {"train/loss", "val/loss", "val/cls/Acc", "val/cal/SmoothECE"}
    assert expected == set(runner.callback_metrics)
    assert module.masking.step == 16


def test_accuracy_and_loss_are_exact_over_batches_of_different_sizes():
    model = stir(fresh(), 1.0).set_references(torch.rand(3, 3, SIDE, SIDE))
    x, labels = images_and_labels(50, seed=1)
    (found,) = trainer().validate(small(model), loader(50, seed=1), verbose=False)
    (tested,) = trainer().test(small(model), loader(50, seed=1), verbose=False)
    right = sum(
        int(model.eval()(one[None]).argmax()) == int(y) for one, y in zip(x, labels, strict=True)
    )
    loss = nn.functional.cross_entropy(model(x), labels).item()
    assert 0.1 < right / 50 < 0.9
    for stage, metrics in (("val", found), ("test", tested)):
        assert metrics[f"{stage}/cls/Acc"] == pytest.approx(right / 50, abs=1e-6)
        assert metrics[f"{stage}/loss"] == pytest.approx(loss, rel=1e-5)


def ood_loader(n: int = 30) -> DataLoader:
    x = 3 * torch.randn(n, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(9))
    return DataLoader(TensorDataset(x, torch.full((n,), -1)), batch_size=16)


def test_calibration_and_ood_detection_are_those_of_the_whole_sets():
    model = stir(fresh(), 1.0).set_references(torch.rand(3, 3, SIDE, SIDE))
    runner = trainer()
    runner.test(small(model), [loader(50, seed=1), ood_loader()], verbose=False)
    x, labels = images_and_labels(50, seed=1)
    inside = model.eval()(x).detach()
    outside = model(ood_loader().dataset.tensors[0]).detach()
    confidence, predicted = inside.softmax(1).max(1)
    error = killick.metrics.smooth_ece(confidence, predicted == labels)
    score = killick.metrics.auroc(*(killick.metrics.energy(each) for each in (inside, outside)))
    loss = nn.functional.cross_entropy(inside, labels).item()
    found = {name: float(value) for name, value in runner.callback_metrics.items()}
    assert found == pytest.approx(
        {
            "test/loss": loss,
            "test/cls/Acc": float((predicted == labels).float().mean()),
            "test/cal/SmoothECE": error,
            "test/ood/AUROC": score,
        },
        abs=1e-5,
    )


class OwnModule(AnchoredMixin, lightning.LightningModule):
    """A module of a user, whose batches are dictionaries."""

    def __init__(self):
        super().__init__()
        self.model = fresh()
        self.masking = killick.ReferenceMasking(alpha=0.5, target="label")

    def training_step(self, batch, batch_idx):
        return self.anchored_loss(batch["image"], batch["label"])

    def validation_step(self, batch, batch_idx):
        self.evaluate_batch(batch["image"], batch["label"], "val")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def as_dictionaries(n: int, seed: int) -> DataLoader:
    pairs = zip(*images_and_labels(n, seed), strict=True)
    return DataLoader([{"image": x, "label": y} for x, y in pairs], batch_size=16)


def test_a_module_of_a_user_trains_like_ours_through_the_mixin(tmp_path):
    lightning.seed_everything(0, verbose=False)
    runner, module = trainer(), OwnModule()
    runner.fit(module, as_dictionaries(128, 0), as_dictionaries(50, 1))
    assert runner.callback_metrics["val/cls/Acc"] > 0.75
    assert "val/cal/SmoothECE" in runner.callback_metrics
    assert len(module.model.references) == 10
    lightning.seed_everything(0, verbose=False)
    same = trainer()
    same.fit(
        AnchoredClassifier(
            fresh(),
            killick.ReferenceMasking(alpha=0.5, target="label"),
            optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        ),
        loader(),
        loader(50, seed=1),
    )
    assert_close(runner.callback_metrics["val/loss"], same.callback_metrics["val/loss"])
    runner.save_checkpoint(tmp_path / "c.ckpt")
    again = OwnModule.load_from_checkpoint(tmp_path / "c.ckpt", weights_only=False)
    assert again.masking.step == module.masking.step


DDP_SCRIPT = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
from test_lightning import *

torch.set_num_threads(1)
lightning.seed_everything(0, verbose=False)
runner, module = trainer(3, strategy="ddp", devices=2), small()
runner.fit(module, loader(), loader(48, seed=1))
weights = torch.cat([each.flatten() for each in module.parameters()]).tolist()
references = module.model.references.flatten().tolist()
statistics = module.model.eval().net[1].running_mean.tolist()
fitted = float(runner.callback_metrics["val/cls/Acc"])
runner.test(module, [loader(48, seed=1), ood_loader()], verbose=False)
found = {name: float(value) for name, value in runner.callback_metrics.items()}
found |= {"fitted": fitted, "weights": weights, "references": references, "mean": statistics}
open(f"{sys.argv[2]}/{runner.global_rank}.json", "w").write(json.dumps(found))
if runner.global_rank == 0:
    killick.save(module.model, sys.argv[2] + "/model")
"""


@pytest.mark.slow
def test_two_processes_of_ddp_train_one_model_and_measure_whole_sets(tmp_path):
    (tmp_path / "script.py").write_text(DDP_SCRIPT)
    words = [str(tmp_path / "script.py"), str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for name, value in first.items():
        assert value == pytest.approx(second[name], abs=1e-6), name
    assert first["fitted"] > 0.75
    model = killick.load(tmp_path / "model", net=network())
    x, labels = images_and_labels(48, seed=1)
    inside, outside = model(x), model(ood_loader().dataset.tensors[0])
    confidence, predicted = inside.softmax(1).max(1)
    error = killick.metrics.smooth_ece(confidence, predicted == labels)
    score = killick.metrics.auroc(*(killick.metrics.energy(each) for each in (inside, outside)))
    assert first["test/cal/SmoothECE"] == pytest.approx(error, abs=1e-4)
    assert first["test/ood/AUROC"] == pytest.approx(score, abs=1e-4)


def test_batchnorm_is_settled_from_the_last_pairs_when_lightning_validates():
    module = small(alpha=1.0)  # every batch masked: their statistics are none of evaluation's
    trainer(1).fit(module, loader(), loader(16))
    found = module.model.net[1].running_mean.clone()  # before anything else can settle it
    pairs = list(module.model.recent.batches())
    expected = torch.stack(
        [module.model.net[0](killick.pair(x, r)).mean((0, 2, 3)) for x, r in pairs]
    ).mean(0)
    assert sum(len(x) for x, _ in pairs) == 128
    assert_close(found, expected.detach(), atol=1e-5, rtol=1e-5)
    trainer(1).fit(unsettled := small(alpha=1.0), loader())  # without validation
    statistics = unsettled.model.net[1].running_mean.clone()
    assert (statistics - unsettled.model.eval().net[1].running_mean).abs().max() > 1e-3


class Seeded(lightning.Callback):
    """The same draws in a step, whatever came before it."""

    def on_train_batch_start(self, trainer, *_):
        torch.manual_seed(trainer.global_step)


def test_a_resumed_fit_ends_where_an_uninterrupted_one_ends(tmp_path):
    model = fresh().set_references(torch.rand(2, 3, SIDE, SIDE))
    whole, first, second = (small(copy.deepcopy(model)) for _ in range(3))
    trainer(2, callbacks=[Seeded()]).fit(whole, loader(), loader(16))
    runner = trainer(1, callbacks=[Seeded()])
    runner.fit(first, loader(), loader(16))
    runner.save_checkpoint(tmp_path / "half.ckpt")
    path = str(tmp_path / "half.ckpt")
    trainer(2, callbacks=[Seeded()]).fit(second, loader(), loader(16), ckpt_path=path)
    assert second.masking.step == whole.masking.step == 16
    assert_close(second.model.recent.state_dict(), whole.model.recent.state_dict())
    assert_close(second.state_dict(), whole.state_dict())  # BatchNorm's statistics among them


def test_a_checkpoint_brings_back_masking_pairs_and_references(tmp_path):
    runner, module = trainer(1), small()
    runner.fit(module, loader())
    path = tmp_path / "one.ckpt"
    runner.save_checkpoint(path)
    again = AnchoredClassifier.load_from_checkpoint(
        path, model=fresh(), masking=killick.ReferenceMasking(0.5, "label"), weights_only=True
    )
    assert again.masking.step == 8
    assert_close(again.model.recent.images, module.model.recent.images)
    assert_close(again.model.recent.references, module.model.recent.references)
    assert_close(again.model.references, module.model.references)
    x, _ = images_and_labels(5, seed=2)
    assert_close(again.eval()(x), module.eval()(x))
    with pytest.raises(OptionError, match="expected a state with target='uniform', found 'label'"):
        AnchoredClassifier.load_from_checkpoint(
            path, model=fresh(), masking=killick.ReferenceMasking(0.5, "uniform"), weights_only=True
        )


def test_a_checkpoint_of_weights_alone_is_taken_as_such(tmp_path):
    module = small(stir(fresh()))
    state = {"state_dict": module.state_dict(), "pytorch-lightning_version": lightning.__version__}
    torch.save(state, tmp_path / "weights.ckpt")
    again = AnchoredClassifier.load_from_checkpoint(
        tmp_path / "weights.ckpt", model=fresh(), weights_only=True
    )
    assert again.masking.step == 0
    assert_close(again.state_dict(), module.state_dict())


def test_references_come_from_the_first_batch_or_from_the_pool_or_stay_as_they_were():
    x, labels = images_and_labels(128, seed=0)
    trainer(1).fit(module := small(), loader(), loader(16))
    assert_close(module.model.references, x[:10])
    assert module.model.reference_policy == "first 10 of the first training batch"
    pool = killick.ReferencePool(x, labels)
    trainer(1).fit(module := small(references=pool), loader(), loader(16))
    assert_close(module.model.references, pool.choose(10, seed=0))
    assert module.model.reference_policy == "10 of the pool, random, seed 0"
    trainer(1).fit(module := small(references=pool.subset(3, seed=0)), loader())
    assert len(module.model.references) == 3
    own = fresh().set_references(x[:2], policy="mine")
    trainer(1).fit(small(own, references=pool), loader(), loader(16))
    assert (len(own.references), own.reference_policy) == (2, "mine")


def test_references_of_training_are_drawn_from_the_pool():
    pool = killick.ReferencePool(torch.full((4, 3, SIDE, SIDE), 7.0))
    trainer(1).fit(module := small(references=pool), loader())
    assert module.model.recent.references[:128].eq(7).all()


def test_without_masking_training_is_plain_anchored():
    module = AnchoredClassifier(fresh())
    trainer(1).fit(module, loader(), loader(50, seed=1))
    assert (module.masking.alpha, module.masking.step) == (0, 8)
    assert module.model.recent.count == 0  # nothing was masked: nothing to settle


def test_optimizer_schedule_and_criterion_are_those_given():
    seen = []

    def criterion(logits, targets):
        seen.append(len(targets))
        return nn.functional.cross_entropy(logits, targets)

    module = small(
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.5),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1),
        criterion=criterion,
    )
    runner = trainer(2)
    runner.fit(module, loader(32))
    (optimizer,) = runner.optimizers
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    assert seen == [16] * 4
    (default,) = [small().configure_optimizers()]
    assert isinstance(default, torch.optim.SGD)
    group = default.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 5e-4)


def test_a_model_in_eval_mode_is_trained_in_train_mode_and_frozen_layers_stay_frozen():
    module = small(fresh().eval())
    trainer(1).fit(module, loader(32))
    assert all(m.training for m in module.modules())
    module = small()
    module.model.net[1].eval()
    with pytest.warns(UserWarning, match="module.s. in eval mode"):
        trainer(1).fit(module, loader(32))
    assert not module.model.net[1].training


def test_predict_gives_predictions_of_batches_with_and_without_labels():
    x, _ = images_and_labels(20, seed=3)
    model = stir(fresh()).set_references(x[:2]).eval()
    for data in (loader(20, seed=3), DataLoader(x, batch_size=16)):
        found = trainer().predict(small(model), data)
        assert [type(part) for part in found] == [killick.Prediction] * 2
        logits = torch.cat([part.logits for part in found])
        assert_close(logits, killick.predict(model, x).logits)


def test_a_fitted_model_is_saved_as_any_other(tmp_path):
    trainer(1).fit(module := small(), loader(), loader(16))
    killick.save(module.model, tmp_path)
    x, _ = images_and_labels(5, seed=2)
    again = killick.load(tmp_path, net=network())
    assert_close(again(x), module.model.eval()(x))


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Linear(2, 2), "Linear"),
        (killick.standard(small_cnn(), image_shape=(3, 8, 8)), "Standard"),
    ],
)
def test_a_model_that_is_not_anchored_is_refused(model, found):
    with pytest.raises(OptionError, match=rf"{found}"):
        AnchoredClassifier(model)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ({"x": torch.rand(2, 3)}, "dict"),
        ((torch.rand(2, 3), torch.zeros(2), torch.zeros(2)), "tuple"),
        ([torch.rand(2, 3), "cat"], "list"),
        (torch.rand(2, 3), "Tensor"),
    ],
)
def test_batches_that_are_no_pairs_are_refused(batch, found):
    with pytest.raises(DataError, match=rf"\(images, labels\), two tensors, found {found}\. "):
        small().training_step(batch, 0)


def test_mixed_labels_are_refused_in_evaluation():
    soft = DataLoader(TensorDataset(torch.rand(4, 3, SIDE, SIDE), torch.rand(4, CLASSES)))
    with pytest.raises(DataError, match=r"class indices \(n,\) .* found labels of shape \(1, 4\)"):
        trainer().test(small(), soft, verbose=False)


def test_testing_without_any_references_says_what_to_do():
    with pytest.raises(ReferencesError, match="Store some first"):
        trainer().test(small(), loader(16), verbose=False)


def test_import_killick_does_not_import_lightning():
    code = "import sys, killick; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_lightning_the_way_to_install_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "killick.integrations.lightning_module")
    with pytest.raises(InstallError, match=r"pip install -e '\.\[lightning\]'"):
        importlib.import_module("killick.integrations.lightning_module")
