"""Wide residual networks for small images (Zagoruyko and Komodakis 2016).

Blocks normalize and activate before each convolution, so that the sum of the two ways is left as it
is: what the shortcut carries reaches the last layer unchanged.
"""

from typing import cast

from torch import Tensor, nn

from killick.nets.architecture import network


class PreactivatedBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU, beside a shortcut; dropout between."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same or half the size."""
        active = self.relu(self.bn1(x))
        # A convolution on the shortcut reads the activated features; without one, x itself goes on.
        carried = x if self.shortcut is None else self.shortcut(active)
        y = self.conv1(active)
        y = self.conv2(self.dropout(self.relu(self.bn2(y))))
        return cast(Tensor, y + carried)


class WideResNet(nn.Module):
    """Three stages of blocks, `width` times as wide as 16, 32 and 64; mean over pixels; linear.

    Six `blocks` in each stage make a network of 40 convolutions, counting those on shortcuts.
    """

    def __init__(
        self,
        blocks: int,
        width: int,
        num_classes: int = 10,
        in_chans: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        stages, inputs = [], 16
        for stage in range(3):
            outputs = width * 16 * 2**stage
            for block in range(blocks):
                stride = 2 if stage and block == 0 else 1
                stages.append(PreactivatedBlock(inputs, outputs, stride, dropout))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        for module in self.modules():  # as in the authors' code; PyTorch draws otherwise
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.relu(self.bn(self.blocks(self.conv1(x))))
        return cast(Tensor, self.fc(self.pool(x).flatten(1)))


@network
def wrn40_2(num_classes: int = 10, in_chans: int = 3, dropout: float = 0.0) -> WideResNet:
    """WideResNet-40-2 for 32 px images: 2,243,546 parameters for ten classes."""
    return WideResNet(6, 2, num_classes, in_chans, dropout)
