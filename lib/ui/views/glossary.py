"""The glossary, opened on demand below each notebook's title."""

import html

from lib.ui.views.markup import on_demand

WORDS = {
    "backend": ("a library and how it is called: once for all steps of an epoch, or once per step"),
    "batch size": "how many images a training step uses",
    "cached": (
        "saved by an earlier run on this machine, with its date; training is deterministic, so the curve is the same"
    ),
    "compiled whole, step by step": "one call per epoch, or one call per step: fewer calls, less overhead",
    "dispatch": "the host telling a library or a device what to do next: overhead that faster arithmetic cannot cut",
    "eagerly": "one call per operation, as programs are usually first written: each pays for its dispatch and launch",
    "epoch": "one pass over the 48,000 training images",
    "input-bound": "describes a training that waits for its next batch more than a fifth of the time",
    "interpreter's lock (GIL)": (
        "only one thread of a Python process runs Python code at a time; compiled code may release the lock and then"
        " runs alongside it"
    ),
    "kernel, launch": "one computation on a device, such as a product; the call that queues it",
    "learning rate": "how far each training step moves the weights",
    "median, quartiles": (
        "the middle of all repetitions, and the values that a quarter of them fall below and above: how much a time"
        " varies"
    ),
    "overhead": "everything in a step besides its arithmetic: Python, dispatch, launches, copies, waiting",
    "prefetch": "preparing the next batches while the step works on this one",
    "roofline, floor": "the shortest time this machine could take, given its best arithmetic and memory rates",
    "step": "one batch: forward pass, loss, gradients, update of all weights",
    "TF32, bfloat16": (
        "float32 with factors rounded to 10 or 7 bits before multiplication, by GPUs and, to 7, by some CPUs: faster,"
        " less exact, and named wherever it is used"
    ),
    "throughput": "images or steps per second",
    "trace": "what a profiler recorded: what ran, and from when to when, in one lane per thread and per queue",
    "validation accuracy": "the share of 12,000 other images that the network classifies correctly",
    "zeros left out": "four in five MNIST pixels are 0, and multiplying by 0 adds nothing: Numba's loops skip them",
    "vmap": "JAX's way to run one program for many networks at once",
}


def glossary() -> str:
    words = "".join(f"<dt>{html.escape(word)}</dt><dd>{html.escape(meaning)}</dd>" for word, meaning in WORDS.items())
    return on_demand("words used here", f'<dl class="lab-glossary">{words}</dl>')
