"""PyTorch: recorded operations, ResNet-18 and `DataLoader`, whose workers must end with it."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest

from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network
from lib.timing.prediction import workload
from lib.timing.profiling.harness import Preprocessing, Subject, explained
from lib.timing.profiling.request import NotMeasured, Pipeline, split
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(unavailable(Runtime("torch")) is not None, reason="PyTorch is not installed"),
]


@pytest.fixture
def with_torch():
    from lib.timing.profiling import with_torch

    return with_torch


def test_torchs_operations_are_recorded_with_the_backward_pass(with_torch, subject):
    calls = with_torch.recorded_calls(subject)
    assert 15 <= len(calls) <= 60
    for call in calls:
        call()


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_torchs_experiments_suffice_to_split_a_step(with_torch, subject, monkeypatch, device):
    tensors = with_torch.tensors
    monkeypatch.setattr(with_torch, "torch_device", lambda _: "cpu")
    monkeypatch.setattr(with_torch, "tensors", lambda data, _: tensors(data, "cpu"))
    monkeypatch.setattr(with_torch, "recorded_calls", lambda subject: [subject])
    found = with_torch.experiments("torch", replace(subject, device=device))
    assert [found[name].__name__ for name in found if name.startswith("many")] == ["on_card"] * 2 * (device == "gpu")
    assert split(Runtime("torch", device), {"step": 1.0, "busy": 1.0} | dict.fromkeys(found, 0.1)) is not None


def test_resnet_18_has_the_size_of_its_workload(with_torch):
    model = with_torch.resnet18()
    found = sum(one.numel() for one in model.parameters())
    assert found == 11_689_512, "as torchvision's"
    assert found == pytest.approx(workload.resnet18(1).parameter_bytes / 4, rel=1e-3)
    assert model(with_torch.torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


@pytest.mark.release
def test_a_step_of_resnet_is_measured_or_takes_too_long(with_torch, subject, monkeypatch):
    one = replace(subject, batch_size=1)
    assert [row[0] for row in with_torch.resnet_step(one) if row] == ["resnet", "resnet/first call"]
    monkeypatch.setattr(with_torch, "RESNET_LIMIT_S", 1e-3)
    with pytest.raises(NotMeasured, match="measuring it would take longer than 0 s"):
        list(with_torch.resnet_step(one))


@pytest.mark.release
def test_all_ways_to_launch_a_step_reach_the_same_loss(with_torch, subject, monkeypatch):
    with_torch.torch._dynamo.reset()  # other tests may have compiled the same step
    rows = {row[0]: row[1].median_s for row in with_torch.launches(subject) if row}
    ways = ["eager", "compiled", "reduce-overhead"]
    assert list(rows) == [*ways, *(f"{way}/first call" for way in ways)]
    assert rows["compiled/first call"] > 100 * rows["compiled"], "compiling is no part of a step"
    monkeypatch.setattr(with_torch, "one_compiled_step", lambda model, rate: with_torch.one_step(model, rate / 2))
    with pytest.raises(NotMeasured, match=r"expected the eager loss of \d.\d+, got \d.\d+ with compiled"):
        list(with_torch.launches(subject))


LEFT_S = 15  # PyTorch's workers check for their parent every five seconds


class Damaged(Preprocessing):
    def __call__(self, image):
        raise ValueError("image 0 is damaged")


@pytest.fixture
def opened(with_torch, small_data):
    subject = Subject(Network((4,)), 32, small_data, "cpu")
    return lambda feed, preprocess: with_torch.feed(Pipeline(feed, 640), preprocess, subject)


@pytest.mark.parametrize("name", ["loader-0", "loader-2"])
def test_batches_keep_the_order_and_workers_end_with_the_feed(opened, small_data, name):
    data, before = small_data, {child.pid for child in psutil.Process().children(recursive=True)}
    with opened(name, Preprocessing(1, False)) as feed:
        batches = feed.open()
        for start in (0, 32):
            images, labels = next(batches)
            assert np.array_equal(images.numpy(), data.x_train[start : start + 32])
            assert labels.tolist() == data.y_train[start : start + 32].tolist()
        first, second = (feed.step((images, labels)) for _ in range(2))
        assert 0 < second <= first  # pyright: ignore[reportOperatorIssue]
        again = feed.open()
        assert np.array_equal(next(again)[0].numpy(), data.x_train[:32]), "from the beginning"
        loaders = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.pid not in before and "resource_tracker" not in " ".join(child.cmdline())
        ]
        assert len(loaders) == int(name[-1])
        del batches, again
    assert psutil.wait_procs(loaders, LEFT_S)[1] == []


@pytest.mark.parametrize("name", ["loader-0", "loader-1"])
def test_an_error_of_a_loader_is_one_line(opened, name):
    with opened(name, Damaged(1, False)) as feed, pytest.raises(ValueError, match="damaged") as error:
        next(feed.open())
    assert explained(error.value) == "ValueError: image 0 is damaged"


# Opens a loader with two workers and prints the ids of its processes.
OPENED = """
import time
import psutil
from lib.model.spec import Network
from lib.timing.profiling import with_torch
from lib.timing.profiling.harness import Preprocessing, Subject
from lib.timing.profiling.request import Pipeline
from tests.conftest import make_small_data

subject = Subject(Network((4,)), 32, make_small_data(), "cpu")
with with_torch.feed(Pipeline("loader-2", 640), Preprocessing(1, False), subject) as feed:
    next(feed.open())
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(60)
"""


def test_loader_workers_end_when_their_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", OPENED], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None, "a pipe"
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) >= 2
    finally:
        parent.kill()
        parent.communicate()
    assert psutil.wait_procs(children, LEFT_S)[1] == []
