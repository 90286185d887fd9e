"""The notebook's controls, and what stands around the experiments: title line, panels, buttons.

A panel is one `mo.ui.dictionary`: a change of any member re-runs the one cell that reads it. Its values go through
`*_experiment` below, which raise ValueError with a sentence where they cannot be used.
"""

import html
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import marimo as mo

from lib.backends.registry import usable_runtimes
from lib.data.mnist import Facts, recognised
from lib.data.own.prepared import Prepared
from lib.experiments import axes, mnist_training
from lib.experiments.mnist_training import Experiment
from lib.experiments.published import ARTICLE_ARCHITECTURES, OVERHEAD_ARTICLE
from lib.formatting import listed
from lib.experiments.own_data import experiment_on, not_used, that_fit
from lib.experiments.results import Results
from lib.hardware.machine import details, this_machine
from lib.pages import entry_points, layout, network_inside, options
from lib.pages.controls import (
    Control,
    Controls,
    backend,
    pin_button,
    settings_of,
    several,
    slider,
    span,
    text,
    with_pin,
)
from lib.pages.notebooks import is_static, navigation, notebook_of
from lib.pages.presets import listed_presets
from lib.pages.stage import Stage, button, stop_button, streaming
from lib.pages.url_state import Address, Setting, values_of
from lib.pages.where_computed import static_note
from lib.pages.widgets import CopyLink, DrawDigit, Present, WholePage
from lib.spec import BATCH_SIZES, MNIST, RATE_STEPS, Network
from lib.storage.store import Store
from lib.views import own_data as view
from lib.views import recorded_gpus
from lib.views.glossary import glossary
from lib.views.markup import on_demand, table

EPOCHS = tuple(range(1, 21))
TARGETS = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98)
COUNTS = tuple(range(2, axes.MAX_LINES + 1))
T = TypeVar("T")
_BUTTONS = ("start", "stop", "again", "pin")
_OFFERED = "mnist"  # a button that is shown below a result
_QUESTION = (
    "A small network often trains faster on a processor than on a graphics card, because most of its time is not"
    " arithmetic but overhead."
)
_MOVE = " Move a slider: every line below is trained on this machine."


def _hidden(name: str) -> Control:
    return text(name, "Hidden layers", "128", Network.parse, "256, 128, 64")


def _steps(name: str, label: str, usual: float, options: Sequence[float]) -> Control:
    return slider(name, label, usual, options, debounce=False)


def _panels(address: Address | None = None) -> dict[str, Controls]:
    """The controls of the four experiments: the articles' settings until somebody says otherwise.

    Their pins need the address.
    """
    return {
        "rate": with_pin(
            "rate.pin",
            address,
            span("rate.range", "Learning rates", (0.001, 1.0), RATE_STEPS),
            _steps("rate.count", "How many rates", 4, COUNTS),
            _steps("rate.epochs", "Epochs", 3, EPOCHS),
            _steps("rate.size", "Batch size", 32, BATCH_SIZES),
            _hidden("rate.hidden"),
            backend("rate.backend"),
        ),
        "size": with_pin(
            "size.pin",
            address,
            several("size.sizes", "Batch sizes", (1, 32, 256), BATCH_SIZES),
            _steps("size.epochs", "Epochs", 3, EPOCHS),
            _steps("size.rate", "Learning rate", 0.01, RATE_STEPS),
            _steps("size.target", "Target accuracy", 0.9, TARGETS),
            _hidden("size.hidden"),
            backend("size.backend"),
        ),
        "depth": with_pin(
            "depth.pin",
            address,
            several("depth.networks", "Hidden layers", ARTICLE_ARCHITECTURES, ARTICLE_ARCHITECTURES),
            text("depth.own", "Your own", "", axes.parse_networks, "256, 128, 64; 512; none"),
            _steps("depth.epochs", "Epochs", 3, EPOCHS),
            _steps("depth.rate", "Learning rate", 0.1, RATE_STEPS),
            _steps("depth.size", "Batch size", 32, BATCH_SIZES),
            backend("depth.backend"),
        ),
        "backend": with_pin(
            "backend.pin",
            address,
            _steps("backend.size", "Batch size", 32, BATCH_SIZES),
            _steps("backend.epochs", "Epochs, the first not timed", 5, EPOCHS[1:]),
            _steps("backend.rate", "Learning rate", 0.1, RATE_STEPS),
            _hidden("backend.hidden"),
        ),
    }


@cache
def _checks() -> dict[str, Controls]:
    """The panels without an address: what values are checked by, at every move."""
    return _panels()


def settings() -> dict[str, Setting]:
    """What the controls of the first four experiments may say, by name."""
    return settings_of(_checks().values())


def _panel(prefix: str, address: Address, stage: Stage) -> mo.ui.dictionary:
    stop = stop_button(stage, "Stop this experiment")
    again, mnist = button("Run again", "Train and time it anew"), button(view.COMPARE, view.COMPARE_MEANS)
    return _panels(address)[prefix].panel(address, stop=stop, again=again, **{_OFFERED: mnist})


rate_panel, size_panel, depth_panel, backend_panel = (
    partial(_panel, prefix) for prefix in ("rate", "size", "depth", "backend")
)


def opened(name: str, settings: Mapping[str, Setting]) -> Address:
    """The values that a notebook was opened with: its address, or the script's options, checked.

    Args:
        name: Of the notebook, without `.py`.
        settings: Its settings, by name.

    Raises:
        SystemExit: An option of the script cannot be used (status 2).
    """
    if streaming():
        address = Address(mo.query_params(), mo.cli_args().to_dict())
    elif Path(sys.argv[0]).stem == name:
        address = Address(arguments=options.given(settings, sys.argv[1:], f"{name}.py"))
    else:  # another program runs it, such as a test
        address = Address()
    address.check(settings)
    entry_points.read_once()
    return address


def title(address: Address, data: Facts | None, trouble: str, tools: mo.Html, own: object = None) -> mo.Html:
    """Title, machine, question, and what the reader must know before trusting the page.

    Args:
        address: Its problems are listed.
        data: Which images; None while no worker has loaded them.
        trouble: Of the store, in a sentence; empty for none.
        tools: From `tools`.
        own: Data that somebody brought, if it is a `Prepared`; else MNIST is trained on.
    """
    brought = own.about.name if isinstance(own, Prepared) else ""
    notes = [*address.problems, *filter(None, [trouble])]
    return mo.Html(
        _heading("mnist_training", "Why is my GPU slower?", _QUESTION + ("" if is_static() else _MOVE))
        + layout.images_line(data or recognised(), brought)
        + layout.problems(notes)
        + f'<div class="lab-tools">{tools.text}</div><div class="lab-asides">{listed_presets()}{glossary()}</div>'
        + mo.ui.anywidget(WholePage()).text
    )


def plain_title(name: str, heading: str, question: str, address: Address) -> mo.Html:
    """Title, machine and question of a notebook that has one question."""
    machine = table([], ([html.escape(name), html.escape(value)] for name, value in details().items()), "lab-machine")
    return mo.Html(
        _heading(name, heading, question)
        + f'<div class="lab-asides">{on_demand("this machine", machine)}{glossary()}'
        + f'<div class="lab-tools">{mo.ui.anywidget(Present()).text}</div></div>'
        + mo.ui.anywidget(WholePage()).text
        + layout.problems(address.problems)
    )


def _heading(name: str, heading: str, question: str) -> str:
    sources = f"After {listed([f'“{title}”' for title in notebook_of(name).articles])}."
    static = static_note(name) if is_static() else layout.chart_ahead()
    return (
        f'{navigation(name)}<div class="lab-title"><h1>{html.escape(heading)}</h1>'
        f'<p class="lab-line">{html.escape(this_machine().line)}</p></div>'
        f'<p class="lab-question">{html.escape(question)}</p>{layout.quiet(sources)}{static}'
    )


def rate_experiment(values: dict, own: Prepared | None = None) -> Experiment:
    """The experiment of the first panel, by its values, on MNIST or on data that somebody brought.

    Raises:
        ValueError: A value cannot be used; the text is a sentence for the person.
    """
    values = _checks()["rate"].checked(values)
    rates = axes.rates_between(*values["range"], values["count"])
    made = mnist_training.learning_rate(
        rates, epochs=values["epochs"], batch_size=values["size"], hidden=values["hidden"], backend=values["backend"]
    )
    return experiment_on(own, made)


def size_experiment(values: dict, own: Prepared | None = None) -> Experiment:
    """The experiment of the second panel, without batch sizes that are larger than the data; raises as
    `rate_experiment` does."""
    values = _checks()["size"].checked(values)
    made = mnist_training.batch_size(
        that_fit(own, values["sizes"]),
        epochs=values["epochs"],
        rate=values["rate"],
        hidden=values["hidden"],
        backend=values["backend"],
    )
    return experiment_on(own, made)


def left_out(values: dict, own: Prepared | None) -> Callable[[Experiment, Results], str]:
    """An `after` for the second panel: which of its batch sizes are left out."""

    def below(experiment: Experiment, _results: Results) -> str:
        fitting = tuple(item.training.batch_size for item in experiment.items)
        return layout.quiet(view.left_out(values["sizes"], fitting) if own is not None else "")

    return below


def depth_experiment(values: dict, own: Prepared | None = None) -> Experiment:
    """The experiment of the third panel; raises as `rate_experiment` does."""
    values = _checks()["depth"].checked(values)
    made = mnist_training.depth(
        values["networks"],
        own=values["own"],
        epochs=values["epochs"],
        rate=values["rate"],
        batch_size=values["size"],
        backend=values["backend"],
    )
    return experiment_on(own, made)


def backend_experiment(values: dict, own: Prepared | None = None) -> Experiment:
    """The experiment of the fourth panel; raises as `rate_experiment` does."""
    values = _checks()["backend"].checked(values)
    made = mnist_training.backends(
        batch_size=values["size"], epochs=values["epochs"], rate=values["rate"], hidden=values["hidden"]
    )
    return experiment_on(own, made)


def pinned(prefix: str, values: dict, own: Prepared | None = None) -> Callable[[], Experiment | None]:
    """What `streaming.show` asks for the pinned experiment of a panel; it raises as the panel's experiment does."""

    def kept() -> Experiment | None:
        settings = _checks()[prefix].settings
        found = values_of(values["pin"] or "", [one for name, one in settings.items() if name != f"{prefix}.pin"])
        return EXPERIMENTS[prefix](found, own) if found is not None else None

    return kept


# The experiment of a panel, by the prefix of its settings.
EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    "rate": rate_experiment,
    "size": size_experiment,
    "depth": depth_experiment,
    "backend": backend_experiment,
}


def missing_backends(experiment: Experiment, _results: Results, own: Prepared | None = None) -> str:
    """HTML below the bars: published figures' source, recorded GPUs, what cannot run here or is not used on `own`."""
    if experiment.data != MNIST:
        return layout.missing(not_used(own, usable_runtimes()))
    source = f"Grey marks: published seconds, from “{OVERHEAD_ARTICLE}” (Core i9-10885H), not measured here."
    size = experiment.items[0].training.batch_size
    return f"{layout.quiet(source)}{layout.quiet(recorded_gpus.epoch_note(size))}" + layout.missing()


def controls(panel: mo.ui.dictionary, elsewhere: Collection[str] = ()) -> mo.Html:
    """A panel's elements one below the other, and its buttons in a row; `elsewhere` names those shown by others."""
    others = (*_BUTTONS, _OFFERED, *elsewhere)
    rows = [f"<div>{panel[name].text}</div>" for name in panel.elements if name not in others]
    buttons = "".join(
        pin_button(panel[name]) if name == "pin" else panel[name].text for name in _BUTTONS if name in panel.elements
    )
    return mo.Html("".join(rows) + f'<div class="lab-buttons">{buttons}</div>')


def state(first: T) -> tuple[Callable[[], T], Callable[[T], None]]:
    """As `mo.state`, but an equal value re-runs no cell: results end far more often than what they say changes."""
    get, set_anew = mo.state(first)

    def set_if_new(value: T) -> None:
        if value != get():
            set_anew(value)

    return get, set_if_new


def once_seen(digit: DrawDigit, act: Callable[[T], object]) -> Callable[[T], object]:
    """`act` for a page, where it waits until somebody has scrolled near the canvas, and then does it for the latest
    value; at once in scripts and exports, in which nobody scrolls."""
    return (lambda value: digit.when_seen(partial(act, value))) if streaming() else act


def tell(set_known: Callable, store: Store) -> Callable[[Results], None]:
    """An `on_data` that stores what the title says of images and store.

    Args:
        set_known: Called with the `Facts` on the images, and the store's trouble.
        store: Where the results go.
    """

    def keep(results: Results) -> None:
        if results.items[0].training.data == MNIST:
            set_known((results.data, store.trouble))

    return keep


def remember(set_best: Callable) -> Callable[[Results], None]:
    """An `on_done` that stores the best network, to look inside.

    Args:
        set_best: Called with the `Item` of the best network, if there is one.
    """

    def keep(results: Results) -> None:
        if (best := results.best()) is not None:
            if results.parameters is not None and results.data is not None:
                network_inside.remember(*results.parameters, results.data)
            set_best(best)

    return keep


def tools(stages: Sequence[Stage], address: Address, set_reset: Callable) -> mo.Html:
    """Buttons for the whole page: reset, copy the link, stop everything.

    Args:
        stages: All stages of the page.
        address: Cleared on reset.
        set_reset: Called with the count of resets.
    """

    def reset(presses: int) -> int:
        address.clear()
        for stage in stages:
            stage.opening = True
        set_reset(presses + 1)
        return presses + 1

    def stop(presses: int) -> int:
        for stage in stages:
            stage.stop()
        return presses + 1

    return mo.hstack(
        [
            mo.ui.button(label="Reset", value=0, on_click=reset, tooltip="All controls back to the articles' settings"),
            mo.ui.anywidget(CopyLink()),
            mo.ui.anywidget(Present()),
            mo.ui.button(label="Stop all", value=0, on_click=stop, tooltip="Stop every experiment on this page"),
        ],
        justify="start",
        gap=0.5,
    )
