import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from killick.data.sources import load_sets
from killick.errors import DataError, OptionError
from killick.experiments.job_runner import run_job
from killick.report.figures import Style
from killick.results.measurements import Measured
from killick.runtime.progress import SilentDisplay
from killick.studies import adapted, adapting, domains
from killick.studies.adaptation import PAPER_DATA, PAPER_DOMAINS, STUDY, Options, count_passes
from killick.studies.adapted import Probed, Trial
from killick.studies.adapting import CHOSEN, ID, LACKING, OOD, WITHIN
from killick.studies.features import UNMASKED, Reader
from killick.studies.probing import Settings, choose_rate, fit_probe, score
from killick.studies.running import plan_cells, run_study
from killick.studies.study import make_plan
from killick.studies.trained import limited, open_trained
from killick.training.loop import train
from killick.training.recipe_files import load_recipe

pytestmark = pytest.mark.usefixtures("here")

CPU = torch.device("cpu")
OPTIONS = {
    "targets": ["digits"],
    "domains": None,
    "styles": ["real", "sketch", "clipart"],
    "sources": ["sketch"],
    "alphas": [0.4, 0.0],
    "probe_target": "label",
    "draws": 2,
    "probe_epochs": 3,
    "probe_batch": 16,
    "rates": [1.0, 10.0],
    "probe_decay": 1e-5,
    "train_limit": 50,
    "test_limit": 30,
}


@pytest.fixture(autouse=True, scope="module")
def _few_shapes():
    """Domains of seconds would be most of the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domains, "_SHAPES_TRAIN", 100)
        patch.setattr(domains, "_SHAPES_TEST", 60)
        yield


def quiet(title, steps, done, what):
    return nullcontext(SilentDisplay())


def measure(folder: Path, where: Path, show=quiet, **changes) -> list[dict]:
    where.mkdir(exist_ok=True)
    options = {**OPTIONS, **changes}
    kept = Measured(where, options)
    adapting.measure(folder, options, kept, device=CPU, show=show)
    return kept.records


def trained_with(folder: Path, protocol: str) -> Path:
    settings = {"data.limit": 60, "data.validation": 0, "epochs": 1, "batch": 20, "seed": 3}
    settings |= {"protocol.name": protocol}
    settings |= {"protocol.target": "label"} if protocol == "masked" else {}
    train(load_recipe("shapes-compare", settings), folder, device="cpu", quiet=True)
    return folder


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> Path:
    return trained_with(tmp_path_factory.mktemp("cell") / "run", "masked")


@pytest.fixture(scope="module")
def standard_cell(tmp_path_factory) -> Path:
    return trained_with(tmp_path_factory.mktemp("cell") / "run", "standard")


@pytest.fixture(scope="module")
def records(cell, tmp_path_factory) -> list[dict]:
    return measure(cell, tmp_path_factory.mktemp("kept"))


def coordinates(records: list[dict], metric: str = "top1") -> list[tuple]:
    names = ("task", "source", "target", "alpha", "reference")
    return [tuple(each.get(n) for n in names) for each in records if each["metric"] == metric]


TESTS = [
    (ID, "digits", "digits"),
    (WITHIN, "sketch", "sketch"),
    (OOD, "sketch", "real"),
    (OOD, "sketch", "clipart"),
]


def test_every_probe_is_tested_on_its_own_data_and_on_all_other_domains(records):
    expected = [(*test, alpha, r) for test in TESTS for alpha in (0.4, 0.0) for r in (0, 1)]
    for metric in ("top1", "nll", "smooth_ece"):
        assert sorted(coordinates(records, metric)) == sorted(expected)
    assert all(0 <= each["value"] <= 1 for each in records if each["metric"] == "top1")
    chosen = [each for each in records if each["metric"] == CHOSEN]
    assert [(each["source"], each["alpha"]) for each in chosen] == [
        ("digits", 0.4),
        ("digits", 0.0),
        ("sketch", 0.4),
        ("sketch", 0.0),
    ]
    assert {each["value"] for each in chosen} <= {1.0, 10.0}


def test_a_standard_network_has_one_probe_and_no_references(standard_cell, tmp_path):
    found = measure(standard_cell, tmp_path)
    assert coordinates(found) == [(*test, 0.0, 0) for test in TESTS]


def test_the_numbers_are_those_of_a_probe_made_by_hand(cell, records):
    trained = open_trained(cell, CPU)
    reader, sets = Reader(trained, 2), load_sets("digits")
    train_set, test = limited(sets.train, 50), limited(sets.test, 30)
    features = reader.read_training(train_set)
    read = reader.read_test(test, reader.choose_references(train_set))
    seed = adapting.key(3, adapting._number_of("digits"))
    settings = Settings(3, 16, 1e-5, 0.4, "label", seed)
    rate = choose_rate(features, train_set.labels, 10, [1.0, 10.0], settings)
    probe = fit_probe(features, train_set.labels, 10, rate, settings)
    for number in range(2):
        expected = score(probe(read[number]), test.labels)
        for metric, value in expected.items():
            (found,) = [
                each["value"]
                for each in records
                if (each["metric"], each["source"], each["alpha"]) == (metric, "digits", 0.4)
                and each["reference"] == number
            ]
            assert found == pytest.approx(value)
    assert features.shape[:2] == (2, 2)
    assert not torch.allclose(features[0, UNMASKED], features[1, UNMASKED])


def test_a_probe_is_trained_on_one_domain_and_never_on_what_it_is_tested_on(cell, monkeypatch):
    seen = []
    monkeypatch.setattr(adapting, "fit_probe", lambda features, labels, *rest: seen.append(labels))
    task = adapting._domains(SimpleNamespace(find=lambda **known: None), OPTIONS)[0]
    trained = {each.numpy().tobytes() for each in task.train.images()}
    assert len(trained) == 50
    for _, _, images in task.tests:
        assert len(images) == 30
        assert not any(each.numpy().tobytes() in trained for each in images.images())


class Stop(Exception):
    pass


def stop_after(monkeypatch, calls: int) -> None:
    """Raise instead of keeping records for the so-manieth time and later."""
    add, done = Measured.add, []

    def interrupted(self, *records):
        done.append(1)
        if len(done) > calls:
            raise Stop
        add(self, *records)

    monkeypatch.setattr(Measured, "add", interrupted)


@pytest.mark.parametrize("probes", [1, 2, 3])
def test_an_interrupted_measurement_goes_on_with_the_next_probe(
    probes, cell, records, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        stop_after(patch, probes)
        with pytest.raises(Stop):
            measure(cell, tmp_path)
    read = []
    read_training = Reader.read_training

    def counted(self, images):
        read.append(images.name)
        return read_training(self, images)

    monkeypatch.setattr(Reader, "read_training", counted)
    assert measure(cell, tmp_path) == records
    assert read == (["digits", "sketch"] if probes == 1 else ["sketch"])
    assert measure(cell, tmp_path) == records
    assert len(read) == (2 if probes == 1 else 1)


def test_what_was_cut_off_in_the_middle_of_a_probe_is_not_kept_twice(cell, records, tmp_path):
    kept = Measured(tmp_path, OPTIONS)
    kept.add(*records[:5])
    adapting.measure(cell, OPTIONS, kept, device=CPU, show=quiet)
    assert kept.records == records


def test_progress_counts_every_picture_that_the_network_is_shown(cell, tmp_path):
    told = []

    @contextmanager
    def show(title, steps, done, what):
        told.append((steps, done))
        display = SilentDisplay()
        display.show = lambda step, text, **more: told.append((step, text))
        yield display

    measure(cell, tmp_path, show)
    total = 2 * (2 * 50 + 30) + 2 * (2 * 50 + 3 * 30)
    assert told[0] == (total, 0)
    assert told[-1] == (total, "probe on sketch")
    assert [step for step, _ in told[1:]] == sorted(step for step, _ in told[1:])


def test_progress_goes_on_from_what_was_done_before(cell, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stop):
            measure(cell, tmp_path)
    told = []

    @contextmanager
    def show(title, steps, done, what):
        told.append((steps, done))
        display = SilentDisplay()
        display.show = lambda step, text, **more: told.append((step, text))
        yield display

    measure(cell, tmp_path, show)
    first, total = 2 * (2 * 50 + 30), 2 * (2 * 50 + 30) + 2 * (2 * 50 + 3 * 30)
    assert told[0] == (total, first)
    assert told[1] == (first + 2 * 2 * 50, "probe on sketch")
    assert told[-1] == (total, "probe on sketch")


def make_domains(top: Path, kinds: dict[str, list[str]]) -> Path:
    generator = torch.Generator().manual_seed(0)
    for domain, names in kinds.items():
        for place, kind in enumerate(names):
            (top / domain / kind).mkdir(parents=True)
            for number in range(5):
                noise = torch.randint(0, 80, (30, 40, 3), generator=generator)
                pixels = (noise + 70 * place).to(torch.uint8)
                Image.fromarray(pixels.numpy()).save(top / domain / kind / f"{number}.jpg")
    return top


def test_folders_laid_out_as_domainnet_work_from_end_to_end(cell, tmp_path):
    kinds = {name: ["cat", "dog"] for name in ("real", "sketch", "clipart")}
    top = make_domains(tmp_path / "top", {**kinds, "painting": ["cat", "cow", "dog"]})
    changes = {"domains": str(top), "styles": None, "sources": ["real"], "targets": []}
    found = measure(cell, tmp_path / "kept", **changes, limit=None, test_limit=None)
    tests = {(task, source, target) for task, source, target, *_ in coordinates(found)}
    others = {(OOD, "real", name) for name in ("clipart", "painting", "sketch")}
    assert tests == {(WITHIN, "real", "real"), *others}
    lacking = {each["target"]: each["classes"] for each in found if each["metric"] == LACKING}
    assert lacking == {name: "'cow'" for name in ("clipart", "real", "sketch")}
    assert measure(cell, tmp_path / "kept", **changes, limit=None, test_limit=None) == found


def test_what_cannot_be_measured_is_told_in_a_line(cell, tmp_path, pictures):
    for place, changes, message in (
        ("a", {"sources": ["quick"]}, "expected the domain 'quick'"),
        ("b", {"domains": str(tmp_path / "none")}, "found nothing there"),
        ("c", {"targets": ["digit"]}, "did you mean 'digits'"),
    ):
        with pytest.raises((DataError, OptionError), match=message) as problem:
            measure(cell, tmp_path / place, **changes)
        assert "\n" not in str(problem.value)
    (tmp_path / "one" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "one" / "cat" / "1.png")
    with pytest.raises(DataError, match="to train and to test a probe on in imagefolder"):
        measure(cell, tmp_path / "d", targets=[f"imagefolder:{tmp_path / 'one'}"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphas": [1.5]}, "expected alphas between 0 and 1"),
        ({"alphas": [-0.5, 0.5]}, "expected alphas between 0 and 1"),
        ({"alphas": []}, "expected alphas between 0 and 1"),
        ({"rates": [0.0, 1.0]}, "expected rates above 0"),
        ({"targets": [], "sources": []}, "found neither"),
        ({"probe_target": "lable"}, "label"),
        ({"protocols": ["maksed"]}, "expected a protocol"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(options, message):
    with pytest.raises(OptionError, match=message):
        make_plan(STUDY, "smoke", options=options)


def test_the_passes_of_the_small_size_are_counted():
    assert count_passes(Options(train_limit=10, test_limit=5)) == 4 * (2 * 10 * 3 + 5 * (1 + 2 * 4))


def probes(values: dict[str, dict[Trial, list[float]]], alpha: float = 0.4) -> list[Probed]:
    return [
        Probed(name, alpha, {t: dict(enumerate(v)) for t, v in tests.items()}, {})
        for name, tests in values.items()
    ]


SAME, SHIFTED = Trial(ID, "digits", "digits"), Trial(OOD, "real", "sketch")


def test_a_difference_is_told_only_where_the_seeds_carry_it():
    found = probes(
        {
            "standard": {SAME: [0.80, 0.82, 0.81], SHIFTED: [0.30, 0.50, 0.40]},
            "masked-label": {SAME: [0.90, 0.921, 0.912], SHIFTED: [0.40, 0.45, 0.41]},
        }
    )
    says = adapted.tell_probed(found)
    assert "data they were trained for: on standard networks 81.0 ± 1.0 %" in says
    assert "on masked-label +10.1 points" not in says  # never without its interval
    assert "+10.1 (+9.9 to +10.3) points (better in these 3 seeds)" in says
    assert "domains they were not trained on: on standard networks 40.0 ± 10.0 %" in says
    assert "+2.0 (" in says
    assert says.count("(no clear difference)") == 1
    one_seed = probes({"standard": {SAME: [0.1]}, "anchored": {SAME: [0.9]}})
    assert "+80.0 points (no clear difference)" in adapted.tell_probed(one_seed)


def test_masking_the_probe_is_compared_with_not_masking_it():
    trial = {SAME: [0.80, 0.82, 0.81], Trial(WITHIN, "a", "a"): [0.0, 0.0, 0.0]}
    masked, plain = (
        Probed("masked-label", alpha, {t: dict(enumerate(v)) for t, v in each.items()}, {})
        for alpha, each in ((0.4, trial), (0.0, {**trial, SAME: [0.9, 0.92, 0.911]}))
    )
    says = adapted.tell_probed([masked, plain])
    assert "Masked-label: masking the probe too, alpha 0.4, gives −10.0 (" in says
    assert "(worse in these 3 seeds)" in says
    assert "from standard" not in says
    (base,) = probes({"standard": {SAME: [0.7, 0.72, 0.71]}})
    says = adapted.tell_probed([base, masked, plain])
    assert "; without that it is +20.0 (" in says
    assert says.endswith("from standard (better in these 3 seeds).")
    assert adapted.tell_probed([]) == "No probe is finished."


def results_of(records: list[dict], **changes) -> SimpleNamespace:
    """As `Results`, of a standard and a masked arm."""

    def find(**known):
        return [each for each in records if all(each.get(k) == v for k, v in known.items())]

    return SimpleNamespace(
        plan=SimpleNamespace(options=Options(**{"rates": [1.0, 10.0], "draws": 2, **changes})),
        records=find,
        levels=lambda factor: ["standard", "masked-label"],
        style=lambda protocol: Style("arm-0", "-", "o"),
    )


def made_up(protocol: str, seed: int, alpha: float, trial: Trial, values: list[float]) -> list:
    place = {"task": trial.task, "source": trial.source, "target": trial.target, "seed": seed}
    return [
        {
            "metric": "top1",
            "protocol": protocol,
            "alpha": alpha,
            "reference": r,
            "value": v,
            **place,
        }
        for r, v in enumerate(values)
    ]


@pytest.fixture
def some_results():
    records = []
    flowers = Trial(ID, "imagefolder:/data/flowers102", "imagefolder:/data/flowers102")
    for trial, base in ((flowers, 0.5), (SHIFTED, 0.2)):
        for seed in (0, 1):
            records += made_up("standard", seed, 0.0, trial, [base + 0.02 * seed])
            for alpha, more in ((0.4, 0.1), (0.0, 0.2)):
                value = base + more + 0.04 * seed
                records += made_up("masked-label", seed, alpha, trial, [value, value + 0.02])
    records += [{"metric": CHOSEN, "value": 10.0}, {"metric": CHOSEN, "value": 1.0}]
    records += [{"metric": CHOSEN, "value": 10.0}]
    records += [{"metric": LACKING, "value": 1, "target": "sketch", "classes": "'cow'"}]
    return results_of(records, domains="folder")


PUBLISHED = {(name, name): values for name, values in PAPER_DATA.items()} | PAPER_DOMAINS


def test_the_table_has_first_references_differences_other_alphas_and_the_paper(some_results):
    table = adapted.tabulate_probed(some_results, adapted.collect_probed(some_results), PUBLISHED)
    assert table.columns == (
        "trained on → tested on",
        "standard",
        "masked-label",
        "masked-label − standard",
        "masked-label, probe masked 0 %",
        "paper: standard",
        "paper: masked",
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["real → sketch"][:2] == ("21.0 ± 1.4", "32.0 ± 2.8")
    assert rows["real → sketch"][2].startswith("+11.0 (")
    assert rows["real → sketch"][3:] == ("42.0 ± 2.8", "25.85", "28.02")
    (flowers,) = [row for name, row in rows.items() if "flowers102" in name]
    assert flowers[-2:] == ("94.68", "95.70")
    assert rows["cifar10"] == ("–", "–", "–", "–", "95.48", "96.29")
    assert len(rows) == 11
    assert "masked in 40 % of its steps (target label)" in table.says


def test_notes_tell_of_references_rates_domains_and_classes_left_out(some_results):
    probed = adapted.collect_probed(some_results)
    notes = " ".join(adapted.tell_notes(some_results, probed))
    assert "standard deviation of 1.41 points in the mean, 1.41 at most" in notes
    assert "Of 3 probes, 1 chose the lowest learning rate on offer, 1, and 2 the highest" in notes
    assert "fifth of each source domain is held back" in notes
    assert "sketch has no 'cow'" in notes
    embedded = results_of([])
    (note,) = adapted.tell_notes(embedded, [])
    assert "knows these classes already" in note


def test_the_figure_has_a_panel_for_each_kind_and_the_paper_beside(some_results):
    probed = adapted.collect_probed(some_results)
    figure = adapted.draw_probed(some_results, probed, PUBLISHED, "says")
    titles = [panel.title for panel in figure.panels]
    assert titles == [
        "The same data",
        "Trained on real",
        "In the paper: the same data",
        "In the paper: DomainNet, real",
    ]
    assert "sketch: standard 21.0, masked-label 32.0" in figure.panels[1].description
    paper = figure.panels[3].description
    assert "painting: standard 46.3, masked-label 47.0" in paper
    assert "cifar10" not in paper
    assert len(figure.records) == 2 * 2 * 2
    assert (OOD, "real", "sketch", "masked-label", 1, pytest.approx(34.0)) in figure.records


def test_a_probe_that_an_arm_lacks_yet_leaves_a_gap_and_no_crash(some_results):
    records = [
        each
        for each in some_results.records()
        if (each.get("protocol"), each.get("task")) != ("standard", OOD)
    ]
    partly = results_of(records, domains="folder")
    probed = adapted.collect_probed(partly)
    table = adapted.tabulate_probed(partly, probed, PUBLISHED)
    (row,) = [row for row in table.rows if row[0] == "real → sketch"]
    assert row[1] == "–"
    assert row[3] == "–"
    assert adapted.draw_probed(partly, probed, PUBLISHED, "says").panels
    assert "trained for" in adapted.tell_probed(probed)


def test_the_smoke_size_runs_to_its_page(tmp_path):
    plan = make_plan(STUDY, "smoke")
    cells = plan_cells(plan, tmp_path)
    assert len(cells) == 3
    for each in cells:
        assert run_job(each, threads=1, device="cpu")["status"] == "finished"
    ran = run_study(plan, tmp_path, device="cpu", quiet=True)
    assert ran.failed == []
    assert ran.report is not None
    assert "Are anchored networks better to build on?" in ran.report.read_text()
    (table,) = ran.shown.tables
    assert [row[0] for row in table.rows[:3]] == ["digits", "real, itself", "real → sketch"]
    assert table.columns[1:4] == ("standard", "anchored", "masked-label")
    assert "no clear difference" in ran.shown.says
    assert "knows these classes already" in ran.shown.notes[0]


def test_telling_of_the_study_needs_no_torch():
    code = "import sys, killick.studies.adaptation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
