"""Runs: they learn, leave what they should, and treat data and starting points rightly."""

import json
import math
import shutil

import pytest
import safetensors.torch
import torch
from runs import EVERYTHING, assert_same, losses_of, small, train_and_stop, weights_of
from torch import nn
from torchvision.models import swin_transformer, vision_transformer

import killick
from killick.data.batches import Resident, Streamed
from killick.data.keyed_random import Stream, sample_keys, uniform
from killick.data.training_view import POLICIES
from killick.errors import CheckpointError, DataError, OptionError
from killick.protocols.references.reference_sampler import ReferenceSampler
from killick.results.run_folder import read_metrics
from killick.runtime.processes import Processes
from killick.training import load_recipe, loop, recipe_of, run_state, shipped, step_loop, train
from killick.training.checkpoint import BEFORE, load_checkpoint
from killick.training.training_data import load_training_data, sets_of
from killick.training.training_input import RESIDENT


@pytest.mark.parametrize(
    "protocol", ["standard", pytest.param("anchored", marks=pytest.mark.slow), "masked"]
)
def test_a_run_learns_and_leaves_all_it_should(image_folder, tmp_path, protocol):
    recipe = small(image_folder, protocol__name=protocol, epochs=30)
    outcome = train(recipe, tmp_path / "run", quiet=True)
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    assert names == {
        *("recipe.yaml", "environment.json", "metrics.jsonl", "checkpoint.pt", "model"),
        *("checkpoint-before.pt", "rows.csv", "rows.jsonl", ".training"),
    }
    assert outcome.finished
    losses = losses_of(run)
    assert len(losses) == 30 * 4
    assert sum(losses[-8:]) < 0.8 * sum(losses[:8])
    (top1,) = [row["value"] for row in outcome.rows if row["metric"] == "top1"]
    assert top1 >= 0.75  # of 4 test images
    model = killick.load(run / "model")
    assert isinstance(model, killick.Standard if protocol == "standard" else killick.Anchored)
    assert model.class_names == ("class0", "class1", "class2", "class3")
    assert model.provenance["recipe"]["protocol"]["name"] == protocol
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["killick"] == killick.__version__


def test_a_batch_that_cannot_be_cut_is_refused(image_folder, tmp_path):
    with pytest.raises(OptionError, match=r"1 process\(es\) times 3 pass\(es\)"):
        train(small(image_folder, accumulate=3), tmp_path / "run", quiet=True)


def test_a_set_smaller_than_a_batch_is_one_batch(image_folder, tmp_path):
    train(small(image_folder, batch=1000), tmp_path / "run", quiet=True)
    assert len(losses_of(tmp_path / "run")) == 3


def test_day_0_predicts_as_the_source_did(image_folder, tmp_path, capsys):
    standard = small(image_folder, protocol__name="standard", data__validation=4, epochs=6)
    train(standard, tmp_path / "source", quiet=True)
    masked = small(image_folder, data__validation=4, epochs=1)
    train(masked, tmp_path / "tuned", start=tmp_path / "source")
    told = capsys.readouterr().out
    (entry,) = [
        e for e in read_metrics(tmp_path / "tuned" / "metrics.jsonl") if e["kind"] == "day 0"
    ]
    source = read_metrics(tmp_path / "source" / "metrics.jsonl")[-1]
    assert entry["accuracy"] == entry["source_accuracy"] == source["accuracy"]
    assert math.isclose(entry["loss"], source["loss"], rel_tol=1e-5)
    assert f"accuracy {100 * source['accuracy']:.2f} % on 4 images" in told


@pytest.mark.parametrize(
    "kind",
    [
        "safetensors",
        "wrapped",
        "run",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("state_dict", "model")),
    ],
)
def test_a_run_starts_from_any_saved_form(image_folder, tmp_path, kind):
    train(small(image_folder, protocol__name="standard", epochs=4), tmp_path / "run", quiet=True)
    net = killick.load(tmp_path / "run" / "model").net
    path = {
        "safetensors": tmp_path / "net.safetensors",
        "state_dict": tmp_path / "net.pt",
        "wrapped": tmp_path / "net.pth",
        "run": tmp_path / "run",
        "model": tmp_path / "run" / "model",
    }[kind]
    if kind == "safetensors":
        safetensors.torch.save_file(net.state_dict(), path)
    elif kind == "state_dict":
        torch.save(net.state_dict(), path)
    elif kind == "wrapped":
        state = {f"module.{name}": weight for name, weight in net.state_dict().items()}
        torch.save({"epoch": 3, "state_dict": state}, path)
    train(
        small(image_folder, epochs=1, data__validation=4),
        tmp_path / "tuned",
        start=path,
        quiet=True,
    )
    entry = read_metrics(tmp_path / "tuned" / "metrics.jsonl")[0]
    assert entry["kind"] == "day 0"
    assert entry["accuracy"] == entry["source_accuracy"] >= 0.75  # chance is 0.25


def test_weights_that_do_not_fit_are_refused_by_name(image_folder, tmp_path):
    torch.save(killick.nets.resnet_small(num_classes=7).state_dict(), tmp_path / "seven.pt")
    recipe = small(image_folder)
    with pytest.raises(
        CheckpointError, match=r"'fc.weight' has the shape \(7, 64\), not \(4, 64\)"
    ):
        train(recipe, tmp_path / "a", start=tmp_path / "seven.pt", quiet=True)
    fresh = small(image_folder, network__new_head=True, epochs=1)
    assert train(fresh, tmp_path / "b", start=tmp_path / "seven.pt", quiet=True).finished
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="has no 'conv1.weight'.*Say which network"):
        train(recipe, tmp_path / "c", start=tmp_path / "other.pt", quiet=True)
    with pytest.raises(CheckpointError, match="found nothing there"):
        train(recipe, tmp_path / "d", start=tmp_path / "none.pt", quiet=True)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match="damaged or holds more than weights"):
        train(recipe, tmp_path / "e", start=tmp_path / "text.pt", quiet=True)


def test_a_start_with_other_classes_is_refused(image_folder, tmp_path):
    train(small(image_folder, epochs=1), tmp_path / "run", quiet=True)
    other = tmp_path / "other"
    shutil.copytree(image_folder, other)
    (other / "class0").rename(other / "klass0")
    with pytest.raises(OptionError, match="'class0' there is 'class1' in the data"):
        train(small(other), tmp_path / "tuned", start=tmp_path / "run", quiet=True)
    with pytest.raises(
        OptionError, match="anchored model cannot be trained with the protocol standard"
    ):
        train(
            small(image_folder, protocol__name="standard"),
            tmp_path / "tuned2",
            start=tmp_path / "run",
            quiet=True,
        )


def test_a_run_with_other_classes_gets_a_new_head(image_folder, tmp_path):
    train(small(image_folder, protocol__name="standard", epochs=1), tmp_path / "run", quiet=True)
    other = tmp_path / "other"
    shutil.copytree(image_folder, other)
    shutil.rmtree(other / "class3")
    with pytest.raises(OptionError, match=r"have 3 classes.* 4. .*--network.new_head"):
        train(small(other), tmp_path / "a", start=tmp_path / "run", quiet=True)
    assert not (tmp_path / "a").exists()  # a failed start leaves nothing
    fresh = small(other, network__new_head=True, epochs=1)
    outcome = train(fresh, tmp_path / "b", start=tmp_path / "run", quiet=True)
    assert outcome.model.class_names == ("class0", "class1", "class2")
    train(small(image_folder, epochs=1), tmp_path / "pair", quiet=True)
    for asked in (False, True):
        recipe = small(other, network__new_head=asked, epochs=1)
        with pytest.raises(OptionError, match="A standard model made by name"):
            train(recipe, tmp_path / "c", start=tmp_path / "pair", quiet=True)


def test_bare_weights_of_timm_are_normalized_as_timm_says(image_folder, tmp_path):
    net = killick.nets.create("timm:resnet10t", num_classes=4)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    recipe = small(image_folder, network__name="timm:resnet10t", epochs=1)
    train(recipe, tmp_path / "run", start=tmp_path / "net.pt", quiet=True)
    model = killick.load(tmp_path / "run")  # a run folder will do
    assert model.normalize.mean == tuple(net.pretrained_cfg["mean"])
    assert recipe_of(tmp_path / "run").data.std == list(net.pretrained_cfg["std"])


def test_before_the_first_update_of_the_average_the_model_is_what_counts(image_folder, tmp_path):
    recipe = small(image_folder, average__decay=0.9, average__every=100)
    train(recipe, tmp_path / "averaged", quiet=True)
    train(small(image_folder), tmp_path / "plain", quiet=True)
    assert_same(weights_of(tmp_path / "averaged"), weights_of(tmp_path / "plain"))


def test_a_start_at_another_size_is_saved_at_the_new_one(image_folder, tmp_path):
    train(small(image_folder, epochs=1), tmp_path / "run", quiet=True)
    larger = small(image_folder, epochs=1, data__size=24)
    train(larger, tmp_path / "larger", start=tmp_path / "run", quiet=True)
    model = killick.load(tmp_path / "larger")
    assert model.image_shape == (3, 24, 24)
    assert model(torch.zeros(2, 3, 24, 24, dtype=torch.uint8)).shape == (2, 4)


def test_the_test_set_is_looked_at_once(image_folder, tmp_path, monkeypatch):
    judged = []

    def counted(model, held, *arguments, **options):
        judged.append(held.name)
        return validate(model, held, *arguments, **options)

    validate = loop.validate
    for module in (loop, step_loop):
        monkeypatch.setattr(module, "validate", counted)
    train(small(image_folder, data__validation=4), tmp_path / "run", quiet=True)
    test = [name for name in judged if "validation" not in name]
    assert len(judged) == 3 + 1
    assert len(test) == 1
    assert judged[-1] == test[0]


def test_validation_and_limit_are_cut_from_the_training_set(image_folder):
    parts = sets_of(small(image_folder, data__validation=0.25, data__limit=8))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (8, 4, 4)
    rows = [set(part.rows.tolist()) for part in (parts.train, parts.validation, parts.test)]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]
    assert parts.train.labels.bincount().tolist() == [2, 2, 2, 2]
    last = sets_of(small(image_folder, data__validation=5, data__validation_from="last"))
    assert last.validation.rows.tolist() == sets_of(small(image_folder)).train.rows[-5:].tolist()


def test_noise_is_in_the_training_labels_alone(image_folder):
    noisy = sets_of(small(image_folder, data__label_noise=0.5, data__validation=4))
    clean = sets_of(small(image_folder, data__validation=4))
    assert int((noisy.train.labels != clean.train.labels).sum()) == 6
    assert torch.equal(noisy.validation.labels, clean.validation.labels)
    assert torch.equal(noisy.test.labels, clean.test.labels)


def test_streamed_and_resident_runs_are_the_same(image_folder, tmp_path):
    for resident in ("always", "never"):
        recipe = small(
            image_folder,
            augment={"crop": "none"},
            data__resident=resident,
            data__workers=0,
            data__mean=[0.5] * 3,
            data__std=[0.25] * 3,
            protocol__reference_set=8,
        )
        train(recipe, tmp_path / resident, quiet=True)
    assert_same(weights_of(tmp_path / "always"), weights_of(tmp_path / "never"))


@pytest.mark.parametrize(
    ("size", "how", "resident"),
    [(16, "auto", True), (72, "auto", False), (72, "always", True), (16, "never", False)],
)
def test_policies_act_on_batches_where_that_is_faster(image_folder, size, how, resident):
    recipe = small(
        image_folder,
        data__size=size,
        data__resident=how,
        data__workers=0,
        augment__policy="randaugment",
    )
    data = load_training_data(recipe, Processes(0, 1, torch.device("cpu")))
    assert (data.way == RESIDENT) == resident
    assert isinstance(data.batches, Resident if resident else Streamed)
    if resident:
        assert data.batches.policy is not None


@pytest.mark.parametrize(
    ("size", "changes", "resident"),
    [
        (16, {}, False),  # slower on a CPU
        (16, {"data__resident": "always"}, True),
        (32, {"data__resident": "always", "augment__policy": "augmix"}, True),
    ],
)
def test_resized_crops_of_a_set_in_memory_can_be_made_in_batches(tmp_path, size, changes, resident):
    recipe = small(
        tmp_path,
        data__name="shapes",
        data__limit=16,
        data__size=size,
        data__workers=0,
        augment__crop="resized",
        **changes,
    )
    data = load_training_data(recipe, Processes(0, 1, torch.device("cpu")))
    assert (data.way == RESIDENT) == resident
    assert (data.context.pixels is None) == (not resident or size != 32)
    data.batches.begin(0, 0)
    data.batches.load()
    assert data.batches.batch(0).images.shape == (4, 3, size, size)


def test_what_cannot_stream_or_stay_is_refused(image_folder, tmp_path):
    with pytest.raises(OptionError, match="streams, so protocol.reference_set"):
        train(small(image_folder, data__resident="never"), tmp_path / "a", quiet=True)
    shown = {"data__resident": "always", "data__interpolation": "nearest"}
    nearest = small(image_folder, **shown, augment={"crop": "resized"})
    with pytest.raises(OptionError, match="data.interpolation: nearest. Use bilinear"):
        train(nearest, tmp_path / "nearest", quiet=True)
    recipe = small(image_folder, data__resident="always", augment={"policy": "pixmix"})
    with pytest.raises(OptionError, match="data.resident: always is not possible"):
        train(recipe, tmp_path / "b", quiet=True)
    with pytest.raises(OptionError, match="reference_set: at most the 16"):
        train(small(image_folder, protocol__reference_set=99), tmp_path / "c", quiet=True)
    recipe = small(
        image_folder,
        augment__policy="pixmix",
        augment__mixing_set=str(tmp_path / "none"),
        protocol__references="batch",
    )
    with pytest.raises(DataError, match="mixing_set: no images"):
        train(recipe, tmp_path / "d", quiet=True)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 8),
        ({"protocol__references": "batch", "accumulate": 2}, 8),
        ({"batch": 9, "epochs": 4}, 4),
        ({"batch": 16, "epochs": 1}, 1),
    ],
    ids=["plain", "passes", "left out", "one step"],
)
def test_alpha_moves_over_all_steps_of_a_run_and_rows_have_its_mean(
    image_folder, tmp_path, monkeypatch, changes, steps
):
    seen, draw = {}, ReferenceSampler.draw

    def watched(drawing, batch, step):
        drawn = draw(drawing, batch, step)
        seen[int(step)] = bool(drawn.masked)
        return drawn

    monkeypatch.setattr(ReferenceSampler, "draw", watched)
    moving = {"protocol__alpha": 0.0, "protocol__alpha_end": 1.0, "epochs": 2}
    outcome = train(small(image_folder, **(moving | changes)), tmp_path / "run", quiet=True)
    numbers = torch.arange(steps)
    chance = uniform(sample_keys(0, numbers, torch.zeros_like(numbers)), Stream.MASK)
    assert seen == dict(enumerate((chance < numbers / max(1, steps - 1)).tolist()))
    assert [row["alpha"] for row in outcome.rows] == [0.5, 0.5]
    assert killick.load(tmp_path / "run").provenance["facts"]["alpha"] == 0.5


@pytest.mark.parametrize(
    ("changes", "alpha"), [({"every": 4}, 0.25), ({"name": "anchored", "alpha_end": 1.0}, "")]
)
def test_rows_say_how_often_was_masked_if_at_all(image_folder, tmp_path, changes, alpha):
    settings = {f"protocol__{name}": value for name, value in changes.items()}
    outcome = train(small(image_folder, epochs=1, **settings), tmp_path / "run", quiet=True)
    assert [row["alpha"] for row in outcome.rows] == [alpha, alpha]


def test_statistics_of_batchnorm_stay_as_training_left_them_only_where_that_is_asked(
    image_folder, tmp_path
):
    left, saved = {}, {}
    for kind in ("running", "settled"):
        train(small(image_folder, protocol__batchnorm=kind), tmp_path / kind, quiet=True)
        left[kind] = load_checkpoint(tmp_path / kind)[0]["model"]
        saved[kind] = weights_of(tmp_path / kind)
    assert_same(left["running"], left["settled"])  # training is the same
    assert_same(left["running"], saved["running"])
    for name, weight in saved["settled"].items():
        settled = name.endswith(("running_mean", "running_var"))
        assert torch.equal(weight, saved["running"][name]) != settled, name


@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_model_with_statistics_as_training_left_them_predicts_the_same_when_it_is_loaded(
    image_folder, tmp_path, decay
):
    recipe = small(image_folder, protocol__batchnorm="running", average__decay=decay)
    model = train(recipe, tmp_path / "run", quiet=True).model
    images = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8)
    before = model(images)
    loaded = killick.load(tmp_path / "run").to(memory_format=torch.channels_last)
    assert torch.equal(loaded(images), before)
    assert torch.equal(model.train().eval()(images), before)  # which would settle them
    assert load_checkpoint(tmp_path / "run")[0]["recent"] is None


def test_training_leaves_the_global_randomness_alone(image_folder, tmp_path):
    before = torch.random.get_rng_state()
    train(small(image_folder, epochs=1, **EVERYTHING), tmp_path / "run", quiet=True)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_step_has_a_dropout_of_its_own(image_folder, tmp_path, monkeypatch):
    seeds, take = [], loop.TrainingRun.take_step

    def watched(run):
        take(run)
        seeds.append(torch.initial_seed())

    monkeypatch.setattr(loop.TrainingRun, "take_step", watched)
    for name in ("a", "b"):
        train(small(image_folder, epochs=2), tmp_path / name, quiet=True)
    assert len(set(seeds)) == 8  # of 2 runs of 8 steps
    assert seeds[:8] == seeds[8:]


def test_the_seed_decides_everything(image_folder, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(small(image_folder, epochs=1, seed=seed), tmp_path / name, quiet=True)
    assert_same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    a, c = weights_of(tmp_path / "a"), weights_of(tmp_path / "c")
    assert not torch.equal(a["net.fc.weight"], c["net.fc.weight"])


@pytest.mark.slow
def test_compiled_training_equals_eager(image_folder, tmp_path):
    for execution in ("eager", "compiled"):
        recipe = small(image_folder, epochs=1, execution=execution, augment__mixup=0.2)
        train(recipe, tmp_path / execution, quiet=True)
    eager, compiled = (torch.tensor(losses_of(tmp_path / e)) for e in ("eager", "compiled"))
    assert torch.allclose(eager, compiled, atol=1e-4, rtol=1e-4)


def test_a_run_is_compiled_only_where_the_rest_of_it_repays_that(
    image_folder, tmp_path, monkeypatch
):
    compiled, torch_compile = [], torch.compile

    def compile_quickly(what, **options):
        compiled.append(what)
        return torch_compile(what, **options, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", compile_quickly)
    recipe = small(image_folder, epochs=3, log_every=2, augment__mixup=0.2)
    train(recipe, tmp_path / "eager", quiet=True)
    monkeypatch.setattr(run_state, "choose_arithmetic", lambda *_: ("float32", "auto", None))
    train(recipe, tmp_path / "short", quiet=True)
    train(recipe, tmp_path / "own", quiet=True, loss=torch.nn.CrossEntropyLoss())
    assert not compiled
    monkeypatch.setattr(run_state, "COMPILE_SECONDS", 0.0)
    train_and_stop(recipe, tmp_path / "long", 7, monkeypatch)
    assert len(compiled) == 3  # samples, network and statistics, once
    train(None, tmp_path / "long", resume=True, quiet=True)
    compiled.clear()
    train(recipe, tmp_path / "own-long", quiet=True, loss=torch.nn.CrossEntropyLoss())
    assert len(compiled) == 3
    eager = torch.tensor(losses_of(tmp_path / "eager"))
    for name in ("short", "long", "own", "own-long"):
        assert torch.allclose(torch.tensor(losses_of(tmp_path / name)), eager, rtol=1e-4)


@pytest.mark.slow
def test_arms_and_seeds_in_one_process_are_all_compiled_and_seeds_once(
    image_folder, tmp_path, monkeypatch
):
    from torch._dynamo.utils import counters

    compile_it = torch.compile
    monkeypatch.setattr(  # what is compiled how often is the same, and nothing takes minutes
        torch, "compile", lambda what, **options: compile_it(what, **options, backend="eager")
    )
    torch.compiler.reset()
    made = []
    shares = [0.1 * number for number in range(1, 11)]  # more than torch allows by itself
    for number, (alpha, seed) in enumerate([*((a, 0) for a in shares), (0.1, 1), (0.2, 2)]):
        counters.clear()
        recipe = small(
            image_folder, epochs=1, execution="compiled", protocol__alpha=alpha, seed=seed
        )
        train(recipe, tmp_path / str(number), quiet=True)
        made.append(counters["frames"]["total"])
        assert counters["frames"]["ok"] == made[-1], "something was left uncompiled"
        assert not counters["unimplemented"]
    assert all(made[:10])
    assert made[10:] == [0, 0]
    torch.compiler.reset()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("resident", ["auto", "never"])
def test_a_damaged_image_is_told_by_name_in_one_line(image_folder, tmp_path, workers, resident):
    shutil.copytree(image_folder, tmp_path / "images")
    for damaged in (tmp_path / "images").glob("*/*.png"):  # whichever is read first
        damaged.write_bytes(damaged.read_bytes()[:200])
    recipe = small(
        tmp_path / "images",
        data__workers=workers,
        data__resident=resident,
        protocol__name="standard",  # nothing is read but by the workers
    )
    with pytest.raises(DataError, match=r"cannot read .*/class\d/\d.png") as problem:
        train(recipe, tmp_path / "run", quiet=True)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "policy",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in POLICIES if name != "augmix"),
        *("augmix", "pixmix", "pixmix from a folder"),
    ],
)
def test_every_policy_trains(image_folder, tmp_path, policy):
    name, _, folder = policy.partition(" ")
    recipe = small(
        image_folder,
        augment__policy=name,
        augment__mixing_set=str(image_folder) if folder else None,
        protocol__references="batch",
        data__workers=0,
        epochs=1,
    )
    assert train(recipe, tmp_path / "run", quiet=True).finished


SMALL = {  # the same networks on smaller images: a tenth of the time
    "imagenet-swinv2-t": {"data.size": 64},
    "imagenet-swinv2-s": {"data.size": 64},
    "imagenet-swinv2-b": {"data.size": 64},
    "imagenet-vit-b16": {"data.size": 32, "network.arguments": {"image_size": 32}},
}


@pytest.fixture
def shallow(monkeypatch) -> None:
    """Torchvision's transformers, made by their names but with fewer blocks."""
    swin, vit = swin_transformer._swin_transformer, vision_transformer._vision_transformer

    def shallow_swin(*, depths, **others):
        return swin(depths=[1, 1, 2, 1], **others)

    def shallow_vit(*, num_layers, **others):
        return vit(num_layers=2, **others)

    monkeypatch.setattr(swin_transformer, "_swin_transformer", shallow_swin)
    monkeypatch.setattr(vision_transformer, "_vision_transformer", shallow_vit)


IN_DEFAULT_RUN = ("shapes-small", "cifar10-resnet18", "finetune", "imagenet-swinv2-t")


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IN_DEFAULT_RUN else [pytest.mark.slow])
        for name in sorted(shipped())
    ],
)
def test_every_shipped_recipe_works(image_folder, tmp_path, monkeypatch, name):
    runs_saves_resumes_and_evaluates(image_folder, tmp_path, monkeypatch, name, SMALL.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SMALL))
def test_the_imagenet_recipes_work_at_their_own_size(image_folder, tmp_path, monkeypatch, name):
    runs_saves_resumes_and_evaluates(image_folder, tmp_path, monkeypatch, name, {})


def runs_saves_resumes_and_evaluates(image_folder, tmp_path, monkeypatch, name, changes):
    batch = 2 if name.startswith("imagenet") else 4
    overrides = {
        "data.name": f"imagefolder:{image_folder}",
        "data.validation": 4,
        "data.limit": 3 * batch,
        "data.workers": 0,
        "epochs": 1,
        "batch": batch,
        "log_every": 1,
        **changes,
    }
    recipe = load_recipe(name, overrides)
    start = None
    if name == "finetune":
        start = tmp_path / "net.pt"
        torch.save(killick.nets.resnet_small(num_classes=4).state_dict(), start)
    train_and_stop(recipe, tmp_path / "run", 2, monkeypatch, start=start)
    outcome = train(None, tmp_path / "run", resume=True, quiet=True)
    assert outcome.finished
    assert len(losses_of(tmp_path / "run")) == 3
    assert {row["metric"]: row["count"] for row in outcome.rows} == {"top1": 4, "nll": 4}
    model = killick.load(tmp_path / "run" / "model")
    images = torch.zeros(2, 3, recipe.data.size, recipe.data.size, dtype=torch.uint8)
    with torch.no_grad():
        assert model(images).shape == (2, 4)
    assert (tmp_path / "run" / BEFORE).exists()
