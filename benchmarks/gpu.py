"""All benchmarks that have figures of a GPU, one after the other on one machine and one code.

    python benchmarks/gpu.py --data pack:cifar10.npz              # about 20 minutes on an H200
    python benchmarks/gpu.py --data pack:cifar10.npz --only step folded

Each writes its own file in `results`. What ran is written to `results/gpu.csv` after each: the
command, how long it took, and `code`, which stands for every file of the library: two lines with
the same one were measured on the same code. Then `python docs/timing_tables.py` puts the figures into the
pages. One that fails is told, and the others run; the exit code is 1.
"""

import argparse
import csv
import hashlib
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = HERE.parent / "src" / "killick"
RECORD = HERE / "results" / "gpu.csv"
BENCHMARKS = {
    "step": ["step.py"],
    "folded": ["folding.py"],
    "training-steps": ["training.py", "DATA", "--only", "steps"],
    "training-runs": ["training.py", "DATA", "--only", "runs"],
    "corruptions": ["corruptions.py", "--classify", "DATA"],
    "transduction": ["transduction.py"],
    "references": ["references.py", "--preset", "cifar", "--data", "DATA", "--epochs", "20"],
}


def digest_code(library: Path = LIBRARY) -> str:
    """Twelve letters that stand for all files of the library, wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(library.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(library).as_posix()}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def run(name: str, data: str) -> dict[str, str]:
    """One benchmark, in a process of its own; the line about it."""
    words = [data if word == "DATA" else word for word in BENCHMARKS[name]]
    shown = ["pack:cifar10.npz" if word == "DATA" else word for word in BENCHMARKS[name]]
    print(f"{name}: benchmarks/{' '.join(words)}", flush=True)
    began, code = time.monotonic(), digest_code()
    done = subprocess.run([sys.executable, str(HERE / words[0]), *words[1:]])
    seconds = time.monotonic() - began
    print(f"{name}: exit code {done.returncode}, {seconds:.0f} s", flush=True)
    return {
        "benchmark": name,
        "command": f"python benchmarks/{' '.join(shown)}",
        "seconds": f"{seconds:.0f}",
        "exit_code": str(done.returncode),
        "code": code,
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def record(line: dict[str, str], path: Path = RECORD) -> None:
    """Put a line into the record, in the place of an older one of the same benchmark."""
    lines = {}
    if path.exists():
        with open(path, newline="") as file:
            lines = {old["benchmark"]: old for old in csv.DictReader(file)}
    lines[line["benchmark"]] = line
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(line), lineterminator="\n")
        table.writeheader()
        table.writerows(lines[name] for name in BENCHMARKS if name in lines)


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 1 if any failed."""
    parser = argparse.ArgumentParser(description="All figures of a GPU, in one sitting.")
    parser.add_argument("--data", required=True, help="CIFAR-10, as killick takes it")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="these alone")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        parser.error("expected a GPU, found none. On a CPU: make bench")
    lines = []
    for name in options.only or BENCHMARKS:
        lines.append(run(name, options.data))
        record(lines[-1])
    failed = [line["benchmark"] for line in lines if line["exit_code"] != "0"]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
