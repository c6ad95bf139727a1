"""What a run takes over from the one whose network it starts from: data, how they are cut, seed.

A network that is tuned on other data than it was trained on, or validated on pictures that it was
trained on, should be so because somebody asked for it.
"""

from pathlib import Path
from typing import Any

from killick.errors import OptionError, RecipeError, StorageError
from killick.storage.hub import read_hub_name
from killick.storage.model_files import locate_model, read_architecture
from killick.training.recipe import Recipe
from killick.training.recipe_files import make_recipe, read_yaml

_DATA = (
    *("name", "root", "size", "resize", "interpolation", "mean", "std"),
    *("limit", "validation", "validation_from", "label_noise"),
)
_CUT = ("limit", "validation", "validation_from")  # by these and the seed
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar")


def find_start(given: str | Path) -> Path:
    """Where a trained network is, absolute; one that is called OWNER/NAME on the hub is fetched."""
    place = Path(given)
    name = None if place.exists() else read_hub_name(place)
    if name is None or place.suffix in _WEIGHTS:
        return place.absolute()
    if name.revision is None and place.parent.is_dir():  # a slip in a path, more likely
        return place.absolute()
    return locate_model(place).absolute()


def read_source(start: Path) -> Recipe | None:
    """The recipe of the run in a folder; None where there is none, or none that can be read."""
    run = start.parent if start.name == "model" else start
    if not (run / "recipe.yaml").is_file():
        return None
    try:
        return make_recipe(read_yaml(run / "recipe.yaml"), f"the recipe of {run}")
    except RecipeError:
        return None


def inherit(start: Path, given: dict[str, Any], *, data: bool = True) -> dict[str, Any]:
    """Settings with those of the run in `start` where nothing was given.

    Args:
        start: What `--from` names.
        given: By dotted name; they hold.
        data: Also data, their cut and the seed, not the network alone: where no recipe is named
            that says them.

    Raises:
        OptionError: If it does not say what it was trained on, and the data are not named; if
            another network, or one with other arguments, is asked for than the folder has.
    """
    source = read_source(start)
    if data and start.exists() and source is None and "data.name" not in given:
        it = (
            "weights do not say what they were"
            if start.is_file()
            else "it does not say what it was"
        )
        raise OptionError(
            f"expected --data with --from {start}, since {it} trained on: --data"
            " imagefolder:pictures, for example."
        )
    found = _read_network(start, source)
    for key, own in found.items():
        if given.get(key, own) != own:
            option = "--network" if key == "network.name" else f"--{key}"
            raise OptionError(
                f"expected no {option} with --from {start}, which is {_spell(own)}, found"
                f" {_spell(given[key])}."
            )
    if source is None:
        return found | given
    if data and given.get("data.name", source.data.name) == source.data.name:
        found |= {f"data.{name}": getattr(source.data, name) for name in _DATA}
        found["seed"] = source.seed
    return found | given


def _read_network(start: Path, source: Recipe | None) -> dict[str, Any]:
    """Name and arguments of the network in a folder, as settings; of others than known ones none.

    The model says it better than the recipe of its run, which may have been another's.
    """
    folder = start / "model" if (start / "model" / "config.json").is_file() else start
    try:
        made = read_architecture(folder)
    except StorageError:
        made = None
    if made is not None:
        decided = ("num_classes", "in_chans")  # by the data
        arguments = {key: value for key, value in made.arguments.items() if key not in decided}
        return {"network.name": made.name, "network.arguments": arguments}
    if source is None:
        return {}
    return {
        "network.name": source.network.name,
        "network.arguments": dict(source.network.arguments),
    }


def warn_of_seen(recipe: Recipe, start: Path) -> str | None:
    """A line if pictures that are validated on may have been trained on by the source."""
    source = read_source(start)
    if source is None or not recipe.data.validation or source.data.name != recipe.data.name:
        return None
    ours, theirs = (
        [getattr(each.data, name) for name in _CUT] + [each.seed] for each in (recipe, source)
    )
    if ours == theirs:
        return None
    names = [*(f"data.{name}" for name in _CUT), "seed"]
    cut = ", ".join(
        f"{name} {_spell(value)}"
        for name, value, own in zip(names, theirs, ours, strict=True)
        if value != own
    )
    return (
        f"pictures that are validated on here may have been trained on by {start}, which cut its"
        f" validation set otherwise ({cut}): accuracy and temperature may flatter"
    )


def _spell(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
