"""The glossary, opened on demand below each notebook's title."""

import html

from lib.ui.views.markup import on_demand

WORDS = {
    "backend": (
        "a library, and the way in which it is asked to train: all steps of an epoch in one call, or one call per step"
    ),
    "batch size": "how many images a training step looks at",
    "cached": (
        "saved in an earlier run on this machine, with its date; a training is deterministic, so its curve is the same"
    ),
    "compiled whole, step by step": "one call a whole epoch of steps, or one call a step: fewer calls, less overhead",
    "dispatch": "the host telling a library or a device what to do next: overhead that no faster arithmetic shortens",
    "eagerly": "one call an operation, as programs are written first: each pays its dispatch and its launch",
    "epoch": "one pass over the 48,000 training images",
    "input-bound": "of a training that waits for its next batch for more than a fifth of the time",
    "interpreter's lock (GIL)": (
        "only one thread of a Python process runs Python code at a time; compiled code may release the lock, and then"
        " runs beside it"
    ),
    "kernel, launch": "one piece of arithmetic on a device, such as a product; the call that puts it into the queue",
    "learning rate": "how far each training step moves the weights",
    "median, quartiles": (
        "the middle of all repetitions, and the values that a quarter of them stay below and above: they show how much"
        " a time varies"
    ),
    "overhead": "whatever a step takes beside its arithmetic: Python, dispatch, launches, copies, waiting",
    "prefetch": "making the next batches while the step works on this one",
    "roofline, floor": "the least time that this machine could take, from its best rates of arithmetic and of memory",
    "step": "one batch: forward, loss, gradient, update of all weights",
    "TF32, bfloat16": (
        "float32 whose factors are rounded to 10 or 7 bits before they are multiplied, by graphics cards and, to 7, by"
        " some processors: faster, less exact, and named wherever it is used"
    ),
    "throughput": "images or steps per second",
    "trace": "what a profiler wrote down: who did what, from when to when, in a lane for each thread and each queue",
    "validation accuracy": "the share of 12,000 other images that the network names correctly",
    "zeros left out": "four of five pixels of MNIST are 0, and a product with 0 adds nothing: Numba's loops skip them",
    "vmap": "JAX's way to run one program for many networks at once",
}


def glossary() -> str:
    words = "".join(f"<dt>{html.escape(word)}</dt><dd>{html.escape(meaning)}</dd>" for word, meaning in WORDS.items())
    return on_demand("words used here", f'<dl class="lab-glossary">{words}</dl>')
