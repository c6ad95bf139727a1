"""Fuzzing: files that were damaged on purpose are read, or refused in one line that names them.

    python tests/fuzz.py images|configs|checkpoints [--minutes 5] [--seed 0] [--keep FOLDER]

Each case is made from a seed and a number, so that it can be made again. Cases run in a child with
little memory and little time; when it dies, whoever started it knows of which case.
"""

import argparse
import copy
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import yaml
from PIL import Image

import killick
from killick.deploy.decoding_limits import decode_limited, measure_limited, read_file
from killick.errors import KillickError
from killick.results.rows import make_row, write_rows
from killick.results.run_folder import read_run
from killick.storage.weights import read_weights
from killick.training.checkpoint import load_checkpoint, save_checkpoint
from killick.training.recipe_files import load_recipe, shipped

LONGEST_MESSAGE, LONGEST_MISTAKE = 600, 300
SECONDS = 20  # for a case
MEMORY = 3 * 2**30  # beside what Python and torch take
BATCH = 250  # cases of a child


@dataclass(frozen=True)
class Case:
    """Files, and how they are read.

    Attributes:
        files: By name, in a folder of their own.
        read: Given the folder.
    """

    files: dict[str, bytes]
    read: Callable[[Path], object]


class Broken(Exception):
    """A case in which something else came out than a result or an error of Killick's."""


def judge(case: Case, folder: Path) -> str:
    """What came of a case: "read", or the kind of error.

    Raises:
        Broken: If that is neither a result nor an error in one line that says where.
    """
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    try:
        case.read(folder)
    except KillickError as error:
        text = str(error)
        longest = LONGEST_MESSAGE + LONGEST_MISTAKE * text.count("; ")  # recipes tell them all
        written = text.encode("utf-8", "replace").decode() == text
        if "\n" in text or len(text) >= longest or str(folder) not in text or not written:
            raise Broken(f"a message not fit to be shown: {text[:300]!r} of {len(text)}") from error
        return type(error).__name__
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}"[:500]) from error
    return "read"


# Bytes.

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate(data: bytes, chance: random.Random, others: list[bytes] | None = None) -> bytes:
    """`data` with a few things wrong: bits, lengths, parts missing, twice, or of another file."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        if not changed:
            break
        # Headers are at the beginning, and where the damage counts.
        end = chance.choice((64, 512, len(changed)))
        place = chance.randrange(min(end, len(changed)))
        kind = chance.randrange(9)
        if kind == 0:
            changed[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[place] = chance.randrange(256)
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place : place + chance.choice((1, 4, 16, 200))]
        elif kind == 4:
            part = changed[place : place + chance.choice((1, 4, 16, 200))]
            changed[place:place] = part * chance.choice((1, 2, 50))
        elif kind in (5, 6):
            form = chance.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
            number = chance.choice(_NUMBERS) & (2 ** (8 * struct.calcsize(form)) - 1)
            packed = struct.pack(form, number)
            changed[place : place + len(packed)] = packed
        elif kind == 7:
            changed[place:place] = chance.randbytes(chance.choice((1, 4, 100)))
        else:
            other = chance.choice(others) if others else data
            at = chance.randrange(len(other))
            changed[place : place + 200] = other[at : at + chance.choice((20, 200, len(other)))]
    return bytes(changed)


# Images.


@cache
def image_seeds() -> list[bytes]:
    """Small images of every kind."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 4), dtype=np.uint8)
    rgba = Image.fromarray(noise)
    rgb, exif = rgba.convert("RGB"), Image.Exif()
    exif[0x0112], exif[0x010E], exif[0x011A] = 6, "an image", 72.0
    deep = Image.fromarray(noise[..., :2].copy().view(np.uint16)[..., 0])
    lab = Image.frombytes("LAB", (16, 12), noise[..., :3].tobytes())
    several: dict[str, Any] = {"save_all": True, "append_images": [rgb.rotate(180), rgb]}
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (rgb, "JPEG", {"exif": exif}),
        (rgb, "JPEG", {"progressive": True, "subsampling": 2}),
        (rgb.convert("CMYK"), "JPEG", {}),
        (rgb, "MPO", several),
        (rgb, "PNG", {"exif": exif}),
        (rgba, "PNG", {"icc_profile": b"x" * 200}),
        (deep, "PNG", {}),
        (rgb.quantize(16), "PNG", {"transparency": b"\x00\x80"}),
        (rgb, "PNG", several),
        (rgb, "GIF", several | {"comment": b"hello"}),
        (rgba, "WEBP", {"lossless": True, "exif": exif}),
        (rgb, "WEBP", several),
        (rgb, "BMP", {}),
        (rgb.convert("1"), "BMP", {}),
        (rgb, "TIFF", {"exif": exif}),
        (rgb, "TIFF", several),
        (rgba, "TIFF", {"compression": "tiff_adobe_deflate"}),
        (rgb, "TIFF", {"compression": "tiff_lzw"}),
        (rgb, "TIFF", {"compression": "jpeg"}),
        (lab, "TIFF", {}),
        (deep, "TIFF", {"compression": "packbits"}),
        (rgb, "PPM", {}),
        (deep, "PPM", {}),
    ]
    found = []
    for image, kind, options in kinds:
        stream = io.BytesIO()
        more = [frame.copy() for frame in options.get("append_images", [])]
        options = {**options, "append_images": more}
        image.copy().save(stream, kind, **options)  # images remember how they were saved
        found.append(stream.getvalue())
    return [*found, b"P3\n2 2\n255\n" + b"1 2 3 " * 4, _run_lengths()]


def _run_lengths() -> bytes:
    runs = b"\x08\x01\x08\x02\x00\x00" * 12 + b"\x00\x01"
    colours = bytes(1024)
    head = struct.pack("<IiiHHIIiiII", 40, 16, 12, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(runs), 0, 0, 1078) + head + colours + runs


def _with_checksums(data: bytes) -> bytes:
    """A PNG whose checksums fit again, so that what was changed is looked at."""
    if not data.startswith(b"\x89PNG"):
        return data
    fixed, place = bytearray(data[:8]), 8
    while place + 12 <= len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        body = data[place:end]
        fixed += body + struct.pack(">I", zlib.crc32(body[4:]))
        place = end + 4
    return bytes(fixed)


def images(chance: random.Random) -> Case:
    """A damaged image."""
    seeds = image_seeds()
    data = mutate(chance.choice(seeds), chance, seeds)
    return Case({"an image.jpg": _with_checksums(data) if chance.random() < 0.7 else data}, _look)


def _look(folder: Path) -> None:
    path = folder / "an image.jpg"
    contents = read_file(path, str(path))
    pixels = decode_limited(contents, str(path))
    assert pixels.dtype == torch.uint8
    assert pixels.ndim == 3
    assert len(pixels) == 3
    assert sorted(measure_limited(contents, str(path))) == sorted(pixels.shape[1:])


# Settings.

_ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, -1e308, 1e-320),
    *(float("nan"), float("inf"), "", "x", "a\nb", "\x00", "\ud800", "é" * 2000, "1e-4", "null"),
    *([], {}, [None], [[]], {"": ""}, {"name": 3}, [1, 2, 3], ["a"] * 500, "@deep@", "@long@"),
    *("../../etc", "/dev/zero", "timm:resnet18", "killick:resnet18", "model-00000000.safetensors"),
)


def mutate_tree(tree: Any, chance: random.Random) -> Any:
    """Nested settings with a few of them replaced, left out, renamed or moved."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return chance.choice(_ODD)
        holder, key = chance.choice(places)
        kind = chance.randrange(6)
        if kind < 3:
            holder[key] = copy.deepcopy(chance.choice(_ODD))
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[chance.choice(("", "x", "é" * 300, "a\nb", str(key) + "s"))] = holder.pop(key)
        else:
            other, there = chance.choice(places)
            holder[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
    return tree


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict | list):
        for key in list(_keys(tree)):
            yield tree, key
            yield from _places(tree[key])


def _spelt(tree: Any, chance: random.Random, as_yaml: bool) -> bytes:
    unicode = chance.random() < 0.5
    text = yaml.dump(tree, allow_unicode=unicode) if as_yaml else json.dumps(tree)
    depth = chance.choice((50, 5000, 100_000))
    text = text.replace("'@deep@'", "@deep@").replace('"@deep@"', "@deep@")
    text = text.replace("'@long@'", "@long@").replace('"@long@"', "@long@")
    text = text.replace("@deep@", "[" * depth + "]" * depth)
    text = text.replace("@long@", chance.choice(("9" * 5000, "0x" + "f" * 5000, "1" + "0" * 400)))
    data = text.encode("utf-8", "surrogatepass")
    return mutate(data, chance) if chance.random() < 0.3 else data


_YAML = (
    "a: &a [*a]",
    "network: &n {name: *n}",
    "epochs: &a [1, 1]\nbatch: &b [*a, *a]\nseed: [*b, *b]",
    "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(12)),
    "\n".join(f"m{i}: &m{i} {{<<: [{f'*m{i - 1}' if i else ''}]}}" for i in range(8)),
    "epochs: 2001-99-99",
    "epochs: 2001-12-14t21:59:43.10-05:00",
    "epochs: 1:99:99999999999999999999",
    "epochs: !!python/object/apply:os.system ['echo']",
    "epochs: !!binary ////",
    "epochs: !!int ''",
    "epochs: !!float x",
    "? [a, b]\n: c",
    "? {a: b}\n: c",
    "base: /dev/zero",
    "base: .",
    "base: it.yaml",
    "base: " + "x" * 5000,
    'base: "\\0"',
    'base: "\\0.yaml"',
    "epochs: 1\nepochs: 2",
    "%YAML 9.9\n---\nepochs: 1",
    "--- 1\n--- 2",
    "\x00",
    "\ufeffepochs: 3",
    "epochs: \x85",
    "[]",
    "3",
)


@cache
def _recipes() -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in shipped().values()]


def recipe(chance: random.Random) -> Case:
    """A recipe with mistakes."""
    if chance.random() < 0.2:
        data = chance.choice(_YAML).encode()
        if chance.random() < 0.5:
            data = mutate(data, chance, [text.encode() for text in _YAML])
    else:
        data = _spelt(mutate_tree(chance.choice(_recipes()), chance), chance, as_yaml=True)
    return Case({"it.yaml": data}, lambda folder: load_recipe(folder / "it.yaml"))


@cache
def saved_models() -> list[dict[str, bytes]]:
    """The files of an anchored and of a standard model."""
    half = (0.5,) * 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [
            killick.nets.create("killick:resnet_small", num_classes=3, width=4) for _ in range(2)
        ]
    anchored = killick.anchor(nets[0], normalize=(half, half))
    anchored.set_references(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), policy="black")
    anchored.threshold = killick.core.image_model.Threshold(-1.0, 0.95, 1, "noise")
    standard = killick.standard(nets[1], normalize=(half, half), image_shape=(3, 8, 8))
    found = []
    for model in (anchored, standard):
        with tempfile.TemporaryDirectory() as folder:
            killick.save(model, folder, class_names=("a", "b", "c"), provenance={"seed": 3})
            found.append({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    return found


def config(chance: random.Random) -> Case:
    """A saved model with mistakes in its configuration."""
    files = dict(chance.choice(saved_models()))
    tree = json.loads(files["config.json"])
    files["config.json"] = _spelt(mutate_tree(tree, chance), chance, as_yaml=False)
    return Case(files, _load)


def _load(folder: Path) -> None:
    model = killick.load(folder)
    assert isinstance(model, killick.Anchored | killick.Standard)
    assert not model.training


@cache
def _run_files() -> dict[str, bytes]:
    row = make_row(model="m", data="d", metric="accuracy", value=0.5, weights="w", seed=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, [row, row | {"severity": 3}])
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {
        "job.json": b'{"arm": "masked", "seed": 1, "finished": true, "asked": "abc"}',
        "environment.json": b'{"started": "2026-01-01", "torch": "2.8"}',
        "metrics.jsonl": b'{"step": 1, "losses": [1.0, 0.5]}\n{"step": 2, "losses": [0.4]}\n',
        "recipe.yaml": yaml.safe_dump(_recipes()[0]).encode(),
    }


def run_folder(chance: random.Random) -> Case:
    """A run folder with a damaged file."""
    files = dict(_run_files())
    if chance.random() < 0.3:
        del files["rows.jsonl"]
    name = chance.choice(sorted(files))
    if name.endswith(".json") and chance.random() < 0.7:
        tree = mutate_tree(json.loads(files[name]), chance)
        files[name] = _spelt(tree, chance, as_yaml=False)
    elif name.endswith(".yaml") and chance.random() < 0.7:
        tree = mutate_tree(yaml.safe_load(files[name]), chance)
        files[name] = _spelt(tree, chance, as_yaml=True)
    elif name == "metrics.jsonl" and chance.random() < 0.7:
        tree = mutate_tree(json.loads(files[name].splitlines()[0]), chance)
        files[name] += _spelt(tree, chance, as_yaml=False) + b"\n"
    else:
        files[name] = mutate(files[name], chance)
    return Case(files, _read_run)


def _read_run(folder: Path) -> None:
    run = read_run(folder)
    assert run.epochs_before >= 0


def configs(chance: random.Random) -> Case:
    """Settings of any kind."""
    return chance.choice((recipe, recipe, config, run_folder))(chance)


# Weights.


@cache
def _state() -> dict[str, Any]:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
    return {"step": 7, "model": net.state_dict(), "optimizer": optimizer.state_dict()}


def _saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@cache
def _checkpoint_seed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), _state())
        return (Path(folder) / "checkpoint.pt").read_bytes()


def _mutate_archive(data: bytes, chance: random.Random) -> bytes:
    """A file of torch's with a damaged member, and checksums that fit."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        names = old.namelist()
        pickles = [name for name in names if name.endswith("data.pkl")]
        hit = chance.choice(pickles if chance.random() < 0.7 else names)
        for name in names:
            content = old.read(name)
            if name == hit:
                if chance.random() < 0.1:
                    continue
                content = mutate(content, chance)
            deflated = chance.random() < 0.05
            new.writestr(name, content, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)
    return stream.getvalue()


def _odd_state(chance: random.Random) -> dict[str, Any]:
    """A state with other things in it than a run writes."""
    odd = (
        None,
        3,
        "x",
        [1],
        torch.zeros(3),
        torch.zeros(0),
        {"a": 1},
        {1: torch.zeros(2)},
        -(2**70),
    )
    state: dict[Any, Any] = {
        "format": "killick-checkpoint",
        "version": 2,
        **copy.deepcopy(_state()),
    }
    for _ in range(chance.choice((1, 2))):
        state[chance.choice((*state, 5, None, "net", "x"))] = chance.choice(odd)
    if chance.random() < 0.3:
        del state[chance.choice(list(state))]
    return state


def checkpoint(chance: random.Random) -> Case:
    """A damaged checkpoint, with or without a whole one before it."""
    whole = _checkpoint_seed()
    kind = chance.randrange(4)
    if kind == 0:
        data = mutate(whole, chance)
    elif kind == 1:
        data = _saved(_odd_state(chance))
    else:
        data = _mutate_archive(whole, chance)
    files = {"checkpoint.pt": data}
    if chance.random() < 0.3:
        files["checkpoint-before.pt"] = whole if chance.random() < 0.5 else mutate(whole, chance)
    return Case(files, _go_on)


def _go_on(folder: Path) -> None:
    state, told = load_checkpoint(folder)
    assert isinstance(state, dict)
    assert isinstance(state["step"], int)
    assert told is None or "\n" not in told


def weights(chance: random.Random) -> Case:
    """A damaged file of weights."""
    kind = chance.randrange(5)
    if kind == 0:
        state = chance.choice((_state()["model"], {"state_dict": _state()["model"]}))
        return Case({"w.pt": mutate(_saved(state), chance)}, lambda f: _weigh(f / "w.pt"))
    if kind == 1:
        data = _mutate_archive(_saved(_state()["model"]), chance)
        return Case({"w.pth": data}, lambda folder: _weigh(folder / "w.pth"))
    if kind == 2:
        return Case({"w.pt": _saved(_odd_state(chance))}, lambda folder: _weigh(folder / "w.pt"))
    data = mutate_tensors(safetensors.torch.save(_state()["model"]), chance)
    return Case({"w.safetensors": data}, lambda folder: _weigh(folder / "w.safetensors"))


def _weigh(path: Path) -> None:
    for name, weight in read_weights(path).items():
        assert isinstance(name, str)
        weight.double().sum()  # all of it is there


def mutate_tensors(data: bytes, chance: random.Random) -> bytes:
    """A safetensors file that is damaged, or whose header lies."""
    if chance.random() < 0.3:
        return mutate(data, chance)
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = chance.choice(sorted(header))
    entry = header[name]
    kind = chance.randrange(5)
    if kind == 0:
        sides = ([-1], [2**62, 4], [0], [], [2**31, 2**31], ["3"], [1.5], [1] * 200, None, "x")
        entry["shape"] = chance.choice(sides)
    elif kind == 1:
        entry["dtype"] = chance.choice(("F64", "BOOL", "I64", "F8_E4M3", "U8", "", "X", 3, None))
    elif kind == 2:
        a, b = entry["data_offsets"]
        ranges = ((0, b), (a, b + 8), (b, a), (-1, b), (0, 2**63), (a,), (a, b, b), "ab", (0, 0))
        entry["data_offsets"] = list(chance.choice(ranges))
    elif kind == 3:
        header = mutate_tree(header, chance)
    else:
        odd = ("__metadata__", "", "a\nb", "é" * 500, "net")
        header[chance.choice(odd)] = header.pop(name)
    text = json.dumps(header).replace("@long@", "9" * 400).encode("utf-8", "surrogatepass")
    text = text.replace(b"@deep@", b"x")
    stated = len(text) if chance.random() < 0.9 else chance.choice((0, 2**40, 2**63, len(text) - 1))
    return struct.pack("<Q", stated) + text + body


def model_weights(chance: random.Random) -> Case:
    """A saved model whose data files are wrong, and named after what they hold."""
    files = dict(chance.choice(saved_models()))
    tree = json.loads(files["config.json"])
    key, stem = chance.choice((("weights", "model"), ("examples", "examples")))
    data = mutate_tensors(files.pop(tree[key]), chance)
    tree[key] = f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}.safetensors"
    files |= {tree[key]: data, "config.json": json.dumps(tree).encode()}
    return Case(files, _load)


def checkpoints(chance: random.Random) -> Case:
    """Weights of any kind."""
    return chance.choice((checkpoint, weights, model_weights))(chance)


TARGETS: dict[str, Callable[[random.Random], Case]] = {
    "images": images,
    "configs": configs,
    "checkpoints": checkpoints,
}


def make_case(target: str, seed: int, number: int) -> Case:
    """The same case for the same arguments, in any process."""
    return TARGETS[target](random.Random(f"{target} {seed} {number}"))


# The harness.


@dataclass
class Tally:
    """What came of all cases."""

    outcomes: Counter[str]
    broken: list[tuple[int, str]]
    slowest: float = 0.0


def make_seeds() -> None:
    """All that cases are made of, so that no child has to.

    Making some of it trains a network; in a child of a process that has computed on several
    threads, torch's threads may then find their pool half replaced, and end the child.
    """
    for make in (image_seeds, _recipes, saved_models, _run_files, _state, _checkpoint_seed):
        make()


def run_batch(target: str, seed: int, first: int, count: int, tally: Tally) -> int:
    """Cases in a child of their own, up to one that breaks; the number of the next."""
    make_seeds()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(target, seed, first, count, writing)
    os.close(writing)
    current = first
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            number, word, *rest = line.rstrip("\n").split("\t")
            current = int(number)
            if word == "broken":
                tally.broken.append((current, rest[0]))
            elif word != "begins":
                tally.outcomes[word] += 1
                tally.slowest = max(tally.slowest, float(rest[0]))
    status = os.waitpid(child, 0)[1]
    if status:
        tally.broken.append((current, f"the process died of {_cause(status)}"))
    return current + 1


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "too little time" if number == signal.SIGALRM else signal.Signals(number).name
    return f"exit code {os.WEXITSTATUS(status)}"


def _work(target: str, seed: int, first: int, count: int, pipe: int) -> None:
    """In the child; it never returns."""
    limit_memory(MEMORY)
    code = 1
    with open(pipe, "w", buffering=1, encoding="utf-8", errors="backslashreplace") as told:
        folder = Path(tempfile.mkdtemp())
        try:
            for number in range(first, first + count):
                case = make_case(target, seed, number)
                told.write(f"{number}\tbegins\n")
                began = time.perf_counter()
                signal.alarm(SECONDS)
                try:
                    outcome = judge(case, folder / str(number))
                    told.write(f"{number}\t{outcome}\t{time.perf_counter() - began}\n")
                except Broken as problem:
                    where = traceback.extract_tb((problem.__cause__ or problem).__traceback__)[-1]
                    text = f"{problem} at {where.filename}:{where.lineno}".replace("\n", " ")
                    told.write(f"{number}\tbroken\t{text}\n".replace("\r", " "))
                signal.alarm(0)
                shutil.rmtree(folder / str(number), ignore_errors=True)
            code = 0
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            told.flush()
            os._exit(code)


def limit_memory(spare: int) -> None:
    """No more than `spare` bytes beside what this process takes now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + spare
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fuzz(target: str, minutes: float, seed: int, keep: Path | None) -> Tally:
    """Cases until the time is over; those that break are kept as files, if so asked."""
    tally = Tally(Counter(), [])
    end, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        told = len(tally.broken)
        number = run_batch(target, seed, number, BATCH, tally)
        for which, problem in tally.broken[told:]:
            sys.stdout.write(f"{target} seed {seed} case {which}: {problem}\n")
            sys.stdout.flush()
            if keep is not None:
                for name, content in make_case(target, seed, which).files.items():
                    (keep / f"{target}-{seed}-{which}").mkdir(parents=True, exist_ok=True)
                    (keep / f"{target}-{seed}-{which}" / name).write_bytes(content)
    return tally


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the files of cases that break")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tally = fuzz(options.target, options.minutes, options.seed, options.keep)
    counts = ", ".join(f"{count} {word}" for word, count in tally.outcomes.most_common())
    sys.stdout.write(
        f"{options.target}: {counts}; {len(tally.broken)} broken; slowest {tally.slowest:.2f} s\n"
    )
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
