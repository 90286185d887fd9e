import pytest

from lib.sweeps.storage.store import Store


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results.sqlite")
