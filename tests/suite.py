"""How the suite runs: what measures alone, what was left out and why, and what another setting of the machine can
change.

Tests run beside each other in two processes (`make test`), a file's in one of them, so that what a file shares is made
once: `--dist loadfile`, because `loadgroup` groups nothing with pytest 9.2 (pytest-xdist 3.8 names a group by changing
a node's id, which no longer can be). What is marked `timed` comes last in its file, while the other process has none.

`--only images` and `--only interrupts` run what another setting can change, as seen in an earlier whole run: of those
that read the images or start a program which does, the first of each file, because a file's tests come to their images
in one way, and those marked `images`; and all that interrupt a program. `env -u MNIST_NPZ make test` runs all.
"""

import fcntl
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SETTINGS = ("images", "interrupts")
_KEPT = "suite/settings"  # node ids by setting, in pytest's cache
# The longest first, so that both processes end at about the same time.
_LONGEST = (
    "test_class_attacks",
    "test_browser_notebooks",
    "test_browser_navigation",
    "test_browser_your_gpu",
    "test_browser_layout",
    "test_strategies",
    "test_parallel_sweeps",
    "test_browser",
    "test_engine",
    "test_mnist_training",
    "test_backend_race",
    "test_dask_cluster",
    "test_train",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what is marked slow or browser")
    parser.addoption("--only", choices=SETTINGS, help="what this setting can change, as an earlier whole run has seen")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.quick:
        for item in items:
            if kinds := [kind for kind in ("browser", "slow") if item.get_closest_marker(kind)]:
                item.add_marker(pytest.mark.skip(reason=f"{kinds[0]}: left out by QUICK=1"))
    if config.option.only:
        _select(config, items)
    items.sort(key=_order)


def _is_timed(item: pytest.Item) -> bool:
    return item.get_closest_marker("timed") is not None


def _order(item: pytest.Item) -> tuple[bool, int]:
    file = item.path.stem
    return _is_timed(item), _LONGEST.index(file) if file in _LONGEST else len(_LONGEST)


def _select(config: pytest.Config, items: list[pytest.Item]) -> None:
    assert config.cache is not None, "pytest's own"
    seen = config.cache.get(_KEPT, {}).get(config.option.only)
    if not seen:
        raise pytest.UsageError(
            f"--only {config.option.only}: expected an earlier run to tell which tests these are, got none; run"
            " them all"
        )
    chosen = [item for item in items if item.nodeid in seen]
    if config.option.only == "images":
        first_of = {item.path: item for item in reversed(chosen)}
        chosen = [item for item in chosen if item is first_of[item.path] or item.get_closest_marker("images")]
    left_out = {item.nodeid for item in items} - {item.nodeid for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = chosen


# What measures has the machine for itself.


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # outside of the time limit: a test's own time begins when it has its place
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    with _place(alone=_is_timed(item)):
        return (yield)


@contextmanager
def _place(alone: bool) -> Iterator[None]:
    """One of many, or the only one. Who waits to be alone holds the door, so that no others go past."""
    folder = Path(os.environ["SUITE_FOLDER"])
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # closing it would not do where a child was forked


# What another setting can change is seen from what a test does, and from what its fixtures did.

_seen: list[set[str]] = [set()]  # of the test, and of the fixtures that are being set up, the innermost last
_of_fixtures: dict[object, set[str]] = {}


def _watch(event: str, arguments: tuple) -> None:
    started = event == "subprocess.Popen" and arguments[0] == sys.executable
    if started or (event == "open" and str(arguments[0]).endswith(".npz")):
        _seen[-1].add("images")
    elif event in ("os.kill", "os.killpg") and arguments[1] == signal.SIGINT:
        _seen[-1].add("interrupts")


sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest) -> Iterator[object]:
    _seen.append(set())
    try:
        return (yield)
    finally:
        _of_fixtures[fixturedef] = _seen.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[object]:
    try:
        return (yield)
    finally:
        info = getattr(item, "_fixtureinfo", None)  # a doctest has none
        used = [made for of_name in info.name2fixturedefs.values() for made in of_name] if info else []
        settings = _seen[0].union(*(_of_fixtures.get(made, set()) for made in used))
        item.user_properties += [("setting", setting) for setting in sorted(settings)]
        _seen[0] = set()


# Of all processes, in the one that reports.

_ran: dict[str, list[str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _ran[report.nodeid] = [str(setting) for key, setting in report.user_properties if key == "setting"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput") or not config.pluginmanager.hasplugin("cacheprovider") or config.option.only:
        return
    assert config.cache is not None, "pytest's own"
    kept = config.cache.get(_KEPT, {})
    now = {
        setting: sorted({*kept.get(setting, ())} - {*_ran} | {name for name, seen in _ran.items() if setting in seen})
        for setting in SETTINGS
    }
    config.cache.set(_KEPT, now)


def pytest_terminal_summary(terminalreporter) -> None:
    """What was skipped, one line per reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        terminalreporter.section("skipped")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5}  {reason}")
