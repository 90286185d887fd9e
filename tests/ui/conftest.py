import pytest

from tests import made


@pytest.fixture
def lab(engine, tmp_path, monkeypatch):
    """`lab(**settings)` opens the first notebook's lab with these settings in its address."""
    return lambda streams=False, **settings: made.first_lab(monkeypatch, engine, tmp_path, streams, **settings)
