"""Data by path: folders as people have them, CSV lists, WebDataset shards, and options of the hub."""

import io
import json
import tarfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from conftest import small_cnn
from PIL import Image
from runs import make_image_folder, small

import killick
from killick.cli import main
from killick.cli.train import parse_overrides
from killick.data.data_settings import SOURCES, full_name
from killick.data.sources import DATA_SOURCES, load_sets, load_whole
from killick.data.sources.wds import find_shards
from killick.errors import DataError, KillickError, OptionError
from killick.training import load_recipe


def make_split(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        make_image_folder(folder / name)
    return folder


def test_a_path_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "images", "shapes", "a:b/c"):
        Path(folder).mkdir(parents=True)
    assert full_name("photos") == "imagefolder:photos"
    assert full_name(str(tmp_path)) == f"imagefolder:{tmp_path}"
    assert full_name("images") == "imagefolder:images"  # also the name of a source
    assert full_name("shapes") == "shapes"
    assert set(SOURCES) == set(DATA_SOURCES.names())
    assert full_name("./shapes") == "imagefolder:./shapes"
    assert full_name("./a:b/c") == "imagefolder:./a:b/c"
    assert full_name("a.npz#test") == "pack:a.npz#test"
    assert full_name("train-{0..3}.tar") == "wds:train-{0..3}.tar"
    assert full_name("photos#without=list.txt") == "imagefolder:photos#without=list.txt"
    assert full_name("imagenet:photos") == "imagenet:photos"
    assert full_name("nothing") == "nothing"
    assert load_recipe("shapes-small", {"data": "photos"}).data.name == "imagefolder:photos"
    assert parse_overrides(["--data", "photos"]) == {"data.name": "imagefolder:photos"}


@pytest.mark.parametrize(
    ("there", "train", "test"),
    [
        (("train", "val"), 20, 20),
        (("train", "test", "val"), 20, 20),
        (("training", "validation"), 20, 20),
        (("train",), 20, None),
        (("val",), None, 20),
        (("eval",), None, 20),
        ((), 16, 4),
    ],
)
def test_folders_are_read_in_the_habits_of_timm_and_torchvision(tmp_path, there, train, test):
    folder = make_split(tmp_path, *there) if there else make_image_folder(tmp_path)
    sets = load_sets(str(folder))
    assert [None if part is None else len(part) for part in (sets.train, sets.test)] == [
        train,
        test,
    ]
    assert (sets.validation is not None) == ("test" in there)
    if there == ("val",):
        assert len(load_whole(str(folder))) == 20
        recipe = load_recipe("shapes-small", {"data": str(folder)})
        with pytest.raises(DataError, match="no training set"):
            killick.training.train(recipe, tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()


def test_the_commands_take_a_folder(tmp_path, image_folder, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = killick.train(small(image_folder, epochs=1), None, "run", quiet=True)
    make_split(tmp_path / "photos", "val")
    words = ["evaluate", "run", "--data", "photos", "--suite", "clean", "--workers", "0"]
    assert main([*words, "--output", "out"]) == 0
    rows = killick.evaluate(run.model, Path("photos"), ("clean",), workers=0)
    assert {row["data"] for row in rows} == {"imagefolder:photos"}
    assert {row["count"] for row in rows} == {20}
    assert main(["check", "photos", "--quiet"]) == 0


def write_list(file: Path, rows: list[tuple[str, object]], head: str = "path,label") -> Path:
    file.write_text("\n".join([head, *(f"{path},{label}" for path, label in rows)]) + "\n")
    return file


def listed(folder: Path) -> list[tuple[str, str]]:
    return [
        (path.relative_to(folder).as_posix(), path.parent.name)
        for path in sorted(folder.glob("*/*.png"))
    ]


def test_csv_lists_are_read_like_the_folders_they_list(tmp_path):
    folder = make_image_folder(tmp_path)
    whole = load_whole(f"imagefolder:{folder}")
    rows = listed(folder)
    train = write_list(folder / "train.csv", rows)
    test = write_list(folder / "test.csv", rows[3:9])
    sets = load_sets(f"csv:{train}#test={test}")
    assert sets.train.class_names == whole.class_names
    assert torch.equal(sets.train.labels, whole.labels)
    assert torch.equal(sets.train.read(7), whole.read(7))
    assert sets.test.labels.tolist() == whole.labels[3:9].tolist()
    numbers = write_list(folder / "numbers.csv", [(path, kind[-1]) for path, kind in rows[::-1]])
    assert load_whole(str(numbers)).labels.tolist() == whole.labels.tolist()[::-1]
    assert load_whole(str(numbers)).class_names == ("0", "1", "2", "3")
    outside = write_list(
        tmp_path / "outside.csv", [(str(folder / path), kind) for path, kind in rows]
    )
    assert torch.equal(load_whole(f"csv:{outside}").read(2), whole.read(2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file,kind\na.png,0\n", "'path' and 'label'"),
        ("", "'path' and 'label'"),
        ("path,label\n", "lists no images"),
        ("path,label\na.png\n", "no label in line 2"),
        ("path,label\nmissing.png,0\n", "not there"),
        (b"path,label\n\xff\xfe,0\n", "cannot read"),
    ],
)
def test_bad_lists_are_refused_in_one_line(tmp_path, text, says):
    file = tmp_path / "list.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as problem:
        load_sets(f"csv:{file}")
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


def encode(colour: int, side: int = 20) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side + 2), (colour, 10, 20)).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, contents in members:
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            archive.addfile(info, io.BytesIO(contents))
    return path


def make_shards(folder: Path, shards: int = 3, samples: int = 4) -> str:
    """Samples of two classes; labels as `.cls`, in the last shard as `.json`."""
    for shard in range(shards):
        members = []
        for number in range(samples):
            key, colour = f"part/{shard}{number:03}", 40 * shard + number
            label = str(number % 2).encode()
            if shard == shards - 1:
                members.append((f"{key}.json", json.dumps({"label": number % 2}).encode()))
                members.append((f"{key}.png", encode(colour)))
            else:
                members.append((f"{key}.png", encode(colour)))
                members.append((f"{key}.cls", label + b"\n"))
            members.append((f"{key}.pyd", b"\x80\x04N."))  # a pickle, never opened
        write_shard(folder / f"shard-{shard:03}.tar", members)
    return str(folder / "shard-{000..002}.tar")


def test_shards_are_read_by_number(tmp_path):
    pattern = make_shards(tmp_path)
    sets = load_sets(f"wds:{pattern}")
    found = sets.train
    assert found.access == "indexed"
    assert found.labels.tolist() == [0, 1, 0, 1] * 3
    colours = [int(found.read(number)[0, 0, 0]) for number in range(12)]
    assert colours == [40 * shard + number for shard in range(3) for number in range(4)]
    assert found.read(0).shape == (3, 22, 20)
    both = load_sets(f"wds:{pattern}#test={tmp_path}/shard-00*.tar")
    assert len(both.test) == 12
    assert len(load_whole(str(tmp_path / "shard-001.tar"))) == 4


def test_shards_are_trained_on(tmp_path):
    pattern = make_shards(tmp_path)
    outcome = killick.train(
        "shapes-small",
        f"wds:{pattern}",
        tmp_path / "run",
        settings={"epochs": 1, "batch": 4, "data.size": 16, "data.workers": 0},
        quiet=True,
    )
    assert outcome.finished
    assert outcome.model.class_names == ("0", "1")


def test_patterns_name_shards_in_order(tmp_path):
    for name in ("a-08", "a-09", "a-10", "b-1"):
        (tmp_path / f"{name}.tar").touch()
    found = [Path(path).stem for path in find_shards(f"{tmp_path}/a-{{08..10}}.tar")]
    assert found == ["a-08", "a-09", "a-10"]
    assert len(find_shards(f"file:{tmp_path}/*.tar")) == 4
    for pattern, says in (
        ("s3://host/a.tar", "Download"),
        ("pipe:cat a.tar", "Download"),
        ("https://host/*.tar", "names each shard"),
        (f"{tmp_path}/{{3..1}}.tar", "ascend"),
        (f"{tmp_path}/a-{{07..10}}.tar", "a-07.tar"),
        (f"{tmp_path}/c*.tar", "no shards"),
    ):
        with pytest.raises(KillickError, match=says):
            find_shards(pattern)


@pytest.fixture
def server(tmp_path):
    """Serves tmp_path/served; a path with "half" in it is cut short. Lists what was asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, directory=str(tmp_path / "served"), **options)

        def do_GET(self):
            asked.append(self.path)
            if "half" not in self.path:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            return self.wfile.write(b"half")

        def log_message(self, *arguments):
            pass

    (tmp_path / "served").mkdir()
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}", asked
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_shards_of_an_address_are_fetched_once(tmp_path, server):
    address, asked = server
    make_shards(tmp_path / "served")
    name, root = f"wds:{address}/shard-{{000..002}}.tar", str(tmp_path / "data")
    with pytest.raises(DataError, match="--download"):
        load_sets(name, root=root)
    assert not asked
    found = load_sets(name, root=root, download=True).train
    assert found.labels.tolist() == [0, 1, 0, 1] * 3
    assert len(asked) == 3
    again = load_sets(name, root=root).train
    assert torch.equal(again.read(5), found.read(5))
    assert len(asked) == 3
    rows = killick.evaluate(
        small_cnn(classes=2),
        name,
        suites=["clean"],
        normalize=((0, 0, 0), (1, 1, 1)),
        size=16,
        root=str(tmp_path / "other"),
        download=True,
    )
    assert rows[0]["count"] == 12


@pytest.mark.parametrize("path", ["half.tar", "missing.tar"])
def test_failed_downloads_leave_nothing(tmp_path, server, path):
    with pytest.raises(DataError) as problem:
        load_sets(f"wds:{server[0]}/{path}", root=str(tmp_path / "data"), download=True)
    assert "cannot fetch" in str(problem.value)
    assert "\n" not in str(problem.value)
    files = [each.name for each in (tmp_path / "data").rglob("*") if each.is_file()]
    assert files in ([], [".lock"])


@pytest.mark.parametrize(
    ("members", "mode", "says"),
    [
        ([("a.png", b"")], "w", "has no label"),
        ([("a.png", b""), ("a.cls", b"cat")], "w", "has no label"),
        ([("a.png", b""), ("a.cls", b"-1")], "w", "has no label"),
        ([("a.txt", b"text")], "w", "no images"),
        ([("a.png", b""), ("a.cls", b"1")], "w:gz", "uncompressed"),
    ],
)
def test_bad_shards_are_refused_in_one_line(tmp_path, members, mode, says):
    path = write_shard(tmp_path / "a.tar", members, mode)
    with pytest.raises(DataError) as problem:
        load_sets(f"wds:{path}")
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


def make_rows(count: int):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    columns = {
        "image": [{"bytes": encode(10 * n, 16 + n), "path": None} for n in range(count)],
        "label": [n % 2 for n in range(count)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_hub_sets_take_config_split_revision_and_streaming(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(path, **options):
        asked.append((path, options))
        if "split" in options:
            return [make_rows(5) for _ in options["split"]]
        return {"train": make_rows(5), "test": make_rows(4)}

    monkeypatch.setattr(datasets, "load_dataset", load)
    sets = load_sets("hf:me/pets#config=small,revision=v1,split=train[:50%]")
    assert (len(sets.train), sets.test) == (5, None)
    sets = load_sets("hf:me/pets#split=train,test=easy")
    assert (len(sets.train), len(sets.test)) == (5, 5)
    assert len(load_sets("hf:me/pets").test) == 4
    assert asked == [
        ("me/pets", {"split": ["train[:50%]"], "name": "small", "revision": "v1"}),
        ("me/pets", {"split": ["train", "easy"]}),
        ("me/pets", {}),
    ]
    with pytest.raises(OptionError, match="'splt'"):
        load_sets("hf:me/pets#splt=test")


def test_a_hub_set_that_streams_is_evaluated(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = make_rows(6)
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "pets")
    found = load_whole(f"hf:{tmp_path / 'pets'}#streaming")
    plain = load_whole(f"hf:{tmp_path / 'pets'}")
    assert (found.access, plain.access) == ("stream", "indexed")
    assert found.class_names == plain.class_names == ("cat", "dog")
    assert found.labels.tolist() == plain.labels.tolist()
    assert all(torch.equal(found.read(number), plain.read(number)) for number in range(6))
    assert len(load_whole(f"hf:{tmp_path / 'pets'}#split=train,streaming")) == 6
    with pytest.raises(DataError, match="no split 'hard'"):
        load_sets(f"hf:{tmp_path / 'pets'}#split=hard")


def test_a_hub_set_that_streams_is_trained_on(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = make_rows(24)
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "pets")
    name = f"hf:{tmp_path / 'pets'}#streaming"
    settings = {"epochs": 2, "batch": 8, "data.size": 16, "data.samples": 24}

    def run(folder, **changed):
        options = {**settings, **changed}
        return killick.train("shapes-small", name, tmp_path / folder, settings=options, quiet=True)

    outcome = run("a")
    assert outcome.finished
    assert outcome.model.class_names == ("cat", "dog")
    same, other = run("b"), run("c", seed=1)
    weights = [dict(each.model.state_dict()) for each in (outcome, same, other)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert any(not torch.equal(weights[0][key], weights[2][key]) for key in weights[0])
    found = killick.evaluate(tmp_path / "a", suites=["clean"])
    assert {row["access"] for row in found} == {"stream"}
    stream = rows.to_iterable_dataset()
    given = {"train": stream, "test": rows}
    options = {**settings, "epochs": 1}
    assert killick.train(
        "shapes-small", given, tmp_path / "d", settings=options, quiet=True
    ).finished


def test_each_pass_over_a_hub_stream_has_its_order(tmp_path):
    pytest.importorskip("datasets")
    from killick.data.sources.hf import RowStream

    stream = RowStream("pets", make_rows(24).to_iterable_dataset(), shuffle=True)

    def read(seed):
        torch.manual_seed(seed)
        return [data for data, _ in stream.encoded()]

    assert read(0) == read(0) != read(1)
    assert sorted(read(0)) == sorted(read(1))
