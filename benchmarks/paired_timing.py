"""Timing side by side: contenders take turns in one process, and ratios are taken turn by turn.

A machine drifts (clocks, neighbors), so a ratio of two separate runs says little. Here every round
times each contender once, in an order that changes, and the figure is the median over rounds of
that round's ratio. The first contender runs twice under two names: its ratio to itself is the
control, and a ratio inside the control's spread is no difference.

On a CPU ratios are of the process's CPU time, so that waiting for a neighbor does not count;
milliseconds and images per second are wall time everywhere.
"""

import csv
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ratio:
    """One contender against the first, over rounds."""

    benchmark: str
    setting: str
    contender: str
    baseline: str
    ratio: float
    ratio_p10: float
    ratio_p90: float
    milliseconds: float
    per_second: float
    rounds: int
    device: str
    torch: str


def compare(
    benchmark: str,
    setting: str,
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    items: int,
    repeats: int = 1,
    device: torch.device | str = "cpu",
) -> list[Ratio]:
    """Time `contenders` in turns; the first is the baseline, and is its own control.

    Args:
        benchmark: Its name.
        setting: What is being timed, in words.
        contenders: Functions without arguments.
        rounds: How often each gets its turn.
        items: Images that one call works on.
        repeats: Calls in a turn.
        device: Waited for at the end of a turn.
    """
    device = torch.device(device)
    first = next(iter(contenders))
    runs = {**contenders, f"{first} (control)": contenders[first]}
    clocks: dict[str, list[float]] = {name: [] for name in runs}
    walls: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    for number in range(rounds):
        names = list(runs)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            clock, wall = _turn(runs[name], repeats, device)
            clocks[name].append(clock / repeats)
            walls[name].append(wall / repeats)
    rows = []
    for name in runs:
        if name == first:
            continue
        ratios = [t / b for t, b in zip(clocks[name], clocks[first], strict=True)]
        tenths = statistics.quantiles(ratios, n=10)
        middle = statistics.median(walls[name])
        rows.append(
            Ratio(
                benchmark,
                setting,
                name,
                first,
                round(statistics.median(ratios), 4),
                round(tenths[0], 4),
                round(tenths[-1], 4),
                round(1000 * middle, 4),
                round(items / middle, 1),
                rounds,
                device_name(device),
                torch.__version__.split("+")[0],
            )
        )
    for row in rows:
        print(
            f"{setting:44} {row.contender:24} {row.ratio:7.3f}x {row.baseline}"
            f"  (10 to 90 %: {row.ratio_p10:.3f} to {row.ratio_p90:.3f})"
            f"  {row.milliseconds:9.3f} ms  {row.per_second:10,.0f} /s",
            flush=True,
        )
    return rows


def _turn(run: Callable[[], object], repeats: int, device: torch.device) -> tuple[float, float]:
    """Seconds by the clock that counts, and by the wall."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    wall, busy = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        run()
    if cuda:
        torch.cuda.synchronize()
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    return (wall if cuda else busy), wall


def device_name(device: torch.device) -> str:
    """The machine in a word or two."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def write(name: str, rows: list[Ratio]) -> None:
    """Write all rows of a benchmark to its file in `results`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(asdict(rows[0])), lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
    print(f"written: benchmarks/results/{path.name}")
