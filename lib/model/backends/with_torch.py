"""Training with PyTorch, in a Python loop over slices of a tensor.

Either eager, one call per operation, like PyTorch's tutorials; or compiled, with loss, gradients and update in one
function, PyTorch's lowest possible overhead.
"""

# pyright: reportMissingImports=false
# Optional: `make torch` installs it.

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import nn
from torch.func import grad_and_value

from lib.model.backends.base import VALIDATION_SLICE, Loop, Parameters, backend, one_step_at_a_time
from lib.model.data.mnist import Data
from lib.model.spec import Network, Training


def build(network: Network, parameters: Parameters, device: torch.device) -> nn.Sequential:
    """Linear layers with ReLU in between; PyTorch stores weights as (outputs, inputs)."""
    layers: list[nn.Module] = []
    for weights, biases in parameters:
        linear = nn.Linear(*weights.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.T))
            linear.bias.copy_(torch.from_numpy(biases))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).to(device)


Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def one_step(model: nn.Module, learning_rate: float, set_to_none: bool = True) -> Step:
    """Return a step of plain SGD on images (batch, inputs) and labels (batch,).

    It returns the loss before the update, which the device may still be computing.

    Args:
        model: Updated in place.
        learning_rate: Of SGD.
        set_to_none: Drop gradients before each step, instead of setting them to 0.
    """
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=learning_rate), nn.CrossEntropyLoss()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def torch_device(device: str) -> torch.device:
    return torch.device("cuda" if device == "gpu" else "cpu")


@lru_cache(maxsize=2)
def tensors(data: Data, device: str) -> tuple[torch.Tensor, ...]:
    """Images and labels on the device, moved there once; on the CPU, images share memory with the arrays."""
    arrays = (data.x_train, data.y_train, data.x_validation, data.y_validation)
    x, y, x_validation, y_validation = (torch.from_numpy(array).to(torch_device(device)) for array in arrays)
    return x, y.long(), x_validation, y_validation.long()


def wait(device: str) -> None:
    """Block until the GPU has finished its queue; the CPU has none."""
    if device == "gpu":
        torch.cuda.synchronize()


def one_compiled_step(model: nn.Module, learning_rate: float, mode: str | None = None) -> Step:
    """Like `one_step`, but compiled as a whole in a `torch.compile` mode; updates the model's parameters in place."""
    values = [parameter.data for parameter in model.parameters()]
    for value in values if mode else ():
        torch._dynamo.mark_static_address(value, guard=False)  # required for CUDA graphs of in-place updates
    rate = torch.tensor(learning_rate, device=values[0].device)  # a Python number would be compiled in
    step = _compiled_step(mode)
    return lambda images, labels: step(values, images, labels, rate)


@lru_cache(maxsize=2)
def _compiled_step(mode: str | None) -> Callable[..., torch.Tensor]:
    torch._dynamo.config.recompile_limit = 256  # shapes; beyond the default of 8 it silently falls back to eager
    return torch.compile(_whole_step, dynamic=False, mode=mode)


def _whole_step(
    values: list[torch.Tensor], images: torch.Tensor, labels: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    def loss_of(values: list[torch.Tensor]) -> torch.Tensor:
        z = images
        for first in range(0, len(values), 2):
            z = nn.functional.linear(z, values[first], values[first + 1])  # (batch, width)
            z = torch.relu(z) if first + 2 < len(values) else z
        return nn.functional.cross_entropy(z, labels)

    gradients, loss = grad_and_value(loss_of)(values)
    for value, gradient in zip(values, gradients, strict=True):
        value.sub_(gradient * rate)
    return loss


def _begin(
    make_step: Callable[[nn.Module, float], Step], training: Training, data: Data, device: str, parameters: Parameters
) -> Loop:
    """See `backend` in `lib.model.backends.base`; `make_step` is `one_step` or `one_compiled_step`."""
    model, size = build(training.network, parameters, torch_device(device)), training.batch_size
    step = make_step(model, training.learning_rate)
    x, y, x_validation, y_validation = tensors(data, device)
    spare = make_step(build(training.network, parameters, torch_device(device)), 0.0)
    spare(x[:size], y[:size])  # loads the libraries for matrix products, compiles, and wakes the GPU
    wait(device)
    chunk = one_step_at_a_time(step, lambda: wait(device), lambda losses: torch.stack(losses).cpu().numpy(), x, y, size)
    return chunk, partial(evaluate, model, x_validation, y_validation), lambda: _parameters(model)


train = backend(partial(_begin, one_step))
# A new shape takes seconds to compile; a new learning rate takes none.
train_compiled = backend(partial(_begin, one_compiled_step))


@torch.no_grad()
def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy over all images, in slices."""
    losses, correct = [], []
    for images, labels in zip(x.split(VALIDATION_SLICE), y.split(VALIDATION_SLICE), strict=True):
        logits = model(images)
        losses.append(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        correct.append((logits.argmax(dim=1) == labels).sum())
    # Copied at the end, because a card would wait for each copy.
    return sum(torch.stack(losses).tolist()) / len(x), sum(torch.stack(correct).tolist()) / len(x)


def _parameters(model: nn.Sequential) -> Parameters:
    flat = [one.detach().cpu().numpy() for one in model.parameters()]
    return [(weights.T.copy(), biases.copy()) for weights, biases in zip(flat[::2], flat[1::2], strict=True)]
