"""Shared by the tests of deploy/: a clone in a scratch folder, a fake gcloud, and a folder that acts as the machine."""

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"

# Programs on the machine: uv makes an environment whose fake python answers for the two modules called there.
UV = """#!/usr/bin/env bash
echo "uv $*" >>"$FAKE_DIR/remote"
case $1 in
  python) echo /usr/bin/python3.12 ;;
  venv) mkdir -p "${*: -1}/bin" && cp "$FAKE_DIR/bin/venv-python" "${*: -1}/bin/python" ;;
esac
"""
PYTHON = """#!/usr/bin/env bash
case $* in
  *secrets*) echo "secret-$RANDOM$RANDOM" ;;
  *lib.cli.record*)
    echo "measuring" && echo run >>"$FAKE_DIR/recordings"
    while [ -e "$FAKE_DIR/slow" ]; do sleep 0.05; done
    if [ -e "$FAKE_DIR/broken" ]; then echo "no room" && exit 1; fi
    if [ -e "$FAKE_DIR/too-long" ]; then echo '{"recorded": 1}' >"${*: -1}" && echo "the time is up" && exit 3; fi
    echo '{"recorded": 1}' >"${*: -1}" && echo "all measured" ;;
  *lib.cli.store*) echo '{"rows": 1}' >"${*: -1}" ;;
esac
"""
RECORDER = '#!/usr/bin/env bash\necho "${0##*/} $*" >>"$FAKE_DIR/remote"\n'
DRIVER = (
    '#!/usr/bin/env bash\necho nvidia-smi >>"$FAKE_DIR/remote"\ncase "$*" in *driver_version*)\n'
    'cat "$FAKE_DIR/driver" 2>/dev/null || echo 580.95.05; exit ;; esac\n'
    '[ ! -e "$FAKE_DIR/no-driver" ] && echo "GPU 0: NVIDIA L4"\n'
)


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def make_clone(folder: Path) -> Path:
    """Make a small git clone with all that deploy/ copies or reads. Made once; each test takes a copy."""
    folder.mkdir()
    shutil.copytree(DEPLOY, folder / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("notebooks", "recorded"):
        (folder / name).mkdir()
    (folder / "notebooks" / "claims.py").write_text("# claims\n")
    shutil.copy(ROOT / "recorded" / "devices.json", folder / "recorded")
    for file in (ROOT / "mnist_training.py", ROOT / ".gitignore", *ROOT.glob("requirements*.txt")):
        shutil.copy(file, folder)
    subprocess.run(["git", "init", "--quiet", "--template="], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    return folder


@dataclass(frozen=True)
class Cloud:
    clone: Path
    state: Path
    port: int

    @property
    def home(self) -> Path:
        return self.state / "home"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.state / 'cli'}:{os.environ['PATH']}",
            "FAKE_DIR": str(self.state),
            "DEPLOY_TRIES": "2",
            "DEPLOY_PAUSE_S": "0",
            "GPU_WAIT_S": "0",
            "START_WAIT_S": "1",
            "MARIMO_PORT": str(self.port),
        }

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.clone / "deploy" / "gcp"), *words],
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *words: str, fails: bool = False) -> str:
        """Run deploy/gcp and return its output; check its exit status."""
        with self.start(*words) as process:
            said, _ = process.communicate(timeout=60)
        assert (process.returncode != 0) == fails, said
        return said

    def fail(self, pattern: str, how: str) -> None:
        with (self.state / "failures").open("a") as file:
            file.write(f"{pattern}\t{how}\n")

    def rows(self, kind: str) -> list[str]:
        file = self.state / kind
        return file.read_text().splitlines() if file.exists() else []

    def calls(self, words: str) -> list[str]:
        return [call for call in self.rows("calls") if words in call]

    def set(self, name: str, text: str) -> None:
        (self.state / name).write_text(text)


@contextmanager
def lending(folder: Path, clone: Path, like: Cloud | None = None) -> Iterator[Cloud]:
    """Provide a cloud; `like` copies the machine, its home folder and the other resources from another cloud."""
    state = folder / "cloud"
    for name in ("home", "cli", "bin"):
        (state / name).mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "fake_gcloud", state / "cli" / "gcloud")
    executable(state / "bin" / "uv", UV)
    executable(state / "bin" / "venv-python", PYTHON)
    executable(state / "bin" / "nvidia-smi", DRIVER)
    for name in ("systemctl", "loginctl", "journalctl", "sudo"):
        executable(state / "bin" / name, RECORDER)
    for name, text in (
        ("account", "me@example.com\n"),
        ("project", "my-project\n"),
        ("quotas", "GPUS_ALL_REGIONS,1.0,0.0\n"),
        ("quotas-us-central1", "NVIDIA_L4_GPUS,1.0,0.0\nC3_CPUS,24.0,0.0\n"),
        ("failures", ""),
        ("calls", ""),
    ):
        (state / name).write_text(text)
    if like:
        for name in ("machines", "disks", "rules"):
            shutil.copy(like.state / name, state / name)
        shutil.copytree(like.home, state / "home", dirs_exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as marimo:  # answers in place of the started service
        yield Cloud(shutil.copytree(clone, folder / "clone"), state, marimo.getsockname()[1])


def finished(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the caller checks its exit status."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)


def one_sentence(said: str, *words: str) -> None:
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    assert "xpected" in said
    for word in words:
        assert word in said, said
