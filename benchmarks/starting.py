"""How fast runs start, and whether `auto` execution is never much slower than the best fixed one.

    python benchmarks/starting.py --data pack:cifar10.npz --imagenette imagenette

On a GPU some minutes; `--minute` also measures runs of one minute, which takes as long again.
Targets: less than 10 s from the command to the first step, first reading of the data apart, with an
empty compiler cache and with a full one; `auto` at most 1.1 times as slow as the best of eager and
captured, for runs of 10 s, 1 min and 10 min of work. Each run is a process of its own. `first_step`
and `reading` are seconds; `seconds` is the whole command without its test. A run of 10 s has as many
steps as the captured one takes in that time once it runs. What is `computed` follows from a
measured start and the time of a step.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    from killick.training import loop, step_loop
    from killick.training.run_state import TrainingRun
    from killick.training.training_data import load_training_data

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

    step, log, end = TrainingRun.take_step, step_loop._log_training, loop._finish
    vars(loop).update(
        load_training_data=timed(load_training_data),
        _finish=finish,
    )
    vars(step_loop).update(_log_training=log_training)
    setattr(TrainingRun, "take_step", take_step)  # noqa: B010
    code = killick_command(words)
    notes.write_text(json.dumps(seen))
    sys.exit(code)


def measure(recipe: str, data: list[str], execution: str, steps: int, cache: Path) -> Line:
    """One run; seconds to its first step, of the steps, and of all."""
    with tempfile.TemporaryDirectory() as work:
        notes = Path(work) / "notes.json"
        words = ["train", "--recipe", recipe, *data, "--execution", execution]
        words += [
            "--output",
            str(Path(work) / "run"),
            "--data.validation",
            "0",
            "--log-every",
            "20",
        ]
        words += ["--epochs", str(epochs_of(recipe, steps))]
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


def epochs_of(recipe: str, steps: int) -> int:
    """Epochs of at least so many steps."""
    return max(1, -(-steps // STEPS_PER_EPOCH[recipe]))


STEPS_PER_EPOCH = {"cifar10-resnet18": 390, "imagenette-resnet18": 46, "small-shapes": 46}


def compute(line: Line, work: int, steps: int) -> Line:
    """The same run with other steps, from its start and the time of its later steps."""
    seconds = line["seconds"] + (steps - line["steps"]) * line["step_ms"] / 1000
    return line | {"work": work, "steps": steps, "how": "computed", "seconds": round(seconds, 2)}


def compute_auto(auto: Line, captured: Line, compiling: float, work: int, steps: int) -> Line:
    """The same of `auto`, which compiles where that repays itself, and then steps as `captured`."""
    line = compute(auto, work, steps)
    if auto["step_ms"] * steps / 1000 * COMPILE_GAIN < COMPILE_SECONDS:
        return line
    line = compute(auto | {"step_ms": captured["step_ms"]}, work, steps)
    return line | {"seconds": round(line["seconds"] + compiling, 2)}


def table_of(
    recipe: str, data: list[str], caches: Path, cold: Line, minute: bool
) -> Iterator[Line]:
    """All runs of one recipe, each alone; `cold` is the one that filled the compiler's cache."""
    probe, full = 2 * STEPS_PER_EPOCH[recipe], caches / recipe
    captured = measure(recipe, data, "captured", 4 * probe, full) | {"cache": "full"}
    steps = {work: int(1000 * work / captured["step_ms"]) for work in WORK}
    yield captured | {"work": ""}
    eager = measure(recipe, data, "eager", probe, full) | {"cache": ""}
    yield eager | {"work": ""}
    auto = measure(recipe, data, "auto", steps[10], caches / f"{recipe}-auto") | {"cache": "empty"}
    yield auto | {"work": 10}
    compiling = cold["first_step"] - auto["first_step"]
    for work in WORK:
        yield compute(eager, work, steps[work])
        if work == 60 and minute:
            for execution, place in (("captured", full), ("auto", caches / f"{recipe}-auto")):
                found = measure(recipe, data, execution, steps[work], place)
                yield found | {"work": work, "cache": "full"}
            continue
        yield compute(captured, work, steps[work])
        if work != 10:
            yield compute_auto(auto, captured, compiling, work, steps[work])


def main() -> None:
    """Measure and write."""
    if sys.argv[1:2] == ["--run"]:
        run_command(sys.argv[3:], Path(sys.argv[2]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="CIFAR-10, as killick takes it")
    parser.add_argument("--imagenette", help="a folder with train and test")
    parser.add_argument("--minute", action="store_true", help="measure also runs of one minute")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    recipes: dict[str, list[str]] = {"small-shapes": []}
    if options.data:
        recipes["cifar10-resnet18"] = ["--data", options.data]
    if options.imagenette:
        recipes["imagenette-resnet18"] = ["--data", f"imagefolder:{options.imagenette}"]
    lines: list[Line] = []

    def note(line: Line) -> None:
        print(*(f"{name} {line.get(name, '')}" for name in FIELDS), sep="  ", flush=True)
        lines.append(line)
        write(lines, options.results)

    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor() as threads:
        caches = Path(work)

        def fill(recipe: str) -> Line:
            probe = 2 * STEPS_PER_EPOCH[recipe]
            line = measure(recipe, recipes[recipe], "captured", probe, caches / recipe)
            return line | {"cache": "empty, all recipes at once", "work": ""}

        cold = dict(zip(recipes, threads.map(fill, recipes), strict=True))
        for line in cold.values():
            note(line)
        for recipe, data in recipes.items():
            for line in table_of(recipe, data, caches, cold[recipe], options.minute):
                note(line)


def write(lines: list[Line], folder: Path) -> None:
    """What was measured so far."""
    import torch

    kind = "gpu" if torch.cuda.is_available() else "cpu"
    with open(folder / f"starting-{kind}.csv", "w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(lines)


if __name__ == "__main__":
    main()
