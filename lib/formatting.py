"""Formats seconds, factors, shares, rates, lists and errors for people."""

import math
from collections.abc import Sequence


def seconds(value_s: float) -> str:
    r"""Format a duration with about two digits, in μs, ms or s.

    >>> seconds(5.4e-5), seconds(0.1234), seconds(7), seconds(123), seconds(9.96e-5), seconds(0.0009996)
    ('54\u202fμs', '123\u202fms', '7.0\u202fs', '123\u202fs', '100\u202fμs', '1\u202fms')
    """
    number, digits, unit = value_s, ".1f", "s"
    if value_s < 0.9995:  # a value that would round to 1,000 moves to the next unit
        number, digits, unit = (value_s * 1e6, ".2g", "μs") if value_s < 0.9995e-3 else (value_s * 1e3, ".2g", "ms")
    return f"{number:{digits if number < 99.5 else '.0f'}}\u202f{unit}"


def justified(seconds: float, low: float, high: float, at_most: int = 3, unit: str = "") -> str:
    """Format seconds, rounded so that the last digit is about as large as the distance of the quartiles.

    There are at least two digits and at most `at_most`, unless the rounded value needs more to stay between `low` and
    `high`. The unit depends on the value; with a given `unit`, as for a whole column, there are never more digits.

    >>> justified(0.0123456, 0.0121, 0.0125), justified(0.0123456, 0.0123451, 0.0123461), justified(0.17, 0.1, 0.3)
    ('12.3 ms', '12.346 ms', '170 ms')
    >>> justified(0.0123456, 0.0123456, 0.0123456), justified(0.1432, 0.1431, 0.9)
    ('12.3 ms', '143.2 ms')
    >>> justified(0.0123456, 0.0121, 0.0125, unit="s"), justified(0.0123456, 0.0123451, 0.0123461, unit="s")
    ('0.0123 s', '0.0123 s')
    """
    units = ((0.9995e-6, 1e-9, "ns"), (0.9995e-3, 1e-6, "μs"), (0.9995, 1e-3, "ms"), (math.inf, 1.0, "s"))
    _, unit_s, shown = next(row for row in units if row[2] == unit or (not unit and abs(seconds) < row[0]))
    value, apart = seconds / unit_s, (high - low) / unit_s
    first = -math.floor(math.log10(abs(value))) if value else 0  # decimal place of the first digit
    wanted = -math.floor(math.log10(apart)) if 0 < apart < math.inf else first + (at_most if apart == 0 else 0)
    decimals = min(max(wanted, first + 1), first + at_most - 1)
    while not unit and low < seconds < high and not low <= round(value, decimals) * unit_s <= high:
        decimals += 1
    return f"{round(value, decimals):.{max(decimals, 0)}f} {shown}"


def percent(accuracy: float) -> str:
    """One decimal, because with 12,000 images, the standard error at 95 % is 0.2 points."""
    return f"{100 * accuracy:.1f}\u202f%"


def dollars(value: float) -> str:
    r"""Format two digits, in dollars or, below a dollar, in cents.

    >>> dollars(0.0123), dollars(0.00042), dollars(12.34), dollars(1234.0)
    ('1.2\u202f¢', '0.042\u202f¢', '$12', '$1,234')
    """
    if value >= 100:
        return f"${value:,.0f}"
    return f"{value * 100:.2g}\u202f¢" if value < 0.995 else f"${value:.2g}"


def times(ratio: float, digits: int = 2) -> str:
    """Format a factor without an exponent.

    >>> times(3456.7), times(1.234), times(12.3), times(1.234, 3), times(1234.5, 3)
    ('3,500', '1.2', '12', '1.23', '1,230')
    """
    rounded = float(f"{ratio:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:g}"


def factor(ratio: float, low: float, high: float) -> str:
    r"""Format a factor with its interval; a narrow one gets a third digit.

    >>> factor(1.43, 0.5, 3.9), factor(1.018, 1.011, 1.024), factor(1_234, 1_200, 1_300)
    ('1.4\xa0(0.5–3.9)', '1.02\xa0(1.01–1.02)', '1,230\xa0(1,200–1,300)')
    """
    digits = 3 if high < 1.2 * low else 2
    return f"{times(ratio, digits)}\u00a0({times(low, digits)}–{times(high, digits)})"


def format_rate(rate: float) -> str:
    return f"{rate:.2g}" if rate < 1 else f"{rate:g}"


def minute(measured_at: str) -> str:
    """Format an ISO time in UTC, to the minute.

    >>> minute("2026-11-30T22:53:12+00:00")
    '2026-11-30 22:53 UTC'
    """
    return measured_at[:16].replace("T", " ") + " UTC"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    """Join one or more parts, as in “a, b and c”."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def sentence(error: Exception | str) -> str:
    """Format a text or error as a sentence: with a full stop, and capitalised unless it begins with a file name."""
    text = str(error).rstrip(".")
    return (text if "." in text.split(" ")[0] else text[:1].upper() + text[1:]) + "."
