"""Batches of images of several sizes, brought to one size on the device before each step."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from killick.data.batches import Batch, Cut, ReadAhead
from killick.data.device_decoding import (
    Decoder,
    EncodedBatch,
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

Item = TypeVar("Item")
_SECONDS_TO_END = 5.0


class DeviceBatches(ReadAhead):
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
        **options: Any,
    ) -> None:
        super().__init__(samples, crop.size, cut, **options)
        self.crop, self.policy = crop, policy
        self._shift = None if crop.resized or shift == Shift() else shift

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
        **options: Any,
    ) -> None:
        super().__init__(len(images), crop, shift, policy, cut, device=images.device, **options)
        self.images, self._labels = images, labels

    def _make(self) -> Iterator[Batch]:
        made = self._cut_passes()
        return made_ahead(made, self.images.device) if self.images.device.type == "cuda" else made

    def _cut_passes(self) -> Iterator[Batch]:
        for numbers, keys in self._passes():
            images = self.crop(self.images, numbers, keys)
            yield Batch(images, self._labels[numbers], keys, numbers)


class StreamedFiles(DeviceBatches):
    """Images that workers read, one thread decodes and another crops, while a step is trained."""

    def __init__(
        self,
        images: ImageSet,
        decoder: Decoder | None,
        crop: "RaggedCrop",
        shift: Shift,
        policy: "BatchPolicy | None",
        cut: Cut,
        *,
        device: torch.device,
        workers: int,
        **options: Any,
    ) -> None:
        super().__init__(len(images), crop, shift, policy, cut, device=device, **options)
        self._images, self._decoder, self._device = images, decoder, device
        self._loader = SampleLoader(
            to_read(images, decoder),
            as_read,
            self._places,
            join,
            workers=workers,
            pinned=device.type == "cuda",
        )

    def _make(self) -> Iterator[Batch]:
        decoded = made_ahead(self._decode(self._loader.begin()), self._device)
        return made_ahead(self._crop_decoded(decoded), self._device)

    def _decode(self, batches: Iterator[object]) -> Iterator[tuple[EncodedBatch, list[Tensor]]]:
        for batch in map(checked, batches):
            yield batch, decode_batch(batch, self._images, self._decoder)

    def _crop_decoded(
        self, decoded: Iterator[tuple[EncodedBatch, list[Tensor]]]
    ) -> Iterator[Batch]:
        for batch, files in decoded:
            images = RaggedImages(self._device)
            images.append(files)
            if self._device.type == "cuda":  # before memory that the decoder writes is free again
                torch.cuda.current_stream(self._device).synchronize()
            files.clear()
            sized = self.crop(images, torch.arange(len(images)), batch.keys)
            yield Batch(sized, batch.labels, batch.keys, batch.numbers)

    def close(self) -> None:
        """End the threads and the workers."""
        try:
            super().close()
        finally:
            self._loader.close()


def made_ahead(items: Iterator[Item], device: torch.device) -> Iterator[Item]:
    """The same items; a thread makes the next one, on a stream of its own, while one is used.

    The stream goes before that of training: it has little to do. A thread that waits for a file for
    ever is left behind; it ends with the process.
    """
    stream = None
    if device.type == "cuda":
        stream = torch.cuda.Stream(device, priority=-1)
        stream.wait_stream(torch.cuda.current_stream(device))
    wanted: SimpleQueue[bool] = SimpleQueue()
    made: SimpleQueue[tuple[Item | None, torch.cuda.Event | None, BaseException | None]]
    made = SimpleQueue()

    def make() -> None:
        while wanted.get():
            try:
                with torch.no_grad(), torch.cuda.stream(stream):
                    item = next(items, None)
                    made.put((item, None if stream is None else stream.record_event(), None))
            except BaseException as problem:
                made.put((None, None, problem))

    thread = Thread(target=make, name="samples", daemon=True)
    thread.start()
    wanted.put(True)
    try:
        while True:
            item, done, problem = made.get()
            if problem is not None:
                raise problem
            if item is None:
                return
            wanted.put(True)
            if done is not None:
                used_on = torch.cuda.current_stream(device)
                used_on.wait_event(done)
                if isinstance(item, Batch):
                    item.images.record_stream(used_on)
            yield item
    finally:
        wanted.put(False)
        thread.join(_SECONDS_TO_END)
        if not thread.is_alive() and hasattr(items, "close"):
            items.close()
