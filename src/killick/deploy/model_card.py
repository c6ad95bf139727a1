"""The model card: `README.md` of a published folder, made from the model and its rows."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.data.preprocessing import view_for
from killick.deploy.private_references import COST, format_cost
from killick.metrics.metric_registry import METRICS, SCORES
from killick.nets.custom import LIBRARIES
from killick.results.rows import Row, members_of
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
    """What a card is made from.

    Attributes:
        model: As it is published.
        config: As `config.json` has it.
        classes: How many logits there are.
        name: Of the model.
        repo: Where it is on the hub, if known.
        license: An identifier, such as apache-2.0, if one was given.
        weights: A digest of all the model holds.
        rows: Results of these weights and references.
        left_out: How many rows there were of other weights or references.
    """

    model: Anchored | Standard
    config: dict[str, Any]
    classes: int
    name: str
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
    def takes_images(self) -> bool:
        """Whether it takes images, not vectors."""
        return len(self.model.image_shape) == 3

    @property
    def takes_files(self) -> bool:
        """Whether it takes uint8 RGB images, as image files hold them."""
        model = self.model
        return self.takes_images and model.image_shape[0] == 3 and model.normalize is not None

    @property
    def place(self) -> str:
        """Where it is loaded from."""
        return self.repo or "path/to/this/folder"

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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # it is Markdown: what comes from outside is escaped by these filters
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"text": text}
    anchored = isinstance(card.model, Anchored)
    data = card.recorded("facts").get("data")
    summary = f"{'An anchored' if anchored else 'A standard'} {code(card.network)} for"
    summary += f" {card.classes:,} classes{f', trained on {code(data)}' if data else ''}."
    groups = group_rows(card.rows)
    predicts = card.takes_files and card.config["architecture"] is not None
    return environment.get_template("card.md.j2").render(
        front=_front_matter(card, groups),
        name=card.name,
        summary=summary,
        anchored=anchored,
        facts=table([["", ""], *_facts(card)], words=2),
        python=fenced(_usage(card), "python"),
        command=fenced(f"killick predict {card.place} image.jpg", "sh") if predicts else "",
        privacy=_privacy(card.model),
        results=[(title, list(_result_tables(rows))) for title, rows in groups.items()],
        left_out=card.left_out,
        weights=card.weights,
        limits=list(_limits(card)),
        training=_training(card),
        mark=MARK,
        made_with=", ".join(f"{key} {value}" for key, value in card.config["made_with"].items()),
    )


# ------------------------------------------------------------------------------ front matter


def _front_matter(card: CardContents, groups: dict[str, list[Row]]) -> str:
    """What the hub reads, with results in its own form (`model-index`)."""
    hub = import_client("to write a model card")
    tags = ["anchoring"] if isinstance(card.model, Anchored) else []
    tags += [TASK] if card.takes_images else []
    trained_on = _hub_data(card.recorded("recipe", "data").get("name"))
    data = hub.ModelCardData(
        license=card.license,
        library_name="killick",
        tags=[*tags, "robustness", "calibration", "out-of-distribution-detection"],
        pipeline_tag=TASK if card.takes_images else None,
        datasets=[trained_on] if trained_on else None,
        model_name=one_line(card.name),
        eval_results=[
            hub.EvalResult(
                task_type=TASK,
                dataset_type=_hub_data(row["data"]) or slug(row["data"]),
                dataset_name=one_line(f"{row['data']}, {condition(row)}"),
                dataset_config=slug(f"{title} {condition(row)}"),
                metric_type="accuracy" if row["metric"] == "top1" else str(row["metric"]),
                metric_value=round(float(row["value"]), 6),
                metric_name=_metric_title(row),
            )
            for title, rows in groups.items()
            for row in rows
            if card.takes_images and row["score"] in ("", "energy")
        ]
        or None,
    )
    return str(data.to_yaml())


def _hub_data(name: object) -> str | None:
    """The data's name on the hub, if it is known."""
    kind, _, rest = str(name).partition(":")
    if kind == "hf" and re.fullmatch(r"[\w.-]+/[\w.-]+", rest, re.ASCII):
        return rest
    return HUB_DATA.get(str(name))


def _metric_title(row: Row) -> str:
    title = METRICS.find(str(row["metric"])).title
    title += f" by {SCORES.find(str(row['score'])).title}" if row["score"] else ""
    return f"{title}, {inference(row)}" if inference(row) else title


# ----------------------------------------------------------------------------------- results


def group_rows(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows that a card shows, by evaluation: data, limit, seed and precision.

    They are summary metrics of clean, shifted and OOD sets, and of means over corruptions.
    """
    groups: dict[str, list[Row]] = {}
    shown = {key for key, metric in METRICS.items() if metric.summary}
    for row in rows:
        if row["reference"] != "" or row["scaling"] != "" or row["metric"] not in shown:
            continue
        mean = row["mean_of"] != "" and row["severity"] in ("all", 5)
        plain = row["corruption"] == "" and row["suite"] in ("clean", "shift", "ood")
        if not (mean or plain):
            continue
        limit = "" if row["limit"] == "" else f", at most {int(row['limit']):,} images of a set"
        where = f"{row['data']}{limit}, seed {row['evaluation_seed'] or 0}, {row['precision']}"
        groups.setdefault(text(where), []).append(row)
    return groups


def condition(row: Row) -> str:
    """The images that a row is about."""
    if row["mean_of"] != "":
        which = "all severities" if row["severity"] == "all" else f"severity {row['severity']}"
        return f"{row['suite']}: {row['corruption']}, {which}"
    return "clean" if row["suite"] == "clean" else f"{row['suite']}: {row['set']}"


def inference(row: Row) -> str:
    """How many references a row is from; empty for a model without."""
    if row["k"] == "":
        return ""
    return "1 reference" if row["inference"] == "single" else f"{row['inference']}, k={row['k']}"


def _result_tables(rows: Sequence[Row]) -> Iterable[str]:
    """Labeled sets by metric; OOD sets by score."""
    for found, first in (
        ([row for row in rows if row["score"] == ""], "images"),
        ([row for row in rows if row["score"] != ""], "OOD images"),
    ):
        columns = list(dict.fromkeys((str(row["metric"]), str(row["score"])) for row in found))
        lines: dict[tuple[str, str, int], dict[tuple[str, str], str]] = {}
        for row in found:
            place = (condition(row), inference(row), int(row["count"]))
            lines.setdefault(place, {})[str(row["metric"]), str(row["score"])] = _number(row)
        if lines:
            titles = [_column(*column) for column in columns]
            cells = [[first, "inference", "count", *titles]]
            for (shown, how, count), values in lines.items():
                numbers = [values.get(column, "–") for column in columns]
                cells.append([text(shown), how, f"{count:,}", *numbers])
            yield table(cells, words=2)
    spread = sorted({len(members_of(row)) for row in rows if row["std"] != ""})
    if spread:
        counts = " or ".join(map(str, spread))
        yield f"±: standard deviation over {counts} references, each used alone."


def _column(metric: str, score: str) -> str:
    entry = METRICS.find(metric)
    return f"{entry.column}, {SCORES.find(score).title}" if score else entry.column


def _number(row: Row) -> str:
    metric = METRICS.find(str(row["metric"]))
    spread = "" if row["std"] == "" else f" ± {metric.format(float(row['std']))}"
    return f"{metric.format(float(row['value']))}{spread}"


# -------------------------------------------------------------------------------------- text


def _facts(card: CardContents) -> list[list[str]]:
    """What the model is, a line each."""
    model, known, made = card.model, card.recorded("facts"), card.config["architecture"]
    given = {} if made is None else made["arguments"]
    arguments = "".join(f", {code(f'{name}={value!r}')}" for name, value in given.items())
    names = card.config["class_names"]
    classes = f"{card.classes:,}"
    if names is not None:
        listed = ", ".join(text(name) for name in names[:MOST_CLASSES])
        more = len(names) - MOST_CLASSES
        classes += f": {listed}" + (f" and {more:,} more (config.json)" if more > 0 else "")
    takes = " x ".join(map(str, model.image_shape))
    if model.normalize is None:
        takes += ", floats in the network's own space"
    else:
        takes += f", uint8; {view_for(model).described}" if card.takes_images else ", uint8"
    settings = ("protocol", "alpha", "target", "scope", "data", "epochs", "seed", "start")
    trained = [f"{key} {text(known[key])}" for key in settings if known.get(key) not in (None, "")]
    facts = {
        "network": f"{code(card.network)}{arguments}",
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "input": takes,
        "classes": classes,
        "training": ", ".join(trained),
    }
    if isinstance(model, Anchored):
        policy = f", {text(model.reference_policy)}" if model.reference_policy else ""
        facts["references"] = f"{len(model.references)} ({model.reference_kind}{policy})"
    if (found := card.config["threshold"]) is not None:
        facts["OOD threshold"] = (
            f"energy {found['energy']:.4f}, k={found['k']}: accepts {100 * found['acceptance']:g} %"
            f" of {text(found['fitted_on'])}"
        )
    return [[title, words] for title, words in facts.items() if words]


def _usage(card: CardContents) -> str:
    """A few lines of Python that run."""
    model = card.model
    if card.takes_files:
        lines = ["import killick"]
        lines += ["from killick.data.decoding import decode"]
        lines += ["from killick.data.preprocessing import view_for", ""]
        example = 'view_for(model)(decode("image.jpg", "image.jpg"))[None]'
    else:
        lines = ["import torch", "", "import killick", ""]
        kind = "torch.rand" if model.normalize is None else "torch.zeros"
        dtype = "" if model.normalize is None else ", dtype=torch.uint8"
        example = f"{kind}({', '.join(map(str, (1, *model.image_shape)))}{dtype})"
    if card.config["architecture"] is None:
        lines.append(f"net = ...  # a {type(model.net).__name__}")
        lines.append(f'model = killick.load("{card.place}", net=net)')
    else:
        lines.append(f'model = killick.load("{card.place}")')
    lines.append(f"x = {example}")
    lines.append("p = killick.predict(model, x)  # p.probs, p.energy, p.in_distribution")
    label = "int(p.probs.argmax())"
    label = label if model.class_names is None else f"model.class_names[{label}]"
    lines.append(f"print({label}, float(p.probs.max()))")
    if isinstance(model, Anchored) and len(model.references) > 1:
        k = len(model.references)
        lines.append(f'p = killick.predict(model, x, protocol="marginal", k={k})  # p.std')
    return "\n".join(lines)


def _privacy(model: Anchored | Standard) -> str:
    """Whether training images travel with the model."""
    if not isinstance(model, Anchored):
        return "A standard model has no references: no training image is stored with it."
    note = note_on_references(model)
    if len(model.references) and model.reference_kind == "images":
        return (
            f"**{note}** Anyone with the file can see them. To publish without:"
            " `killick publish MODEL --references mean` or `--references synthetic`."
        )
    cost = model.provenance.get(COST)
    return f"{note} {text(format_cost(cost))}" if isinstance(cost, dict) else note


def _limits(card: CardContents) -> Iterable[str]:
    seed = card.recorded("facts").get("seed")
    if card.rows and seed not in (None, ""):
        yield f"All numbers are of one training run (seed {text(seed)})."
    if card.rows and not any(row["suite"] == "ood" for row in card.rows):
        yield "OOD detection was not evaluated."
    if any(row["source"] == "generated" for row in card.rows):
        yield "Corruptions were generated, not read from the published files."
    if card.config["threshold"] is None:
        yield "No OOD threshold is stored: `killick evaluate MODEL --store-threshold` fits one."
    made = card.config["architecture"]
    if made is None:
        yield "The network was not made by name: pass it to `killick.load` as `net=`."
    elif (library := str(made["name"]).partition(":")[0]) not in LIBRARIES:
        file = library if "." in library else f"{library}.py"  # modules are listed as they are
        yield f"The network needs the author's code: set {code(f'KILLICK_NETWORKS={file}')}."
    if card.license is None:
        yield "No license was given."


def _training(card: CardContents) -> str:
    """The recipe, or whatever is known of how the model was trained, as YAML."""
    known = card.recorded("recipe") or card.recorded()
    known = {key: value for key, value in known.items() if key != "rows"}
    shown = yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=1000)
    return fenced(shown, "yaml") if known else ""


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
    fence = "`" * (_longest_run(line) + 1)
    return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"


def fenced(block: str, language: str) -> str:
    """A block of code."""
    fence = "`" * max(3, _longest_run(block) + 1)
    return f"{fence}{language}\n{block.rstrip()}\n{fence}"


def table(lines: Sequence[Sequence[str]], words: int) -> str:
    """A Markdown table: the first line has the titles, the first `words` columns hold words."""
    rule = ["---" if i < words else "---:" for i in range(len(lines[0]))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def slug(words: object) -> str:
    """Words as an identifier."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(words)).strip("-.").lower() or "unnamed"


def _longest_run(words: str) -> int:
    return max((len(run) for run in re.findall("`+", words)), default=0)
