"""Experiments on WebGPU's training step, launched in each available way."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lib.model.backends.webgpu import step
from lib.model.backends.with_webgpu import LAUNCHES, Execution, Images, OpenGpu, gpu, training_images
from lib.timing.measurement import Step
from lib.timing.profiling.harness import IN_A_ROW, ONE_CALL_S, StepExperiment, Subject, TimedStep, in_one_call, repeated

STEPS = 16  # per launch call, as in a short chunk of training, so that one-time work is shared by as many steps


def experiments(backend: str, subject: Subject) -> dict[str, StepExperiment]:
    """Return the experiments of `lib.timing.profiling.run` on one way of launching, by name.

    The device fetches its own batches, so the loop only makes the call. A step's first operation is the transfer; all
    other experiments leave it out. `many` submits commands encoded before the clock starts, or uses one kernel for all.
    """
    launch, device = LAUNCHES[backend], gpu(subject.device)
    run, tiny = (_execution(one, slice(1, None)) for one in (subject, subject.tiny))
    fetch, fetch_one = (_execution(one, slice(1)) for one in (subject, subject.tiny))

    def done(_: object) -> None:
        device.wait()

    def many(of: Execution) -> StepExperiment:
        return in_one_call(of.one_kernel, done) if launch is Execution.one_kernel else submitted(of)

    return {
        "python": repeated(lambda: None),
        "returns": repeated(lambda: launch(tiny, STEPS), done, STEPS, IN_A_ROW, returns=True, at_most=1),
        "call": repeated(lambda: launch(run, STEPS), done, STEPS, IN_A_ROW),
        # Of a batch to where the other operations read it, minus the same for one image.
        "transfer": repeated(lambda: fetch.submit(0), done, config=IN_A_ROW),
        "transfer-base": repeated(lambda: fetch_one.submit(0), done, config=IN_A_ROW),
        "many": many(run),
        "many-tiny": many(tiny),
    }


def timed_step(subject: Subject) -> TimedStep:
    """Return a step that is one submission, for the traps."""

    def on_its_own_images(on: OpenGpu) -> tuple[Execution, Images]:
        images = Images.upload(on, *subject.batch)
        run = Execution(on, step(subject.network, subject.batch_size), images, 1, "A step")
        run.set(subject.parameters, subject.training.learning_rate)
        run.schedule(np.zeros(1))
        return run, images

    def wait(run: Any) -> None:
        run.gpu.wait()

    def fresh() -> Step:
        return partial(_one_step, on_its_own_images(OpenGpu(subject.device))[0])  # a new device has no kernels yet

    run, images = on_its_own_images(gpu(subject.device))

    def with_transfer() -> None:
        images.write(run.gpu, *(one.copy() for one in subject.batch))
        wait(_one_step(run))

    # Some adapters make each submission wait for the previous one.
    return TimedStep(partial(_one_step, run), wait, with_transfer, fresh, queued=1)


def _one_step(run: Execution) -> Execution:
    run.one_submission_a_step(1)
    return run


def submitted(run: Execution) -> StepExperiment:
    """Measure many steps, submitted together, whose commands are encoded before the clock starts."""

    def block(steps: int) -> float:
        commands = run.encoded(steps)
        run.gpu.wait()
        before = time.perf_counter()
        run.gpu.queue.submit([commands])
        run.gpu.wait()
        return (time.perf_counter() - before) / steps

    yield (first_s := block(8))
    steps = int(np.clip(ONE_CALL_S / max(first_s, 1e-9), 4, 4096))
    while True:
        yield block(steps)


def _execution(subject: Subject, operations: slice) -> Execution:
    """Return some of a step's operations, ready to run on the device with the batches of an epoch."""
    whole = step(subject.network, subject.batch_size)
    x = training_images(subject.data, subject.device)
    program = replace(whole, operations=whole.operations[operations])
    run = Execution(gpu(subject.device), program, x, len(subject.starts), "A step")
    run.set(subject.parameters, subject.training.learning_rate)
    run.schedule(np.array(subject.starts))
    run.write("values 0", subject.batch[0])
    return run
