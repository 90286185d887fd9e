"""Rows, tables and targets: what all benchmarks share.

Rows go to `benchmarks/out/<name>.json`, tables to the terminal and, each into its own section, to
`benchmarks/RESULTS.md`.
"""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from lib.backends.registry import Runtime, versions
from lib.data.mnist import load_test
from lib.hardware.machine import this_machine

OUT = Path(__file__).resolve().parent / "out"
RESULTS = OUT.parent / "RESULTS.md"
_HEAD = """# Results

Written by `make bench`, a section for each benchmark, by its last run. Medians, with quartiles (q1, q3) where there are
several. Compare ratios within a run: a machine that is shared with others drifts by a factor of two.

"""

Row = dict[str, object]


@dataclass(frozen=True)
class Target:
    """A promise of the design: `figure` is to be at most `limit` (at least, where `at_least`). None: not measured."""

    what: str
    figure: float | None
    limit: float
    unit: str = ""
    at_least: bool = False

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        unit = f" {self.unit}" if self.unit else ""
        if self.figure is None:
            return f"  not measured  {self.what}: {sign} {self.limit:g}{unit}"
        met = self.figure >= self.limit if self.at_least else self.figure <= self.limit
        return (
            f"  {'met   ' if met else 'MISSED'}  {self.what}: {self.figure:.3g}{unit} (target"
            f" {sign} {self.limit:g}{unit})"
        )


def row(name: str, seconds: Sequence[float], backend: str | None = None, batch_size: int | None = None, **more) -> Row:
    """A row with the median and quartiles of `seconds`; quartiles need two values, the median one."""
    median_s = statistics.median(seconds) if seconds else None
    q1_s = q3_s = None
    if len(seconds) > 1:
        q1_s, _, q3_s = statistics.quantiles(seconds, n=4, method="inclusive")
    return {
        "name": name,
        "backend": backend,
        "batch_size": batch_size,
        "median_s": median_s,
        "q1_s": q1_s,
        "q3_s": q3_s,
        "n": len(seconds) or None,
    } | more


class LeftOut(list[str]):
    """What a benchmark could not measure, each with the reason. One that fails must not lose the others."""

    @contextmanager
    def unless_it_works(self, what: str) -> Iterator[None]:
        """Note a failure of what is measured inside, and go on behind it."""
        try:
            yield
        except (RuntimeError, MemoryError, OSError, subprocess.SubprocessError, psutil.Error) as error:
            self.append(f"{what}: {(str(error) or type(error).__name__).splitlines()[0]}")
            note(f"left out: {self[-1]}")


def show(
    name: str, rows: Sequence[Row], columns: Sequence[str], targets: Sequence[Target], left_out: Sequence[str] = ()
) -> None:
    """Print the table, what was left out and the targets, and write the rows with what they were measured on."""
    print(f"\n{name}")
    cells = [[_text(r.get(column)) for column in columns] for r in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [list(columns), *cells]:
        print("  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for missing in left_out:
        print(f"Left out: {missing}")
    print("Targets:" if targets else "No targets.")
    for target in targets:
        print(target)
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    common = measured_on()
    path.write_text(json.dumps([r | common for r in rows], indent=1, ensure_ascii=False) + "\n")
    publish(name, "\n".join(_section(name, columns, cells, targets, left_out, common)))
    print(f"Rows: benchmarks/out/{path.name}; table: benchmarks/RESULTS.md", flush=True)


def publish(name: str, section: str) -> None:
    """Put a benchmark's section into the page of results, in place of its last one."""
    known = RESULTS.read_text().split("\n## ")[1:] if RESULTS.exists() else []
    sections = {text.split("\n", 1)[0]: text.strip() for text in known} | {name: f"{name}\n\n{section}".strip()}
    RESULTS.write_text(_HEAD + "\n\n".join(f"## {sections[key]}" for key in sorted(sections)) + "\n")


def _section(
    name: str,
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    targets: Sequence[Target],
    left_out: Sequence[str],
    common: Row,
) -> Iterator[str]:
    """Lines of Markdown: what was measured, on what and when, the table, the targets."""
    module = sys.modules.get(f"benchmarks.{name}")
    yield from [line for line in ((module and module.__doc__) or "").split("\n")[:1] if line]
    yield f"\n{common['measured_at']} on {common['machine']}; {common['data']}; {common['versions']}.\n"
    yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
    yield from (f"| {' | '.join(line)} |" for line in cells)
    yield ""
    yield from (f"- left out: {missing}" for missing in left_out)
    yield from (f"- {re.sub(' +', ' ', str(target)).strip()}" for target in targets)


def measured_on() -> Row:
    """What every row carries: the images, the machine, the libraries, the time."""
    runtimes = (Runtime("keras-tensorflow"), Runtime("jax-epoch"))
    libraries = dict.fromkeys(part for runtime in runtimes for part in versions(runtime).split(", "))
    return {
        "data": load_test()[2].source,
        "machine": this_machine().line,
        "versions": ", ".join(libraries),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def note(text: str) -> None:
    """A line of progress."""
    print(f"  … {text}", flush=True)
