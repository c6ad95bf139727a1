"""Making corruptions: Killick against imagecorruptions-imaug, the whole of CIFAR-10-C, and C-bar.

    OMP_NUM_THREADS=1 python benchmarks/corruptions.py             one CPU thread
    python benchmarks/corruptions.py --threads 2
    python benchmarks/corruptions.py --classify pack:cifar10.npz   a GPU: made and classified

Claims, on one thread by CPU time, severity 3: at least 10 times as fast as the peer in total over
the 19 at 32 px with none slower, at least 4 times at 224 px; CIFAR-10-C (950,000 images) in under
3 core-minutes; C-bar's CIFAR list at least 50 times as fast as its authors' code, each of
ImageNet's at least 25 images a second. The peer works on one image at a time and has ImageNet's
constants at every size, so Killick uses them too. On a GPU: all of C and C-bar, 1.45 million images,
generated and classified by a ResNet-18 in under a minute.
"""

import argparse
import csv
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import killick
from killick.corruptions.suites import SEVERITIES, list_corruptions

RESULTS = Path(__file__).parent / "results"
SEVERITY = 3
# Images per CPU-second of the authors' code at 32 px, severity 3 (measured on a like machine).
AUTHORS = {
    "blue_noise_sample": 235,
    "checkerboard_cutout": 312,
    "inverse_sparkles": 63,
    "pinch_and_twirl": 43,
    "ripple": 60,
    "brownish_noise": 79,
    "circular_motion_blur": 107,
    "lines": 1820,
    "sparkles": 10,
    "transverse_chromatic_abberation": 2063,
}


def make_images(count: int, size: int) -> Tensor:
    """Smooth random images with some detail, the same each time."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 8, 8, generator=generator) * 255
    large = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic")
    noise = 12 * torch.randn(count, 3, size, size, generator=generator)
    return (large + noise).clamp(0, 255).to(torch.uint8)


def cpu_seconds(run: Callable[[], object], rounds: int) -> float:
    """The median over rounds, of the process."""
    run()
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return statistics.median(times)


def wall_seconds(run: Callable[[], object], rounds: int) -> float:
    """The median over rounds, by the wall."""
    run()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def against_peer(size: int, count: int, rounds: int, threads: int) -> list[dict[str, object]]:
    """The 19 common ones in turns with imagecorruptions-imaug, ImageNet's constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from imagecorruptions import corrupt as peer  # type: ignore[import-untyped]
    images = make_images(count, size)
    arrays = [np.ascontiguousarray(image.permute(1, 2, 0).numpy()) for image in images[:8]]
    generator = torch.Generator().manual_seed(0)
    clock = cpu_seconds if threads == 1 else wall_seconds
    rows: list[dict[str, object]] = []
    totals = [0.0, 0.0]
    for name in list_corruptions("c", "imagenet"):

        def ours(name: str = name) -> object:
            return killick.corrupt(images, name, SEVERITY, table="imagenet", generator=generator)

        def theirs(name: str = name) -> object:
            return [peer(a, severity=SEVERITY, corruption_name=name) for a in arrays]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            few = 1 if size > 100 and name in ("glass_blur", "zoom_blur") else rounds
            own, other = clock(ours, rounds) / count, clock(theirs, few) / len(arrays)
        totals[0] += own
        totals[1] += other
        rows.append(_row(f"peer, {size} px", name, own, other, threads))
    rows.append(_row(f"peer, {size} px", "all 19", totals[0], totals[1], threads))
    return rows


def whole_cifar(count: int, rounds: int, threads: int) -> list[dict[str, object]]:
    """CPU time for CIFAR-10-C, each corruption and severity measured on some images."""
    images = make_images(count, 32)
    generator = torch.Generator().manual_seed(0)
    total, rows = 0.0, []
    for name in list_corruptions("c", "cifar"):
        seconds = 0.0
        for severity in SEVERITIES:

            def ours(name: str = name, severity: int = severity) -> object:
                return killick.corrupt(images, name, severity, table="cifar", generator=generator)

            seconds += cpu_seconds(ours, rounds) / count
        total += seconds
        rows.append(_row("CIFAR-10-C, mean of severities", name, seconds / 5, None, threads))
    minutes = total * 10_000 / 60
    print(f"CIFAR-10-C, 950,000 images: {minutes:.2f} core-minutes")
    rows.append(
        {
            **_row("CIFAR-10-C", "950,000 images", total * 10_000, None, threads),
            "note": f"{minutes:.2f} core-minutes in all",
        }
    )
    return rows


def cbar(size: int, count: int, rounds: int, threads: int) -> list[dict[str, object]]:
    """C-bar's list for a size; for CIFAR against its authors' rates."""
    images = make_images(count, size)
    generator = torch.Generator().manual_seed(0)
    table = "cifar" if size == 32 else "imagenet"
    rows, totals = [], [0.0, 0.0]
    for name in list_corruptions("cbar", table):

        def ours(name: str = name) -> object:
            return killick.corrupt(images, name, SEVERITY, table=table, generator=generator)

        own = cpu_seconds(ours, rounds) / count
        other = 1 / AUTHORS[name] if table == "cifar" else None
        totals[0] += own
        totals[1] += other or 0
        rows.append(_row(f"C-bar, {size} px", name, own, other, threads))
    rows.append(_row(f"C-bar, {size} px", "all 10", totals[0], totals[1] or None, threads))
    return rows


def _row(
    setting: str, name: str, own: float, other: float | None, threads: int
) -> dict[str, object]:
    ratio = "" if other is None else round(other / own, 2)
    rate = "" if other is None else round(1 / other, 1)
    print(f"{setting:32} {name:34} {1 / own:12,.1f} /s  {rate!s:>10}  {ratio!s:>8}x", flush=True)
    return {
        "setting": setting,
        "corruption": name,
        "images_per_second": round(1 / own, 2),
        "other_images_per_second": rate,
        "times_as_fast": ratio,
        "threads": threads,
        "device": "CPU",
        "torch": torch.__version__.split("+")[0],
        "note": "",
    }


def classify(data: str) -> list[dict[str, object]]:
    """All of C and C-bar made and classified on a GPU, end to end, and the share of making."""
    from killick.data.sources import load_sets

    device = torch.device("cuda")
    test = load_sets(data).test
    assert test is not None
    net = killick.nets.create("killick:resnet18").to(memory_format=torch.channels_last)
    net = net.to(device).eval()
    model = killick.standard(net, ((0.49, 0.48, 0.45), (0.2, 0.2, 0.2)), image_shape=(3, 32, 32))
    rows = []
    for precision in ("float32", "bfloat16"):
        for attempt in ("first", "second"):
            begun = time.perf_counter()
            killick.evaluate(
                model, test, ("corruptions", "cbar"), precision=precision, device="cuda",
                batch=2000, quiet=True,
            )  # fmt: skip
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begun
            count = 29 * 5 * len(test)
            rows.append(_gpu(f"made and classified, {precision}, {attempt} time", count, seconds))
    images = test.images().to(device)
    made: dict[str, float] = {}
    for name in list_corruptions("c", "cifar") + list_corruptions("cbar", "cifar"):
        killick.corrupt(images[:250], name, SEVERITY, table="cifar")
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for severity in SEVERITIES:
            for block in images.split(250):
                generator = torch.Generator(device).manual_seed(0)
                killick.corrupt(block, name, severity, table="cifar", generator=generator)
        torch.cuda.synchronize()
        made[name] = time.perf_counter() - begun
        rows.append(_gpu(f"made: {name}", 5 * len(test), made[name]))
    rows.append(_gpu("made: all 29", 29 * 5 * len(test), sum(made.values())))
    return rows


def _gpu(setting: str, count: int, seconds: float) -> dict[str, object]:
    print(f"{setting:60} {seconds:8.2f} s {count / seconds:12,.0f} /s", flush=True)
    return {
        "setting": setting,
        "images": count,
        "seconds": round(seconds, 3),
        "images_per_second": round(count / seconds, 1),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__.split("+")[0],
    }


def write(name: str, rows: list[dict[str, object]]) -> None:
    """Write all rows to a file in `results`."""
    path = RESULTS / f"{name}.csv"
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    print(f"written: benchmarks/results/{path.name}")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--classify", metavar="DATA", help="on a GPU instead")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.classify:
        write("corruptions-h200", classify(options.classify))
        return
    torch.set_num_threads(options.threads)
    torch.zeros(2**23).sum()  # once a large array was freed, the allocator keeps memory at hand
    rows = against_peer(32, 256, options.rounds, options.threads)
    rows += against_peer(224, 16, options.rounds, options.threads)
    if options.threads == 1:
        rows += whole_cifar(256, options.rounds, 1)
        rows += cbar(32, 256, options.rounds, 1)
        rows += cbar(224, 16, options.rounds, 1)
    write(f"corruptions-cpu{'' if options.threads == 1 else f'-{options.threads}-threads'}", rows)


if __name__ == "__main__":
    main()
