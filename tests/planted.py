"""Plant faults that the suite must find, to measure how good the suite is.

    python -m tests.planted --list
    python -m tests.planted --run [--all] [NAME ...]

The faults were chosen without reading the tests: at least one in each package, of the kinds that reviews of this
project found. `--run` plants each in a copy of the working tree and runs the tests of its package. Faults that no test
there catches are planted together; each is then planted alone, for the tests that failed. A fault counts as caught if a
test fails twice with it and passes without it. `--all` judges `make test-all` instead of `make test`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WANTED = 27  # of thirty, by `make test`
USUAL, EVERYTHING = "not release", "release or not release"  # the tests of `make test`, and of `make test-all`
_FAILED = "PLANTED_FAILED"  # names the file in which this module, as a pytest plugin, records failed tests

# This test fails with every fault, because it looks for the text that the fault replaces.
_NOT_OF_THEM = ("--deselect=tests/test_suite.py::test_the_text_of_a_planted_fault_occurs_once",)


@dataclass(frozen=True)
class Fault:
    """A text that occurs once in a file of the project, and a careless maintainer's version of it."""

    name: str
    file: str
    old: str
    new: str
    harm: str

    def plant(self, tree: Path) -> None:
        path = tree / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(
                f"{self.name}: expected its text once in {self.file}, got it {text.count(self.old)} times; move it to"
                " where the code is now"
            )
        path.write_text(text.replace(self.old, self.new))


FAULTS = (
    Fault(
        "widest-layer-refused",
        "lib/model/spec.py",
        "    if not low <= whole <= high:",
        "    if not low <= whole < high:",
        "A layer of 4,096 neurons is refused by a sentence that says 1 to 4,096 are expected.",
    ),
    Fault(
        "sentence-loses-its-capitals",
        "lib/formatting.py",
        'text[:1].upper() + text[1:]) + "."',
        'text.capitalize()) + "."',
        "Error sentences come in lower case: names of libraries, variables and folders in them are wrong.",
    ),
    Fault(
        "once-with-a-lock-of-its-own",
        "lib/once.py",
        "        with self._guard:",
        "        with threading.Lock():",
        "All viewers who ask at the same moment compute the answer, and may hold different objects of what should"
        " be one, such as the class or the calibrations.",
    ),
    Fault(
        "throttling-in-microseconds",
        "lib/model/hardware/nvidia.py",
        "answer.violationTime / 1e9 for cause",
        "answer.violationTime / 1e6 for cause",
        "A card is said to have been slowed for a thousand times as long as it was, so good times are marked as "
        "disturbed.",
    ),
    Fault(
        "part-validated-on-training-images",
        "lib/model/data/mnist.py",
        '"validation": slice(N_TRAIN, N_TRAIN + n_validation)',
        '"validation": slice(n_train, n_train + n_validation)',
        "The accuracy that a browser shows is of images of the training set, not of the held-out ones.",
    ),
    Fault(
        "own-rows-not-cut-off",
        "lib/model/data/prepared.py",
        "    return np.clip((x / 2 - low) / (high - low), 0.0, 1.0).astype(np.float32)",
        "    return ((x / 2 - low) / (high - low)).astype(np.float32)",
        "Validation and test rows beyond the training range get inputs far outside of 0 to 1, and accuracies with"
        " them are wrong.",
    ),
    Fault(
        "last-short-slice-not-evaluated",
        "lib/model/backends/with_jax.py",
        "    return total if whole == len(x) else jax.tree.map(jnp.add, total, function(x[whole:], y[whole:]))",
        "    return total",
        "With numbers of validation rows that slices do not divide, JAX's accuracy and loss are far too low.",
    ),
    Fault(
        "stack-shares-one-mean-loss",
        "lib/model/backends/stacked.py",
        "        return jnp.sum(losses), losses  # a network's gradient depends only on its own loss",
        "        return jnp.mean(losses), losses  # a network's gradient depends only on its own loss",
        "Networks that are trained together learn as many times slower as there are of them, and a sweep names "
        "the wrong learning rate as the best.",
    ),
    Fault(
        "browser-repeats-the-first-epoch",
        "lib/model/backends/webgpu/__init__.py",
        "training.seed, epoch) for epoch in range(epochs)]",
        "training.seed, 0) for _ in range(epochs)]",
        "A browser sees the batches in the same order in every epoch, so its curve is not the one that all other "
        "backends draw.",
    ),
    Fault(
        "block-ends-before-the-wait",
        "lib/timing/measurement.py",
        "        return self.clock() if self.wait_in_block else after",
        "        return after",
        "Times of libraries that return at once are times of the call alone: a card looks many times too fast.",
    ),
    Fault(
        "one-sided-median-interval",
        "lib/timing/comparison.py",
        "    n, tail = len(ordered), (1 - coverage) / 2",
        "    n, tail = len(ordered), 1 - coverage",
        "Intervals called 95 % hold only 90 %, so “faster” is said twice as often by chance.",
    ),
    Fault(
        "conformal-rank-one-too-low",
        "lib/timing/prediction/predict.py",
        "    rank = min(len(deviations), int(np.ceil((len(deviations) + 1) * COVERAGE)))",
        "    rank = min(len(deviations), int(np.ceil(len(deviations) * COVERAGE)))",
        "The 90 % intervals of predicted seconds are too narrow, so measured steps lie outside of them too often.",
    ),
    Fault(
        "evaluation-counted-as-busy",
        "lib/timing/profiling/harness.py",
        "            used_s = now_s  # not across an evaluation",
        "                used_s = now_s  # not across an evaluation",
        "Processor time of evaluations is counted into a step, so the anatomy shows no idle time where there is some.",
    ),
    Fault(
        "curve-key-without-versions",
        "lib/sweeps/storage/records.py",
        "            self.versions,\n            source_digest(),",
        "            source_digest(),",
        "After a library is updated, curves and seconds of the old version are served as if they were of the new.",
    ),
    Fault(
        "export-written-in-place",
        "lib/sweeps/storage/store.py",
        "    with replaced(path) as temporary:\n"
        '        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\\n")',
        '    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\\n")',
        "A full disk or a kill during an export leaves half a file in place of the recording that was there.",
    ),
    Fault(
        "cancel-that-came-before",
        "lib/sweeps/workers/queue.py",
        "        if already:\n            call()\n        try:",
        "        try:",
        "A Stop or Ctrl-C that comes just before a training or an export begins is not heard, and it runs to its end.",
    ),
    Fault(
        "cancelled-processes-work-on",
        "lib/sweeps/workers/engine.py",
        "                    if ending and task.asked not in (order, End.STOPPED):",
        "                    if ending and task.asked not in (order, End.STOPPED) and len(team) == 1:",
        "After Stop the processes of a sweep go on with what they do, and keep all cores busy beside the next "
        "measurement.",
    ),
    Fault(
        "disturbed-step-times-preferred",
        "lib/sweeps/storage/records.py",
        "    return [record for record in records if not record.warnings] or records",
        "    return [record for record in records if record.warnings] or records",
        "Where some measurements of a program were disturbed, these alone count, so the slower strategy may be "
        "chosen and calibrations are off.",
    ),
    Fault(
        "loss-averaged-across-the-training",
        "lib/sweeps/experiments/results.py",
        "        means = losses[:full].reshape(-1, width).mean(axis=1, dtype=float)",
        "        means = losses[:full].reshape(width, -1).mean(axis=0, dtype=float)",
        "The drawn loss curve is a flat mix of early and late steps, and shows no learning.",
    ),
    Fault(
        "worst-line-called-best",
        "lib/sweeps/experiments/exported_script.py",
        "line.diverged_step is not None, -reached[line.item.training], float",
        "line.diverged_step is not None, reached[line.item.training], float",
        "The menu “Export” offers the least accurate training first, and leaves the best of many out.",
    ),
    Fault(
        "machine-name-unescaped",
        "lib/labs/which_library/machines.py",
        "<li>{html.escape(line)}</li>",
        "<li>{line}</li>",
        "The name that a pupil's browser gives its GPU is put as HTML into the page of the whole class.",
    ),
    Fault(
        "password-form-unescaped",
        "lib/site/access.py",
        'name="next" value="{html.escape(aim)}">',
        'name="next" value="{aim}">',
        "A crafted link to the password form runs an attacker's script on the page where the class types its password.",
    ),
    Fault(
        "origin-by-its-ending",
        "lib/site/gate.py",
        '        return origin.partition("://")[2].lower() != headers.get("host", "").lower()',
        '        return not origin.lower().endswith(headers.get("host", "").lower())',
        "A page of a site whose name ends like this server's may open its WebSocket and train in a viewer's name.",
    ),
    Fault(
        "memory-of-a-broken-upload",
        "lib/site/gate.py",
        "        try:\n            await self._app(scope, receiving, send)\n        finally:\n    ",
        "        if True:\n            await self._app(scope, receiving, send)\n    ",
        "Each upload that breaks off keeps its reserved memory, until every larger file is refused with 503.",
    ),
    Fault(
        "open-site-behind-a-proxy",
        "lib/site/server.py",
        "(self.password or self.class_link or (is_loopback(host) and not self.public_host))",
        "(self.password or self.class_link or is_loopback(host))",
        "With --public-host a class site is started open to the whole internet, without password or link.",
    ),
    Fault(
        "frame-of-another-target",
        "lib/ui/lab.py",
        "seen = (experiment.target, experiment.draw,",
        "seen = (experiment.draw,",
        "After the target accuracy is moved, chart and sentence of a finished run stay those of the old target, "
        "or of another viewer's.",
    ),
    Fault(
        "copied-link-with-the-token",
        "lib/ui/widgets/copy_link.js",
        '  url.searchParams.delete("access_token");\n',
        "",
        "“Copy link” copies the editor's access token too, and whoever gets the link can run code on the machine.",
    ),
    Fault(
        "minutes-left-in-seconds",
        "lib/cli/precompute.py",
        "    say(time.monotonic() - began, minutes * 60, text)",
        "    say(time.monotonic() - began, minutes, text)",
        "A run of four hours says “at most 4:00 left” and soon “0:00”, as if it were over.",
    ),
)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and _FAILED in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[_FAILED], "a") as file:
            file.write(f"{report.nodeid}\n")


@contextmanager
def copied() -> Iterator[Path]:
    """Copy the files that git tracks, and link the environment that the tests run in."""
    known = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        Path(folder).chmod(0o755)  # some tests run as another user
        tree = Path(folder) / "tree"
        for name in filter(None, known.decode().split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
        yield tree


def failed(tree: Path, *words: str) -> list[str]:
    """Return the tests that fail in a copy, in order of failure."""
    noted = tree.parent / "failed"
    noted.write_text("")
    with (tree.parent / "said").open("w") as said:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.planted", "-p", "no:cacheprovider", *_NOT_OF_THEM, *words],
            cwd=tree,
            env=os.environ | {_FAILED: str(noted)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            check=False,
        )
    return list(dict.fromkeys(noted.read_text().splitlines()))


def first_to_fail(fault: Fault, tests: Sequence[str], select: str) -> str:
    """Return the first of `tests` that fails with the fault and passes without it; empty if there is none."""
    with copied() as sound, copied() as tree:
        fault.plant(tree)
        unsound: list[str] = []
        while found := failed(tree, "-x", "-m", select, *tests, *(f"--deselect={test}" for test in unsound)):
            collects = [] if "::" in found[0] else ["--collect-only"]
            again = ["-m", select, *collects, found[0]]
            if failed(tree, *again) and not failed(sound, *again):
                return found[0]
            unsound.append(found[0])
    return ""


def near(fault: Fault) -> list[str]:
    """Return the test files in the folder that mirrors the fault's, or the nearest parent; its module's file first."""
    mirrored = Path("tests", *Path(fault.file).parts[1:])
    folder = next(one for one in mirrored.parents if any((ROOT / one).glob("test_*.py")))
    files = sorted((ROOT / folder).glob("test_*.py"), key=lambda file: (file.stem != f"test_{mirrored.stem}", file))
    return [str(file.relative_to(ROOT)) for file in files]


def run(faults: Sequence[Fault], select: str) -> dict[str, str]:
    """Return the test that catches each fault, by the fault's name; report each as it is found."""
    found: dict[str, str] = {}

    def look(fault: Fault, tests: Sequence[str], select: str) -> None:
        if test := first_to_fail(fault, tests, select):
            found[fault.name] = test
            print(f"caught {fault.name:34} by {test}", flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda fault: look(fault, near(fault), f"({select}) and not browser"), faults))
        if left := [fault for fault in faults if fault.name not in found]:
            print(f"All tests, with {len(left)} faults planted: {', '.join(fault.name for fault in left)}", flush=True)
            with copied() as tree:
                for fault in left:
                    fault.plant(tree)
                candidates = failed(tree, "-n", "2", "-m", select)
            if candidates:
                list(pool.map(lambda fault: look(fault, candidates, select), left))
    for fault in faults:
        if fault.name not in found:
            print(f"MISSED {fault.name:34} {fault.harm}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults; all of them where none is named")
    parser.add_argument("--list", action="store_true", help="name the faults, one a line")
    parser.add_argument("--run", action="store_true", help="plant them, and report which are caught")
    parser.add_argument("--all", action="store_true", help="by the tests of `make test-all`")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {fault.name for fault in FAULTS}:
        parser.error(f"expected names that --list prints, got {', '.join(sorted(unknown))}")
    faults = [fault for fault in FAULTS if not asked.names or fault.name in asked.names]
    if not asked.run:
        print(*(f"{fault.name:36} {fault.file}" for fault in faults), sep="\n")
        return 0
    n_caught = len(run(faults, EVERYTHING if asked.all else USUAL))
    print(f"{n_caught} of {len(faults)} are caught")
    return 0 if n_caught * len(FAULTS) >= WANTED * len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
