import numpy as np
import pytest

from lib.model.backends.base import Epoch, no_parameters
from lib.model.backends.registry import Runtime, unavailable
from lib.model.spec import MAX_RATE, Network, Training
from lib.sweeps.experiments import lines, mnist_training
from lib.sweeps.experiments.mnist_training import DIMENSIONS, Space, draw, losses_frame, search, search_frame
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import AUTO, Finished, Picked
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from tests import made


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: lines.rates_between(0.1, 0.1, 4), "range"),
        (lambda: lines.rates_between(0.001, 1, 1), "2 to 16"),
        (lambda: made.batch_size([], epochs=3, rate=0.1, hidden="128"), "at least one, got none"),
        (lambda: made.depth([], epochs=3, rate=0.1, batch_size=32), "at least one network"),
        (lambda: made.depth([], own="12; x", epochs=3, rate=0.1, batch_size=32), "“x”"),
        (lambda: made.learning_rate((0.1, 1.0), epochs=3, batch_size=50_000, hidden="128"), "50,000"),
        (lambda: Space(widths=()), "widths: expected at least one"),
        (lambda: Space(batch_sizes=()), "batch sizes: expected at least one"),
    ],
)
def test_bad_controls_are_refused(make, wanted):
    with pytest.raises(ValueError, match="expected") as caught:
        make()
    assert wanted in str(caught.value)


def test_lines_are_unique_and_in_order():
    sizes = made.batch_size((512, 1, 32, 32), epochs=3, rate=0.01, hidden="128")
    assert sizes.labels == ("1", "32", "512")
    assert [item.training.batch_size for item in sizes.items] == [1, 32, 512]
    networks = made.depth(("128", "256"), own="64; 128; None", epochs=3, rate=0.1, batch_size=32)
    assert [item.training.network.hidden for item in networks.items] == [(128,), (256,), (64,), ()]
    assert lines.rates_between(0.01, MAX_RATE, 2) == (0.01, MAX_RATE), "both ends are included"


def test_backends_are_the_usable_ones_and_missing_ones_are_explained():
    experiment = made.backends(batch_size=32, epochs=1, rate=0.1, hidden="9")
    assert len({item.training for item in experiment.items}) == 1
    assert all(unavailable(item.runtime) is None for item in experiment.items)
    assert all(reason and remedy for _, reason, remedy in mnist_training.missing_backends())


NUMBA = Runtime("numba")


def test_a_draw_is_reproducible_and_starts_any_longer_one():
    space = Space()
    drawn = draw(space, 64, 3, 0)
    assert drawn == draw(space, 64, 3, 0)
    assert draw(space, 128, 3, 0)[:64] == drawn
    assert draw(space, 64, 3, 1) != drawn
    assert len(set(drawn)) == 64
    for training in drawn:
        assert space.rates[0] <= training.learning_rate <= space.rates[1]
        assert training.batch_size in space.batch_sizes
        assert set(training.network.hidden) <= set(space.widths)
        assert len(training.network.hidden) in space.depths
    rates = np.log([training.learning_rate for training in draw(space, 1000, 1, 2)])
    share = np.mean(rates < np.mean(np.log(space.rates)))
    assert 0.45 < share < 0.55, "even on the logarithmic scale"


def curve(n_epochs=2, steps=30, diverged=None):
    epochs = tuple(Epoch(e, steps, 0.4, 0.9, 0.1, 0.01, no_parameters, diverged) for e in range(n_epochs))
    losses = np.linspace(2, 1, steps * n_epochs).astype(np.float32)
    return Curve(0.1, epochs, losses)


def test_rows_describe_the_trainings():
    trainings = [Training(Network((64, 64)), 0.3, 128, 4), Training(Network((32,)), 0.1, 32, 4)]
    frame = search_frame(dict(zip(trainings, (curve(4), curve(1, diverged=7)), strict=True)))
    assert frame[list(DIMENSIONS)].to_numpy().tolist() == [[0.3, 128, 64, 2], [0.1, 32, 32, 1]]
    assert frame["epochs"].tolist() == [4, 1]
    assert frame["diverged"].tolist() == [False, True]
    assert search_frame({}).empty


def test_losses_of_different_trainings_share_sampling_points():
    trainings = [Training(batch_size=32, epochs=4), Training(batch_size=512, epochs=4)]
    bad = curve(1, 30)
    bad.losses[21:] = np.nan
    frame = losses_frame(dict(zip(trainings, (curve(4, 1500), bad), strict=True)), points=40)
    whole, stopped = frame[frame["model"] == 0], frame[frame["model"] == 1]
    np.testing.assert_allclose(whole["step"], 0.05 + 0.1 * np.arange(40))
    np.testing.assert_allclose(whole["loss"], curve(4, 1500).losses.reshape(40, -1).mean(axis=1), rtol=1e-5)
    assert len(stopped) == 10, "a quarter of the epochs, a quarter of the places"
    assert np.isnan(stopped["loss"].to_numpy()[-2:]).all(), "what is not finite is not smoothed away"
    assert losses_frame({}).empty
    few = losses_frame({trainings[1]: curve(1, 3)}, points=40)
    assert set(few["loss"].astype(np.float32)) == set(curve(1, 3).losses), "fewer steps than places: each has its own"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "strategy", "made_by"),
    [
        (Runtime(), "padded", "padded"),
        pytest.param(
            NUMBA, AUTO, "cores", marks=pytest.mark.skipif(unavailable(NUMBA) is not None, reason="no Numba here")
        ),
    ],
)
def test_a_search_is_stored_and_served(engine, store, runtime, strategy, made_by):
    trainings = draw(Space(batch_sizes=(2048, 4096), widths=(8, 16)), 6, 1, 0)
    asked = trainings, runtime, engine, store, Cancel(), Request()
    assert not [one for one in search(*asked) if isinstance(one, Finished)]
    events = list(search(*asked, strategy))
    assert {one.item.training for one in events if isinstance(one, Finished)} == set(trainings)
    assert [one.strategy for one in events if isinstance(one, Picked)] == [made_by]
    assert any(isinstance(one, Note) and "6 of 6 epochs" in one.text for one in events)
    again = list(search(*asked))
    assert {one.item.training for one in again if isinstance(one, Finished) and one.cached} == set(trainings)
    assert not [one for one in again if isinstance(one, Note) and one.text]
