"""Runs the notebooks and keeps their outputs: text and figures.

    python docs/run_notebooks.py               # all in docs/notebooks, some minutes of one core
    python docs/run_notebooks.py evaluate      # one

Each runs in an empty folder. The group `slow` of dependencies has what this needs.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent / "notebooks"
_QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}  # of tqdm, without ipywidgets


def run_notebook(path: Path) -> NotebookNode:
    """The notebook with the outputs of all cells; an error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=1200,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        ).execute(env={**os.environ, **_QUIET})
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec}
    return notebook


def main(names: list[str]) -> None:
    """Run some notebooks, or all."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run_notebook(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
