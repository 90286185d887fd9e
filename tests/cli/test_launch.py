"""A port or a notebook that cannot be served is refused in one sentence, before anything is imported."""

import socket

import pytest

from benchmarks.browser import free_port
from lib import ROOT
from lib.cli import launch
from lib.site import editor, server
from lib.site.access import MAX_VIEWERS
from lib.sweeps.workers.queue import MAX_WAITING
from lib.ui.notebooks import SERVED


@pytest.mark.parametrize("name", ["notebooks/nothing.py", "lib/labs/mnist_training.py", "../elsewhere.py"])
def test_only_the_projects_notebooks_are_opened(name, capsys):
    with pytest.raises(SystemExit):
        launch.main(["app", "--notebook", name])
    said = capsys.readouterr().err
    assert f"invalid choice: '{name}' (choose from " in said
    assert "notebooks/inside_a_step.py" in said


def test_a_former_notebook_name_opens_its_replacement(monkeypatch):
    opened = []
    for name in (SERVED, "PYTHONPATH"):  # `launch` sets them
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(editor, "serve_editor", lambda *given: opened.append(given[3]))
    for name in ("anatomy_of_a_step", "traps"):
        assert launch.main(["edit", "--port", str(free_port()), "--notebook", f"notebooks/{name}.py"]) == 0
    assert opened == ["notebooks/inside_a_step.py"] * 2


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_an_impossible_port_is_refused(port):
    assert launch.port_problem(port) == f"port: expected 1 to 65535, got {port}; choose another, for example PORT=2718"


def test_a_port_is_refused_while_it_is_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"{port} cannot be used" in launch.port_problem(port)
    assert launch.port_problem(port) == ""


def test_a_class_does_not_accept_marimos_options(capsys):
    with pytest.raises(SystemExit):
        launch.main(["run", "--sandbox"])
    assert "expected the options above, got --sandbox" in capsys.readouterr().err


@pytest.fixture
def launched(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in (SERVED, "PYTHONPATH"):  # `launch` sets them
        monkeypatch.setenv(name, "")
    monkeypatch.delenv("PASSWORD_FILE", raising=False)
    monkeypatch.setattr(server, "serve_class", lambda *_: pytest.fail("expected a refusal, got a server"))

    def launched(*words: str) -> str:
        assert launch.main([*words, "--port", str(free_port())]) == 1
        return capsys.readouterr().err

    return launched


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--viewers", "0"), "Viewers: expected 1 to 10,000, got 0"),
        (("--runs", "0"), "Runs: expected 1 to 1,000, got 0"),
        (("--password-file", "nowhere"), "Password file: expected a text file, but nowhere cannot be read"),
        (("--public-host", "a/b", "--class-link"), "Public host: expected a name such as class.example.org, got a/b"),
        (("--public-host", "a.b"), "expected --password-file or --class-link to serve other machines, got neither for"),
        (("--host", "0.0.0.0"), "expected --password-file or --class-link to serve other machines, got neither for"),
    ],
)
def test_bad_class_options_are_reported_in_one_sentence(launched, words, said):
    assert said in launched("run", *words)


def test_the_password_file_may_come_from_the_environment(launched, monkeypatch):
    monkeypatch.setenv("PASSWORD_FILE", "nowhere")
    assert "but nowhere cannot be read" in launched("run")


def test_the_editor_refuses_options_of_a_class(capsys):
    with pytest.raises(SystemExit):
        launch.main(["edit", "--class-link", "--viewers", "3"])
    assert "expected --class-link and --viewers with run, got edit" in capsys.readouterr().err


def test_help_names_the_usual_limits(capsys):
    with pytest.raises(SystemExit):
        launch.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"later arrivals wait ({MAX_VIEWERS})" in said
    assert f"most waiting runs per viewer ({MAX_WAITING})" in said
