"""Pretrained weights by name, from caches that the tests fill; the network is out of reach."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from hub_cache import put_json, put_on_hub, put_url, put_weights, use_caches
from PIL import Image
from torch import nn

import killick
from killick.cli import main
from killick.core.inspection import logits_of
from killick.data.preprocessing import PlainView, view_for
from killick.errors import OptionError, StorageError
from killick.evaluation.other_networks import open_model
from killick.nets import load_pretrained, preprocessing_of, weights_of
from killick.results.rows import read_rows

TORCHVISION = "shufflenet_v2_x0_5"
URL = torchvision.models.get_model_weights(TORCHVISION).DEFAULT.url


@pytest.fixture
def cache(tmp_path, monkeypatch):
    return use_caches(monkeypatch, tmp_path / "caches")


def fill_timm(cache):
    torch.manual_seed(0)
    net = timm.create_model("test_resnet").eval()
    put_weights(put_on_hub(cache, timm.get_pretrained_cfg("test_resnet").hf_hub_id), net)
    config = timm.data.resolve_model_data_config(net)
    return net, timm.data.create_transform(**config, is_training=False)


def fill_torchvision(cache):
    torch.manual_seed(1)
    net = torchvision.models.get_model(TORCHVISION).eval()
    put_url(cache, URL, net)
    return net, torchvision.models.get_model_weights(TORCHVISION).DEFAULT.transforms()


def fill_hf_hub(cache, classes=4):
    torch.manual_seed(2)
    net = timm.create_model("test_vit", num_classes=classes, img_size=32).eval()
    view = {"crop_pct": 0.8, "interpolation": "bilinear", "mean": [0.4] * 3, "std": [0.3] * 3}
    settings = {"input_size": [3, 32, 32], "num_classes": classes, "classifier": "head", **view}
    folder = put_on_hub(cache, "me/net")
    put_weights(folder, net)
    put_json(
        folder,
        "config.json",
        architecture="test_vit",
        num_classes=classes,
        label_names=[f"class{number}" for number in range(classes)],
        model_args={"img_size": 32},
        # Files that timm would read instead are left alone.
        pretrained_cfg={**settings, "file": "/dev/zero", "custom_load": True, "url": "http://x"},
    )
    config = timm.data.resolve_data_config(pretrained_cfg=settings)
    return net, timm.data.create_transform(**config, is_training=False)


def fill_hf(cache, processor=None, name="me/vit"):
    torch.manual_seed(3)
    labels = ["cat", "dog", "crane", "crane"]
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=32,
        patch_size=8,
        id2label=dict(enumerate(labels)),
    )
    net = transformers.ViTForImageClassification(config).eval()
    folder = put_on_hub(cache, name)
    transformers.logging.disable_progress_bar()
    net.save_pretrained(folder)
    processor = processor or transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(folder)
    return net, lambda image: processor(image, return_tensors="pt").pixel_values[0]


KINDS = {
    "timm:test_resnet": fill_timm,
    f"torchvision:{TORCHVISION}": fill_torchvision,
    "hf-hub:me/net": fill_hf_hub,
    "hf:me/vit": fill_hf,
}


def photo(height=50, width=70) -> Image.Image:
    """Smooth, so that the libraries' ways to resize agree."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / 9 + shift) + np.cos(columns / 7 - shift) for shift in range(3)]
    return Image.fromarray((np.stack(waves, -1) * 60 + 125).astype(np.uint8))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("name", KINDS)
def test_weights_in_the_cache_are_loaded_and_a_saved_model_needs_no_cache(
    cache, tmp_path, monkeypatch, name
):
    net, _ = KINDS[name](cache)
    found = load_pretrained(name)
    side = preprocessing_of(found).size
    x = torch.rand(2, 3, side, side)
    expected = logits_of(net(x))
    assert torch.equal(logits_of(found(x)), expected)
    model = killick.anchor(found, example=x)
    killick.save(model, tmp_path / "saved")
    use_caches(monkeypatch, tmp_path / "empty")
    again = killick.load(tmp_path / "saved")
    torch.testing.assert_close(again(x, x.flip(0)), expected, rtol=1e-3, atol=1e-4)
    name = json.loads((tmp_path / "saved" / "config.json").read_text())["architecture"]["name"]
    assert name in ("timm:test_resnet", f"torchvision:{TORCHVISION}", "timm:test_vit", "hf:vit")


def assert_same_pixels(model, transform):
    """The library's own transform and ours differ by rounding to grey levels."""
    for shape in ((50, 70), (300, 260)):
        image = photo(*shape)
        ours = model.normalize(view_for(model)(as_tensor(image))[None])[0]
        expected = transform(image)
        assert ours.shape == expected.shape
        error = (ours - expected).abs() * torch.tensor(model.normalize.std)[:, None, None] * 255
        assert error.max() < 3, error.max()
        assert error.mean() < 0.8


@pytest.mark.parametrize("name", KINDS)
def test_preprocessing_is_that_of_the_library(cache, name):
    _, transform = KINDS[name](cache)
    assert_same_pixels(open_model(name, pretrained=True), transform)


@pytest.mark.parametrize(
    "processor",
    [
        transformers.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875),
        transformers.ConvNextImageProcessor(size={"shortest_edge": 384}),
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}, resample=3),
        transformers.BitImageProcessor(
            size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}
        ),
        transformers.ViTImageProcessor(
            size={"height": 32, "width": 32}, do_normalize=False, rescale_factor=1 / 127.5
        ),
        transformers.DeiTImageProcessor(
            size={"height": 40, "width": 40}, crop_size={"height": 32, "width": 32}
        ),
    ],
    ids=["convnext", "large convnext", "bicubic", "center crop", "scaled", "squashed crop"],
)
def test_image_processors_of_transformers_are_followed(cache, tmp_path, processor):
    from killick.nets.hf_networks import read_processor

    processor.save_pretrained(tmp_path)
    found = read_processor(tmp_path)
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    shape = (3, found.size, found.size)
    net(torch.zeros(1, *shape))
    model = killick.standard(net, (found.mean, found.std), image_shape=shape)
    model.provenance = {"preprocessing": found.view()}
    assert_same_pixels(model, lambda image: processor(image, return_tensors="pt").pixel_values[0])


def test_preprocessing_of_torchvision_is_that_of_each_network():
    """Not 224 of 256 px, bilinear, for all."""
    for name in ("swin_v2_t", "resnet50", "mobilenet_v3_small", "efficientnet_b1", "vit_h_14"):
        with torch.device("meta"):
            net = killick.nets.create(f"torchvision:{name}")
        found = preprocessing_of(net)
        expected = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        assert [found.size] == expected.crop_size
        assert [found.resize] == expected.resize_size
        assert found.interpolation == expected.interpolation.value


def test_names_of_weights():
    names = {
        "timm:resnet50": False,
        "timm:resnet50.a1_in1k": True,
        "torchvision:swin_v2_t": False,
        "torchvision:swin_v2_t#IMAGENET1K_V1": True,
        "hf-hub:a/b": True,
        "hf:a/b": True,
        "hf:vit": False,
        "killick:resnet18": False,
    }
    assert {name: killick.nets.names_weights(name) for name in names} == names


def test_class_names_come_with_the_weights(cache):
    for fill in KINDS.values():
        fill(cache)
    assert weights_of(load_pretrained("hf:me/vit")).class_names == (
        *("cat", "dog"),
        *("crane (2)", "crane (3)"),
    )
    assert weights_of(load_pretrained("hf-hub:me/net")).class_names[1] == "class1"
    for name in ("timm:test_resnet", f"torchvision:{TORCHVISION}#IMAGENET1K_V1"):
        known = weights_of(load_pretrained(name))
        assert known.class_names[0].startswith("tench")
        assert known.class_ids[0] == "n01440764"
        assert len(set(known.class_names)) == 1000


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("timm:test_resnet", "hf download timm/test_resnet.r160_in1k --include model.safetensors"),
        (f"torchvision:{TORCHVISION}", f"curl --create-dirs -Lo .*{URL}"),
        ("hf-hub:me/net@v1", "hf download me/net .* --revision v1"),
        ("hf:me/vit", "hf download me/vit --include config.json"),
    ],
)
def test_without_cache_and_network_the_error_has_the_command(cache, name, command):
    with pytest.raises(StorageError, match=f"cannot fetch it: .*{command}") as problem:
        load_pretrained(name)
    assert "\n" not in str(problem.value)
    assert str(cache) in str(problem.value)


@pytest.mark.parametrize("name", KINDS)
def test_half_a_file_in_the_cache_is_told(cache, name):
    KINDS[name](cache)
    (path,) = [p for p in cache.rglob("*") if p.suffix in (".safetensors", ".pth")]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StorageError, match=r"truncated or damaged .*Delete it") as problem:
        load_pretrained(name)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)


def test_weights_of_another_network_are_told(cache):
    folder = put_on_hub(cache, timm.get_pretrained_cfg("test_resnet").hf_hub_id)
    put_weights(folder, timm.create_model("test_vit"))
    with pytest.raises(StorageError, match="not those of timm:test_resnet"):
        load_pretrained("timm:test_resnet")
    fill_hf(cache)
    folder = next(cache.glob("hub/models--me--vit/snapshots/*"))
    weights = timm.create_model("test_vit")
    put_weights(folder, weights)
    with pytest.raises(StorageError, match="not those of an image classifier"):
        load_pretrained("hf:me/vit")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:test_resnet.nothing", "tag of timm:test_resnet"),
        ("timm:nothing", "'nothing'"),
        (f"torchvision:{TORCHVISION}#V9", "IMAGENET1K_V1"),
        ("killick:resnet18", "no pretrained weights"),
        ("hf:nothing", "hf:OWNER/NAME"),
        ("hf-hub:../x/y", "hf-hub:OWNER/NAME"),
    ],
)
def test_names_without_weights_are_refused(cache, name, message):
    with pytest.raises(OptionError, match=message):
        load_pretrained(name)


@pytest.mark.parametrize(
    "config",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"auto_map": {"AutoModel": "x--y"}},
        {"quantization_config": {}},
        {"use_pretrained_backbone": True},
        {"name_or_path": "someone/else"},
        {"id2label": {"0": "a"}},
        {"image_size": {"_attn_implementation": "someone/kernel"}},
    ],
)
def test_a_stored_configuration_holds_plain_settings_alone(config):
    with pytest.raises(OptionError, match="hf:vit takes plain settings"):
        killick.nets.create("hf:vit", config=config)


@pytest.mark.parametrize("name", ["hf:me/vit", "hf-hub:me/net", "hf:timm_wrapper"])
def test_networks_made_by_plain_names_never_load_weights(cache, name):
    fill_hf(cache)
    fill_hf_hub(cache)
    with pytest.raises(OptionError):
        killick.nets.create(name)
    with pytest.raises(OptionError, match="does not shape"):
        killick.nets.create("timm:test_resnet", pretrained=True)


@pytest.mark.parametrize("distilled", [False, True])
def test_a_kind_with_several_classifiers_is_made_as_the_one_it_was(cache, tmp_path, distilled):
    torch.manual_seed(0)
    config = transformers.DeiTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=32,
        patch_size=8,
        num_labels=4,
    )
    names = ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
    net = getattr(transformers, names[distilled])(config).eval()
    folder = put_on_hub(cache, "me/deit")
    transformers.logging.disable_progress_bar()
    net.save_pretrained(folder)
    transformers.DeiTImageProcessor(
        size={"height": 36, "width": 36}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    model = killick.anchor(load_pretrained("hf:me/deit"))
    killick.save(model, tmp_path / "saved")
    x, r = torch.rand(2, 2, 3, 32, 32)
    found = killick.load(tmp_path / "saved")(x, r)
    torch.testing.assert_close(found, net(x).logits, rtol=1e-3, atol=1e-4)
    assert len(killick.nets.create("hf:deit").state_dict()) > 0


def test_code_in_a_hub_configuration_is_never_run(cache):
    net, _ = fill_hf(cache)
    path = next(cache.glob("hub/models--me--vit/snapshots/*/config.json"))
    evil = {"auto_map": {"AutoModelForImageClassification": "evil.Net"}}
    config = json.loads(path.read_text()) | evil | {"attn_implementation": "someone/kernel"}
    path.write_text(json.dumps(config))
    (path.parent / "evil.py").write_text("raise SystemExit('ran')")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load_pretrained("hf:me/vit")(x).logits, net(x).logits)


def test_another_number_of_classes_gets_a_fresh_last_layer(cache):
    for name, fill in KINDS.items():
        net, _ = fill(cache)
        found = load_pretrained(name, num_classes=7)
        assert preprocessing_of(found) == preprocessing_of(load_pretrained(name))
        own, ours = net.state_dict(), found.state_dict()
        other = [key for key in ours if ours[key].shape != own[key].shape]
        assert {ours[key].shape[0] for key in other} == {7}
        assert all(torch.equal(ours[key], own[key]) for key in ours if key not in other)


def test_evaluate_predict_and_export_take_pretrained_weights(
    cache, tmp_path, monkeypatch, image_folder, capsys
):
    monkeypatch.chdir(tmp_path)
    net, transform = fill_hf_hub(cache)
    data = f"imagefolder:{image_folder}"
    assert main(["evaluate", "hf-hub:me/net", "--data", data, "--suite", "clean"]) == 0
    assert "32 of 40 px" in capsys.readouterr().out
    rows = read_rows(tmp_path / "evaluations" / "hf-hub-me-net")
    assert {row["network"] for row in rows} == {"timm:test_vit"}
    files = sorted(image_folder.glob("*/*.png"))
    with torch.no_grad():
        guesses = [int(net(transform(Image.open(path))[None]).argmax()) for path in files]
    right = sum(path.parent.name == f"class{n}" for path, n in zip(files, guesses, strict=True))
    (top1,) = [row["value"] for row in rows if row["metric"] == "top1"]
    assert float(top1) == pytest.approx(right / len(files), abs=0.051)  # one image near the border
    assert main(["predict", "hf-hub:me/net", str(files[0]), "--format", "json", "--quiet"]) == 0
    label = json.loads(capsys.readouterr().out)["label"]
    assert main(["export", "hf-hub:me/net", "--output", "exported", "--quiet"]) == 0
    assert main(["predict", "exported", str(files[0]), "--format", "json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] == label
    assert json.loads((tmp_path / "exported" / "model.json").read_text())["resize"] == 40
    words = ["--pretrained", "--checkpoint", "x.pth"]
    assert main(["predict", "timm:test_resnet", str(files[0]), *words]) == 2
    assert "either --pretrained or --checkpoint" in capsys.readouterr().err


def test_a_checkpoint_is_shown_the_same_pixels_by_every_command(
    tmp_path, monkeypatch, image_folder, capsys
):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = killick.nets.create("timm:test_resnet", num_classes=4).eval()
    torch.save(net.state_dict(), "net.pth")
    file = str(next(image_folder.glob("class1/*.png")))
    words = ["--checkpoint", "net.pth", "--size", "24", "--resize", "30", "--interpolation"]
    words += ["nearest", "--mean", "0.4,0.5,0.6", "--std", "0.2,0.2,0.2"]
    quiet = ["--format", "json", "--quiet"]
    assert main(["predict", "timm:test_resnet", file, *words, *quiet]) == 0
    energy = json.loads(capsys.readouterr().out)["energy"]
    assert main(["export", "timm:test_resnet", *words, "--output", "exported", "--quiet"]) == 0
    assert main(["predict", "exported", file, *quiet]) == 0
    assert json.loads(capsys.readouterr().out)["energy"] == pytest.approx(energy, rel=1e-4)
    images = as_tensor(Image.open(file).convert("RGB"))
    resize = torchvision.transforms.v2.Resize(
        30, torchvision.transforms.InterpolationMode.NEAREST, antialias=True
    )
    crop = torchvision.transforms.v2.CenterCrop(24)(resize(images)).float() / 255
    x = (crop - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / 0.2
    with torch.no_grad():
        assert -net(x[None]).logsumexp(1).item() == pytest.approx(energy, rel=1e-4)


def test_classes_of_imagenet_are_found_by_their_folders(cache, tmp_path):
    """Weights know the names of classes; folders are named by WordNet's numbers."""
    net, transform = fill_torchvision(cache)
    chosen = {"n01443537": 1, "n15075141": 999}
    right = 0
    for name, number in chosen.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        for each in range(3):
            image = photo(260 + 10 * each + number % 7, 280)
            image.save(tmp_path / "data" / name / f"{each}.png")
            with torch.no_grad():
                logits = net(transform(image)[None])[0]
            right += list(chosen.values())[int(logits[[1, 999]].argmax())] == number
    rows = killick.evaluate(
        f"torchvision:{TORCHVISION}",
        f"imagefolder:{tmp_path / 'data'}",
        suites=("clean",),
        pretrained=True,
        quiet=True,
    )
    (top1,) = [row["value"] for row in rows if row["metric"] == "top1"]
    assert top1 == pytest.approx(right / 6)


def test_data_with_other_classes_than_the_network_are_told(cache, image_folder, tmp_path):
    fill_torchvision(cache)
    with pytest.raises(killick.errors.DataError, match="'class0'.*tench"):
        killick.evaluate(
            f"torchvision:{TORCHVISION}", f"imagefolder:{image_folder}", pretrained=True, quiet=True
        )
    net = killick.nets.create("timm:test_resnet", num_classes=6)
    torch.save(net.state_dict(), tmp_path / "six.pth")
    with pytest.raises(killick.errors.OutputError, match="4 classes, but the model has 6 logits"):
        killick.evaluate(
            "timm:test_resnet",
            f"imagefolder:{image_folder}",
            checkpoint=tmp_path / "six.pth",
            quiet=True,
        )


def test_a_network_anchored_in_python_keeps_its_preprocessing(cache, tmp_path):
    _, transform = fill_torchvision(cache)
    net = load_pretrained(f"torchvision:{TORCHVISION}")
    known = preprocessing_of(net)
    example = torch.rand(2, 3, known.size, known.size)
    model = killick.anchor(net, normalize=(known.mean, known.std), example=example)
    assert_same_pixels(model, transform)
    killick.save(model, tmp_path / "saved")
    assert_same_pixels(killick.load(tmp_path / "saved"), transform)
    smaller = killick.anchor(net, normalize=(known.mean, known.std), example=example[..., :64, :64])
    assert view_for(smaller).described == "64 px"  # trained otherwise, nobody knows how


def test_the_example_runs(cache, monkeypatch, capsys):
    fill_hf_hub(cache)
    script = Path(__file__).parent.parent / "examples" / "pretrained.py"
    monkeypatch.setattr(sys, "argv", [str(script), "hf-hub:me/net"])
    runpy.run_path(str(script), run_name="__main__")
    assert float(capsys.readouterr().out.rpartition(" ")[2]) < 1e-4


def test_no_code_in_cached_weights_of_torchvision_is_run(cache, tmp_path):
    mark = tmp_path / "ran"

    class Hostile:
        def __reduce__(self):
            return Path.touch, (mark,)

    path = put_url(cache, URL, nn.Linear(1, 1))
    torch.save({"weight": Hostile()}, path)
    with pytest.raises(StorageError, match="damaged"):
        load_pretrained(f"torchvision:{TORCHVISION}")
    assert not mark.exists()


def test_a_network_made_for_its_size_is_loaded_in_it(cache):
    torch.manual_seed(0)
    net = timm.create_model("test_vit", num_classes=4, img_size=96).eval()
    view = {"input_size": [3, 96, 96], "fixed_input_size": True, "classifier": "head"}
    folder = put_on_hub(cache, "me/sized")
    put_weights(folder, net)
    put_json(folder, "config.json", architecture="test_vit", num_classes=4, pretrained_cfg=view)
    found = load_pretrained("hf-hub:me/sized")
    images = torch.randn(2, 3, 96, 96)
    assert torch.equal(found(images), net(images))
    assert preprocessing_of(found).size == 96
    made = killick.nets.remembered(found)
    assert killick.nets.create(made.name, **made.arguments).pos_embed.shape == net.pos_embed.shape


def test_settings_that_shape_a_network_of_transformers_are_kept(tmp_path):
    from killick.nets.hf_networks import create_hf, load_hf

    torch.manual_seed(0)
    shape = {"image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [1, 1]}
    config = transformers.Swinv2Config(
        **shape, num_heads=[2, 2], window_size=8, pretrained_window_sizes=[4, 4], num_labels=3
    )
    net = transformers.Swinv2ForImageClassification(config).eval()
    net.save_pretrained(tmp_path)
    found, kind, arguments = load_hf(tmp_path)
    again = create_hf(kind, **arguments).eval()
    again.load_state_dict(net.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(found.eval()(images).logits, net(images).logits)
    assert torch.equal(again(images).logits, net(images).logits)


PROCESSORS = {
    "EfficientNet": {
        "do_center_crop": False,
        "include_top": True,
        "resample": 0,
        "rescale_factor": 1 / 255,
        "image_mean": [0.4] * 3,
        "image_std": [0.5] * 3,
        "rescale_offset": False,
        "size": {"height": 64, "width": 64},
    },
    "Levit": {
        "do_center_crop": True,
        "crop_size": {"height": 64, "width": 64},
        "resample": 3,
        "image_mean": [0.4] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": 64},
    },
    "MobileViT": {
        "do_center_crop": True,
        "crop_size": {"height": 64, "width": 64},
        "do_flip_channel_order": True,
        "size": {"shortest_edge": 72},
        "resample": 2,
    },
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_image_processors_are_followed_or_refused(tmp_path, kind):
    from killick.nets.hf_networks import read_processor

    put_json(
        tmp_path,
        "preprocessor_config.json",
        image_processor_type=f"{kind}ImageProcessor",
        **PROCESSORS[kind],
    )
    if kind == "MobileViT":  # shows blue first
        with pytest.raises(OptionError, match="does more than resize"):
            read_processor(tmp_path)
        return
    found = read_processor(tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(str(tmp_path))
    image = torch.randint(256, (3, 90, 120), generator=torch.Generator().manual_seed(0)).byte()
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    view = PlainView(**found.view())(image) / 255
    ours = torchvision.transforms.v2.functional.normalize(view, [*found.mean], [*found.std])
    assert torch.allclose(ours, expected, atol=1e-5)
