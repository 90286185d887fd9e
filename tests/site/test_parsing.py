import ast
import gc
import os
import threading
import time

import pytest
from marimo._ast import compiler

from benchmarks.browser import free_port
from lib.cli import launch
from lib.site import parsing, server

SOURCE = "\n".join(f"x{k} = [a{k} + b{k} * (c, d, {k})]" for k in range(300))


pytestmark = pytest.mark.skipif(not parsing.AFFECTED, reason="this Python's threads can build syntax trees at once")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(ast, "parse", ast.parse)
    monkeypatch.setattr(compiler, "ast_compile", compiler.ast_compile)


@pytest.mark.slow
def test_threads_parse_one_after_another_though_the_collector_lets_others_in():
    with pytest.raises(SystemError, match="recursion depth mismatch"):
        parse_while_another_thread_does(times=50)  # the fault that is worked round, or this test shows nothing
    parsing.one_at_a_time()
    parse_while_another_thread_does()


def test_the_server_of_a_class_parses_so(monkeypatch):
    served = []
    monkeypatch.setattr(server, "serve_class", lambda *given: served.append(given) or parse_while_another_thread_does())
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.chdir(launch.ROOT)
    assert launch.main(["run", "--port", str(free_port()), "--headless", "1"]) == 0
    assert len(served) == 1


def parse_while_another_thread_does(times: int = 1) -> None:
    """Parse as a page load does, and let each garbage collection give another thread time to compile cells, as
    kernels do; on a busy machine that may get no turn within one parse."""
    over = threading.Event()
    faults: list[SystemError] = []

    def cells() -> None:
        while not over.is_set():
            try:
                compiler.module_compile("y = [(f, g)]")
            except SystemError as fault:
                faults.append(fault)

    def let_others_in(phase: str, _: dict) -> None:
        if phase == "start" and threading.current_thread() is here:
            time.sleep(0.001)

    here, other, thresholds = threading.current_thread(), threading.Thread(target=cells), gc.get_threshold()
    gc.callbacks.append(let_others_in)
    gc.set_threshold(200)
    other.start()
    try:
        for _ in range(times):
            assert len(ast.parse(SOURCE).body) == 300
            if faults:
                break
    finally:
        over.set()
        other.join()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_in)
    if faults:
        raise faults[0]
