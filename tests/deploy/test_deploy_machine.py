"""The programs on the machine, as real as possible without one: setup by uv, the unit, the SkyPilot task, prices."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import yaml

from deploy import cost
from deploy.cost import status_sentence
from lib.cli import launch
from lib.site import editor
from lib.ui.notebooks import SERVED
from tests.deploying import DEPLOY, ROOT, finished, one_sentence


def make_wheel(folder: Path) -> Path:
    """Build a package of one line, so that installing needs no network."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "size = 1\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return wheel


def setup(root: Path, *words: object) -> subprocess.CompletedProcess[str]:
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert uv, "uv is in requirements-dev.txt"
    environment = {**os.environ, "UV": uv, "UV_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never"}
    return finished("bash", DEPLOY / "setup.sh", "--root", root, "--no-start", *words, env=environment)


@pytest.fixture(scope="module")
def installed(deploy_clone: Path, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    archive = root / "project.tar.gz"
    subprocess.run(["tar", "-C", str(deploy_clone), "-czf", str(archive), "."], check=True)
    requirements = root / "requirements.txt"
    requirements.write_text(f"--no-index\n{make_wheel(root)}\n")
    for _ in range(2):
        answer = setup(root, "--archive", archive, "--requirements", requirements)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    return root


@pytest.mark.slow
def test_setup_makes_an_environment_with_a_supported_python(installed):
    python = installed / "less-overhead/.venv/bin/python"
    code = "import sys, tiny; print(tiny.size, (3, 11) <= sys.version_info < (3, 14))"
    assert finished(python, "-c", code).stdout == "1 True\n"


def test_the_password_is_random_and_only_its_owner_reads_it(installed):
    state = installed / ".config/less-overhead"
    assert re.fullmatch(r"[\w-]{32}\n", (state / "password").read_text())
    assert (state / "password").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700


def test_setup_names_what_is_missing(tmp_path):
    one_sentence(setup(tmp_path).stderr, "the project in", "--archive")
    (tmp_path / "damaged.tar.gz").write_text("no archive")
    answer = setup(tmp_path, "--archive", tmp_path / "damaged.tar.gz")
    one_sentence(answer.stderr.splitlines()[-1], "damaged.tar.gz", "deploy/gcp create")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed here")
def test_systemd_accepts_the_unit(installed):
    assert (installed / "less-overhead/.venv/bin/python").exists(), "what the unit starts"
    environment = {**os.environ, "HOME": str(installed), "XDG_RUNTIME_DIR": str(installed)}
    unit = installed / ".config/systemd/user/marimo.service"
    answer = finished("systemd-analyze", "--user", "verify", unit, env=environment)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_launch_and_marimo_accept_the_command_line_of_the_unit(monkeypatch):
    from marimo._cli.cli import main

    unit = (DEPLOY / "marimo.service").read_text()
    for marker, value in {"%h": "/home/me", "${MARIMO_HOST}": "127.0.0.1", "${MARIMO_PORT}": "2718"}.items():
        unit = unit.replace(marker, value)
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    words = shlex.split(command)
    assert words[:3] == ["/home/me/less-overhead/.venv/bin/python", "-m", "lib.cli.launch"]
    asked = []
    monkeypatch.chdir(ROOT)
    for name in ("PYTHONPATH", SERVED):  # `launch` sets them
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(launch, "port_problem", lambda *_: "")
    monkeypatch.setattr(editor, "serve_editor", lambda *given: asked.append(given))
    assert launch.main(words[3:]) == 0
    host, port, headless, first, further = asked[0]
    assert first == "mnist_training.py"
    said = main.commands["edit"].make_context("edit", editor.editor_words(host, port, headless, further)[2:]).params
    assert (said["host"], said["port"], said["headless"]) == ("127.0.0.1", 2718, True)
    assert said["token_password_file"] == "/home/me/.config/less-overhead/password"


def test_the_sky_task_removes_itself_and_opens_no_port():
    text = (DEPLOY / "sky.yaml").read_text()
    task = yaml.safe_load(text)
    assert task["resources"]["autostop"] == {"idle_minutes": 30, "down": True, "wait_for": "jobs_and_ssh"}
    assert "ports" not in task["resources"]
    assert task["workdir"] == "."
    assert "nvidia-580" in text, "whose driver CUDA 13 takes"
    for name in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[name], text=True, check=True)


NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
STARTED = "2026-11-21T03:00:00.000-08:00"  # an hour before `NOW`
ENDS = "2026-11-21T13:00:00Z"  # an hour after


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (["m", "z", "RUNNING", "l4", "STANDARD", STARTED, "", ENDS], ["(1 h 0 min)", "(in 1 h 0 min)", "$0.71 ($0.71"]),
        (["m", "z", "RUNNING", "cpu", "SPOT", STARTED, "", ENDS], ["$0.17 ($0.168 per hour, spot"]),
        (["m", "z", "RUNNING", "l4", "SPOT", "", STARTED, ENDS], ["per hour, spot, us-central1, 2025-03-06"]),
        (["m", "z", "RUNNING", "cpu", "STANDARD", STARTED, "", ""], ["NO time limit: delete it yourself"]),
        (
            ["m", "z", "TERMINATED", "l4", "SPOT", STARTED, "", ENDS],
            ["its disk costs money, and nothing deletes it by itself"],
        ),
    ],
)
def test_the_status_sentence_shows_time_and_cost(row, expected):
    said = status_sentence(row, NOW)
    assert all(part in said for part in expected), said


def test_prices_are_dated_and_the_readme_quotes_them():
    prices = json.loads((DEPLOY / "prices.json").read_text())
    date.fromisoformat(prices["as_of"])
    assert prices["source"]
    readme = (DEPLOY / "README.md").read_text()
    for kind, price in prices["prices"].items():
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{kind}`"))
        on_demand, spot = (cost.price(kind, spot)[0] for spot in (False, True))
        figures = f"${on_demand} | ${spot} | about ${prices['published'][kind]:.2f}"
        assert row == f"| `{kind}`, {price['machine_type']} | {figures} |"
