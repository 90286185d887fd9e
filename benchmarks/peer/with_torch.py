"""PyTorch with the model compiled, as its introduction to `torch.compile` shows. Eager, and compiled whole, are
`lib.model.backends.with_torch`.

The images are one tensor and a batch is a slice of it: nothing is copied, and no loader stands between.
"""

# pyright: reportMissingImports=false
# It is installed for its benchmark only.

from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.peer.loop import by_step
from lib.model.backends.base import Event, Layer, Parameters, initial_parameters
from lib.model.backends.with_torch import build, torch_device
from lib.model.data.mnist import Data
from lib.model.spec import Training

Step = Callable[[int], torch.Tensor]


def train_compiled(training: Training, data: Data) -> Iterator[Event]:
    """The model alone is compiled, with its backward pass; loss and optimiser stay eager."""
    model = _model(training)
    compiled = torch.compile(model, dynamic=False)
    yield from _run(training, data, _usual_step(model, compiled, training, data), list(model.parameters()))


def _model(training: Training) -> nn.Sequential:
    torch.compiler.reset()  # else it would compile the second batch size for all sizes, which is slower
    start = initial_parameters(training.network, training.seed)
    return build(training.network, start, torch_device("cpu"))


def _tensors(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(data.x_train), torch.from_numpy(data.y_train).long()


def _usual_step(model: nn.Module, called: Callable, training: Training, data: Data) -> Step:
    """The step of PyTorch's tutorials; `called` is the model or what was compiled of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=training.learning_rate)
    loss_of, size = nn.CrossEntropyLoss(), training.batch_size
    x, y = _tensors(data)

    def step(start: int) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(called(x[start : start + size]), y[start : start + size])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _run(training: Training, data: Data, step: Step, current: list[torch.Tensor]) -> Iterator[Event]:
    def layer(weights: torch.Tensor, biases: torch.Tensor) -> Layer:
        return weights.detach().numpy().T.copy(), biases.detach().numpy().copy()

    def parameters() -> Parameters:
        return [layer(*pair) for pair in zip(current[::2], current[1::2], strict=True)]

    yield from by_step(training, data, step, lambda losses: torch.stack(list(losses)).numpy(), parameters)
