"""Serves the models in `models/` beside this file: `python app.py`."""

import os
import runpy
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> None:
    """Unpack Killick, and run `killick play`."""
    here = Path(__file__).parent
    # Not in requirements.txt: a Space installs those before it has the other files.
    (wheel,) = here.glob("killick-*.whl")
    with tempfile.TemporaryDirectory(prefix="killick-") as unpacked:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(unpacked)
        sys.path.insert(1, unpacked)  # Killick drops the first, the folder of this file
        words = ["killick", "play", *map(str, sorted(here.glob("models/*")))]
        words += ["--host", os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")]
        words += ["--port", os.environ.get("GRADIO_SERVER_PORT", "7860")]
        if (here / "images").is_dir():
            words += ["--data", f"images:{here / 'images'}"]
        sys.argv = words
        runpy.run_module("killick", run_name="__main__")


if __name__ == "__main__":
    main()
