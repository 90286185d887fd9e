"""A notebook's process begins with the imports that take long, and what it is copied from ends with the server."""

import os
import subprocess
import sys
import time

import pytest

from lib import ROOT

linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere marimo starts its processes as it does")
BEGIN = "from lib.site.kernel_start import import_ahead; import_ahead()\n"


@pytest.mark.slow
@linux_alone
@pytest.mark.parametrize(("begin", "ahead"), [(BEGIN, True), ("", False)])
def test_a_notebook_s_process_has_what_takes_long_to_import_and_nothing_of_the_project(begin, ahead):
    look = (
        "import sys; known = {one.partition('.')[0] for one in sys.modules};"
        " sys.exit(10 * ({'marimo', 'pandas', 'altair'} <= known) + ('lib' in known))"
    )
    code = (
        f"{begin}from marimo._session.managers.kernel import get_context\n"
        f"process = get_context('spawn').Process(target=exec, args=({look!r},))\n"
        "process.start(); process.join(60); print(process.exitcode)"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == ("10" if ahead else "0"), done.stderr[-500:]


@pytest.mark.slow
@linux_alone
def test_what_it_is_copied_from_ends_with_a_server_that_is_killed():
    code = (
        f"{BEGIN}from multiprocessing import forkserver\n"
        "print(forkserver._forkserver._forkserver_pid, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=-1, stdout=-1, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_there(pid)
        server.kill()
    until = time.monotonic() + 30  # it may still be importing
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not is_there(pid)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"  # ended, and nobody asked for its status yet
