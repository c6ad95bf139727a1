"""How fast runs start, and whether `auto` execution is never much slower than the best fixed one.

    python benchmarks/starting.py --data pack:cifar10.npz --imagenette imagenette      # on a GPU, about ten minutes
    python benchmarks/starting.py --tiny                                            # tries it, on any machine

Targets: less than 10 s from the command to the first step, first reading of the data apart, with an
empty compiler cache and with a full one; `auto` at most 1.1 times as slow as the best of eager and
captured, for runs of 10 s, 1 min and 10 min of work. Each run is a process of its own. `first_step`
and `reading` are seconds; `seconds` is the whole command without its test. A run of 10 s has as many
steps as the captured one takes in that time once it runs. Runs of 1 min are measured for `auto` and
`captured`; the others, and those of 10 min, follow from start and time of a step (`computed`).
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paired_timing import RESULTS

from killick.training.run_state import COMPILE_GAIN, COMPILE_SECONDS

WORK = (10, 60, 600)
FIELDS = (
    *("recipe", "execution", "cache", "work", "steps", "how"),
    *("seconds", "first_step", "reading", "step_ms"),
)
Line = dict[str, Any]


def run_command(words: list[str], notes: Path) -> None:
    """In a process of its own: `killick train`, with the time of its steps written down."""
    from killick.cli import main as killick_command
    from killick.training import loop
    from killick.training.run_state import TrainingRun

    seen: dict[str, Any] = {"reading": 0.0, "first_step": None, "looks": []}

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.time()
            found = function(*arguments, **options)
            seen["reading"] += time.time() - began
            return found

        return call

    def take_step(run: TrainingRun) -> None:
        step(run)
        if seen["first_step"] is None:
            run.bad_step()  # waits for the device
            seen["first_step"] = time.time()

    def log_training(run: TrainingRun, *rest: Any) -> None:
        log(run, *rest)
        seen["looks"].append((run.done, time.time()))

    def finish(run: TrainingRun, *rest: Any) -> Any:
        seen["end"] = time.time()
        return end(run, *rest)

    step, log, end = TrainingRun.take_step, loop._log_training, loop._finish
    vars(loop).update(
        load_training_data=timed(loop.load_training_data),
        _log_training=log_training,
        _finish=finish,
    )
    TrainingRun.take_step = take_step  # type: ignore[method-assign]
    code = killick_command(words)
    notes.write_text(json.dumps(seen))
    sys.exit(code)


def measure(recipe: str, data: list[str], execution: str, steps: int, cache: Path) -> Line:
    """One run; seconds to its first step, of the steps, and of all."""
    with tempfile.TemporaryDirectory() as work:
        notes = Path(work) / "notes.json"
        words = ["train", "--recipe", recipe, *data, "--execution", execution]
        words += ["--output", str(Path(work) / "run"), "--data.validation", "0", "--log-every", "20"]
        words += ["--epochs", str(epochs_of(recipe, data, steps))]
        places = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
        environment = os.environ | {name: str(cache / part) for name, part in places.items()}
        began = time.time()
        subprocess.run(
            [sys.executable, __file__, "--run", str(notes), *words],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        seen = json.loads(notes.read_text())
    (before, since), (done, until) = seen["looks"][len(seen["looks"]) // 2], seen["looks"][-1]
    return {
        "recipe": recipe,
        "execution": execution,
        "steps": done,
        "how": "measured",
        "seconds": round(seen["end"] - began, 2),
        "first_step": round(seen["first_step"] - began - seen["reading"], 2),
        "reading": round(seen["reading"], 2),
        "step_ms": round(1000 * (until - since) / max(1, done - before), 3),
    }


def epochs_of(recipe: str, data: list[str], steps: int) -> int:
    """Epochs of at least so many steps."""
    per_epoch = STEPS_PER_EPOCH[recipe]
    return max(1, -(-steps // per_epoch))


STEPS_PER_EPOCH = {"cifar10-resnet18": 390, "imagenette-resnet18": 46, "small-shapes": 23}


def compute(line: Line, work: int, steps: int) -> Line:
    """The same run with other steps, from its start and the time of its later steps."""
    seconds = line["seconds"] + (steps - line["steps"]) * line["step_ms"] / 1000
    return line | {"work": work, "steps": steps, "how": "computed", "seconds": round(seconds, 2)}


def table_of(recipe: str, data: list[str], caches: Path, tiny: bool) -> list[Line]:
    """All runs of one recipe."""
    lines: list[Line] = []

    def note(line: Line, **facts: Any) -> Line:
        line = {**facts, **line}
        print(*(f"{name} {line.get(name, '')}" for name in FIELDS), sep="  ", flush=True)
        lines.append(line)
        return line

    cache = caches / recipe
    probe = 2 * STEPS_PER_EPOCH[recipe]
    cold = note(measure(recipe, data, "captured", probe, cache), cache="cold", work="")
    steps = {work: int(work / (cold["step_ms"] / 1000)) for work in WORK}
    if tiny:
        steps = {work: probe for work in WORK}
    found: dict[str, Line] = {}
    for execution in ("eager", "captured", "auto"):
        found[execution] = note(
            measure(recipe, data, execution, steps[10], cache), cache="full", work=10
        )
    note(measure(recipe, data, "auto", probe, caches / f"{recipe}-empty"), cache="cold", work="")
    for execution in ("captured", "auto"):
        found[execution] = note(
            measure(recipe, data, execution, steps[60], cache), cache="full", work=60
        )
    note(compute(found["eager"], 60, steps[60]), cache="full")
    for line in found.values():
        note(compute(line, 600, steps[600]), cache="full")
    if seconds_left(lines[-1]) * COMPILE_GAIN >= COMPILE_SECONDS:
        lines[-1] = compiled_later(lines[-1], found["captured"], cold)
    return lines


def seconds_left(line: Line) -> float:
    """Of a run, after its first step."""
    return float(line["steps"] * line["step_ms"] / 1000)


def compiled_later(auto: Line, captured: Line, cold: Line) -> Line:
    """A long `auto` run: it compiles on its way, with an empty cache, and then steps as `captured`."""
    compiling = cold["first_step"] - auto["first_step"]
    seconds = auto["first_step"] + auto["reading"] + compiling + seconds_left(captured | {"steps": auto["steps"]})
    return auto | {"seconds": round(seconds, 2), "step_ms": captured["step_ms"]}


def main() -> None:
    """Measure and write."""
    if sys.argv[1:2] == ["--run"]:
        run_command(sys.argv[3:], Path(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="CIFAR-10, as killick takes it")
    parser.add_argument("--imagenette", help="a folder with train and test")
    parser.add_argument("--tiny", action="store_true", help="two epochs each, nothing is written")
    options = parser.parse_args()
    recipes: dict[str, list[str]] = {"small-shapes": []}
    if options.data:
        recipes["cifar10-resnet18"] = ["--data", options.data]
    if options.imagenette:
        recipes["imagenette-resnet18"] = ["--data", f"imagefolder:{options.imagenette}"]
    lines = []
    with tempfile.TemporaryDirectory() as caches:
        for recipe, data in recipes.items():
            lines += table_of(recipe, data, Path(caches), options.tiny)
            if not options.tiny:
                write(lines)


def write(lines: list[Line]) -> None:
    """What was measured so far."""
    import torch

    kind = "gpu" if torch.cuda.is_available() else "cpu"
    with open(RESULTS / f"starting-{kind}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


if __name__ == "__main__":
    main()
