"""Training with PyTorch as its tutorials write it: eager, one call an operation, in a Python loop over slices of a tensor."""

# pyright: reportMissingImports=false
# It is optional: `make torch` installs it.

import time
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from lib.backends.base import (
    CHUNK_S,
    VALIDATION_SLICE,
    Event,
    FirstCall,
    Parameters,
    epochs,
    initial_parameters,
)
from lib.data import Data
from lib.spec import Network, Training


def build(network: Network, parameters: Parameters, device: torch.device) -> nn.Sequential:
    """Linear layers with ReLU between; PyTorch keeps weights as (outputs, inputs)."""
    layers: list[nn.Module] = []
    for weights, biases in parameters:
        linear = nn.Linear(*weights.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.T))
            linear.bias.copy_(torch.from_numpy(biases))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(device)


def one_step(model: nn.Module, learning_rate: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A step of plain SGD on images (batch, 784) and labels (batch,); returns the loss before it, which may not be there yet."""
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=learning_rate), nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def torch_device(device: str) -> torch.device:
    return torch.device("cuda" if device == "gpu" else "cpu")


@lru_cache(maxsize=2)
def tensors(data: Data, device: str) -> tuple[torch.Tensor, ...]:
    """Images and labels on the device, moved there once; on a processor they are the arrays themselves."""
    arrays = (data.x_train, data.y_train, data.x_validation, data.y_validation)
    x, y, x_validation, y_validation = (torch.from_numpy(array).to(torch_device(device)) for array in arrays)
    return x, y.long(), x_validation, y_validation.long()


def wait(device: str) -> None:
    """Until the card has done what it was given; a processor has."""
    if device == "gpu":
        torch.cuda.synchronize()


def train(
    training: Training, data: Data, device: str = "cpu", parameters: Parameters | None = None, first_epoch: int = 0
) -> Iterator[Event]:
    """See `lib.backends.base`."""
    clock = time.perf_counter
    started = clock()
    start = parameters or initial_parameters(training.network, training.seed)
    model, size = build(training.network, start, torch_device(device)), training.batch_size
    step = one_step(model, training.learning_rate)
    x, y, x_validation, y_validation = tensors(data, device)
    spare = one_step(build(training.network, start, torch_device(device)), 0.0)
    spare(x[:size], y[:size])  # loads the libraries for products, and starts a card
    wait(device)
    yield FirstCall(clock() - started)

    def chunk(_epoch: int, starts: np.ndarray, done: int, _step_s: float | None) -> tuple[np.ndarray, float]:
        losses, before = [], clock()
        for first in starts[done:].tolist():
            losses.append(step(x[first : first + size], y[first : first + size]))
            if clock() - before >= CHUNK_S:
                break
        wait(device)
        chunk_s = clock() - before
        return torch.stack(losses).cpu().numpy(), chunk_s

    def validate() -> tuple[float, float]:
        return evaluate(model, x_validation, y_validation)

    yield from epochs(training, len(data.x_train), first_epoch, chunk, validate, lambda: _parameters(model))


@torch.no_grad()
def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy over all images, in slices."""
    loss, correct = 0.0, 0
    for images, labels in zip(x.split(VALIDATION_SLICE), y.split(VALIDATION_SLICE), strict=True):
        logits = model(images)
        loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        correct += int((logits.argmax(dim=1) == labels).sum())
    return loss / len(x), correct / len(x)


def _parameters(model: nn.Sequential) -> Parameters:
    flat = [one.detach().cpu().numpy() for one in model.parameters()]
    return [(weights.T.copy(), biases.copy()) for weights, biases in zip(flat[::2], flat[1::2], strict=True)]
