"""The standard model: an ordinary network with the interface of an anchored one, without references.

So both are saved, loaded and evaluated by the same code.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from killick.core.anchored import Anchored
from killick.core.image_model import (
    ImageModel,
    check_network,
    image_model_in,
    make_normalizer,
)
from killick.core.inspection import logits_of
from killick.errors import OptionError, ShapeError


class Standard(ImageModel):
    """An ordinary network, and what it needs to be used like an anchored one.

    `model(x)` gives the logits `(n, classes)`, in either mode. Made by `standard`.

    Attributes:
        net: Reads images.
        image_shape: Of one image, channels first. Other heights and widths work where the network
            takes them.
        normalize: Turns uint8 images into floats, where it was asked for.
        class_names: In the order of the logits, if known.
        provenance: How the model was trained, if known; saved with it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(n, classes)` of each image.

        Args:
            x: Images: uint8 with `normalize`, floats in the network's own space without.
        """
        self.check(x)
        return logits_of(self.net(x if self.normalize is None else self.normalize(x)))

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        return f"images {self.image_shape}, no references"


def standard(
    net: nn.Module,
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    *,
    image_shape: Sequence[int],
) -> Standard:
    """`net` as a model that `killick.save`, `killick.load` and `killick.predict` know.

    Unlike `anchor`, this copies nothing: training the model trains `net`.

    Args:
        net: Any classifier that maps images `(n, c, h, w)`, or vectors `(n, features)`, to logits.
        normalize: `(mean, std)` of each channel, for images in 0 to 1. With it the model takes
            uint8 images and normalizes them inside; without it, floats in the network's own space.
        image_shape: Of one image, channels first, such as `(3, 32, 32)`.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
        >>> model = standard(net, normalize=((0.5,) * 3, (0.25,) * 3), image_shape=(3, 8, 8))
        >>> model(torch.zeros(5, 3, 8, 8, dtype=torch.uint8)).shape
        torch.Size([5, 10])
    """
    check_network(net)
    if image_model_in(net) is not None:
        raise OptionError(
            f"expected an ordinary network, found {type(image_model_in(net)).__name__}, which is a"
            " model of Killick already. Pass the network alone."
        )
    shape = tuple(image_shape)
    if not 1 <= len(shape) <= 4 or not all(type(side) is int and side > 0 for side in shape):
        raise ShapeError(
            "expected image_shape of one image, channels first, such as (3, 32, 32) or (features,),"
            f" found {image_shape!r}."
        )
    normalizer = make_normalizer(normalize)
    if normalizer is not None:
        normalizer.check_channels(shape[0])
        like = next((p for p in net.parameters() if p.is_floating_point()), None)
        if like is not None:
            normalizer.to(like.device, like.dtype)
    model = Standard(getattr(net, "_orig_mod", net), shape, normalize=normalizer)
    model.training = net.training  # and every layer stays in its own mode
    return model


def model_in(model: nn.Module) -> Anchored | Standard:
    """The anchored or standard model inside DDP, `torch.compile` and averaging wrappers."""
    inner = image_model_in(model)
    if not isinstance(inner, Anchored | Standard):
        raise OptionError(
            f"expected an anchored model, found {type(model).__name__}. Make one with"
            " killick.anchor(net), or a standard one with killick.standard(net, image_shape=...)."
        )
    return inner
