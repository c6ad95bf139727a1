"""Published folders: whole, the same each time, and a card that is true."""

import hashlib
import json
import re
import sys
import types
from dataclasses import asdict

import huggingface_hub
import pytest
import torch
import yaml
from conftest import small_cnn
from hub_stand_in import Client, all_bytes, anchored, make_problem, plain, rows_for
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image
from runs import small

import killick
from killick import publish
from killick.cli import main
from killick.core.image_model import Threshold
from killick.data.decoding import decode
from killick.data.preprocessing import view_for
from killick.data.sources import load_sets
from killick.deploy import publisher
from killick.deploy.export_sets import read_some
from killick.deploy.model_card import text
from killick.deploy.publisher import without_folders
from killick.errors import DataError, OptionError, StorageError
from killick.metrics import Metric, register_metric
from killick.metrics.metric_registry import METRICS
from killick.results.rows import read_rows
from killick.storage.loading import PLAIN_NAMES
from killick.storage.weights import digest_weights
from killick.training import train

MARKDOWN = MarkdownIt("commonmark").enable("table")
USUAL = {"README.md", "config.json", "model.safetensors", "examples.safetensors"}


def card_in(folder) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def body_of(card: str) -> str:
    return card.split("---\n", 2)[2]


def tables_in(markdown: str) -> list[list[list[str]]]:
    """The cells of every table, as a reader of Markdown finds them."""
    found: list[list[list[str]]] = []
    for token in MARKDOWN.parse(markdown):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level == 4:
            found[-1][-1].append("".join(child.content for child in token.children or []))
    return found


@pytest.fixture(scope="module")
def evaluated(image_folder, tmp_path_factory):
    """A small run of an anchored model, with rows of every kind."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(small(image_folder, data__validation=4, epochs=1), folder, quiet=True)
    words = ["--corruptions", "fog,contrast", "--synthetic", "noise", "--quiet"]
    assert main(["evaluate", str(folder), *words, "--store-threshold"]) == 0
    return folder


# ----------------------------------------------------------------------------- the folder


def test_a_published_model_comes_back_with_all_that_belongs_to_it(tmp_path):
    model = anchored()
    model.class_names, model.provenance = tuple("abcd"), {"epochs": 3}
    model.threshold = Threshold(-2.5, 0.95, 1, "some images (9)")
    publish(model, tmp_path / "out", rows=rows_for(model))
    assert all_bytes(tmp_path / "out").keys() == USUAL | {"rows.csv"}
    again, x = killick.load(tmp_path / "out"), torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(again(x), model(x))
    assert torch.equal(again.references, model.references)
    assert (again.class_names, again.provenance) == (tuple("abcd"), {"epochs": 3})
    assert (again.threshold, again.reference_policy) == (model.threshold, "random, seed 0")
    assert digest_weights(again) == digest_weights(model)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for key, name in PLAIN_NAMES.items():
        data = (tmp_path / "out" / name).read_bytes()
        assert config[key] == name
        assert config["sha256"][name] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", PLAIN_NAMES.values())
def test_a_damaged_or_missing_file_is_refused(tmp_path, name):
    folder = publish(plain(), tmp_path / "out").folder
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(StorageError, match=f"{name} is damaged"):
        killick.load(folder)
    (folder / name).unlink()
    with pytest.raises(StorageError, match=f"{name}: No such file"):
        killick.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": None},
        {"sha256": {"model.safetensors": 3, "examples.safetensors": None}},
        {"weights": "../model.safetensors"},
        {"weights": "examples.safetensors"},
        {"weights": "other.bin"},
    ],
)
def test_names_without_digests_and_other_names_are_refused(tmp_path, change):
    folder = publish(plain(), tmp_path / "out").folder
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(StorageError, match="'weights'"):
        killick.load(folder)


def test_the_same_model_and_rows_give_the_same_bytes(evaluated, tmp_path):
    publish(evaluated, tmp_path / "a", license="mit")
    publish(str(evaluated / "model"), tmp_path / "b" / "c", license="MIT")
    publish(killick.load(evaluated), tmp_path / "d", rows=read_rows(evaluated), license="mit")
    first = all_bytes(tmp_path / "a")
    assert first == all_bytes(tmp_path / "b" / "c") == all_bytes(tmp_path / "d")


def test_publishing_leaves_the_model_as_it_was(tmp_path):
    model = anchored().train()
    model.provenance = {"recipe": {"data": {"name": "imagefolder:/home/me/pets"}}}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    publish(model, tmp_path / "out")
    assert model.training
    assert model.provenance == {"recipe": {"data": {"name": "imagefolder:/home/me/pets"}}}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_was_published_before_is_replaced_whole(tmp_path):
    model, other = anchored(), plain()
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    publish(model, tmp_path / "link", rows=rows_for(model))
    publish(other, tmp_path / "link")
    assert all_bytes(tmp_path / "there").keys() == USUAL
    assert (tmp_path / "link").is_symlink()
    assert digest_weights(killick.load(tmp_path / "link")) == digest_weights(other)
    assert {path.name for path in tmp_path.iterdir()} == {"there", "link"}


@pytest.mark.parametrize("kind", ["other file", "other config", "other card", "saved", "file"])
def test_a_folder_of_something_else_is_refused_and_stays(tmp_path, kind):
    folder = tmp_path / "out"
    if kind == "other file":
        publish(plain(), folder)
        (folder / "notes.txt").write_text("mine")
    elif kind == "other config":
        folder.mkdir()
        (folder / "config.json").write_text('{"format": "killick-model"}')
    elif kind == "other card":
        publish(plain(), folder)
        (folder / "README.md").write_text("my own words")
    elif kind == "saved":
        killick.save(plain(), folder)
    else:
        folder.write_text("mine")
    before = folder.read_bytes() if kind == "file" else all_bytes(folder)
    with pytest.raises(StorageError, match="cannot write"):
        publish(plain(), folder)
    assert before == (folder.read_bytes() if kind == "file" else all_bytes(folder))


@pytest.mark.parametrize("step", ["write_files", "write_rows", "rename"])
def test_when_writing_fails_the_old_folder_stays(tmp_path, monkeypatch, step):
    publish(plain(), tmp_path / "out")
    before = all_bytes(tmp_path / "out")

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    if step == "rename":
        rename, calls = publisher.os.rename, []

        def second_fails(*paths):
            calls.append(paths)
            fail() if len(calls) == 2 else rename(*paths)

        monkeypatch.setattr(publisher.os, "rename", second_fails)
    else:
        monkeypatch.setattr(publisher, step, fail)
    other = plain()
    with pytest.raises(StorageError, match="No space left on device"):
        publish(other, tmp_path / "out", rows=rows_for(other))
    assert all_bytes(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_does_not_load_again_is_not_put_in_place(tmp_path, monkeypatch):
    def refuse(folder):
        raise StorageError("its logits differ")

    monkeypatch.setattr(publisher, "load", refuse)
    with pytest.raises(StorageError, match="its logits differ"):
        publish(anchored(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_is_not_made_by_name_is_loaded_with_net(tmp_path):
    model = killick.standard(small_cnn(), ((0.5,) * 3, (0.5,) * 3), image_shape=(3, 8, 8)).eval()
    card = card_in(publish(model, tmp_path / "out", repo="me/mine").folder)
    assert 'killick.load("me/mine", net=net)' in card
    assert "killick predict" not in card
    x = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(killick.load(tmp_path / "out", net=small_cnn())(x), model(x))


def test_publishing_again_mends_a_folder_that_a_model_was_saved_into(tmp_path):
    folder = publish(anchored(), tmp_path / "out").folder
    model = killick.load(folder)
    model.threshold = Threshold(-1.0, 0.9, 1, "some")
    killick.save(model, folder)
    assert killick.load(folder).threshold == model.threshold
    publish(folder, folder)
    assert all_bytes(folder).keys() == USUAL
    assert "energy -1.0000" in card_in(folder)


# ----------------------------------------------------------------------------- rows and card


def test_the_table_holds_the_numbers_of_the_rows(evaluated, tmp_path):
    card = card_in(publish(evaluated, tmp_path / "out").folder)
    rows = [json.loads(line) for line in (evaluated / "rows.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["scaling"] == "" and row["reference"] == ""]
    facts, results = tables_in(body_of(card))

    def value(row):
        metric = METRICS.find(row["metric"])
        spread = "" if row["std"] == "" else f" ± {metric.format(row['std'])}"
        return f"{metric.format(row['value'])} {metric.unit}".rstrip() + spread

    assert results[0] == ["images", "metric", "count", "value"]
    for images, title, count, shown in results[1:]:
        assert any(
            (str(row["count"]), value(row)) == (count, shown)
            and title.startswith(METRICS.find(row["metric"]).title)
            for row in rows
        ), (images, title)
    assert len(results) > 12
    assert sum("all severities" in line[0] for line in results) >= 2
    clean = next(row for row in rows if row["suite"] == "clean" and row["metric"] == "top1")
    line = next(line for line in results if line[0].endswith(", clean") and "1 ref" in line[1])
    assert line[2:] == [str(clean["count"]), value(clean)]
    assert any(line[0].endswith("ood: noise") and "by energy" in line[1] for line in results)
    assert dict(facts)["network"] == "killick:resnet_small, num_classes=4"


def test_a_registered_metric_is_on_the_card(tmp_path):
    model = plain()
    rows = rows_for(model, k="")
    rows.append({**rows[0], "metric": "mine", "value": 0.25})
    rows.append({**rows[0], "metric": "unknown here", "value": 0.25})
    register_metric(Metric("mine", "my metric", "for a test", +1, "%"))
    try:
        card = card_in(publish(model, tmp_path / "out", rows=rows).folder)
    finally:
        METRICS.remove("mine")
    assert tables_in(body_of(card))[1][1:] == [
        ["shapes, clean", METRICS.find("top1").title, "50", "50.0 % ± 2.0"],
        ["shapes, clean", METRICS.find("smooth_ece").title, "50", "0.125 ± 0.020"],
        ["shapes, clean", "my metric", "50", "25.0 % ± 2.0"],
    ]


def test_the_hubs_own_client_reads_the_front_matter(evaluated, tmp_path):
    folder = publish(evaluated, tmp_path / "out", license="apache-2.0", repo="me/mine").folder
    found = huggingface_hub.ModelCard.load(folder / "README.md").data
    assert (found.license, found.library_name) == ("apache-2.0", "killick")
    assert (found.pipeline_tag, found.model_name) == ("image-classification", "mine")
    assert {"anchoring", "robustness", "image-classification"} <= set(found.tags)
    rows = [row for row in read_rows(evaluated) if not row["scaling"] and row["reference"] == ""]
    values = {(row["metric"], round(row["value"], 6)) for row in rows}
    for result in found.eval_results:
        metric = {"accuracy": "top1"}.get(result.metric_type, result.metric_type)
        assert (metric, result.metric_value) in values
    assert {"top1", "smooth_ece", "auroc"} <= {metric for metric, _ in values}
    clean = [r for r in found.eval_results if r.dataset_name.endswith(", clean")]
    assert {r.metric_type for r in clean} >= {"accuracy", "smooth_ece"}


def test_results_of_a_part_of_a_set_are_another_entry(tmp_path):
    model = anchored()
    rows = rows_for(model) + rows_for(model, limit=40, count=40)
    folder = publish(model, tmp_path / "out", rows=rows).folder
    found = huggingface_hub.ModelCard.load(folder / "README.md").data.eval_results
    assert len({(r.dataset_config, r.dataset_name, r.metric_name) for r in found}) == len(rows)


def test_without_rows_the_card_says_not_evaluated(tmp_path):
    card = card_in(publish(anchored(), tmp_path / "out").folder)
    assert "**Not evaluated.**" in card
    assert len(tables_in(body_of(card))) == 1
    assert "model-index" not in card


def test_rows_of_other_weights_are_left_out(tmp_path):
    model = anchored()
    ours, theirs = rows_for(model), rows_for(model, weights="000000000000", set="other")
    made = publish(model, tmp_path / "a", rows=ours + theirs)
    assert (made.rows, made.left_out) == (2, 2)
    assert "2 rows of other weights" in card_in(made.folder)
    assert {row["set"] for row in read_rows(made.folder)} == {"shapes"}
    made = publish(model, tmp_path / "b", rows=theirs)
    assert "**Not evaluated.**" in card_in(made.folder)
    assert not (made.folder / "rows.csv").exists()


def test_rows_come_from_the_run_or_its_model_folder_or_training_or_as_given(evaluated, tmp_path):
    count = len(read_rows(evaluated))
    assert publish(evaluated, tmp_path / "a").rows == count
    assert publish(evaluated / "model", tmp_path / "b").rows == count
    assert publish(tmp_path / "b", tmp_path / "c").rows == count  # from rows.csv there
    assert publish(killick.load(evaluated), tmp_path / "d").rows == 2  # what training left in it
    assert publish(killick.load(evaluated), tmp_path / "e", rows=evaluated).rows == count
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "c")
    with pytest.raises(DataError, match="no rows.jsonl or rows.csv"):
        publish(evaluated, tmp_path / "g", rows=tmp_path / "nowhere")


def test_provenance_may_hold_anything(tmp_path):
    model = plain()
    for number, provenance in enumerate(
        [
            {"rows": "many", "recipe": "mine", "facts": [1]},
            {"rows": [{"unknown": 1}], "recipe": {"data": "x"}},
            {"rows": [3], "masking": {"target": "label"}},
        ]
    ):
        model.provenance = provenance
        card = card_in(publish(model, tmp_path / str(number)).folder)
        assert "**Not evaluated.**" in card
    assert "target: label" in card


def test_scaled_logits_and_single_references_are_not_mixed_in(tmp_path):
    model = plain()
    rows = rows_for(model) + rows_for(model, data="digits", set="digits")
    rows += [{**row, "value": 0.9, "scaling": "temperature"} for row in rows]
    rows += [{**row, "value": 0.9, "reference": 1} for row in rows]
    card = card_in(publish(model, tmp_path / "out", rows=rows).folder)
    assert len(tables_in(body_of(card))[1]) == 1 + 4
    assert "90.0" not in card


# ----------------------------------------------------------------------------- privacy


def test_the_card_says_whether_training_images_are_stored(tmp_path):
    def privacy(model):
        card = card_in(publish(model, tmp_path / "out").folder)
        return card.split("## References and privacy\n\n")[1].split("\n\n## ")[0]

    model = anchored()
    assert "usually training images" in privacy(model)
    images = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    model.set_residuals(killick.residual_bank(model, images, size=20))
    assert "residual" in privacy(model)
    model.residuals = torch.empty(0)
    model.set_references(images[:1], policy="mean of two photos")
    assert "usually training images" in privacy(model)
    model.reference_kind = "mean"
    assert "None of them travels along" in privacy(model)
    assert "no training image is stored" in privacy(plain())


def test_paths_of_the_machine_are_in_none_of_the_files(evaluated, image_folder, tmp_path):
    assert str(image_folder) in (evaluated / "model" / "config.json").read_text()
    folder = publish(evaluated, tmp_path / "out").folder
    for name, data in all_bytes(folder).items():
        assert str(image_folder.parent).encode() not in data, name
    assert f"imagefolder:{image_folder.name}" in card_in(folder)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("imagefolder:/home/me/pets", "imagefolder:pets"),
        ("pack:/data/a b/c.npz#test", "pack:c.npz#test"),
        ("imagefolder:/home/my name/pets, validation (4)", "imagefolder:pets, validation (4)"),
        ("~/runs/mine", "mine"),
        (r"C:\Users\me\net.pth", "net.pth"),
        ("15 corruptions, relative to /runs/base", "15 corruptions, relative to base"),
        ("hf:someone/pets", "hf:someone/pets"),
        ("runs/mine", "runs/mine"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("a / b", "a / b"),
    ],
)
def test_folders_are_taken_off_absolute_paths(before, after):
    assert without_folders({"a": [before, 3, None, (before,)]}) == {"a": [after, 3, None, [after]]}


# ----------------------------------------------------------------------------- Markdown and YAML

HOSTILE = [
    *("a|b", 'say "hi"', "two\nlines", "`code`", "*star*", "<b>bold</b>", "---", "# no title"),
    *("[link](x)", "back\\slash", "a\\|b", "&amp;", "~~gone~~", "{{ jinja }}", "é – ü", ": x"),
]


def test_hostile_names_stay_words(tmp_path):
    model = plain(len(HOSTILE))
    model.class_names = tuple(HOSTILE)
    model.provenance = {"facts": {"network": "x`|y", "data": "a|b\n---\nc: d", "seed": 0}}
    rows = rows_for(model, model="a|b\n# c", data="a|b\n---\nc: d", k="")
    rows += [
        {**row, "suite": "shift", "set": "x|y*z*", "inference": "marginal", "k": "<b>|2</b>"}
        for row in rows
    ]
    folder = publish(model, tmp_path / "out", rows=rows).folder
    card = card_in(folder)
    tables = tables_in(body_of(card))
    assert all(len(line) == len(each[0]) for each in tables for line in each)
    names = [" ".join(name.split()) for name in HOSTILE]
    assert dict(tables[0])["classes"] == f"{len(HOSTILE)}: {', '.join(names)}"
    assert tables[1][3][0] == "a|b --- c: d, shift: x|y*z*"
    titles = [t for t in MARKDOWN.parse(body_of(card)) if t.type == "heading_open"]
    assert [t.tag for t in titles].count("h1") == 1
    assert "<b>" not in MARKDOWN.render(body_of(card).split("## Training")[0])
    found = huggingface_hub.ModelCard(card).data
    assert found.model_name == "a|b # c"
    assert found.eval_results[0].dataset_name == "a|b --- c: d, clean"
    assert killick.load(folder).class_names == tuple(HOSTILE)


def test_a_recipe_stays_one_block_of_code(tmp_path):
    model = plain()
    model.provenance = {"notes": "```\n\n# no title\n</details>", "é": ["a\r\nb\u2028c"]}
    card = card_in(publish(model, tmp_path / "out").folder)
    tokens = MARKDOWN.parse(card.split("## Training")[1])
    (block,) = [token for token in tokens if token.type == "code_block"]
    assert yaml.safe_load(block.content) == model.provenance


@pytest.mark.parametrize("damage", [{"count": "many"}, {"std": "x"}, {"metric": []}])
def test_damaged_rows_are_an_error_of_one_line(tmp_path, capsys, damage):
    model = plain()
    killick.save(model, tmp_path / "model")
    rows = [json.dumps({**row, **damage}) for row in rows_for(model)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    words = ["publish", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    assert main([*words, "--rows", str(tmp_path / "rows.jsonl"), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def rendered_words(markdown: str) -> str:
    """What a reader sees of one paragraph."""
    (inline,) = [token for token in MARKDOWN.parse(f"x {markdown} x") if token.type == "inline"]
    assert all(c.type in ("text", "text_special", "code_inline") for c in inline.children)
    return "".join(child.content for child in inline.children)


@given(st.text())
def test_any_text_is_shown_as_it_is(words):
    seen = re.sub(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+", " ", words).strip()
    assert rendered_words(text(words)).split() == f"x {seen} x".split()


@pytest.mark.parametrize("data", ["hf:someone/pets", "hf:/home/me/saved", "cifar10", "shapes"])
def test_data_are_named_only_where_the_hub_has_them(tmp_path, data):
    model = plain()
    model.provenance = {"recipe": {"data": {"name": data}}}
    found = huggingface_hub.ModelCard(card_in(publish(model, tmp_path / "out").folder)).data
    listed = {"hf:someone/pets": ["someone/pets"], "cifar10": ["uoft-cs/cifar10"]}
    assert found.datasets == listed.get(data)
    assert found.license is None


@pytest.mark.parametrize("license", ["Apache 2.0", "mit\n", "a: b"])
def test_a_license_that_is_no_identifier_is_refused(tmp_path, license):
    with pytest.raises(OptionError, match="license"):
        publish(plain(), tmp_path / "out", license=license)


@pytest.mark.parametrize("repo", ["mine", "a/b/c", "a/b@v1", "/a/b", "a/..", "a b/c", ""])
def test_a_name_that_is_none_on_the_hub_is_refused(tmp_path, repo):
    with pytest.raises(OptionError, match="owner/name"):
        publish(plain(), tmp_path / "out", repo=repo)


def test_models_of_vectors_and_of_floats_have_no_image_task(tmp_path):
    vectors = killick.anchor(torch.nn.Linear(4, 3)).set_references(torch.randn(2, 4)).eval()
    card = card_in(publish(vectors, tmp_path / "a", rows=rows_for(vectors)).folder)
    assert "pipeline_tag" not in card
    assert "model-index" not in card
    net = killick.nets.create("killick:resnet_small", num_classes=3)
    floats = killick.standard(net, image_shape=(3, 8, 8)).eval()
    card = card_in(publish(floats, tmp_path / "b", repo="me/mine").folder)
    assert "killick predict" not in card
    block = card.split("```python\n")[1].split("```")[0]
    exec(block.replace("me/mine", str(tmp_path / "b")), {})


def test_the_code_on_the_card_runs(tmp_path, monkeypatch, evaluated, image_folder, capsys):
    folder = publish(evaluated, tmp_path / "there", repo="me/mine").folder
    Client(monkeypatch, tmp_path, folder)
    with Image.open(next(image_folder.rglob("*.png"))) as opened:
        opened.save("image.jpg", quality=100)
    block = card_in(folder).split("```python\n")[1].split("```")[0]
    exec(block, {})
    model = killick.load(evaluated)
    x = view_for(model)(decode("image.jpg", "it"))[None]
    probs = killick.predict(model, x).probs
    label = model.class_names[int(probs.argmax())]
    shown, confidence, _ = capsys.readouterr().out.split()
    assert shown == label
    assert float(confidence) == pytest.approx(float(probs.max()), abs=1e-6)


# ----------------------------------------------------------------------------- the command


def test_the_command_writes_what_the_function_writes(evaluated, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["publish", str(evaluated), "--output", str(out), "--licence", "mit"]) == 0
    told = capsys.readouterr().out
    assert str(out) in told
    assert "usually training images" in told
    publish(evaluated, tmp_path / "same", license="mit", rows=evaluated / "rows.csv")
    assert all_bytes(out) == all_bytes(tmp_path / "same")
    words = ["--rows", str(evaluated / "rows.csv"), "--quiet"]
    assert main(["publish", str(evaluated), "--output", str(out), *words]) == 0
    assert capsys.readouterr().out == ""


def test_the_command_sends_what_it_wrote(evaluated, tmp_path, monkeypatch, capsys):
    client = Client(monkeypatch, tmp_path)
    words = ["publish", str(evaluated), "--output", "out", "--push", "me/mine"]
    assert main([*words, "--private"]) == 0
    assert client.made == [("me/mine", "model", True, True)]
    ((repo, kind, folder, options),) = client.sent
    assert (repo, kind, folder) == ("me/mine", "model", str(tmp_path / "out"))
    assert set(options["allow_patterns"]) == set(all_bytes(tmp_path / "out"))
    assert "https://hub/me/mine" in capsys.readouterr().out


def test_what_the_hub_does_not_take_is_reported_and_the_folder_stays(
    evaluated, tmp_path, monkeypatch, capsys
):
    problem = make_problem("HfHubHTTPError")
    problem.response = types.SimpleNamespace(status_code=403)
    Client(monkeypatch, tmp_path, problem=problem)
    assert main(["publish", str(evaluated), "--output", "out", "--push", "me/mine"]) == 2
    assert "cannot push to me/mine" in capsys.readouterr().err
    killick.load(tmp_path / "out")


@pytest.mark.parametrize("words", [[], ["--push", "me/mine"]])
def test_without_the_client_nothing_is_written(evaluated, tmp_path, monkeypatch, capsys, words):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    out = tmp_path / "out"
    assert main(["publish", str(evaluated), "--output", str(out), *words]) == 2
    assert "pip install -e '.[hub]'" in capsys.readouterr().err
    assert not out.exists()


@pytest.fixture(scope="module")
def on_shapes(tmp_path_factory):
    """A model that says it was trained on shapes, with rows."""
    recipe = small("nowhere", data__name="shapes", data__limit=120, data__size=8)
    model = anchored()
    model.threshold = Threshold(-2.0, 0.95, 1, "some")
    facts = {"reference_policy": "random, seed 0", "seed": 0}
    model.provenance = {"recipe": asdict(recipe), "facts": facts, "rows": rows_for(model)}
    return killick.save(model, tmp_path_factory.mktemp("shapes") / "mine")


@pytest.mark.parametrize(("kind", "count"), [("mean", 1), ("synthetic", 3)])
def test_mean_and_synthetic_references_replace_images(
    on_shapes, tmp_path, capsys, monkeypatch, kind, count
):
    monkeypatch.setattr("killick.deploy.private_references.TEST_IMAGES", 200)
    out = tmp_path / "out"
    assert main(["publish", str(on_shapes), "--output", str(out), "--reference-kind", kind]) == 0
    before, after = killick.load(on_shapes), killick.load(out)
    assert len(after.references) == count
    assert after.reference_kind == kind
    assert after.provenance["facts"]["reference_policy"] == after.reference_policy
    assert after.threshold is None
    for reference in after.references:
        assert not any(torch.equal(reference, old) for old in before.references)
    card = card_in(out)
    assert "**Not evaluated.**" in card
    assert "usually training images" not in card
    # The cost, by hand. The model has another number of classes: there is no accuracy.
    x, _ = read_some(before, load_sets("shapes").test, 200)
    old, new = (killick.predict(model, x).logits.argmax(1) for model in (before, after))
    cost = f"{float((old == new).double().mean()):.1%} of 200 images of shapes, test"
    for words in (capsys.readouterr().out, card):
        assert cost in words


def test_references_are_made_from_data_that_are_named(on_shapes, tmp_path, image_folder, capsys):
    words = ["publish", str(on_shapes), "--output", str(tmp_path / "out")]
    words += ["--reference-kind", "mean"]
    assert main([*words, "--data", f"imagefolder:{image_folder}"]) == 2
    assert "at least 100 different training images" in capsys.readouterr().err
    assert main([*words, "--data", "digits", "--quiet"]) == 0
    assert "mean of 1,4" in killick.load(tmp_path / "out").reference_policy


@pytest.mark.parametrize("kind", ["standard", "floats"])
def test_models_whose_references_cannot_be_made_are_refused(tmp_path, capsys, kind):
    model = plain()
    if kind == "floats":
        model = killick.anchor(killick.nets.create("killick:resnet_small", num_classes=4)).eval()
    killick.save(model, tmp_path / "model")
    words = ["--output", str(tmp_path / "out"), "--reference-kind", "mean"]
    assert main(["publish", str(tmp_path / "model"), *words]) == 2
    assert "references" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--private"], "--push"),
        (["--data", "shapes"], "--reference-kind"),
        (["--reference-kind", "meen"], "mean"),
        (["--push", "mine"], "'mine'"),
        (["--license", "my own"], "'my own'"),
    ],
)
def test_mistakes_are_errors_of_one_line(evaluated, tmp_path, capsys, words, found):
    out = tmp_path / "out"
    assert main(["publish", str(evaluated), "--output", str(out), *words]) == 2
    told = capsys.readouterr().err
    assert found in told
    assert told.count("\n") <= 2
    assert not out.exists()
