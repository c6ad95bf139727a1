"""Arms of a comparison: what is trained differently."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from killick.errors import OptionError, check_option
from killick.protocols.base import COMPONENTS
from killick.settings import split_pairs, value_from_text
from killick.training.recipe_files import find_setting, read_setting

TUNING_LR = 0.2  # of fine-tuning, as a share of the recipe's: 0.02 of 0.1 on CIFAR-10


@dataclass(frozen=True)
class Arm:
    """One way to train; all other settings are those of the comparison's recipe.

    Attributes:
        name: In folders and in the report.
        settings: Of the recipe, by dotted name.
        first: Share of the epochs trained as a standard network first; then it is anchored exactly
            and trained on. The learning rate follows one schedule through both.
        start: A trained network to start from, instead of fresh weights.
        after: Another arm, whose trained network of the same seed it starts from. That one keeps
            its own settings and budget, and is trained once for all that start from it.
        members: Networks of an ensemble, each trained like this one; 0: no ensemble.
        evaluation: Options of `killick.evaluate` that are its own, such as the inference.
        more: Share of the recipe's epochs that it is tuned for after `after`, at a fifth of the
            recipe's learning rate; 0 for all of them.
        run: A finished run, which is evaluated beside the others and not trained. `{seed}` in it
            stands for each of the seeds. Or a saved model, or a network by name with the weights of
            its library.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: float = 0.0
    start: str | None = None
    after: "Arm | None" = None
    more: float = 0.0
    run: str | None = None
    members: int = 0
    evaluation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> str:
        """The name of the arm whose runs it is made of: its own without ensemble and inference."""
        parts = [part for part in self.name.split("+") if part not in _NOT_TRAINED]
        return "+".join(parts) or "standard"


ENSEMBLE, _MEMBERS = "ensemble", 3
_INFERENCES = ("mc-dropout", "tta")
_NOT_TRAINED = (ENSEMBLE, *_INFERENCES)
_LABEL = {"protocol.name": "masked", "protocol.target": "label"}
_UNIFORM = {"protocol.name": "masked", "protocol.target": "uniform"}
_STANDARD = Arm("standard", {"protocol.name": "standard"})
ARMS = {
    arm.name: arm
    for arm in (
        _STANDARD,
        Arm("anchored", {"protocol.name": "anchored"}),
        Arm("masked-uniform", _UNIFORM),
        Arm("masked-label", _LABEL),
        Arm("finetuned", _LABEL, first=0.5),
        Arm("masked-tuning", {**_LABEL, "protocol.stem": "exact"}, after=_STANDARD, more=0.25),
        Arm("standard-tuning", _STANDARD.settings, after=_STANDARD, more=0.25),
    )
}
DEFAULT_ARMS = ("standard", "masked-label", "masked-tuning")


def parse_arm(text: str) -> Arm:
    """An arm from `NAME` or `NAME:key=value,...`.

    A key is a setting of the recipe, such as `optimizer.lr`, or a short name of one, such as
    `alpha`; or `first`, `from` or `run`, see `Arm`. A built-in name brings its own settings along.
    So does that of a component, which is added to standard training, and whose settings can be keys;
    `sam+masked-label` has both. So do `ensemble` (with `members`), `mc-dropout` (with `draws`) and
    `tta`, which are made of the runs of the other parts, as `ensemble+masked-label:members=5`.

    Example:
        >>> parse_arm("dropblock+masked-label:rate=0.2").settings["components"]
        [{'name': 'dropblock', 'rate': 0.2}]
        >>> parse_arm("strong:protocol=masked,target=label,alpha=0.5").settings["protocol.alpha"]
        0.5
        >>> parse_arm("masked-label:alpha=0.5").settings["protocol.target"]
        'label'
    """
    name, colon, rest = text.partition(":")
    if re.fullmatch(r"[\w-][\w.+-]*", name) is None:
        raise OptionError(
            f"an arm's name has letters, digits, -, _ and +, found {name!r} in {text!r}."
        )
    base, components = _combine(name, known=not colon)
    found: dict[str, Any] = dict(base.settings)
    first, start, run, members = base.first, base.start, base.run, base.members
    evaluation = dict(base.evaluation)
    for key, value in split_pairs(rest, f"--arm {text}") if colon else ():
        dotted = find_setting(key)
        owners = [each for each in components if key in _fields(each["name"])]
        if owners:
            owners[0][key] = value_from_text(value, _fields(owners[0]["name"])[key])
        elif key == "members" and members:
            members = _read_count(text, key, value)
        elif key == "draws" and evaluation.get("inference") == "mc-dropout":
            evaluation[key] = _read_count(text, key, value)
        elif key == "first":
            first = float(value) if re.fullmatch(r"0?\.[0-9]+", value) else 0.0
            if not first:
                raise OptionError(
                    f"first must be between 0 and 1, found {value!r} in --arm {text}."
                )
        elif key == "from":
            start = value
        elif key == "run":
            run = value
        elif dotted == "seed":
            raise OptionError(f"no seed is allowed in --arm {text}: --seeds are for all arms.")
        else:
            found[dotted] = read_setting(dotted, value)
    if first and start is not None:
        raise OptionError(f"--arm {text} has both first and from; choose one.")
    if run is not None and (found or first or start is not None):
        raise OptionError(f"--arm {text}: a finished run takes no other settings.")
    if components:
        found["components"] = [*components, *found.get("components", [])]
    after = base.after if start is None else None
    return replace(
        base,
        name=name,
        settings=found,
        first=first,
        start=start,
        after=after,
        run=run,
        members=members,
        evaluation=evaluation,
    )


def _read_count(text: str, key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 2:
        raise OptionError(f"{key} must be at least 2, found {value!r} in --arm {text}.")
    return int(value)


def _combine(name: str, known: bool) -> tuple[Arm, list[dict[str, Any]]]:
    """The built-in arm in a name such as `ensemble+sam+masked-label`, and the components in it.

    A name of neither is one of the user's own, unless it must be `known`.
    """
    arms, components, inferences = list[Arm](), list[dict[str, Any]](), list[str]()
    parts = name.split("+")
    for part in parts:
        component = part.replace("-", "_")
        if part in _INFERENCES:
            inferences.append(part)
        elif part in ARMS:
            arms.append(ARMS[part])
        elif component in COMPONENTS:
            components.append({"name": component})
        elif part != ENSEMBLE and (known or "+" in name):
            names = [*ARMS, *COMPONENTS.names(), *_NOT_TRAINED]
            check_option("an arm without NAME:key=value,...", part, names)
    for several in ([arm.name for arm in arms], inferences):
        if len(several) > 1:
            raise OptionError(f"--arm {name}: {several[0]} and {several[1]} exclude each other.")
    if not arms and (components or set(parts) & set(_NOT_TRAINED)):
        arms = [ARMS["standard"]]
    return (
        replace(
            arms[0] if arms else Arm(name),
            members=_MEMBERS if ENSEMBLE in parts else 0,
            evaluation={"inference": inferences[0]} if inferences else {},
        ),
        components,
    )


def _fields(component: str) -> dict[str, Any]:
    """The settings of a component, by name, and the type of each."""
    hints = get_type_hints(COMPONENTS.find(component))
    names = (each.name for each in fields(COMPONENTS.find(component)))
    return {name: hints[name] for name in names if name != "name"}


def parse_arms(given: Iterable[str | Arm]) -> tuple[Arm, ...]:
    """Arms, also by their texts; `DEFAULT_ARMS` if there are none."""
    arms = [each if isinstance(each, Arm) else parse_arm(each) for each in given]
    arms = arms or [ARMS[name] for name in DEFAULT_ARMS]
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"two arms are named {twice!r}.")
    return tuple(arms)
