"""No command executes Python files of the folder that it is started in."""

import subprocess
import sys
from pathlib import Path

import pytest

KILLICK = {
    "script": [str(Path(sys.executable).with_name("killick"))],
    "module": [sys.executable, "-m", "killick"],
}


@pytest.mark.parametrize("command", KILLICK)
def test_files_of_the_current_folder_are_not_executed(command, image_folder, tmp_path):
    for name in ("yaml", "queue", "numpy", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open('executed-{name}', 'w')\n")
    words = ["compare", "--recipe", "shapes-small", "--data", f"imagefolder:{image_folder}"]
    words += ["--data.size", "16", "--epochs", "1", "--batch", "4", "--data.validation", "0"]
    words += ["--arm", "standard", "--seeds", "0", "--suite", "clean", "--data.workers", "1"]
    made = subprocess.run(
        [*KILLICK[command], *words, "--output", "comparison", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    assert not list(tmp_path.glob("executed-*"))
