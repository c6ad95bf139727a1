"""What is written of the evidence's cells: made-up cells with numbers that are known."""

import csv
import json
import shutil
import statistics
import sys
from pathlib import Path

import pytest
import yaml
from scipy import stats

from killick.corruptions.suites import list_corruptions
from killick.results.rows import make_row, read_rows, write_rows

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import collected  # noqa: E402
import evaluated  # noqa: E402

C, CBAR = (list_corruptions(kind, "cifar") for kind in ("c", "cbar"))
FIRST = ("standard", "masked-label", "finetuned", "continued")


def accuracy(arm: str, seed: int, corruption: str = "", severity: int = 0) -> float:
    """Some number for each, of which means and differences can be told."""
    gain = {"standard": 0.0, "masked-label": 0.03, "finetuned": 0.05, "continued": 0.01}.get(arm, 0)
    harm = 0.04 * severity + (0.002 * len(corruption) if corruption else 0)
    return 0.9 + gain - harm + 0.004 * (-1) ** seed * (seed + len(arm) % 3)


def make_cell(
    folder: Path,
    arm: str,
    seed: int,
    *,
    limit: int | str = "",
    epochs: int = 60,
    k: int = 1,
    count: int = 100,
) -> Path:
    cell = folder / f"{arm}-seed{seed}-abcdef"
    cell.mkdir(parents=True)
    anchored = arm not in ("standard", "continued")
    first = {"model": cell.name, "network": "killick:resnet18", "seed": seed, "weights": "w"}
    asked = {"inference": "single", "k": 1} if anchored else {"inference": "single"}
    common = {**first, "data": "d", "limit": limit, "precision": "float32", "count": count}
    rows = []

    def add(suite: str, metric: str, value: float, **more: object) -> None:
        told = {**common, "suite": suite, "metric": metric, **more}
        rows.append(make_row(**{**told, **asked, "value": value}))
        if k > 1:
            other = {"inference": "marginal", "k": k, "value": value + 0.01, "std": ""}
            rows.append(make_row(**{**told, **other}))

    def judge(suite: str, value: float, **more: object) -> None:
        spread = {"std": 0.001} if k > 1 else {}
        for metric in ("top1", "nll", "ece", "smooth_ece"):
            add(suite, metric, value if metric == "top1" else 1 - value, **more, **spread)
        for metric in ("nll", "ece", "smooth_ece"):  # not to be counted but for themselves
            add(suite, metric, (1 - value) / 2, scaling="temperature", **more)

    judge("clean", accuracy(arm, seed))
    add("clean", "temperature", 1 + 0.1 * seed)
    judge("shift", accuracy(arm, seed) - 0.1, set="shift")
    for suite, names in (("corruptions", C), ("cbar", CBAR)):
        for name in names:
            for severity in range(1, 6):
                judge(
                    suite, accuracy(arm, seed, name, severity), corruption=name, severity=severity
                )
        judge(suite, 0.123, corruption=f"mean of {len(names)}", severity="all")
    for number, name in enumerate((*evaluated.FOREIGN, *evaluated.MADE)):
        for score in ("energy", "entropy"):
            worse = 0.2 if score == "entropy" else 0.0
            add("ood", "auroc", accuracy(arm, seed) - 0.01 * number - worse, set=name, score=score)
            add("ood", "fpr_at_95_tpr_in", 0.4 + 0.01 * seed + worse, set=name, score=score)
    write_rows(cell, rows)
    if arm == "masked-label":
        lines = ["pair,share,reference,top1,confidence,entropy"]
        for share in (0.0, 0.5, 1.0):
            lines += [f"faded,{share},{n},{share},{0.8 * share + 0.1 * n},0.5" for n in (0, 1)]
        (cell / "gate.csv").write_text("\n".join(lines))
    recipe = {"network": {"name": "killick:resnet18"}, "epochs": epochs, "seed": seed}
    (cell / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    about = {"arm": arm, "seed": seed, "finished": True, "seconds": {"train": 1.0, "evaluate": 2.0}}
    (cell / "job.json").write_text(json.dumps(about))
    return cell


@pytest.fixture
def drawn() -> None:
    """Asked for by tests that look at the figures."""


@pytest.fixture(autouse=True)
def _undrawn(request, monkeypatch) -> None:
    """Figures take as long as all the rest."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(collected, "_draw_first", lambda *given: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Cells of all grids."""
    place = tmp_path_factory.mktemp("made")
    for arm in FIRST:
        make_cell(place / "first-references", arm, 0, k=5 if arm == "masked-label" else 1)
        for seed in (1, 2):
            make_cell(place / "first", arm, seed)
    make_cell(place / "second", "uniform-batch", 0)
    make_cell(place / "again", "standard", 2)
    for seed in range(3):
        for arm in ("finetuned", "earlier"):
            make_cell(place / "choosing", arm, seed)
            folder = place / "choosing" / f"{arm}-seed{seed}-abcdef"
            kept = [row for row in read_rows(folder) if row["suite"] not in ("shift", "ood")]
            write_rows(folder, kept)
        make_cell(place / "finished", "base", seed)
        for arm in ("tuned-standard-lr0.01", "tuned-masked-label-lr0.01"):
            make_cell(place / "finished", arm, seed, epochs=70)
        for arm in ("finetuned", "more-masked-running"):
            make_cell(place / "tempered", arm, seed)
    return place


@pytest.fixture
def work(made, tmp_path) -> Path:
    """A copy of them, to be spoilt."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_means_and_differences_are_those_of_the_cells(work, tmp_path):
    collected.write_results(work, tmp_path / "out")
    rows = read(tmp_path / "out" / "summary.csv")
    found = {(r["grid"], r["arm"], r["measure"], r["against"]): r for r in rows}

    def by_seed(arm: str, names: tuple[str, ...], severities: tuple[int, ...]) -> list[float]:
        return [
            statistics.fmean(accuracy(arm, seed, n, s) for n in names for s in severities)
            for seed in range(3)
        ]

    everything = (1, 2, 3, 4, 5)
    base = by_seed("standard", C, everything)
    for arm, against in (("masked-label", "standard"), ("finetuned", "continued")):
        other = base if against == "standard" else by_seed("continued", C, everything)
        row, own = found["first", arm, "corrupted", against], by_seed(arm, C, everything)
        assert [float(v) for v in row["by_seed"].split()] == pytest.approx(own, abs=1e-5)
        assert float(row["mean"]) == pytest.approx(statistics.fmean(own), abs=1e-5)
        assert float(row["spread"]) == pytest.approx(statistics.stdev(own), abs=1e-5)
        gain = statistics.fmean(own) - statistics.fmean(other)
        assert float(row["difference"]) == pytest.approx(gain, abs=2e-5)
        a, b = (statistics.variance(each) / 3 for each in (own, other))
        freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)  # Welch and Satterthwaite
        reach = stats.t.ppf(0.975, freedom) * (a + b) ** 0.5
        assert float(row["low"]) == pytest.approx(gain - reach, abs=2e-5)
        assert float(row["high"]) == pytest.approx(gain + reach, abs=2e-5)
    worst = found["first", "finetuned", "severity 5", "standard"]
    expected = statistics.fmean(by_seed("finetuned", C, (5,)))
    assert float(worst["mean"]) == pytest.approx(expected, abs=1e-5)
    iceless = found["first", "finetuned", "corrupted, without frost", "standard"]
    others = tuple(name for name in C if name != "frost")
    expected = statistics.fmean(by_seed("finetuned", others, everything))
    assert float(iceless["mean"]) == pytest.approx(expected, abs=1e-5)
    error = found["first", "standard", "smooth ECE, corrupted", ""]
    assert float(error["mean"]) == pytest.approx(1 - statistics.fmean(base), abs=1e-5)
    told = found["first", "standard", "OOD AUROC", ""]  # of three sets, by energy
    clean = statistics.fmean(accuracy("standard", seed) for seed in range(3))
    assert float(told["mean"]) == pytest.approx(clean - 0.01, abs=1e-5)
    alone = found["second", "uniform-batch", "clean", "standard"]  # against the same seed
    gain = accuracy("uniform-batch", 0) - accuracy("standard", 0)
    assert float(alone["difference"]) == pytest.approx(gain, abs=1e-5)
    assert (alone["seeds"], alone["low"]) == ("0", "")
    assert {r["grid"] for r in rows} == {"first", "second"}


def test_finished_networks_are_compared_with_the_one_tuned_as_long(work, tmp_path):
    collected.write_results(work, tmp_path / "out")
    found = {(r["arm"], r["measure"]): r for r in read(tmp_path / "out" / "finetune.csv")}
    control, tuned = "tuned-standard-lr0.01", "tuned-masked-label-lr0.01"

    def mean(arm: str) -> float:
        return statistics.fmean(
            accuracy(arm, seed, name, s) for seed in range(3) for name in C for s in range(1, 6)
        )

    assert found[control, "corrupted"]["against"] == ""
    assert {found[arm, "clean"]["against"] for arm in ("base", tuned)} == {control}
    gain = float(found[tuned, "corrupted"]["difference"])
    assert gain == pytest.approx(mean(tuned) - mean(control), abs=2e-5)
    plain, tempered = (
        float(found[tuned, f"smooth ECE, corrupted{how}"]["mean"]) for how in ("", ", temperature")
    )
    assert plain == pytest.approx(1 - mean(tuned), abs=1e-5)
    assert tempered == pytest.approx((1 - mean(tuned)) / 2, abs=1e-5)
    clean = statistics.fmean(accuracy("base", seed) for seed in range(3))
    told = float(found["base", "NLL, clean, temperature"]["mean"])
    assert told == pytest.approx((1 - clean) / 2, abs=1e-5)


def test_the_chosen_variant_is_compared_with_a_temperature_too(work, tmp_path):
    collected.write_results(work, tmp_path / "out")
    rows = read(tmp_path / "out" / "tempered.csv")
    found = {(r["arm"], r["measure"]): r for r in rows}
    assert {r["against"] for r in rows if r["arm"] == "more-masked-running"} == {"finetuned"}
    error = found["finetuned", "smooth ECE, corrupted, temperature"]
    plain = found["finetuned", "smooth ECE, corrupted"]
    assert found["finetuned", "temperature"]["by_seed"] == "1.00000 1.10000 1.20000"
    assert float(error["mean"]) == pytest.approx(float(plain["mean"]) / 2, abs=1e-5)
    grids = {r["grid"] for r in read(tmp_path / "out" / "summary.csv")}
    assert grids == {"first", "second"}  # these had fewer pictures to learn from


def test_rows_corruptions_references_and_repeats_are_written(drawn, work, tmp_path):
    collected.write_results(work, tmp_path / "out")
    first = read(tmp_path / "out" / "first-grid.csv")
    one = [r for r in first if (r["arm"], r["seed"], r["inference"]) == ("standard", "1", "single")]
    assert len(one) == 1 + 1 + 5 * len(C) + 5 * len(CBAR) + 6
    fog = next(r for r in one if (r["corruption"], r["severity"]) == ("fog", "3"))
    assert float(fog["top1"]) == pytest.approx(accuracy("standard", 1, "fog", 3), abs=1e-5)
    assert float(fog["smooth_ece"]) == pytest.approx(1 - float(fog["top1"]), abs=2e-5)
    faded = read(tmp_path / "out" / "gate.csv")
    assert len(faded) == 9
    half = [r for r in faded if (r["seed"], r["share"]) == ("1", "0.5")]
    assert [(float(r["confidence"]), float(r["top1"])) for r in half] == [(0.45, 0.5)]  # the mean
    assert "ResNet-18, masked, label" in (tmp_path / "out" / "gate.svg").read_text()
    several = {r["measure"]: r for r in read(tmp_path / "out" / "references.csv")}
    assert {r["arm"] for r in several.values()} == {"masked-label"}
    assert float(several["corrupted"]["spread"]) == 0.001
    five = float(several["clean"]["five"]) - float(several["clean"]["value"])
    assert five == pytest.approx(0.01, abs=1e-5)
    repeated = read(tmp_path / "out" / "again.csv")
    assert {(r["arm"], r["seed"]) for r in repeated} == {("standard", "2")}
    assert all(r["first"] == r["again"] for r in repeated)
    chosen = {(r["arm"], r["measure"]): r for r in read(tmp_path / "out" / "choosing.csv")}
    assert chosen["earlier", "corrupted"]["against"] == "finetuned"
    assert chosen["finetuned", "corrupted"]["against"] == ""
    by = {
        (r["corruption"], r["severity"], r["arm"]): r
        for r in read(tmp_path / "out" / "by-corruption.csv")
    }
    own = [accuracy("finetuned", seed, "snow", 5) for seed in range(3)]
    mean = float(by["snow", "5", "finetuned"]["mean"])
    assert mean == pytest.approx(statistics.fmean(own), abs=1e-5)
    assert not by["snow", "all", "standard"]["difference"]
    for name in collected.FIGURES:
        assert (tmp_path / "out" / name).read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda work: make_cell(work / "first", "masked-label", 7, limit=20), "limited"),
        (lambda work: make_cell(work / "second", "tried", 0, epochs=2), "one budget"),
        (lambda work: make_cell(work / "first", "standard", 0), "expected one cell"),
        (lambda work: make_cell(work / "finished", "base", 7, epochs=61), "one budget of base"),
    ],
)
def test_cells_that_were_only_tried_are_refused_and_nothing_is_written(work, tmp_path, spoil, told):
    spoil(work)
    with pytest.raises(SystemExit, match=told):
        collected.write_results(work, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def spoil_rows(cell: Path, keep) -> Path:
    write_rows(cell, [row for row in read_rows(cell) if keep(row)])
    return cell


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (lambda row: row["suite"] != "ood", "0 of ood textures, auroc"),
        (lambda row: row["set"] != "blobs", "0 of ood blobs, auroc"),
        (
            lambda row: (row["metric"], row["corruption"]) != ("smooth_ece", "fog"),
            "0 of corruptions fog 1, smooth_ece, and 4 more",
        ),
        (lambda row: row["suite"] != "shift", "0 of shift, top1"),
    ],
)
def test_whatever_is_missing_is_refused_by_name_and_nothing_changes(work, tmp_path, keep, told):
    collected.write_results(work, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    spoil_rows(make_cell(tmp_path / "new" / "first", "standard", 1), keep)
    with pytest.raises(SystemExit, match=told):
        collected.write_results(tmp_path / "new", tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_rows_with_a_temperature_are_needed_where_one_is_told_of(work, tmp_path):
    cell = work / "tempered" / "finetuned-seed1-abcdef"
    spoil_rows(cell, lambda row: (row["scaling"], row["metric"]) != ("temperature", "ece"))
    with pytest.raises(SystemExit, match="0 of clean, ece with a temperature"):
        collected.write_results(work, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda folder: make_cell(folder / "first", "standard", 1, epochs=1),
            "expected cells of 60 epochs beside those.* found 1 in standard, seed 1",
        ),
        (
            lambda folder: make_cell(folder / "first", "standard", 1, count=7),
            "expected 100 pictures of clean as in what is written, found 7",
        ),
        (
            lambda folder: make_cell(folder / "second", "standard", 1),
            "found .'resnet18', 'standard', '1'. in the first and second",
        ),
        (
            lambda folder: make_cell(folder / "finished", "base", 0),
            "expected all cells of finetune.csv at once.* found none of base, seed 1",
        ),
    ],
)
def test_cells_that_do_not_fit_to_those_of_before_are_refused(work, tmp_path, make, told):
    collected.write_results(work, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    make(tmp_path / "new")
    with pytest.raises(SystemExit, match=told):
        collected.write_results(tmp_path / "new", tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_variants_alone_can_be_written(work, tmp_path):
    for name in ("first", "first-references", "second", "again", "finished", "tempered"):
        (work / name).rename(tmp_path / f"{name}-away")
    collected.write_results(work, tmp_path / "out")
    assert read(tmp_path / "out" / "choosing.csv")
    assert not read(tmp_path / "out" / "summary.csv")


def test_a_cell_that_is_not_evaluated_in_full_is_refused(work, tmp_path):
    cell = work / "first" / "standard-seed1-abcdef"
    write_rows(cell, [row for row in read_rows(cell) if row["corruption"] != "fog"])
    with pytest.raises(SystemExit, match="Finish or remove it"):
        collected.write_results(work, tmp_path / "out")
    about = json.loads((cell / "job.json").read_text())
    (cell / "job.json").write_text(json.dumps({**about, "finished": False}))
    collected.write_results(work, tmp_path / "out")  # what is not finished is left out
    seeds = {r["seed"] for r in read(tmp_path / "out" / "first-grid.csv") if r["arm"] == "standard"}
    assert seeds == {"0", "2"}


@pytest.mark.slow
def test_cells_may_come_in_several_sittings(drawn, work, tmp_path, capsys):
    collected.write_results(work, tmp_path / "at-once")
    later = tmp_path / "later"
    for name in ("first", "again", "choosing"):
        (later / name).parent.mkdir(exist_ok=True)
        (work / name).rename(later / name)
    away = later / "first" / "standard-seed2-abcdef"
    (work / "first").mkdir()
    away.rename(work / "first" / away.name)
    out = tmp_path / "in-turns"
    collected.write_results(work, out)
    figures = {name: (out / name).read_bytes() for name in collected.FIGURES}
    assert {r["seeds"] for r in read(out / "summary.csv") if r["arm"] == "finetuned"} == {"0"}
    collected.write_results(later, out)
    assert "Figures are as they were" in capsys.readouterr().out
    assert figures == {name: (out / name).read_bytes() for name in collected.FIGURES}
    files = sorted(path.name for path in (tmp_path / "at-once").glob("*.csv"))
    assert files == sorted(path.name for path in out.glob("*.csv"))
    for name in files:
        one, two = (
            sorted(tuple(row.items()) for row in read(folder / name))
            for folder in (tmp_path / "at-once", out)
        )
        assert one, name
        assert one == two, name


def test_a_cell_that_is_run_again_takes_the_place_of_what_was_written(work, tmp_path):
    collected.write_results(work, tmp_path / "out")
    before = read(tmp_path / "out" / "first-grid.csv")
    cell = make_cell(tmp_path / "new" / "first", "standard", 1)
    rows = [{**r, "value": 0.5} if r["suite"] == "clean" else r for r in read_rows(cell)]
    write_rows(cell, rows)
    collected.write_results(tmp_path / "new", tmp_path / "out")
    after = read(tmp_path / "out" / "first-grid.csv")
    assert len(after) == len(before)
    (clean,) = [
        r["top1"] for r in after if (r["arm"], r["seed"], r["suite"]) == ("standard", "1", "clean")
    ]
    assert float(clean) == 0.5
    row = next(
        r
        for r in read(tmp_path / "out" / "summary.csv")
        if (r["arm"], r["measure"], r["against"]) == ("standard", "clean", "")
    )
    assert float(row["by_seed"].split()[1]) == 0.5


def test_what_is_told_of_a_cell_beside_its_rows_goes_with_it(work, tmp_path):
    collected.write_results(work, tmp_path / "out")
    for arm, seed in (("standard", 2), ("masked-label", 0)):
        cell = make_cell(tmp_path / "new" / "first", arm, seed)
        (cell / "gate.csv").unlink(missing_ok=True)
        rows = [{**r, "value": 0.5} if r["suite"] == "clean" else r for r in read_rows(cell)]
        write_rows(cell, rows)
    collected.write_results(tmp_path / "new", tmp_path / "out")
    again = {r["measure"]: r for r in read(tmp_path / "out" / "again.csv")}
    assert float(again["clean"]["first"]) == 0.5
    assert float(again["clean"]["again"]) == pytest.approx(accuracy("standard", 2), abs=1e-5)
    assert not read(tmp_path / "out" / "references.csv")  # it was asked from one, this time
    seeds = [r["seed"] for r in read(tmp_path / "out" / "gate.csv")]
    assert set(seeds) == {"1", "2"}
    assert len(read(tmp_path / "out" / "seconds.csv")) == 13


def test_an_empty_folder_is_told_and_nothing_is_written(tmp_path):
    with pytest.raises(SystemExit, match="expected finished cells in"):
        collected.write_results(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
