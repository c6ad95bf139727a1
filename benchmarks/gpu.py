"""All benchmarks that have figures of a GPU, one after the other on one machine and one code.

    python benchmarks/gpu.py --data pack:cifar10.npz --imagenette imagenette
    python benchmarks/gpu.py --data pack:cifar10.npz --only step folded
    python benchmarks/gpu.py --data pack:cifar10.npz --imagenette imagenette --left

Those in `results/gpu.csv` took about 20 minutes on an H200; the others have not been run on a GPU yet.
Each writes its own file in `results`, those that take longer a row at a time. What ran is written to
`results/gpu.csv` after each: the command, how long it took, and `code`, which stands for every file of
the library: two lines with the same one were measured on the same code. With `--left` those that have
such a line are not run again, so that a sitting may be cut into short commands; `imagenette` goes on
with the runs that are left. Then `python docs/timing_tables.py` puts the figures into the pages. One
that fails is told, and the others run; the exit code is 1.
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
    "decoding": ["decoding.py", "--only", "decoders"],
    "decoding-resnet50": ["decoding.py", "--only", "resnet50"],
    "decoding-resnet18": ["decoding.py", "--only", "resnet18"],
    "evaluation": ["evaluation.py"],
    "starting": ["starting.py", "--data", "DATA", "--imagenette", "IMAGENETTE"],
    "augmentations": ["augmentations.py", "--device", "cuda"],
    "step": ["step.py"],
    "folded": ["folding.py"],
    "training-steps": ["training.py", "DATA", "--only", "steps"],
    "training-runs": ["training.py", "DATA", "--only", "runs"],
    "corruptions": ["corruptions.py", "--classify", "DATA"],
    "transduction": ["transduction.py"],
    "references": ["references.py", "--preset", "cifar", "--data", "DATA", "--epochs", "20"],
    "imagenette": ["imagenette.py", "--data", "IMAGENETTE", "--work", "imagenette-grid"],
}
SHOWN = {"DATA": "pack:cifar10.npz", "IMAGENETTE": "imagenette"}


def digest_code(library: Path = LIBRARY) -> str:
    """Twelve letters that stand for all files of the library, wherever it lies."""
    digest = hashlib.sha256()
    for path in sorted(library.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(library).as_posix()}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def run(name: str, data: dict[str, str]) -> dict[str, str]:
    """One benchmark, in a process of its own; the line about it."""
    words, shown = ([given.get(word, word) for word in BENCHMARKS[name]] for given in (data, SHOWN))
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


def recorded() -> dict[str, dict[str, str]]:
    """The lines of the record, by benchmark."""
    if not RECORD.exists():
        return {}
    with open(RECORD, newline="") as file:
        return {line["benchmark"]: line for line in csv.DictReader(file)}


def record(line: dict[str, str]) -> None:
    """Put a line into the record, in the place of an older one of the same benchmark."""
    lines = recorded() | {line["benchmark"]: line}
    with open(RECORD, "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(line), lineterminator="\n")
        table.writeheader()
        table.writerows(lines[name] for name in BENCHMARKS if name in lines)


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 1 if any failed."""
    parser = argparse.ArgumentParser(description="All figures of a GPU, in one sitting.")
    parser.add_argument("--data", required=True, help="CIFAR-10, as killick takes it")
    parser.add_argument("--imagenette", help="folder with train and test; none: without these")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="these alone")
    parser.add_argument("--left", action="store_true", help="not those measured on this code")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        parser.error("expected a GPU, found none. On a CPU: make bench")
    data = {"DATA": options.data, "IMAGENETTE": options.imagenette}
    names, code = list(options.only or BENCHMARKS), digest_code()
    if options.imagenette is None:
        names = [name for name in names if "IMAGENETTE" not in BENCHMARKS[name]]
    if options.left:
        done = [
            n for n, line in recorded().items() if (line["code"], line["exit_code"]) == (code, "0")
        ]
        names = [name for name in names if name not in done]
    lines = []
    for name in names:
        lines.append(run(name, data))
        record(lines[-1])
    failed = [line["benchmark"] for line in lines if line["exit_code"] != "0"]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
