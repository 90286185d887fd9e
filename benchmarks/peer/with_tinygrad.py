"""tinygrad: the step of its own MNIST example, captured by TinyJit; the loss of each step is read, as the example does.

The batch's place among the images is a symbolic variable, so that one captured program serves all batches. Gathering
the images by a tensor of indices, as the example does, takes seven times as long on a processor.
"""

# pyright: reportMissingImports=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# It is installed for its benchmark only. Its biases may be None; Variable is an alias that pyright takes for a value.

from collections.abc import Iterator

import numpy as np
from tinygrad import Context, Tensor, TinyJit, Variable, nn

from benchmarks.peer.loop import by_step
from lib.model.backends.base import Event, Parameters, initial_parameters
from lib.model.data.mnist import Data
from lib.model.spec import Training


class Perceptron:
    """Linear layers with ReLU between; tinygrad keeps weights as (outputs, inputs)."""

    def __init__(self, parameters: Parameters) -> None:
        self.layers = [nn.Linear(*weights.shape) for weights, _ in parameters]
        for layer, (weights, biases) in zip(self.layers, parameters, strict=True):
            assert layer.bias is not None, "a Linear has biases by default"
            layer.weight.assign(Tensor(np.ascontiguousarray(weights.T))).realize()
            layer.bias.assign(Tensor(biases)).realize()

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()  # (batch, width)
        return self.layers[-1](x)  # (batch, 10)


def train(training: Training, data: Data) -> Iterator[Event]:
    size = training.batch_size
    model = Perceptron(initial_parameters(training.network, training.seed))
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=training.learning_rate)
    x, y = Tensor(data.x_train).realize(), Tensor(data.y_train).realize()
    first_image = Variable("start", 0, len(data.x_train) - size)

    @TinyJit
    def train_step(start: Variable) -> Tensor:
        images, labels = x.shrink(((start, start + size), None)), y.shrink(((start, start + size),))
        optimizer.zero_grad()
        loss = model(images).sparse_categorical_crossentropy(labels).backward()
        return loss.realize(*optimizer.schedule_step())

    def step(start: int) -> float:
        with Context(TRAINING=1):
            return train_step(first_image.bind(start)).item()

    def parameters() -> Parameters:
        return [(layer.weight.numpy().T.copy(), layer.bias.numpy().copy()) for layer in model.layers]

    yield from by_step(training, data, step, list, parameters)
