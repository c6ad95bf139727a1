"""Which images files, folders, patterns and lists stand for."""

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from killick.data.decoding import printable
from killick.deploy.image_paths import InputImage, find_images, read_list, require_images
from killick.errors import DataError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Images by name alone: nothing here looks into them."""
    for name in ("b.png", "a.JPG", "notes.txt", "raw.img", "deep/er/c.webp", "deep/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".hidden.png").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*words, listed=None):
    found = list(find_images(words, listed))
    assert all(each.problem is None for each in found), found
    return [each.path for each in found]


def problem(*words):
    (found,) = find_images(words)
    assert found.path == os.fspath(words[0])
    return found.problem


def read(content: bytes, **options) -> list[str]:
    """What `read_list` makes of a pipe."""
    end, start = os.pipe()

    def write() -> None:
        with os.fdopen(start, "wb") as file:
            file.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        return list(read_list(end, **options))
    finally:
        os.close(end)
        writer.join()


def test_a_folder_stands_for_the_images_below_it_sorted(tree):
    assert paths("deep") == ["deep/d.png", "deep/er/c.webp"]
    assert paths(tree) == [str(tree / n) for n in ("a.JPG", "b.png", "deep/d.png")] + [
        str(tree / "deep/er/c.webp")
    ]


def test_a_file_is_tried_whatever_its_extension(tree):
    assert paths("notes.txt", ".hidden.png", "raw.img") == ["notes.txt", ".hidden.png", "raw.img"]


def test_the_order_is_that_of_the_words_and_what_is_named_twice_is_found_twice(tree):
    assert paths("deep/er", "b.png", "deep", "b.png") == [
        *("deep/er/c.webp", "b.png", "deep/d.png", "deep/er/c.webp", "b.png"),
    ]


def test_a_pattern_stands_for_the_images_that_match(tree):
    assert paths("*.png") == ["b.png"]
    assert paths("?.[pJ]*") == ["a.JPG", "b.png"]
    assert paths("**/*.png") == ["b.png", "deep/d.png"]
    assert paths("deep/**") == ["deep/d.png", "deep/er/c.webp"]
    assert paths("*.img", "n*") == ["raw.img", "notes.txt"]


def test_a_file_with_a_bracket_in_its_name_is_no_pattern(tree):
    (tree / "x[1].png").touch()
    assert paths("x[1].png") == ["x[1].png"]


def test_a_home_folder_is_known_by_its_sign(tree, monkeypatch):
    monkeypatch.setenv("HOME", str(tree))
    assert paths("~/deep/d.png", "~/*.png") == [str(tree / "deep/d.png"), str(tree / "b.png")]


def test_what_is_not_there_is_a_problem_in_its_place_and_the_rest_goes_on(tree):
    found = list(find_images(["b.png", "gone.png", "empty", "*.gif", "*q*", "a.JPG"]))
    assert [each.path for each in found] == ["b.png", "gone.png", "empty", "*.gif", "*q*", "a.JPG"]
    assert [each.problem is None for each in found] == [True, False, False, False, False, True]
    assert found[1].problem == "cannot read gone.png: no such file."
    assert found[2].problem.startswith("no images in empty (.jpg ")
    assert found[3].problem == "no images match *.gif."
    assert found[4].problem == "no images match *q*."


def test_a_link_to_nothing_is_a_problem_also_with_a_bracket_in_its_name(tree):
    (tree / "l[1].png").symlink_to("gone")
    assert problem("l[1].png").startswith("cannot read l[1].png: no such file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_folder_that_must_not_be_read_is_a_problem(tree):
    (tree / "empty").chmod(0)
    assert "cannot list" in problem("empty")


def test_a_list_is_taken_literally_where_the_dash_stands(tree):
    listed = iter(["deep", "*.png", "-"])
    found = list(find_images(["a.JPG", "-", "b.png"], listed))
    assert [each.path for each in found] == [
        *("a.JPG", "deep/d.png", "deep/er/c.webp", "*.png", "-", "b.png"),
    ]
    assert [each.path for each in found if each.problem] == ["*.png", "-"]


def test_images_are_found_one_by_one(tree):
    def endless():
        while True:
            yield "b.png"

    found = find_images(["-"], endless())
    assert [next(found).path for _ in range(3)] == ["b.png"] * 3


def test_nothing_at_all_is_told_with_the_first_problem():
    some = [
        InputImage("x", problem="no x"),
        InputImage("a.png"),
        InputImage("y", problem="no y"),
    ]
    assert list(require_images(some)) == some
    assert list(require_images(some[1:])) == some[1:]
    with pytest.raises(DataError, match=r"^no x$"):
        list(require_images([some[0], some[2]]))
    with pytest.raises(DataError, match="no paths"):
        list(require_images([]))


def test_a_list_has_a_path_a_line():
    assert read(b"a.png\n\nb c.png\r\n\xff.png") == ["a.png", "b c.png", "\udcff.png"]
    assert read(b"a\n") == ["a"]
    assert read(b"") == []


def test_a_list_with_nul_keeps_line_breaks_in_names():
    assert read(b"a\nb.png\0c\r\0", null=True) == ["a\nb.png", "c\r"]


def test_nul_in_a_list_of_lines_is_refused():
    with pytest.raises(DataError, match="NUL characters"):
        read(b"a.png\0b.png\0")


def test_a_path_is_there_before_the_list_ends():
    end, start = os.pipe()
    listed = read_list(end)
    os.write(start, b"a.png\nb.p")
    assert next(listed) == "a.png"
    os.write(start, b"ng\n")
    assert next(listed) == "b.png"
    os.close(start)
    assert list(listed) == []
    os.close(end)


names = st.lists(st.binary(min_size=1, max_size=40), max_size=30)


@given(names=names, null=st.booleans(), chunk=st.integers(1, 7))
@settings(max_examples=60)
def test_any_bytes_come_back_whatever_the_chunks(names, null, chunk):
    end = b"\0" if null else b"\n"
    names = [n.replace(b"\0", b"_").replace(b"\r", b"_") for n in names]
    names = names if null else [n.replace(b"\n", b"_") for n in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("killick.deploy.image_paths._CHUNK", chunk)
        found = read(end.join(names), null=null)
    assert [os.fsencode(path) for path in found] == names


@given(st.text(max_size=30))
def test_a_path_for_people_is_one_printable_line(path):
    shown = printable(path)
    assert shown.isprintable()
    assert path != shown or path.isprintable()
