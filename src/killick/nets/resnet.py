"""Residual networks for small images: 3x3 first convolution, no pooling after it.

ImageNet's ResNets reduce a 32 px image to a quarter before the first block and lose accuracy by it.
"""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from killick.nets.architecture import network


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a short cut (He et al. 2016, the basic block)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same or half the size."""
        y = self.relu(self.bn1(self.conv1(x)))
        return cast(Tensor, self.relu(self.bn2(self.conv2(y)) + self.shortcut(x)))


class ResNet(nn.Module):
    """Stages of basic blocks, each but the first halving the size; mean over pixels; linear."""

    def __init__(
        self,
        widths: Sequence[int],
        blocks: int,
        num_classes: int = 10,
        in_chans: int = 3,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, widths[0], 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        stages, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stages.append(ResidualBlock(inputs, width, stride=2 if stage and block == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.blocks(self.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.fc(self.pool(x).flatten(1)))


@network
def resnet18(num_classes: int = 10, in_chans: int = 3) -> ResNet:
    """ResNet-18 for 32 px images, as in the paper: 11,173,962 parameters for ten classes."""
    return ResNet((64, 128, 256, 512), 2, num_classes, in_chans)


@network
def resnet_small(
    num_classes: int = 10, in_chans: int = 3, width: int = 16, stride: int = 1
) -> ResNet:
    """Eight layers, widths 16, 32 and 64: about a thousand images a second on two CPU cores."""
    return ResNet((width, 2 * width, 4 * width), 1, num_classes, in_chans, stride)
