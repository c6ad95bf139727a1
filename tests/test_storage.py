"""Saved models: whole or not at all, complete, and nothing in them can run code."""

import copy
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import safetensors.torch
import timm
import torch
from conftest import small_cnn, stir
from torch.testing import assert_close

import killick
from killick.errors import OptionError, StorageError
from killick.nets import Architecture


def stirred(**arguments) -> killick.Anchored:
    net = killick.nets.create("killick:resnet_small", num_classes=4, **arguments)
    mean = (0.5,) * arguments.get("in_chans", 3)
    model = stir(killick.anchor(net, normalize=(mean, mean)))
    shape = (3, arguments.get("in_chans", 3), 8, 8)
    return model.set_references(
        torch.randint(256, shape, dtype=torch.uint8), policy="random, seed 0"
    )


def plain(**arguments) -> killick.Standard:
    net = stir(killick.nets.create("killick:resnet_small", num_classes=4, **arguments))
    return killick.standard(net, normalize=((0.5,) * 3, (0.25,) * 3), image_shape=(3, 8, 8))


def images() -> torch.Tensor:
    return torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)


def edit(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_model_comes_back_with_all_that_belongs_to_it(tmp_path):
    model, x = stirred(), images()
    model.set_residuals(killick.residual_bank(model, x, size=20))
    killick.save(model, tmp_path, class_names="abcd", provenance={"masking": {"target": "label"}})
    again = killick.load(tmp_path)
    assert_close(again(x), model.eval()(x))
    assert_close(again.references, model.references)
    assert_close(again.residuals, model.residuals)
    assert again.class_names == tuple("abcd")
    assert again.provenance == {"masking": {"target": "label"}}
    assert again.reference_policy == "random, seed 0"
    assert again.normalize.mean == (0.5, 0.5, 0.5)
    assert not again.training


def test_a_standard_model_comes_back_with_all_that_belongs_to_it(tmp_path):
    model, x = plain(), images()
    killick.save(model, tmp_path, class_names="abcd", provenance={"epochs": 3})
    assert model.training  # as it was
    again = killick.load(tmp_path)
    assert isinstance(again, killick.Standard)
    assert_close(again(x), model.eval()(x))
    assert (again.class_names, again.provenance) == (tuple("abcd"), {"epochs": 3})
    assert (again.image_shape, again.normalize.std) == ((3, 8, 8), (0.25, 0.25, 0.25))
    assert not again.training
    assert killick.nets.remembered(again.net) is not None


def test_the_folder_says_which_kind_it_holds(tmp_path):
    x = images()
    for model in (plain(), stirred()):  # the second replaces the first
        killick.save(model, tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["kind"] == type(model).__name__.lower()
        assert ("references" in config, "stems" in config) == (config["kind"] == "anchored",) * 2
    assert_close(killick.load(tmp_path)(x), model.eval()(x))


@pytest.mark.parametrize("make", [plain, stirred])
@pytest.mark.parametrize("kind", ["standard", "anchored", "folded", None, ["standard"]])
def test_a_folder_that_says_another_kind_is_refused(tmp_path, make, kind):
    own = type(killick.load(killick.save(make(), tmp_path))).__name__.lower()
    edit(tmp_path, kind=kind)
    if kind == own:
        killick.load(tmp_path)
        return
    with pytest.raises(StorageError, match="no usable 'kind'|does not hold examples"):
        killick.load(tmp_path)


def test_a_standard_model_is_saved_from_inside_wrappers_with_clean_keys(tmp_path):
    model, x = plain(), images()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for wrapped in (torch.compile(model, backend="eager"), averaged):
        killick.save(wrapped, tmp_path)
        again = killick.load(tmp_path)
        assert again.state_dict().keys() == model.state_dict().keys()
        assert_close(again(x), model.eval()(x))


def test_a_network_inside_the_compiler_is_saved_as_what_it_was_made_from(tmp_path):
    net = killick.nets.create("killick:resnet_small", num_classes=4)
    model = killick.standard(torch.compile(net, backend="eager"), image_shape=(3, 8, 8))
    killick.save(model, tmp_path)
    x = torch.rand(2, 3, 8, 8)
    assert_close(killick.load(tmp_path)(x), net.eval()(x))


def test_a_foreign_standard_network_is_passed_in_and_checked(tmp_path, caplog):
    model = killick.standard(stir(small_cnn()), image_shape=(3, 8, 8))
    killick.save(model, tmp_path)
    assert "killick.load(folder, net=net)" in caplog.text
    x, other = torch.rand(2, 3, 8, 8), small_cnn()
    before = copy.deepcopy(other.state_dict())
    assert_close(killick.load(tmp_path, net=other)(x), model.eval()(x))
    assert_close(other.state_dict(), before)  # what is passed in is left as it is
    other[2] = torch.nn.Tanh()
    with pytest.raises(StorageError, match="the network computes something else"):
        killick.load(tmp_path, net=other)
    with pytest.raises(StorageError, match=r"'net.7.*' has the shape \(5.*not \(6"):
        killick.load(tmp_path, net=small_cnn(classes=6))
    with pytest.raises(StorageError, match="the file has no 'net.*another network"):
        killick.load(tmp_path, net=killick.nets.create("killick:resnet_small"))


def test_a_standard_network_of_timm_s_is_made_again_by_name_in_its_own_dtype(tmp_path):
    net = timm.create_model("resnet10t", num_classes=3, in_chans=1).bfloat16()
    killick.save(killick.standard(net, image_shape=(1, 64, 64)), tmp_path)
    again = killick.load(tmp_path)
    assert torch.equal(again.net.fc.weight, net.fc.weight)
    assert again(torch.rand(2, 1, 64, 64).bfloat16()).dtype == torch.bfloat16


def test_a_trained_standard_model_is_anchored_and_saved_as_such(tmp_path):
    killick.save(plain(), tmp_path, class_names="abcd")
    model, x = killick.load(tmp_path), images()
    killick.save(killick.anchor(model), tmp_path)
    again = killick.load(tmp_path)
    assert again.class_names == tuple("abcd")
    assert_close(again(x, x.flip(0)), model(x), atol=1e-5, rtol=1e-5)


def test_saving_again_keeps_names_and_provenance_and_leaves_other_files_alone(tmp_path):
    killick.save(stirred(), tmp_path, class_names="abcd", provenance={"a": 1})
    (tmp_path / "notes.txt").write_text("mine")
    killick.save(stir(killick.load(tmp_path)), tmp_path)
    again = killick.load(tmp_path)
    assert (again.class_names, again.provenance) == (tuple("abcd"), {"a": 1})
    assert sorted(p.name.split("-")[0] for p in tmp_path.iterdir()) == [
        "config.json",
        "examples",
        "model",
        "notes.txt",
    ]


def test_the_folder_says_that_training_images_travel_along(tmp_path, caplog):
    with caplog.at_level("INFO", "killick"):
        killick.save(stirred(), tmp_path)
    assert "3 reference images are stored" in caplog.text
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["references"]["count"] == 3
    assert "training images" in config["references"]["note"]


def test_a_network_of_timm_s_own_factory_is_made_again_by_name(tmp_path):
    model = killick.anchor(timm.create_model("resnet10t", num_classes=3, in_chans=1))
    killick.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"]["name"] == "timm:resnet10t"
    x, references = torch.rand(2, 2, 1, 64, 64)
    assert_close(killick.load(tmp_path)(x, references), model.eval()(x, references))


def test_a_network_of_torchvision_is_made_again_by_name_and_arguments(tmp_path):
    net = killick.nets.create("torchvision:shufflenet_v2_x0_5", num_classes=3)
    model = killick.anchor(net)
    killick.save(model, tmp_path)
    x, references = torch.rand(2, 2, 3, 64, 64)
    assert_close(killick.load(tmp_path)(x, references), model.eval()(x, references))


def test_an_architecture_can_be_given_and_is_tried_before_it_is_written(tmp_path):
    model = killick.anchor(killick.nets.resnet_small(num_classes=4))
    with pytest.raises(StorageError, match="cannot save as 'killick:resnet_small' .*num_classes"):
        killick.save(model, tmp_path, architecture=Architecture("killick:resnet_small"))
    killick.save(
        model, tmp_path, architecture=Architecture("killick:resnet_small", {"num_classes": 4})
    )
    assert killick.load(tmp_path).net.fc.out_features == 4


def test_a_network_changed_after_it_was_made_is_saved_as_foreign(tmp_path, caplog):
    net = killick.nets.create("killick:resnet_small", num_classes=4)
    net.relu = torch.nn.GELU()  # same weights, other outputs
    killick.save(killick.anchor(stir(net)), tmp_path)
    assert "load needs net=" in caplog.text
    with pytest.raises(StorageError, match=r"not made by name.*killick.load\(folder, net=net\)"):
        killick.load(tmp_path)
    assert isinstance(killick.load(tmp_path, net=net).net.relu, torch.nn.GELU)


def test_a_foreign_network_is_passed_in_and_checked(tmp_path):
    model = stir(killick.anchor(small_cnn()))
    killick.save(model, tmp_path)
    x, references = torch.rand(2, 2, 3, 8, 8)
    again = killick.load(tmp_path, net=small_cnn())
    assert_close(again(x, references), model.eval()(x, references))
    other = small_cnn()
    other[2] = torch.nn.Tanh()
    with pytest.raises(StorageError, match="the network computes something else"):
        killick.load(tmp_path, net=other)
    with pytest.raises(StorageError, match=r"'net.7.*' has the shape \(5.*not \(6"):
        killick.load(tmp_path, net=small_cnn(classes=6))
    with pytest.raises(StorageError, match="cannot load .*: cannot anchor ResNet: .*stem='0'"):
        killick.load(tmp_path, net=killick.nets.create("killick:resnet_small"))


def test_the_dtype_of_the_weights_is_kept(tmp_path):
    mixed = killick.anchor(small_cnn()).bfloat16()
    mixed.net[1].float()
    killick.save(mixed, tmp_path)
    model = killick.load(tmp_path, net=small_cnn())
    assert model.net[0].weight.dtype == torch.bfloat16
    assert model.net[1].running_mean.dtype == torch.float32
    double = stir(killick.anchor(small_cnn()).double())
    killick.save(double, tmp_path)
    again = killick.load(tmp_path, net=small_cnn())
    assert torch.equal(again.net[0].weight, double.net[0].weight)


def test_a_model_in_training_is_saved_settled_and_goes_on_training(tmp_path):
    model = stirred().train()
    x = images()
    model(x, x.flip(0), True)
    killick.save(model, tmp_path)
    assert model.training
    assert_close(killick.load(tmp_path)(x), model.eval()(x))


def test_a_compiled_model_is_saved_with_clean_keys(tmp_path):
    model = stirred()
    killick.save(torch.compile(model, backend="eager"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    keys = safetensors.torch.load_file(tmp_path / config["weights"]).keys()
    assert keys == model.state_dict().keys()


def put_weights(folder, tensors) -> None:
    """Other weights, under a name that fits them."""
    data = safetensors.torch.save(tensors)
    name = f"model-{hashlib.sha256(data).hexdigest()[:8]}.safetensors"
    (folder / name).write_bytes(data)
    edit(folder, weights=name)


def damaged(tmp_path, which: str, length: int | None = None, data: bytes = b"") -> None:
    config = json.loads((tmp_path / "config.json").read_text())
    path = tmp_path / config[which]
    path.write_bytes(path.read_bytes()[:length] + data)


def test_a_truncated_missing_or_mixed_up_file_is_one_clear_error(tmp_path):
    killick.save(stirred(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    edit(tmp_path, weights=config["examples"])
    with pytest.raises(StorageError, match="does not fit its digest"):
        killick.load(tmp_path)
    edit(tmp_path, weights=config["weights"], examples=config["weights"])
    with pytest.raises(StorageError, match="does not fit its digest"):
        killick.load(tmp_path)
    edit(tmp_path, examples=config["examples"])
    damaged(tmp_path, "weights", length=1000)
    with pytest.raises(StorageError, match=r"model-.*safetensors is truncated or damaged"):
        killick.load(tmp_path)
    (tmp_path / config["weights"]).unlink()
    with pytest.raises(StorageError, match=r"model-.*safetensors: No such file"):
        killick.load(tmp_path)


def test_a_missing_or_an_unknown_weight_is_named(tmp_path):
    killick.save(stirred(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = safetensors.torch.load_file(tmp_path / config["weights"])
    put_weights(tmp_path, {k: v for k, v in weights.items() if k != "net.fc.bias"})
    with pytest.raises(StorageError, match="has no 'net.fc.bias'"):
        killick.load(tmp_path)
    put_weights(tmp_path, {**weights, "net.extra": torch.zeros(1)})
    with pytest.raises(StorageError, match="has an unknown 'net.extra'"):
        killick.load(tmp_path)


def test_weights_and_references_that_are_not_numbers_are_refused(tmp_path):
    model = killick.anchor(small_cnn()).set_references(torch.rand(2, 3, 8, 8))
    killick.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = safetensors.torch.load_file(tmp_path / config["weights"])
    put_weights(tmp_path, {**weights, "net.7.bias": torch.full((5,), torch.nan)})
    with pytest.raises(StorageError, match="differ by nan"):
        killick.load(tmp_path, net=small_cnn())
    put_weights(tmp_path, {**weights, "references": torch.full((1, 3, 8, 8), torch.nan)})
    with pytest.raises(StorageError, match="NaN or infinity"):
        killick.load(tmp_path, net=small_cnn())
    put_weights(tmp_path, {**weights, "references": torch.zeros(3)})
    with pytest.raises(StorageError, match="expected references as"):
        killick.load(tmp_path, net=small_cnn())


def test_a_flipped_bit_is_noticed(tmp_path):
    killick.save(stirred(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    path = tmp_path / config["weights"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="does not fit its digest"):
        killick.load(tmp_path)


def test_files_of_others_are_never_touched(tmp_path):
    theirs = ["model-00001-of-00002.safetensors", ".download.part", "model-mine.safetensors"]
    for name in theirs:
        (tmp_path / name).write_text("theirs")
    for _ in range(2):
        killick.save(stir(stirred()), tmp_path)
    assert set(theirs) < set(os.listdir(tmp_path))
    assert len(os.listdir(tmp_path)) == len(theirs) + 3
    for text in ('{"model_type": "vit"}', "{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(StorageError, match="config.json of something else"):
            killick.save(stirred(), tmp_path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(StorageError, match="expected a folder, found a file"):
        killick.save(stirred(), tmp_path / "model")


def test_class_names_must_be_as_many_as_logits(tmp_path):
    with pytest.raises(OptionError, match="expected 4 class names.*found 2"):
        killick.save(stirred(), tmp_path, class_names="ab")


@pytest.mark.parametrize("make", [stirred, plain])
def test_names_that_a_model_has_already_must_be_as_many_as_logits(tmp_path, make):
    model = make()
    model.class_names = ("only", "two")
    with pytest.raises(OptionError, match="expected 4 class names.*found 2"):
        killick.save(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    killick.save(model, tmp_path / "a", class_names="abcd")
    assert killick.load(tmp_path / "a").class_names == tuple("abcd")


@pytest.mark.parametrize("make", [stirred, plain])
@pytest.mark.parametrize("names", [[], ["a"], list("abcde")])
def test_a_folder_with_another_number_of_names_than_logits_is_refused(tmp_path, make, names):
    killick.save(make(), tmp_path)
    edit(tmp_path, class_names=names)
    with pytest.raises(StorageError, match=f"has {len(names)} class names for 4") as told:
        killick.load(tmp_path)
    assert "\n" not in str(told.value)
    edit(tmp_path, class_names=None)
    assert killick.load(tmp_path).class_names is None


@pytest.mark.parametrize("make", [stirred, plain])
@pytest.mark.parametrize("arguments", [{"num_classes": 5_000_000}, {"width": 3000}])
def test_a_network_larger_than_its_weights_is_refused_before_it_is_made(
    tmp_path, monkeypatch, make, arguments
):
    killick.save(make(), tmp_path)
    made = {"name": "killick:resnet_small", "arguments": {"num_classes": 4, **arguments}}
    edit(tmp_path, architecture=made)
    monkeypatch.setattr("killick.storage.loading.rebuild", lambda *_: pytest.fail("it was made"))
    began = time.perf_counter()
    with pytest.raises(StorageError, match="more than|the weights of|the argument") as told:
        killick.load(tmp_path)
    assert time.perf_counter() - began < 2
    assert "\n" not in str(told.value)


def test_tables_that_are_not_stored_count_too_where_they_are_huge(tmp_path, monkeypatch):
    class Wide(torch.nn.Module):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.net = killick.nets.create("killick:resnet_small", num_classes=4)
            self.register_buffer("table", torch.zeros(length), persistent=False)

        def forward(self, x):
            return self.net(x)

    monkeypatch.setitem(killick.nets.NETWORKS._entries, "wide", Wide)
    model = killick.standard(
        killick.nets.create("killick:wide", length=2**20), image_shape=(3, 8, 8)
    )
    killick.save(model, tmp_path)
    killick.load(tmp_path)
    edit(tmp_path, architecture={"name": "killick:wide", "arguments": {"length": 2**33}})
    with pytest.raises(StorageError, match="the argument"):
        killick.load(tmp_path)


def test_a_network_that_cannot_be_made_without_numbers_is_loaded_all_the_same(
    tmp_path, monkeypatch
):
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = killick.nets.create("killick:resnet_small", num_classes=4)
            self.share = torch.linspace(0.0, 0.5, 3).tolist()

        def forward(self, x):
            return self.net(x) * self.share[1]

    with torch.device("meta"), pytest.raises(RuntimeError):
        Odd()
    monkeypatch.setitem(killick.nets.NETWORKS._entries, "odd", Odd)
    model = killick.standard(killick.nets.create("killick:odd"), image_shape=(3, 8, 8)).eval()
    killick.save(model, tmp_path)
    x = images().float()
    assert_close(killick.load(tmp_path)(x), model(x))


def test_looking_at_the_size_of_a_network_that_does_not_fit_memory_is_told(tmp_path, monkeypatch):
    killick.save(plain(), tmp_path)

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr("killick.storage.loading.create", full)
    with pytest.raises(StorageError, match="MemoryError"):
        killick.load(tmp_path)


def test_a_network_whose_guessed_name_does_not_fit_is_saved_as_foreign(tmp_path, caplog):
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=1)
    killick.save(killick.anchor(net), tmp_path)
    assert "load needs net=" in caplog.text
    killick.load(tmp_path, net=net)


def test_a_network_that_was_not_made_by_name_is_said_so_when_it_is_saved(tmp_path, caplog):
    killick.save(killick.anchor(small_cnn()), tmp_path)
    assert "killick.load(folder, net=net)" in caplog.text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 2}, "version 1 .*found .*2.*wrote it"),
        ({"format": "other"}, "expected format 'killick-model'.*found .*'other'"),
        ({"image_shape": "3"}, "no usable 'image_shape'"),
        ({"image_shape": [3, -1, 8]}, "no usable 'image_shape'"),
        ({"stems": ["nowhere"]}, "'net.conv1.weight' has the shape"),
        ({"normalize": [1]}, "no usable 'normalize'"),
        ({"image_shape": [3, 60000, 60000]}, "no usable 'image_shape'"),
        ({"image_shape": [1.5, 2, 3]}, "no usable 'image_shape'"),
        ({"image_shape": [1]}, "cannot load"),
        ({"normalize": None}, "cannot load"),
        ({"architecture": {"name": "timm:resnet18", "arguments": {"name": "x"}}}, "cannot load"),
        ({"architecture": {"name": "timm:resnet18.none", "arguments": {}}}, "cannot load"),
        (
            {"architecture": {"name": "killick:resnet_small", "arguments": {"num_classes": -1}}},
            "cannot load",
        ),
        ({"weights": "../model.safetensors"}, "no usable 'weights'"),
        ({"weights": 3, "examples": None}, "no usable 'weights' and 'examples'"),
        ({"architecture": {"name": "timm:nothing", "arguments": {}}}, "'nothing'"),
        (
            {"architecture": {"name": "os:system", "arguments": {}}},
            "library to be one of 'killick'",
        ),
        (
            {"architecture": {"name": "timm:resnet18", "arguments": {"pretrained": True}}},
            "argument 'pretrained' does not shape",
        ),
        (
            {"architecture": {"name": "timm:resnet18", "arguments": {"checkpoint_path": "x"}}},
            "argument 'checkpoint_path' does not shape",
        ),
        ({"architecture": {"name": "killick:resnet18", "arguments": {"depth": 3}}}, "depth"),
        ({"architecture": {"name": "resnet18", "arguments": {}}}, "'library:name'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_clear_error(tmp_path, changes, text):
    killick.save(stirred(), tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(StorageError, match=text):
        killick.load(tmp_path)


def test_a_folder_that_is_none_of_ours_is_refused(tmp_path):
    with pytest.raises(StorageError, match="found no such folder"):
        killick.load(tmp_path / "nowhere")
    with pytest.raises(StorageError, match=r"found no config.json in it"):
        killick.load(tmp_path)
    for text in ("{", "[]", "\x00", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(StorageError, match="config.json"):
            killick.load(tmp_path)


def test_a_full_disk_is_reported_and_the_old_model_stays(tmp_path, monkeypatch):
    killick.save(stirred(), tmp_path)
    x = images()
    before, names = killick.load(tmp_path)(x), sorted(os.listdir(tmp_path))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        killick.save(stir(stirred()), tmp_path)
    assert sorted(os.listdir(tmp_path)) == names
    assert_close(killick.load(tmp_path)(x), before)


@pytest.mark.parametrize("replacement", range(3))
def test_a_kill_in_the_middle_leaves_the_old_model_whole(tmp_path, replacement):
    killick.save(stirred(), tmp_path)
    x = images()
    before = killick.load(tmp_path)(x)
    script = f"""
        import os, signal, torch, killick
        model = killick.load({str(tmp_path)!r})
        model.net.fc.bias.data += 1
        replace, count = os.replace, [0]
        def die(*args):
            if count[0] == {replacement}:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1
            replace(*args)
        os.replace = die
        killick.save(model, {str(tmp_path)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert_close(killick.load(tmp_path)(x), before)
    killick.save(killick.load(tmp_path), tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_what_cannot_be_written_down_is_refused(tmp_path):
    with pytest.raises(OptionError, match="JSON can write down"):
        killick.save(stirred(), tmp_path, provenance={"a": object()})
    with pytest.raises(
        OptionError, match=r"anchored model, found ResNet. .*killick.standard\(net, i"
    ):
        killick.save(killick.nets.resnet_small(), tmp_path)
    with pytest.raises(OptionError, match="folded"):
        killick.save(killick.fold(stirred()), tmp_path)
    with pytest.raises(OptionError, match="JSON"):
        killick.nets.create("killick:resnet18", num_classes=object())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            ["checkpoint.pt"],
            "killick train --resume",
        ),
        (["checkpoint-before.pt"], "unfinished run"),
        (
            ["model.onnx", "examples.npz"],
            "an export",
        ),
        (["model.pt2"], "found an export"),
        (["b/model/config.json", "a/model/config.json"], "found runs in it. Name one: .*place/a"),
        (["notes.txt"], "found no config.json in it"),
    ],
)
def test_what_is_there_instead_of_a_model_is_told(tmp_path, files, told):
    for name in files:
        (tmp_path / "place" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "place" / name).touch()
    with pytest.raises(StorageError, match=told):
        killick.load(tmp_path / "place")
    with pytest.raises(StorageError, match="found a file"):
        killick.load(next(path for path in tmp_path.rglob("*") if path.is_file()))


def test_a_save_removes_what_killed_saves_left(tmp_path):
    model = stirred()
    killick.save(model, tmp_path)
    whole = sorted(os.listdir(tmp_path))
    for name in ("model-0123abcd.safetensors", "examples-0123abcd.safetensors"):
        (tmp_path / name).write_bytes(b"a whole data file that no config.json names")
        (tmp_path / f".{name}.0.part").write_bytes(b"half")
    (tmp_path / "model-mine.safetensors").write_bytes(b"somebody's own")
    killick.save(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*whole, "model-mine.safetensors"])
