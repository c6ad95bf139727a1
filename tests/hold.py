"""Faults on purpose: kills, two commands on one folder, full disks, hostile files, threads, many calls.

    python tests/hold.py [SCENARIO ...] [--scale 1.0] [--seed 0] [--write FILE.csv]

Every attempt runs in a child process and ends in one of the outcomes that its scenario allows; any
other is printed, and the exit code is 1. `--scale` multiplies the number of attempts.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fuzz
import torch
from permissions import obey_permissions
from runs import make_image_folder

import killick
from killick.cli import main

SECONDS = 120  # for one command


@dataclass(frozen=True)
class Scenario:
    """A kind of fault.

    Attributes:
        about: One line for the table.
        attempts: At scale 1.
        attempt: Given a folder of its own and a source of chance; returns the outcome.
        good: The outcomes that are allowed.
    """

    about: str
    attempts: int
    attempt: Callable[[Path, random.Random], str]
    good: tuple[str, ...]


SCENARIOS: dict[str, Scenario] = {}


def scenario(about: str, attempts: int, *good: str) -> Callable[..., Callable[..., str]]:
    """Register an attempt under its own name."""

    def register(attempt: Callable[[Path, random.Random], str]) -> Callable[..., str]:
        name = attempt.__name__.replace("_", "-")
        SCENARIOS[name] = Scenario(about, attempts, attempt, good)
        return attempt

    return register


# Children: forked, so that torch is imported once. The parent itself never computes anything.


def start(words: list[object], log: Path, prepare: Callable[[], None] | None = None) -> int:
    """Run a command of Killick in a child; its process id."""
    return start_function(lambda: main([str(word) for word in words]), log, prepare)


def start_function(
    work: Callable[[], int], log: Path, prepare: Callable[[], None] | None = None
) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        with open(log, "ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        torch.set_num_threads(1)
        if prepare is not None:
            prepare()
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(code)


def wait(child: int, seconds: float = SECONDS) -> int:
    """The exit code; minus the signal if one ended it; -1000 if it did not end in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    kill(child)
    return -1000


def kill(child: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, number)


def run(words: list[object], log: Path, prepare: Callable[[], None] | None = None) -> int:
    return wait(start(words, log, prepare))


def explain(log: Path, code: int) -> str:
    """How a command ended: "done", "refused" in one line, or what else."""
    text = log.read_text(errors="replace") if log.exists() else ""
    if "Traceback" in text:
        return f"traceback: {text.strip().splitlines()[-1][:200]}"
    lines = [line for line in text.splitlines() if line.startswith("killick: ")]
    if code == 0:
        return "done"
    if code == 2 and len(lines) == 1 and len(lines[0]) < 700:
        return "refused"
    return f"exit code {code}: {text.strip()[-200:]!r}"


def kill_at_random(
    words: list[object], again: list[object], folder: Path, chance: random.Random, longest: float
) -> tuple[int, str]:
    """Kill a command at random moments, up to three times, then let it end; kills and outcome."""
    kills = 0
    for number in range(chance.choice((1, 1, 2, 3))):
        log = folder / f"log{number}"
        child = start(words if number == 0 else again, log)
        time.sleep(chance.uniform(0.05, longest))
        kill(child)
        code = wait(child)
        kills += code == -signal.SIGKILL
        if code not in (0, 2, -signal.SIGKILL):
            return kills, explain(log, code)
    log = folder / "log-last"
    code = run(again, log)
    if code == 2:  # killed before there was anything to resume
        code = run(words, log := folder / "log-anew")
    return kills, explain(log, code)


def digest(folder: Path, *names: str) -> str:
    """A digest of some files."""
    found = hashlib.sha256()
    for name in names:
        for path in sorted(folder.glob(name)):
            found.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found.hexdigest()


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders."""
    return [str(p.relative_to(folder)) for p in folder.rglob(".*") if p.suffix in (".part", ".old")]


# What the attempts work on, made once, in a child.

SHARED: dict[str, Path] = {}
TRAIN = ["--data.size", "16", "--data.validation", "4", "--batch", "4", "--epochs", "15", "--quiet"]
TRAIN += ["--checkpoint-minutes", "0", "--log-every", "7"]


def prepare_shared(folder: Path) -> None:
    """Images, a finished run, its evaluation, an export."""
    SHARED["images"] = make_images(folder / "images")
    SHARED["run"], SHARED["export"] = folder / "run", folder / "export"
    for words in (
        ["train", *train_words(), "--output", SHARED["run"]],
        ["evaluate", SHARED["run"], *EVALUATE],
        ["export", SHARED["run"], "--output", SHARED["export"], "--quiet"],
    ):
        code = run(words, folder / "log")
        assert code == 0, (folder / "log").read_text()
    (SHARED["model"], SHARED["rows"]) = (folder / "run" / "model", folder / "run" / "rows.jsonl")


def make_images(folder: Path) -> Path:
    folder.mkdir()
    child = start_function(lambda: make_image_folder(folder) and 0, folder.parent / "log")
    assert wait(child) == 0
    return folder


def train_words() -> list[object]:
    return ["--recipe", "shapes-small", "--data", f"imagefolder:{SHARED['images']}", *TRAIN]


EVALUATE = ["--suite", "clean,corruptions,ood", "--severities", "1", "--quiet"]


def rows_of(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "rows.jsonl").read_text().splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda row: json.dumps(row))


# Kills.


@scenario("kill train at random moments, resume it", 60, "same bits")
def kill_train(folder: Path, chance: random.Random) -> str:
    out = folder / "run"
    _, outcome = kill_at_random(
        ["train", *train_words(), "--output", out],
        ["train", "--resume", out, "--quiet"],
        folder,
        chance,
        2.5,
    )
    if outcome != "done":
        return outcome
    files = ("model/config.json", "model/*.safetensors")
    if digest(out, *files[1:]) != digest(SHARED["run"], *files[1:]):
        return "other weights"
    if leftovers(out):
        return f"left behind: {leftovers(out)[:3]}"
    return "same bits" if _metrics(out) == _metrics(SHARED["run"]) else "other metrics"


def _metrics(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


@scenario("kill evaluate at random moments, run it again", 30, "same rows")
def kill_evaluate(folder: Path, chance: random.Random) -> str:
    out = folder / "rows"
    words = ["evaluate", SHARED["run"], *EVALUATE, "--output", out]
    _, outcome = kill_at_random(words, words, folder, chance, 4)
    if outcome != "done":
        return outcome
    wanted = [row for row in rows_of(SHARED["run"]) if row["evaluation_seed"] == 0]
    found = rows_of(out)
    known = {json.dumps(row) for row in wanted}
    if any(json.dumps(row) not in known for row in found):
        return "other rows"
    return f"left behind: {leftovers(out)[:3]}" if leftovers(out) else "same rows"


@scenario("kill compare at random moments, run it again", 8, "same bits")
def kill_compare(folder: Path, chance: random.Random) -> str:
    out = folder / "comparison"
    words: list[object] = ["compare", *train_words(), "--arm", "masked-label", "--seeds", "0"]
    words += ["--suite", "clean", "--jobs", "1", "--output", out]
    _, outcome = kill_at_random(words, words, folder, chance, 12)
    if outcome != "done":
        return outcome
    (model,) = out.glob("*/model")
    found = digest(model, "model-*.safetensors")
    (folder.parent / "compare-digest").open("a").write(found + "\n")
    known = set((folder.parent / "compare-digest").read_text().split())
    return "same bits" if len(known) == 1 else "other weights"


@scenario("kill export at random moments, run it again", 20, "whole")
def kill_export(folder: Path, chance: random.Random) -> str:
    out = folder / "export"
    words = ["export", SHARED["run"], "--output", out, "--quiet"]
    _, outcome = kill_at_random(words, words, folder, chance, 4)
    if outcome != "done":
        return outcome
    if leftovers(folder):
        return f"left behind: {leftovers(folder)[:3]}"
    names = ("model.onnx", "model.json")
    return "whole" if digest(out, *names) == digest(SHARED["export"], *names) else "other bytes"


@scenario("kill killick.save at random moments, load what is there", 60, "old or new")
def kill_save(folder: Path, chance: random.Random) -> str:
    out = folder / "model"
    shutil.copytree(SHARED["model"], out)

    def save_for_ever() -> int:
        model = killick.load(SHARED["model"])
        for number in range(10**6):
            with torch.no_grad():
                next(model.parameters()).mul_(1.001)
            model.class_names = tuple(f"{number}-{each}" for each in range(4))
            killick.save(model, out)
        return 0

    child = start_function(save_for_ever, folder / "log")
    time.sleep(chance.uniform(0.2, 1.0))
    kill(child)
    wait(child)

    def load_and_save() -> int:
        killick.save(killick.load(out), out)
        return 0

    code = wait(start_function(load_and_save, folder / "log2"))
    if code != 0:
        return explain(folder / "log2", code)
    names = sorted(path.name for path in out.iterdir())
    return "old or new" if len(names) <= 5 and not leftovers(out) else f"left behind: {names}"


# Two commands on one folder.


@scenario("two train commands into one folder, at once", 15, "one trains, one is refused")
def two_trains(folder: Path, chance: random.Random) -> str:
    out = folder / "run"
    words = [["train", *train_words(), "--seed", seed, "--output", out] for seed in (0, 1)]
    return _two(words, folder, chance, out)


@scenario("one run resumed twice, at once", 10, "one trains, one is refused")
def two_resumes(folder: Path, chance: random.Random) -> str:
    out = folder / "run"
    words: list[object] = ["train", *train_words(), "--output", out]
    child = start(words, folder / "log-first")
    while not (out / "checkpoint.pt").exists():
        time.sleep(0.001)
    kill(child)
    wait(child)
    return _two([["train", "--resume", out, "--quiet"]] * 2, folder, chance, out)


def _two(commands: list[list[object]], folder: Path, chance: random.Random, out: Path) -> str:
    children = []
    for number, words in enumerate(commands):
        children.append(start(words, folder / f"log{number}"))
        time.sleep(chance.uniform(0, 0.2))
    outcomes = sorted(explain(folder / f"log{n}", wait(child)) for n, child in enumerate(children))
    if outcomes == ["done", "refused"]:
        return "one trains, one is refused" if (out / "model").is_dir() else "no model"
    return ", ".join(outcomes)


@scenario("two evaluations into one folder, at once", 5, "all rows")
def two_evaluations(folder: Path, chance: random.Random) -> str:
    out = folder / "rows"
    suites = ("clean", "ood")
    children = [
        start(
            ["evaluate", SHARED["run"], "--suite", suite, "--quiet", "--output", out],
            folder / f"log{suite}",
        )
        for suite in suites
    ]
    codes = [wait(child) for child in children]
    if codes != [0, 0]:
        return ", ".join(explain(folder / f"log{s}", c) for s, c in zip(suites, codes, strict=True))
    found = {row["suite"] for row in rows_of(out)}
    return "all rows" if found >= set(suites) else f"only {sorted(found)}"


# Disks and permissions.


@scenario("files cannot grow (full disk) while training", 15, "refused", "done")
def full_disk_train(folder: Path, chance: random.Random) -> str:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = chance.choice((0, 1000, 30_000, 100_000, 400_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    read, write = os.pipe()

    def work() -> int:
        out = os.fdopen(write, "w")
        sys.stdout = sys.stderr = out  # the log itself must not be cut
        code = main(
            [
                str(w)
                for w in ("train", *train_words(), "--data.workers", 0, "--output", folder / "run")
            ]
        )
        out.flush()
        return code

    child = start_function(work, folder / "log", limit)
    os.close(write)
    with os.fdopen(read, errors="replace") as told:
        text = told.read()
    code = wait(child)
    (folder / "told").write_text(text)
    outcome = explain(folder / "told", code)
    left = leftovers(folder)
    return f"left behind: {left[:3]}" if left else outcome


@scenario("folders that may not be written or read", 12, "refused")
def no_permission(folder: Path, chance: random.Random) -> str:
    place = folder / "closed"
    shutil.copytree(SHARED["run"], place)
    words: list[object]
    mode, words = chance.choice(
        [
            (0o555, ["train", *train_words(), "--output", place / "new"]),
            (0o555, ["export", SHARED["run"], "--output", place / "new", "--quiet"]),
            (0o000, ["evaluate", place, "--suite", "clean", "--quiet"]),
            (0o000, ["report", place]),
            (0o000, ["predict", place, SHARED["images"], "--quiet"]),
            (0o000, ["train", "--resume", place, "--quiet"]),
        ]
    )
    place.chmod(mode)

    code = run(words, folder / "log", obey_permissions)
    place.chmod(0o755)
    return explain(folder / "log", code)


# Hostile files.


def _fuzzed(target: str) -> Callable[[Path, random.Random], str]:
    def attempt(folder: Path, chance: random.Random) -> str:
        case = fuzz.TARGETS[target](chance)

        def limit() -> None:
            room = fuzz.MEMORY + 8 * 2**30
            resource.setrlimit(resource.RLIMIT_AS, (room, room))

        def work() -> int:
            outcome = fuzz.judge(case, folder / "files")
            return 0 if outcome == "read" else 3

        child = start_function(work, folder / "log", limit)
        code = wait(child, fuzz.SECONDS)
        outcome = {0: "read", 3: "refused"}.get(code)
        return outcome or f"code {code}: {(folder / 'log').read_text(errors='replace')[-300:]}"

    attempt.__name__ = f"hostile_{target}"
    return attempt


for _target, _about in (
    ("images", "damaged images"),
    ("configs", "damaged recipes, models and rows"),
    ("checkpoints", "damaged checkpoints and weights"),
):
    scenario(_about, 150, "read", "refused")(_fuzzed(_target))


# Threads and many calls.


@scenario("8 threads predict with one model", 2, "same logits")
def eight_threads(folder: Path, chance: random.Random) -> str:
    def work() -> int:
        model = killick.load(SHARED["model"])
        images = [torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8) for _ in range(40)]
        wanted = [killick.predict(model, each).logits for each in images]
        wrong = []

        def use(order: list[int]) -> None:
            for number in order:
                found = killick.predict(model, images[number]).logits
                if not torch.equal(found, wanted[number]):
                    wrong.append(number)

        orders = [random.Random(n).sample(range(40), 40) * 5 for n in range(8)]
        threads = [threading.Thread(target=use, args=(order,)) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 1 if wrong else 0

    code = wait(start_function(work, folder / "log"))
    return "same logits" if code == 0 else explain(folder / "log", code)


@scenario("20,000 predictions in one process", 1, "flat memory")
def many_calls(folder: Path, chance: random.Random) -> str:
    def work() -> int:
        model = killick.load(SHARED["model"])
        image = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
        grown = []
        for number in range(20_000):
            killick.predict(model, image)
            if number in (5_000, 19_999):
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                grown.append(pages * os.sysconf("SC_PAGE_SIZE"))
        print(f"grew by {(grown[1] - grown[0]) / 2**20:.1f} MiB")
        return 0 if grown[1] - grown[0] < 16 * 2**20 else 1

    code = wait(start_function(work, folder / "log"), 300)
    return "flat memory" if code == 0 else (folder / "log").read_text()[-300:]


def hold(names: list[str], scale: float, seed: int) -> list[tuple[str, int, str, int, float]]:
    """Run scenarios: for each its line, attempts, outcomes, bad ones and seconds."""
    table = []
    with tempfile.TemporaryDirectory(prefix="killick-hold-") as made:
        prepare_shared(Path(made))
        for name in names:
            each = SCENARIOS[name]
            begun, outcomes = time.monotonic(), Counter[str]()
            top = Path(made) / name
            top.mkdir()
            for number in range(max(1, round(each.attempts * scale))):
                folder = top / str(number)
                folder.mkdir()
                outcome = each.attempt(folder, random.Random(f"{seed} {name} {number}"))
                outcomes[outcome] += 1
                if outcome not in each.good:
                    print(f"  {name} {number}: {outcome}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
            bad = sum(count for outcome, count in outcomes.items() if outcome not in each.good)
            told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common(4))
            seconds = time.monotonic() - begun
            table.append((each.about, outcomes.total(), told, bad, seconds))
            print(f"{each.about}: {told} ({seconds:.0f} s)", flush=True)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), help="which; all if none")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all attempts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="a CSV file for the table")
    options = parser.parse_args()
    rows = hold(options.scenarios or list(SCENARIOS), options.scale, options.seed)
    if options.write:
        with options.write.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("scenario", "attempts", "outcomes", "bad", "seconds"))
            writer.writerows((*row[:4], round(row[4], 1)) for row in rows)
    sys.exit(any(row[3] for row in rows))
