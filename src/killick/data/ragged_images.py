"""Images of several sizes in one tensor on the device, from which boxes are cut in batches."""

import torch
from torch import Tensor

from killick.data.augment.resized_crops import Boxes

_GROWTH = 1.3  # of a buffer that turns out too small


class RaggedImages:
    """Images uint8 `(3, height, width)`, end to end in one buffer on the device.

    `capacity` is about how many bytes there will be; heights and widths are on the host.
    """

    def __init__(self, device: torch.device, capacity: int = 0) -> None:
        self.contents = torch.empty(capacity, dtype=torch.uint8, device=device)
        self.used = 0
        self._shapes = torch.zeros(0, 2, dtype=torch.long)
        self._starts = torch.zeros(0, dtype=torch.long)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def device(self) -> torch.device:
        """Of the pixels."""
        return self.contents.device

    def shapes(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Heights and widths of some images."""
        heights, widths = self._shapes[numbers].unbind(1)
        return heights, widths

    def append(self, images: list[Tensor]) -> None:
        """Add images."""
        shapes = torch.tensor([image.shape[1:] for image in images])
        ends = self.used + (3 * shapes.prod(1)).cumsum(0)
        last, widest = int(ends[-1]), int(shapes[:, 1].max())
        if last + widest > len(self.contents):  # the last row of a box may be read beyond its end
            grown = int(_GROWTH * last) if len(self) else last
            larger = self.contents.new_empty(grown + widest)
            larger[: self.used] = self.contents[: self.used]
            self.contents = larger
        flat = [image.reshape(-1).to(self.device, non_blocking=True) for image in images]
        torch.cat(flat, out=self.contents[self.used : last])
        self._starts = torch.cat((self._starts, torch.tensor([self.used]), ends[:-1]))
        self._shapes = torch.cat((self._shapes, shapes))
        self.used = last

    def locate(self, numbers: Tensor, boxes: Boxes) -> tuple[Tensor, Tensor, Tensor]:
        """Where boxes of images begin in the buffer, and the areas and widths of these images."""
        heights, widths = self.shapes(numbers)
        corners = self._starts[numbers] + boxes.top * widths + boxes.left
        return corners, heights * widths, widths

    def cut(self, numbers: Tensor, boxes: Boxes) -> Tensor:
        """Boxes of images, `(n, 3, height, width)` as the largest box; the rest of others is arbitrary.

        `numbers` and `boxes` are on the host.
        """
        tall, wide = int(boxes.height.max()), int(boxes.width.max())
        facts = torch.stack((*self.locate(numbers, boxes), boxes.height - 1))
        corner, area, width, lowest = facts.to(self.device, non_blocking=True)[..., None, None]
        line = torch.minimum(torch.arange(tall, device=self.device), lowest)
        channel = torch.arange(3, device=self.device)[:, None]
        # Every place of the buffer begins a row, of which only the wanted ones are read.
        found: Tensor = self.contents.unfold(0, wide, 1)[corner + channel * area + line * width]
        return found
