"""Links that open a notebook with settings worth seeing: teaching examples and starting points."""

import os
from collections.abc import Mapping

from lib.ui.notebooks import SERVED, is_static, link
from lib.ui.views.markup import on_demand

# What there is to see, the notebook, and its settings; others keep their defaults.
PRESETS: tuple[tuple[str, str, str], ...] = (
    ("It diverges", "mnist_training", "rate.range=0.05,10&rate.count=4&rate.size=4096&rate.hidden=256,128,64"),
    ("Batch size 1 against 4096", "mnist_training", "size.sizes=1,4096&size.rate=0.01&size.epochs=3"),
    ("Time to 97 %", "mnist_training", "size.sizes=32,128,512&size.rate=0.2&size.epochs=10&size.target=0.97"),
    (
        "Three epochs next to ten, the shorter pinned",
        "mnist_training",
        "rate.epochs=10&rate.size=128&rate.pin=epochs%3D3%26size%3D128",
    ),
    ("A network without a hidden layer", "mnist_training", "depth.networks=128&depth.own=none"),
    (
        "Small batches, nearly all overhead",
        "mnist_training",
        "backend.size=8&backend.epochs=2&backend.hidden=16",
    ),
    (
        "The GPU loses",  # as published, too: the page draws the article's seconds
        "when_a_gpu_wins",
        "win.left=i9-10885h/jax-step/step&win.right=quadro-rtx-5000&win.way=operations",
    ),
    (
        "The GPU wins: 128 networks in one graph, not one by one",
        "when_a_gpu_wins",
        "win.left=c3-highcpu-22/keras-tensorflow/step&win.right=h100-pcie&win.way=graph&win.networks=128",
    ),
    ("The same step, one call per operation and compiled", "inside_a_step", "step.by=numpy/cpu,jax-epoch/cpu"),
    ("256 networks side by side", "many_networks", "count.most=256&count.size=512"),
)


def listed_presets(environment: Mapping[str, str] = os.environ) -> str:
    """HTML: the presets as collapsed links; empty where no server answers them."""
    if SERVED not in environment or is_static(environment):
        return ""
    items = "".join(f"<li>{link(notebook, environment, query, title)}</li>" for title, notebook, query in PRESETS)
    return on_demand("examples to start with", f'<ul class="lab-presets">{items}</ul>')
