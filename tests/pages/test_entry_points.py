import importlib.metadata
import os

from marimo._entrypoints import registry
from marimo._runtime.executor import evaluator

from benchmarks.browser import free_port
from lib.cli import launch
from lib.pages import entry_points, parsing, server


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


def test_the_server_of_a_class_does_so(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", registry.entry_points)
    monkeypatch.setattr(parsing, "one_at_a_time", lambda: None)
    monkeypatch.setattr(os, "environ", {**os.environ})
    served = []
    monkeypatch.setattr(server, "serve_class", lambda *given: served.append(registry.entry_points))
    monkeypatch.chdir(launch.ROOT)
    assert launch.main(["run", "--port", str(free_port()), "--headless", "1"]) == 0
    assert hasattr(served[0], "cache_info")
