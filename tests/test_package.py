"""`import killick` costs nothing, and its names are there all the same, however one gets at them."""

import ast
import importlib
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import killick


def run_fresh(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_killick_and_its_errors_does_not_import_torch():
    code = (
        "import sys, killick, killick.errors; print(set(killick.__all__) <= set(dir(killick)));"
        "print('torch' in sys.modules)"
    )
    assert run_fresh(code) == "True\nFalse\n"


def test_names_are_imported_from_where_type_checkers_see_them():
    """The two lists in `killick/__init__.py` say the same."""
    block, _ = [
        node
        for node in ast.parse(Path(killick.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name for name, home in seen.items() if home == "killick"}
    assert {name: home for name, home in seen.items() if name not in modules} == killick._HOMES
    assert set(killick._HOMES) | modules == set(killick.__all__)


def test_every_name_is_what_its_module_has():
    for name, home in killick._HOMES.items():
        assert getattr(killick, name) is getattr(sys.modules[home], name)
    for name in ("errors", "metrics", "nets"):
        assert getattr(killick, name) is sys.modules[f"killick.{name}"]


@pytest.fixture
def fresh() -> Iterator[None]:
    """As if nothing of Killick had been imported yet; torch has, which takes seconds."""
    saved = {name: sys.modules.pop(name) for name in list(sys.modules) if is_ours(name)}
    yield
    for name in list(filter(is_ours, sys.modules)):
        del sys.modules[name]
    sys.modules.update(saved)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] == "killick"


@pytest.mark.usefixtures("fresh")
def test_modules_are_imported_when_they_are_asked_for():
    package = importlib.import_module("killick")
    assert package.training.load_recipe("shapes-small").batch > 0
    names: dict = {}
    exec("from killick import data, errors", names)
    assert names["data"] is sys.modules["killick.data"]
    assert names["errors"] is package.errors


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'killick' has no attribute 'ancor'"):
        killick.ancor  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'ancor'"):
        exec("from killick import ancor")
    assert not hasattr(killick, "_nothing")


def test_a_library_that_a_module_misses_is_told_as_such():
    code = (
        "import sys\nsys.modules['torch'] = None\nimport killick\n"
        "try:\n    killick.anchor\nexcept ImportError as problem:\n    print(problem.name)\n"
    )
    assert run_fresh(code) == "torch\n"


def test_names_can_be_replaced_and_are_kept(monkeypatch):
    monkeypatch.setattr(killick, "evaluate", "another")
    assert killick.evaluate == "another"
    monkeypatch.undo()
    assert killick.evaluate.__name__ == "evaluate"


def test_dir_help_and_pickle_see_the_names():
    assert set(killick.__all__) <= set(dir(killick))
    assert "TYPE_CHECKING" not in dir(killick)
    told = pydoc.plain(pydoc.render_doc(killick))
    assert "class ReferenceMasking" in told
    assert "predict(model" in told
    for thing in (killick.Prediction, killick.predict, killick.standard, killick.ReferencePool):
        assert pickle.loads(pickle.dumps(thing)) is thing
