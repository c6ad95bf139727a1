"""The preprocessing of a trained network that a run starts from, as settings of the run's recipe.

So training, evaluation, export and prediction show a network the same pixels.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from killick.data.preprocessing import read_view
from killick.errors import StorageError
from killick.nets import NetworkPreprocessing, names_weights, preprocessing_by_name
from killick.storage.loading import read_config
from killick.training.initial_weights import model_folder
from killick.training.recipe import Network
from killick.training.recipe_files import find_recipe, find_setting, read_yaml


def add_preprocessing(
    source: str | Path, overrides: Mapping[str, Any], start: Path | None
) -> dict[str, Any]:
    """`overrides` of a recipe, and the preprocessing of the network that training starts from.

    What they or the recipe set already stays. A network with fresh weights has none of its own.
    """
    given = {find_setting(name): value for name, value in overrides.items()}
    recipe = read_yaml(find_recipe(source))
    network, data = recipe.get("network", {}), recipe.get("data", {})
    network = {"name": network} if isinstance(network, str) else network
    data = data if isinstance(data, dict) else {}
    given = {**{f"data.{name}": value for name, value in data.items()}, **given}
    name = str(given.get("network.name", network.get("name", Network.name)))
    weights = given.get("network.pretrained", network.get("pretrained"))
    if start is None:
        if weights is None and not names_weights(name):
            return dict(overrides)
        found = preprocessing_by_name(weights_name(name, weights))
    elif start.is_file():
        found = preprocessing_by_name(name)
    else:
        found = _read_folder(start)
    if found is None:
        return dict(overrides)
    found = found.override(size=given.get("data.size"), resize=given.get("data.resize"))
    settings = found.settings()
    if {"data.mean", "data.std"} & given.keys():  # they belong together
        del settings["mean"], settings["std"]
    filled = {f"data.{name}": value for name, value in settings.items()}
    return {**{k: v for k, v in filled.items() if k not in given}, **overrides}


def weights_name(name: str, pretrained: str | None) -> str:
    """The name of the weights: that in `network.pretrained`, or the network's own."""
    return pretrained if pretrained is not None and names_weights(pretrained) else name


def _read_folder(start: Path) -> NetworkPreprocessing | None:
    """The preprocessing of a saved model of RGB images."""
    try:
        config = read_config(model_folder(start))
    except StorageError:  # told where the model is loaded
        return None
    normalize, shape = config.get("normalize"), config["image_shape"]
    if len(shape) != 3 or normalize is None:
        return None
    view = read_view(config.get("provenance") or {}, shape[-1])
    return NetworkPreprocessing(
        *(view.size, view.resize, view.interpolation, view.squash),
        mean=tuple(normalize["mean"]),
        std=tuple(normalize["std"]),
    )
