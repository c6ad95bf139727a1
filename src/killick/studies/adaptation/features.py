"""Features of a trained network: the input of its last layer, for images and their references.

An image of an anchored network has a feature vector for each reference, and one more for each of them
with the reference masked. A probe trains on both; they are computed once.
"""

from typing import cast

import torch
from torch import Tensor, nn

from killick.core.anchored import Anchored, evaluating
from killick.core.inspection import inputs_of
from killick.core.references import ReferencePool, take
from killick.core.residual_blocks import head_of
from killick.core.standard import Standard
from killick.data.image_set import ImageSet
from killick.data.keyed_random import key
from killick.protocols.references.reference_sampler import choose_numbers
from killick.studies.trained_job import TrainedJob

UNMASKED, MASKED = 0, 1  # places on the second axis of training features
_POOL_BYTES = 4 * 2**30  # of images that references are drawn from
_REFERENCES, _TESTED = 0xFEA7, 0xFEA8  # keys of the draws: for each image, or for testing


class FeatureReader:
    """Reads the features of a trained job, with so many references for each image."""

    def __init__(self, job: TrainedJob, draws: int) -> None:
        self._job, model = job, job.model
        self.anchored = isinstance(model, Anchored)
        self.draws = draws if self.anchored else 1
        self.kinds = 2 if self.anchored else 1  # unmasked and masked
        self._head = head_of(model)
        self.width = cast(nn.Linear, model.net.get_submodule(self._head)).in_features

    def read(
        self, images: Tensor, references: Tensor | None = None, masked: bool = False
    ) -> Tensor:
        """The features `(n, width)` of images, each with its reference."""
        with evaluating(self._job.model), torch.no_grad():
            inputs = self._inputs(images, references, masked)
            return inputs_of(self._job.model.net, [self._head], inputs)[self._head].float()

    def _inputs(self, images: Tensor, references: Tensor | None, masked: bool) -> Tensor:
        """The input of the network itself."""
        model = self._job.model
        if isinstance(model, Standard):
            return images if model.normalize is None else model.normalize(images)
        assert references is not None
        return model.pairs(images, references, masked)

    def read_training(self, images: ImageSet) -> Tensor:
        """Features `(draws, kinds, n, width)` of training images: kinds are unmasked and masked.

        Each image has its own references, drawn from the set with balanced classes.
        """
        shape = (self.draws, self.kinds, len(images), self.width)
        found = torch.empty(shape, device=self._job.device)
        pool = self._pool(images) if self.anchored else None
        seed = key(self._job.recipe.seed, _REFERENCES) % 2**63
        generator = torch.Generator().manual_seed(seed)
        for place, block in self._job.blocks(images):
            for draw in range(self.draws):
                references = None
                if pool is not None:
                    references = take(pool.images, pool.draw(len(block), generator))
                for kind in range(self.kinds):
                    read = self.read(block, references, masked=kind == MASKED)
                    found[draw, kind, place] = read
        return found

    def read_test(self, images: ImageSet, references: Tensor | None) -> Tensor:
        """Features `(references, n, width)` of test images with every reference."""
        views = [None] if references is None else list(references)
        shape = (len(views), len(images), self.width)
        found = torch.empty(shape, device=self._job.device)
        for place, block in self._job.blocks(images):
            for number, view in enumerate(views):
                same = None if view is None else view.expand(block.shape)
                found[number, place] = self.read(block, same)
        return found

    def choose_references(self, images: ImageSet) -> Tensor | None:
        """References for testing: as many different training images as draws."""
        if not self.anchored:
            return None
        seed = key(self._job.recipe.seed, _TESTED) % 2**63
        return self._job.load_images(
            images.part(choose_numbers(images, min(self.draws, len(images)), seed))
        )

    def _pool(self, images: ImageSet) -> ReferencePool:
        """Images to draw references from: the whole set, or a balanced part that fits."""
        size = self._job.recipe.data.size
        room = max(1, _POOL_BYTES // (3 * size * size))
        part = images.part(choose_numbers(images, min(room, len(images)), self._job.recipe.seed))
        return ReferencePool(self._job.load_images(part), part.labels, balanced=True)
