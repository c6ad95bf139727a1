"""The page to play with: what it shows of a model, what it refuses, and the folder of a Space."""

import base64
import hashlib
import io
import json
import socket
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from image_files import encode, noise
from labeled_images import NAMES, SIDE, make_anchored, make_standard
from PIL import Image

import killick
from killick.cli import main
from killick.data.image_set import ImageSet
from killick.errors import DataError, OptionError, StorageError
from killick.evaluation.open_classifier import open_classifier
from killick.play import panels, playground
from killick.play.own_wheel import find_requirements, write_wheel
from killick.play.panels import gauge_place, render_figures, render_results
from killick.play.playground import ChosenImage, Playground, choose_images, find_models
from killick.play.space_folder import GRADIO, write_space


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pixels = torch.randint(256, (40, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(3))
    return ImageSet.of("noise", pixels.to(torch.uint8), torch.arange(40) % 5, NAMES)


@pytest.fixture(scope="module")
def anchored(images) -> killick.Anchored:
    model = make_anchored(7)
    killick.fit_threshold(model, images.source, acceptance=0.5)
    return model


@pytest.fixture
def ground(anchored, images) -> Playground:
    opened = open_classifier(anchored, name="mine"), open_classifier(make_standard(), name="plain")
    return Playground(opened, choose_images(images))


@pytest.mark.parametrize("severity", [0, 3])
def test_results_are_those_of_the_model_on_the_corrupted_image(ground, anchored, images, severity):
    inside = set()
    for number in range(6):
        chosen = ground.test_image(number)
        x = chosen.views[0][None]
        if severity:
            x = killick.corrupt(x, "fog", severity, generator=torch.Generator().manual_seed(0))
        members = torch.stack(
            [anchored(x, anchored.references[i : i + 1]).double()[0] for i in range(5)]
        ).detach()
        probs = members.softmax(1)
        mine, plain = ground.show(chosen, "fog", severity)
        label = int(probs[0].argmax())
        assert torch.equal(mine.image, x[0])
        assert mine.record.label == NAMES[label]
        assert mine.record.confidence == pytest.approx(float(probs[0, label]), abs=1e-5)
        energy = -float(members[0].logsumexp(0))
        assert mine.record.energy == pytest.approx(energy, abs=1e-4)
        assert mine.record.in_distribution == (energy <= anchored.threshold.energy)
        assert mine.record.std == pytest.approx(float(probs[:, label].std()), abs=1e-5)
        assert (mine.references, plain.references, plain.record.std) == (5, 0, None)
        shares = [each.probability for each in mine.record.top]
        assert shares == pytest.approx(sorted(probs[0].tolist(), reverse=True), abs=1e-5)
        assert mine.true_label == chosen.label in NAMES
        inside.add(mine.record.in_distribution)
    assert severity or inside == {True, False}


def test_the_test_images_to_pick_from_are_some_of_all_and_keep_their_class(images):
    some = choose_images(images)
    assert len(some) == 24
    assert torch.equal(some.labels, some.rows % 5)
    assert torch.equal(some.rows, choose_images(images).rows)
    assert len(set(some.rows.tolist())) == 24


def test_each_model_takes_the_image_at_its_own_size(anchored):
    other = killick.standard(
        killick.nets.create("killick:resnet_small", num_classes=3).eval(),
        ((0.5,) * 3, (0.2,) * 3),
        image_shape=(3, 20, 20),
    ).eval()
    ground = Playground((open_classifier(anchored, name="a"), open_classifier(other, name="b")))
    chosen = ChosenImage(tuple(torch.full((3, n, n), 90, dtype=torch.uint8) for n in (12, 20)))
    assert [result.image.shape[-1] for result in ground.show(chosen, "fog", 2)] == [12, 20]
    assert "plasma_noise" not in ground.corruptions()  # made for 224 px alone
    assert {"fog", "jpeg_compression", "ripple"} <= set(ground.corruptions())


@pytest.mark.parametrize("contents", [b"", b"no image", encode(Image.fromarray(noise()))[:90]])
def test_a_file_that_is_no_image_is_refused_by_its_name_alone(ground, tmp_path, contents):
    file = tmp_path / "secret" / "note.png"
    file.parent.mkdir()
    file.write_bytes(contents)
    with pytest.raises(DataError, match=r"cannot read note\.png") as caught:
        ground.open_file(file)
    assert "secret" not in str(caught.value)


def test_a_file_with_too_many_pixels_is_refused(ground, tmp_path, monkeypatch):
    file = tmp_path / "large.png"
    file.write_bytes(encode(Image.fromarray(noise(20, 30))))
    assert [view.shape for view in ground.open_file(file).views] == [(3, SIDE, SIDE)] * 2
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    with pytest.raises(DataError, match="pixels exceed"):
        ground.open_file(file)


def test_a_drag_takes_little_time_on_the_processor(ground):
    chosen = ground.test_image(0)
    render_results(ground.show(chosen, "fog", 1))
    start = time.thread_time()
    render_results(ground.show(chosen, "fog", 2))
    assert time.thread_time() - start < 0.15


def test_a_comparison_stands_for_the_first_seed_of_each_arm(tmp_path):
    for name, arm, seed in [("a", "x", 1), ("b", "x", 0), ("c", "y", 10), ("d", "y", 9)]:
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "job.json").write_text(json.dumps({"arm": arm, "seed": seed}))
    (tmp_path / "e").mkdir()  # not trained yet
    (tmp_path / "e" / "job.json").write_text(json.dumps({"arm": "z", "seed": 0}))
    found = find_models([str(tmp_path), "runs/mine"])
    assert found == [(str(tmp_path / "b"), "x"), (str(tmp_path / "d"), "y"), ("runs/mine", None)]


# HTML ---------------------------------------------------------------------------------------------


def decoded(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))


def test_panels_hold_the_corrupted_image_and_escape_names(ground):
    ground.classifiers[0].class_names = ("<b>", *NAMES[1:])
    results = ground.show(ground.test_image(1), "gaussian_noise", 4)
    html = render_results(results)
    assert html.count("<article") == 2
    assert panels.png(results[0].image) in html
    shown = torch.tensor(list(decoded(panels.png(results[0].image)).get_flattened_data()))
    assert torch.equal(shown.view(SIDE, SIDE, 3).permute(2, 0, 1), results[0].image)
    assert "<b></th>" not in html
    assert "&lt;b&gt;" in html


def test_panels_say_what_the_threshold_was_fitted_on_or_how_to_store_one(ground, anchored):
    html = render_results(ground.show(ground.test_image(0), "fog", 0))  # the second has none
    assert html.count(anchored.threshold.describe()) == 1
    assert html.count("killick evaluate RUN --store-threshold") == 1


def test_the_gauge_has_the_threshold_in_its_middle(ground, anchored):
    for number in range(8):
        result = ground.show(ground.test_image(number), "fog", 0)[0]
        assert (gauge_place(result) <= 50) == result.record.in_distribution
        assert 0 <= gauge_place(result) <= 100


def test_a_transformer_shows_where_its_class_token_looks():
    torch.manual_seed(0)
    net = killick.nets.create(
        "timm:vit_tiny_patch16_224", num_classes=4, img_size=32, patch_size=8, depth=2
    )
    model = killick.standard(net, ((0.5,) * 3, (0.5,) * 3), image_shape=(3, 32, 32))
    seen = []
    net.blocks[-1].attn.fused_attn = False
    net.blocks[-1].attn.attn_drop.register_forward_pre_hook(lambda _, read: seen.append(read[0]))
    image = torch.randint(256, (3, 32, 32), dtype=torch.uint8)
    shown = playground.attention_map(open_classifier(model), image)
    patches = seen[-1][0, :, 0, 1:].mean(0).view(4, 4)  # of the class token, mean over heads
    assert shown.shape == (32, 32)
    assert (shown.min(), shown.max()) == (0, 1)
    row, column = divmod(int(patches.argmax()), 4)
    tall, wide = divmod(int(shown.argmax()), 32)
    assert (tall // 8, wide // 8) == (row, column)


def test_visitors_at_once_see_what_they_would_see_alone():
    torch.manual_seed(0)
    net = killick.nets.create(
        "timm:vit_tiny_patch16_224", num_classes=4, img_size=32, patch_size=8, depth=2
    )
    shape = (3, 32, 32)
    model = killick.standard(net, ((0.5,) * 3, (0.5,) * 3), image_shape=shape).eval()
    ground = Playground((open_classifier(model),))
    chosen = [ChosenImage((torch.randint(256, shape).byte(),)) for _ in range(30)]
    alone = [ground.show(each, "fog", 0)[0].attention for each in chosen]
    with ThreadPoolExecutor(4) as visitors:
        found = list(visitors.map(lambda each: ground.show(each, "fog", 0)[0].attention, chosen))
    for mine, theirs in zip(alone, found, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_an_attention_map_is_shown_beside_the_image(ground, monkeypatch):
    assert "attention" not in render_results(ground.show(ground.test_image(0), "fog", 0))
    monkeypatch.setattr(playground, "attention_map", lambda *_: torch.eye(SIDE))
    result = ground.show(ground.test_image(0), "fog", 0)[0]
    assert panels.heat(result.attention, result.image) in render_results([result])
    drawn = decoded(panels.heat(torch.eye(SIDE), torch.full((3, SIDE, SIDE), 200).byte()))
    assert drawn.getpixel((3, 3)) == (200,) * 3
    assert drawn.getpixel((3, 4)) == (30,) * 3


def test_figures_are_those_of_the_report(report_folder, report_page):
    html = render_figures([str(report_folder)])
    drawn = sorted((report_page.parent / "figures").glob("*.svg"))
    assert html.count("data:image/svg+xml") == len(drawn) > 5
    for path in drawn:
        assert base64.b64encode(path.read_bytes()).decode() in html


def test_runs_without_rows_have_no_figures_and_it_says_why(tmp_path):
    assert "svg" not in render_figures([str(tmp_path)])
    assert "found none" in render_figures([str(tmp_path)])


# Spaces -------------------------------------------------------------------------------------------


def test_the_wheel_holds_what_is_imported_with_true_digests(tmp_path):
    wheel = write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    source = Path(killick.__file__).parent
    assert contents["killick/play/panels.html"] == (source / "play/panels.html").read_bytes()
    assert not any(name.endswith(".pyc") for name in contents)
    assert len([name for name in contents if name.endswith("LICENSE")]) == 1
    record = next(name for name in contents if name.endswith("RECORD"))
    lines = [line.split(",") for line in contents[record].decode().splitlines()]
    assert {name for name, _, _ in lines} == contents.keys()
    for name, digest, size in lines:
        if name != record:
            expected = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest())
            assert digest == f"sha256={expected.decode().rstrip('=')}"
            assert int(size) == len(contents[name])
    assert str(tmp_path).encode() not in b"".join(contents.values())
    before = wheel.read_bytes()
    assert write_wheel(tmp_path).read_bytes() == before


def test_a_space_is_whole_the_same_each_time_and_replaces_only_itself(anchored, tmp_path):
    made = write_space(anchored, tmp_path / "space", "mine", rows=[], license="MIT")
    names = {path.name for path in made.folder.iterdir()}
    wheel = next(name for name in names if name.endswith(".whl"))
    assert names == {"README.md", "app.py", "requirements.txt", "models", wheel}
    card = (made.folder / "README.md").read_text()
    assert card.startswith("---\ntitle: mine\nsdk: gradio\n")
    front = yaml.safe_load(card.split("---")[1])
    assert (front["sdk_version"], front["app_file"]) == (GRADIO, "app.py")
    assert front["python_version"] == "3.12"  # text: as a number, 3.10 would be 3.1
    required = (made.folder / "requirements.txt").read_text().split()
    assert {"torch>=2.8", "gradio>=6.31"} <= set(required)
    assert not any(line.startswith(("killick", "mlflow", "transformers")) for line in required)
    assert any(line.startswith("transformers") for line in find_requirements("transformers"))
    again = write_space(anchored, tmp_path / "again", "mine", rows=[], license="MIT").folder
    for path in filter(Path.is_file, made.folder.rglob("*")):
        assert path.read_bytes() == (again / path.relative_to(made.folder)).read_bytes()
    write_space(anchored, again, "mine", rows=[])
    (again / "mine.txt").touch()
    with pytest.raises(StorageError, match=r"mine\.txt"):
        write_space(anchored, again, "mine", rows=[])


def test_a_space_needs_a_network_that_can_be_made_there(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    model = killick.standard(net, ((0.5,) * 3, (0.2,) * 3), image_shape=(3, 4, 4)).eval()
    with pytest.raises(OptionError, match="your own code"):
        write_space(model, tmp_path / "space", "mine", rows=[])
    assert not (tmp_path / "space").exists()


# Command line -------------------------------------------------------------------------------------


def test_publish_writes_a_space_which_cannot_be_pushed_as_a_model(anchored, tmp_path, capsys):
    killick.save(anchored, tmp_path / "mine" / "model")
    words = ["publish", str(tmp_path / "mine"), "--output", str(tmp_path / "space"), "--space"]
    assert main([*words, "--push", "owner/name"]) == 2
    assert "--repo-type space" in capsys.readouterr().err
    assert main(words) == 0
    assert killick.load(tmp_path / "space" / "models" / "mine").threshold == anchored.threshold
    assert "app.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "port", "match"),
    [
        ("127.0.0.1", None, "in use"),
        ("127.0.0.1", 70000, "65535"),
        ("999.1.1.1", 0, "999.1.1.1"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_one_line(tmp_path, capsys, host, port, match):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1] if port is None else port
        words = ["play", str(tmp_path / "mine"), "--host", host, "--port", str(port)]
        assert main(words) == 2  # before models are opened: there is none
    (line,) = capsys.readouterr().err.splitlines()
    assert "--port" in line
    assert match in line


def test_without_gradio_play_says_how_to_install_it(anchored, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    killick.save(anchored, tmp_path / "mine")
    assert main(["play", str(tmp_path / "mine"), "--device", "cpu"]) == 2
    first, last = capsys.readouterr().err.strip().splitlines()
    assert "no test images" in first
    assert last.endswith("pip install -e '.[play]'.")
