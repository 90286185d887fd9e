"""What this process leaves open is closed before it ends, in time for loky, which would wait for it for ever."""

import subprocess
import sys

from tests.conftest import ROOT

CODE = """
from lib.workers.shutdown import close_at_exit
class Pool:
    def close(self, wait=False):
        print("closed and gone" if wait else "closed", flush=True)
pool, forgotten = Pool(), Pool()
close_at_exit(pool)
close_at_exit(forgotten)
del forgotten
"""


def test_all_are_closed_first_and_waited_for_afterwards():
    """One that nobody holds any longer is not held for the sake of its end."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[-3:-1] == ["closed", "closed and gone"]
    assert done.stderr == ""
