"""How the suite runs: its order, the eighths of the release tests, and the summary of skipped tests.

Tests run in two processes, each file in one of them, so that fixtures shared within a file are made once. `make test`
sends all files that open pages to the same process, so that only one starts servers and a browser. The `loadgroup` of
pytest-xdist 3.8 does not work with pytest 9.2, which no longer lets it change the ids of nodes.

Tests marked `release` run only in `make test-all`; there most files open pages, so both processes do.
`make test-all EIGHTH=3` runs those of every eighth file, starting with the fourth, so that eight runs cover them all.
Files stay whole, because the tests of a page build on each other.
"""

from collections import Counter

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

N_PARTS = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--eighth", type=int, help=f"only the tests marked `release`, of every {N_PARTS}th file from this one on"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.eighth is not None:
        in_releases = [item for item in items if item.get_closest_marker("release")]
        files = sorted({item.path for item in in_releases})[config.option.eighth % N_PARTS :: N_PARTS]
        chosen = [item for item in in_releases if item.path in files]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen
    items.sort(key=lambda item: not _opens_pages(item.nodeid))  # the longest first, so that both processes end together


def _opens_pages(nodeid: str) -> bool:
    return "/test_browser" in nodeid or "/test_server.py" in nodeid


class _WithOneBrowser(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "browser" if _opens_pages(nodeid) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return None if config.option.dist == "loadfile" else _WithOneBrowser(config, log)


def pytest_terminal_summary(terminalreporter) -> None:
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        terminalreporter.section("skipped")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5}  {reason}")
