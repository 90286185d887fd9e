"""The editor beside the app: who started the server comes from a page to its cells, and nobody else."""

import signal
import urllib.request

import psutil
import pytest

from lib.sweeps.workers.queue import SERVED
from lib.ui.role import PUPIL, TEACHER, role
from tests.site.test_server import ask, started


@pytest.mark.slow
def test_a_page_leads_to_its_cells_at_its_settings_and_both_end_together(tmp_path):
    with started("app", tmp_path) as (process, base, opener):
        status, _, text = ask(f"{base}/edit")
        assert (status, "make run" in text) == (403, True), "another user of this machine"
        left = {"Referer": f"{base}/inside_a_step/?step.size=8&session_id=s_1"}
        with opener.open(urllib.request.Request(f"{base}/edit", headers=left), timeout=60) as answer:
            assert answer.status == 200
            assert not answer.url.startswith(base), "a server of its own"
            assert answer.url.replace("%2F", "/").endswith("/?file=notebooks/inside_a_step.py&step.size=8")
        children = psutil.Process(process.pid).children(recursive=True)
        assert [one for one in children if "edit" in one.cmdline()]
        process.send_signal(signal.SIGINT)
        process.wait(60)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive


@pytest.mark.parametrize(("served", "who"), [("app", TEACHER), ("edit", TEACHER), ("run", PUPIL)])
def test_whoever_uses_the_app_is_no_pupil(monkeypatch, served, who):
    monkeypatch.setenv(SERVED, served)
    assert role() == who
