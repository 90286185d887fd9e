# pyright: reportArgumentType=false
"""The notebook as an app, as a script and as an export, and its controls without a browser."""

import os
import re
import subprocess
import sys

import marimo as mo
import pytest

from lib.backends.registry import Runtime
from lib.cli import launch
from lib.data.mnist import Facts
from lib.data.own.prepared import About, Prepared
from lib.experiments import mnist_training as experiments
from lib.experiments import runs
from lib.experiments.own_data import experiment_on
from lib.experiments.results import Results
from lib.pages import mnist_training as page
from lib.pages import predict_first, server, streaming
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.storage.store import Store
from lib.workers.messages import WorkerDied
from tests.browser import HEAVY
from tests.conftest import ROOT
from tests.hiding import hiding

# The smallest settings that still run every experiment.
QUICK = {
    "rate.epochs": "1",
    "rate.size": "4096",
    "rate.count": "2",
    "size.epochs": "1",
    "size.sizes": "2048,4096",
    "depth.epochs": "1",
    "depth.size": "4096",
    "depth.networks": "128,256",
    "backend.epochs": "2",
    "backend.size": "4096",
    "search.count": "16",
    "search.epochs": "1",
    "search.sizes": "4096",
    "search.widths": "16,32",
    "search.depths": "1",
}


def arguments(settings=QUICK):
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


@pytest.fixture
def stage(engine, tmp_path):
    return Stage(engine, Store(tmp_path / "results.sqlite"))


@pytest.mark.release
@pytest.mark.slow
def test_as_a_script(tmp_path):
    answer = subprocess.run(
        [sys.executable, "mnist_training.py", *arguments()],
        cwd=ROOT,
        env=os.environ | hiding(tmp_path, *HEAVY),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    for name in ("learning-rate", "batch-size", "depth", "backend"):
        assert f"\n{name}\n" in answer.stdout
    for words in ("was best", "Best of 16", "fastest epochs", "parameters", "times as long", "NumPy"):
        assert words in answer.stdout
    assert "Traceback" not in answer.stderr


@pytest.mark.release
@pytest.mark.slow
def test_as_an_export(tmp_path):
    path = tmp_path / "page.html"
    answer = subprocess.run(
        [sys.executable, "-m", "marimo", "export", "html", "mnist_training.py", "-o", str(path), "--", *arguments()],
        cwd=ROOT,
        env=os.environ | hiding(tmp_path, *HEAVY),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    content = path.read_text()
    assert "was best" in content
    assert "Best of 16" in content
    assert "data-spec" in content
    assert "Traceback" not in content
    assert re.search(r'class=[\\"]+lab-result', content)
    assert not re.search(r'class=[\\"]+lab-menu', content), "a file has no kernel that could make files"


@pytest.mark.slow
def test_one_cell_by_name(engine, stage):
    """The notebook's own cell, with controls made here."""
    import mnist_training

    panel = page.rate_panel(Address(arguments=QUICK), stage)
    best = []
    mnist_training.rate_experiment.run(
        own=None,
        rate_form=None,
        rate_panel=panel,
        rate_stage=stage,
        set_best=best.append,
        set_known=lambda _: None,
        store=stage.store,
        viewer=predict_first.Viewer(Address(), print, []),
    )
    assert page.rate_experiment(panel.value).labels == ("0.001", "1")
    assert [item.training.learning_rate for item in best] == [1.0]


def test_the_defaults_are_the_articles(stage):
    address = Address()
    rates = page.rate_experiment(page.rate_panel(address, stage).value)
    assert [item.training.learning_rate for item in rates.items] == [0.001, 0.01, 0.1, 1.0]
    sizes = page.size_experiment(page.size_panel(address, stage).value)
    assert [item.training.batch_size for item in sizes.items] == [1, 32, 256]
    depths = page.depth_experiment(page.depth_panel(address, stage).value)
    assert depths.labels == ("128", "256", "128→64", "256→128→64")
    assert {item.training.epochs for e in (rates, sizes, depths) for item in e.items} == {3}
    assert not address.problems


def test_the_address_restores_the_controls_and_names_what_it_cannot_use(stage):
    given = {
        "rate.range": "0.01,10",
        "rate.epochs": "7",
        "rate.hidden": "256, 64",
        "rate.backend": "numpy",
        "size.sizes": "8,4096",
    }
    address = Address(arguments=given)
    values = page.rate_panel(address, stage).value
    assert (tuple(values["range"]), values["epochs"], values["hidden"], values["backend"]) == (
        (0.01, 10.0),
        7,
        "256, 64",
        "numpy",
    )
    assert page.size_panel(address, stage).value["sizes"] == [8, 4096]
    bad = Address(
        arguments={"rate.epochs": "many", "size.sizes": "3", "rate.range": "1,0.01", "depth.backend": "abacus"}
    )
    bad.check(page.settings())
    assert page.rate_panel(bad, stage).value["epochs"] == 3
    page.size_panel(bad, stage)
    page.depth_panel(bad, stage)
    assert len(bad.problems) == 4
    assert all("expected" in problem for problem in bad.problems)
    shown = page.title(bad, Facts("MNIST", ""), "", mo.Html("")).text
    assert "rate.epochs=many" in shown


def test_an_equal_state_is_not_set_again(monkeypatch):
    """The title ran again at the end of every run, for each viewer of a class."""
    told = []
    monkeypatch.setattr(mo, "state", lambda first: (lambda: told[-1] if told else first, told.append))
    get, put = page.state(("MNIST", ""))
    for value in (("MNIST", ""), ("MNIST", "disk full"), ("MNIST", "disk full"), ("MNIST", "")):
        put(value)
        assert get() == value
    assert told == [("MNIST", "disk full"), ("MNIST", "")]


def test_changes_are_written_into_the_address():
    class Parameters(dict):
        def to_dict(self):
            return dict(self)

    written = Parameters({"rate.epochs": "4"})
    save = Address(written).save("rate")
    save({"epochs": 5, "range": [0.001, 10.0], "hidden": "128"})
    assert written == {"rate.epochs": "5", "rate.range": "0.001,10", "rate.hidden": "128"}


def test_offline_digits_are_announced(stage):
    digits = Facts("scikit-learn digits", "0", "This is not MNIST but …: no connection.")
    shown = page.title(Address(), digits, "Not saved.", mo.Html("")).text
    assert "This is not MNIST" in shown
    assert "Not saved." in shown
    assert "no connection" in shown


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"hidden": "128, x"}, "“x”"),
        ({"hidden": "0"}, "got 0"),
        ({"hidden": "5000"}, "got 5000"),
        ({"range": [1.0, 1.0]}, "range"),
    ],
)
def test_bad_controls_show_a_sentence_in_the_cell(stage, monkeypatch, values, wanted):
    shown = []
    monkeypatch.setattr(streaming.mo.output, "replace", shown.append)
    usual = page.rate_panel(Address(), stage).value
    streaming.show(stage, lambda: page.rate_experiment(usual | values), mo.Html("controls"))
    assert wanted in shown[-1].text
    assert 'role="alert"' in shown[-1].text
    assert "controls" in shown[-1].text, "the controls stay"


def test_a_failure_is_shown_in_the_cell(stage, monkeypatch):
    shown = []
    monkeypatch.setattr(streaming.mo.output, "replace", shown.append)

    def broken(*_arguments):
        raise WorkerDied("The worker process ended while it trained. Press “Run again”.")
        yield

    monkeypatch.setattr(runs, "updates", broken)
    streaming.show(
        stage, lambda: experiments.learning_rate((0.1, 1.0), epochs=1, batch_size=4096, hidden="8"), mo.Html("")
    )
    assert "lab-failed" in shown[-1].text
    assert "Press “Run again”" in shown[-1].text


@pytest.mark.parametrize(
    "gaps",
    [
        [],
        [(Runtime(device="gpu"), "no NVIDIA driver", "install one"), (Runtime("torch"), "not installed", "make torch")],
    ],
)
def test_missing_backends_give_reason_and_remedy(monkeypatch, gaps):
    experiment = experiments.backends(batch_size=32, epochs=2, rate=0.1, hidden="128")
    monkeypatch.setattr(experiments, "missing_backends", lambda: gaps)
    shown = page.missing_backends(experiment, Results(experiment.items, experiment.labels))
    assert shown.count("<li>") == len(gaps)
    assert all(f"<b>{runtime.label}</b>: {reason}; {remedy}." in shown for runtime, reason, remedy in gaps)
    assert "published" in shown


def test_what_is_not_used_on_somebodys_data_is_named_below_the_bars(monkeypatch):
    own = Prepared("0" * 32, About("pets", 4, ("cat", "dog"), 60, 20, 20, 0.5, "by a test", zeros=0.25))
    monkeypatch.setattr(experiments, "missing_backends", list)
    monkeypatch.setattr(page, "usable_runtimes", lambda: [Runtime("numpy"), Runtime("numba")])
    made = experiment_on(own, experiments.learning_rate((0.1,), epochs=2, batch_size=8, hidden="4"))
    shown = page.missing_backends(made, Results(made.items, made.labels), own)
    assert shown.count("<li>") == 1
    assert "<b>Numba, zeros left out</b>: expected at least 75.0\u202f% of the inputs to be zero" in shown
    assert "got 25.0\u202f%; choose another backend" in shown


def test_a_busy_port_is_one_sentence():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = subprocess.run(
            [sys.executable, "-m", "lib.cli.launch", "edit", "--port", str(port)],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert answer.returncode == 1
    assert f"{port} cannot be used" in answer.stderr
    assert "choose another" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "expected 1 to 65535" in launch.port_problem(70_000)
    assert "--headless" in server.editor_words("127.0.0.1", 2718, True)


def test_make_knows_its_commands():
    answer = subprocess.run(
        ["make", "--dry-run", "class", "PORT=2750", "HEADLESS=1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "lib.cli.launch run --port 2750 --headless 1" in answer.stdout


def test_locks_hold_no_addresses_and_all_direct_dependencies():
    import re
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = (ROOT / "requirements.txt").read_text()
    for need in project["dependencies"]:
        assert re.search(rf"^{re.split('[><=;]', need)[0].strip()}==", locked, re.M), need
    for file in ROOT.glob("requirements*.txt"):
        assert "://" not in file.read_text()
    assert os.path.getsize(ROOT / "requirements.txt") < 2**20
