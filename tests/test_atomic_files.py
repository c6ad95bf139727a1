"""Atomic files and folders: whole or not at all, and nothing left behind by killed processes."""

import multiprocessing
import os
import signal
import threading

import pytest

from killick.errors import CheckpointError, StorageError
from killick.runtime import atomic_files
from killick.runtime.atomic_files import atomic_file, atomic_folder, locked, write_atomic


def _write_and_wait(path, started, folder):
    with atomic_folder(path) if folder else atomic_file(path) as place:
        if folder:
            (place / "half").write_text("half")
        else:
            place.write(b"half")
            place.flush()
        started.set()
        threading.Event().wait()


@pytest.fixture
def writer(tmp_path):
    """Start processes that write `thing` and never end; they are killed at the end."""
    context, running = multiprocessing.get_context("fork"), []

    def start(folder=False):
        started = context.Event()
        process = context.Process(
            target=_write_and_wait, args=(tmp_path / "thing", started, folder)
        )
        process.start()
        assert started.wait(20)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.join()


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_the_next_write_removes_what_killed_writes_of_a_file_left(tmp_path, writer):
    writers = [writer(), writer()]
    for each in writers:
        kill(each)
    assert len(os.listdir(tmp_path)) == 2
    write_atomic(tmp_path / "thing", "whole")
    assert os.listdir(tmp_path) == ["thing"]
    assert (tmp_path / "thing").read_text() == "whole"


def test_the_next_write_removes_what_killed_writes_of_a_folder_left(tmp_path, writer):
    writers = [writer(folder=True), writer(folder=True)]
    for each in writers:
        kill(each)
    with atomic_folder(tmp_path / "thing") as place:
        assert not os.listdir(place)
        (place / "whole").write_text("")
    assert os.listdir(tmp_path) == ["thing"]
    assert os.listdir(tmp_path / "thing") == ["whole"]


@pytest.mark.parametrize("folder", [False, True])
def test_what_a_living_process_writes_stays(tmp_path, writer, folder):
    writer(folder)
    if folder:
        with atomic_folder(tmp_path / "thing") as place:
            (place / "whole").write_text("")
    else:
        write_atomic(tmp_path / "thing", "whole")
    assert len(list(tmp_path.glob(".thing.*.part"))) == 1
    assert len(os.listdir(tmp_path)) == 2


def test_a_write_that_was_killed_between_its_two_moves_loses_nothing(tmp_path):
    """The old folder lies aside then, and stays until a new one is in its place."""
    aside = tmp_path / ".thing.0123abcd.part" / "old"
    aside.mkdir(parents=True)
    (aside / "kept").write_text("")
    with pytest.raises(StorageError, match="No space"), atomic_folder(tmp_path / "thing"):
        raise OSError(28, "No space left on device")
    assert (aside / "kept").exists()
    with atomic_folder(tmp_path / "thing") as place:
        (place / "new").write_text("")
    assert os.listdir(tmp_path) == ["thing"]


def test_many_threads_can_write_one_file(tmp_path):
    path = tmp_path / "thing"
    contents = [str(number) * 10_000 for number in range(8)]

    def write(content):
        for _ in range(50):
            write_atomic(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert path.read_text() in contents
    assert os.listdir(tmp_path) == ["thing"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_system_without_locks_is_written_to_all_the_same(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(atomic_files, "_lock", lambda descriptor, *, wait: False)
    if folder:
        with atomic_folder(tmp_path / "thing") as place:
            (place / "whole").write_text("")
    else:
        write_atomic(tmp_path / "thing", "whole")
    assert os.listdir(tmp_path) == ["thing"]


def _hold_with_worker(folder, started):
    with locked(folder):
        worker = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
        worker.start()
        (folder / "worker").write_text(str(worker.pid))
        started.set()
        threading.Event().wait()


def test_a_lock_ends_with_the_process_that_took_it_not_with_its_workers(tmp_path):
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=_hold_with_worker, args=(tmp_path, started))
    process.start()
    assert started.wait(20)
    with (
        pytest.raises(CheckpointError, match="another process uses it"),
        locked(tmp_path, wait=False),
    ):
        pass
    kill(process)
    try:
        with locked(tmp_path, wait=False) as holds:
            assert holds
    finally:
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_in_a_folder_are_not_written_through(tmp_path, link):
    precious, folder = tmp_path / "precious", tmp_path / "folder"
    precious.write_text("precious")
    folder.mkdir()
    link(precious, folder / ".rows.csv.0123abcd.part")
    write_atomic(folder / "rows.csv", "new")
    assert precious.read_text() == "precious"
    assert (folder / "rows.csv").read_text() == "new"
    assert not (folder / "rows.csv").is_symlink()


def test_links_are_not_locked_or_replaced(tmp_path):
    other, folder = tmp_path / "other", tmp_path / "folder"
    (other / "new").mkdir(parents=True)
    (other / "new" / "precious").touch()
    folder.mkdir()
    os.symlink(other, tmp_path / ".saved.0123abcd.part")
    with atomic_folder(tmp_path / "saved") as new:
        (new / "file").touch()
    assert (other / "new" / "precious").exists()
    assert [each.name for each in (tmp_path / "saved").iterdir()] == ["file"]
    os.symlink(tmp_path / "made", folder / ".lock")
    with pytest.raises(CheckpointError), locked(folder):
        pass
    assert not (tmp_path / "made").exists()
