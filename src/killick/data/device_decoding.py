"""Encoded images to pixels on the device, in batches.

Worker processes read the bytes. JPEGs of the usual kind are decoded on the GPU, by nvJPEG through
torchvision; all others, and all on other devices, by the workers with Pillow.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from killick.data.decoding import FORMATS
from killick.data.image_set import ImageSet, Reader
from killick.data.jpeg_header import suits_gpu
from killick.data.ragged_images import RaggedImages
from killick.data.sample_loader import checked, find_problem, read_in_order
from killick.errors import KillickError

# Files as uint8 (bytes,), on the host, to pixels as uint8 (3, height, width), on the device.
Decoder = Callable[[list[Tensor]], list[Tensor]]
_BATCH = 64
_LOOKED_AT = 512  # images from which the size of a set is estimated
_MARGIN = 1.1


class EncodedReader:
    """Images of a reader: files for the decoder as bytes `(n,)`, others as pixels."""

    def __init__(self, source: Reader) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Tensor:
        data: bytes = self.source.encoded(number)  # type: ignore[attr-defined]
        if suits_gpu(data):
            return torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return self.source[number]


class EncodedBatch(NamedTuple):
    """Samples of one pass before they are decoded, as few tensors for their way from a worker."""

    contents: Tensor  # files and pixels end to end, uint8
    lengths: Tensor  # bytes of each
    shapes: Tensor  # heights and widths of pixels (n, 2); 0 of files
    labels: Tensor
    keys: Tensor
    numbers: Tensor


def find_decoder(device: torch.device) -> Decoder | None:
    """The decoder of a GPU, if it works there."""
    if device.type != "cuda":
        return None
    from torchvision.io import ImageReadMode, decode_jpeg

    def decoder(files: list[Tensor]) -> list[Tensor]:
        # The hardware writes at once, also to memory that work in this stream still reads.
        torch.cuda.current_stream(device).synchronize()
        decoded: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
        return decoded

    trial = io.BytesIO()
    Image.new("RGB", (16, 16)).save(trial, "JPEG")
    try:
        decoder([torch.frombuffer(bytearray(trial.getvalue()), dtype=torch.uint8)])
    except RuntimeError:  # torchvision was built without it
        return None
    return decoder


def to_read(images: ImageSet, decoder: Decoder | None) -> ImageSet:
    """The set that workers read for `decode_batch`."""
    assert not isinstance(images.source, Tensor)
    return images if decoder is None else replace(images, source=EncodedReader(images.source))


def as_read(image: Tensor, key: int) -> Tensor:
    """The view of workers that only read."""
    return image


def join(samples: list[Any]) -> EncodedBatch | KillickError:
    """A batch of samples; or the first problem in it."""
    problem = find_problem(samples)
    if problem is not None:
        return problem
    images, *facts = zip(*samples, strict=True)
    return EncodedBatch(
        torch.cat([image.reshape(-1) for image in images]),
        torch.tensor([image.numel() for image in images]),
        torch.tensor([image.shape[1:] if image.ndim == 3 else (0, 0) for image in images]),
        *map(torch.tensor, facts),
    )


def decode_batch(batch: EncodedBatch, images: ImageSet, decoder: Decoder | None) -> list[Tensor]:
    """The images of a batch, uint8 `(3, height, width)` each; `images` is the set they are of."""
    found = list(batch.contents.split(batch.lengths.tolist()))
    files = []
    for place, (height, width) in enumerate(batch.shapes.tolist()):
        if height:
            found[place] = found[place].view(3, height, width)
        else:
            files.append(place)
    if decoder is None or not files:
        return found
    try:
        decoded = decoder([found[place] for place in files])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # of any of them: Pillow reads it, or says what is wrong with it
        decoded = [_read(images, int(batch.numbers[place])) for place in files]
    for place, image in zip(files, decoded, strict=True):
        found[place] = image
    return found


def _read(images: ImageSet, number: int) -> Tensor:
    try:
        return images.read(number)
    except KillickError as problem:
        found: Tensor = checked(problem)
        return found


def read_resident(
    images: ImageSet, device: torch.device, decoder: Decoder | None, workers: int, capacity: int
) -> RaggedImages:
    """All images of a set, decoded once, on the device; `capacity` is about how many bytes they are."""
    found, read = RaggedImages(device, capacity), to_read(images, decoder)
    batches: Iterator[Any] = read_in_order(read, as_read, workers, _BATCH, join)
    for batch in batches:
        found.append(decode_batch(checked(batch), images, decoder))
    return found


@dataclass(frozen=True)
class FileFacts:
    """What some files say of all files of a set."""

    size: int  # bytes of the pixels, with a margin
    suit_gpu: bool  # most of them


def look_at_files(images: ImageSet) -> FileFacts:
    """How large a set is when decoded, and whether a GPU can do that, from some of its files."""
    places = torch.linspace(0, len(images) - 1, min(_LOOKED_AT, len(images))).long()
    source: Any = images.source
    pixels = suiting = 0
    for row in images.rows[places].tolist():
        try:
            data = source.encoded(row)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                pixels += image.width * image.height
            suiting += suits_gpu(data)
        except Exception:  # whatever is wrong is said where the image is read
            continue
    size = int(_MARGIN * 3 * pixels / len(places) * len(images))
    return FileFacts(size, 2 * suiting > len(places))
