"""Networks with pretrained weights, by name.

    timm:resnet50, torchvision:swin_v2_t                the library's usual weights
    timm:resnet50.a1_in1k                               those of a tag
    torchvision:swin_v2_t#IMAGENET1K_V1                 likewise
    hf-hub:owner/name, hf-hub:owner/name@revision       a model of timm's on the Hugging Face hub
    hf:owner/name, hf:owner/name@revision               an image classifier of transformers there

The preprocessing and the class names come with the weights. The network remembers the plain name of
its architecture, so that a saved model is loaded without any of these files.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from killick.errors import OptionError, StorageError, check_option, one_line, show
from killick.nets.architecture import Architecture, remembered
from killick.nets.hf_networks import load_hf, read_labels, read_processor
from killick.nets.network_preprocessing import (
    NetworkPreprocessing,
    preprocessing_of,
    read_timm,
    read_torchvision,
)
from killick.nets.weight_cache import (
    damaged,
    find_hub_files,
    find_url_file,
    hub_command,
    read_cached,
    url_command,
)
from killick.runtime.hub import HubName, read_hub_name

ON_HUB = ("hf-hub", "hf")  # libraries whose names stand for weights
_CLASSIFIER = ("num_classes", "label_offset", "classifier", "first_conv", "pool_size")
_VIEW = ("input_size", "fixed_input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Weights:
    """What is known of the weights of a network."""

    name: str
    class_names: tuple[str, ...] | None = None  # in the order of the logits
    class_ids: tuple[str, ...] | None = None  # other names of the classes: WordNet's, of ImageNet


def names_weights(name: str) -> bool:
    """Whether a network's name stands for pretrained weights by itself.

    Example:
        >>> names_weights("timm:resnet50.a1_in1k"), names_weights("timm:resnet50")
        (True, False)
    """
    library, _, rest = name.partition(":")
    tags = {"timm": ".", "torchvision": "#"}
    if library in tags:
        return tags[library] in rest
    return library == "hf-hub" or (library == "hf" and "/" in rest)


def load_pretrained(name: str, num_classes: int | None = None) -> nn.Module:
    """A network with pretrained weights, in eval mode; see above for names.

    Files are looked for in the usual caches (torch's, the Hugging Face hub's), and fetched if they
    are not there.

    Args:
        name: Such as "timm:resnet50", "timm:resnet50.a1_in1k", "torchvision:swin_v2_t" or
            "hf:google/vit-base-patch16-224".
        num_classes: Other than those of the weights: the last layer gets fresh weights.

    Raises:
        StorageError: If the weights cannot be found or fetched, or are damaged; the message has
            the command that fetches them.
    """
    library, _, rest = name.partition(":")
    if library == "timm":
        net = _load_timm(rest)
    elif library == "torchvision":
        net = _load_torchvision(rest)
    elif library in ON_HUB:
        net = (_load_hf if library == "hf" else _load_hf_hub)(_hub_name(name, rest))
    else:
        raise OptionError(
            f"no pretrained weights are known for {name}. They are for timm:NAME, torchvision:NAME,"
            " hf-hub:OWNER/NAME and hf:OWNER/NAME."
        )
    return (net if num_classes is None else with_classes(net, num_classes)).eval()


def weights_of(net: nn.Module) -> Weights | None:
    """What is known of the weights of a network, if they were loaded by name."""
    found = getattr(net, "killick_weights", None)
    return found if isinstance(found, Weights) else None


def with_classes(net: nn.Module, num_classes: int, *, always: bool = False) -> nn.Module:
    """`net`, or a copy with a fresh last layer where it has another number of classes.

    With `always` the last layer is fresh also where the number is the same.
    """
    from killick.nets import create

    made = remembered(net)
    assert made is not None
    other = create(made.name, **{**made.arguments, "num_classes": num_classes})
    own, wanted = net.state_dict(), other.state_dict()
    fresh = {key for key in wanted if key not in own or own[key].shape != wanted[key].shape}
    if always and not fresh:
        one_more = {**made.arguments, "num_classes": num_classes + 1}
        larger = create(made.name, **one_more).state_dict()
        fresh = {key for key in wanted if larger[key].shape != wanted[key].shape}
    if not fresh:
        return net
    if any(wanted[key].shape[:1] != (num_classes,) for key in fresh):
        raise OptionError(
            f"cannot give {made.name} a new last layer of {num_classes} classes: {sorted(fresh)[0]}"
            " would change too. Use the number of classes of its weights."
        )
    other.load_state_dict({key: (wanted if key in fresh else own)[key] for key in wanted})
    other.killick_preprocessing = preprocessing_of(net)  # type: ignore[assignment]
    return other.train(net.training)


def _remember(
    net: nn.Module,
    architecture: Architecture,
    preprocessing: NetworkPreprocessing,
    weights: Weights,
) -> nn.Module:
    net.killick_architecture = architecture  # type: ignore[assignment]
    net.killick_preprocessing = preprocessing  # type: ignore[assignment]
    net.killick_weights = weights  # type: ignore[assignment]
    return net


def _load_timm(name: str) -> nn.Module:
    import timm

    plain, _, tag = name.partition(".")
    check_option("the network", plain, timm.list_models())
    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{plain}.*")]
    tags += [""] if timm.models.is_model_pretrained(plain) else []
    if not tags:
        raise OptionError(f"timm has no pretrained weights for {plain}.")
    if tag:
        check_option(f"the tag of timm:{plain}", tag, tags)
    settings: Any = timm.get_pretrained_cfg(name)
    if settings.hf_hub_id:
        hub = read_hub_name(settings.hf_hub_id)
        assert hub is not None
        files = (settings.hf_hub_filename,) if settings.hf_hub_filename else _WEIGHTS[:1]
        folder = find_hub_files(hub, files, lambda found: (found / files[0]).is_file())
        path, command = folder / files[0], hub_command(hub, files)
    else:
        path = find_url_file(settings.url)
        command = url_command(settings.url, path)
    overlay = {"state_dict": read_cached(path, command)}
    net = _fill_timm(plain, path, pretrained_cfg=tag or None, pretrained_cfg_overlay=overlay)
    title = f"timm:{plain}.{settings.tag}" if settings.tag else f"timm:{plain}"
    return _finish_timm(net, plain, {}, title)


def _load_hf_hub(hub: HubName) -> nn.Module:
    from killick.nets import create

    def is_complete(folder: Path) -> bool:
        weights = any((folder / file).is_file() for file in _WEIGHTS)
        return (folder / "config.json").is_file() and weights

    files = ["config.json", *_WEIGHTS[:1]]
    folder = find_hub_files(hub, files, is_complete)
    path, command = folder / _WEIGHTS[0], hub_command(hub, files)
    path = path if path.is_file() else folder / _WEIGHTS[1]
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name, inner = config["architecture"], config.get("pretrained_cfg", config)
        arguments = dict(config.get("model_args") or {})
        # Nothing that would read or fetch other files.
        settings = {key: inner[key] for key in (*_CLASSIFIER, *_VIEW) if key in inner}
        settings["num_classes"] = config.get("num_classes", inner.get("num_classes"))
        names = config.get("label_names", inner.get("label_names"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise StorageError(
            f"{(folder / 'config.json').resolve()} is not the configuration of a model of timm"
            f" ({one_line(problem)}). For one of transformers: hf:{hub}."
        ) from None
    with torch.device("meta"):  # refuses other names, and arguments that read files
        create(f"timm:{name}", **arguments)
    settings["state_dict"] = read_cached(path, command)
    net = _fill_timm(name, path, pretrained_cfg=settings, **arguments)
    return _finish_timm(net, name, arguments, f"hf-hub:{hub}", names)


def _fill_timm(name: str, path: Path, **options: Any) -> nn.Module:
    """Timm's network with weights that were read; timm converts what older files name otherwise."""
    import timm

    try:
        net: nn.Module = timm.create_model(name, pretrained=True, **options)
    except Exception as problem:  # weights of another network
        raise StorageError(
            f"the weights in {path} are not those of timm:{name} ({one_line(problem)})."
        ) from problem
    return net


def _finish_timm(
    net: nn.Module, name: str, arguments: dict[str, Any], title: str, names: Any = None
) -> nn.Module:
    settings: dict[str, Any] = net.pretrained_cfg  # type: ignore[assignment]
    settings.pop("state_dict", None)  # the weights a second time
    classes = int(net.num_classes)  # type: ignore[arg-type]
    names = _texts(names or settings.get("label_names"), classes)
    descriptions = settings.get("label_descriptions")
    if names and isinstance(descriptions, Mapping):
        known = Weights(title, tuple(str(descriptions.get(name, name)) for name in names), names)
    elif names or classes != 1000 or "in1k" not in title:
        known = Weights(title, names)
    else:
        known = Weights(title, *_imagenet_names())
    arguments = {**arguments, "num_classes": classes}
    if settings.get("fixed_input_size"):  # timm makes the network for the size of the weights
        arguments.setdefault("img_size", settings["input_size"][-1])
    architecture = Architecture(f"timm:{name}", arguments)
    return _remember(net, architecture, read_timm(settings), known)


def _load_torchvision(name: str) -> nn.Module:
    import torchvision
    from torchvision.models import get_model, get_model_weights, list_models

    plain, _, tag = name.partition("#")
    check_option("the network", plain, list_models(torchvision.models))
    known = get_model_weights(plain)
    if tag:
        check_option(f"the weights of torchvision:{plain}", tag, [each.name for each in known])
    weights = known[tag] if tag else known.DEFAULT
    path = find_url_file(weights.url)
    read_cached(path, url_command(weights.url, path))  # torchvision itself would run code in it
    try:
        net: nn.Module = get_model(plain, weights=weights)  # finds the file in the cache
    except Exception as problem:  # whatever half a file makes its readers raise
        raise damaged(path, problem, url_command(weights.url, path)) from None
    classes = len(weights.meta["categories"])
    arguments: dict[str, Any] = {"num_classes": classes}
    for option in ("transform_input", "aux_logits"):  # set where there are weights
        if hasattr(net, option):
            arguments[option] = bool(getattr(net, option))
    names = _texts(weights.meta["categories"], classes)
    return _remember(
        net,
        Architecture(f"torchvision:{plain}", arguments),
        read_torchvision(weights),
        Weights(f"torchvision:{plain}#{weights.name}", names, _imagenet_ids(names)),
    )


def _load_hf(hub: HubName) -> nn.Module:
    def is_complete(folder: Path) -> bool:
        index = folder / "model.safetensors.index.json"
        parts = {"model.safetensors"}
        if index.is_file():
            parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        wanted = {"config.json", "preprocessor_config.json", *parts}
        return all((folder / file).is_file() for file in wanted)

    files = ["config.json", "preprocessor_config.json", "model*.safetensors*"]
    folder = find_hub_files(hub, files, is_complete)
    try:
        net, kind, arguments = load_hf(folder)
        preprocessing = read_processor(folder)
    except (OptionError, StorageError, ImportError):
        raise
    except Exception as problem:  # whatever half a file makes its readers raise
        raise damaged(folder / "model.safetensors", problem, hub_command(hub, files)) from None
    names = _texts(read_labels(net), arguments["num_classes"])
    known = Weights(f"hf:{hub}", names, _imagenet_ids(names))
    return _remember(net, Architecture(f"hf:{kind}", arguments), preprocessing, known)


def _hub_name(name: str, rest: str) -> HubName:
    found = read_hub_name(rest)
    if found is None:
        raise OptionError(f"expected {name.partition(':')[0]}:OWNER/NAME, found {show(name)}.")
    return found


def _texts(names: Any, count: int) -> tuple[str, ...] | None:
    """Class names, if there is one for each logit; those that are there twice get their number."""
    if not isinstance(names, list | tuple) or len(names) != count:
        return None
    texts = [str(name) for name in names]
    twice = {text for text, times in Counter(texts).items() if times > 1}
    return tuple(
        f"{text} ({number})" if text in twice else text for number, text in enumerate(texts)
    )


def _imagenet_names() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of ImageNet's thousand classes: descriptions, and WordNet's numbers."""
    import timm.data

    library: Any = timm.data
    info = library.ImageNetInfo("imagenet-1k")
    ids = tuple(info.label_names())
    names = _texts([info.label_name_to_description(name) for name in ids], 1000)
    assert names is not None
    return names, ids


def _imagenet_ids(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """WordNet's numbers, if the names are those of ImageNet's classes in their usual order."""
    if names is None or len(names) != 1000:
        return None
    both = (names[0].startswith("tench"), names[999].startswith("toilet"))
    return _imagenet_names()[1] if all(both) else None
