"""A panel's controls as a class: each attribute declares one control; an instance holds the checked values.

The declaration yields the settings that addresses and script options are checked against, the page's elements, the
check of their values, and the attributes that experiments read.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import marimo as mo

from lib.ui import controls, url_state
from lib.ui.url_state import Address, Setting

# Limit for dropped files, which the page holds in memory; larger files are given by path.
MAX_DROPPED_BYTES = 96 << 20


def file_fields(label: str) -> dict:
    fields: dict = {"files": mo.ui.file(multiple=True, kind="area", max_size=MAX_DROPPED_BYTES, label=label)}
    if _may_name_a_path():
        path = "or the path of a larger file on this machine"
        fields["path"] = mo.ui.text(label=path, full_width=True, max_length=4096)
    return fields


def _may_name_a_path() -> bool:
    """Editors and scripts may read files of this machine; viewers never may."""
    return mo.app_meta().mode in ("edit", "script")


def files_of(dropped: Mapping[str, Any]) -> tuple[tuple[str, bytes | Path], ...]:
    """Name, and content or path, of each file; a path counts only where `_may_name_a_path`."""
    files = [(one.name, one.contents) for one in dropped.get("files") or ()]
    path = str(dropped.get("path") or "").strip() if _may_name_a_path() else ""
    return (*files, *([(Path(path).name, Path(path).expanduser())] if path else []))


class Declared:
    """A control without a name; on a `Controls` instance the attribute is the control's value.

    Args:
        make: Builds the control of this name, such as `rate.size`, on first use: options may depend on this machine.
    """

    def __init__(self, make: Callable[[str], controls.Control]) -> None:
        self.make = cache(make)

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, at: "Controls | None", _owner: type) -> Any:
        return self if at is None else at.values[self._name]


def _declared(factory: Callable[..., controls.Control]) -> Callable[..., Any]:
    """Wrap a factory so that it takes no name; arguments that are functions are called when the control is built."""

    def declare(*arguments: Any, **named: Any) -> Any:
        def make(name: str) -> controls.Control:
            found = [one() if callable(one) and factory is not controls.text else one for one in arguments]
            return factory(name, *found, **named)

        return Declared(make)

    return declare


slider, batch_size, hidden, span, several, dropdown, number, text, backend = map(
    _declared,
    (
        controls.slider,
        controls.batch_size,
        controls.hidden,
        controls.span,
        controls.several,
        controls.dropdown,
        controls.number,
        controls.text,
        controls.backend,
    ),
)


class Controls:
    """A panel's checked values by name; instances compare by value."""

    # Label and tooltip of the run button; empty for a section with neither this button nor “Stop”.
    AGAIN: tuple[str, ...] = ("Measure again", "Measure all of it once more")
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
    def declared(cls, prefix: str) -> dict[str, controls.Control]:
        return {name: one.make(f"{prefix}.{name}") for name, one in vars(cls).items() if isinstance(one, Declared)}

    @classmethod
    def members(cls, prefix: str) -> list[Setting]:
        return [control.setting for control in cls.declared(prefix).values()]

    @classmethod
    def pin(cls, prefix: str) -> Setting[str] | None:
        return url_state.state_of(f"{prefix}.pin", cls.members(prefix)) if cls.PINS else None

    @classmethod
    def settings(cls, prefix: str) -> dict[str, Setting]:
        return {one.name: one for one in (*cls.members(prefix), cls.pin(prefix)) if one is not None}

    @classmethod
    def elements(cls, prefix: str, address: Address) -> dict[str, Any]:
        fields = file_fields(cls.FILES) if cls.FILES else {}
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
