"""The page on input pipelines: what its controls ask for, and what is refused before anything is allocated."""

import pytest

from lib.pages import input_pipeline as page
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.profiling.request import Pipeline


def panel(**said):
    address = Address(arguments={f"feed.{name}": value for name, value in said.items()})
    address.check(page.settings())
    assert not address.problems
    return page.feeds_panel(address, Stage(None, None))  # pyright: ignore[reportArgumentType]


def test_the_controls_say_which_pipeline_is_the_reader_s():
    said = {"look": "cache", "rows": "100", "size": "10", "ms": "0.5", "lock": "True", "same": "True"}
    assert page.chosen(panel(**said)) == (Pipeline("cache", 100, 10, 0.5, True), "cpu", True)
    assert page.chosen(panel()) == (Pipeline(), "cpu", False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rows": "10", "size": "32"}, r"batch size: expected 1 to 10 \(the rows\), got 32"),
        ({"rows": "10000", "size": "2048", "ms": "5.0"}, "at most 3 s a batch"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(said, words):
    with pytest.raises(ValueError, match=words):
        page.chosen(panel(**said))


def test_rows_beyond_memory_are_refused_by_the_memory_that_is_free_now(monkeypatch):
    monkeypatch.setattr(page, "free_memory_bytes", lambda: 1e9)
    assert page.chosen(panel(rows="10000"))[0].rows == 10_000
    with pytest.raises(ValueError, match=r"rows: expected at most 50% of the free memory \(1.0 GB\), got 100,000 rows"):
        page.chosen(panel(rows="100000"))
