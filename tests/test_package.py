"""`import killick` costs nothing, and its names are there all the same, however one gets at them."""

import ast
import importlib
import pickle
import pydoc
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import killick
from killick.errors import InstallError, import_library, install_hint
from killick.training.loggers import LOGGERS

ROOT = Path(__file__).parent.parent


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


# Extras -------------------------------------------------------------------------------------------


def extras() -> dict[str, list[Requirement]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"].items()
    return {name: [Requirement(each) for each in group] for name, group in groups}


def test_every_extra_has_a_lower_bound_which_the_pins_satisfy():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    for requirement in (each for group in extras().values() for each in group):
        assert any(each.operator == ">=" for each in requirement.specifier), requirement
        assert requirement.specifier.contains(pins[requirement.name.replace("_", "-")])


def test_the_malicious_releases_of_lightning_are_excluded():
    (lightning,) = extras()["lightning"]
    assert not lightning.specifier.contains("2.6.2")
    assert not lightning.specifier.contains("2.6.3")
    assert lightning.specifier.contains("2.6.4")


def test_no_hint_installs_killick_by_a_name_that_anybody_could_take():
    places = [path for folder in ("src", "docs", "examples") for path in (ROOT / folder).rglob("*")]
    texts = [*(path for path in places if path.suffix in (".py", ".md", ".j2")), *ROOT.glob("*.md")]
    known = set(extras())
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install[^\n]*[ '\"]killick\b(?! @ git\+)", text), path
        assert "killick[" not in text, path
        named = {
            each for group in re.findall(r"'\.\[([\w,]+)\]'", text) for each in group.split(",")
        }
        assert named <= known, path


def test_a_missing_library_names_an_extra_that_exists():
    with pytest.raises(InstallError, match="the logger requires nothing") as caught:
        import_library("nothing.inside", "wandb", "the logger")
    assert str(caught.value).endswith(install_hint("wandb"))
    calls = [
        node.args[1].value
        for path in Path(killick.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_library"
        if isinstance(node.args[1], ast.Constant)
    ]
    calls += [kind.library for _, kind in LOGGERS.items() if kind.library]
    assert len(calls) > 4
    assert set(calls) <= set(extras())
