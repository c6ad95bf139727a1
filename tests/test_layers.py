"""Promises of the project: imports point one way, public names are there and explained."""

import ast
import inspect
from pathlib import Path

import killick

SOURCE = Path(killick.__file__).parent

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
    "evaluation",
    "deploy",
    "protocols",
    "training",
    "experiments",
    "studies",
    "integrations",
    "lightning",  # the documented paths of what is in integrations, experiments and deploy
    "grid",
    "labelling",
    "cli",
    "__main__",
]
PUBLIC = {
    *("Anchored", "anchor", "pair", "settle", "fold", "Draw", "ReferenceMasking", "Prediction"),
    *("predict", "residual_bank", "ReferencePool", "load", "save", "errors", "nets"),
    *("Standard", "standard", "corrupt", "evaluate", "fit_threshold", "metrics"),
    *("export", "publish", "replace_references"),
}


def imported(path: Path) -> set[str]:
    """The modules of killick that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "killick":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("killick.")}
    return found


def test_every_module_has_its_place_and_imports_point_upwards():
    places = {name: i for i, name in enumerate(ORDER)}
    seen = set()
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        seen.add(module)
        for name in imported(path) - {"__version__", "killick", module}:
            assert places[name] < places[module], f"{path} imports killick.{name}"
    assert seen == set(ORDER)


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
    assert listed - modules | {"errors", "metrics", "nets"} == PUBLIC
    assert set(killick.__all__) == PUBLIC
    for name in PUBLIC:
        thing = getattr(killick, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if inspect.isfunction(value) and not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_said_once():
    text = (SOURCE.parent.parent / "pyproject.toml").read_text()
    assert f'version = "{killick.__version__}"' in text
