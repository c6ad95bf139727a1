"""`killick predict`: what goes in, what comes out, what is told, and how it ends."""

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from labeled_images import NAMES, make_anchored, make_files, make_standard
from runs import small

import killick
import killick.cli
from killick.cli import main
from killick.cli import predict as predicting
from killick.core.image_model import Threshold
from killick.labelling import label
from killick.training import train

START = (
    # Behind a shell without job control, Ctrl-C would not be for this process.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "import sys, killick.cli;"
    "sys.exit(killick.cli.main(sys.argv[1:]))"
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(killick.cli.COMMANDS, "predict", predicting)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Images, and models that know a threshold: half of the images are beyond it."""
    place = tmp_path_factory.mktemp("place")
    (place / "images").mkdir()
    files = make_files(place / "images")
    for name, model in (("anchored", make_anchored()), ("standard", make_standard())):
        killick.save(model, place / f"{name}-unjudged", class_names=NAMES)
        energies = sorted(record.energy for record in label(model, files))
        model.threshold = Threshold((energies[5] + energies[6]) / 2, 0.95, 1, "these")
        killick.save(model, place / name, class_names=NAMES)
    return place


@pytest.fixture
def here(place, tmp_path, monkeypatch) -> Path:
    """A folder to work in, with all of it."""
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield stack


def run(capsys, *words) -> tuple[int, str, str]:
    code = main(["predict", *words])
    return (code, *capsys.readouterr())


def read_json(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["anchored", "standard"])
def test_a_folder_of_images_becomes_json_lines_where_nobody_looks(name, here, capsys):
    code, out, err = run(capsys, name, "images")
    assert code == 0
    expected = [r.to_dict() for r in label(name, "images", device="cpu")]
    found = read_json(out)
    assert len(found) == 11
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert {record["in_distribution"] for record in found} == {True, False}
    assert err.count("\n") == 1
    assert err.startswith("killick: 11 images, 5 out of distribution (threshold fitted on ")
    assert err.endswith(" images/s\n")
    assert run(capsys, name, "images", "--quiet") == (0, out, "")


def test_all_options_reach_the_model_and_the_records(here, capsys):
    words = ["--references", "3", "--top", "2", "--probabilities", "--batch", "4", "--workers", "2"]
    code, out, err = run(capsys, "anchored", "images", *words, "--device", "cpu")
    assert code == 0
    records = label("anchored", "images", references=3, top=2, probabilities=True, device="cpu")
    for ours, theirs in zip(read_json(out), records, strict=True):
        assert list(ours) == list(theirs.to_dict())
        assert ours["std"] == pytest.approx(theirs.std, abs=1e-6)
        assert ours["probabilities"] == pytest.approx(theirs.probabilities, abs=1e-6)
        assert ours["top"] == [
            {"label": t.label, "index": t.index, "probability": pytest.approx(t.probability)}
            for t in theirs.top
        ]
    assert "killick.fit_threshold(model, images, k=3)" in err


def test_a_file_is_written_in_the_format_of_its_extension(here, capsys):
    assert run(capsys, "anchored", "images", "--output", "a.csv", "--quiet") == (0, "", "")
    assert run(capsys, "anchored", "images", "--output", "a.jsonl", "--quiet") == (0, "", "")
    with open("a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, record in zip(rows, read_json(Path("a.jsonl").read_text()), strict=True):
        assert row.pop("error") == ""
        assert list(row) == list(record)
        assert row == {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in record.items()
        }
    code, out, err = run(capsys, "anchored", "images", "--output", "a.txt")
    assert (code, out) == (0, "")
    assert Path("a.txt").read_text().splitlines()[-1].startswith("11 images, 5 out of")
    assert err == ""
    code, out, err = run(capsys, "anchored", "images", "--output", "b", "--format", "csv")
    assert Path("b").read_text() == Path("a.csv").read_text()


def test_a_terminal_is_shown_a_table_with_the_totals(here, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Path("images/03.png").write_bytes(b"")
    code, out, err = run(capsys, "anchored", "images")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].split() == ["label", "confidence", "uncertainty", "distribution", "image"]
    assert len(lines) == 1 + 11 + 1
    assert "it is empty" in lines[4]
    assert "11 images, 1 unreadable, " in lines[-1]
    assert err == ""  # the table has it
    assert "cannot read" in run(capsys, "anchored", "images", "--only", "in")[2]


def test_broken_images_are_told_and_the_rest_goes_on_with_exit_code_1(here, capsys):
    Path("images/00.png").write_bytes(b"")
    Path("images/05.webp").write_bytes(b"no image")
    before = Path("images/10.bmp").read_bytes()
    Path("images/10.bmp").write_bytes(before[: len(before) // 2])
    code, out, err = run(capsys, "anchored", "images", "gone.png", "*.gif", "--batch", "4")
    assert code == 1
    records = read_json(out)
    assert len(records) == 13
    broken = [record for record in records if "error" in record]
    assert [record["image"] for record in broken] == [
        *("images/00.png", "images/05.webp", "images/10.bmp", "gone.png", "*.gif"),
    ]
    lines = err.splitlines()
    assert lines[:-1] == [f"killick: {record['error']}" for record in broken]
    assert lines[-1].startswith("killick: 13 images, 5 unreadable, ")
    code, _, err = run(capsys, "anchored", "images", "--output", "x.csv", "--quiet")
    assert code == 1
    assert len(err.splitlines()) == 3
    with open("x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["error"]) for row in rows] == [n in (0, 5, 10) for n in range(11)]


def test_only_some_are_told_and_all_are_counted(here, capsys):
    Path("images/00.png").write_bytes(b"")
    everything = read_json(run(capsys, "anchored", "images")[1])
    for only, belongs in (
        ("in", lambda record: record.get("in_distribution") is True),
        ("out", lambda record: record.get("in_distribution") is False),
        ("broken", lambda record: "error" in record),
    ):
        code, out, err = run(capsys, "anchored", "images", "--only", only)
        assert code == 1
        assert read_json(out) == [record for record in everything if belongs(record)]
        assert 0 < out.count("\n") < 11
        assert "11 images, 1 unreadable" in err


def test_without_a_threshold_it_is_said_once_how_to_get_one(here, capsys):
    code, out, err = run(capsys, "anchored-unjudged", "images", "--batch", "2")
    assert code == 0
    assert all(record["in_distribution"] is None for record in read_json(out))
    told, totals = err.splitlines()
    assert told == (
        "killick: no OOD threshold for k=1 is stored in anchored-unjudged."
        " Store one: killick evaluate anchored-unjudged --store-threshold --data DATA"
        " --validation DATA."
    )
    assert "distribution" not in totals
    assert run(capsys, "anchored-unjudged", "images", "--quiet")[2] == ""


def test_the_advice_about_thresholds_works(image_folder, tmp_path, capsys):
    run_folder = tmp_path / "run"
    train(small(image_folder, data__validation=4, epochs=1), run_folder, quiet=True)
    words = ["--store-threshold", "--suite", "clean", "--quiet"]
    assert main(["evaluate", str(run_folder), *words]) == 0
    capsys.readouterr()
    code, out, err = run(capsys, str(run_folder), str(image_folder))
    assert code == 0
    assert "no OOD threshold" not in err
    records = read_json(out)
    assert {record["label"] for record in records} <= {f"class{n}" for n in range(4)}
    assert {type(record["in_distribution"]) for record in records} == {bool}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["anchored"], "IMAGES"),
        (["anchored", "gone.png"], "cannot read gone.png: no such file"),
        (["anchored", "*.gif"], "*.gif"),
        (["nowhere", "images"], "nowhere"),
        (["anchored", "images", "--references", "9"], "expected 9 stored reference(s), found 4"),
        (["anchored", "images", "--references", "0"], "at least 1"),
        (["standard", "images", "--references", "2"], "standard has no references"),
        (["anchored", "images", "--batch", "0"], "at least 1, found 0"),
        (["anchored", "images", "--workers", "0"], "at least 1, found 0"),
        (["anchored", "images", "--top", "-1"], "--top"),
        (["anchored", "images", "--output", "x.xls"], "--output"),
        (["anchored", "images", "--output", "."], "--output"),
        (["anchored", "images", "--output", "images/00.png/x.csv"], "cannot write "),
        (["anchored", "images", "--format", "cvs"], "(did you mean csv?)"),
        (
            ["anchored", "images", "--format", "table", "--probabilities"],
            "--probabilities requires",
        ),
        (
            ["anchored-unjudged", "images", "--only", "out"],
            "--only out requires",
        ),
        (["anchored", "images", "--device", "abacus"], "expected a device such as"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words, told, here, capsys):
    code, out, err = run(capsys, *words, *([] if "--quiet" in words else ["--quiet"]))
    assert (code, out) == (2, "")
    assert err.startswith("killick: ")
    assert err.count("\n") == 1
    assert told in err


def test_paths_come_from_a_list_on_stdin(here, capsys, monkeypatch, closing):
    def listing(content: bytes):
        Path("list").write_bytes(content)
        file = closing.enter_context(open("list"))  # noqa: SIM115, it is entered
        monkeypatch.setattr(sys, "stdin", file)

    shutil.copy("images/00.png", "a\nb.png")
    listing(b"images/01.bmp\ngone.png\n\nimages\n")
    code, out, _ = run(capsys, "anchored", "a\nb.png", "-", "images/02.webp")
    images = [record["image"] for record in read_json(out)]
    assert code == 1
    assert images[:3] == ["a\nb.png", "images/01.bmp", "gone.png"]
    assert images[3] == "images/00.png"
    assert len(images) == 3 + 11 + 1
    assert images[-1] == "images/02.webp"
    for option in ("-0", "--null"):
        listing(b"a\nb.png\0images/01.bmp\0")
        code, out, _ = run(capsys, "anchored", "-", option)
        assert code == 0
        assert [record["image"] for record in read_json(out)] == ["a\nb.png", "images/01.bmp"]
    listing(b"a\0b\0")
    code, out, err = run(capsys, "anchored", "-")
    assert (code, out) == (2, "")
    assert "-0" in err
    listing(b"\n")
    assert run(capsys, "anchored", "-", "--format", "csv", "--quiet") == (
        *(2, "", "killick: no paths of images were given.\n"),
    )


def test_names_that_are_no_utf8_or_hold_signs_for_terminals_do_no_harm(here, capsys):
    name = os.fsdecode(b"\xff\x1b[31m\n.png")
    shutil.copy("images/00.png", name)
    Path(f"{name}.png").write_bytes(b"")
    for form in predicting.FORMATS:
        words = ["--format", form, "--output", f"out-{form}"]
        code, _, err = run(capsys, "anchored", name, f"{name}.png", *words)
        assert code == 1
        assert err.splitlines()[0].startswith(
            "killick: cannot read \\udcff\\x1b[31m\\n.png.png: it"
        )
        assert "\x1b" not in err
    records = read_json(Path("out-json").read_text(encoding="utf-8"))
    assert [os.fsencode(r["image"]) for r in records] == [
        os.fsencode(name + e) for e in ("", ".png")
    ]
    with open("out-csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    assert "\x1b" not in Path("out-table").read_text(encoding="utf-8")


def test_an_interrupt_waits_for_the_end_of_the_line_and_a_file_stays_as_it_was(
    here, capsys, monkeypatch
):
    class Interrupted(io.BytesIO):
        def write(self, data):
            half = len(data) // 2
            super().write(data[:half])
            os.kill(os.getpid(), signal.SIGINT)
            return super().write(data[half:])

    stream = Interrupted()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream))
    assert main(["predict", "anchored", "images", "--batch", "3", "--quiet"]) == 130
    assert len(read_json(stream.getvalue().decode())) == 3
    assert stream.getvalue().endswith(b"}\n")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    Path("x.csv").write_text("before")

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("killick.runtime.progress.TerminalDisplay.update", interrupted)
    assert main(["predict", "anchored", "images", "--output", "x.csv"]) == 130
    assert Path("x.csv").read_text() == "before"
    assert not [name for name in os.listdir() if name.endswith(".part")]


def start(*words, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", START, "predict", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def test_lines_come_while_the_list_goes_on_and_ctrl_c_ends_the_waiting(here):
    process = start("anchored", "-", "--batch", "1", cwd=here)
    for name in ("00.png", "01.bmp"):
        process.stdin.write(f"images/{name}\n".encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["image"] == f"images/{name}"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    *progress, last = err.decode().splitlines()
    assert (process.returncode, out, last) == (130, b"", "killick: interrupted")
    assert all(line.startswith("killick: predict") for line in progress), progress


def test_a_reader_that_has_seen_enough_ends_it_quietly(here):
    many = ["images"] * 200
    process = start("anchored", *many, "--batch", "1", cwd=here)
    assert json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.wait(60) == 141
    lines = process.stderr.read().decode().splitlines()  # progress, on a slow machine
    assert all(line.startswith("killick: predict") for line in lines), lines
    process.stderr.close()
    process.stdin.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory, place, one_registry) -> Path:
    """The anchored model as an ONNX file with three references, and as a .pt2 with one."""
    from killick import export

    folder = tmp_path_factory.mktemp("exported")
    model = killick.load(place / "anchored")
    export(model, folder / "torch", format="torch")
    model.threshold = Threshold(model.threshold.energy, 0.95, 3, "these")
    export(model, folder / "onnx", k=3)
    return folder


def test_an_exported_file_answers_like_the_model(exported, here, capsys):
    model = killick.load(here / "anchored")
    model.threshold = Threshold(model.threshold.energy, 0.95, 3, "these")
    theirs = list(label(model, "images", references=3))
    assert len({record.in_distribution for record in theirs}) == 2
    for path in (exported / "onnx", exported / "onnx" / "model.onnx"):
        code, out, err = run(capsys, str(path), "images", "--batch", "4", "--device", "cpu")
        assert code == 0
        ours = read_json(out)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(other.to_dict(), abs=1e-5)
        assert "out of distribution" in err
    head = run(capsys, str(exported / "onnx"), "images", "--format", "csv")[1].splitlines()[0]
    assert head.split(",")[5:8] == ["energy", "std", "in_distribution"]
    torch_file = str(exported / "torch")
    code, _, err = run(capsys, torch_file, "images", "--device", "cpu")
    assert code == 2
    assert "--trust" in err
    code, out, err = run(capsys, torch_file, "images", "--device", "cpu", "--trust")
    assert code == 0
    for mine, other in zip(read_json(out), label("anchored", "images"), strict=True):
        assert mine == pytest.approx(other.to_dict(), abs=1e-5)
        assert "std" not in mine


def test_an_exported_file_keeps_its_number_of_references(exported, here, capsys):
    path = str(exported / "onnx")
    assert run(capsys, path, "images", "--references", "3", "--quiet")[0] == 0
    code, _, err = run(capsys, path, "images", "--references", "2")
    assert code == 2
    assert "references=3" in err
