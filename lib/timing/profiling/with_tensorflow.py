"""Feeds of a Keras model on TensorFlow: arrays, a generator, `PyDataset`, and variants of `tf.data`.

Keras' own adapters read the generator and `PyDataset`, as in `fit`; they also prefetch. Each variant of `tf.data`
makes one change to the plain variant; the last makes all changes that need no assumption about the images. The step is
the `tf.function` that `fit` compiles, called for each batch like the article's loop; reading the loss waits for it.

`measure_placement` shows where TensorFlow places each operation of a training step, and on which devices it could. It
reads the graphs that TensorFlow ran, after placement and rewriting.
"""

# pyright: reportAttributeAccessIssue=false
# TensorFlow loads parts of itself lazily.

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from tensorflow.python.eager import context  # pyright: ignore[reportMissingImports]
from tensorflow.python.framework import kernels  # pyright: ignore[reportMissingImports]

from lib.model.hardware.machine import usable_cores
from lib.timing.profiling.harness import Batch, Feed, Preprocessing, Row, Subject, row_of, rows_of
from lib.timing.profiling.request import MAX_FILL_S, NotMeasured, Pipeline
from lib.timing.profiling.with_keras import compiled_step, model_of

SHUFFLED = 10_000  # most images in the shuffle buffer, as in the article


@contextmanager
def feed(pipeline: Pipeline, preprocess: Preprocessing, subject: Subject) -> Iterator[Feed]:
    """Yield the feed of a pipeline.

    Raises:
        NotMeasured: Its cache takes longer than `MAX_FILL_S` to fill.
    """
    cached = pipeline.feed == "cache"
    if cached and pipeline.fill_s > MAX_FILL_S:
        raise NotMeasured(
            f"filling the cache with {pipeline.rows:,} images of {pipeline.preprocessing_ms:g} ms takes"
            f" {pipeline.fill_s:.0f} s, but the limit is {MAX_FILL_S:g} s; choose fewer rows"
        )
    step = _compiled(replace(subject, batch_size=pipeline.batch_size))
    yield Feed(
        _opener(pipeline, preprocess, *rows_of(subject.data, pipeline.rows)),
        lambda batch: float(step(batch)["loss"]),
        fill_batches=-(-pipeline.rows // pipeline.batch_size) if cached else 0,
    )


@lru_cache(maxsize=2)
def _compiled(subject: Subject) -> Callable[[Any], Any]:
    """Return the step as `fit` compiles it, cached so that all feeds with the same batch size compile it only once."""
    return compiled_step(model_of(subject))


def _opener(
    pipeline: Pipeline, preprocess: Preprocessing, images: np.ndarray, labels: np.ndarray
) -> Callable[[], Iterator[Any]]:
    size, n_batches = pipeline.batch_size, len(images) // pipeline.batch_size

    def batch(index: int) -> Batch:
        taken = slice(index % n_batches * size, (index % n_batches + 1) * size)
        return preprocess.all_of(images[taken]), labels[taken]

    if pipeline.feed == "arrays":
        return lambda: (_on_host(*batch(index)) for index in count())
    if pipeline.feed == "generator":
        return lambda: iter(GeneratorDataAdapter(batch(index) for index in count()).get_tf_dataset())
    if pipeline.feed == "pydataset":
        dataset = PyDatasetAdapter(_Batches(batch)).get_tf_dataset()
    else:
        dataset = _dataset(pipeline, preprocess, *_on_host(images, labels))
    return lambda: iter(dataset)


def _on_host(*arrays: np.ndarray) -> tuple[tf.Tensor, ...]:
    """Return tensors in host memory even with a GPU, so that the step transfers its batch, whatever the feed."""
    with tf.device("CPU:0"):
        return tuple(map(tf.convert_to_tensor, arrays))


class _Batches(keras.utils.PyDataset):
    def __init__(self, batch: Callable[[int], Batch]) -> None:
        super().__init__()
        self._batch = batch

    @property
    def num_batches(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None  # endless, for Keras

    def __getitem__(self, index: int) -> Batch:
        return self._batch(index)


def _dataset(pipeline: Pipeline, preprocess: Preprocessing, images: tf.Tensor, labels: tf.Tensor) -> tf.data.Dataset:
    variant, size = pipeline.feed, pipeline.batch_size
    in_parallel = {"parallel": usable_cores(), "autotune": tf.data.AUTOTUNE}.get(variant)
    whole = variant == "batched"

    def mapped(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        done = tf.numpy_function(preprocess.all_of if whole else preprocess, [image], tf.float32)
        return tf.ensure_shape(done, image.shape), label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    if variant == "shuffle":
        dataset = dataset.shuffle(min(len(images), SHUFFLED))
    if whole:
        dataset = dataset.batch(size, drop_remainder=True)
    if preprocess.repetitions:
        dataset = dataset.map(mapped, num_parallel_calls=in_parallel)
    if variant == "cache":
        dataset = dataset.cache()
    if not whole:
        dataset = dataset.batch(size, drop_remainder=True)
    dataset = dataset.repeat()
    return dataset.prefetch(tf.data.AUTOTUNE) if variant in ("prefetch", "autotune") else dataset


_NO_WORK = {"_Arg", "_Retval", "Const", "NoOp", "Identity"}  # they only pass values on


def measure_placement(subject: Subject) -> Iterator[Row | None]:
    """Run one step, and count its operations by device.

    The step fetches its own batch, as inside `fit`, and runs operation by operation; compiled by XLA, it would be a
    single operation.

    Yields:
        None once; then rows of numbers, not seconds: `MatMul/CPU/CPU GPU` (operation, device that ran it, devices with
        a kernel for it) with its count in a step; `gpus`, the number that TensorFlow sees; `cuda`, 1 if this
        TensorFlow is built for CUDA.
    """
    model = model_of(subject)
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
    for (operation, device), times in sorted(counted.items()):
        if operation not in _NO_WORK:
            yield row_of(f"{operation}/{device}/{_kernels(operation)}", [times])
    yield row_of("gpus", [len(tf.config.list_physical_devices("GPU"))])
    yield row_of("cuda", [tf.test.is_built_with_cuda()])


def _kernels(operation: str) -> str:
    registered = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(operation).kernel}
    return " ".join(device for device in ("CPU", "GPU") if device in registered)
