"""The model card: Markdown that says what a model is and what was measured of it, and no more."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml

from killick.core.anchored import Anchored
from killick.core.standard import Standard
from killick.data.preprocessing import view_for
from killick.deploy.card_metadata import make_front_matter
from killick.deploy.card_results import Corruptions, Evaluation, Line, Number
from killick.deploy.markdown import code, fenced, in_line, table, text
from killick.deploy.private_paths import without_folders
from killick.deploy.reference_replacement import COST, describe_cost
from killick.nets.custom import TAKEN
from killick.storage.model_folder import note_on_references

MOST_CLASSES = 20  # that are listed on the card; config.json has all of them
MARK = "Written by `killick publish`"  # by which a card that may be replaced is known
_HERE = Path(__file__).parent
_COLUMNS = {"top1": ("accuracy %", 100.0, 1), "smooth_ece": ("smooth ECE", 1.0, 3)}
_SHORT = {"mutual_information": "mutual inf.", "residual_distance": "residual distance"}
# What may be missing, and the suite of `killick evaluate` that measures it.
_SUITES = {
    "clean": "accuracy on clean pictures",
    "corruptions": "accuracy under the common corruptions",
    "cbar": "accuracy under the corruptions of C-bar",
    "calibration": "calibration",
    "ood": "detection of other pictures (out of distribution)",
}


@dataclass(frozen=True)
class Subject:
    """What a card is about.

    Attributes:
        model: As it is published.
        config: As `config.json` has it.
        name: Of the model.
        repo: Where it is on the hub, if known.
        licence: An identifier, such as apache-2.0, if one was named.
        weights: A digest of all the model holds.
        evaluations: What was measured of it.
        left_out: How many rows there were of other weights or references.
    """

    model: Anchored | Standard
    config: dict[str, Any]
    name: str
    repo: str | None
    licence: str | None
    weights: str
    evaluations: Sequence[Evaluation]
    left_out: int


def make_card(subject: Subject) -> str:
    """The text of `README.md`."""
    model, evaluations = subject.model, subject.evaluations
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=False,  # it is Markdown: what comes from outside is escaped by these filters
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"text": text, "code": code}
    return environment.get_template("card.md.j2").render(
        front=make_front_matter(
            name=subject.name,
            licence=subject.licence,
            tags=_tags(subject),
            trained_on=_settings(subject, "data").get("name"),
            classifies_images=_takes_images(model),
            evaluations=evaluations,
        ),
        name=subject.name,
        repo=subject.repo,
        licence=subject.licence,
        anchored=isinstance(model, Anchored),
        about=_say_what_it_is(subject),
        facts=table(["what", "it is"], _list_facts(subject), words=2),
        python=fenced(_show_use(subject), "python"),
        command=fenced(f"killick predict {_place(subject)} picture.jpg", "sh")
        if _takes_pictures(subject)
        else "",
        privacy=list(_say_what_travels(model)),
        threshold=_say_threshold(model),
        evaluations=[_lay_out(each) for each in evaluations],
        left_out=subject.left_out,
        weights=subject.weights,
        limits=list(_list_limits(subject)),
        training=_show_training(subject),
        mark=MARK,
        made_with=", ".join(f"{key} {value}" for key, value in subject.config["made_with"].items()),
    )


def _lay_out(evaluation: Evaluation) -> dict[str, Any]:
    """The tables and sentences of an evaluation."""
    where = [code(evaluation.data)]
    if evaluation.limit is not None:
        where.append(f"at most {evaluation.limit:,} pictures of each set")
    where += [f"evaluation seed {evaluation.seed}", evaluation.precision]
    return {
        "title": ", ".join(word for word in where if word),
        "sets": _tabulate(evaluation.sets, "pictures", _COLUMNS) if evaluation.sets else "",
        "detection": _tabulate(evaluation.detection, "other pictures", _scores(evaluation))
        if evaluation.detection
        else "",
        "relative": [
            f"Mean corruption error: {_show(number, 100.0, 1)} % ({text(how)})."
            for how, number in evaluation.relative
        ],
        "corruptions": [
            (_title(each), _tabulate_corruptions(each)) for each in evaluation.corruptions
        ],
        "conditions": [text(sentence) for sentence in evaluation.conditions],
    }


def _scores(evaluation: Evaluation) -> dict[str, tuple[str, float, int]]:
    names = dict.fromkeys(name for line in evaluation.detection for name in line.numbers)
    return {name: (_SHORT.get(name, name.replace("_", " ")), 100.0, 1) for name in names}


def _tabulate(lines: Sequence[Line], first: str, columns: dict[str, tuple[str, float, int]]) -> str:
    """A line of a table for each set and way of asking; a column for each metric that is there."""
    there = [key for key in columns if any(key in line.numbers for line in lines)]
    asked = any(line.asked for line in lines)
    titles = [first, *(["asked from"] if asked else []), "images", *(columns[k][0] for k in there)]
    cells = []
    for line in lines:
        found = [_show(line.numbers.get(key), *columns[key][1:]) for key in there]
        words = [text(line.shown), *([line.asked] if asked else [])]
        cells.append([*words, f"{line.count:,}", *found])
    return table(titles, cells, words=2 if asked else 1)


def _title(corruptions: Corruptions) -> str:
    kind = "C-bar" if corruptions.suite == "cbar" else "common corruptions"
    how = [corruptions.source, f"constants of {corruptions.table}" if corruptions.table else ""]
    # It stands in a line of HTML, where Markdown's escapes would be seen.
    return html.escape(in_line(f"{kind} ({', '.join(word for word in how if word)})"))


def _tabulate_corruptions(corruptions: Corruptions) -> str:
    columns: list[int | str] = list(corruptions.severities)
    if any("mean" in found for found in corruptions.accuracy.values()):
        columns.append("mean")
    titles = ["accuracy %", *(f"severity {c}" if c != "mean" else "mean of 5" for c in columns)]
    lines = [
        [code(name), *(_show(found.get(column), 100.0, 1) for column in columns)]
        for name, found in corruptions.accuracy.items()
    ]
    return table(titles, lines)


def _show(number: Number | None, factor: float, digits: int) -> str:
    if number is None:
        return "–"
    shown = f"{factor * number.value:.{digits}f}"
    if number.spread is not None:
        shown += f" ± {factor * number.spread:.{digits}f}"
    return shown


def _settings(subject: Subject, group: str) -> dict[str, Any]:
    """A group of settings of the recipe, such as `data`; or what is known without one."""
    provenance = subject.config.get("provenance") or {}
    found = provenance.get("facts") if group == "facts" else None
    if group != "facts":
        recipe = provenance.get("recipe")
        found = recipe.get(group) if isinstance(recipe, dict) else None
    return found if isinstance(found, dict) else {}


def _tags(subject: Subject) -> list[str]:
    model = subject.model
    kind = ["anchoring"] if isinstance(model, Anchored) else []
    images = ["image-classification"] if _takes_images(model) else []
    return [*kind, *images, "robustness", "calibration", "out-of-distribution-detection"]


def _takes_images(model: Anchored | Standard) -> bool:
    return len(model.image_shape) == 3


def _takes_pictures(subject: Subject) -> bool:
    """Whether files can be shown to it as they are: then it takes uint8 RGB images."""
    model = subject.model
    rgb = _takes_images(model) and model.image_shape[0] == 3 and model.normalize is not None
    return rgb and subject.config["architecture"] is not None


def _place(subject: Subject) -> str:
    return subject.repo or "path/to/this/folder"


def _say_what_it_is(subject: Subject) -> str:
    known, model = _settings(subject, "facts"), subject.model
    network = code(known.get("network") or _network(subject))
    kind = "An anchored" if isinstance(model, Anchored) else "A standard"
    data = f", trained on {code(known['data'])}" if known.get("data") else ""
    count = _count_classes(subject)
    return f"{kind} {network} for {count} classes{data}."


def _count_classes(subject: Subject) -> str:
    names = subject.config["class_names"]
    if names is not None:
        return f"{len(names):,}"
    return f"{subject.config['outputs']:,}"


def _network(subject: Subject) -> str:
    made = subject.config["architecture"]
    return type(subject.model.net).__name__ if made is None else str(made["name"])


def _own_file(subject: Subject) -> str | None:
    """The file or module of a network of the author's own; None for one of a library."""
    made = subject.config["architecture"]
    library = TAKEN[0] if made is None else str(made["name"]).partition(":")[0]
    if library in TAKEN:
        return None
    return library if "." in library else f"{library}.py"  # modules are listed as they are


def _list_facts(subject: Subject) -> list[list[str]]:
    """What the model is, a line each."""
    model, known = subject.model, _settings(subject, "facts")
    made = subject.config["architecture"]
    given = {} if made is None else made["arguments"]
    arguments = "".join(f", {code(f'{name}={value!r}')}" for name, value in given.items())
    numbers = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        "network": f"{code(_network(subject))}{arguments}",
        "parameters": f"{numbers:,}",
        "input": _describe_input(model),
        "classes": _list_classes(subject),
        "training protocol": _describe_protocol(known),
        "training": _describe_training(known),
    }
    if isinstance(model, Anchored):
        policy = f", {text(model.reference_policy)}" if model.reference_policy else ""
        facts["references"] = f"{len(model.references)} stored{policy}"
        if known.get("references"):
            facts["references in training"] = text(known["references"])
    return [[title, words] for title, words in facts.items() if words]


def _describe_input(model: Anchored | Standard) -> str:
    shape = " x ".join(map(str, model.image_shape))
    if model.normalize is None:
        return f"{shape}, floats in the network's own space"
    mean, std = (
        ", ".join(f"{v:g}" for v in part) for part in (model.normalize.mean, model.normalize.std)
    )
    view = f"; pictures are seen at {view_for(model).described}" if _takes_images(model) else ""
    return f"{shape}, uint8 (normalized inside: mean {mean}, std {std}){view}"


def _list_classes(subject: Subject) -> str:
    names = subject.config["class_names"]
    if names is None:
        return f"{_count_classes(subject)}, without names"
    listed = ", ".join(text(name) for name in names[:MOST_CLASSES])
    more = len(names) - MOST_CLASSES
    return f"{len(names):,}: {listed}" + (f" and {more:,} more (config.json)" if more > 0 else "")


def _describe_protocol(known: dict[str, Any]) -> str:
    """Standard, anchored or masked, and then how much, by what and towards which target."""
    name = known.get("protocol")
    if name != "masked":
        return text(name or "")
    share = known.get("alpha")
    how = f" in {100 * share:g} %" if isinstance(share, int | float) else ""
    target = f", towards target {code(known['target'])}" if known.get("target") else ""
    scope = f", by {text(known['scope'])}" if known.get("scope") else ""
    return f"anchored, the reference masked{how} (alpha {share}){scope}{target}"


def _describe_training(known: dict[str, Any]) -> str:
    words = []
    if known.get("data"):
        words.append(f"on {code(known['data'])}")
    if known.get("epochs") not in (None, ""):
        words.append("1 epoch" if known["epochs"] == 1 else f"{known['epochs']} epochs")
    if known.get("seed") not in (None, ""):
        words.append(f"seed {known['seed']}")
    if known.get("start"):
        words.append(f"started from {code(known['start'])}")
    return ", ".join(words)


def _show_use(subject: Subject) -> str:
    """A few lines of Python that run."""
    model, place = subject.model, _place(subject)
    lines = ["import killick"]
    pictures = _takes_images(model) and model.image_shape[0] == 3 and model.normalize is not None
    if pictures:
        lines += [
            "from killick.data.decoding import decode",
            "from killick.data.preprocessing import view_for",
        ]
    else:
        lines.insert(0, "import torch")
    lines.append("")
    if subject.config["architecture"] is None:
        lines.append(f"net = ...  # {type(model.net).__name__}: this network is not made by name")
        lines.append(f'model = killick.load("{place}", net=net)')
    else:
        file = _own_file(subject)
        if file:
            lines.append(
                f"# {_network(subject)} is the author's own: set KILLICK_NETWORKS={file} first"
            )
        lines.append(f'model = killick.load("{place}")')
    if pictures:
        lines.append('x = view_for(model)(decode("picture.jpg", "picture.jpg"))[None]')
    else:
        kind = "torch.rand" if model.normalize is None else "torch.zeros"
        dtype = "" if model.normalize is None else ", dtype=torch.uint8"
        shape = ", ".join(map(str, (1, *model.image_shape)))
        lines.append(f"x = {kind}({shape}{dtype})  # yours, as the model takes them")
    lines.append("p = killick.predict(model, x)  # p.probs, p.energy, p.in_distribution, …")
    if subject.config["class_names"] is not None:
        lines.append("print(model.class_names[int(p.probs.argmax())], float(p.probs.max()))")
    else:
        lines.append("print(int(p.probs.argmax()), float(p.probs.max()))")
    if isinstance(model, Anchored) and len(model.references) > 1:
        many = f'killick.predict(model, x, protocol="marginal", k={len(model.references)})'
        lines.append(f"p = {many}  # the mean over references; p.std: how they differ")
    return "\n".join(lines)


def _say_what_travels(model: Anchored | Standard) -> Iterable[str]:
    """The privacy of training images: a paragraph each."""
    if not isinstance(model, Anchored):
        yield "A standard model has no references: no training image travels with it."
        return
    count = len(model.references)
    if not count or model.reference_kind != "images":
        yield note_on_references(model)
        cost = model.provenance.get(COST)
        if isinstance(cost, dict) and model.reference_kind != "images":
            yield f"What that costs: {text(describe_cost(cost))}"
        return
    what = "One reference image is" if count == 1 else f"{count} reference images are"
    yield (
        f"**{what} stored in `model.safetensors`, usually training images: whoever has the file"
        " can see them.** To publish without any: `killick publish MODEL --references mean` or"
        " `--references synthetic`."
    )
    if len(model.residuals):
        yield (
            f"{len(model.residuals):,} residuals, which are differences of training images, are"
            " stored as well."
        )


def _say_threshold(model: Anchored | Standard) -> str:
    found = model.threshold
    if found is None:
        return (
            "No threshold is stored: the model does not say by itself what is out of distribution."
            " `killick evaluate MODEL --store-threshold` fits one."
        )
    asked = f" asked from {found.k} references" if found.k > 1 else ""
    return (
        f"A picture counts as in distribution up to an energy of {found.energy:.4f}{asked}: there"
        f" {100 * found.acceptance:g} % of {text(without_folders(found.fitted_on))} are accepted."
        " That other pictures are refused is not promised; how well they can be told apart by"
        " energy is under Robustness, where it was measured."
    )


def _list_limits(subject: Subject) -> Iterable[str]:
    """What the numbers do not tell."""
    missing = [title for suite, title in _SUITES.items() if suite not in _measured(subject)]
    if missing and subject.evaluations:
        yield f"Not measured: {'; '.join(missing)}."
    seed = _settings(subject, "facts").get("seed")
    if subject.evaluations and seed not in (None, ""):
        yield (
            f"All numbers are of one training run (seed {seed}). ± is over references, where it"
            " stands, and says nothing about other runs."
            if isinstance(subject.model, Anchored)
            else f"All numbers are of one training run (seed {seed})."
        )
    generated = [c for e in subject.evaluations for c in e.corruptions if c.source == "generated"]
    if generated:
        yield "Corruptions were made anew, not read from the files of the published benchmarks."
    if subject.config["architecture"] is None:
        yield "The network is not made by name: who loads the model has to bring it."
    elif _own_file(subject):
        yield (
            f"The network is the author's own: who loads the model has to bring its code,"
            f" {code(str(_own_file(subject)))}, and set {code('KILLICK_NETWORKS')}."
        )


def _measured(subject: Subject) -> set[str]:
    lines = [line for each in subject.evaluations for line in each.sets]
    suites = {line.suite for line in lines}
    suites |= {each.suite for e in subject.evaluations for each in e.corruptions}
    suites |= {"calibration"} if any("smooth_ece" in line.numbers for line in lines) else set()
    return suites | ({"ood"} if any(e.detection for e in subject.evaluations) else set())


def _show_training(subject: Subject) -> str:
    """The recipe, or whatever is known of how the model was trained, as YAML."""
    provenance = subject.config.get("provenance") or {}
    known = provenance.get("recipe") or {k: v for k, v in provenance.items() if k != "rows"}
    if not known:
        return ""
    shown = yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=1000)
    return fenced(shown, "yaml")
