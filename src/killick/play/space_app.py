"""Serves the models in `models/` beside this file: `python app.py`."""

import os
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> int:
    """Unpack Killick, and run `killick play`."""
    here = Path(__file__).parent
    # Not in requirements.txt: a Space installs those before it has the other files.
    (wheel,) = here.glob("killick-*.whl")
    with tempfile.TemporaryDirectory(prefix="killick-") as unpacked:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(unpacked)
        sys.path.insert(0, unpacked)
        from killick.cli import main as run

        words = ["play", *map(str, sorted(here.glob("models/*")))]
        words += ["--host", os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")]
        words += ["--port", os.environ.get("GRADIO_SERVER_PORT", "7860")]
        if (here / "images").is_dir():
            words += ["--data", f"images:{here / 'images'}"]
        return run(words)


if __name__ == "__main__":
    sys.exit(main())
