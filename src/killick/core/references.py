"""Where references come from: the batch itself, a pool of training images, or a fixed set.

In training each image gets a reference of its own, drawn anew in every step. In evaluation the
references are fixed and stored with the model: nothing is drawn. Where no training image may leave
with the model, a pool makes references of what all its images have in common.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from killick.errors import DtypeError, OptionError, ReferencesError, ShapeError
from killick.runtime.devices import precise_device

_NUMBERS_AT_ONCE = 2**23  # of a pool that are worked on in double precision: 64 MiB
_SAMPLES_PER_FEATURE = 10  # with fewer, a covariance is that of single samples


def random_cycle(n: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """For each of `n` images the number of its reference, on a uniformly random cycle through all.

    No image is its own reference, and each is the reference of exactly one other. The draw never
    waits for the device, which may be another than that of `generator`.

    Example:
        >>> random_cycle(2, torch.device("cpu")).tolist()
        [1, 0]
    """
    if n < 2:
        raise ReferencesError(
            f"expected a batch of at least 2 images to pair within the batch, found {n}: one image"
            " alone would be its own reference. Use larger batches, drop the last incomplete one,"
            " or pass references=killick.ReferencePool(...)."
        )
    where = device if generator is None else generator.device
    order = torch.randperm(n, device=where, generator=generator)
    successor = torch.empty_like(order)
    successor[order] = order.roll(-1)  # order 3 0 2 1: 3 sees 0, 0 sees 2, 2 sees 1, 1 sees 3
    return successor.to(device, non_blocking=True)


def take(images: Tensor, chosen: Tensor) -> Tensor:
    """`images[chosen]`, in the memory layout of `images`.

    Whole images are copied row by row; indexing with brackets copies number by number.
    """
    last = torch.channels_last
    if images.ndim == 4 and images.is_contiguous(memory_format=last):
        return images.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
    return images.index_select(0, chosen)


class ReferencePool:
    """Training images to draw references from, kept on one device (uint8 keeps them small).

    Args:
        images: As the model takes them: uint8 with `normalize`, floats in the network's space
            without.
        labels: Class indices; only needed for anything class-balanced.
        balanced: Draw a class first, then an image of it, so that rare classes come as often as
            common ones.

    Example:
        >>> pool = ReferencePool(torch.arange(6.0).reshape(6, 1), labels=torch.arange(6) % 3)
        >>> sorted(pool.subset(3, seed=0).labels.tolist())
        [0, 1, 2]
    """

    def __init__(
        self, images: Tensor, labels: Tensor | None = None, *, balanced: bool = False
    ) -> None:
        check_tensor(images, "the pool's images")
        if images.ndim < 2 or len(images) == 0:
            raise ShapeError(
                "expected the pool's images as (n, channels, height, width) or (n, features) with"
                f" n > 0, found shape {tuple(images.shape)}."
            )
        check_finite(images, "the pool")
        if labels is not None and (labels.shape != (len(images),) or labels.is_floating_point()):
            raise ShapeError(
                f"expected a class index for each of the pool's {len(images)} images, found labels"
                f" of shape {tuple(labels.shape)} and dtype {labels.dtype}."
            )
        if balanced and labels is None:
            raise OptionError("expected labels for balanced=True, found none. Pass labels=.")
        self.images = images
        self.labels = None if labels is None else labels.to(images.device, torch.long)
        self.balanced = balanced
        if self.labels is not None:
            classes, members = torch.unique(self.labels, return_inverse=True)
            self._by_class = members.argsort(stable=True)
            self._counts = members.bincount(minlength=len(classes))
            self._starts = self._counts.cumsum(0) - self._counts

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        kind = "class-balanced" if self.balanced else "uniform"
        return f"ReferencePool({len(self)} images {tuple(self.images.shape[1:])}, {kind} draws)"

    def to(self, device: torch.device | str) -> "ReferencePool":
        """The same pool on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return ReferencePool(self.images.to(device), labels, balanced=self.balanced)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """The numbers of `n` images, drawn independently (with replacement)."""
        device = self.images.device
        where = device if generator is None else generator.device
        if not self.balanced:
            index = torch.randint(len(self), (n,), device=where, generator=generator)
            return index.to(device, non_blocking=True)
        kinds = torch.randint(len(self._counts), (n,), device=where, generator=generator)
        share = torch.rand(n, device=where, generator=generator)
        kinds, share = kinds.to(device, non_blocking=True), share.to(device, non_blocking=True)
        counts = self._counts[kinds]
        within = (share * counts).long().clamp_max(counts - 1)
        return torch.take(self._by_class, self._starts[kinds] + within)

    def subset(self, size: int, *, seed: int, balanced: bool | None = None) -> "ReferencePool":
        """A random part of the pool. With one seed, a smaller part lies inside every larger one.

        Args:
            size: Images to keep.
            seed: Decides which.
            balanced: Equally many of each class, as far as there are, to within one at any size.
                By default where the pool has labels.
        """
        index = self._nested_order(seed, self.labels is not None if balanced is None else balanced)
        if not 1 <= size <= len(self):
            raise OptionError(
                f"expected size between 1 and the pool's {len(self)} images, found {size}."
            )
        index = index[:size].to(self.images.device)
        labels = None if self.labels is None else self.labels[index]
        return ReferencePool(self.images[index], labels, balanced=self.balanced)

    def _nested_order(self, seed: int, balanced: bool) -> Tensor:
        """All numbers in a random order whose every beginning is balanced over classes."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)
        if not balanced:
            return order
        if self.labels is None:
            raise OptionError("expected labels for a balanced subset, found none. Pass labels=.")
        labels = self.labels.cpu()[order]
        classes, members = torch.unique(labels, return_inverse=True)
        turn = torch.randperm(len(classes), generator=generator)[members]
        by_class = members.argsort(stable=True)
        starts = members.bincount().cumsum(0) - members.bincount()
        round_ = torch.empty_like(members)  # the how-manieth of its class: 0 0 1 0 2 1 …
        round_[by_class] = torch.arange(len(self)) - starts[members[by_class]]
        return order[(round_ * len(classes) + turn).argsort()]

    def choose(self, k: int, *, seed: int) -> Tensor:
        """`k` different random images for evaluation; balanced over classes if labels are known."""
        return self.subset(k, seed=seed).images

    def mean(self) -> Tensor:
        """The mean image, as the one reference for evaluation: no training image leaves with it."""
        return self._as_images(_mean(self._precise())[None])

    def synthetic(self, k: int, *, seed: int) -> Tensor:
        """`k` images made of what the pool's have in common: no training image leaves with them.

        An image gets the mean amplitude spectrum of the pool, each channel its own, with random
        phases that the channels share, and the pool's mean color: as coarse and as colorful as a
        training image, of no content. A vector is drawn from the normal distribution with the
        features' mean and covariance, or variances alone where samples are few (less than 10 for
        each feature). What comes out is brought into the range of the pool (uint8: 0 to 255), and
        its dtype.

        Args:
            k: How many. With one seed, fewer are the first of more.
            seed: Of the phases, or of the normal distribution.
        """
        if k < 1:
            raise OptionError(f"expected k of at least 1 image to make, found {k}.")
        generator = torch.Generator().manual_seed(seed)
        make = _random_vectors if self.images.ndim == 2 else _random_phases
        draw = make(self._precise())
        return self._as_images(torch.stack([draw(generator) for _ in range(k)]))

    def _as_images(self, values: Tensor) -> Tensor:
        """Doubles as images like those of the pool: in their range and of their dtype."""
        if self.images.dtype == torch.uint8:
            return values.round().clamp(0, 255).to(torch.uint8).to(self.images.device)
        low, high = (bound.double() for bound in self._precise().aminmax())
        values = values.clamp(low, high)
        values = values if self.images.is_floating_point() else values.round()
        return values.to(self.images.dtype).to(self.images.device)

    def _precise(self) -> Tensor:
        """The images where they can be summed in float64."""
        return self.images.to(precise_device(self.images.device))


def _doubles(images: Tensor) -> Iterator[Tensor]:
    """All images in double precision, a part at a time: whole they would be eight times uint8."""
    yield from map(Tensor.double, images.split(max(1, _NUMBERS_AT_ONCE // images[0].numel())))


def _mean(images: Tensor) -> Tensor:
    total = torch.zeros(images.shape[1:], dtype=torch.float64, device=images.device)
    for part in _doubles(images):
        total += part.sum(0)
    return total / len(images)


def _random_phases(images: Tensor) -> Callable[[torch.Generator], Tensor]:
    """Draws images with the mean amplitude of every frequency, and with the mean color."""
    sides = tuple(images.shape[2:])
    axes = tuple(range(-len(sides), 0))
    level = (slice(None),) + (0,) * len(sides)  # the frequency of what is constant
    amplitude = torch.zeros((), dtype=torch.float64, device=images.device)
    for part in _doubles(images):
        amplitude = amplitude + torch.fft.rfftn(part, dim=axes).abs().sum(0)
    amplitude = amplitude / len(images)
    amplitude[level] = _mean(images).sum(axes)  # with its sign: floats may be dark

    def draw(generator: torch.Generator) -> Tensor:
        # The phases of real noise: those of opposite frequencies are opposite, as they have to be.
        noise = torch.randn(sides, generator=generator, dtype=torch.float64).to(images.device)
        phases = torch.fft.rfftn(noise, dim=axes).sgn()  # of size 1
        phases[level[1:]] = 1
        made: Tensor = torch.fft.irfftn(amplitude * phases, s=sides, dim=axes)
        return made

    return draw


def _random_vectors(vectors: Tensor) -> Callable[[torch.Generator], Tensor]:
    """Draws from the normal distribution with the mean and the covariance of some vectors."""
    features, middle = vectors.shape[1], _mean(vectors)
    enough = len(vectors) >= _SAMPLES_PER_FEATURE * features
    squares = torch.zeros((), dtype=torch.float64, device=vectors.device)
    for part in _doubles(vectors):
        centred = part - middle
        squares = squares + (centred.T @ centred if enough else centred.square().sum(0))
    squares = squares / max(len(vectors) - 1, 1)
    if enough:  # the root that is symmetric: no sign is left to the library
        sizes, directions = torch.linalg.eigh(squares)
        root = (directions * sizes.clamp_min(0).sqrt()) @ directions.T
    else:
        root = squares.sqrt()

    def draw(generator: torch.Generator) -> Tensor:
        noise = torch.randn(features, generator=generator, dtype=torch.float64).to(vectors.device)
        made: Tensor = middle + (root @ noise if enough else root * noise)
        return made

    return draw


def check_tensor(images: object, what: str) -> None:
    """Refuse arrays, lists and pools, which fail later and obscurely."""
    if not isinstance(images, Tensor):
        raise DtypeError(
            f"expected {what} as a torch.Tensor, found {type(images).__name__}. An array becomes"
            " one by torch.from_numpy, a list by torch.stack, a pool by pool.choose(k, seed=0)."
        )


def check_finite(images: Tensor, whose: str) -> None:
    """Refuse references of NaN or infinity (this waits for the device)."""
    if images.is_floating_point() and not bool(images.isfinite().all()):
        bad = int((~images.flatten(1).isfinite().all(1)).nonzero()[0])
        raise ReferencesError(
            f"expected finite reference images, found NaN or infinity in number {bad} of {whose}."
            " Check how it was read and normalized."
        )


def check_finite_images(x: Tensor) -> None:
    """Refuse images of NaN or infinity (this waits for the device)."""
    if x.is_floating_point() and not bool(x.isfinite().all()):
        bad = int((~x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise DtypeError(f"expected finite images, found NaN or infinity in number {bad}.")
