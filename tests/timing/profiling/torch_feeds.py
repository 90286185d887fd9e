"""Open a loader with two workers and print their ids; `test_with_torch` runs this in a subprocess."""

import os
import time

import psutil

from lib.model.spec import Network
from lib.timing.profiling import with_torch
from lib.timing.profiling.harness import Preprocessing, Subject
from lib.timing.profiling.request import Pipeline
from tests.conftest import make_small_data


def main():
    subject = Subject(Network((4,)), 32, make_small_data(), "cpu")
    with with_torch.feed(Pipeline("loader-2", 640), Preprocessing(1, False), subject) as feed:
        next(feed.open())
        children = psutil.Process(os.getpid()).children(recursive=True)
        print(" ".join(str(child.pid) for child in children), flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main()
