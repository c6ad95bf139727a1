"""The page of a report in a browser: drawn, sortable, legible in the dark and on a phone.

One test is in the default run; the others are slow.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

# Contrast as the web's guidelines define it, of what is really drawn.
CONTRAST = """
const channel = (v) => (v /= 255, v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const parse = (text) => {
  const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
  return [r, g, b, a];
};
const over = (top, ground) => top.slice(0, 3).map((v, i) => v * top[3] + ground[i] * (1 - top[3]));
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const ground = (element) => {
  const layers = [];
  for (let each = element; each; each = each.parentElement) {
    layers.unshift(parse(getComputedStyle(each).backgroundColor));
  }
  return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
};
const paper = () => ground(document.body);
"""


def find_browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None and os.environ.get("CI"):
        pytest.fail("CI must have a browser: apt-get install chromium")
    if found is None:
        pytest.skip("no browser: apt-get install chromium")
    return found


@pytest.fixture
def report(report_page) -> Path:
    return report_page


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, report):
    """Opens the page; afterwards nothing may have been complained about or asked for."""
    opened, troubles = [], []

    def open_page(width: int = 1100, height: int = 900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: _note_request(request.url, report, troubles))
        page.goto(report.as_uri())
        opened.append(context)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert troubles == []


def _note_request(url: str, report: Path, troubles: list[str]) -> None:
    if url != report.as_uri() and not url.startswith(("data:", "blob:")):
        troubles.append(f"asked for {url}")


def test_every_figure_is_drawn_with_marks_in_it(visit):
    page = visit()
    figures = page.evaluate(
        """() => [...document.querySelectorAll('svg[role=img]')].map((svg) => {
             const box = svg.getBoundingClientRect();
             const marks = [...svg.querySelectorAll('path, use, line')].filter((mark) => {
               const size = mark.getBoundingClientRect();
               return size.width + size.height > 3;
             });
             return [svg.querySelector('title').textContent, box.width, box.height, marks.length];
           })"""
    )
    assert len(figures) == 17
    for title, width, height, marks in figures:
        assert width > 250, title
        assert height > 150, title
        assert marks > 5, title


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1100])
@pytest.mark.slow
def test_no_text_of_a_figure_is_cut_off(visit, width):
    page = visit(width)
    outside = page.evaluate(
        """() => [...document.querySelectorAll('svg[role=img]')].flatMap((svg) => {
             const frame = svg.getBoundingClientRect();
             return [...svg.querySelectorAll('text')].filter((text) => {
               const box = text.getBoundingClientRect();
               return box.left < frame.left - 1 || box.right > frame.right + 1
                 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
             }).map((text) => text.textContent);
           })"""
    )
    assert outside == []


ROWS = "[...document.querySelectorAll('table.arms')[0].tBodies[0].rows]"
COLUMN = f"(i) => {ROWS}.map((row) => row.cells[i]"


def column(page, number: int) -> list[float]:
    shown = page.evaluate(f"{COLUMN}.querySelector('.mean').firstChild.textContent)", number)
    return [float(text.replace("−", "-")) for text in shown]


@pytest.mark.slow
def test_a_click_on_a_head_sorts_by_number_and_a_second_one_turns_it_round(visit):
    page = visit()
    page.evaluate(  # as text, 100 comes before 9
        f"""() => {ROWS}.forEach((row, i) => {{
             const cell = row.cells[1];
             cell.dataset.order = ['9.5', '100', '20'][i];
             cell.querySelector('.mean').firstChild.textContent = ['9.5', '100', '20'][i];
           }})"""
    )
    head = page.locator("table.arms >> nth=0").locator("thead th").nth(1)
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    assert column(page, 1) == [9.5, 20, 100]
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    assert column(page, 1) == [100, 20, 9.5]
    assert head.get_attribute("aria-sort") == "descending"


@pytest.mark.slow
def test_every_column_can_be_sorted_with_the_keyboard_and_only_one_says_so(visit):
    page = visit()
    heads = page.locator("table.arms >> nth=0").locator("thead th")
    for number in range(1, heads.count()):
        heads.nth(number).get_by_role("button").focus()
        page.keyboard.press("Enter")
        values = page.evaluate(f"{COLUMN}.dataset.order)", number)
        assert values == sorted(values, key=float)
        sorts = [heads.nth(i).get_attribute("aria-sort") for i in range(heads.count())]
        assert sorts.count("ascending") == 1
        assert sorts[number] == "ascending"
    heads.nth(0).get_by_role("button").click()
    names = page.evaluate(f"{COLUMN}.textContent.trim())", 0)
    assert names[0].startswith("standard")


@pytest.mark.slow
def test_what_was_not_measured_stays_last_either_way(visit):
    page = visit()
    page.evaluate(
        "() => { document.querySelectorAll('table.arms')[0].tBodies[0].rows[0].cells[1]"
        ".dataset.order = ''; }"
    )
    button = page.locator("table.arms >> nth=0").locator("thead th").nth(1).get_by_role("button")
    for _ in range(2):
        button.click()
        orders = page.evaluate(f"{COLUMN}.dataset.order)", 1)
        assert orders[-1] == ""
        assert "" not in orders[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 360, 412])
@pytest.mark.slow
def test_a_phone_needs_no_sideways_scroll(visit, width):
    page = visit(width, 740, device_scale_factor=2, is_mobile=True, has_touch=True)
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    assert page.evaluate("window.innerWidth") == width
    table = page.locator("div.wide >> nth=0")
    assert table.evaluate("(box) => box.scrollWidth <= box.clientWidth")


@pytest.mark.slow
def test_text_in_figures_is_large_enough_on_a_phone_and_on_a_desk(visit):
    for width in (360, 1100):
        smallest = visit(width).evaluate(
            """() => {
                 const texts = [...document.querySelectorAll('svg[role=img] text')];
                 return Math.min(...texts.map((text) => {
                   const svg = text.ownerSVGElement;
                   const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
                   return scale * parseFloat(getComputedStyle(text).fontSize);
                 }));
               }"""
        )
        assert smallest >= 10


TEXTS = (
    "body p, body li, body td, body th, body dd, body dt, body h1, body h2, body h3, body a,"
    " body summary, .mark, .spread, .interval, .difference, .unit, .sign, .arm, .shown, button"
)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_all_text_is_legible_on_either_ground(visit, scheme):
    page = visit(color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    faint = page.evaluate(
        f"""(selector) => {{ {CONTRAST}
          return [...document.querySelectorAll(selector)].filter((element) =>
            element.textContent.trim() && !element.closest('.unseen')
          ).map((element) => [
            contrast(parse(getComputedStyle(element).color).slice(0, 3), ground(element)),
            element.textContent.trim().slice(0, 40),
          ]).filter(([ratio]) => ratio < 4.5); }}""",
        TEXTS,
    )
    assert faint == []
    background = page.evaluate(f"() => {{ {CONTRAST} return light(paper()); }}")
    assert background < 0.02 if scheme == "dark" else background > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_figures_are_legible_on_either_ground(visit, scheme):
    page = visit(color_scheme=scheme)
    texts, lines, cells = page.evaluate(
        f"""() => {{ {CONTRAST}
          const all = (selector) => [...document.querySelectorAll('svg[role=img] ' + selector)];
          const texts = all('text').map((text) =>
            [contrast(parse(getComputedStyle(text).fill), paper()), text.textContent]);
          const lines = all('path').filter((path) =>
            /stroke: var\\(--arm/.test(path.getAttribute('style') || '')).map((path) =>
            contrast(parse(getComputedStyle(path).stroke), paper()));
          const ink = parse(getComputedStyle(document.body).color);
          const cells = all('path').filter((path) =>
            /fill: var\\(--(gain|loss)/.test(path.getAttribute('style') || '')).map((path) => {{
              const style = getComputedStyle(path);
              const colour = parse(style.fill);
              colour[3] = Number(style.opacity);
              return contrast(ink, over(colour, paper()));
            }});
          return [texts, lines, cells]; }}"""
    )
    assert len(texts) > 200
    assert [text for ratio, text in texts if ratio < 4.5] == []
    assert len(lines) > 30
    assert min(lines) >= 3
    assert len(cells) > 10
    assert min(cells) >= 4.5


@pytest.mark.slow
def test_the_theme_can_be_changed_and_is_forgotten_with_the_page(visit):
    page = visit(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('svg[role=img] text')).fill"
    before = page.evaluate(paper), page.evaluate(text)
    button = page.locator("#theme")
    assert button.inner_text() == "Dark"
    button.click()
    after = page.evaluate(paper), page.evaluate(text)
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert button.inner_text() == "Light"
    button.click()
    assert (page.evaluate(paper), page.evaluate(text)) == before
    button.click()
    page.reload()
    assert page.evaluate(paper) == before[0]
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(paper) == after[0]
    page.wait_for_function("document.getElementById('theme').textContent === 'Light'")


@pytest.mark.slow
def test_paper_is_light_and_shows_no_buttons(visit):
    page = visit(700, color_scheme="dark")
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(f"() => {{ {CONTRAST} return light(paper()); }}") > 0.9
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".save >> nth=0").is_visible()
    breaks = page.evaluate(
        "() => [...document.querySelectorAll('.panel')].map((p) => getComputedStyle(p).breakInside)"
    )
    assert set(breaks) == {"avoid"}
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 700


@pytest.mark.slow
def test_it_prints_onto_paper_of_which_every_page_is_used(visit):
    pdf = visit().pdf(format="A4", print_background=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 4 <= pages <= 12


@pytest.mark.slow
def test_a_figure_is_saved_as_the_file_that_lies_beside_the_page(visit, report):
    page = visit()
    with page.expect_download() as started:
        page.locator("[data-save=detection-roc-1]").click()
    assert started.value.suggested_filename == "detection-roc-1.svg"
    saved = Path(started.value.path()).read_text()
    beside = (report.parent / "figures" / "detection-roc-1.svg").read_text()
    for part in ("<style>", "</svg>", "prefers-color-scheme"):
        assert part in saved
    assert "var(" not in saved
    assert sorted(re.findall(r"#[0-9a-f]{6}", saved)) == sorted(re.findall(r"#[0-9a-f]{6}", beside))
    assert sorted(re.findall(r' d="([^"]+)"', saved)) == sorted(re.findall(r' d="([^"]+)"', beside))
    with page.expect_download() as started:
        page.locator("#figure-detection-roc figcaption a").click()
    assert (
        Path(started.value.path()).read_bytes()
        == (report.parent / "figures" / "detection-roc.csv").read_bytes()
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.slow
def test_a_figure_alone_is_legible_too(browser, report, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto((report.parent / "figures" / "severity.svg").as_uri())
    ratio = page.evaluate(
        f"""() => {{ {CONTRAST}
          const sheet = document.querySelector('#severity-patch_1 path');
          return contrast(parse(getComputedStyle(document.querySelector('text')).fill),
                          parse(getComputedStyle(sheet).fill)); }}"""
    )
    context.close()
    assert ratio >= 4.5


@pytest.mark.slow
def test_images_are_shown_crisp_with_a_description(visit):
    page = visit()
    images = page.evaluate(
        """() => [...document.querySelectorAll('#examples img')].map((image) => [
             image.complete && image.naturalWidth > 0, getComputedStyle(image).imageRendering,
             image.alt, image.getBoundingClientRect().width])"""
    )
    assert images
    for loaded, rendering, words, width in images:
        assert loaded
        assert rendering == "pixelated"
        assert len(words) > 10
        assert width == 96
    signs = page.locator("#examples .sign").all_inner_texts()
    assert set(signs) == {"✓", "✗"}
