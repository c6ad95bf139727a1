"""Operations that map each value of a channel to another: tables `(n, 3, 256)` and their lookup.

Brightness, contrast, posterize, solarize, autocontrast, equalize and invert are of this kind. A table
has fewer entries than an image has pixels, and one lookup serves all of them.
"""

import torch
from torch import Tensor


def brightness(magnitude: Tensor) -> Tensor:
    """All values times 1 + magnitude."""
    return _to_bytes(_values(magnitude) * (1 + _wide(magnitude)))


def contrast(magnitude: Tensor, mean: Tensor) -> Tensor:
    """Values moved away from `mean`, that of an image's gray values, or towards it if negative."""
    wide = _wide(magnitude)
    return _to_bytes(_values(magnitude) * (1 + wide) + _wide(mean) * -wide)


def posterize(magnitude: Tensor) -> Tensor:
    """The highest `magnitude` bits of each value."""
    dropped = 8 - _wide(magnitude).int()
    values = _values(magnitude).int()
    return ((values >> dropped) << dropped).to(torch.uint8)


def solarize(magnitude: Tensor) -> Tensor:
    """Values from 255 times `magnitude` on are inverted."""
    values = _values(magnitude)
    return _to_bytes(torch.where(values >= 255 * _wide(magnitude), 255 - values, values))


def invert(magnitude: Tensor) -> Tensor:
    """Values subtracted from 255."""
    return _to_bytes(255 - _values(magnitude))


def autocontrast(lowest: Tensor, highest: Tensor) -> Tensor:
    """Values stretched so that the lowest and highest of a channel `(n, 3)` become 0 and 255."""
    low, high = lowest.float()[..., None], highest.float()[..., None]
    values, flat = _values(low), low == high
    scale = torch.where(flat, 1.0, (high - low) * (1 / 255))
    return _to_bytes((values - torch.where(flat, 0.0, low)) / scale)


def equalize(counts: Tensor) -> Tensor:
    """Values spread so that all become about equally frequent; `counts` `(n, 3, 256)` is how often each is.

    As in Pillow: the highest value of a channel does not count for the step between values.
    """
    below = counts.cumsum(-1)
    total = below[..., -1:]
    step = torch.where(below < total, below, 0).amax(-1, keepdim=True) // 255
    spread = (below - counts + step // 2) // step.clamp_min(1)
    spread = spread.clamp_max(255).to(torch.uint8)
    same = torch.arange(256, device=counts.device, dtype=torch.uint8)
    return torch.where(step == 0, same, spread)


def count_values(places: Tensor, images: int) -> Tensor:
    """How often each channel has each value, `(images, 3, 256)`, from `table_places`."""
    counts = torch.zeros(images * 3 * 256, dtype=torch.int32, device=places.device)
    ones = torch.ones((), dtype=torch.int32, device=places.device).expand(places.numel())
    return counts.index_add_(0, places.view(-1), ones).view(images, 3, 256)


def table_places(pixels: Tensor) -> Tensor:
    """For each value of images `(n, height, width, 3)` its place in tables `(n, 3, 256)`, flattened."""
    starts = torch.arange(len(pixels) * 3, device=pixels.device, dtype=torch.int32) * 256
    return pixels.int() + starts.view(-1, 1, 1, 3)


def look_up(tables: Tensor, places: Tensor) -> Tensor:
    """Images with each value replaced by the entry at its place in `tables`."""
    return tables.reshape(-1).index_select(0, places.view(-1)).view(places.shape)


def _values(like: Tensor) -> Tensor:
    return torch.arange(256, device=like.device, dtype=torch.float32)


def _wide(numbers: Tensor) -> Tensor:
    """Numbers of images `(n,)` as `(n, 1, 1)`."""
    return numbers[:, None, None]


def _to_bytes(values: Tensor) -> Tensor:
    return values.clamp(0, 255).to(torch.uint8)
