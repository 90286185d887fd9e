"""A port or a notebook that cannot be served is refused in one sentence, before anything is imported."""

import socket

import pytest

from lib.cli import launch


@pytest.mark.parametrize("name", ["notebooks/nothing.py", "lib/pages/mnist_training.py", "../elsewhere.py"])
def test_only_the_projects_notebooks_are_opened(name):
    assert (
        "expected one of mnist_training.py, notebooks/backend_race.py, notebooks/anatomy_of_a_step.py"
        in launch.notebook_problem(name)
    )
    assert launch.notebook_problem("notebooks/backend_race.py") == ""


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_a_port_that_cannot_be_is_refused(port):
    assert launch.port_problem(port) == f"port: expected 1 to 65535, got {port}; choose another, for example PORT=2718"


def test_a_port_is_refused_as_long_as_it_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"{port} cannot be used" in launch.port_problem(port)
    assert launch.port_problem(port) == ""


def test_marimos_options_are_not_for_the_class(capsys):
    with pytest.raises(SystemExit):
        launch.main(["run", "--sandbox"])
    assert "expected the options above, got --sandbox" in capsys.readouterr().err
