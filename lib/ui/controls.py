"""A panel's controls, each declared once: its name in the address, label, default, and allowed values.

The declaration yields the settings that addresses and script options are checked against, the page's elements, and
the check of their values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import marimo as mo

from lib.model.backends.registry import BACKENDS, Runtime, unavailable, usable_runtimes
from lib.model.spec import BATCH_SIZES, MAX_TEXT, N_CLASSES, N_PIXELS, Network
from lib.ui import url_state
from lib.ui.url_state import Setting
from lib.ui.views.pinned import LET_GO, LET_GO_MEANS, PIN, PIN_MEANS

FASTEST = "fastest"  # backend value for the fastest one on this machine


@dataclass(frozen=True)
class Control:
    setting: Setting
    element: Callable[[Any], Any]


def slider(name: str, label: str, usual: float, options: Sequence[float], debounce: bool = True) -> Control:
    """One of several numbers; with `debounce` the value is sent only on release."""
    return Control(
        url_state.choice(name, usual, options),
        lambda value: mo.ui.slider(
            steps=list(options), value=value, label=label, show_value=True, debounce=debounce, full_width=True
        ),
    )


def batch_size(name: str, label: str, usual: int, debounce: bool = True) -> Control:
    """A slider over `BATCH_SIZES`; an address or option may add any size in between."""
    setting = url_state.number(name, usual, BATCH_SIZES[0], BATCH_SIZES[-1], whole=True)
    return Control(
        replace(setting, options=BATCH_SIZES, shared=SHARED_SIZE),
        lambda size: slider(name, label, usual, sorted({*BATCH_SIZES, size}), debounce).element(size),
    )


def span(name: str, label: str, usual: tuple[float, float], options: Sequence[float]) -> Control:
    return Control(
        url_state.ends(name, usual, options),
        lambda value: mo.ui.range_slider(
            steps=list(options), value=value, label=label, show_value=True, full_width=True
        ),
    )


def several(name: str, label: str, usual: Sequence, options: Mapping[str, Any] | Sequence) -> Control:
    named = _named(options)
    return Control(
        url_state.choices(name, usual, list(named.values())),
        lambda chosen: mo.ui.multiselect(
            named, value=[_label(named, value) for value in chosen], label=label, full_width=True
        ),
    )


def dropdown(
    name: str, label: str, usual: Any, options: Mapping[str, Any] | Sequence, full_width: bool = False
) -> Control:
    named = _named(options)
    return Control(
        url_state.choice(name, usual, list(named.values())),
        lambda value: mo.ui.dropdown(named, value=_label(named, value), label=label, full_width=full_width),
    )


def number(
    name: str, label: str, usual: float, low: float, high: float, step: float = 1, whole: bool = False
) -> Control:
    return Control(
        url_state.number(name, usual, low, high, whole),
        lambda value: mo.ui.number(low, high, step=step, value=value, label=label),
    )


def pin_button(button: Any) -> str:
    """HTML of the pin button, labelled with what the next press does; the element keeps its place and focus."""
    return button.text.replace(PIN, LET_GO).replace(PIN_MEANS, LET_GO_MEANS) if button.value else button.text


def text(name: str, label: str, usual: str, understand: Callable[[str], object], placeholder: str) -> Control:
    """A line of text; `understand` raises ValueError, with a sentence, to reject it."""
    return Control(
        url_state.text(name, usual, understand),
        lambda value: mo.ui.text(
            value, label=label, placeholder=placeholder, debounce=300, max_length=MAX_TEXT, full_width=True
        ),
    )


def _check_hidden(written: str) -> None:
    if (widths := Network.parse(written).hidden)[:1] == (N_PIXELS,) and widths[1:][-1:] == (N_CLASSES,):
        raise ValueError(
            f"hidden layers: expected those between {N_PIXELS} inputs and {N_CLASSES} classes, got both ends too; leave"
            " them out"
        )


def hidden(name: str) -> Control:
    line = text(name, "Hidden layers", "128", _check_hidden, "none")
    return replace(line, setting=replace(line.setting, shared=SHARED_HIDDEN))


# The reader's network: used by every section on every page, unless its address names another.
SHARED_HIDDEN, SHARED_SIZE = "net.hidden", "net.size"
SHARED = {one.setting.name: one.setting for one in (hidden(SHARED_HIDDEN), batch_size(SHARED_SIZE, "Batch size", 32))}


def backend(name: str, usual: str = FASTEST) -> Control:
    """The backends that train whole epochs on this machine's processor; by default the fastest."""
    usable = [key for key, one in BACKENDS.items() if unavailable(Runtime(key)) is None and one.whole_epochs]
    options = {"the fastest way here": FASTEST} | {BACKENDS[key].label: key for key in usable}
    return dropdown(name, "Trained by", usual, options, full_width=True)


def runtimes() -> dict[str, str]:
    """The runtimes that can run here, as written in an address (`Runtime.address`), by label."""
    return {one.label: one.address for one in usable_runtimes()}


def runtime(written: str) -> Runtime:
    return Runtime(*written.split("/"))


def _named(options: Mapping[str, Any] | Sequence) -> dict[str, Any]:
    return dict(options) if isinstance(options, Mapping) else {str(option): option for option in options}


def _label(named: Mapping[str, Any], value: object) -> str:
    return next(label for label, one in named.items() if one == value)
