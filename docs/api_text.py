"""The page `docs/api.md`: signatures and docstrings of public names as Markdown."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import griffe

from killick import metrics

SOURCE = Path(__file__).parent.parent / "src"
BAR = "\\|"  # in a table
# Sections, and names in them; after a colon the members that are shown, of a class that has others.
SECTIONS = {
    "Anchoring": (
        "killick.anchor",
        "killick.Anchored: forward prepare set_references set_residuals stored_references mark_settled",
        "killick.pair",
        "killick.fold",
        "killick.standard",
        "killick.Standard: forward",
    ),
    "Training with masked references": (
        *("killick.ReferenceMasking", "killick.Draw", "killick.ReferencePool", "killick.settle"),
        "killick.replace_references",
    ),
    "Predicting": (
        *("killick.predict", "killick.Prediction", "killick.residual_bank"),
        "killick.fit_threshold",
    ),
    "Training, keeping and evaluating": (
        *("killick.train", "killick.save", "killick.load", "killick.evaluate", "killick.corrupt"),
    ),
    "Deploying": (
        "killick.export",
        "killick.storage.exported_file.Exported",
        "killick.storage.exported_file.open_export",
        "killick.storage.export_metadata.ExportMetadata",
        "killick.labelling.label",
        "killick.labelling.Record",
        "killick.deploy.converter.convert",
        "killick.publish",
        "killick.deploy.publisher.Published",
    ),
    "Recipes and runs": (
        *("killick.training.loop.train", "killick.training.loop.Outcome"),
        *("killick.training.callbacks.Callback", "killick.training.callbacks.Progress"),
        "killick.training.recipe_files.load_recipe",
    ),
    "Comparing": (
        "killick.compare",
        "killick.experiments.execution.Execution",
        *("killick.grid.ComparisonResult", "killick.grid.Arm", "killick.grid.parse_arm"),
        "killick.report.writer.write_report",
        *("killick.results.run_folder.find_runs", "killick.results.run_folder.Run"),
    ),
    "killick.attention": (
        "killick.attention.measure",
        "killick.attention.AttentionLocality",
        "killick.attention.LayerLocality",
        "killick.attention.attention_maps",
    ),
    "Federated training": (
        "killick.federated.spectrum",
        "killick.federated.spectral_kl",
        "killick.federated.simulate",
    ),
    "Studies": (
        *("killick.studies.find_study", "killick.studies.study.make_plan"),
        *("killick.studies.study_runner.run_study", "killick.studies.study_runner.StudyRun"),
        *("killick.studies.study.Study", "killick.studies.study.Size"),
        "killick.studies.study.StudyArm",
    ),
    "Other libraries": (
        "killick.lightning.AnchoredClassifier",
        "killick.lightning.AnchoredMixin",
        "killick.integrations.torchmetrics.SmoothCalibrationError",
        "killick.integrations.torchmetrics.EnergyAUROC",
    ),
    "killick.nets": (
        *("killick.nets.create", "killick.nets.load_pretrained", "killick.nets.preprocessing_of"),
        *("killick.nets.NetworkPreprocessing", "killick.nets.Architecture"),
        *("killick.nets.resnet18", "killick.nets.resnet_small", "killick.nets.wrn40_2"),
    ),
    "killick.metrics": tuple(
        f"killick.metrics.{name}"
        for name, value in sorted(vars(metrics).items(), key=lambda each: each[0].lower())
        if not name.startswith("_") and callable(value) and not inspect.ismodule(value)
    ),
}


def describe_api() -> str:
    """All sections."""
    package = griffe.load("killick", search_paths=[SOURCE], docstring_parser="google")
    parts = []
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            path, _, members = name.partition(": ")
            found = package[path.removeprefix("killick.")]
            parts += _describe(found, path, members.split() or None)
    return "\n\n".join(parts)


def _describe(found: Any, path: str, members: Iterable[str] | None) -> list[str]:
    parts = [f"### {path}", _signature(found, path.rpartition(".")[2]), *_docstring(found)]
    if found.is_class:
        parts += [line for each in _methods(found, members) for line in each]
    return [part for part in parts if part]


def _methods(found: Any, members: Iterable[str] | None) -> Iterable[list[str]]:
    own = [name for name in found.members if not name.startswith("_")]
    for name in own if members is None else members:
        each = found.all_members[name]  # also those of its bases
        if each.is_function and each.has_docstring:
            yield [f"**{found.name}.{name}**", _signature(each, name), *_docstring(each)]


def _signature(found: Any, name: str) -> str:
    parameters = found.parameters if found.is_class or found.is_function else ()
    lines, bare = [], True
    for each in parameters:
        if each.name in ("self", "cls"):
            continue
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(each.kind.value, "")
        if each.kind.value == "keyword-only" and bare:
            lines.append("*")
        bare = bare and not (star == "*" or each.kind.value == "keyword-only")
        text = f"{star}{each.name}"
        text += f": {each.annotation}" if each.annotation is not None else ""
        has_default = each.default is not None and not star
        lines.append(text + (f" = {each.default}" if has_default else ""))
    returns = getattr(found, "returns", None) if found.is_function else None
    arrow = f" -> {returns}" if returns is not None else ""
    one = f"{name}({', '.join(lines)}){arrow}"
    if len(one) > 90:
        one = f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){arrow}"
    return f"```py\n{one}\n```"


def _docstring(found: Any) -> list[str]:
    if found.docstring is None:
        return []
    parts = []
    for section in found.docstring.parse("google"):
        kind, value = section.kind.value, section.value
        if kind == "text":
            parts.append(_join_lines(value))
        elif kind in ("parameters", "attributes", "raises"):
            lines = [
                f"| `{getattr(each, 'name', None) or each.annotation}` |"
                f" {_join_lines(each.description).replace('|', BAR)} |"
                for each in value
            ]
            title = {"parameters": "argument", "attributes": "attribute", "raises": "raises"}[kind]
            parts.append("\n".join([f"| {title} | |", "| --- | --- |", *lines]))
        elif kind == "returns":
            parts.append(f"**Returns** {' '.join(_join_lines(e.description) for e in value)}")
        elif kind == "admonition" and value.kind.startswith("example"):
            parts.append(f"```pycon\n{inspect.cleandoc(value.description)}\n```")
        elif kind == "admonition":
            parts.append(f"**{section.title}** {_join_lines(value.description)}")
        elif kind == "examples":
            parts += [f"```pycon\n{text}\n```" for _, text in value]
    return parts


def _join_lines(text: str) -> str:
    """A paragraph in one line; code, lists and tables as they are."""
    if re.search(r"^(\s{4}|- |\||```)", text, re.MULTILINE):
        return text
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
