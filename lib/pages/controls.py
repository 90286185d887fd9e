"""The controls of a panel, each declared once: its name in the address, its label, its default and what it may say.

Of such a table follow the settings that an address and a script's options are held against, the elements on the page,
and the check of what they say.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import marimo as mo

from lib.backends.registry import DEFAULT, DEVICES, Runtime, unavailable, usable_runtimes
from lib.pages import url_state
from lib.pages.url_state import Address, Setting
from lib.spec import MAX_TEXT


@dataclass(frozen=True)
class Control:
    """A setting, and the element for it, made from the value that it shows first."""

    setting: Setting
    element: Callable[[Any], Any]


class Controls:
    """The controls of one panel, whose settings all have the same prefix, such as `rate.`."""

    def __init__(self, *controls: Control) -> None:
        self._members = {control.setting.name.partition(".")[2]: control for control in controls}
        self.settings = {control.setting.name: control.setting for control in controls}
        self._prefix = controls[0].setting.name.partition(".")[0]

    def elements(self, address: Address) -> dict[str, Any]:
        """The elements by their names without the prefix, as the address says."""
        return {name: control.element(address.read(control.setting)) for name, control in self._members.items()}

    def panel(self, address: Address, **buttons: mo.ui.button) -> mo.ui.dictionary:
        """The elements and these buttons as one; what the controls say is written into the address, a press is not."""
        save = address.save(self._prefix)
        return mo.ui.dictionary(
            self.elements(address) | buttons,
            on_change=lambda values: save({name: values[name] for name in self._members}),
        )

    def checked(self, values: Mapping[str, object]) -> dict[str, Any]:
        """What the panel says, each value one that its setting allows. Raises ValueError with a sentence."""
        return url_state.checked(self.settings, self._prefix, values)


def settings_of(panels: Iterable[Controls]) -> dict[str, Setting]:
    """The settings of a page, by name."""
    return {name: setting for panel in panels for name, setting in panel.settings.items()}


def slider(name: str, label: str, usual: float, options: Sequence[float], debounce: bool = True) -> Control:
    """One of some numbers; with `debounce` it is heard when it is let go."""
    return Control(
        url_state.choice(name, usual, options),
        lambda value: mo.ui.slider(
            steps=list(options), value=value, label=label, show_value=True, debounce=debounce, full_width=True
        ),
    )


def span(name: str, label: str, usual: tuple[float, float], options: Sequence[float]) -> Control:
    """The two ends of a range."""
    return Control(
        url_state.ends(name, usual, options),
        lambda value: mo.ui.range_slider(
            steps=list(options), value=value, label=label, show_value=True, full_width=True
        ),
    )


def several(name: str, label: str, usual: Sequence, options: Mapping[str, Any] | Sequence) -> Control:
    """Any number of the options; a mapping gives each its label."""
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
    """One of the options; a mapping gives each its label."""
    named = _named(options)
    return Control(
        url_state.choice(name, usual, list(named.values())),
        lambda value: mo.ui.dropdown(named, value=_label(named, value), label=label, full_width=full_width),
    )


def number(
    name: str, label: str, usual: float, low: float, high: float, step: float = 1, whole: bool = False
) -> Control:
    """A number within limits."""
    return Control(
        url_state.number(name, usual, low, high, whole),
        lambda value: mo.ui.number(low, high, step=step, value=value, label=label),
    )


def checkbox(name: str, label: str, usual: bool) -> Control:
    """Yes or no."""
    return Control(url_state.choice(name, usual, (False, True)), lambda value: mo.ui.checkbox(value=value, label=label))


def day(name: str, label: str, usual: date) -> Control:
    """A day of the calendar, in ISO 8601."""
    return Control(url_state.day(name, usual), lambda value: mo.ui.date(value=value, label=label))


def text(name: str, label: str, usual: str, understand: Callable[[str], object], placeholder: str) -> Control:
    """A line of text; `understand` raises ValueError with a sentence where it cannot be used."""
    return Control(
        url_state.text(name, usual, understand),
        lambda value: mo.ui.text(
            value, label=label, placeholder=placeholder, debounce=300, max_length=MAX_TEXT, full_width=True
        ),
    )


def device(name: str) -> Control:
    """A processor or, where JAX can use one, a graphics card."""
    usable = [one for one in DEVICES if unavailable(Runtime(DEFAULT, one)) is None]
    return dropdown(name, "Device", "cpu", usable)


def runtimes() -> dict[str, str]:
    """The runtimes that can run here, as an address writes them, by their labels; `runtime` reads them."""
    return {one.label: f"{one.backend}/{one.device}" for one in usable_runtimes()}


def runtime(written: str) -> Runtime:
    """A runtime from `runtimes`."""
    return Runtime(*written.split("/"))


def _named(options: Mapping[str, Any] | Sequence) -> dict[str, Any]:
    return dict(options) if isinstance(options, Mapping) else {str(option): option for option in options}


def _label(named: Mapping[str, Any], value: object) -> str:
    return next(label for label, one in named.items() if one == value)
