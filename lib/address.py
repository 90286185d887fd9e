"""The state of all controls in the page's address, so that a link restores it."""

from collections.abc import Callable, Sequence
from typing import Protocol


class _QueryParameters(Protocol):
    """What is used of marimo's class, which has no public name."""

    def to_dict(self) -> dict: ...

    def __setitem__(self, key: str, value: str) -> None: ...

    def __delitem__(self, key: str) -> None: ...


class Address:
    """The state of all controls in the page's address, read once when the page opens and written on each change."""

    def __init__(self, parameters: "_QueryParameters | None" = None, arguments: dict | None = None) -> None:
        self._parameters = parameters
        self._given = dict(arguments or {})
        if parameters is not None:
            self._given |= parameters.to_dict()
        # A command line gives 4096 as a number.
        self._given = {name: _written(value) for name, value in self._given.items()}
        self.problems: list[str] = []

    def read(self, name: str, default: object, parse: Callable[[str], object]) -> object:
        """The value that the address gives for a control, or the default; what cannot be used is noted in `problems`."""
        text = self._given.get(name)
        if text is None or not isinstance(text, str):
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.problems.append(f"The address says {name}={text}: {error}. The usual value is used instead.")
            return default

    def choice(self, name: str, default: object, options: Sequence) -> object:
        return self.read(name, default, lambda text: _one_of(text, options))

    def choices(self, name: str, default: Sequence, options: Sequence) -> list:
        def parse(text: str) -> list:
            return [_one_of(part, options) for part in text.split(",") if part]

        return list(self.read(name, list(default), parse))  # type: ignore[call-overload]

    def text(self, name: str, default: str) -> str:
        return str(self.read(name, default, str))[:200]

    def clear(self) -> None:
        """Forget all that the address says."""
        self.problems.clear()
        for name in list(self._given):
            if self._parameters is not None and name in self._parameters.to_dict():
                del self._parameters[name]
        self._given.clear()

    def save(self, prefix: str) -> Callable[[dict], None]:
        """An `on_change` for a panel: writes what changed into the address."""

        def write(values: dict) -> None:
            for key, value in values.items():
                text = (
                    ",".join(_written(part) for part in value) if isinstance(value, (list, tuple)) else _written(value)
                )
                name = f"{prefix}.{key}"
                if self._parameters is not None and self._given.get(name) != text:
                    self._given[name] = text
                    self._parameters[name] = text

        return write


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_number(text: str, value: float) -> bool:
    """Whether it is the same number, however it is written."""
    try:
        return float(text) == value
    except ValueError:
        return False


def _one_of(text: str, options: Sequence) -> object:
    for option in options:
        if text == _written(option) or (isinstance(option, float) and _is_number(text, option)):
            return option
    raise ValueError(f"expected one of {', '.join(_written(option) for option in options)}")
