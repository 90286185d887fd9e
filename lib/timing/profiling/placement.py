"""Where TensorFlow places each operation of a training step, and on which devices it could.

Read from the graphs that TensorFlow ran, after it had placed and rewritten them. The step fetches its batch itself, as
inside `fit`, and is run operation by operation: compiled by XLA it would be one.
"""

# pyright: reportAttributeAccessIssue=false
# TensorFlow loads parts of itself when they are asked for.

from collections import Counter
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.eager import context  # pyright: ignore[reportMissingImports]
from tensorflow.python.framework import kernels  # pyright: ignore[reportMissingImports]

from lib.model.backends.with_keras import build
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.harness import Row, Subject

_NO_WORK = {"_Arg", "_Retval", "Const", "NoOp", "Identity"}  # they pass values on


def measure_placement(subject: Subject) -> Iterator[Row | None]:
    """Run one step, and count its operations by device.

    Yields:
        Rows that are numbers, not seconds: `MatMul/CPU/CPU GPU` (an operation, the device that ran it, those that it
        has kernels for) with how often a step has it; `gpus`, how many TensorFlow sees; `cuda`, 1 where it is the
        build for them.
    """
    model = build(subject.network, subject.training.learning_rate, subject.parameters)
    dataset = tf.data.Dataset.from_tensor_slices(subject.batch).batch(subject.batch_size).repeat()

    @tf.function(jit_compile=False)
    def step(batches: Iterator) -> object:
        return model.train_step(next(batches))

    batches = iter(dataset)
    context.enable_run_metadata()
    try:
        step(batches)
        ran = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    yield None
    graphs = [[node for graph in one.partition_graphs for node in graph.node] for one in ran.function_graphs]
    whole = next(nodes for nodes in graphs if any(node.op == "IteratorGetNext" for node in nodes))
    counted = Counter((node.op, node.device.rpartition("device:")[2].partition(":")[0]) for node in whole)
    for (operation, device), count in sorted(counted.items()):
        if operation not in _NO_WORK:
            yield f"{operation}/{device}/{_kernels(operation)}", _number(count), 1.0
    yield "gpus", _number(len(tf.config.list_physical_devices("GPU"))), 1.0
    yield "cuda", _number(tf.test.is_built_with_cuda()), 1.0


def _kernels(operation: str) -> str:
    registered = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(operation).kernel}
    return " ".join(device for device in ("CPU", "GPU") if device in registered)


def _number(value: float) -> Measurement:
    return Measurement((float(value),), 1, Ended.CAP)
