"""Batches of images of several sizes, brought to one size on the device before each step."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from killick.data.batches import Batch, Batches, Cut, make_buffers
from killick.data.device_decoding import (
    Decoder,
    as_read,
    decode_batch,
    join,
    to_read,
)
from killick.data.image_set import ImageSet
from killick.data.ragged_images import RaggedImages
from killick.data.sample_loader import SampleLoader, checked
from killick.data.transforms import Shift, gather

if TYPE_CHECKING:  # torchvision takes seconds to import
    from killick.data.augment.policies import BatchPolicy
    from killick.data.augment.ragged_crops import RaggedCrop


class DeviceBatches(Batches):
    """Images that `crop` makes of one size before a step; pads, shifts and policies act in the step.

    A captured step needs tensors of fixed sizes, which images of several sizes are not.
    """

    def __init__(
        self,
        samples: int,
        crop: "RaggedCrop",
        shift: Shift,
        policy: "BatchPolicy | None",
        cut: Cut,
        *,
        seed: int,
        device: torch.device,
        repeats: int = 1,
    ) -> None:
        super().__init__(samples, cut, seed, repeats)
        self.crop, self.policy = crop, policy
        self._shift = None if crop.resized or shift == Shift() else shift
        self._buffers = make_buffers(cut, crop.size, device)
        self._ready: Iterator[Batch] = iter(())

    def begin(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        self._ready = self._make(epoch, step)

    def _make(self, epoch: int, step: int) -> Iterator[Batch]:
        """Images of one size, pass by pass."""
        raise NotImplementedError

    def load(self) -> None:
        """Copy the next images to where the step reads them."""
        for buffers in self._buffers:
            for buffer, values in zip(buffers, next(self._ready), strict=True):
                buffer.copy_(values, non_blocking=True)

    def batch(self, number: int) -> Batch:
        """The samples of a pass, augmented."""
        batch = self._buffers[number]
        images = batch.images
        if self._shift is not None:
            places = torch.arange(len(images), device=images.device)
            pixels = images.permute(0, 2, 3, 1)
            images = gather(pixels, places, *self._shift.draw(batch.keys))
        if self.policy is not None:
            images = self.policy(images, batch.keys)
        return batch.with_images(images)


class ResidentFiles(DeviceBatches):
    """All images on the device, in their own sizes."""

    def __init__(
        self,
        images: RaggedImages,
        labels: Tensor,
        crop: "RaggedCrop",
        shift: Shift,
        policy: "BatchPolicy | None",
        cut: Cut,
        *,
        seed: int,
        repeats: int = 1,
    ) -> None:
        options = {"seed": seed, "repeats": repeats}
        super().__init__(len(images), crop, shift, policy, cut, device=images.device, **options)
        self.images, self._labels = images, labels

    def _make(self, epoch: int, step: int) -> Iterator[Batch]:
        for numbers, keys in self._passes(epoch, step):
            images = self.crop(self.images, numbers, keys)
            yield Batch(images, self._labels[numbers], keys, numbers)


class StreamedFiles(DeviceBatches):
    """Images that workers read, and `decoder` decodes on the device while the step before is trained."""

    def __init__(
        self,
        images: ImageSet,
        decoder: Decoder | None,
        crop: "RaggedCrop",
        shift: Shift,
        policy: "BatchPolicy | None",
        cut: Cut,
        *,
        seed: int,
        device: torch.device,
        workers: int,
        repeats: int = 1,
    ) -> None:
        options = {"seed": seed, "repeats": repeats}
        super().__init__(len(images), crop, shift, policy, cut, device=device, **options)
        self._images, self._decoder, self._device = images, decoder, device
        self._begun = (0, 0)
        self._loader = SampleLoader(
            to_read(images, decoder),
            as_read,
            self._places,
            join,
            workers=workers,
            pinned=False,  # nvJPEG reads bytes on the host
        )

    def begin(self, epoch: int, step: int) -> None:
        """Go to a step of an epoch."""
        self._end()
        self._begun = (epoch, step)
        super().begin(epoch, step)

    def _places(self) -> Iterator[list[tuple[int, int]]]:
        for numbers, keys in self._passes(*self._begun):
            yield list(zip(numbers.tolist(), keys.tolist(), strict=True))

    def _make(self, epoch: int, step: int) -> Iterator[Batch]:
        return made_ahead(self._decode(self._loader.begin()), self._device)

    def _decode(self, batches: Iterator[object]) -> Iterator[Batch]:
        for batch in map(checked, batches):
            images = RaggedImages(self._device)
            images.append(decode_batch(batch, self._images, self._decoder))
            sized = self.crop(images, torch.arange(len(images)), batch.keys)
            yield Batch(sized, batch.labels, batch.keys, batch.numbers)

    def close(self) -> None:
        """End the thread and the workers."""
        self._end()
        self._loader.close()

    def _end(self) -> None:
        ready, self._ready = self._ready, iter(())
        if hasattr(ready, "close"):
            ready.close()


def made_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches; a thread makes the next one, on a stream of its own, while one is used."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make() -> tuple[Batch | None, torch.cuda.Event | None]:
        with torch.no_grad(), torch.cuda.stream(stream):
            batch = next(batches, None)
            return batch, None if stream is None else stream.record_event()

    with ThreadPoolExecutor(1, "decoding") as thread:
        waiting = thread.submit(make)
        while True:
            batch, done = waiting.result()
            if batch is None:
                return
            waiting = thread.submit(make)
            if done is not None:
                used_on = torch.cuda.current_stream(device)
                used_on.wait_event(done)
                batch.images.record_stream(used_on)
            yield batch
