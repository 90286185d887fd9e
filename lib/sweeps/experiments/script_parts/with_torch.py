"""Training loop of an exported script, in PyTorch."""

# pyright: reportMissingImports=false

import numpy as np
import torch
from torch import nn

from lib.sweeps.experiments.script_parts.common import BATCH_SIZE, EPOCHS, LEARNING_RATE, Epochs, batch_starts


def build(parameters: list) -> nn.Sequential:
    """Stack linear layers with ReLU; PyTorch stores weights as (outputs, inputs)."""
    layers = []
    for weights, biases in parameters:
        linear = nn.Linear(*weights.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.T))
            linear.bias.copy_(torch.from_numpy(biases))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(
    parameters: list,
    x: np.ndarray,
    y: np.ndarray,
    x_validation: np.ndarray,
) -> Epochs:
    """Yield, after each epoch, its steps' losses and the validation logits."""
    images, labels = torch.from_numpy(x), torch.from_numpy(y).long()
    model, loss_of = build(parameters), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(EPOCHS):
        losses = []
        for start in batch_starts(len(x), epoch):
            batch = slice(start, start + BATCH_SIZE)
            optimizer.zero_grad()
            loss = loss_of(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            yield np.array(losses), model(torch.from_numpy(x_validation)).numpy()
