"""A browser sees the batches that all other backends see."""

import numpy as np
import pytest

from lib.model.backends.webgpu import MAX_EPOCHS, MAX_STARTS, first_images
from lib.model.data.mnist import batch_starts
from lib.model.spec import Network, Training


@pytest.mark.parametrize(("n_images", "size", "seed"), [(640, 32, 0), (1_000, 7, 3), (48_000, 4_096, 1)])
def test_each_epoch_has_an_order_of_its_own(n_images, size, seed):
    found = first_images(Training(Network((8,)), 0.1, size, 1, seed), n_images)
    steps = n_images // size
    n_epochs = min(MAX_EPOCHS, MAX_STARTS // steps)
    expected = [batch_starts(n_images, size, seed, epoch) for epoch in range(n_epochs)]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    assert not np.array_equal(found[:steps], found[steps : 2 * steps])


def test_of_an_epoch_that_is_too_long_the_beginning_travels():
    found = first_images(Training(Network((8,)), 0.1, 1, 1), 48_000)
    np.testing.assert_array_equal(found, batch_starts(48_000, 1, 0, 0)[:MAX_STARTS])
