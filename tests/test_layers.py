"""Structure of the source: rooms in order, no import cycles, one name for each thing, small files."""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import killick

SOURCE = Path(killick.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each room imports only from those above it.
ORDER = [
    "errors",
    "registry",
    "settings",
    "runtime",
    "results",
    "corruptions",
    "metrics",
    "report",  # right here: it draws from what is on disk, and knows no model
    "core",
    "nets",
    "data",
    "storage",
    "attention",
    "evaluation",
    "deploy",
    "play",
    "protocols",
    "training",
    "experiments",
    "federated",
    "studies",
    "integrations",
    "lightning",  # documented paths of what is in integrations, experiments and deploy
    "grid",
    "labelling",
    "cli",
    "__main__",
]
PUBLIC = {
    *("Anchored", "anchor", "pair", "settle", "fold", "Draw", "ReferenceMasking", "Prediction"),
    *("predict", "residual_bank", "ReferencePool", "load", "save", "errors", "nets", "attention"),
    *("Standard", "standard", "corrupt", "evaluate", "fit_threshold", "metrics"),
    *("export", "publish", "replace_references", "train", "compare"),
}
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
# Every study has its own.
CLASSES_OF_STUDIES = {"Options"}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(["killick", *(part for part in parts if part != "__init__")])


MODULES = {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def imports_of(nodes: Iterator[ast.AST]) -> set[str]:
    """The modules of Killick that are imported by some statements."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "killick":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("killick.")}
    return found - {"killick"}


def at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when a module is imported."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from at_import(getattr(node, inner, []))


def test_every_module_has_its_room_and_imports_point_upwards():
    places = {name: number for number, name in enumerate(ORDER)}
    rooms = {name.split(".")[1] for name in MODULES if name != "killick"}
    assert rooms == set(ORDER)
    for name, tree in MODULES.items():
        room = name.split(".")[1] if name != "killick" else "__main__"
        for other in imports_of(ast.walk(tree)):
            above = other.split(".")[1]
            assert above == room or places[above] < places[room], f"{name} imports {other}"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: imports_of(at_import(tree.body)) - {name} for name, tree in MODULES.items()}
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in finished:
            for other in sorted(graph.get(name, ())):
                visit(other, (*path, name))
            finished.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_comes_in_what_goes_out_and_what_it_imports(room):
    if room == "recipes":
        return
    text = ast.get_docstring(MODULES[f"killick.{room}"]) or ""
    assert re.search(r"\bIn: ", text)
    assert re.search(r"\bOut: ", text)
    assert re.search(r"[Ii]mport", text)


def test_no_two_files_have_the_same_name():
    found = defaultdict(list)
    for path in FILES:
        if path.stem != "__init__":
            found[path.stem].append(path.relative_to(SOURCE).as_posix())
    assert [places for places in found.values() if len(places) > 1] == []


def test_no_two_public_classes_have_the_same_name():
    found = defaultdict(list)
    for name, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    twice = {kind: places for kind, places in found.items() if len(places) > 1}
    for kind in CLASSES_OF_STUDIES & twice.keys():
        assert all(place.startswith("killick.studies.") for place in twice.pop(kind))
    assert twice == {}


def test_nine_files_in_ten_are_under_300_lines_and_none_is_over_500():
    lengths = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES)
    assert lengths[int(0.9 * len(lengths))] < 300
    assert lengths[-1] <= 500


def test_the_core_needs_torch_alone():
    for path in [SOURCE / "errors.py", *(SOURCE / "core").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] not in {"timm", "torchvision", "safetensors", "numpy"}


def test_public_names_are_there_and_every_one_is_explained():
    listed = {name for name in dir(killick) if not name.startswith("_")}
    modules = {name for name in listed if inspect.ismodule(getattr(killick, name))}
    assert listed - modules | {"attention", "errors", "metrics", "nets"} == PUBLIC
    assert set(killick.__all__) == PUBLIC
    for name in PUBLIC:
        thing = getattr(killick, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if inspect.isfunction(value) and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_written_once():
    text = (SOURCE.parent.parent / "pyproject.toml").read_text()
    assert f'version = "{killick.__version__}"' in text
