import importlib.metadata

from marimo._entrypoints import registry
from marimo._runtime.executor import evaluator

from lib.ui import entry_points
from lib.ui.opened import opened


def test_marimo_reads_them_once_and_finds_the_same(monkeypatch):
    read = []

    def counted(**options):
        read.append(options)
        return importlib.metadata.entry_points(**options)

    monkeypatch.setattr(registry, "entry_points", counted)
    before = evaluator._EXECUTOR_REGISTRY.names()
    evaluator.resolve_executor()
    assert len(read) == 2, "marimo reads them only once by itself: then this module can go"
    entry_points.read_once()
    found = [evaluator._EXECUTOR_REGISTRY.names() for _ in range(3)]
    assert found == [before] * 3
    assert len(read) == 3


def test_the_process_of_an_opened_page_does_so(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", importlib.metadata.entry_points)
    opened("claims", {})
    known = registry.entry_points
    assert hasattr(known, "cache_info")
    opened("claims", {})
    assert registry.entry_points is known, "by whatever number of viewers"
