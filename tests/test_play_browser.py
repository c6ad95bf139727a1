"""The page to play with in a browser: drags, tabs, dropped files, and what it refuses. All slow."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from image_files import encode, noise
from labeled_images import make_anchored, make_standard
from PIL import Image
from runs import make_image_folder
from test_report_browser import FLAGS, find_browser

import killick
from killick.play.play_page import LARGEST_UPLOAD
from killick.play.space_folder import write_space

pytestmark = pytest.mark.slow
IMAGES = "() => [...document.querySelectorAll('.model img')].map((image) => image.src)"
CHANGED = "(before) => document.querySelector('.model img').src !== before"


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(words: list[str], **variables: str) -> tuple[subprocess.Popen, str]:
    """A process that serves the page, and its address."""
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    for line in process.stdout:
        if line.startswith("The page is at"):
            return process, line.split()[4]
    raise AssertionError("no page is served")


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.fixture(scope="module")
def model() -> killick.Anchored:
    model = make_anchored(5)
    images = torch.randint(256, (40, 3, 12, 12), generator=torch.Generator().manual_seed(3))
    killick.fit_threshold(model, images.to(torch.uint8), acceptance=0.5)
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("play")
    killick.save(model, folder / "mine")
    killick.save(make_standard(), folder / "plain")
    (folder / "images").mkdir()
    make_image_folder(folder / "images")
    return folder


@pytest.fixture(scope="module")
def address(folder):
    words = ["-m", "killick", "play", str(folder / "mine"), str(folder / "plain")]
    words += ["--data", f"images:{folder / 'images'}", "--port", str(find_port())]
    process, address = start([*words, "--device", "cpu", "--threads", "1"])
    yield address
    stop(process)


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens a page; nothing may be complained about, or fetched from elsewhere."""
    opened, troubles = [], []

    def open_page(address: str, width: int = 1200, height: int = 800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and troubles.append(said.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith((address, "data:", "blob:")) or troubles.append(request.url)
            ),
        )
        page.goto(address)
        page.wait_for_selector(".model img")
        page.wait_for_selector("#severity input[type=range]")
        opened.append(context)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert troubles == []


def drag(page, key: str = "ArrowRight") -> float:
    """Move the slider by one; the milliseconds until the image has changed."""
    before = page.evaluate(IMAGES)[0]
    page.locator("#severity input[type=range]").focus()
    begin = time.perf_counter()
    page.keyboard.press(key)
    page.wait_for_function(CHANGED, arg=before)
    return 1000 * (time.perf_counter() - begin)


def test_a_drag_corrupts_the_image_of_every_model_and_goes_back_the_same_way(visit, address):
    page = visit(address)
    seen = [page.evaluate(IMAGES)]
    for _ in range(3):
        drag(page)
        seen.append(page.evaluate(IMAGES))
    assert len({images[0] for images in seen}) == 4
    assert all(one == other for one, other in seen)  # both models take images of one size
    for expected in seen[2::-1]:
        drag(page, "ArrowLeft")
        assert page.evaluate(IMAGES) == expected
    names = page.locator(".model h3").all_inner_texts()
    assert names == ["mine", "plain"]
    assert page.locator(".bars tr").count() == 10


def test_a_drag_is_answered_in_200_ms(visit, address):
    page = visit(address)
    drags = [drag(page, key) for key in ("ArrowRight", "ArrowLeft") * 5]
    assert min(drags) < 200  # of ten: other programs may be using the processor


def test_tabs_do_not_know_of_each_other(visit, address):
    one, other = visit(address), visit(address)
    first = other.evaluate(IMAGES)
    one.locator("#images button").nth(3).click()
    one.wait_for_function(CHANGED, arg=first[0])
    third = one.evaluate(IMAGES)
    drag(one)
    drag(other)
    drag(other, "ArrowLeft")
    drag(one, "ArrowLeft")
    assert other.evaluate(IMAGES) == first
    assert one.evaluate(IMAGES) == third


def test_a_dropped_image_is_shown_and_a_file_that_is_none_is_refused(visit, address, tmp_path):
    page = visit(address)
    before = page.evaluate(IMAGES)[0]
    (tmp_path / "mine.png").write_bytes(encode(Image.fromarray(noise(30, 20))))
    (tmp_path / "next.png").write_bytes(encode(Image.fromarray(noise(20, 30))))
    (tmp_path / "note.png").write_text("no image")
    page.locator("input[type=file]").set_input_files(tmp_path / "mine.png")
    page.wait_for_function(CHANGED, arg=before)
    shown = page.evaluate(IMAGES)
    page.locator("input[type=file]").set_input_files(tmp_path / "note.png")
    page.get_by_text("cannot read note.png").wait_for()
    assert page.evaluate(IMAGES) == shown
    page.locator("input[type=file]").set_input_files(tmp_path / "next.png")
    page.wait_for_function(CHANGED, arg=shown[0])


@pytest.mark.parametrize("width", [360, 412])
def test_on_a_phone_nothing_is_cut_off_and_the_slider_stays(visit, address, width):
    page = visit(address, width, 740, device_scale_factor=2, is_mobile=True, has_touch=True)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    page.locator(".model >> nth=1").scroll_into_view_if_needed()
    box = page.locator("#severity input[type=range]").bounding_box()
    assert 0 <= box["y"] < 300


def test_runs_without_rows_say_so_in_the_tab_of_figures(visit, address):
    page = visit(address)
    page.get_by_role("tab", name="Figures").click()
    page.locator("#figures").get_by_text("found none").wait_for()


def request(address: str, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, str]:
    """The status and the text of a reply."""
    headers = {"Content-Type": kind} if kind else {}
    asked = urllib.request.Request(address.rstrip("/") + path, body, headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def test_the_page_listens_on_this_computer_alone(address):
    port = int(address.rstrip("/").rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    places = [place for _, place, _, state, *_ in lines if state == "0A"]
    assert [place for place in places if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_files_of_the_server_are_neither_served_nor_read(address, folder):
    image = next((folder / "images").rglob("*.png"))
    for path in (image, folder / "mine" / "config.json", Path("/etc/hostname")):
        assert request(address, f"/gradio_api/file={path}")[0] in (403, 404)
    functions = json.loads(request(address, "/config")[1])["dependencies"]
    (take,) = (each["id"] for each in functions if each["targets"][0][1] == "upload")
    file = {"path": str(image), "meta": {"_type": "gradio.FileData"}}
    event = {"fn_index": take, "session_hash": "mine", "data": [file, "fog", 0]}
    request(address, "/gradio_api/queue/join", json.dumps(event).encode(), "application/json")
    reply = request(address, "/gradio_api/queue/data?session_hash=mine")[1]
    assert '"success":false' in reply
    assert "<article" not in reply


def test_a_file_that_is_too_large_is_not_stored(address):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body += bytes(LARGEST_UPLOAD + 1) + b"\r\n--x--\r\n"
    assert request(address, "/gradio_api/upload", body, "multipart/form-data; boundary=x")[0] == 413


def test_a_space_starts_in_a_fresh_process_and_answers(model, folder, visit, tmp_path):
    space = write_space(model, tmp_path / "space", "mine", rows=[]).folder
    (folder / "images").rename(space / "images")
    process, address = start([str(space / "app.py")], GRADIO_SERVER_PORT=str(find_port()))
    page = visit(address)
    assert page.locator(".model h3").all_inner_texts() == ["mine"]
    drag(page)
    stop(process)
