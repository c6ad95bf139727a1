"""The model card: `README.md` of a published folder, made from the model and its rows."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml

from killick.core.anchored import Anchored
from killick.core.image_model import Threshold
from killick.core.standard import Standard
from killick.data.preprocessing import view_for
from killick.deploy.export_sets import takes_files
from killick.deploy.parity import format_agreement
from killick.deploy.private_references import COST
from killick.errors import DataError
from killick.metrics.metric_registry import METRICS, SCORES
from killick.nets.custom import LIBRARIES
from killick.results.rows import Row
from killick.runtime.hub import import_client, read_hub_name
from killick.storage.saving import ModelContents, note_on_references

MOST_CLASSES = 20  # that are listed on the card; config.json has all of them
MARK = "Written by `killick publish`"  # by which a card that may be replaced is known
TASK = "image-classification"
# Data sets whose names are the same everywhere, as the hub calls them.
HUB_DATA = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+")


def make_card(
    model: Anchored | Standard,
    contents: ModelContents,
    rows: Sequence[Row],
    left_out: int,
    *,
    license: str | None,
    repo: str | None,
) -> str:
    """The text of `README.md`; `rows` are of these weights, `left_out` counts those of others."""
    made, provenance = contents.config["architecture"], contents.config["provenance"] or {}
    network = type(model.net).__name__ if made is None else str(made["name"])
    name = repo.partition("/")[2] if repo else (rows and rows[0]["model"]) or network
    recipe = provenance.get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    data = recipe.get("data")
    trained_on = _hub_name_of(data.get("name")) if isinstance(data, dict) else None
    settings = recipe or {key: value for key, value in provenance.items() if key != "rows"}
    try:
        shown = shown_rows(rows)
        results = [_result_line(row) for row in shown]
        front = _front_matter(model, name, license, trained_on, shown)
    except (TypeError, ValueError, KeyError) as problem:
        raise DataError(
            f"a row is damaged: {one_line(problem)}. Evaluate the model again: killick evaluate."
        ) from problem
    environment = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["text"] = text
    template = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        front=front,
        name=name,
        network=network,
        by_name=made is not None,
        model=model,
        anchored=isinstance(model, Anchored),
        takes_files=takes_files(model),
        place=repo or "path/to/this/folder",
        facts=_facts(model, contents),
        privacy=_privacy(model, provenance.get(COST)),
        results=results,
        left_out=left_out,
        weights=rows[0]["weights"] if rows else "",
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=1000),
        mark=MARK,
        made_with=", ".join(map(" ".join, contents.config["made_with"].items())),
    )


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows on the card: summary metrics of whole sets, and means over corruptions."""
    metrics = {key for key, metric in METRICS.items() if metric.summary}
    return [
        row
        for row in rows
        if row["metric"] in metrics and row["reference"] == "" and row["scaling"] == ""
        if (row["mean_of"] != "" and row["severity"] in ("all", 5))
        or (row["corruption"] == "" and row["suite"] in ("clean", "shift", "ood"))
    ]


def _condition(row: Row) -> str:
    """The images that a row is about."""
    where = "clean" if row["suite"] == "clean" else f"{row['suite']}: {row['set']}"
    if row["mean_of"] != "":
        which = "all severities" if row["severity"] == "all" else f"severity {row['severity']}"
        where = f"{row['suite']}: {row['corruption']}, {which}"
    return one_line(f"{row['data']}, {where}")


def _metric_title(row: Row) -> str:
    """The metric of a row, and how the model was used."""
    title = METRICS.find(str(row["metric"])).title
    title += f" by {SCORES.find(str(row['score'])).title}" if row["score"] else ""
    if row["k"] != "":
        title += ", 1 reference" if row["inference"] == "single" else f", {row['k']} references"
    return title


def _result_line(row: Row) -> list[str]:
    metric = METRICS.find(str(row["metric"]))
    value = f"{metric.format(float(row['value']))} {metric.unit}".rstrip()
    if row["std"] != "":
        value += f" ± {metric.format(float(row['std']))}"
    return [text(_condition(row)), text(_metric_title(row)), f"{int(row['count']):,}", value]


def _front_matter(
    model: Anchored | Standard, name: str, license: str | None, data: str | None, rows: list[Row]
) -> str:
    """What the hub reads, with results in its own form (`model-index`)."""
    hub = import_client("writing a model card")
    takes_images = len(model.image_shape) == 3
    results = [
        hub.EvalResult(
            task_type=TASK,
            dataset_type=_hub_name_of(row["data"]) or _slug(row["data"]),
            dataset_name=where,
            dataset_config=_slug(where),  # the hub groups results by it
            metric_type="accuracy" if row["metric"] == "top1" else str(row["metric"]),
            metric_value=round(float(row["value"]), 6),
            metric_name=_metric_title(row),
        )
        for row in rows
        if takes_images
        for where in [_condition(row) + (f", {row['count']} images" if row["limit"] else "")]
    ]
    tags = ["anchoring"] if isinstance(model, Anchored) else []
    tags += [TASK] if takes_images else []
    card = hub.ModelCardData(
        license=license,
        library_name="killick",
        tags=[*tags, "robustness", "calibration", "out-of-distribution-detection"],
        pipeline_tag=TASK if takes_images else None,
        datasets=[data] if data else None,
        model_name=one_line(name),
        eval_results=results or None,
    )
    return str(card.to_yaml())


def _hub_name_of(data: object) -> str | None:
    """The name on the hub of data, if it is known."""
    kind, _, rest = str(data).partition(":")
    found = read_hub_name(rest) if kind == "hf" else None
    return found.repo if found else HUB_DATA.get(str(data))


def _facts(model: Anchored | Standard, contents: ModelContents) -> dict[str, str]:
    """What the model is, a line each."""
    made, threshold = contents.config["architecture"], contents.config["threshold"]
    network = type(model.net).__name__
    if made is not None:
        arguments = [f"{key}={value!r}" for key, value in made["arguments"].items()]
        network = ", ".join([made["name"], *arguments])
        library = str(made["name"]).partition(":")[0]
        if library not in LIBRARIES:  # modules are listed as they are
            file = library if "." in library else f"{library}.py"
            network += f"; needs the author's code, which is run: KILLICK_NETWORKS={file}"
    takes = " x ".join(map(str, model.image_shape))
    takes += ", floats in the network's own space" if model.normalize is None else ", uint8"
    takes += f"; {view_for(model).described}" if takes_files(model) else ""
    names = list(model.class_names or ())
    classes = f"{contents.examples['logits'].shape[-1]:,}"
    classes += f": {', '.join(names[:MOST_CLASSES])}" if names else ""
    classes += ", and more (config.json)" if len(names) > MOST_CLASSES else ""
    facts = {
        "network": network,
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "input": takes,
        "classes": classes,
        "OOD threshold": "none; killick evaluate MODEL --store-threshold fits one",
    }
    if isinstance(model, Anchored):
        policy = f", {model.reference_policy}" if model.reference_policy else ""
        facts["references"] = f"{len(model.references)} ({model.reference_kind}{policy})"
    if threshold is not None:
        facts["OOD threshold"] = (
            f"energy {threshold['energy']:.4f}, k={threshold['k']}: accepts"
            f" {100 * threshold['acceptance']:g} %; {Threshold(**threshold).describe()}"
        )
    return facts


def _privacy(model: Anchored | Standard, cost: Any) -> str:
    """Whether training images travel with the model."""
    note = note_on_references(model)
    if not isinstance(cost, dict):
        return note
    return f"{note} With them {text(format_agreement(cost))} with its old references."


def one_line(words: object) -> str:
    """Words on one line, without control characters."""
    return _INVISIBLE.sub(" ", str(words)).strip()


def text(words: object) -> str:
    r"""Words on one line, with nothing in them taken for markup.

    Example:
        >>> text("a|b *c*")
        'a\\|b \\*c\\*'
    """
    return _SPECIAL.sub(r"\\\1", one_line(words))


def _slug(words: object) -> str:
    """Words as an identifier."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(words)).strip("-.").lower() or "unnamed"
