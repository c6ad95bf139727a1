"""What a run takes over from the one whose network it starts from: data, their split, seed.

So that a network is not tuned on other data, or validated on images it was trained on, by accident.
"""

from pathlib import Path
from typing import Any

from killick.errors import OptionError, RecipeError, StorageError
from killick.storage.hub import read_hub_name
from killick.storage.loading import locate_model, read_architecture
from killick.training.recipe import Recipe
from killick.training.recipe_files import make_recipe, read_yaml

_DATA = (
    *("name", "root", "size", "resize", "interpolation", "mean", "std"),
    *("limit", "validation", "validation_from", "label_noise"),
)
_SPLIT = ("limit", "validation", "validation_from")  # by these and the seed
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar")


def find_start(given: str | Path) -> Path:
    """Where a trained network is, absolute; OWNER/NAME of the hub is downloaded."""
    place = Path(given)
    name = None if place.exists() else read_hub_name(place)
    if name is None or place.suffix in _WEIGHTS:
        return place.absolute()
    if name.revision is None and place.parent.is_dir():  # a slip in a path, more likely
        return place.absolute()
    return locate_model(place).absolute()


def read_source(start: Path) -> Recipe | None:
    """The recipe of the run in a folder; None where there is none that can be read."""
    run = start.parent if start.name == "model" else start
    if not (run / "recipe.yaml").is_file():
        return None
    try:
        return make_recipe(read_yaml(run / "recipe.yaml"), f"the recipe of {run}")
    except RecipeError:
        return None


def inherit(start: Path, given: dict[str, Any], *, data: bool = True) -> dict[str, Any]:
    """`given`, and the settings of the run in `start` where nothing was given.

    Args:
        start: What `--from` names.
        given: By dotted name.
        data: Also data, their split and the seed, not the network alone: where no recipe is named.

    Raises:
        OptionError: If neither `start` nor `given` name the data, or if `given` asks for another
            network than that in `start`.
    """
    source = read_source(start)
    if data and start.exists() and source is None and "data.name" not in given:
        raise OptionError(
            f"{start} does not say which data it was trained on. Name them: --data"
            " imagefolder:FOLDER, for example."
        )
    found = _read_network(start, source)
    for name, own in found.items():
        if given.get(name, own) != own:
            raise OptionError(
                f"{name} {given[name]} differs from {own} in {start}. Leave it out with --from."
            )
    if source is None:
        return found | given
    if data and given.get("data.name", source.data.name) == source.data.name:
        found |= {f"data.{name}": getattr(source.data, name) for name in _DATA}
        found["seed"] = source.seed
    return found | given


def _read_network(start: Path, source: Recipe | None) -> dict[str, Any]:
    """Name and arguments of the network in a folder; of the model, else of its run's recipe."""
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
    arguments = dict(source.network.arguments)
    return {"network.name": source.network.name, "network.arguments": arguments}


def warn_of_seen(recipe: Recipe, start: Path) -> str | None:
    """A warning if images for validation may have been trained on by the source."""
    source = read_source(start)
    if source is None or not recipe.data.validation or source.data.name != recipe.data.name:
        return None
    ours, theirs = (
        {"seed": each.seed, **{f"data.{name}": getattr(each.data, name) for name in _SPLIT}}
        for each in (recipe, source)
    )
    differing = [f"{name} {theirs[name]}" for name in ours if ours[name] != theirs[name]]
    if not differing:
        return None
    return (
        f"warning: {start} may have been trained on images for validation here, since its split"
        f" was another ({', '.join(differing)})"
    )
