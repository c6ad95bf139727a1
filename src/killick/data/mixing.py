"""Mixup, CutMix and Attentive CutMix: each image and label is mixed with its neighbor in the batch.

Positions 0 and 1 mix with each other, 2 and 3, and so on; the order of an epoch is random, so the
partners are. Each image draws its own share from its own key, so nothing depends on how a batch
is cut into processes, as long as the parts are even. (torchvision draws one share for the whole
batch, on the host, where a captured CUDA graph would freeze it.)
"""

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import one_hot

from killick.data.keyed_random import Stream, uniform

_KNOTS = 4097


class Mixing:
    """Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), one or the other for each image.

    `mixup` and `cutmix` are the alphas of the Beta distributions of shares; 0 is none. `probability`
    is that of an image to be mixed.
    """

    def __init__(
        self,
        mixup: float,
        cutmix: float,
        classes: int,
        device: torch.device | str,
        probability: float = 1.0,
    ) -> None:
        self.mixup, self.cutmix, self.classes = mixup, cutmix, classes
        self.probability = probability
        self._mixup_shares = beta_quantiles(mixup or 1.0).to(device)
        self._cutmix_shares = beta_quantiles(cutmix or 1.0).to(device)

    def __call__(
        self, images: Tensor, labels: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Images, rounded to uint8, labels as probabilities `(n, classes)`, and which are mixed."""
        soft = one_hot(labels, self.classes).float()
        if not (self.mixup or self.cutmix):
            return images, soft, torch.zeros(len(images), dtype=torch.bool, device=images.device)
        drawn = uniform(keys, Stream.MIX) < self.probability
        partner = neighbors(len(images), images.device)
        cut = self._which(keys)
        draw = uniform(keys, Stream.MIX_SHARE)
        of_cutmix = interpolate(self._cutmix_shares, draw)
        share = torch.where(cut, of_cutmix, interpolate(self._mixup_shares, draw))
        height, width = images.shape[2:]
        inside = boxes(share, uniform(keys, Stream.MIX_PLACE, 2), height, width)
        inside &= drawn[:, None, None]
        share = torch.where(drawn, share, 1.0)
        share = torch.where(cut, 1 - inside.float().mean((1, 2)), share)
        # How much of the image itself stays, for each pixel: in CutMix all of it or nothing.
        blended = share[:, None, None].expand_as(inside)
        stays = torch.where(cut[:, None, None], (~inside).float(), blended)[:, None]
        others = images.index_select(0, partner)
        mixed = (stays * images + (1 - stays) * others).round().to(images.dtype)
        share = share[:, None]
        return mixed, share * soft + (1 - share) * soft.index_select(0, partner), drawn

    def _which(self, keys: Tensor) -> Tensor:
        """Whether each image is cut; otherwise it is blended."""
        if self.mixup and self.cutmix:
            return uniform(keys, Stream.MIX_KIND) < 0.5
        return torch.full(keys.shape, bool(self.cutmix), device=keys.device)


def paste_attended(
    images: Tensor, soft: Tensor, attention: Tensor, count: int, drawn: Tensor
) -> tuple[Tensor, Tensor]:
    """Attentive CutMix: images with the `count` most attended cells of their neighbor.

    Labels are mixed in proportion.
    `attention` of the images themselves is `(n, grid, grid)`, labels are probabilities, and `drawn`
    says which images are changed.
    """
    height, width = images.shape[2:]
    grid, device = attention.shape[-1], images.device
    partner = neighbors(len(images), device)
    most = attention.flatten(1).topk(count).indices
    chosen = torch.zeros(len(images), grid * grid, dtype=torch.bool, device=device)
    chosen = chosen.scatter(1, most, True).index_select(0, partner) & drawn[:, None]
    rows = torch.arange(height, device=device) * grid // height
    columns = torch.arange(width, device=device) * grid // width
    inside = chosen[:, rows[:, None] * grid + columns][:, None]
    share = drawn[:, None] * (count / grid**2)
    mixed = torch.where(inside, images.index_select(0, partner), images)
    return mixed, (1 - share) * soft + share * soft.index_select(0, partner)


def neighbors(n: int, device: torch.device) -> Tensor:
    """1 0 3 2 5 4 …; the last of an odd batch is its own."""
    return (torch.arange(n, device=device) ^ 1).clamp_max(n - 1)


def boxes(share: Tensor, place: Tensor, height: int, width: int) -> Tensor:
    """Where an image is replaced, `(n, height, width)`: a box of `1 - share` of its area.

    `place` is its center, `(n, 2)` in [0, 1); it is cut off at the edges.
    """
    half = 0.5 * (1 - share).sqrt()
    masks = []
    for side, center in ((height, place[:, 0]), (width, place[:, 1])):
        middle = (center * side).long()
        reach = (half * side).long()
        along = torch.arange(side, device=share.device)
        masks.append((along >= (middle - reach)[:, None]) & (along < (middle + reach)[:, None]))
    return masks[0][:, :, None] & masks[1][:, None, :]


def beta_quantiles(alpha: float, beta: float | None = None) -> Tensor:
    """The inverse distribution function of Beta(alpha, beta) at evenly spaced knots in [0, 1].

    Without `beta` it is `alpha` too.
    """
    knots = torch.linspace(0, 1, _KNOTS, dtype=torch.float64)
    beta = alpha if beta is None else beta
    return torch.from_numpy(betaincinv(alpha, beta, knots.numpy())).float()


def interpolate(quantiles: Tensor, draw: Tensor) -> Tensor:
    """The value of a quantile function at `draw` in [0, 1), linear between its knots."""
    place = draw * (_KNOTS - 1)
    low = place.long()
    return torch.lerp(quantiles[low], quantiles[low + 1], place - low)
