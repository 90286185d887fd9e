"""Seconds, shares, rates and lists in words."""

import math
from collections.abc import Sequence


def seconds(value_s: float) -> str:
    """Two digits, with the unit that fits."""
    for limit, factor, unit in ((1e-3, 1e6, "μs"), (1.0, 1e3, "ms")):
        if value_s < limit:
            return (
                f"{value_s * factor:.2g}\u202f{unit}"
                if value_s * factor < 100
                else f"{value_s * factor:.0f}\u202f{unit}"
            )
    return f"{value_s:.1f}\u202fs" if value_s < 100 else f"{value_s:.0f}\u202fs"


def justified(seconds: float, low: float, high: float, at_most: int = 3) -> str:
    """A time between its quartiles, in words: the last digit shown is about as large as they are apart.

    Two digits at least, and `at_most` so many, unless it takes more for what is shown to lie between the quartiles as
    well.

    >>> justified(0.0123456, 0.0121, 0.0125), justified(0.0123456, 0.0123451, 0.0123461), justified(0.17, 0.1, 0.3)
    ('12.3 ms', '12.346 ms', '170 ms')
    >>> justified(0.0123456, 0.0123456, 0.0123456), justified(0.1432, 0.1431, 0.9)
    ('12.3 ms', '143.2 ms')
    """
    units = ((0.9995e-6, 1e-9, "ns"), (0.9995e-3, 1e-6, "μs"), (0.9995, 1e-3, "ms"), (math.inf, 1.0, "s"))
    _, unit_s, unit = next(row for row in units if abs(seconds) < row[0])
    value, apart = seconds / unit_s, (high - low) / unit_s
    first = -math.floor(math.log10(abs(value))) if value else 0  # the place of its first digit
    wanted = -math.floor(math.log10(apart)) if 0 < apart < math.inf else first + (at_most if apart == 0 else 0)
    decimals = min(max(wanted, first + 1), first + at_most - 1)
    while low < seconds < high and not low <= round(value, decimals) * unit_s <= high:
        decimals += 1
    return f"{round(value, decimals):.{max(decimals, 0)}f} {unit}"


def percent(accuracy: float) -> str:
    """One decimal: with 12,000 validation images the standard error is 0.2 points at 95 %."""
    return f"{100 * accuracy:.1f}\u202f%"


def format_rate(rate: float) -> str:
    return f"{rate:.2g}" if rate < 1 else f"{rate:g}"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def sentence(error: Exception) -> str:
    """An error's text as a sentence; a file's name at its start stays as it is."""
    text = str(error).rstrip(".")
    first = text.split(" ")[0]
    return (text if "." in first else text[:1].upper() + text[1:]) + "."
