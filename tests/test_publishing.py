"""Published folders and their cards: true, whole, the same each time; and models from the hub."""

import hashlib
import json
import logging
import re
import shutil
import statistics
import sys
import types
from dataclasses import asdict

import huggingface_hub
import pytest
import torch
import yaml
from conftest import small_cnn, stir
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image
from runs import small

import killick
import killick.cli
from killick import publish
from killick.cli import main
from killick.cli import publish as command
from killick.core.image_model import Threshold
from killick.data.decoding import decode
from killick.data.preprocessing import view_for
from killick.data.sources import load_sets
from killick.deploy import publisher as folders
from killick.deploy.card_metadata import make_front_matter
from killick.deploy.card_results import gather_evaluations
from killick.deploy.export_images import read_some
from killick.deploy.markdown import code, fenced, table, text
from killick.deploy.private_paths import without_folders
from killick.deploy.reference_replacement import describe_cost
from killick.errors import DataError, InstallError, OptionError, StorageError
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs
from killick.results.rows import make_row, members_of, read_rows
from killick.storage import hub
from killick.storage.model_files import PLAIN_NAMES
from killick.storage.model_folder import digest_weights
from killick.training import train

MARKDOWN = MarkdownIt("commonmark").enable("table")


def anchored(**arguments) -> killick.Anchored:
    net = killick.nets.create("killick:resnet_small", num_classes=4, **arguments)
    model = stir(killick.anchor(net, normalize=((0.5,) * 3, (0.25,) * 3)))
    references = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8)
    model.set_references(references, policy="random, seed 0")
    return model.eval()


def plain(**arguments) -> killick.Standard:
    net = stir(killick.nets.create("killick:resnet_small", num_classes=4, **arguments))
    return killick.standard(net, normalize=((0.5,) * 3, (0.25,) * 3), image_shape=(3, 8, 8)).eval()


def rows_for(described, **changes):
    """Clean accuracy and calibration of a model, as an evaluation would have it."""
    about = {
        "model": "mine",
        "data": "shapes",
        "suite": "clean",
        "set": "shapes",
        "view": "8 px",
        "evaluation_seed": 0,
        "inference": "single",
        "k": 1,
        "precision": "float32",
        "count": 50,
        "weights": digest_weights(described),
        "std": 0.02,
        "members": "0.5 0.54",
        **changes,
    }
    values = {"top1": 0.5, "smooth_ece": 0.125}
    return [make_row(**{**about, "metric": m, "value": v}) for m, v in values.items()]


def card_in(folder) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def front_of(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def tables_in(markdown: str) -> list[list[list[str]]]:
    """The cells of every table, as a reader of Markdown finds them."""
    found: list[list[list[str]]] = []
    for token in MARKDOWN.parse(markdown):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level == 4:
            words = [child.content for child in token.children or []]
            found[-1][-1].append("".join(words))
    return found


def body_of(card: str) -> str:
    return card.split("---\n", 2)[2]


def all_bytes(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def evaluated(pictures, tmp_path_factory):
    """A small run of an anchored model, with rows of every kind."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(small(pictures, data__validation=4, epochs=1), folder, quiet=True)
    words = ["--corruptions", "fog,contrast,frost", "--synthetic", "noise,blobs", "--quiet"]
    assert main(["evaluate", str(folder), *words, "--store-threshold"]) == 0
    return folder


# ----------------------------------------------------------------------------- the folder


def test_a_published_model_comes_back_with_all_that_belongs_to_it(tmp_path):
    model = anchored()
    model.class_names, model.provenance = tuple("abcd"), {"epochs": 3}
    model.threshold = Threshold(-2.5, 0.95, 1, "some images (9)")
    made = publish(model, tmp_path / "out")
    assert made.folder == tmp_path / "out"
    again, x = killick.load(made.folder), torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(again(x), model(x))
    assert torch.equal(again.references, model.references)
    assert (again.class_names, again.provenance) == (tuple("abcd"), {"epochs": 3})
    assert (again.threshold, again.reference_policy) == (model.threshold, "random, seed 0")
    assert digest_weights(again) == digest_weights(model)


def test_the_files_have_the_names_that_hubs_expect_and_their_digests_stand_in_the_config(tmp_path):
    model = plain()
    publish(model, tmp_path / "a", rows=rows_for(model, k=""))
    publish(model, tmp_path / "b")
    usual = {"README.md", "config.json", "model.safetensors", "examples.safetensors"}
    assert all_bytes(tmp_path / "a").keys() == usual | {"rows.csv"}
    assert all_bytes(tmp_path / "b").keys() == usual
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["weights"], config["examples"]) == (
        "model.safetensors",
        "examples.safetensors",
    )
    for name in ("model.safetensors", "examples.safetensors"):
        data = (tmp_path / "a" / name).read_bytes()
        assert config["sha256"][name] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", ["model.safetensors", "examples.safetensors"])
def test_a_damaged_file_under_a_plain_name_is_refused(tmp_path, name):
    folder = publish(anchored(), tmp_path / "out").folder
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(StorageError, match=f"{name} is damaged: it is not what config.json says"):
        killick.load(folder)
    (folder / name).unlink()
    with pytest.raises(StorageError, match=f"{name} is missing"):
        killick.load(folder)


@pytest.mark.parametrize(
    "digests", [None, {}, [], "x", {"model.safetensors": 3, "examples.safetensors": None}]
)
def test_plain_names_without_digests_are_refused(tmp_path, digests):
    folder = publish(anchored(), tmp_path / "out").folder
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sha256": digests}))
    with pytest.raises(StorageError, match="no usable 'weights' and 'examples'"):
        killick.load(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "examples.safetensors", "other.bin"])
def test_other_names_for_the_weights_are_refused(tmp_path, name):
    folder = publish(anchored(), tmp_path / "out").folder
    config = json.loads((folder / "config.json").read_text())
    digests = {**config["sha256"], name: "0" * 64}
    changed = {**config, "weights": name, "sha256": digests}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(StorageError, match="no usable 'weights'"):
        killick.load(folder)


def test_the_same_model_and_rows_give_the_same_bytes(evaluated, tmp_path):
    publish(evaluated, tmp_path / "a", licence="mit")
    publish(str(evaluated / "model"), tmp_path / "b" / "c", licence="MIT")
    model, rows = killick.load(evaluated), read_rows(evaluated)
    publish(model, tmp_path / "d", rows=rows, licence="mit")
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
    model = anchored()
    publish(model, tmp_path / "out", rows=rows_for(model))
    other = plain()
    publish(other, tmp_path / "out")
    assert "rows.csv" not in all_bytes(tmp_path / "out")
    assert digest_weights(killick.load(tmp_path / "out")) == digest_weights(other)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_and_one_that_is_linked_are_filled(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    publish(plain(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "README.md").is_file()


@pytest.mark.parametrize(
    "kind", ["other file", "other config", "other card", "saved", "card alone", "file"]
)
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
    elif kind == "card alone":
        folder.mkdir()
        (folder / "README.md").write_text("mine")
    else:
        folder.write_text("mine")
    before = folder.read_bytes() if kind == "file" else all_bytes(folder)
    with pytest.raises(StorageError, match="cannot write .*: expected"):
        publish(plain(), folder)
    assert before == (folder.read_bytes() if kind == "file" else all_bytes(folder))


@pytest.mark.parametrize("step", ["write_plain", "write_rows", "_check_again", "rename"])
def test_when_writing_fails_what_was_there_stays_and_nothing_is_left_beside(
    tmp_path, monkeypatch, step
):
    model = anchored()
    publish(model, tmp_path / "out")
    before = all_bytes(tmp_path / "out")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    if step == "rename":
        rename, calls = folders.os.rename, []

        def second_fails(*paths):
            calls.append(paths)
            if len(calls) == 2:
                fail()
            rename(*paths)

        monkeypatch.setattr(folders.os, "rename", second_fails)
    else:
        monkeypatch.setattr(folders, step, fail)
    other = plain()
    with pytest.raises(StorageError, match="No space left on device. What was there before"):
        publish(other, tmp_path / "out", rows=rows_for(other))
    assert all_bytes(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_does_not_load_again_is_not_put_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "load", lambda folder: plain(in_chans=3))
    with pytest.raises(StorageError, match="to be the same when loaded, found weights"):
        publish(anchored(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_is_not_made_by_name_is_published_with_a_word_about_it(tmp_path):
    model = killick.standard(small_cnn(), ((0.5,) * 3, (0.5,) * 3), image_shape=(3, 8, 8)).eval()
    card = card_in(publish(model, tmp_path / "out", repo="me/mine").folder)
    assert 'killick.load("me/mine", net=net)' in card
    assert "who loads the model has to bring it" in card
    assert "killick predict" not in card
    x = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(killick.load(tmp_path / "out", net=small_cnn())(x), model(x))


def test_saving_over_a_published_model_works_and_says_that_the_card_is_old(tmp_path, caplog):
    folder = publish(anchored(), tmp_path / "out").folder
    model = killick.load(folder)
    model.threshold = Threshold(-1.0, 0.9, 1, "some")
    killick.save(model, folder)
    assert "its README.md and rows are about the model before" in caplog.text
    assert killick.load(folder).threshold == model.threshold
    assert not (folder / "model.safetensors").exists()
    caplog.clear()
    killick.save(model, folder)
    assert "README.md" not in caplog.text
    publish(folder, folder)  # and then it is as it was before
    assert killick.load(folder).threshold == model.threshold
    assert all_bytes(folder).keys() == {"README.md", "config.json", *PLAIN_NAMES.values()}
    assert "up to an energy of -1.0000" in card_in(folder)


# ----------------------------------------------------------------------------- rows and card


def test_the_tables_hold_the_numbers_of_the_rows(evaluated, tmp_path):
    card = card_in(publish(evaluated, tmp_path / "out").folder)
    rows = [json.loads(line) for line in (evaluated / "rows.jsonl").read_text().splitlines()]
    facts, sets, detection, corruptions = tables_in(body_of(card))

    def find(**wanted):
        (row,) = [r for r in rows if all(r[key] == value for key, value in wanted.items())]
        return row

    def percent(row):
        return f"{row['value'] * 100:.1f}" + (
            f" ± {row['std'] * 100:.1f}" if row["std"] != "" else ""
        )

    one, several = ("one reference", "single"), ("mean over 2 references", "marginal")
    assert sets[0] == ["pictures", "asked from", "images", "accuracy %", "smooth ECE"]
    shown = {
        "clean": {"suite": "clean", "corruption": ""},
        "corrupted, mean of 3 chosen, all severities": {
            "corruption": "mean of 3 chosen",
            "severity": "all",
        },
        "corrupted, mean of 3 chosen, severity 5": {
            "corruption": "mean of 3 chosen",
            "severity": 5,
        },
    }
    expected = []
    for title, where in shown.items():
        for asked, inference in (one, several):
            wanted = {**where, "inference": inference, "scaling": "", "reference": ""}
            accuracy = find(metric="top1", **wanted)
            error = find(metric="smooth_ece", **wanted)
            spread = f" ± {error['std']:.3f}" if error["std"] != "" else ""
            calibration = f"{error['value']:.3f}{spread}"
            expected.append([title, asked, str(accuracy["count"]), percent(accuracy), calibration])
    assert sets[1:] == expected

    scores = ["energy", "max_softmax", "max_logit", "entropy", "residual_distance"]
    scores += ["spread", "mutual_information"]
    assert len(detection[0]) == 3 + len(scores)
    assert detection[0][3] == "energy"
    for line in detection[1:]:
        inference = dict((one, several))[line[1]]
        for score, cell in zip(scores, line[3:], strict=True):
            found = [
                row
                for row in rows
                if (row["set"], row["inference"], row["score"]) == (line[0], inference, score)
                and row["metric"] == "auroc"
            ]
            assert cell == (percent(found[0]) if found else "–"), (line, score)
    assert {line[0] for line in detection[1:]} == {"noise", "blobs"}

    assert corruptions[0] == [
        *("accuracy %", "severity 1", "severity 3", "severity 5", "mean of 5"),
    ]
    assert sorted(line[0] for line in corruptions[1:]) == ["contrast", "fog", "frost"]
    for name, *cells in corruptions[1:]:
        each = [
            find(corruption=name, severity=s, metric="top1", inference="single")
            for s in range(1, 6)
        ]
        assert cells[:3] == [percent(each[i]) for i in (0, 2, 4)]
        members = [[float(m) for m in row["members"].split()] for row in each]
        means = [sum(column) / 5 for column in zip(*members, strict=True)]
        value = sum(row["value"] for row in each) / 5
        assert cells[3] == f"{100 * value:.1f} ± {100 * statistics.stdev(means):.1f}"
    assert "frost: procedural ice" in card
    assert "with the constants of cifar" in card
    assert "standard deviation over 2 references" in card


def test_the_card_says_what_the_model_is_and_how_it_was_trained(evaluated, tmp_path):
    card = card_in(publish(evaluated, tmp_path / "out").folder)
    model = killick.load(evaluated)
    facts = dict(tables_in(body_of(card))[0])
    assert facts["network"] == "killick:resnet_small, num_classes=4"
    assert facts["parameters"] == f"{sum(p.numel() for p in model.parameters()):,}"
    assert facts["classes"] == "4: class0, class1, class2, class3"
    assert facts["input"].startswith("3 x 16 x 16, uint8 (normalized inside: mean ")
    assert facts["input"].endswith(f"pictures are seen at {view_for(model).described}")
    assert facts["training protocol"] == (
        "anchored, the reference masked in 50 % (alpha 0.5), by batch, towards target label"
    )
    assert "1 epoch, seed 0" in facts["training"]
    assert facts["references"] == "2 stored, random by class, clean, seed 0"
    assert facts["references in training"] == model.provenance["facts"]["references"]
    recipe = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert recipe["protocol"] == model.provenance["recipe"]["protocol"]
    assert f"up to an energy of {model.threshold.energy:.4f}: there 95 % of" in card
    assert "Not measured: accuracy under the corruptions of C-bar." in card


def test_the_hubs_own_client_reads_the_results_of_the_front_matter(evaluated, tmp_path):
    folder = publish(evaluated, tmp_path / "out", licence="apache-2.0", repo="me/mine").folder
    found = huggingface_hub.ModelCard.load(folder / "README.md").data
    assert (found.license, found.library_name) == ("apache-2.0", "killick")
    assert found.pipeline_tag == "image-classification"
    assert {"anchoring", "robustness", "image-classification"} <= set(found.tags)
    assert found.model_name == "mine"
    rows = [row for row in read_rows(evaluated) if not row["scaling"] and row["reference"] == ""]
    kinds = {"accuracy": "top1", "smooth_ece": "smooth_ece", "roc_auc": "auroc"}
    for result in found.eval_results:
        inference = "single" if "one reference" in result.metric_name else "marginal"
        alike = [
            round(row["value"], 6)
            for row in rows
            if (row["metric"], row["inference"]) == (kinds[result.metric_type], inference)
            and row["score"] in ("", "energy")
        ]
        assert result.metric_value in alike
    names = {result.dataset_name.split(", ", 1)[1] for result in found.eval_results}
    assert names == {
        *("clean", "corrupted, mean of 3 chosen, all severities"),
        *("corrupted, mean of 3 chosen, severity 5", "out of distribution, noise"),
        "out of distribution, blobs",
    }
    clean = [r for r in found.eval_results if ", clean" in r.dataset_name]
    assert [(r.metric_type, "±" in r.metric_name) for r in clean] == [
        *(("accuracy", True), ("smooth_ece", True), ("accuracy", False), ("smooth_ece", False)),
    ]


def test_without_rows_the_card_says_not_evaluated_and_has_no_empty_table(tmp_path):
    card = card_in(publish(anchored(), tmp_path / "out").folder)
    assert "**Not evaluated.** No results came with the model." in card
    assert len(tables_in(body_of(card))) == 1
    assert "model-index" not in front_of(card)
    assert "Not measured" not in card


def test_rows_of_other_weights_are_left_out_and_that_is_said(tmp_path, caplog):
    model = anchored()
    ours, theirs = rows_for(model), rows_for(model, weights="000000000000", set="other")
    made = publish(model, tmp_path / "a", rows=ours + theirs)
    assert (made.rows, made.left_out) == (2, 2)
    assert "2 of 4 rows are of other weights or other references" in caplog.text
    assert "not evaluated" not in caplog.text
    assert "2 other rows were left out" in card_in(made.folder)
    assert {row["set"] for row in read_rows(made.folder)} == {"shapes"}

    made = publish(model, tmp_path / "b", rows=theirs)
    card = card_in(made.folder)
    assert "**Not evaluated.** 2 rows were found, but of other weights or other references" in card
    assert "It says: not evaluated." in caplog.text
    assert not (made.folder / "rows.csv").exists()


def test_rows_come_from_the_run_or_its_model_folder_or_training_or_as_told(evaluated, tmp_path):
    count = len(read_rows(evaluated))
    assert publish(evaluated, tmp_path / "a").rows == count
    assert publish(evaluated / "model", tmp_path / "b").rows == count
    assert publish(tmp_path / "b", tmp_path / "c").rows == count  # from rows.csv there
    assert publish(killick.load(evaluated), tmp_path / "d").rows == 2  # what training left in it
    assert publish(killick.load(evaluated), tmp_path / "e", rows=evaluated).rows == count
    rows = evaluated / "rows.csv"
    assert publish(killick.load(evaluated), tmp_path / "f", rows=str(rows)).rows == count
    first, second = (all_bytes(tmp_path / name) for name in "ac")
    assert first == second
    with pytest.raises(DataError, match="expected rows.jsonl or rows.csv with rows in .*nowhere"):
        publish(evaluated, tmp_path / "g", rows=tmp_path / "nowhere")


@pytest.mark.parametrize("changes", [{"count": "many"}, {"limit": "x"}, {"std": "x"}])
def test_rows_that_were_edited_by_hand_are_refused_in_a_line(tmp_path, changes):
    model = anchored()
    with pytest.raises(
        DataError, match="expected rows as killick evaluate writes them, found some"
    ):
        publish(model, tmp_path / "out", rows=rows_for(model, **changes))
    assert list(tmp_path.iterdir()) == []


def test_provenance_of_any_kind_is_no_obstacle(tmp_path):
    model = anchored()
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


def test_evaluations_with_other_settings_stand_in_tables_of_their_own(tmp_path):
    model = anchored()
    rows = rows_for(model) + rows_for(model, limit=20, count=20, evaluation_seed=3)
    rows += rows_for(model, data="digits", set="digits")
    card = card_in(publish(model, tmp_path / "out", rows=rows).folder)
    assert len(tables_in(body_of(card))) == 4
    assert "### `shapes`, at most 20 pictures of each set, evaluation seed 3, float32" in card
    assert "### `digits`, evaluation seed 0, float32" in card
    names = [r["dataset"]["name"] for r in front_of(card)["model-index"][0]["results"]]
    assert names == ["shapes, clean", "shapes, clean, at most 20 pictures", "digits, clean"]


def test_a_standard_model_has_no_references_to_tell_of(tmp_path):
    model = plain()
    rows = rows_for(model, k="", std="", members="")
    card = card_in(publish(model, tmp_path / "out", rows=rows).folder)
    assert "A standard model has no references: no training image travels with it." in card
    assert "anchor" not in card
    facts, sets = tables_in(body_of(card))
    assert sets == [
        ["pictures", "images", "accuracy %", "smooth ECE"],
        ["clean", "50", "50.0", "0.125"],
    ]
    assert "±" not in body_of(card)
    assert "references" not in dict(facts)


def test_corruptions_from_files_and_made_here_are_kept_apart():
    rows = []
    for source, shift in (("generated", 0.0), ("files", 0.1)):
        for severity in (2, 5):
            rows.append(
                make_row(
                    suite="corruptions",
                    source=source,
                    table="cifar",
                    count=9,
                    corruption="fog",
                    severity=severity,
                    metric="top1",
                    inference="single",
                    value=0.5 + shift,
                    evaluation_seed=0,
                )
            )
        mean = {**rows[-1], "corruption": "mean of 2 chosen"}
        rows.append(mean)
    (evaluation,) = gather_evaluations(rows)
    made, read = evaluation.corruptions
    assert (made.source, read.source) == ("generated", "files")
    assert (made.accuracy["fog"][5].value, read.accuracy["fog"][5].value) == (0.5, 0.6)
    assert made.severities == (2, 5)
    assert "mean" not in made.accuracy["fog"]
    assert [line.shown for line in evaluation.sets] == [
        "corrupted, mean of 2 chosen, severity 5 (generated, cifar)",
        "corrupted, mean of 2 chosen, severity 5 (files, cifar)",
    ]


def test_a_source_that_is_markup_stays_a_word_where_the_card_is_html(tmp_path):
    model = plain()
    (row, _) = rows_for(model, k="", suite="corruptions", corruption="fog", severity=5)
    row = {**row, "source": "<b>a_b</b>", "table": "x|y"}
    card = card_in(publish(model, tmp_path / "out", rows=[row]).folder)
    assert "common corruptions (&lt;b&gt;a_b&lt;/b&gt;, constants of x|y)</summary>" in card
    assert "<b>" not in card


def test_numbers_of_scaled_logits_and_of_single_references_are_not_mixed_in():
    model_rows = rows_for(plain())
    noise = [{**row, "value": 0.9, "scaling": "temperature"} for row in model_rows]
    noise += [{**row, "value": 0.9, "reference": 1} for row in model_rows]
    (evaluation,) = gather_evaluations(noise + model_rows + noise)
    (line,) = evaluation.sets
    assert {key: number.value for key, number in line.numbers.items()} == {
        "top1": 0.5,
        "smooth_ece": 0.125,
    }


def test_the_mean_corruption_error_names_its_baseline(tmp_path):
    model = plain()
    rows = rows_for(model, k="")
    rows.append({**rows[0], "metric": "mce", "estimator": "relative to a|b", "value": 0.876})
    card = card_in(publish(model, tmp_path / "out", rows=rows).folder)
    assert "Mean corruption error: 87.6 ± 2.0 % (relative to a\\|b)." in card


# ----------------------------------------------------------------------------- what travels


def test_the_card_tells_what_travels_by_the_policy_of_the_references(tmp_path):
    def told(model):
        card = card_in(publish(model, tmp_path / "out").folder)
        return card.split("## References and privacy\n\n")[1].split("\n\n## ")[0]

    model = anchored()
    words = told(model)
    assert "3 reference images are stored in `model.safetensors`, usually training images" in words
    assert "--references mean` or `--references synthetic" in words
    images = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    model.set_residuals(killick.residual_bank(model, images, size=20))
    assert "20 residuals, which are differences of training images, are" in told(model)
    model.residuals = torch.empty(0)
    model.set_references(images[:1], policy="chosen")
    assert "One reference image is stored" in told(model)
    model.set_references(images[:1], policy="mean of two photos")
    assert "One reference image is stored" in told(model)
    model.reference_kind = "mean"
    assert told(model) == (
        "The reference is a mean of many training images. None of them travels along."
    )
    model.reference_kind = "synthetic"
    assert told(model).startswith("References are synthetic, made of statistics of many training")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("images", "References are usually training images."),
        ("mean", "The reference is a mean of many training images."),
        ("synthetic", "References are synthetic, made of"),
    ],
)
def test_save_says_the_same_in_its_config_and_its_log(tmp_path, caplog, kind, told):
    model = anchored()
    model.reference_kind = kind
    with caplog.at_level(logging.INFO, "killick"):
        killick.save(model, tmp_path)
    note = json.loads((tmp_path / "config.json").read_text())["references"]["note"]
    assert note.startswith(told)
    assert f"3 reference images are stored in {tmp_path}. {note}" in caplog.text
    assert "residual" not in note
    images = torch.randint(256, (9, 3, 8, 8), dtype=torch.uint8)
    model.set_residuals(killick.residual_bank(model, images, size=20))
    killick.save(model, tmp_path)
    note = json.loads((tmp_path / "config.json").read_text())["references"]["note"]
    assert "The residual bank holds differences of training images" in note


def test_without_references_save_says_so(tmp_path, caplog):
    model = killick.anchor(small_cnn(), example=torch.rand(2, 3, 8, 8))
    with caplog.at_level(logging.INFO, "killick"):
        killick.save(model, tmp_path)
    assert "reference images" not in caplog.text
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["references"]["note"] == "No references are stored."


def test_paths_of_the_machine_are_in_none_of_the_files(evaluated, pictures, tmp_path):
    assert str(pictures) in (evaluated / "model" / "config.json").read_text()
    folder = publish(evaluated, tmp_path / "out").folder
    for name, data in all_bytes(folder).items():
        assert str(pictures.parent).encode() not in data, name
    assert f"imagefolder:{pictures.name}" in card_in(folder)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("imagefolder:/home/me/pets", "imagefolder:pets"),
        ("pack:/data/a b/c.npz#test", "pack:c.npz#test"),
        (
            "imagefolder:/home/my name/pets, validation (4, 1a)",
            "imagefolder:pets, validation (4, 1a)",
        ),
        ("~/runs/mine", "mine"),
        (r"C:\Users\me\net.pth", "net.pth"),
        ("pack:C:/data/c.npz", "pack:c.npz"),
        ("15 corruptions, relative to /runs/base", "15 corruptions, relative to base"),
        ("shapes", "shapes"),
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
    net = killick.nets.create("killick:resnet_small", num_classes=len(HOSTILE))
    model = killick.standard(net, ((0.5,) * 3, (0.5,) * 3), image_shape=(3, 8, 8)).eval()
    model.class_names = tuple(HOSTILE)
    model.provenance = {"facts": {"network": "x`|y", "data": "a|b\n---\nc: d", "seed": 0}}
    rows = rows_for(model, model="a|b\n# c", data="a|b\n---\nc: d", k="")
    rows += [{**row, "suite": "shift", "set": "x|y*z*"} for row in rows]
    folder = publish(model, tmp_path / "out", rows=rows).folder
    card = card_in(folder)
    tables = tables_in(body_of(card))
    assert all(len(line) == len(each[0]) for each in tables for line in each)
    plain_names = [" ".join(name.split()) for name in HOSTILE]
    assert dict(tables[0])["classes"] == f"{len(HOSTILE)}: {', '.join(plain_names)}"
    assert tables[1][2][0] == "x|y*z*, shifted"
    titles = [t for t in MARKDOWN.parse(body_of(card)) if t.type == "heading_open"]
    assert [t.tag for t in titles].count("h1") == 1
    assert "<b>" not in MARKDOWN.render(body_of(card).split("## Training")[0])
    found = huggingface_hub.ModelCard(card).data
    assert found.model_name == "a|b # c"
    assert found.eval_results[0].dataset_name == "a|b --- c: d, clean"
    assert killick.load(folder).class_names == tuple(HOSTILE)


def test_many_classes_are_counted_and_the_first_are_named(tmp_path):
    net = killick.nets.create("killick:resnet_small", num_classes=30)
    model = killick.standard(net, ((0.5,) * 3, (0.5,) * 3), image_shape=(3, 8, 8)).eval()
    assert "| 30, without names " in card_in(publish(model, tmp_path / "a").folder)
    model.class_names = tuple(f"kind {number}" for number in range(30))
    card = card_in(publish(model, tmp_path / "b").folder)
    assert "| 30: kind 0, kind 1," in card
    assert "kind 19 and 10 more (config.json)" in card
    assert "kind 20" not in card


def rendered_words(markdown: str) -> str:
    """What a reader sees of one paragraph."""
    (inline,) = [token for token in MARKDOWN.parse(f"x {markdown} x") if token.type == "inline"]
    assert all(c.type in ("text", "text_special", "code_inline") for c in inline.children)
    return "".join(child.content for child in inline.children)


@given(st.text())
def test_any_text_is_shown_as_it_is(words):
    seen = re.sub(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+", " ", words).strip()
    assert rendered_words(text(words)).split() == f"x {seen} x".split()


@given(st.text(alphabet=st.sampled_from("ab`|\\ *\n"), min_size=1))
def test_any_code_is_shown_as_it_is(words):
    if words.strip():
        assert rendered_words(code(words)).split() == f"x {' '.join(words.split())} x".split()


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_a_table_has_the_cells_it_was_given(lines):
    made = table(["a", "b"], [[text(cell) for cell in line] for line in lines])
    (found,) = tables_in(made)
    assert [len(line) for line in found] == [2] * (len(lines) + 1)
    assert len({len(line) for line in made.splitlines()}) == 1
    for line, cells in zip(lines, found[1:], strict=True):
        for words, cell in zip(line, cells, strict=True):
            seen = re.sub(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+", " ", words)
            assert cell.split() == seen.split()


@given(st.text(alphabet=st.sampled_from("ab`~\n ")))
def test_a_block_of_code_ends_where_it_ends(words):
    tokens = MARKDOWN.parse(f"{fenced(words)}\n\nafter")
    assert [token.type for token in tokens] == [
        *("fence", "paragraph_open", "inline", "paragraph_close"),
    ]
    assert tokens[0].content.split() == words.split()


@pytest.mark.parametrize(
    ("data", "listed"),
    [
        ("hf:someone/pets", ["someone/pets"]),
        ("hf:/home/me/saved", None),
        ("cifar10", ["uoft-cs/cifar10"]),
        ("imagefolder:pets", None),
        (None, None),
    ],
)
def test_data_are_named_only_where_the_hub_has_them(data, listed):
    front = make_front_matter(
        name="x",
        licence=None,
        tags=["a"],
        trained_on=data,
        classifies_images=True,
        evaluations=[],
    )
    found = yaml.safe_load(front)
    assert found.get("datasets") == listed
    assert "license" not in found


@pytest.mark.parametrize("licence", ["", "Apache 2.0", "mit\n", "a: b"])
def test_a_licence_that_is_no_identifier_is_refused(tmp_path, licence):
    with pytest.raises(OptionError, match="expected a licence by its identifier, such as apache"):
        publish(plain(), tmp_path / "out", licence=licence)


@pytest.mark.parametrize("repo", ["mine", "a/b/c", "a/b@v1", "/a/b", "a/..", "a b/c", ""])
def test_a_place_on_the_hub_that_is_none_is_refused(tmp_path, repo):
    with pytest.raises(OptionError, match="expected a place on the hub such as owner/name"):
        publish(plain(), tmp_path / "out", repo=repo)


def test_models_of_vectors_and_of_floats_are_told_as_such(tmp_path):
    vectors = killick.anchor(torch.nn.Linear(4, 3)).set_references(torch.randn(2, 4)).eval()
    card = card_in(publish(vectors, tmp_path / "a", rows=rows_for(vectors)).folder)
    assert "pipeline_tag" not in front_of(card)
    assert "model-index" not in front_of(card)
    assert "| 4, floats in the network's own space" in card
    net = killick.nets.create("killick:resnet_small", num_classes=3)
    floats = killick.standard(net, image_shape=(3, 8, 8)).eval()
    card = card_in(publish(floats, tmp_path / "b", repo="me/mine").folder)
    assert "3 x 8 x 8, floats in the network's own space" in card
    assert "killick predict" not in card
    block = card.split("```python\n")[1].split("```")[0]
    exec(block.replace("me/mine", str(tmp_path / "b")), {})


# ----------------------------------------------------------------------------- the hub, stubbed


class Client:
    """A stand-in for `huggingface_hub`: one model, from a folder; all that was asked is kept."""

    def __init__(self, monkeypatch, tmp_path, folder=None, problem=None):
        self.asked, self.made, self.sent = [], [], []
        self.folder, self.problem, self.cache = folder, problem, tmp_path / "cache"
        module = types.ModuleType("huggingface_hub")
        module.snapshot_download, module.HfApi = self.snapshot_download, self.make_api
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        monkeypatch.chdir(tmp_path)

    def snapshot_download(self, repo, *, revision, allow_patterns, library_name):
        self.asked.append((repo, revision, tuple(allow_patterns)))
        if self.problem is not None:
            raise self.problem
        self.cache.mkdir(exist_ok=True)
        for name in allow_patterns:
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, self.cache)
        return str(self.cache)

    def make_api(self, library_name):
        return self

    def create_repo(self, repo, *, repo_type, private, exist_ok):
        self.made.append((repo, repo_type, private, exist_ok))
        if self.problem is not None:
            raise self.problem

    def upload_folder(self, *, repo_id, repo_type, folder_path, **options):
        self.sent.append((repo_id, repo_type, folder_path, options))
        return f"https://hub/{repo_id}"


@pytest.mark.parametrize("layout", ["published", "saved"])
def test_a_model_is_loaded_by_its_name_on_the_hub(tmp_path, monkeypatch, layout):
    model = anchored()
    folder = tmp_path / "there"
    killick.save(model, folder) if layout == "saved" else publish(model, folder)
    (folder / "evil.pkl").write_bytes(b"x")
    (folder / "big.safetensors").write_bytes(b"x")
    client = Client(monkeypatch, tmp_path, folder)
    again = killick.load("me/mine")
    assert digest_weights(again) == digest_weights(model)
    config = json.loads((folder / "config.json").read_text())
    files = ("config.json", config["weights"], config["examples"])
    assert client.asked == [("me/mine", None, ("config.json",)), ("me/mine", None, files)]
    assert {path.name for path in client.cache.iterdir()} == set(files)


def test_a_revision_is_named_after_an_at_or_as_an_argument(tmp_path, monkeypatch):
    folder = publish(plain(), tmp_path / "there").folder
    client = Client(monkeypatch, tmp_path, folder)
    killick.load("me/mine@refs/pr/1")
    killick.load("me/mine", revision="v1")
    killick.load("me/mine@v1", revision="v1")
    assert {asked[:2] for asked in client.asked} == {("me/mine", "refs/pr/1"), ("me/mine", "v1")}
    with pytest.raises(OptionError, match="one revision of me/mine, found 'v1' in its name and"):
        killick.load("me/mine@v1", revision="v2")
    with pytest.raises(OptionError, match="expected revision= with a model on the hub"):
        killick.load(folder, revision="v1")


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    client = Client(monkeypatch, tmp_path)
    killick.save(plain(), tmp_path / "me" / "mine")
    killick.load("me/mine")
    killick.save(plain(), tmp_path / "me" / "run" / "model")
    killick.load("me/run")
    assert client.asked == []


def test_a_slip_in_a_path_is_not_asked_of_the_hub_unless_a_revision_is_named(tmp_path, monkeypatch):
    client = Client(monkeypatch, tmp_path, publish(plain(), tmp_path / "there").folder)
    (tmp_path / "runs").mkdir()
    with pytest.raises(StorageError, match="found no such folder in runs. .* hub: runs/mine@main"):
        killick.load("runs/mine")
    assert client.asked == []
    killick.load("runs/mine@main")
    assert client.asked[0][:2] == ("runs/mine", "main")


@pytest.mark.parametrize("name", ["mine", "/a/b", "./a/b", "../a", "a/b/c", "a/", "a/b.", "~/x"])
def test_what_looks_like_no_name_on_the_hub_is_not_asked_for(tmp_path, monkeypatch, name):
    client = Client(monkeypatch, tmp_path)
    with pytest.raises(
        StorageError, match="expected a folder written by killick.save, found no such"
    ):
        killick.load(name)
    assert client.asked == []


def make_problem(*names: str) -> Exception:
    """An error of the client's, known by its name and those it is a kind of."""
    kind: type = Exception
    for name in reversed(names):
        kind = type(name, (kind,), {})
    return kind("a long\nstory.")


PROBLEMS = {
    ("RepositoryNotFoundError", "HfHubHTTPError"): "there is no such model, or it is private",
    ("GatedRepoError", "RepositoryNotFoundError"): "its owner has to let you in",
    ("RevisionNotFoundError", "HfHubHTTPError"): "there is no such revision of it",
    ("LocalEntryNotFoundError", "EntryNotFoundError"): "the hub could not be reached, and",
    ("OfflineModeIsEnabled",): "the client is offline",
    ("HFValidationError",): "the hub knows no such names",
    ("DisabledRepoError",): "it was disabled there",
    ("SomethingElse",): "a long story",
}


@pytest.mark.parametrize("names", PROBLEMS)
def test_what_the_hub_says_is_told_in_a_line(tmp_path, monkeypatch, names):
    Client(monkeypatch, tmp_path, problem=make_problem(*names))
    with pytest.raises(StorageError) as told:
        killick.load("me/mine")
    assert str(told.value) == (
        "cannot load me/mine: expected a folder written by killick.save, found no such folder. The"
        f" Hugging Face hub was asked too: {hub.explain(told.value.__cause__)}."
    )
    assert PROBLEMS[names] in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("status", "told"), [(401, "who you are"), (403, "you may not"), (500, "long")]
)
def test_answers_without_a_name_are_told_by_their_status(status, told):
    problem = make_problem("HfHubHTTPError")
    problem.response = types.SimpleNamespace(status_code=status)
    assert told in hub.explain(problem)


def test_offline_is_told_from_what_an_error_was_raised_from():
    problem = make_problem("LocalEntryNotFoundError")
    problem.__cause__ = make_problem("OfflineModeIsEnabled")
    assert "the client is offline" in hub.explain(problem)


def test_long_stories_are_cut():
    assert len(hub.explain(Exception("word " * 1000))) <= 200


def test_the_errors_are_those_of_the_real_client():
    for name, _ in hub._REASONS:
        assert issubclass(getattr(huggingface_hub.errors, name), Exception)


def test_the_real_client_without_a_connection_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        StorageError, match="the client is offline .HF_HUB_OFFLINE., and it was not"
    ):
        killick.load("me/mine")


def test_without_the_client_the_way_to_install_it_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InstallError, match=r"me/mine, which is no folder here.*'killick\[hub\]'"):
        killick.load("me/mine")


@pytest.mark.parametrize("config", [None, '{"model_type": "bert"}', "{"])
def test_of_other_kinds_of_models_only_the_config_is_fetched(tmp_path, monkeypatch, config):
    (tmp_path / "there").mkdir()
    if config is not None:
        (tmp_path / "there" / "config.json").write_text(config)
    client = Client(monkeypatch, tmp_path, tmp_path / "there")
    with pytest.raises(StorageError, match="no config.json in it|to say format|is damaged"):
        killick.load("me/mine")
    assert client.asked == [("me/mine", None, ("config.json",))]


def test_a_model_on_the_hub_is_evaluated_by_its_name(tmp_path, monkeypatch, evaluated, pictures):
    Client(monkeypatch, tmp_path, publish(evaluated, tmp_path / "there").folder)
    rows = killick.evaluate("me/mine", f"imagefolder:{pictures}", ("clean",), quiet=True)
    assert {row["model"] for row in rows} == {"mine"}
    assert {row["weights"] for row in rows} == {digest_weights(killick.load(evaluated))}


def test_a_model_on_the_hub_is_trained_on_by_its_name(
    tmp_path, monkeypatch, evaluated, pictures, capsys
):
    client = Client(monkeypatch, tmp_path, publish(evaluated, tmp_path / "there").folder)
    words = ["train", "--from", "me/mine@v1", "--epochs", "1", "--quiet", "--output", "tuned"]
    assert main([*words, "--batch", "4"]) == 2
    assert "it does not say what it was trained on: --data" in capsys.readouterr().err
    words += ["--data", f"imagefolder:{pictures}", "--data.validation", "0", "--batch", "4"]
    size = killick.load(evaluated).image_shape[-1]
    assert main([*words, "--data.size", str(size)]) == 0
    assert {(repo, revision) for repo, revision, _ in client.asked} == {("me/mine", "v1")}
    (row,) = [r for r in read_rows(tmp_path / "tuned") if r["metric"] == "top1"][:1]
    assert row["start"] == str(client.cache)
    arms = parse_arms(["mine:protocol=masked,target=label,from=me/mine@v1"])
    (cell,) = make_jobs("finetune", {}, arms, (0,), tmp_path / "grid", {})
    assert cell.phases[0].start == str(client.cache)


def test_the_code_on_the_card_runs(tmp_path, monkeypatch, evaluated, pictures, capsys):
    folder = publish(evaluated, tmp_path / "there", repo="me/mine").folder
    Client(monkeypatch, tmp_path, folder)
    picture = next(pictures.rglob("*.png"))
    with Image.open(picture) as opened:
        opened.save("picture.jpg", quality=100)
    block = card_in(folder).split("```python\n")[1].split("```")[0]
    found: dict = {}
    exec(block, found)
    model = killick.load(evaluated)
    x = view_for(model)(decode("picture.jpg", "it"))[None]
    probs = killick.predict(model, x).probs
    label = model.class_names[int(probs.argmax())]
    assert capsys.readouterr().out == f"{label} {float(probs.max())}\n"
    assert found["p"].std is not None


# ----------------------------------------------------------------------------- the command


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(killick.cli.COMMANDS, "publish", command)


def test_the_command_writes_the_folder_and_says_what_travels(evaluated, tmp_path, capsys, caplog):
    out = tmp_path / "out"
    assert main(["publish", str(evaluated), "--output", str(out), "--licence", "mit"]) == 0
    count = len(read_rows(evaluated))
    assert capsys.readouterr().out == (
        f"The model and its card are in {out}, with {count:,} rows.\n"
        "References are usually training images. They are stored in the weights file and travel"
        " along.\n"
    )
    assert front_of(card_in(out))["license"] == "mit"
    publish(evaluated, tmp_path / "same", licence="mit")
    assert all_bytes(out) == all_bytes(tmp_path / "same")
    assert main(["publish", str(evaluated), "--output", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert caplog.text == ""


def test_the_command_takes_rows_from_elsewhere(evaluated, tmp_path, capsys):
    words = ["publish", str(evaluated), "--output", str(tmp_path / "out")]
    assert main([*words, "--rows", str(evaluated / "rows.csv"), "--quiet"]) == 0
    assert "**Not evaluated.**" not in card_in(tmp_path / "out")
    assert main([*words, "--rows", str(tmp_path / "none")]) == 2
    assert "expected rows.jsonl or rows.csv with rows" in capsys.readouterr().err


def test_the_command_sends_what_it_wrote(evaluated, tmp_path, monkeypatch, capsys):
    client = Client(monkeypatch, tmp_path)
    words = ["publish", str(evaluated), "--output", "out", "--push", "me/mine"]
    assert main([*words, "--private"]) == 0
    assert client.made == [("me/mine", "model", True, True)]
    ((repo, kind, folder, options),) = client.sent
    assert (repo, kind, folder) == ("me/mine", "model", str(tmp_path / "out"))
    assert set(options["allow_patterns"]) == set(all_bytes(tmp_path / "out"))
    assert capsys.readouterr().out.endswith("Sent: https://hub/me/mine\n")
    assert 'killick.load("me/mine")' in card_in(tmp_path / "out")
    assert main(words) == 0
    assert client.made[1] == ("me/mine", "model", False, True)


def test_what_the_hub_does_not_take_is_told_and_the_folder_stays(
    evaluated, tmp_path, monkeypatch, capsys
):
    problem = make_problem("HfHubHTTPError")
    problem.response = types.SimpleNamespace(status_code=403)
    client = Client(monkeypatch, tmp_path, problem=problem)
    assert main(["publish", str(evaluated), "--output", "out", "--push", "me/mine"]) == 2
    told = capsys.readouterr().err
    assert "cannot push to me/mine: you may not. Log in as someone who may" in told
    assert f"The folder is written: {tmp_path / 'out'}." in told
    assert client.sent == []
    killick.load(tmp_path / "out")


def test_without_the_client_nothing_is_written_for_a_push(evaluated, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    out = tmp_path / "out"
    assert main(["publish", str(evaluated), "--output", str(out), "--push", "me/mine"]) == 2
    assert "pip install 'killick[hub]'" in capsys.readouterr().err
    assert not out.exists()


@pytest.fixture(scope="module")
def on_shapes(tmp_path_factory):
    """A model that says it was trained on shapes, with rows."""
    recipe = small("nowhere", data__name="shapes", data__limit=120, data__size=8)
    model = anchored()
    model.threshold = Threshold(-2.0, 0.95, 1, "some")
    model.provenance = {
        "recipe": asdict(recipe),
        "facts": {"reference_policy": "random, seed 0", "seed": 0},
        "rows": rows_for(model),
    }
    return killick.save(model, tmp_path_factory.mktemp("shapes") / "mine")


@pytest.mark.parametrize(
    ("kind", "count", "policy"),
    [("mean", 1, "mean of 120 training images"), ("synthetic", 3, "synthetic, 3 images with the")],
)
def test_references_that_show_nobody_are_put_in_place(
    on_shapes, tmp_path, capsys, caplog, kind, count, policy
):
    out = tmp_path / "out"
    assert main(["publish", str(on_shapes), "--output", str(out), "--references", kind]) == 0
    before, after = killick.load(on_shapes), killick.load(out)
    assert len(after.references) == count
    assert after.reference_policy.startswith(policy)
    assert after.provenance["facts"]["reference_policy"] == after.reference_policy
    assert after.threshold is None
    for reference in after.references:
        assert not any(torch.equal(reference, old) for old in before.references)
    card = card_in(out)
    assert "**Not evaluated.** 2 rows were found, but of other weights or other references" in card
    assert "usually training images" not in card
    assert "It says: not evaluated." in caplog.text
    told = capsys.readouterr().out
    assert "None of the" in told
    # What it costs, by hand. The model has another number of classes: there is no accuracy.
    x, _ = read_some(before, load_sets("shapes").test, 1000)
    old, new = (killick.predict(model, x).logits.argmax(1) for model in (before, after))
    same = f"{float((old == new).double().mean()):.1%}"
    cost = f"{same} of 1,000 pictures of shapes, test get the label that they got from the first"
    for words in (told, card):
        assert cost in words
        assert "accuracy is" not in words
    assert f"The card says: not evaluated. Evaluate it: killick evaluate {out}" in told
    if kind == "mean":
        from killick.training.recipe_files import make_recipe
        from killick.training.run_inputs import sets_of

        train_set = sets_of(make_recipe(before.provenance["recipe"])).train
        view = view_for(before)
        images = torch.stack([view(train_set.read(i)) for i in range(len(train_set))])
        expected = images.numpy().astype("float64").mean(0).round()
        assert (after.references[0].numpy() == expected).all()


def test_the_cost_of_references_is_told_with_accuracy_where_it_is_known():
    cost = {"set": "birds, test", "count": 2000, "same_label": 0.991}
    told = "99.1% of 2,000 pictures of birds, test get the label that they got from the first"
    assert describe_cost(cost) == f"{told} reference stored before."
    both = describe_cost({**cost, "accuracy": 0.93, "model_accuracy": 0.94})
    assert both.endswith("; accuracy is 93.0%, and was 94.0%.")


def test_references_are_made_from_data_that_are_named(on_shapes, tmp_path, pictures, capsys):
    words = ["publish", str(on_shapes), "--output", str(tmp_path / "out"), "--references", "mean"]
    assert main([*words, "--data", f"imagefolder:{pictures}"]) == 2
    assert "expected at least 100 different training images" in capsys.readouterr().err
    assert main([*words, "--data", "digits", "--quiet"]) == 0
    assert "mean of 1,4" in killick.load(tmp_path / "out").reference_policy
    model = killick.load(on_shapes)
    model.provenance = {}
    killick.save(model, tmp_path / "bare")
    words[1] = str(tmp_path / "bare")
    assert main(words) == 2
    assert "expected pictures to make mean references of" in capsys.readouterr().err


def test_large_sets_are_looked_at_in_part(on_shapes, tmp_path, monkeypatch):
    monkeypatch.setattr("killick.deploy.reference_replacement.MOST_PICTURES", 105)
    out = tmp_path / "out"
    words = ["--output", str(out), "--references", "mean", "--quiet"]
    assert main(["publish", str(on_shapes), *words]) == 0
    assert killick.load(out).reference_policy == "mean of 105 training images"


@pytest.mark.parametrize("kind", ["standard", "floats", "grey"])
def test_models_whose_references_cannot_be_made_here_are_refused(tmp_path, capsys, kind):
    model = plain()
    if kind == "floats":
        model = killick.anchor(killick.nets.create("killick:resnet_small", num_classes=4)).eval()
    elif kind == "grey":
        net = killick.nets.create("killick:resnet_small", num_classes=4, in_chans=1)
        model = killick.anchor(net, normalize=((0.5,), (0.5,))).eval()
    killick.save(model, tmp_path / "model")
    words = ["--output", str(tmp_path / "out"), "--references", "mean"]
    assert main(["publish", str(tmp_path / "model"), *words]) == 2
    told = capsys.readouterr().err
    assert ("found a standard one" in told) == (kind == "standard")
    assert ("In Python: killick.replace_references" in told) == (kind != "standard")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--private"], "expected --push OWNER/NAME with --private, found none"),
        (["--data", "shapes"], "expected --references mean or synthetic with --data"),
        (["--references", "meen"], "(did you mean mean?)"),
        (["--push", "mine"], "expected a place on the hub such as owner/name, found 'mine'"),
        (["--licence", "my own"], "expected a licence by its identifier"),
    ],
)
def test_mistakes_are_told_in_a_line(evaluated, tmp_path, capsys, words, told):
    out = tmp_path / "out"
    assert main(["publish", str(evaluated), "--output", str(out), *words]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()


def test_the_output_has_to_be_named(evaluated, capsys):
    assert main(["publish", str(evaluated)]) == 2
    assert "expected --output, found nothing" in capsys.readouterr().err


def test_a_stored_threshold_is_on_the_card_after_publishing_again(on_shapes, tmp_path):
    assert "No threshold is stored" in card_in(publish(plain(), tmp_path / "none").folder)
    model = killick.load(on_shapes)
    model.threshold = Threshold(-2.25, 0.9, 5, "imagefolder:/home/me/pets, validation (4)")
    folder = publish(model, tmp_path / "out").folder
    told = "up to an energy of -2.2500 asked from 5 references: there 90 % of imagefolder:pets, val"
    assert told in card_in(folder)
    assert killick.load(folder).threshold.fitted_on == "imagefolder:pets, validation (4)"


def test_members_are_counted_as_rows_have_them():
    (first, _) = rows_for(plain())
    assert members_of(first) == [0.5, 0.54]  # what the oracle above relies on
