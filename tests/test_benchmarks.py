"""The benchmark scripts: they import, their commands are understood, their arithmetic is right."""

import csv
import importlib
import json
import statistics
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy import stats
from torch import nn

import killick
from killick.cli import make_parser
from killick.corruptions.suites import list_corruptions
from killick.experiments.arms import parse_arms
from killick.experiments.jobs import make_jobs
from killick.results.rows import make_row, write_rows

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs")]
import evidence  # noqa: E402
import evidence_jobs  # noqa: E402
import evidence_results  # noqa: E402
import gate  # noqa: E402
import gpu  # noqa: E402
import timing_tables  # noqa: E402
import tuning_epochs  # noqa: E402
import tuning_table  # noqa: E402

C, CBAR = (list_corruptions(kind, "cifar") for kind in ("c", "cbar"))
FIRST = ("standard", "masked-label", "finetuned", "continued")
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_imports_and_says_what_it_measures(script):
    assert importlib.import_module(script).__doc__


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def tiny_model() -> killick.Anchored:
    torch.manual_seed(0)
    model = killick.anchor(Tiny(), init="random", example=torch.rand(2, 3, 8, 8))
    with torch.no_grad():
        model.net.norm.running_mean += 0.3  # other than those of any batch
    return model.set_references(torch.rand(3, 3, 8, 8)).eval()


def test_fading_goes_from_the_masked_pair_to_the_one_of_evaluation():
    model, x = tiny_model(), torch.rand(7, 3, 8, 8)
    labels = torch.randint(4, (7,))
    statistics_before = model.net.norm.running_mean.clone()
    rows = gate.fade_references(model, x, labels)
    assert torch.equal(model.net.norm.running_mean, statistics_before)
    assert not any(module.training for module in model.modules())
    for number in range(3):
        reference = model.references[number].expand_as(x)
        for share, masked in ((0.0, True), (1.0, False)):
            with torch.no_grad():
                probs = model(x, reference, masked).double().softmax(1)
            (row,) = [
                r
                for r in rows
                if (r["pair"], r["share"], r.get("reference")) == ("faded", share, number)
            ]
            assert row["confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-6)
            assert row["top1"] == pytest.approx(float((probs.argmax(1) == labels).double().mean()))
            entropy = -(probs * probs.log()).sum(1).mean() / torch.log(torch.tensor(4.0))
            assert row["entropy"] == pytest.approx(float(entropy), abs=1e-6)


def test_with_the_statistics_of_the_batch_it_is_as_in_training():
    model, x = tiny_model(), torch.rand(7, 3, 8, 8)
    rows = gate.fade_references(model, x, torch.zeros(7, dtype=torch.long))
    (row,) = [r for r in rows if (r["pair"], r["share"], r.get("reference")) == ("batch", 0.0, 1)]
    model.net.train()
    with torch.no_grad():
        reference = model.references[1].expand_as(x)
        probs = model.net(killick.pair(x, reference, torch.tensor(True))).double().softmax(1)
    assert row["confidence"] == pytest.approx(float(probs.amax(1).mean()), abs=1e-6)


@pytest.mark.parametrize("grid", evidence.GRIDS, ids=lambda grid: grid.name)
def test_every_grid_is_a_comparison_that_killick_takes(grid, monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys,
        "argv",
        ["evidence.py", "--data", "shapes", "--ood-pack", "x.npz", "--work", str(tmp_path)],
    )
    options = evidence.read_options()
    words = evidence.command(grid, options)
    _, commands = make_parser()
    read_words, rest = commands.choices["compare"].parse_known_args(words[1:])
    assert read_words.seeds == tuple(grid.seeds)
    data = f"pack:{tmp_path}/held.npz" if grid.held else "shapes"
    aside = ["--data.validation", str(grid.aside)] if grid.aside else []
    assert rest == ["--data", data, "--epochs", "60", *aside]  # settings of the recipe
    cells = make_jobs(
        grid.recipe, {"epochs": 60}, parse_arms(read_words.arm), grid.seeds, tmp_path, {}
    )
    assert len(cells) == len(grid.arms) * len(grid.seeds)


def test_what_is_held_back_is_the_end_of_the_training_set(tmp_path, monkeypatch):
    files = [bytes([number]) * (number + 1) for number in range(9)]
    np.savez(
        tmp_path / "pack.npz",
        train_bytes=np.frombuffer(b"".join(files), dtype=np.uint8),
        train_offsets=np.cumsum([0] + [len(file) for file in files]),
        train_labels=np.arange(9),
        class_names=np.array(["a"]),
        test_bytes=np.zeros(3, dtype=np.uint8),
    )
    monkeypatch.setattr(evidence, "HELD", 4)
    evidence.hold_back(f"pack:{tmp_path / 'pack.npz'}", tmp_path / "new" / "held.npz")
    with np.load(tmp_path / "new" / "held.npz") as held:
        for name, expected in (("train", files[:5]), ("test", files[5:])):
            where, contents = held[f"{name}_offsets"], held[f"{name}_bytes"]
            found = [contents[a:b].tobytes() for a, b in pairwise(where)]
            assert found == expected
        assert held["test_labels"].tolist() == [5, 6, 7, 8]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["held.npz"]
    made = (tmp_path / "new" / "held.npz").stat().st_mtime_ns
    evidence.hold_back(f"pack:{tmp_path / 'pack.npz'}", tmp_path / "new" / "held.npz")
    assert (tmp_path / "new" / "held.npz").stat().st_mtime_ns == made
    with np.load(tmp_path / "pack.npz") as pack:
        np.savez(tmp_path / "other.npz", **{**pack, "train_labels": np.arange(9)[::-1]})
    evidence.hold_back(f"pack:{tmp_path / 'other.npz'}", tmp_path / "new" / "held.npz")
    with np.load(tmp_path / "new" / "held.npz") as held:
        assert held["test_labels"].tolist() == [3, 2, 1, 0]
    with pytest.raises(SystemExit, match="expected --data pack:FILE.npz"):
        evidence.hold_back("cifar10", tmp_path / "other.npz")


def accuracy(arm: str, seed: int, corruption: str = "", severity: int = 0) -> float:
    """Some number for each, of which means and differences can be told."""
    gain = {"standard": 0.0, "masked-label": 0.03, "finetuned": 0.05, "continued": 0.01}.get(arm, 0)
    harm = 0.04 * severity + (0.002 * len(corruption) if corruption else 0)
    return 0.9 + gain - harm + 0.004 * (-1) ** seed * (seed + len(arm) % 3)


def make_job(
    folder: Path,
    arm: str,
    seed: int,
    *,
    limit: int | str = "",
    epochs: int = 60,
    k: int = 1,
    count: int = 100,
) -> Path:
    job = folder / f"{arm}-seed{seed}-abcdef"
    job.mkdir(parents=True)
    anchored = arm not in ("standard", "continued")
    first = {"model": job.name, "network": "killick:resnet18", "seed": seed, "weights": "w"}
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
        suites = {"corruptions": "c", "cbar": "cbar-cifar"}
        judge(suite, 0.123, mean_of=suites[suite], severity="all")
    for number, name in enumerate((*evidence_jobs.OOD_SETS, *evidence_jobs.MADE)):
        for score in ("energy", "entropy"):
            worse = 0.2 if score == "entropy" else 0.0
            add("ood", "auroc", accuracy(arm, seed) - 0.01 * number - worse, set=name, score=score)
            add("ood", "fpr_at_95_tpr_in", 0.4 + 0.01 * seed + worse, set=name, score=score)
    write_rows(job, rows)
    if arm == "masked-label":
        lines = ["pair,share,reference,top1,confidence,entropy"]
        for share in (0.0, 0.5, 1.0):
            lines += [f"faded,{share},{n},{share},{0.8 * share + 0.1 * n},0.5" for n in (0, 1)]
        (job / "gate.csv").write_text("\n".join(lines))
    recipe = {"network": {"name": "killick:resnet18"}, "epochs": epochs, "seed": seed}
    (job / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    about = {"arm": arm, "seed": seed, "finished": True, "seconds": {"train": 1.0, "evaluate": 2.0}}
    (job / "job.json").write_text(json.dumps(about))
    return job


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """Jobs of all grids, with made-up numbers."""
    monkeypatch.setattr(evidence_results, "_draw_first", lambda *given: None)
    place = tmp_path / "work"
    for arm in FIRST:
        make_job(place / "first-references", arm, 0, k=5 if arm == "masked-label" else 1)
        for seed in (1, 2):
            make_job(place / "first", arm, seed)
    make_job(place / "second", "uniform-batch", 0)
    make_job(place / "again", "standard", 2)
    return place


@pytest.mark.slow
def test_means_and_differences_are_those_of_the_jobs(work, tmp_path):
    evidence_results.write_results(work, tmp_path / "out")
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


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    """Three made-up benchmarks, of which the second fails."""
    (tmp_path / "results").mkdir()
    (tmp_path / "good.py").write_text(
        "import sys, pathlib\npathlib.Path(__file__).with_name('asked').write_text(str(sys.argv))"
    )
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    made = {"first": ["good.py", "DATA", "--more"], "second": ["bad.py"], "third": ["good.py"]}
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "BENCHMARKS", made)
    monkeypatch.setattr(gpu, "RECORD", tmp_path / "gpu.csv")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return tmp_path


def test_what_fails_is_told_and_the_others_run(sitting, capfd):
    assert gpu.main(["--data", "pack:mine.npz"]) == 1
    lines = read(sitting / "gpu.csv")
    assert [line["benchmark"] for line in lines] == ["first", "second", "third"]
    assert [line["exit_code"] for line in lines] == ["0", "3", "0"]
    assert {line["code"] for line in lines} == {gpu.digest_code()}
    assert lines[0]["command"] == "python benchmarks/good.py pack:cifar10.npz --more"
    assert capfd.readouterr().err == "failed: second\n"
    assert gpu.main(["--data", "pack:mine.npz", "--left"]) == 1
    assert capfd.readouterr().out.count("exit code") == 1  # of the second alone
    assert len(read(sitting / "gpu.csv")) == 3


def test_a_row_that_was_not_measured_is_refused(tmp_path):
    head = "setting,contender,baseline,ratio,ratio_p10,ratio_p90\n"
    (tmp_path / "a.csv").write_text(f"{head}s,x,b,1.5,1,2\ns,b (control),b,1,0.9,1.1\n")
    row = "| {} | s | 1.0 | (1 to 2) | [a](a.csv) |"
    assert (
        timing_tables.renew(row.format("x"), tmp_path)
        == "| x | s | 1.500 | (0.90 to 1.10) | [a](a.csv) |"
    )
    with pytest.raises(SystemExit, match="expected 'y' with 's' in a.csv, found no such line"):
        timing_tables.renew(row.format("y"), tmp_path)


# Epochs of tuning ---------------------------------------------------------------------------------


def test_tuning_with_and_without_masks_differs_in_the_protocol_alone():
    arms = {arm.name: arm for arm in tuning_epochs.make_arms()}
    assert len(arms) == 11
    for epochs in (1, 2, 5, 10, 20):
        masked, plain = (arms[f"{way}-{epochs}"] for way in ("masked-label", "standard"))
        assert masked.after is plain.after is tuning_epochs.FINISHED
        own, other = (
            {k: v for k, v in a.settings.items() if "protocol" not in k} for a in (masked, plain)
        )
        assert own == other == {"epochs": epochs, "optimizer.lr": 0.01}


def test_the_bins_of_a_tuned_network_hold_all_its_images_and_give_its_accuracy():
    tables = []
    for table in ("epochs", "reliability"):
        with open(tuning_epochs.FOLDER / f"{table}.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert len(tables[0]) == 33
    for network in tables[0]:
        about = [network[key] for key in ("tuning", "epochs", "seed")]
        bins = [row for row in tables[1] if [row[k] for k in ("tuning", "epochs", "seed")] == about]
        images = [int(row["images"]) for row in bins]
        right = sum(n * float(row["accuracy"]) for n, row in zip(images, bins, strict=True))
        assert sum(images) == 19 * 5 * 500
        assert right / sum(images) == pytest.approx(float(network["corrupted"]), abs=2e-5)


def test_differences_of_tuning_are_paired_by_seed(tmp_path, monkeypatch):
    lines = ['tuning,epochs,seed,clean,corrupted,severity 5,"smooth ECE, corrupted"']
    masked = {"0": 0.52, "1": 0.63, "2": 0.73}
    for seed, value in masked.items():
        plain = float(f"0.{int(seed) + 5}")
        lines.append(f"standard,5,{seed},0,{plain},0,0")
        lines.append(f"masked-label,5,{seed},0,{value},0,0")
    (tmp_path / "epochs.csv").write_text("\n".join(lines))
    monkeypatch.setattr(tuning_table, "FILE", tmp_path / "epochs.csv")
    low, high = stats.ttest_1samp([2, 3, 3], 0).confidence_interval()
    cells = tuning_table.describe_tuning().splitlines()[-1].split(" | ")
    assert cells[2] == f"**+2.7**<br>{low:+.1f}\u00a0to\u00a0{high:+.1f}"
