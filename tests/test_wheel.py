"""The wheel alone, in an empty environment, outside the clone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    shell = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=shell)
        assert done.returncode == 0, (words, done.stderr[-2000:])
        return done.stdout

    call(uv, "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("killick-*.whl")
    call(uv, "venv", "--python", ">=3.11", str(tmp_path / "env"))
    python, killick = (str(tmp_path / "env" / "bin" / name) for name in ("python", "killick"))
    pins = str(ROOT / "constraints.txt")
    call(uv, "pip", "install", "--python", python, "--constraint", pins, str(wheel))
    assert str(tmp_path) in call(python, "-c", "import killick; print(killick.__file__)")
    call(killick, "study", "alpha", "--size", "smoke", "--output", "study")
    assert (tmp_path / "study" / "report.html").is_file()
    run = next(each.parent for each in (tmp_path / "study").glob("*/model"))
    call(killick, "evaluate", str(run), "--limit", "20", "--severities", "3", "--suite", "clean")
    call(killick, "corrupt", "--limit", "1", "--sheet", "sheet.png")
    assert "sheet.png" in call(killick, "predict", str(run), "sheet.png")
