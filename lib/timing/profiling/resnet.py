"""ResNet-18 on images of 224 × 224 × 3, as PyTorch's users have it: a step large enough for any card.

He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2015, table 1; basic blocks of figure 2, batch
normalisation after each convolution, and a 1 × 1 convolution on the shortcut where the shape changes.
"""

# pyright: reportMissingImports=false
# PyTorch is optional.

import torch
from torch import nn

SIDE, CLASSES = 224, 1000
CHANNELS = (64, 128, 256, 512)  # of four stages, of two blocks each


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    """A convolution without biases, and its normalisation: (batch, inputs, side, side) to side / stride."""
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class ResidualBlock(nn.Module):
    """Two convolutions, whose result is added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = _convolution(inputs, outputs, 3, stride), _convolution(outputs, outputs, 3, 1)
        self.body = nn.Sequential(*first, nn.ReLU(inplace=True), *second)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, side, side) → (batch, outputs, side / stride, side / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    """Logits of images: (batch, 3, 224, 224) → (batch, 1000)."""
    layers = [*_convolution(3, CHANNELS[0], 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = CHANNELS[0]
    for outputs in CHANNELS:
        layers += [ResidualBlock(inputs, outputs, 1 if outputs == inputs else 2), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))
