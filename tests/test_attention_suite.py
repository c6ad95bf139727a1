"""The suite `attention`: its rows, its maps, and the section of the report."""

import csv
import io

import numpy as np
import pytest
import torch
from small_models import MEAN_STD, make_set, make_standard

import killick
from killick.attention import attention_maps, measure
from killick.cli.summaries import show_summary
from killick.errors import DataError, OptionError
from killick.report.head_values import read_heads
from killick.report.report_data import make_report_data
from killick.report.sections import SECTIONS
from killick.report.writer import write_report
from killick.results.attention_files import read_maps
from killick.results.rows import read_rows
from killick.results.run_folder import find_runs, read_run

TINY = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3}


def make_net() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return killick.nets.create("timm:vit_tiny_patch16_224", num_classes=4, **TINY)


def make_models() -> dict[str, torch.nn.Module]:
    plain = killick.standard(make_net(), MEAN_STD, image_shape=(3, 16, 16)).eval()
    generator = torch.Generator().manual_seed(0)
    mine = killick.anchor(make_net(), init="random", normalize=MEAN_STD, generator=generator)
    return {"plain": plain, "mine": mine.set_references(make_set(3, seed=3).images()).eval()}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A folder with the rows of two models, the models, and the rows by model."""
    folder, models = tmp_path_factory.mktemp("evaluations"), make_models()
    rows = {
        name: killick.evaluate(
            model, make_set(60), ("attention",), name=name, folder=folder / name, references=2
        )
        for name, model in models.items()
    }
    return folder, models, rows


@pytest.mark.parametrize("name", ["plain", "mine"])
def test_rows_are_what_is_measured_and_say_how(evaluated, name):
    _, models, rows = evaluated
    anchored = name == "mine"
    found = measure(models[name], make_set(60).images(), references=2 if anchored else None)
    mine = [row for row in rows[name] if row["suite"] == "attention"]
    assert len(mine) == 3 * (3 * 5 + 2) + 1
    for row in mine:
        assert (row["normalizer"], row["prefix"]) == ("max_pair", "renormalized")
        assert (row["count"], row["k"]) == (60, 2 if anchored else "")
        metric = row["metric"].removeprefix("attention_")
        if row["layer"] == "":
            assert metric == "change"
            assert row["value"] == pytest.approx(found.change, abs=1e-6)
            continue
        layer = found.layers[row["layer"]]
        assert (row["grid"], row["windows"]) == ("4x4", 1)
        if row["head"] == "":
            assert row["value"] == pytest.approx(getattr(layer, metric), rel=1e-4)
        else:
            assert row["value"] == pytest.approx(float(layer.values(metric)[row["head"]]), abs=1e-6)
            if anchored:
                spread = float(layer.spread(metric)[row["head"]])
                assert row["std"] == pytest.approx(spread, abs=1e-6)
                assert len(row["members"].split()) == 2


def test_the_terminal_gives_a_minimum_beside_mean_median_and_local_heads(evaluated, capsys):
    _, _, rows = evaluated
    values = [row["value"] for row in rows["mine"] if row["metric"] == "attention_distance"]
    show_summary(rows["mine"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "attention" in line]
    for value in (min(values), sum(values) / 9, sorted(values)[4]):
        assert f"{value:.3f}" in line
    masses = [row["value"] for row in rows["mine"] if row["metric"] == "attention_prefix_mass"]
    assert f"{100 * sum(masses) / 9:.0f} % to prefix tokens" in line


def test_rows_are_measured_once_and_read_again_from_disk(evaluated, monkeypatch):
    folder, models, rows = evaluated
    from killick.evaluation import attention_suite

    def never(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr(attention_suite, "_write_maps", never)
    options = {"name": "plain", "folder": folder / "plain", "references": 2}
    again = killick.evaluate(models["plain"], make_set(60), ("attention",), **options)
    assert again == rows["plain"]
    assert [row for row in read_rows(folder / "plain") if row["suite"] == "attention"] == [
        row for row in rows["plain"] if row["suite"] == "attention"
    ]
    with pytest.raises(AssertionError, match="again"):
        killick.evaluate(models["plain"], make_set(60), ("attention",), **options, again=True)


def test_the_batch_is_that_of_the_evaluation(monkeypatch):
    from killick.evaluation import attention_suite

    sizes = []

    def watch(model, images, **options):
        if isinstance(images, torch.Tensor):  # the trial
            return measure(model, images, **options)
        batches = list(images)
        sizes.extend(map(len, batches))
        return measure(model, batches, **options)

    monkeypatch.setattr(attention_suite, "measure", watch)
    killick.evaluate(make_models()["plain"], make_set(7), ("attention",), batch=3)
    assert sizes == [3, 3, 1]


def test_at_most_a_thousand_images_evenly_over_the_set():
    rows = killick.evaluate(make_models()["plain"], make_set(1300), ("attention",))
    counts = {row["suite"]: row["count"] for row in rows}
    assert counts == {"clean": 1300, "attention": 1000}


def test_networks_without_attention_are_refused_or_left_out():
    with pytest.raises(OptionError, match="Colours has no attention"):
        killick.evaluate(make_standard(), make_set(20), ("attention",))
    rows = killick.evaluate(make_standard(), make_set(20), ("clean", "attention"))
    assert {row["suite"] for row in rows} == {"clean"}


def test_maps_of_three_heads_are_kept(evaluated):
    folder, models, rows = evaluated
    (kept,) = read_maps(folder / "plain")
    images = make_set(60).images()[:4]
    assert len(kept.images) == 4
    for each in kept.maps:
        (true,) = attention_maps(models["plain"], images, [(each.layer, each.head)])
        assert np.allclose(each.weights, true.weights.numpy(), atol=1e-6)
        assert each.query == true.query == (2, 2)
    distances = {
        (row["layer"], row["head"]): row["value"]
        for row in rows["plain"]
        if row["metric"] == "attention_distance"
    }
    order = sorted(distances, key=distances.__getitem__)
    assert [(m.layer, m.head) for m in kept.maps] == [order[0], order[4], order[8]]


def test_damaged_maps_are_one_line(evaluated, tmp_path):
    place = tmp_path / "attention"
    place.mkdir()
    (place / "maps-0.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="Remove the file"):
        read_maps(tmp_path)


def test_the_report_has_figures_a_table_and_maps(evaluated, tmp_path):
    folder, _, rows = evaluated
    data = make_report_data(find_runs([folder]))
    content = SECTIONS.find("attention").make(data)
    by_layer, against = content.figures
    assert [len(figure.panels) for figure in (by_layer, against)] == [2, 1]
    assert len(by_layer.records) == 2 * 9
    (table,) = content.tables
    lines = {line["arm"]: line for line in csv.DictReader(io.StringIO(table.csv))}
    for name in ("plain", "mine"):
        heads = read_heads(read_run(folder / name))
        values = [r["value"] for r in rows[name] if r["metric"] == "attention_distance"]
        assert lines[name]["minimum distance"] == f"{min(values):.3f}"
        assert lines[name]["median"] == f"{sorted(values)[4]:.3f}"
        masses = [r["value"] for r in rows[name] if r["metric"] == "attention_prefix_mass"]
        assert lines[name]["prefix mass"] == f"{sum(masses) / 9:.3f}"
        spreads = [r["std"] for r in rows[name] if r["metric"] == "attention_distance"]
        spread = f"{sum(spreads) / 9:.3f}" if name == "mine" else "–"
        assert lines[name]["spread over references"] == spread
        assert lines[name]["normalizer"] == "max_pair"
        assert (heads.summary.heads, len(heads.early)) == (9, 3)
    assert content.html.count("<img") == 2 * 4 * 4
    page = write_report([], tmp_path, data=data).read_text(encoding="utf-8")
    assert '<section id="attention"' in page
    assert (tmp_path / "figures" / "attention-layers-1.svg").exists()
