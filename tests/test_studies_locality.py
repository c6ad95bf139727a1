"""The study of locality: its arms, factorial effects against least squares, and its findings."""

import itertools
import statistics

import numpy as np
import pytest
import torch

from killick.cli import main
from killick.errors import OptionError
from killick.studies import find_study
from killick.studies.locality import CELLS, CONTROLS, PROTOCOLS
from killick.studies.locality.factorial import FACTORS, effects
from killick.studies.locality.locality_tables import interpolate, lowest_common
from killick.studies.study import make_plan
from killick.studies.study_runner import plan_jobs, run_study

STUDY = find_study("locality")


def test_cells_are_the_full_factorial():
    subsets = [
        frozenset(chosen) for size in range(4) for chosen in itertools.combinations(FACTORS, size)
    ]
    assert sorted(map(sorted, CELLS.values())) == sorted(map(sorted, subsets))


def test_effects_are_those_of_least_squares():
    generator = np.random.default_rng(0)
    values = {cell: {seed: generator.normal() for seed in range(3)} for cell in CELLS.values()}
    found = effects(values, FACTORS)
    assert len(found) == 7
    chosen = [()] + list(found)
    for seed in range(3):
        signs = [[1 if factor in cell else -1 for factor in FACTORS] for cell in values]
        columns = [
            [np.prod([line[FACTORS.index(factor)] for factor in each]) for line in signs]
            for each in chosen
        ]
        solved, *_ = np.linalg.lstsq(
            np.array(columns, float).T, np.array([v[seed] for v in values.values()]), rcond=None
        )
        for each, coefficient in zip(chosen[1:], solved[1:], strict=True):
            assert found[each][seed] == pytest.approx(2 * coefficient)


def test_effects_of_an_incomplete_design_use_its_complete_parts():
    values = {
        CELLS["baseline"]: {0: 1.0, 1: 2.0},
        CELLS["cutmix"]: {0: 4.0},
        CELLS["policy-smoothing"]: {0: 10.0, 1: 20.0},
        CELLS["modern"]: {0: 15.0, 1: 21.0},
    }
    assert effects(values, FACTORS) == {("cutmix",): {0: 4.0, 1: 1.0}}


def test_interpolation_at_equal_loss():
    points = [(3.0, 0.3), (1.0, 0.1), (2.0, 0.5)]
    for place in (1.0, 1.25, 2.0, 2.75, 3.0):
        true = np.interp(place, [1, 2, 3], [0.1, 0.5, 0.3])
        assert interpolate(points, place) == pytest.approx(true)
    assert interpolate(points, 3.5) is None
    losses = {"a": {0: 1.0, 1: 0.5}, "b": {0: 0.4, 1: 0.9}, "c": {0: 0.7}, "d": {0: 0.8, 2: 0.1}}
    assert lowest_common({"one": ["a", "b"], "other": ["c", "d"]}, losses) == {0: 0.7}


def test_the_arms_are_what_they_are_named():
    options = {
        "controls": list(CONTROLS),
        "reference_images": ["clean", "batch"],
        "budgets": [0.5, 1.0],
        "protocols": list(PROTOCOLS),
        "cells": list(CELLS),
    }
    plan = make_plan(STUDY, "small", options=options)
    arms = {each.arm.name: each.arm.settings for each in plan.study_arms}
    assert len(arms) == 8 * (1 + 3 * 2) + len(CONTROLS) + 2
    for cell, parts in CELLS.items():
        own = arms[f"standard-{cell}"]
        assert ("augment.policy" in own) == ("policy" in parts)
        assert (own.get("augment.cutmix") == 1.0) == ("cutmix" in parts)
        assert (own.get("augment.smoothing") == 0.1) == ("smoothing" in parts)
    assert arms["anchored-modern"]["protocol.references"] == "clean"
    assert arms["anchored-modern-mixed-references"]["protocol.references"] == "batch"
    for control in ("mixup", "erasing", "gridmask"):
        assert "augment.cutmix" not in arms[f"standard-{control}"]
        assert arms[f"standard-{control}"]["augment.smoothing"] == 0.1
    half = round(0.5 * plan.settings["epochs"])
    assert arms["standard-modern-budget0.5"]["epochs"] == half


def test_batch_references_are_mixed_and_clean_ones_are_not():
    """CutMix on x alone, or on x and r: what the references of a step are in each."""
    from killick.data.batches import Batch
    from killick.data.mixing import Mixing
    from killick.protocols.references.reference_sampler import ReferenceSampler

    images = torch.arange(8, dtype=torch.uint8)[:, None, None, None].expand(8, 3, 8, 8)
    keys = torch.arange(8) * 7919
    mixed, soft, _ = Mixing(0.0, 1.0, 8, "cpu")(images, torch.arange(8), keys)
    batch = Batch(mixed, soft, keys, torch.arange(8))
    batch_draw = ReferenceSampler(None, None).draw(batch, torch.tensor(0))
    clean_draw = ReferenceSampler(images.permute(0, 2, 3, 1), None).draw(batch, torch.tensor(0))
    assert batch_draw.source is None  # the mixed batch itself
    clean = clean_draw.source[clean_draw.chosen]
    assert all(len(image.unique()) == 1 for image in clean)
    assert any(len(image.unique()) > 1 for image in mixed)


def test_references_may_be_mixed_as_the_images_on_the_command_line(tmp_path, capsys):
    words = ["study", "locality", "--size", "smoke", "--dry-run", "--output", str(tmp_path)]
    assert main([*words, "--reference-images", "clean,batch", "--references", "1"]) == 0
    shown = capsys.readouterr().out
    assert "masked-label-modern, seed 0" in shown
    assert "masked-label-modern-mixed-references, seed 0" in shown


def test_mistakes_are_told_before_anything_is_trained():
    for options in ({"cells": ["cutout"]}, {"controls": ["dropout"]}, {"budgets": [0.0]}):
        with pytest.raises(OptionError):
            make_plan(STUDY, "smoke", options=options)
    with pytest.raises(OptionError, match="--epochs"):
        make_plan(STUDY, "small", recipe="cifar10-vit", options={"budgets": [0.5]})


def test_a_network_without_attention_is_refused_before_training(tmp_path):
    for network in ("timm:resnet18", "timm:volo_d1_224"):
        plan = make_plan(STUDY, "smoke", recipe="cifar10-vit", settings={"network.name": network})
        with pytest.raises(OptionError):
            plan_jobs(plan, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.slow
def test_the_whole_study_with_controls_and_budgets(tmp_path):
    options = {
        "cells": ["baseline", "cutmix", "modern", "policy-smoothing"],
        "controls": ["untrained"],
        "protocols": ["standard", "masked-label"],
        "reference_images": ["clean", "batch"],
        "budgets": [0.5, 1.0],
    }
    plan = make_plan(STUDY, "smoke", options=options, settings={"epochs": 2})
    assert len(plan_jobs(plan, tmp_path)) == 4 + 8 + 1 + 2
    run = run_study(plan, tmp_path, quiet=True)
    assert not run.failed
    tables = {table.name: table for table in run.findings.tables}
    arms = {
        row[0]: dict(zip(tables["study-locality-arms"].columns, row, strict=True))
        for row in tables["study-locality-arms"].rows
    }
    assert len(arms) == 15
    assert float(arms["standard-untrained"]["minimum distance"]) == pytest.approx(0.418, abs=0.005)
    assert float(arms["standard-untrained"]["early entropy"]) > 0.99
    published = tables["study-locality-published"]
    lines = [dict(zip(published.columns, row, strict=True)) for row in published.rows]
    for line in lines:  # no minimum stands alone
        titles = ("mean", "heads below 0.1", "diagonal mass of the 3 most local", "prefix mass")
        for title in ("minimum distance", *titles):
            assert line[title] == arms[line["here"]][title] != "–"
    with_cutmix = max(
        float(arms[f"standard-{c}"]["minimum distance"]) for c in ("cutmix", "modern")
    )
    assert float(lines[2]["minimum distance"]) == with_cutmix
    assert {record[0] for record in run.findings.figures[0].records} == {
        *("minimum distance", "mean", "heads below 0.1", "diagonal mass of the 3 most local")
    }
    assert run.findings.headline.count("of 8 heads below 0.1") == 2
    shown = tables["study-locality-effects"]
    rows = [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]
    assert [(row["protocol"], row["references"]) for row in rows] == [
        ("standard", "–"),
        ("masked-label", "clean"),
        ("masked-label", "batch"),
    ]
    accuracies = {arm: float(row["accuracy, %"]) for arm, row in arms.items()}
    pairs = [("cutmix", "baseline"), ("modern", "policy-smoothing")]
    gaps = [accuracies[f"standard-{on}"] - accuracies[f"standard-{off}"] for on, off in pairs]
    effect = float(rows[0]["accuracy, %"].split()[0].replace("−", "-"))
    assert effect == pytest.approx(statistics.fmean(gaps), abs=0.11)
    assert "study-locality-loss" in tables
