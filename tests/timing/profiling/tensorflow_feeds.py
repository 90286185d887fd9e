"""Print what TensorFlow's feeds yield, as JSON; `test_with_tensorflow` runs this in a subprocess."""

import json
import sys
import time
from typing import Any

import numpy as np

from lib.model.spec import Network
from lib.timing.profiling import with_tensorflow
from lib.timing.profiling.harness import Preprocessing, Subject, explained
from lib.timing.profiling.request import FEEDS, Examination, NotMeasured, Pipeline
from lib.timing.profiling.run import examine
from lib.timing.profiling.with_keras import compiled_step, model_of
from lib.timing.profiling.with_tensorflow import measure_placement
from tests.conftest import make_small_data

DATA = make_small_data()
SUBJECT = Subject(Network((4,)), 32, DATA, "cpu")
N_BATCHES = 5


def fed(name, preprocess):
    return with_tensorflow.feed(Pipeline(name, 640, 32, 0.1), preprocess, SUBJECT)


class Damaged(Preprocessing):
    """Raises at an image in the third batch."""

    def __call__(self, image):
        if np.array_equal(image, DATA.x_train[70]):
            raise ValueError("image 70 is damaged")
        return image


def labels_of(name):
    """The first batches' labels, whether images kept theirs, and the next batch's losses."""
    labels, together = [], True
    with fed(name, Preprocessing(1, False)) as feed:
        batches = feed.open()
        for _ in range(N_BATCHES):
            images, known = (np.asarray(part) for part in next(batches))
            together &= all(
                (DATA.x_train[DATA.y_train == label] == image).all(axis=1).any()
                for image, label in zip(images, known, strict=True)
            )
            labels += known.tolist()
        batch = next(batches)
        losses = [feed.step(batch) for _ in range(2)]
    return {"labels": labels, "together": together, "losses": losses}


class Counted(Preprocessing):
    seen = 0

    def __call__(self, image):
        Counted.seen += 1
        return super().__call__(image)


def worked_on(name):
    """Number of images preprocessed after its iterator was dropped."""
    with fed(name, Counted(20, False)) as feed:
        next(feed.open())
        before = Counted.seen
        time.sleep(0.1)
        return Counted.seen - before


def raised(preprocess, name):
    with fed(name, preprocess) as feed:
        batches = feed.open()
        try:
            for _ in range(N_BATCHES):
                next(batches)
        except Exception as error:
            return explained(error)
    return ""


def by_xla(asked):
    """Whether the step asks for XLA."""
    step: Any = compiled_step(model_of(SUBJECT, jit_compile=asked))
    return step.get_concrete_function(SUBJECT.batch).function_def.attr["_XlaMustCompile"].b


def main():
    names = list(FEEDS["keras-tensorflow"])
    found = {
        "fed": {name: labels_of(name) for name in names},
        "worked on": {name: worked_on(name) for name in names},
        "raised": {name: raised(Damaged(1, False), name) for name in names if name not in ("shuffle", "cache")},
        "by XLA": [by_xla(True), by_xla(False)],
        "placed": {name: measured.block_s[0] for name, measured, _ in filter(None, measure_placement(SUBJECT))},
    }
    try:
        list(examine("keras-tensorflow", "cpu", Examination("pipeline", pipeline=SLOW_CACHE), DATA))
    except NotMeasured as error:
        found["slow cache"] = str(error)
    cached = Examination("pipeline", pipeline=Pipeline("cache", 640, 32, 0.05))
    measured = examine("keras-tensorflow", "cpu", cached, DATA)
    found["cached"] = {name: row.block_s for name, row, _ in filter(None, measured)}
    json.dump(found, sys.stdout)


SLOW_CACHE = Pipeline("cache", 100_000, 32, 5.0)

if __name__ == "__main__":
    main()
