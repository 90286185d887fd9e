"""Rows, tables and targets, shared by all benchmarks.

Rows go to `benchmarks/out/<name>.json`; tables go to the terminal and to the benchmark's section in
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
from typing import cast

import numpy as np
import psutil

from lib.model.backends.fingerprint import benchmark_digest
from lib.model.backends.registry import Runtime, versions
from lib.model.data.mnist import load_test
from lib.model.hardware.machine import this_machine
from lib.timing.comparison import Comparison, Estimate, between, quantile_interval

OUT = Path(__file__).resolve().parent / "out"
RESULTS = OUT.parent / "RESULTS.md"
_HEAD = """# Results

Written by `make bench`, a section for each benchmark, by its last run. Medians, with quartiles (q1, q3) where there are
several. Compare ratios within a run: a machine that is shared with others drifts by a factor of two. A target is met or
missed where the whole of its 95 % interval is; else, as for what was measured once, it is unclear. A section whose
commit is unknown is older than that rule: its targets were judged by their figures alone. `make bench` says which
sections are of other code than is here.

"""

SECONDS = ("median_s", "q1_s", "q3_s", "n")  # columns that `row` computes from seconds
RATIO = ("ratio", "ratio_low", "ratio_high")  # columns of a ratio with its interval
CODE = "code"  # precedes the digest of the measured code
Row = dict[str, object]


@dataclass(frozen=True)
class Target:
    """A design goal: `figure` is at most `limit`, or at least if `at_least`. A `figure` of None was not measured.

    A target is met or missed only if all of `interval` agrees, which contains the true figure in 95 of 100 cases. A
    figure measured once has no interval (None) and is unclear.
    """

    what: str
    figure: float | None
    limit: float
    unit: str = ""
    at_least: bool = False
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, what: str, values: Sequence[float], *limit, share: float = 0.5, **options) -> "Target":
        """The median, or another quantile, of independent values.

        For fewer than six, the median's interval is the geometric mean's (`lib.timing.comparison.between`).
        """
        if not values:
            return cls(what, None, *limit, **options)
        figure, interval = float(np.quantile(values, share)), quantile_interval(values, share)
        if len(values) < 6 and share == 0.5:
            found = between(Estimate.of(values), Estimate(1.0, 0.0, len(values)))
            interval = found.low, found.high
        return cls(what, figure, *limit, **options, interval=interval if len(values) > 1 else None)

    @classmethod
    def ratio(cls, what: str, found: Comparison | None, *limit, **options) -> "Target":
        if found is None:
            return cls(what, None, *limit, **options)
        return cls(what, found.ratio, *limit, **options, interval=(found.low, found.high) if found.n > 1 else None)

    @classmethod
    def in_row(cls, what: str, row: Row | None, names: Sequence[str], *limit, **options) -> "Target":
        """A row's figure and the ends of its interval, by column name. A row of None was not measured."""
        if row is None:
            return cls(what, None, *limit, **options)
        figure, low, high = (cast(float, row[name]) for name in names)
        return cls(what, figure, *limit, **options, interval=(low, high))

    @classmethod
    def share(cls, what: str, of: int, n: int, *limit, **options) -> "Target":
        """The share of `of` in `n`, with the Clopper–Pearson interval; not measured if `n` is 0."""
        if not n:
            return cls(what, None, *limit, **options)
        from scipy.stats import binomtest  # importing it takes a second

        found = binomtest(of, n).proportion_ci(0.95, "exact")
        return cls(what, of / n, *limit, **options, interval=(found.low, found.high))

    @classmethod
    def counted(cls, what: str, figure: float | None, *limit, **options) -> "Target":
        """A count, which has no spread."""
        return cls(what, figure, *limit, **options, interval=None if figure is None else (figure, figure))

    @property
    def word(self) -> str:
        if self.figure is None:
            return "not measured"
        if self.interval is None:
            return "unclear"
        least, most = self.interval
        if (least >= self.limit) if self.at_least else (most <= self.limit):
            return "met"
        return "MISSED" if ((most < self.limit) if self.at_least else (least > self.limit)) else "unclear"

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        unit = f" {self.unit}" if self.unit else ""
        if self.figure is None:
            return f"  {self.word}  {self.what}: {sign} {self.limit:g}{unit}"
        spread = ""
        if self.interval is None:
            spread = "once; "
        elif self.interval[0] < self.interval[1]:
            spread = f"{_told_apart(self.interval[0], self.limit)} to {_told_apart(self.interval[1], self.limit)}; "
        figure = _told_apart(self.figure, self.limit)
        return f"  {self.word:<7}  {self.what}: {figure}{unit} ({spread}target {sign} {self.limit:g}{unit})"


def _told_apart(value: float, limit: float) -> str:
    """The value with three digits, or as many as distinguish it from the limit."""
    return next((text for n in range(3, 12) if float(text := f"{value:.{n}g}") != limit or value == limit), f"{value}")


def row(name: str, seconds: Sequence[float], backend: str | None = None, batch_size: int | None = None, **more) -> Row:
    """A row with `seconds`, their median and quartiles. Quartiles need two values, the median one."""
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
        "seconds": list(seconds),
    } | more


def seconds_of(row: Row | None) -> list[float]:
    return [] if row is None else cast(list[float], row["seconds"])


class LeftOut(list[str]):
    """What a benchmark could not measure, with reasons. One failure must not lose the other results."""

    @contextmanager
    def unless_it_works(self, what: str) -> Iterator[None]:
        """Record a failure inside the block and continue after it."""
        try:
            yield
        except (RuntimeError, MemoryError, OSError, subprocess.SubprocessError, psutil.Error) as error:
            self.append(f"{what}: {(str(error) or type(error).__name__).splitlines()[0]}")
            note(f"left out: {self[-1]}")


def show(
    name: str, rows: Sequence[Row], columns: Sequence[str], targets: Sequence[Target], left_out: Sequence[str] = ()
) -> None:
    """Print the table, omissions and targets, and write the rows with the machine and versions."""
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
    sections = _sections() | {name: f"{name}\n\n{section}".strip()}
    RESULTS.write_text(_HEAD + "\n\n".join(f"## {sections[key]}" for key in sorted(sections)) + "\n")


def _sections() -> dict[str, str]:
    known = RESULTS.read_text().split("\n## ")[1:] if RESULTS.exists() else []
    return {text.split("\n", 1)[0]: text.strip() for text in known}


def outdated(names: Sequence[str]) -> list[str]:
    """A sentence per benchmark whose section is missing or was made by other code."""
    sections = _sections()
    found = []
    for name in names:
        said = re.search(rf"{CODE} (\w{{16}}), commit (.+)\.\n", sections.get(name, ""))
        if name not in sections:
            found.append(f"{name} has no section")
        elif said is None:
            found.append(f"{name} is of an unknown commit")
        elif said[1] != benchmark_digest(name):
            found.append(f"{name} is of commit {said[2]}, and what it measures has changed since")
    return [f"{RESULTS.name}: {one}; run `make bench BENCH={one.split()[0]}`." for one in found]


def _commit() -> str:
    """The current commit, and whether files have changed since; `unknown` without git."""
    git = ["git", "-C", str(OUT.parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        compared_with = ["HEAD", "--", ".", "../lib", f":!{RESULTS.name}"]
        changed = subprocess.run([*git, "diff", "--quiet", *compared_with], check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + (" with changes" if changed.returncode else "")


def _section(
    name: str,
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    targets: Sequence[Target],
    left_out: Sequence[str],
    common: Row,
) -> Iterator[str]:
    module = sys.modules.get(f"benchmarks.{name}")
    yield " ".join(((module and module.__doc__) or "").split("\n\n")[0].split())
    yield (
        f"\n{common['measured_at']} on {common['machine']}; {common['data']}; {common['versions']};"
        f" {CODE} {benchmark_digest(name)}, commit {_commit()}.\n"
    )
    yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
    yield from (f"| {' | '.join(line)} |" for line in cells)
    yield ""
    yield from (f"- left out: {missing}" for missing in left_out)
    yield from (f"- {re.sub(' +', ' ', str(target)).strip()}" for target in targets)


def measured_on() -> Row:
    """Fields that every row carries: the images, machine, library versions and time."""
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
    print(f"  … {text}", flush=True)
