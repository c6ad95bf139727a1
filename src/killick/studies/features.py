"""Features of a trained network: what its last layer reads, for pictures and their references.

An anchored network sees a picture from a reference, so a picture has as many feature vectors as
there are references, and for each of them another one with the reference masked. Training a probe
with masking takes both; they are computed once, and the network is not needed any more.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating, pair
from killick.core.inspection import inputs_of, run
from killick.core.references import ReferencePool, take
from killick.core.standard import Standard
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.errors import StemError
from killick.evaluation.image_blocks import Pictures
from killick.runtime.processes import Processes
from killick.studies.trained import Trained

UNMASKED, MASKED = 0, 1  # places on the second axis of the features of training pictures
_POOL_BYTES = 4 * 2**30  # of pictures that references are drawn from
_REFERENCES, _TESTED = 0xFEA7, 0xFEA8  # what is drawn: for each picture, or to test from


def find_head(net: nn.Module, x: Tensor) -> str:
    """The name of the linear layer that computes the logits, found by running the network.

    Args:
        net: In eval mode.
        x: Two inputs that it takes, not alike.
    """
    seen: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def record(_: nn.Module, read: tuple[Tensor, ...], computed: Tensor) -> None:
            seen[name] = computed.detach().clone()

        return module.register_forward_hook(record)

    handles = [watch(n, m) for n, m in net.named_modules() if isinstance(m, nn.Linear)]
    try:
        logits = run(net, x)
    finally:
        for handle in handles:
            handle.remove()
    found = [name for name, computed in seen.items() if torch.equal(computed, logits)]
    if not found:
        raise StemError(
            f"cannot probe {type(net).__name__}: expected a linear layer that computes the logits,"
            f" found none among {len(seen)}. Take a network that ends with one."
        )
    return found[-1]


class Backbone:
    """A trained model that is left as it is, and read before its last layer.

    Args:
        model: Takes images as `Trained` shows them.

    Attributes:
        anchored: Whether features depend on a reference.
        width: Features of a picture.
    """

    def __init__(self, model: Anchored | Standard) -> None:
        self._model = model
        self.anchored = isinstance(model, Anchored)
        like = next(model.parameters())
        noise = torch.rand(2, *model.image_shape, generator=torch.Generator().manual_seed(0))
        images = noise.to(like.device)
        if model.normalize is not None:
            images = (images * 255).to(torch.uint8)
        with evaluating(model):
            self._head = find_head(model.net, self._inputs(images, images.flip(0), False))
        self.width = cast(nn.Linear, model.net.get_submodule(self._head)).in_features

    def read(
        self, images: Tensor, references: Tensor | None = None, masked: bool = False
    ) -> Tensor:
        """The features `(n, width)` of each image, seen from its reference.

        Args:
            images: As the model takes them.
            references: One for each image; None for a model that is not anchored.
            masked: Whether all references are masked.
        """
        with evaluating(self._model), torch.no_grad():
            inputs = self._inputs(images, references, masked)
            return inputs_of(self._model.net, [self._head], inputs)[self._head].float()

    def _inputs(self, images: Tensor, references: Tensor | None, masked: bool) -> Tensor:
        """What the network itself is given."""
        model = self._model
        if isinstance(model, Standard):
            return images if model.normalize is None else model.normalize(images)
        assert references is not None
        return pair(model.prepare(images), model.prepare(references), masked)


class Reader:
    """Features of whole sets, by a trained cell.

    Args:
        trained: The cell.
        draws: References for each picture.

    Attributes:
        backbone: What is read.
        draws: References for each picture; 1 if the network is not anchored.
        kinds: 2, unmasked and masked; 1 if the network is not anchored.
        seen: Pictures that the network was shown so far.
        tick: Called with `seen` now and then.
    """

    def __init__(self, trained: Trained, draws: int) -> None:
        self._trained, self.seen = trained, 0
        self.tick: Callable[[int], None] = _ignore
        self.backbone = Backbone(trained.model)
        self.draws = draws if self.backbone.anchored else 1
        self.kinds = 2 if self.backbone.anchored else 1

    def read_training(self, images: ImageSet) -> Tensor:
        """Of pictures to train on, `(draws, kinds, n, width)`: kinds are unmasked and masked.

        Each picture has its own references, drawn from the set, all classes alike. A network that
        is not anchored has one draw and one kind.
        """
        shape = (self.draws, self.kinds, len(images), self.backbone.width)
        found = torch.empty(shape, device=self._trained.device)
        pool = self._pool(images) if self.backbone.anchored else None
        seed = key(self._trained.recipe.seed, _REFERENCES) % 2**63
        generator = torch.Generator().manual_seed(seed)
        for place, pictures in self._blocks(images):
            for draw in range(self.draws):
                references = None
                if pool is not None:
                    references = take(pool.images, pool.draw(len(pictures), generator))
                for kind in range(self.kinds):
                    read = self.backbone.read(pictures, references, masked=kind == MASKED)
                    found[draw, kind, place] = read
            self._count(self.draws * self.kinds * len(pictures))
        return found

    def read_test(self, images: ImageSet, references: Tensor | None) -> Tensor:
        """Of pictures to test on, `(references, n, width)`, each seen from every reference."""
        views = [None] if references is None else list(references)
        shape = (len(views), len(images), self.backbone.width)
        found = torch.empty(shape, device=self._trained.device)
        for place, pictures in self._blocks(images):
            for number, view in enumerate(views):
                same = None if view is None else view.expand(pictures.shape)
                found[number, place] = self.backbone.read(pictures, same)
            self._count(len(views) * len(pictures))
        return found

    def choose_references(self, images: ImageSet) -> Tensor | None:
        """References to test from: as many different pictures of a training set as draws."""
        if not self.backbone.anchored:
            return None
        seed = key(self._trained.recipe.seed, _TESTED) % 2**63
        chosen = _choose(images, min(self.draws, len(images)), seed)
        return self._show(images.part(chosen))

    def _count(self, pictures: int) -> None:
        self.seen += pictures
        self.tick(self.seen)

    def _pool(self, images: ImageSet) -> ReferencePool:
        """Pictures to draw references from: the whole set, or as many of each class as fit."""
        size = self._trained.recipe.data.size
        room = max(1, _POOL_BYTES // (3 * size * size))
        part = images.part(_choose(images, min(room, len(images)), self._trained.recipe.seed))
        return ReferencePool(self._show(part), part.labels, balanced=True)

    def _show(self, images: ImageSet) -> Tensor:
        return torch.cat([pictures for _, pictures in self._blocks(images)])

    def _blocks(self, images: ImageSet) -> Iterator[tuple[slice, Tensor]]:
        """Pictures on the device as the network is shown them, and where they are in the set."""
        data, processes = self._trained.recipe.data, Processes(0, 1, self._trained.device)
        begin = 0
        for block in Pictures(images, self._trained.view, data.size, processes, data.workers):
            yield slice(begin, begin + len(block.images)), block.images
            begin += len(block.images)


def _ignore(seen: int) -> None:
    pass


def _choose(images: ImageSet, count: int, seed: int) -> Tensor:
    """The numbers of some pictures, balanced over classes."""
    numbers = torch.arange(len(images))[:, None]  # in the place of pictures
    return ReferencePool(numbers, images.labels).choose(count, seed=seed)[:, 0]
