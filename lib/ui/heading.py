"""The top of every notebook: navigation, title, machine, question."""

import html
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

import marimo as mo

from lib.formatting import listed
from lib.model.hardware.machine import details, this_machine
from lib.model.spec import BATCH_SIZES, MAX_TEXT, N_CLASSES, N_PIXELS
from lib.ui import layout
from lib.ui.controls import SHARED, SHARED_HIDDEN, SHARED_SIZE, SHARED_TODAY
from lib.ui.notebooks import AS_PAGE, FIRST, IN_BROWSER, SERVED, STATIC, is_static, navigation, notebook_of
from lib.ui.opened import TEACHER, role
from lib.ui.url_state import Address
from lib.ui.views.markup import on_demand, quiet, table
from lib.ui.widgets import Scripted, WholePage


def plain_title(
    name: str, title: str, question: str, address: Address, near: Callable[[Sequence[str]], object] | None = None
) -> mo.Html:
    tools = [mo.ui.anywidget(Scripted(tool)) for tool in ("copy link", "present")]
    machine = table([], ([html.escape(name), html.escape(value)] for name, value in details().items()), "lab-machine")
    return mo.Html(
        heading(name, title, address, f'<p class="lab-question">{html.escape(question)}</p>')
        + asides(
            name,
            on_demand("this machine", machine),
            mo.hstack(tools, justify="start", wrap=True).text,
        )
        + mo.ui.anywidget(WholePage(near)).text
        + layout.problems(address.problems)
    )


def heading(name: str, title: str, address: Address, below: str = "", images: str = "") -> str:
    """HTML: navigation and title, the machine and the reader's network.

    The address carries the network into the links to other pages. `below` is HTML below the title, `images` HTML below
    the machine.
    """
    shared = urlencode({key: said for key in SHARED if (said := address.said(key))}, safe=",")
    return (
        f"{navigation(name, is_teacher=role() == TEACHER, query=shared)}"
        f'<div class="lab-title"><h1>{html.escape(title)}</h1>'
        f'<div class="lab-line"><p>{html.escape(this_machine().line)}</p>{images}</div></div>'
        f"{network_line(name, address)}{below}{static_note(name) if is_static() else ''}"
    )


def network_line(name: str, address: Address) -> str:
    """HTML: a form for the network and batch size of every section; submitting it reopens the page with them.

    Empty where no server would answer.
    """
    served = os.environ.get(SERVED)
    if served in (None, STATIC):
        return ""
    hidden, size, today = (address.read(one) for one in SHARED.values())
    page = {"file": notebook_of(name).file, AS_PAGE[0]: AS_PAGE[1]} if served == "edit" else {}
    page |= {SHARED_TODAY: today}  # `WholePage` changes it, so it is there for the usual one too
    kept = "".join(f'<input type="hidden" name="{key}" value="{html.escape(value)}">' for key, value in page.items())
    return (
        f'<form class="lab-network" method="get" action="">{kept}<span>Your network: {N_PIXELS}→</span>'
        f'<input name="{SHARED_HIDDEN}" value="{html.escape(hidden)}" size="9" maxlength="{MAX_TEXT}"'
        f' aria-label="Hidden layers of your network"><label>→{N_CLASSES}, batch size <input name="{SHARED_SIZE}"'
        f' type="number" min="{BATCH_SIZES[0]}" max="{BATCH_SIZES[-1]}" value="{size:g}"'
        ' aria-label="Batch size of your network"></label>'
        '<button class="lab-button" title="Stored in the page’s address">Use on all pages</button></form>'
    )


def asides(name: str, further: str, tools: str) -> str:
    sources = quiet(f"After {listed([f'“{one}”' for one in notebook_of(name).articles])}.")
    return f'<div class="lab-asides">{further}{glossary()}<div class="lab-tools">{tools}</div>{sources}</div>'


def where_and_when() -> str:
    return f"{this_machine().line}, {datetime.now(UTC).date().isoformat()}"


def static_note(name: str) -> str:
    instead = f'; <a href="{IN_BROWSER}">train in your browser</a> instead' if name == FIRST.name else ""
    return (
        f'<p class="lab-static" role="note"><b>Computed on {html.escape(where_and_when())}</b>, unless a figure names'
        f" another machine or day. This page has no server, so its controls do not respond{instead}. Made with"
        ' <a href="https://marimo.io">marimo</a>.</p>'
    )


WORDS = {
    "≤": "at most: something disturbed the measurement, so the true time is shorter",
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
    words = (f"<dt>{html.escape(word)}</dt><dd>{html.escape(meaning)}</dd>" for word, meaning in WORDS.items())
    return on_demand("words used here", f'<dl class="lab-glossary">{"".join(words)}</dl>')
