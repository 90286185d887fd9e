"""PyTorch's `DataLoader`: the same images however many workers make the batches, and no worker that stays behind."""

import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import Network
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.input_pipeline import Preprocessing
from lib.timing.profiling.request import Pipeline
from tests.conftest import ROOT, make_small_data

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(unavailable(Runtime("torch")) is not None, reason="PyTorch is not installed"),
]
LEFT_S = 15  # PyTorch's workers look for their parent every five seconds


class Damaged(Preprocessing):
    """Raises at the first image."""

    def __call__(self, image):
        raise ValueError("image 0 is damaged")


def opened(feed, preprocess):
    from lib.timing.profiling import feeds_of_torch

    subject = Subject(Network((4,)), 32, make_small_data(), "cpu")
    return feeds_of_torch.feed(Pipeline(feed, 640), preprocess, subject)


@pytest.mark.parametrize("name", ["loader-0", "loader-2"])
def test_batches_are_the_images_in_their_order_and_workers_end_with_the_feed(name):
    data, feed = make_small_data(), opened(name, Preprocessing(1, False))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
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
    feed.close()
    assert psutil.wait_procs(loaders, LEFT_S)[1] == []


@pytest.mark.parametrize("name", ["loader-0", "loader-1"])
def test_what_a_loader_raised_is_one_line(name):
    from lib.timing.profiling import feeds_of_torch

    feed = opened(name, Damaged(1, False))
    with pytest.raises(ValueError, match="damaged") as error:
        next(feed.open())
    assert feeds_of_torch.explained(error.value) == "ValueError: image 0 is damaged"
    feed.close()


def test_workers_end_where_their_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.timing.profiling.torch_feeds"],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None, "a pipe"
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) >= 2
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert psutil.wait_procs(children, LEFT_S)[1] == []
