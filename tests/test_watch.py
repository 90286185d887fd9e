"""The machine is watched for real: our own work is not a disturbance, another program's is."""

import subprocess
import sys
import time

import pytest

from lib.watch import Disturbance, Watch

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_our_own_work_is_no_disturbance():
    with Watch() as watch:
        child = subprocess.Popen([sys.executable, "-c", SPIN])
        spin(1.0)
        child.kill()
        child.wait()
    assert watch.disturbance is not None
    assert watch.disturbance.others_cores < 0.5, "whatever else this machine does, it is not the child"


def test_another_programs_work_is_named():
    """A program that is none of ours: started by a shell that ends, so that it has another parent."""
    launched = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -c '{SPIN}' >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(launched.stdout)
    try:
        with Watch() as watch:
            time.sleep(1.5)
        assert watch.disturbance is not None
        assert watch.disturbance.others_cores > 0.5
        assert any("other programs kept" in flag and "close them" in flag for flag in watch.disturbance.flags)
        with Watch(pid) as watch:
            time.sleep(1.0)
        assert watch.disturbance is not None
        assert watch.disturbance.others_cores < 0.5, "named as one of ours"
    finally:
        subprocess.run(["kill", str(pid)], check=False)


@pytest.mark.parametrize(
    ("disturbance", "words"),
    [
        (Disturbance(1.0, 0.1, 0.0, 0), "other virtual machines took 10%"),
        (Disturbance(1.0, 0.0, 1.5, 0), "kept 1.5 cores busy"),
        (Disturbance(1.0, 0.0, 0.0, 2**24), "16 MiB were swapped"),
    ],
)
def test_flags(disturbance, words):
    (flag,) = disturbance.flags
    assert words in flag


def test_quiet_is_no_flag():
    assert Disturbance(1.0, 0.0, 0.05, 0).flags == []
