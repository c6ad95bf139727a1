"""The page, made with Gradio, which serves it and sends what visitors do."""

import contextlib
import functools
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from killick.errors import KillickError, OptionError, import_library, one_line
from killick.play.panels import render_figures, render_results
from killick.play.playground import ChosenImage, Playground

LARGEST_UPLOAD = 2**25  # bytes
_EMPTY = '<p class="muted">Drop an image to begin.</p>'
# Gradio applies css_paths only below these two. What hides overflow keeps nothing sticky in sight.
_HEAD = """<style>@media (max-width: 47rem) {
  .gradio-container { overflow: clip !important; }
  .gradio-container > .main { padding: 0.5rem !important; }
}</style>"""
_EVENT: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "trigger_mode": "always_last",
}


def check_address(host: str, port: int | None) -> None:
    """Refuse a host or port that cannot be listened on."""
    try:
        family, _, _, _, (place, _, *more) = socket.getaddrinfo(host, None)[0]
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((place, port or 0, *more))
    except (OSError, OverflowError) as problem:
        where = host if port is None else f"{host}, port {port}"
        raise OptionError(
            f"cannot listen on {where}: {one_line(problem)}. Choose another --host or --port."
        ) from None


@contextlib.contextmanager
def serving(
    playground: Playground,
    places: Iterable[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = False,
) -> Iterator[str]:
    """Serve the page meanwhile, in other threads, at the address that is given.

    Args:
        playground: The models and test images.
        places: Run folders whose figures are shown.
        host: What to listen on; others than 127.0.0.1 can be reached from elsewhere.
        port: By default the first free one from 7860.
        browser: Open the page in one.
    """
    # Read when Gradio is imported: no analytics, no look for a newer version.
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
    gr = import_library("gradio", "play", "killick play")
    with tempfile.TemporaryDirectory(prefix="killick-play-") as uploads:
        os.environ["GRADIO_TEMP_DIR"] = uploads
        page = make_page(playground, tuple(places))
        try:
            _, address, _ = page.launch(
                server_name=host,
                server_port=port,
                inbrowser=browser,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                ssr_mode=False,
                footer_links=[],
                max_file_size=LARGEST_UPLOAD,
                theme=gr.themes.Default(
                    primary_hue="blue", font="system-ui", font_mono="monospace"
                ),
                css_paths=Path(__file__).with_name("play.css"),
                head=_HEAD,
            )
        except OSError as problem:
            raise OptionError(f"cannot serve the page: {one_line(problem)}") from None
        try:
            yield address
        finally:
            page.close(verbose=False)


def make_page(playground: Playground, places: tuple[str, ...]) -> Any:
    """The page as Gradio's object; what a visitor chose is kept for each tab alone."""
    import gradio as gr

    for each in playground.classifiers:  # imports what resizes images, before the first drop
        each.view(torch.zeros(3, 2, 3, dtype=torch.uint8))
    figures = functools.cache(lambda: render_figures(places))
    names = playground.corruptions()
    start = "gaussian_noise" if "gaussian_noise" in names else names[0]
    images, first = playground.images, None
    if images is not None:
        first = playground.test_image(0)
        view = playground.classifiers[0].view
        shown = [view(images.read(i)).permute(1, 2, 0).numpy() for i in range(len(images))]

    def show(chosen: ChosenImage | None, corruption: str, severity: float) -> str:
        if chosen is None:
            return _EMPTY
        return render_results(playground.show(chosen, corruption, int(severity)))

    with gr.Blocks(title="Killick", analytics_enabled=False) as page:
        chosen = gr.State(first)
        with gr.Tab("Play"), gr.Row():
            with gr.Column(scale=1, min_width=280):
                if images is not None:
                    gallery = gr.Gallery(
                        shown,
                        label="Test images",
                        show_label=False,
                        format="png",
                        columns=6,
                        object_fit="contain",
                        allow_preview=False,
                        interactive=False,
                        buttons=[],
                        elem_id="images",
                    )
                upload = gr.File(
                    label="An image", show_label=False, file_types=["image"], height=130
                )
            with gr.Column(scale=3):
                with gr.Row(elem_id="controls"):
                    corruption = gr.Dropdown(
                        [(name.replace("_", " "), name) for name in names],
                        value=start,
                        label="Corruption",
                        min_width=140,
                        elem_id="corruption",
                    )
                    severity = gr.Slider(
                        0,
                        5,
                        0,
                        step=1,
                        label="Severity",
                        min_width=140,
                        elem_id="severity",
                        buttons=[],
                    )
                results = gr.HTML(show(first, start, 0), elem_id="results")
        with gr.Tab("Figures") as tab:
            drawn = gr.HTML(elem_id="figures")

        def pick(event: gr.SelectData, name: str, level: float) -> tuple[ChosenImage, str]:
            found = playground.test_image(event.index)
            return found, show(found, name, level)

        def take(path: str, name: str, level: float) -> tuple[Any, Any, None]:
            try:
                found = playground.open_file(path)
            except KillickError as problem:
                gr.Warning(str(problem), title="Error")
                return gr.skip(), gr.skip(), None
            return found, show(found, name, level), None  # and room for the next file

        settings, outputs = [corruption, severity], [chosen, results]
        if images is not None:
            gallery.select(pick, settings, outputs, **_EVENT)
        upload.upload(take, [upload, *settings], [*outputs, upload], **_EVENT)
        gr.on(
            [corruption.input, severity.input],
            show,
            [chosen, *settings],
            results,
            queue=False,
            **_EVENT,
        )
        tab.select(figures, None, drawn, api_visibility="private")
    return page
