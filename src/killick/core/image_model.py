"""The base of anchored and standard models: image shape, normalization, classes, provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from killick.core.hub_methods import PretrainedMixin
from killick.core.references import check_tensor
from killick.errors import DtypeError, OptionError, ShapeError


class Normalize(nn.Module):
    """uint8 images to floats: `(x / 255 - mean) / std`, for each channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(s > 0 for s in std):
            raise ShapeError(
                "expected normalize=(mean, std) with one mean and one positive std for each"
                f" channel, found mean {tuple(mean)} and std {tuple(std)}."
            )
        if max(mean) > 1:
            raise OptionError(
                "expected normalize=(mean, std) for images in 0 to 1, found a mean of"
                f" {max(mean)}. Divide both by 255."
            )
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        m, s = torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.std).double()
        self.register_buffer("scale", (1 / (255 * s)).float(), persistent=False)
        self.register_buffer("shift", (-m / s).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalized floats."""
        shape = (-1,) + (1,) * (images.ndim - 2)
        return images.to(self.scale.dtype) * self.scale.view(shape) + self.shift.view(shape)

    def check_channels(self, channels: int) -> None:
        """Refuse a network of another number of channels."""
        if len(self.mean) != channels:
            raise ShapeError(
                f"expected normalize=(mean, std) with {channels} values each, one for each channel"
                f" of the network, found {len(self.mean)}."
            )


@dataclass(frozen=True)
class Threshold:
    """The energy up to which an image counts as in-distribution."""

    energy: float  # of `-logsumexp(logits)`; above it an image is out-of-distribution
    acceptance: float  # share of in-distribution images that are at most there
    k: int  # how many references the logits were averaged over; 1 also for a standard model
    fitted_on: str  # what the images were
    refused: Mapping[str, float] = field(
        default_factory=dict
    )  # share of each given OOD set above it

    @property
    def missed(self) -> list[str]:
        """Given OOD sets of which hardly more is refused than of in-distribution images."""
        return [name for name, share in self.refused.items() if share <= 2 * (1 - self.acceptance)]

    def describe(self) -> str:
        """What it was fitted on, and which share of the given OOD sets it refuses."""
        shares = [f"{100 * share:.0f} % of {name}" for name, share in self.refused.items()]
        words = [f"fitted on {self.fitted_on}"]
        words += [f"refuses {', '.join(shares)}" if shares else "not measured on given OOD sets"]
        words += [f"hardly detects {', '.join(self.missed)}"] if self.missed else []
        return "; ".join(words)


class ImageModel(PretrainedMixin, nn.Module):
    """The base of anchored and standard models."""

    def __init__(
        self, net: nn.Module, image_shape: Sequence[int], normalize: Normalize | None = None
    ) -> None:
        super().__init__()
        self.net = net
        self.image_shape = tuple(image_shape)  # of one image, channels first
        self.normalize = normalize
        self.class_names: tuple[str, ...] | None = None  # in the order of the logits
        self.provenance: dict[str, Any] = {}  # how the model was trained; saved with it
        self.threshold: Threshold | None = None  # where in-distribution ends, once fitted

    def check(self, images: Tensor, what: str = "images") -> None:
        """Refuse images of a wrong rank, channel count or dtype."""
        check_tensor(images, what)
        if images.ndim != 1 + len(self.image_shape) or images.shape[1] != self.image_shape[0]:
            axes = {1: "", 2: ", length", 3: ", height, width", 4: ", depth, height, width"}
            raise ShapeError(
                f"expected {what} of shape (n, {self.image_shape[0]}{axes[len(self.image_shape)]}),"
                f" found {tuple(images.shape)}. The batch comes first, then channels: add the one"
                " with x[None], move the others with x.permute(0, 3, 1, 2)."
            )
        check_dtype(images, self.normalize is not None, what)


def check_network(net: object) -> None:
    """Refuse what is no network, such as the name of one."""
    if not isinstance(net, nn.Module):
        raise OptionError(
            f"expected a network, an nn.Module, found {type(net).__name__}. Make one by name:"
            " killick.nets.create('timm:resnet18')."
        )


def make_normalizer(normalize: tuple[Sequence[float], Sequence[float]] | None) -> Normalize | None:
    """The layer that an option `normalize=(mean, std)` stands for, if it was given."""
    if normalize is None:
        return None
    pairs = isinstance(normalize, Sequence) and len(normalize) == 2
    if not pairs or not all(hasattr(part, "__len__") for part in normalize):
        raise OptionError(
            "expected normalize=(mean, std), a pair of sequences with a number for each channel,"
            f" found {normalize!r}."
        )
    return Normalize(*normalize)


def check_dtype(images: Tensor, normalizes: bool, what: str = "images") -> None:
    """Refuse floats where uint8 is normalized inside, and uint8 where nothing normalizes."""
    if normalizes and images.dtype != torch.uint8:
        raise DtypeError(
            f"found {what} of dtype {images.dtype}: this model normalizes by itself, so it takes"
            " uint8 images, 0 to 255. Pass them as they are (mixed or augmented ones rounded:"
            " .round().to(torch.uint8)), or anchor without normalize=."
        )
    if not normalizes and images.dtype == torch.uint8:
        raise DtypeError(
            f"found {what} of dtype {images.dtype}: this model has no normalize=(mean, std), so it"
            " takes floats in the network's own space. Normalize them, or anchor with normalize=."
        )
    if not normalizes and not images.is_floating_point():
        raise DtypeError(f"expected {what} as floats, found dtype {images.dtype}.")


def image_model_in(model: nn.Module) -> ImageModel | None:
    """The model of Killick inside DDP, `torch.compile` and averaging wrappers, if there is one."""
    inner: object = model
    while isinstance(inner, nn.Module) and not isinstance(inner, ImageModel):
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
    return inner if isinstance(inner, ImageModel) else None
