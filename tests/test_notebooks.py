"""The notebooks have outputs that are fit to be read, and run."""

import json
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))
from notebook_pages import make_page  # noqa: E402

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def outputs(notebook: dict) -> list[dict]:
    return [each for cell in notebook["cells"] for each in cell.get("outputs", [])]


def printed(notebook: dict) -> str:
    streams = (each for each in outputs(notebook) if each["output_type"] == "stream")
    return "".join("".join(each["text"]) for each in streams)


def accuracies(notebook: dict) -> list[float]:
    """The accuracies that the notebook prints, in %."""
    return [float(each) for each in re.findall(r"accuracy.* ([\d.]+) %", printed(notebook))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_outputs_without_errors_warnings_and_paths_of_its_machine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 300_000
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    found = outputs(notebook)
    assert any("image/png" in each.get("data", {}) for each in found)
    assert not [each for each in found if each["output_type"] == "error"]
    assert not [each for each in found if each.get("name") == "stderr"]
    texts = [each.get("text", "") for each in found]
    texts += [part for each in found for part in each.get("data", {}).values()]
    for text in ("".join(each) for each in texts if not str(each).startswith("iVBOR")):
        assert not re.search(r"(?<![\w<])/\w+/\w|[A-Z]:\\|Warning", text), text


def test_a_page_of_the_site_has_code_text_tables_and_figures(tmp_path):
    shown = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]},
        {
            "output_type": "execute_result",
            "data": {
                "text/html": ['<style>x</style><table border="1"><tr style="y"><td>3</td>']
                + ["</tr></table>"]
            },
        },
        {"output_type": "display_data", "data": {"image/png": "AQI=", "text/plain": ["<Figure>"]}},
        {"output_type": "execute_result", "data": {"text/plain": ["4"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": shown},
    ]
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    text, figures = make_page(path)
    assert figures == {"mine-1.png": b"\1\2"}
    parts = [
        *("# Title\ntext", '<a href="mine.ipynb" download>Download this notebook</a>'),
        *("```python\nprint(1)\n```", "```text\none\ntwo\n```"),
        *("<table><tr><td>3</td></tr></table>", "![Figure made by the code above](mine-1.png)"),
        "```text\n4\n```",
    ]
    assert text == "\n\n".join(parts) + "\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of jupyter's libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_models_are_above_chance(path):
    pytest.importorskip("nbclient")
    from run_notebooks import run_notebook

    ran = run_notebook(path)  # an error of a cell is raised
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert len(outputs(ran)) == len(outputs(kept))
    assert len(accuracies(ran)) == len(accuracies(kept)) > 0
    assert all(30 < each <= 100 for each in accuracies(ran))  # chance is 10 %
