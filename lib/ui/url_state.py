"""Control state as text: in the page's address, so that a link restores it, and as script options.

Each page has a table of its settings. Addresses are checked against it before the page is painted, and control values
when they change, so no value outside the table reaches an experiment.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

from lib.model.spec import MAX_TEXT

T = TypeVar("T")
MAX_SHOWN = 60  # characters of a wrong value quoted in a message


class SettingRefused(ValueError):
    """A value that cannot be used. The message is a complete sentence; add nothing to it."""


@dataclass(frozen=True)
class Setting(Generic[T]):
    """The allowed values of one control, and the default.

    `parse` raises ValueError, or `SettingRefused` where it can say more than `expected`.
    """

    name: str
    usual: T
    expected: str
    parse: Callable[[str], T]
    options: tuple = ()
    shared: str = ""  # name of the setting to read when the address lacks this one

    def read(self, said: str) -> T:
        """Parse the text.

        Raises:
            ValueError: The text is not allowed; the message names what is expected.
        """
        try:
            return self.parse(said)
        except SettingRefused:
            raise
        except ValueError:
            raise ValueError(f"expected {self.expected}") from None


def choice(name: str, usual: T, options: Sequence[T]) -> Setting[T]:
    return Setting(name, usual, f"one of {_listed(options)}", partial(_one_of, options=options), tuple(options))


def choices(name: str, usual: Sequence[T], options: Sequence[T]) -> Setting[Sequence[T]]:
    expected = f"some of {_listed(options)}, separated by commas"
    return Setting(name, tuple(usual), expected, partial(_some_of, options=options), tuple(options))


def ends(name: str, usual: Sequence[float], options: Sequence[float]) -> Setting[Sequence[float]]:
    """A range: two of the options, the smaller first."""

    def parse(said: str) -> list[float]:
        found = _some_of(said, options)
        if len(found) != 2 or found[0] > found[1]:
            raise ValueError
        return found

    expected = f"two of {_listed(options)}, the smaller first, separated by a comma"
    return Setting(name, usual, expected, parse, tuple(options))


def number(name: str, usual: float, low: float, high: float, whole: bool = False) -> Setting[float]:
    def parse(said: str) -> float:
        value = int(said) if whole else float(said)
        if not low <= value <= high:  # also rejects NaN
            raise ValueError
        return value

    return Setting(name, usual, f"a {'whole ' if whole else ''}number from {low:g} to {high:g}", parse)


def text(name: str, usual: str, understand: Callable[[str], object]) -> Setting[str]:
    """A text of at most `MAX_TEXT` characters; `understand` raises ValueError, with a sentence, to reject it."""

    def parse(said: str) -> str:
        if len(said) > MAX_TEXT:
            raise SettingRefused(f"{name}: expected at most {MAX_TEXT} characters, got {len(said):,}; shorten it")
        try:
            understand(said)
        except ValueError as error:
            raise SettingRefused(str(error)) from None
        return said

    return Setting(name, usual, f"at most {MAX_TEXT} characters", parse)


ALL_USUAL = "usual"


def state_of(name: str, members: Sequence[Setting]) -> Setting[str]:
    """A panel's other settings as one value, written as in an address but without the prefix; empty for no state."""

    def parse(said: str) -> str:
        values_of(said, members)
        return said

    expected = f"settings of this panel such as epochs=4&size=512, or {ALL_USUAL} for all defaults"
    return Setting(name, "", expected, parse)


def values_of(said: str, members: Sequence[Setting]) -> dict[str, Any] | None:
    """The panel values in a state written by `Address.state`; None for the empty state.

    Raises:
        ValueError: The state names an unknown setting, or a value that is not allowed.
    """
    if not said:
        return None
    by_key = {one.name.partition(".")[2]: one for one in members}
    found = {key: one.usual for key, one in by_key.items()}
    for key, value in [] if said == ALL_USUAL else parse_qsl(said, True, True, max_num_fields=len(by_key)):
        if key not in by_key:
            raise ValueError(f"expected settings of this panel, got {shown(key)}{nearest(key, by_key)}")
        found[key] = by_key[key].read(value)
    return found


def checked(settings: Mapping[str, Setting], prefix: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Check a panel's values against the same table as an address; an empty field gets the default.

    The browser enforces a control's limits, but other clients of the server may not.

    Raises:
        ValueError: A value is not allowed; the message is a sentence for the viewer.
    """
    found = {}
    for key, value in values.items():
        setting = settings[f"{prefix}.{key}"]
        try:
            found[key] = setting.usual if value is None else setting.read(_written(value))
        except SettingRefused:
            raise
        except ValueError as error:
            raise ValueError(f"{setting.name}: {error}, got {shown(_written(value))}") from None
    return found


class Address:
    """The state of all controls in the page's address, read once when the page opens and written on each change.

    Args:
        parameters: marimo's query parameters; None without a page.
        arguments: Command-line values by name; the address takes precedence.
    """

    def __init__(self, parameters: Any = None, arguments: dict | None = None) -> None:
        self._parameters = parameters
        given = dict(arguments or {}) | (parameters.to_dict() if parameters is not None else {})
        self._given = {name: _written(value) for name, value in given.items()}  # a command line gives 4096 as a number
        self.problems: list[str] = []

    def check(self, settings: Mapping[str, Setting]) -> None:
        """Add a sentence to `problems` for each unusable value and each unknown name."""
        for name, said in self._given.items():
            try:
                if name in settings:
                    settings[name].read(said)
                elif "." in name:  # marimo's own names, such as `file`, have no dot
                    self.problems.append(
                        f"The address has {shown(name)}, which is not a setting of this"
                        f" page{nearest(name, settings)}. It is ignored."
                    )
            except ValueError as error:
                self.problems.append(
                    f"The address says {name}={shown(said)}: {_printable(str(error))}. The default is used instead."
                )

    def said(self, name: str) -> str:
        return self._given.get(name, "")

    def read(self, setting: Setting[T]) -> T:
        """The setting's value in the address; the default if it is missing or unusable."""
        said = self._given.get(setting.name, self._given.get(setting.shared))
        try:
            return setting.usual if said is None else setting.read(said)
        except ValueError:
            return setting.usual

    def state(self, members: Sequence[Setting]) -> str:
        """These settings' values in the form that `values_of` reads; `ALL_USUAL` if all are defaults."""
        read = {one.name.partition(".")[2]: (self.read(one), one.usual) for one in members}
        others = {key: _written(value) for key, (value, usual) in read.items() if _written(value) != _written(usual)}
        return urlencode(others, safe=",") or ALL_USUAL

    def clear(self) -> None:
        self.problems.clear()
        for name in [name for name in self._given if "." in name]:
            if self._parameters is not None and name in self._parameters.to_dict():
                del self._parameters[name]
            del self._given[name]

    def save(self, prefix: str, values: dict) -> None:
        """Write changed values into the address, except texts too long to read back."""
        for key, value in values.items():
            name, said = f"{prefix}.{key}", _written(value)
            too_long = isinstance(value, str) and len(value) > MAX_TEXT
            if self._parameters is not None and self._given.get(name) != said and not too_long:
                self._given[name] = said
                self._parameters[name] = said


def shown(said: str) -> str:
    r"""A value as quoted in a message: at most `MAX_SHOWN` characters, unprintable ones escaped.

    >>> shown("64\x00\n")
    '64\\x00\\n'
    """
    return _printable(said if len(said) <= MAX_SHOWN else f"{said[:MAX_SHOWN]}…")


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() or one in " \u202f" else ascii(one)[1:-1] for one in text)


def nearest(said: str, known: Iterable[str]) -> str:
    """A clause that names the closest known name; empty if none is similar."""
    found = difflib.get_close_matches(shown(said), list(known), 1)
    return f"; the nearest is {found[0]}" if found else ""


def _written(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_written, value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _listed(options: Sequence) -> str:
    return ", ".join(map(_written, options))


def _one_of(said: str, options: Sequence[T]) -> T:
    for option in options:
        if said == _written(option) or (isinstance(option, float) and _as_number(said) == option):
            return option
    raise ValueError


def _some_of(said: str, options: Sequence[T]) -> list[T]:
    return [_one_of(part, options) for part in said.split(",") if part]


def _as_number(said: str) -> float:
    try:
        return float(said)
    except ValueError:
        return math.nan
