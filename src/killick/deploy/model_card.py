"""The model card: `README.md` of a published folder, made from the model and its rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.data.preprocessing import view_for
from killick.deploy.parity import format_agreement
from killick.deploy.private_references import COST
from killick.metrics.metric_registry import METRICS, SCORES
from killick.nets.custom import LIBRARIES
from killick.results.rows import Row
from killick.storage.hub import import_client
from killick.storage.saving import note_on_references

MOST_CLASSES = 20  # that are listed on the card; config.json has all of them
MARK = "Written by `killick publish`"  # by which a card that may be replaced is known
TASK = "image-classification"
# Data sets whose names are the same everywhere, as the hub calls them.
HUB_DATA = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_INVISIBLE = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True)
class CardContents:
    """What a card is made from: the model, its `config.json`, and rows of its very weights."""

    model: Anchored | Standard
    config: dict[str, Any]
    classes: int
    repo: str | None
    license: str | None
    weights: str
    rows: Sequence[Row]
    left_out: int

    @property
    def network(self) -> str:
        """The network's name, or its class where it was not made by name."""
        made = self.config["architecture"]
        return type(self.model.net).__name__ if made is None else str(made["name"])

    @property
    def name(self) -> str:
        """The model's name. Not by the folder: the same model gives the same card."""
        if self.repo is not None:
            return self.repo.partition("/")[2]
        return str(self.rows[0]["model"] if self.rows else "") or self.network

    @property
    def takes_images(self) -> bool:
        """Whether it takes images, not vectors."""
        return len(self.model.image_shape) == 3

    @property
    def takes_files(self) -> bool:
        """Whether it takes uint8 RGB images, as image files hold them."""
        model = self.model
        return self.takes_images and model.image_shape[0] == 3 and model.normalize is not None

    def recorded(self, *keys: str) -> dict[str, Any]:
        """A part of the provenance, empty where there is none: it may hold anything."""
        found: Any = self.config.get("provenance")
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def make_card(card: CardContents) -> str:
    """The text of `README.md`.

    Raises:
        InstallError: Without `huggingface_hub`, which makes the front matter.
    """
    template = jinja2.Template(
        Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    shown = shown_rows(card.rows)
    place = card.repo or "path/to/this/folder"
    made_by_name = card.config["architecture"] is not None
    recipe = card.recorded("recipe") or card.recorded()
    recipe = {key: value for key, value in recipe.items() if key != "rows"}
    trained = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=1000)
    rendered: str = template.render(
        front=_front_matter(card, shown),
        name=text(card.name),
        network=code(card.network),
        classes=card.classes,
        anchored=isinstance(card.model, Anchored),
        facts=table([["", ""], *_facts(card)], words=2),
        python=fenced(_usage(card, place), "python"),
        command=f"killick predict {place} image.jpg" if card.takes_files and made_by_name else "",
        privacy=_privacy(card.model),
        results=_result_table(shown) if shown else "",
        left_out=card.left_out,
        weights=card.weights,
        training=fenced(trained, "yaml") if recipe else "",
        mark=MARK,
        made_with=text(", ".join(map(" ".join, card.config["made_with"].items()))),
    )
    return rendered


def _front_matter(card: CardContents, shown: Sequence[Row]) -> str:
    """What the hub reads, with results in its own form (`model-index`)."""
    hub = import_client("to write a model card")
    tags = ["anchoring"] if isinstance(card.model, Anchored) else []
    tags += [TASK] if card.takes_images else []
    trained_on = _hub_data(card.recorded("recipe", "data").get("name"))
    results = [
        hub.EvalResult(
            task_type=TASK,
            dataset_type=_hub_data(row["data"]) or slug(row["data"]),
            dataset_name=condition(row),
            dataset_config=slug(condition(row)),  # the hub groups results by it
            metric_type="accuracy" if row["metric"] == "top1" else str(row["metric"]),
            metric_value=round(float(row["value"]), 6),
            metric_name=metric_title(row),
        )
        for row in shown
        if card.takes_images
    ]
    data = hub.ModelCardData(
        license=card.license,
        library_name="killick",
        tags=[*tags, "robustness", "calibration", "out-of-distribution-detection"],
        pipeline_tag=TASK if card.takes_images else None,
        datasets=[trained_on] if trained_on else None,
        model_name=one_line(card.name),
        eval_results=results or None,
    )
    return str(data.to_yaml())


def _hub_data(name: object) -> str | None:
    """The data's name on the hub, if it is known."""
    kind, _, rest = str(name).partition(":")
    if kind == "hf" and re.fullmatch(r"[\w.-]+/[\w.-]+", rest, re.ASCII):
        return rest
    return HUB_DATA.get(str(name))


# ----------------------------------------------------------------------------------- results


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows on the card: summary metrics of whole sets, and means over corruptions."""
    metrics = {key for key, metric in METRICS.items() if metric.summary}
    rows = [row for row in rows if row["metric"] in metrics]
    rows = [row for row in rows if row["reference"] == "" and row["scaling"] == ""]
    suites = ("clean", "shift", "ood")
    return [
        row
        for row in rows
        if (row["mean_of"] != "" and row["severity"] in ("all", 5))
        or (row["corruption"] == "" and row["suite"] in suites)
    ]


def condition(row: Row) -> str:
    """The images that a row is about, on one line."""
    where = "clean" if row["suite"] == "clean" else f"{row['suite']}: {row['set']}"
    if row["mean_of"] != "":
        which = "all severities" if row["severity"] == "all" else f"severity {row['severity']}"
        where = f"{row['suite']}: {row['corruption']}, {which}"
    return one_line(f"{row['data']}, {where}")


def metric_title(row: Row) -> str:
    """The metric of a row, and how the model was used."""
    title = METRICS.find(str(row["metric"])).title
    title += f" by {SCORES.find(str(row['score'])).title}" if row["score"] else ""
    if row["k"] != "":
        title += ", 1 reference" if row["inference"] == "single" else f", {row['k']} references"
    return title


def _result_table(rows: Sequence[Row]) -> str:
    lines = [["images", "metric", "count", "value"]]
    for row in rows:
        metric = METRICS.find(str(row["metric"]))
        value = f"{metric.format(float(row['value']))} {metric.unit}".rstrip()
        if row["std"] != "":
            value += f" ± {metric.format(float(row['std']))}"
        lines.append([text(condition(row)), metric_title(row), f"{int(row['count']):,}", value])
    return table(lines, words=2)


# -------------------------------------------------------------------------------------- text


def _facts(card: CardContents) -> list[list[str]]:
    """What the model is, a line each."""
    model, made = card.model, card.config["architecture"]
    network = code(card.network)
    if made is not None:
        network += "".join(
            f", {code(f'{key}={value!r}')}" for key, value in made["arguments"].items()
        )
        library = str(made["name"]).partition(":")[0]
        if library not in LIBRARIES:  # modules are listed as they are
            file = library if "." in library else f"{library}.py"
            network += f"; needs the author's code, {code(f'KILLICK_NETWORKS={file}')}"
    names = list(model.class_names or ())
    listed = ", ".join(map(text, names[:MOST_CLASSES]))
    more = ", and more (config.json)" if len(names) > MOST_CLASSES else ""
    takes = " x ".join(map(str, model.image_shape))
    takes += ", floats in the network's own space" if model.normalize is None else ", uint8"
    if card.takes_files:
        takes += f"; {view_for(model).described}"
    facts = {
        "network": network,
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "input": takes,
        "classes": f"{card.classes:,}" + (f": {listed}{more}" if names else ""),
        "OOD threshold": "none; `killick evaluate MODEL --store-threshold` fits one",
    }
    if isinstance(model, Anchored):
        policy = f", {text(model.reference_policy)}" if model.reference_policy else ""
        facts["references"] = f"{len(model.references)} ({model.reference_kind}{policy})"
    if (found := card.config["threshold"]) is not None:
        facts["OOD threshold"] = (
            f"energy {found['energy']:.4f}, k={found['k']}: accepts {100 * found['acceptance']:g} %"
            f" of {text(found['fitted_on'])}"
        )
    return [[title, words] for title, words in facts.items()]


def _usage(card: CardContents, place: str) -> str:
    """A few lines of Python that run."""
    loaded = f'model = killick.load("{place}")'
    if card.config["architecture"] is None:
        loaded = f'model = killick.load("{place}", net=net)  # net: a {card.network} of yours'
    if card.takes_files:
        used = [
            'for record in killick.labelling.label(model, "image.jpg"):',
            "    print(record.label, record.confidence, record.in_distribution)",
        ]
        return "\n".join(["import killick", "", loaded, *used])
    dtype = "float32" if card.model.normalize is None else "uint8"
    shape = ", ".join(map(str, (1, *card.model.image_shape)))
    used = [f"x = torch.zeros({shape}, dtype=torch.{dtype})", "print(killick.predict(model, x))"]
    return "\n".join(["import torch", "", "import killick", "", loaded, *used])


def _privacy(model: Anchored | Standard) -> str:
    """Whether training images travel with the model."""
    if not isinstance(model, Anchored):
        return "A standard model has no references: no training image is stored with it."
    cost = model.provenance.get(COST)
    note = note_on_references(model)
    if not isinstance(cost, dict):
        return note
    return f"{note} With them {text(format_agreement(cost))} with its old references."


# ---------------------------------------------------------------------------------- Markdown


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


def code(words: object) -> str:
    """Words as code, on one line, also inside tables."""
    line = one_line(words).replace("|", "\\|")
    fence = _fence(line, 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def fenced(block: str, language: str) -> str:
    """A block of code."""
    fence = _fence(block, 3)
    return f"{fence}{language}\n{block.rstrip()}\n{fence}"


def table(lines: Sequence[Sequence[str]], words: int) -> str:
    """A Markdown table: the first line has the titles, the first `words` columns hold words."""
    rule = ["---" if i < words else "---:" for i in range(len(lines[0]))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def slug(words: object) -> str:
    """Words as an identifier."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(words)).strip("-.").lower() or "unnamed"


def _fence(words: str, least: int) -> str:
    """More backticks than there are in a row in `words`."""
    return "`" * max(least, *(len(run) + 1 for run in re.findall("`+", words)), 1)
