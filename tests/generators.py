"""Helper for generators that both yield and return."""

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


def collected(generator: Generator[Any, None, T]) -> tuple[list, T]:
    values: list[T] = []

    def kept() -> Generator[Any, None, None]:
        values.append((yield from generator))

    items = list(kept())
    return items, values[0]
