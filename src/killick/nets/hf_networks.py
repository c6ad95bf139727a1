"""Image classifiers of transformers: made from their configuration, or loaded with their weights.

A configuration can make transformers download weights or run code. So only plain settings of a known
kind of network are taken from one that is stored with a model.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from killick.errors import OptionError, StorageError, check_option, import_library, one_line, show
from killick.nets.network_preprocessing import NetworkPreprocessing

# Settings that name other files, code or kernels; and labels, which are kept with the model.
_REFUSED = {
    *("auto_map", "backbone", "dtype", "torch_dtype", "name_or_path", "transformers_version"),
    *("quantization_config", "kernel_config", "use_kernels", "checkpoint", "pretrained"),
}
_REFUSED_BEGINNINGS = ("_", "backbone_", "custom_", "timm_", "use_timm_", "use_pretrained_")
_REFUSED_ENDINGS = ("_implementation", "_checkpoint", "_name_or_path")
_LABELS = ("id2label", "label2id", "num_labels")
_TOLERANCE = 0.02  # mean difference of normalized pixels: a level of 255 is about that
_RESAMPLING = {
    0: "nearest-exact",
    1: "bicubic",
    2: "bilinear",
    3: "bicubic",
}  # 1, Lanczos: the nearest


def create_hf(kind: str, config: dict[str, Any] | None = None, num_classes: int = 2) -> nn.Module:
    """A classifier with fresh weights, of a kind such as "vit", from the settings in `config`."""
    transformers = import_transformers(f"hf:{kind}")
    if "/" in kind:
        raise OptionError(
            f"hf:{kind} stands for trained weights: killick.nets.load_pretrained('hf:{kind}'). For"
            " fresh weights name a kind: hf:vit."
        )
    check_option("the network", kind, _kinds())
    given, known = config or {}, transformers.AutoConfig.for_model(kind).to_dict()
    unknown = [key for key in given if key not in known or key in _LABELS]
    if unknown or _without_refused(given) != given:
        raise OptionError(
            f"hf:{kind} takes plain settings of {kind} alone, found {show(unknown or given)}."
        )
    plain = transformers.AutoConfig.for_model(kind, **given, num_labels=num_classes)
    plain.architectures = plain.architectures or []  # some kinds have several; the first
    make: Callable[..., nn.Module] = transformers.AutoModelForImageClassification.from_config
    return make(plain, trust_remote_code=False)


def load_hf(folder: Path) -> tuple[nn.Module, str, dict[str, Any]]:
    """The network of a folder as the hub has it, its kind, and the settings to make it again."""
    transformers = import_transformers(str(folder))
    try:
        given = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise StorageError(
            f"{(folder / 'config.json').resolve()} is damaged ({one_line(problem)}). Delete it, and"
            " fetch it again."
        ) from None
    if (kind := given.pop("model_type", None)) not in _kinds():
        raise OptionError(
            f"{show(kind)} is not an image classifier of transformers. For a model of timm:"
            " hf-hub:OWNER/NAME."
        )
    config = transformers.AutoConfig.for_model(kind, **_without_refused(given))
    with _quiet(transformers):
        net, report = transformers.AutoModelForImageClassification.from_pretrained(
            str(folder),
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):
        raise StorageError(
            f"the weights in {folder} have no {missing[0]} ({len(missing)} such): they are not those"
            " of an image classifier."
        )
    known, usual = _without_refused(config.to_dict()), type(config)().to_dict()
    settings = {
        key: value
        for key, value in known.items()
        if key in usual and value != usual[key] and key not in _LABELS
    }
    return net, kind, {"config": settings, "num_classes": int(config.num_labels)}


def read_processor(folder: Path) -> NetworkPreprocessing:
    """The preprocessing of a folder's image processor."""
    transformers = import_transformers(str(folder))
    found = transformers.AutoImageProcessor.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False
    )
    size, crop = dict(found.size or {}), dict(getattr(found, "crop_size", None) or {})
    edge = size.get("shortest_edge")
    side, resize, squash = size.get("height", edge), None, False
    if percent := getattr(found, "crop_pct", None):  # ConvNeXt: crops small images only
        squash = edge is None or edge >= 384
        resize = None if squash else int(size["shortest_edge"] / percent)
    elif getattr(found, "do_center_crop", False):
        side, resize, squash = crop["height"], edge or size.get("height"), edge is None
        if edge and type(found).__name__.startswith("Levit"):
            resize = int(edge * 256 / 224)
    else:
        squash = edge is None
    if not isinstance(side, int) or size.get("width", side) != size.get("height", side):
        raise OptionError(f"the image processor of {folder} has no square size, found {size}.")
    mean = found.image_mean if found.do_normalize else (0.0, 0.0, 0.0)
    std = found.image_std if found.do_normalize else (1.0, 1.0, 1.0)
    scale = 255 * found.rescale_factor if found.do_rescale else 255.0
    if getattr(found, "include_top", False):  # EfficientNet: divides by std twice
        std = tuple(value * value for value in std)
    read = NetworkPreprocessing(
        size=side,
        resize=resize,
        interpolation=_RESAMPLING.get(int(found.resample), "bilinear"),
        squash=squash,
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
    )
    _compare(found, read, folder)
    return read


def _compare(processor: Any, read: NetworkPreprocessing, folder: Path) -> None:
    """Refuse a processor that shows a network other images than what was read of it."""
    from torchvision.transforms import InterpolationMode, v2

    rows, columns = torch.meshgrid(
        torch.linspace(0, 1, 300), torch.linspace(0, 1, 400), indexing="ij"
    )
    waves = torch.stack([(9 * rows).sin(), (7 * columns).cos(), (5 * rows + 6 * columns).sin()])
    image = (127.5 + 127.5 * waves).round().byte()
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    side, how = read.resize or read.size, InterpolationMode(read.interpolation)
    steps = [v2.Resize([side, side] if read.squash else side, how), v2.CenterCrop(read.size)]
    ours = v2.functional.normalize(v2.Compose(steps)(image) / 255, [*read.mean], [*read.std])
    if theirs.shape != ours.shape or float((theirs - ours).abs().mean()) > _TOLERANCE:
        raise OptionError(
            f"{type(processor).__name__} of {folder} does more than resize, crop and normalize RGB"
            " images, which Killick does not follow. Choose another network."
        )


def read_labels(net: nn.Module) -> tuple[str, ...] | None:
    """The class names of a network of transformers; None for those that it makes up."""
    config: Any = net.config
    labels = {int(number): str(name) for number, name in config.id2label.items()}
    if all(name == f"LABEL_{number}" for number, name in labels.items()):
        return None
    return tuple(labels[number] for number in sorted(labels))


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without a progress bar for reading a file."""
    shown = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.logging.enable_progress_bar()


def import_transformers(name: str) -> Any:
    """The library; an error that names the extra if it is not installed."""
    return import_library("transformers", "transformers", name)


def _kinds() -> list[str]:
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return sorted(kind for kind in names if kind != "timm_wrapper")  # those are of timm


def _is_refused(key: object) -> bool:
    name = str(key)
    marked = name.startswith(_REFUSED_BEGINNINGS) or name.endswith(_REFUSED_ENDINGS)
    return marked or name in _REFUSED


def _without_refused(value: Any) -> Any:
    """Settings without those that are refused, also inside of others."""
    if isinstance(value, dict):
        return {k: _without_refused(v) for k, v in value.items() if not _is_refused(k)}
    return [_without_refused(each) for each in value] if isinstance(value, list) else value
