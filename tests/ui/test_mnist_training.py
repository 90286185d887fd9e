# pyright: reportArgumentType=false
"""The notebook as an app, as a script and as an export; and its controls without a browser."""

import importlib
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest

import mnist_training
from lib.labs import mnist_training as page
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.data.prepared import DataSummary, Prepared
from lib.sweeps.experiments import mnist_training as experiments
from lib.sweeps.experiments import results as results_module
from lib.sweeps.experiments.mnist_training import experiment_on
from lib.sweeps.workers.messages import TrainingFailed
from lib.ui import lab as lab_module
from tests import made
from tests.browser import HEAVY
from tests.conftest import ROOT
from tests.hiding import hiding

# The smallest settings that still run every experiment.
QUICK = dict(
    parse_qsl(
        "rate.epochs=1&rate.size=4096&rate.count=2&size.epochs=1&size.sizes=2048,4096"
        "&depth.epochs=1&depth.size=4096&depth.networks=128,256&backend.epochs=2&backend.size=4096"
        "&search.count=16&search.epochs=1&search.sizes=4096&search.widths=16,32&search.depths=1"
    )
)


def asked(lab, prefix):
    panel, declared = lab.controls(prefix), page.PANELS[prefix]
    return made.jobs(prefix)(declared.checked(prefix, panel.value))


def answer_of(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    options = {"cwd": ROOT, "env": os.environ | environment, "timeout": 150}
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def output_of(cache: Path, *command: str) -> str:
    arguments = [word for name, value in QUICK.items() for word in (f"--{name}", value)]
    answer = answer_of(sys.executable, *command, *arguments, **hiding(cache, *HEAVY))
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    return answer.stdout


@pytest.mark.release
@pytest.mark.slow
def test_the_notebook_runs_as_a_script(tmp_path):
    text = output_of(tmp_path, "mnist_training.py")
    for name in ("learning-rate", "batch-size", "depth", "backend"):
        assert f"\n{name}\n" in text
    for words in ("was best", "Best of 16", "fastest epochs", "parameters", "times as long", "NumPy"):
        assert words in text


@pytest.mark.release
@pytest.mark.slow
def test_the_notebook_exports_to_html(tmp_path):
    output_of(tmp_path, "-m", "marimo", "export", "html", "mnist_training.py", "-o", str(tmp_path / "page.html"), "--")
    content = (tmp_path / "page.html").read_text()
    for words in ("was best", "Best of 16", "data-spec"):
        assert words in content
    assert "Traceback" not in content
    assert re.search(r'class=[\\"]+lab-result', content)


def test_a_section_starts_when_near_or_if_the_client_never_reports(lab, monkeypatch, shown):
    monkeypatch.setattr(lab_module, "streaming", lambda: True)
    here = lab(**QUICK)
    panels = {prefix: here.controls(prefix) for prefix in ("rate", "size", "depth")}
    assert "rate" in here.page.in_sight
    mnist_training.hidden_layers.run(lab=here, depth=panels["depth"])
    assert 'data-out-of-sight="depth"' in shown[-1]
    here.page.come_into_sight(["depth", "no such section"])
    mnist_training.hidden_layers.run(lab=here, depth=panels["depth"])
    assert "data-out-of-sight" not in shown[-1]
    monkeypatch.setattr(lab_module, "SIGHT_S", 0.01)
    silent = lab(**QUICK).page
    silent._silent.join()
    assert set(page.PANELS) <= silent.in_sight


@pytest.mark.slow
def test_an_edited_last_cell_is_trained(lab, monkeypatch, shown, tmp_path):
    here = lab(**{"your.epochs": "1", "your.size": "2048"})
    text = Path(mnist_training.__file__).read_text(encoding="utf-8").replace("Network((256,))", "Network((16,))")
    edited = tmp_path / "edited_notebook.py"
    edited.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("edited_notebook").your_experiment.run(lab=here, your=here.controls("your"))
    results = here.page.sections["your"].drawing._told
    assert results.labels == ("16", "64→64")
    assert here.inside.best is results.best() is not None
    assert "lab-figure" in shown[-1]


def test_the_defaults_match_the_articles(lab):
    here = lab()
    rates, sizes, depths = (asked(here, prefix) for prefix in ("rate", "size", "depth"))
    assert [item.training.learning_rate for item in rates.items] == [0.001, 0.01, 0.1, 1.0]
    assert [item.training.batch_size for item in sizes.items] == [1, 32, 256]
    assert depths.labels == ("128", "256", "128→64", "256→128→64")
    assert {item.training.epochs for e in (rates, sizes, depths) for item in e.items} == {3}
    assert not here.page.address.problems


def test_the_address_restores_controls_and_reports_unusable_settings(lab):
    rate = {"rate.range": "0.01,10", "rate.epochs": "7", "rate.hidden": "256, 64", "rate.backend": "numpy"}
    here = lab(**rate, **{"size.sizes": "8,4096"})
    values = here.controls("rate").value
    assert [values[name] for name in ("epochs", "hidden", "backend")] == [7, "256, 64", "numpy"]
    assert tuple(values["range"]) == (0.01, 10.0)
    assert here.controls("size").value["sizes"] == [8, 4096]
    bad = lab(**{"rate.epochs": "many", "size.sizes": "3", "rate.range": "1,0.01", "depth.backend": "abacus"})
    address = bad.page.address
    address.check(bad.page.settings)
    assert len(address.problems) == 4
    assert all("expected" in problem for problem in address.problems)
    digits = Facts("scikit-learn digits", "0", "These are …, not MNIST: no connection.")
    title = page.title(address, digits, "Not saved.")
    for words in ("rate.epochs=many", "These are …, not MNIST: no connection", "Not saved."):
        assert words in title, "before any control is made"
    assert bad.controls("rate").value["epochs"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("shown")
def test_the_title_learns_the_images_before_the_next_frame(lab, monkeypatch):
    said, here = [], lab(True, **QUICK)
    monkeypatch.setattr(lab_module, "shared_frame", lambda *_: said.append("frame") or ("", ""))
    monkeypatch.setattr(here._title, "knows", lambda results: said.append(results.data.source))
    mnist_training.learning_rate.run(lab=here, rate=here.controls("rate"))
    deadline = time.monotonic() + 60
    while set(said) <= {"frame"} and time.monotonic() < deadline:
        time.sleep(0.05)
    known = next(place for place, one in enumerate(said) if one != "frame")
    here.page.close()
    assert said[known : known + 2] == [said[known], "frame"]


def test_a_moved_control_is_saved_in_the_address_but_a_press_is_not(lab, monkeypatch):
    here, saved = lab(), []
    monkeypatch.setattr(here.page.address, "save", lambda prefix, values: saved.append((prefix, values)))
    panel = here.controls("rate")
    panel._update({"epochs": 4, "again": 1})  # a slider sends its position
    ((prefix, values),) = saved
    assert (prefix, values["epochs"]) == ("rate", 5)
    assert "again" not in values
    here.page.close()


@pytest.mark.parametrize(("values", "wanted"), [({"hidden": "128, x"}, "“x”"), ({"range": [1.0, 1.0]}, "range")])
def test_bad_controls_are_reported_in_the_cell(lab, shown, values, wanted):
    here = lab()
    panel = here.controls("rate")
    panel._value = panel.value | values  # a value that no browser sends
    mnist_training.learning_rate.run(lab=here, rate=panel)
    assert wanted in shown[-1]
    assert 'role="alert"' in shown[-1]
    assert "How many rates" in shown[-1], "the controls stay"


def test_a_failure_is_shown_in_the_cell(lab, monkeypatch, shown):
    here = lab(**QUICK)

    def broken(*_arguments):
        raise TrainingFailed("The worker process ended during training. Press “Run again”.")
        yield

    monkeypatch.setattr(results_module, "updates", broken)
    mnist_training.learning_rate.run(lab=here, rate=here.controls("rate"))
    assert "lab-failed" in shown[-1]
    assert "Press “Run again”" in shown[-1]


def test_missing_backends_give_reason_and_remedy(monkeypatch):
    experiment = made.backends(batch_size=32, epochs=2, rate=0.1, hidden="128")
    card, torch = Runtime(device="gpu"), Runtime("torch")
    for gaps in ([], [(card, "no NVIDIA driver", "install one"), (torch, "not installed", "make torch")]):
        monkeypatch.setattr(experiments, "missing_backends", lambda gaps=gaps: gaps)
        shown = page.missing(SimpleNamespace(data=None), experiment, None)
        assert shown.count("<li>") == len(gaps)
        assert all(f"<b>{runtime.label}</b>: {reason}; {remedy}." in shown for runtime, reason, remedy in gaps)
        assert "published" in shown
    other = made.backends(batch_size=32, epochs=2, rate=0.1, hidden="64")
    assert "published" not in page.missing(SimpleNamespace(data=None), other, None), "of another network"


def test_backends_unused_on_own_data_are_named(monkeypatch):
    own = Prepared("0" * 32, DataSummary("pets", 4, ("cat", "dog"), 60, 20, 20, 0.5, "by a test", zeros=0.25))
    monkeypatch.setattr(experiments, "missing_backends", list)
    monkeypatch.setattr(page, "usable_runtimes", lambda: [Runtime("numpy"), Runtime("numba")])
    on_own = experiment_on(own, made.learning_rate((0.1,), epochs=2, batch_size=8, hidden="4"))
    shown = page.missing(SimpleNamespace(data=own), on_own, None)
    assert shown.count("<li>") == 1
    assert "<b>Numba, zeros left out</b>: expected at least 75.0\u202f% of the inputs to be zero" in shown
    assert "got 25.0\u202f%; choose another backend" in shown


def test_a_busy_port_is_reported_in_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = answer_of(sys.executable, "-m", "lib.cli.launch", "edit", "--port", str(port))
    assert answer.returncode == 1
    assert f"{port} cannot be used" in answer.stderr
    assert "choose another" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_make_class_runs_the_launcher():
    answer = answer_of("make", "--dry-run", "class", "PORT=2750", "HEADLESS=1")
    assert "lib.cli.launch run --port 2750 --headless 1" in answer.stdout


def test_locks_have_all_direct_dependencies_and_no_addresses():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "requirements.txt").read_text()
    for need in project["dependencies"]:
        assert re.search(rf"^{re.split('[><=;]', need)[0].strip()}==", locked, re.M), need
    for file in ROOT.glob("requirements*.txt"):
        assert "://" not in file.read_text()
    assert os.path.getsize(ROOT / "requirements.txt") < 2**20
