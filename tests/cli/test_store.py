"""The store as a file and back, by hand; an empty export never replaces a good file."""

import sqlite3

import pytest

from lib.cli.store import main
from lib.sweeps.storage.store import Store, export_to
from tests.sweeps.storage.test_export import filled


def test_export_and_import_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    filled(Store())
    assert main(["export", str(tmp_path / "all.json")]) == 0
    assert main(["import", str(tmp_path / "all.json")]) == 0
    assert "3 rows read" in capsys.readouterr().out
    assert main(["import", str(tmp_path / "nothing.json")]) == 1
    assert "correct the name" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "no folder" / "all.json")]) == 1


@pytest.mark.parametrize("fault", ["nothing kept", "damaged", "newer", "no folder"])
def test_an_empty_export_does_not_replace_a_good_file(tmp_path, monkeypatch, capsys, fault):
    monkeypatch.setenv("MNIST_CACHE_DIR", "/proc/nowhere" if fault == "no folder" else str(tmp_path))
    path, good = tmp_path / "all.json", tmp_path / "good.sqlite"
    export_to(path, filled(Store(good)))
    before = path.read_bytes()
    if fault == "damaged":
        (tmp_path / "results.sqlite").write_text("no database" * 100)
    if fault == "newer":
        with sqlite3.connect(tmp_path / "results.sqlite") as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
    assert main(["export", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert {
        "nothing kept": "none are stored",
        "damaged": "a new one was started; ",
        "newer": "update this program",
        "no folder": "set MNIST_CACHE_DIR",
    }[fault] in told.err
    assert told.err.count("\n") == 1
    assert path.read_bytes() == before
