"""A panel's controls as a class: each attribute declares one control; an instance holds the checked values.

The declaration yields the settings that addresses and script options are checked against, the page's elements, the
check of their values, and the attributes that experiments read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import marimo as mo

from lib.model.backends.registry import BACKENDS, DEVICES, Runtime, unavailable, usable_runtimes
from lib.model.spec import BATCH_SIZES, MAX_TEXT, N_CLASSES, N_PIXELS, Network
from lib.ui import url_state
from lib.ui.url_state import Address, Setting
from lib.ui.views.pinned import PIN, PIN_MEANS, UNPIN, UNPIN_MEANS

FASTEST = "fastest"  # backend value for the fastest one on this machine
# How readers' own programs usually train.
PROGRAMS = ("keras-tensorflow", "keras-jax", "torch", "jax-operation", "jax-step", "jax-epoch", "numpy", "cupy")
# Limit for dropped files, which the page holds in memory; larger files are given by path.
MAX_DROPPED_BYTES = 96 << 20


@dataclass(frozen=True)
class Control:
    setting: Setting
    element: Callable[[Any], Any]


class Declared:
    """A control without a name; on a `Controls` instance the attribute is the control's value.

    Args:
        make: Builds the control of this name, such as `rate.size`, on first use: options may depend on this machine.
    """

    def __init__(self, make: Callable[[str], Control]) -> None:
        self.make = cache(make)

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, at: "Controls | None", _owner: type) -> Any:
        return self if at is None else at.values[self._name]


def _declared(factory: Callable[..., Control]) -> Callable[..., Any]:
    """Wrap a factory so that it takes no name: the attribute of a `Controls` class gives it."""
    return lambda *arguments, **named: Declared(lambda name: factory(name, *arguments, **named))


@_declared
def slider(name: str, label: str, usual: float, options: Sequence[float], debounce: bool = True) -> Control:
    """One of several numbers; with `debounce` the value is sent only on release."""
    return Control(
        url_state.choice(name, usual, options),
        lambda value: mo.ui.slider(
            steps=list(options), value=value, label=label, show_value=True, debounce=debounce, full_width=True
        ),
    )


@_declared
def batch_size(name: str, label: str, usual: int, debounce: bool = True) -> Control:
    """A slider over `BATCH_SIZES`; an address or option may add any size in between."""
    setting = url_state.number(name, usual, BATCH_SIZES[0], BATCH_SIZES[-1], whole=True)
    return Control(
        replace(setting, options=BATCH_SIZES, shared=SHARED_SIZE),
        lambda size: slider(label, usual, sorted({*BATCH_SIZES, size}), debounce).make(name).element(size),
    )


@_declared
def span(name: str, label: str, usual: tuple[float, float], options: Sequence[float]) -> Control:
    return Control(
        url_state.ends(name, usual, options),
        lambda value: mo.ui.range_slider(
            steps=list(options), value=value, label=label, show_value=True, full_width=True
        ),
    )


@_declared
def several(name: str, label: str, usual: Any, options: Any) -> Control:
    """As `dropdown`, but any number of the options."""
    usual, named = _now(usual), _named(_now(options))
    return Control(
        url_state.choices(name, usual, list(named.values())),
        lambda chosen: mo.ui.multiselect(
            named, value=[_label(named, value) for value in chosen], label=label, full_width=True
        ),
    )


@_declared
def dropdown(name: str, label: str, usual: Any, options: Any, full_width: bool = False, shared: str = "") -> Control:
    """One of the options, which may have labels (a mapping); functions are called when the control is built.

    An address without it may give it by the setting `shared`.
    """
    usual, named = _now(usual), _named(_now(options))
    return Control(
        replace(url_state.choice(name, usual, list(named.values())), shared=shared),
        lambda value: mo.ui.dropdown(named, value=_label(named, value), label=label, full_width=full_width),
    )


@_declared
def number(
    name: str, label: str, usual: float, low: float, high: float, step: float = 1, whole: bool = False
) -> Control:
    return Control(
        url_state.number(name, usual, low, high, whole),
        lambda value: mo.ui.number(low, high, step=step, value=value, label=label),
    )


@_declared
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
            f"hidden layers: expected only the layers between {N_PIXELS} inputs and {N_CLASSES} classes, got both ends"
            " too; leave those out"
        )


@_declared
def hidden(name: str) -> Control:
    line = text("Hidden layers", "128", _check_hidden, "none").make(name)
    return replace(line, setting=replace(line.setting, shared=SHARED_HIDDEN))


@_declared
def backend(name: str, usual: str = FASTEST) -> Control:
    """The backends that train whole epochs on this machine's processor; by default the fastest."""
    usable = [key for key, one in BACKENDS.items() if unavailable(Runtime(key)) is None and one.whole_epochs]
    options = {"the fastest way here": FASTEST} | {BACKENDS[key].label: key for key in usable}
    return dropdown("Trained by", usual, options, full_width=True).make(name)


def runtimes() -> dict[str, str]:
    """The runtimes that can run here, as written in an address (`Runtime.address`), by label."""
    return {one.label: one.address for one in usable_runtimes()}


def runtime(written: str) -> Runtime:
    return Runtime(*written.split("/"))


def _now(given: Any) -> Any:
    return given() if callable(given) else given


def _named(options: Mapping[str, Any] | Sequence) -> dict[str, Any]:
    return dict(options) if isinstance(options, Mapping) else {str(option): option for option in options}


def _label(named: Mapping[str, Any], value: object) -> str:
    return next(label for label, one in named.items() if one == value)


@_declared
def today(name: str) -> Control:
    """The reader's own program, as a runtime's address, which this machine need not have; by default the fastest."""
    programs = [Runtime(key, device) for device in DEVICES for key in PROGRAMS if device in BACKENDS[key].devices]
    options = {"the fastest way here": FASTEST} | {one.label: one.address for one in programs}
    return dropdown("You train with", FASTEST, options).make(name)


# The reader's network and program: used by every section on every page, unless its address names another.
SHARED_HIDDEN, SHARED_SIZE, SHARED_TODAY = "net.hidden", "net.size", "net.today"
SHARED: dict[str, Setting] = {
    name: one.make(name).setting
    for name, one in ((SHARED_HIDDEN, hidden()), (SHARED_SIZE, batch_size("Batch size", 32)), (SHARED_TODAY, today()))
}


def pin_button(button: Any) -> str:
    """HTML of the pin button, labelled with what the next press does; the element keeps its place and focus."""
    return button.text.replace(PIN, UNPIN).replace(PIN_MEANS, UNPIN_MEANS) if button.value else button.text


def _may_name_a_path() -> bool:
    """Editors and scripts may read files of this machine; viewers never may."""
    return mo.app_meta().mode in ("edit", "script")


def files_of(dropped: Mapping[str, Any]) -> tuple[tuple[str, bytes | Path], ...]:
    """Name, and content or path, of each file; a path counts only where `_may_name_a_path`."""
    files = [(one.name, one.contents) for one in dropped.get("files") or ()]
    path = str(dropped.get("path") or "").strip() if _may_name_a_path() else ""
    return (*files, *([(Path(path).name, Path(path).expanduser())] if path else []))


class Controls:
    """A panel's checked values by name; instances compare by value."""

    # Label and tooltip of the run button; empty for a section with neither this button nor “Stop”.
    AGAIN: tuple[str, ...] = ("Measure again", "Measure everything again")
    # More buttons in the result, each with name, label and tooltip.
    RESULT_BUTTONS: tuple[tuple[str, str, str], ...] = ()
    EXPORTS = PINS = False  # whether the result can be exported, or pinned next to the following run
    FILES = ""  # label of the file field, which no address holds; `at.values["files"]` comes from `files_of`

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self.key = tuple((name, tuple(one) if isinstance(one, list) else one) for name, one in values.items())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Controls) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def declared(cls, prefix: str) -> dict[str, Control]:
        return {name: one.make(f"{prefix}.{name}") for name, one in vars(cls).items() if isinstance(one, Declared)}

    @classmethod
    def settings(cls, prefix: str) -> dict[str, Setting]:
        members = [control.setting for control in cls.declared(prefix).values()]
        pin = [url_state.state_of(f"{prefix}.pin", members)] if cls.PINS else []
        return {one.name: one for one in (*members, *pin)}

    @classmethod
    def elements(cls, prefix: str, address: Address) -> dict[str, Any]:
        fields = {}
        if cls.FILES:
            fields["files"] = mo.ui.file(multiple=True, kind="area", max_size=MAX_DROPPED_BYTES, label=cls.FILES)
        if cls.FILES and _may_name_a_path():
            path = "or the path of a larger file on this machine"
            fields["path"] = mo.ui.text(label=path, full_width=True, max_length=4096)
        return fields | {name: one.element(address.read(one.setting)) for name, one in cls.declared(prefix).items()}

    @classmethod
    def checked(cls, prefix: str, values: Mapping[str, Any]) -> Any:
        """Build an instance from a panel's values; an empty field gets the default.

        Raises:
            ValueError: A value is not allowed; the message is a sentence for the viewer.
        """
        given = {name: values[name] for name in cls.declared(prefix)}
        files = {"files": files_of(values)} if cls.FILES else {}
        return cls(url_state.checked(cls.settings(prefix), prefix, given) | files)


def settings_of(panels: Mapping[str, type[Controls]]) -> dict[str, Setting]:
    return {name: setting for prefix, one in panels.items() for name, setting in one.settings(prefix).items()}
