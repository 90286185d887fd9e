"""Programs that tests start as other processes."""

import os
import subprocess
import sys

from lib import ROOT


def said_by(code: str, *arguments: str, **variables: str) -> str:
    """Run Python code with these environment variables too; return what it prints."""
    command, environment = [sys.executable, "-c", code, *arguments], os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
