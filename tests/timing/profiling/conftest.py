import pytest

from lib.model.data.mnist import Data
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject


@pytest.fixture
def subject(small_data: Data) -> Subject:
    return Subject(Network((16,)), 32, small_data, "cpu")
