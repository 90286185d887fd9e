"""Contrast of two CSS colours as WCAG 2.2 defines it."""

import re


def channels(color: str) -> list[float]:
    """Return red, green and blue, 0 to 1, of #rrggbb, rgb(…) or color(srgb …)."""
    if color.startswith("#"):
        return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    values = [float(number) for number in re.findall(r"[\d.]+", color)][:3]
    return [value / 255 for value in values] if color.startswith("rgb") else values


def luminance(rgb: list[float]) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str | list[float], other: str | list[float]) -> float:
    """Return 1 (same luminance) to 21 (black and white)."""
    rgbs = [channels(color) if isinstance(color, str) else color for color in (one, other)]
    darker, lighter = sorted(map(luminance, rgbs))
    return (lighter + 0.05) / (darker + 0.05)
