"""Trainings that the sliders of the first notebook ask for, their order, and what is answered when they are stored."""

from itertools import pairwise

import pytest

from lib.cli.precompute import POINTS, Position, answered, groups, positions, train
from lib.labs import mnist_training as page
from lib.model.backends.registry import versions
from lib.model.spec import BATCH_SIZES, Network, Training
from lib.sweeps.storage.records import Key
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import Finished
from lib.sweeps.workers.messages import Item, Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.ui.panel import settings_of
from tests import made


@pytest.fixture(scope="module")
def every():
    return list(positions(settings_of(page.EXPERIMENTS)))


def experiment_of(panel, **moved):
    controls = page.EXPERIMENTS[panel]
    usual = {name: one.setting.usual for name, one in controls.declared(panel).items()}
    return made.jobs(panel)(controls(usual | moved))


def at_most_epochs(experiment):
    return {
        Item(Training(one.training.network, one.training.learning_rate, one.training.batch_size, 20), one.runtime)
        for one in experiment.items
    }


@pytest.mark.parametrize(
    ("panel", "moved"),
    [
        ("rate", {"range": (0.01, 10.0), "count": 7, "size": 256, "epochs": 11}),
        ("size", {"sizes": [8, 4096], "rate": 0.5}),
        ("depth", {"networks": ["256→128→64"], "rate": 0.2, "size": 8}),
        ("backend", {"size": 512, "rate": 0.01}),
        ("rate", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_moved_position_is_among_them(every, panel, moved):
    experiment = experiment_of(panel, **moved)
    assert at_most_epochs(experiment) in [set(one.items) for one in every if one.experiment == panel]


@pytest.mark.slow
def test_the_nearest_come_first_and_each_training_once(every):
    found = groups(every)
    trained = [item for group in found for item in group.items]
    assert len(trained) == len(set(trained)) == len({item for one in every for item in one.items})
    others = [group for group in found if group.experiment != "backend"]
    assert found[: len(others)] == others, "every runtime comes last"
    assert all(before.moved <= after.moved for before, after in pairwise(others))
    opens_with = {item for one in every if one.moved == 0 and one.experiment != "backend" for item in one.items}
    assert {item for group in others if group.moved == 0 for item in group.items} == opens_with


def test_a_position_is_answered_once_all_of_it_is_stored(every):
    nothing = answered(every, lambda item: False)
    assert {there for there, _ in nothing.values()} == {0}
    assert nothing["rate"][1] == 120 * 15 * len(BATCH_SIZES), "ends of the range, how many rates, batch sizes"
    (usual,) = [one for one in every if one.experiment == "size" and one.moved == 0]
    some = answered(every, lambda item: item in usual.items)
    assert some["size"][0] == 2 ** len(usual.items) - 1, "each choice among the three batch sizes"
    assert all(there == whole for there, whole in answered(every, lambda item: True).values())


@pytest.mark.slow
def test_what_is_trained_is_thinned_and_served_for_fewer_epochs(engine, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    item = Item(Training(Network((4,)), 0.1, 32, 3))
    first = list(train(Position("rate", 0, (item,)), engine, store, Cancel(), Request()))
    (finished,) = [one for one in first if isinstance(one, Finished)]
    assert not finished.cached
    assert len(finished.curve.losses) <= POINTS
    facts = engine.known_facts()
    assert store.parameters(Key(item.training, item.runtime, facts.digest, versions(item.runtime))) is None, (
        "thousands of networks are not kept"
    )
    shorter = made.learning_rate((0.1, 1.0), epochs=2, batch_size=32, hidden="4").items[0]
    (again,) = train(Position("rate", 0, (shorter,)), engine, store, Cancel(), Request())
    assert isinstance(again, Finished)
    assert again.cached
    assert len(again.curve.epochs) == 2


def test_a_group_that_fails_is_a_note(engine, tmp_path, monkeypatch):
    def too_much(*_):
        raise MemoryError("expected 1 GB of free memory, got 0.1; train fewer networks")
        yield

    monkeypatch.setattr("lib.cli.precompute.updates", too_much)
    group = Position("rate", 0, (Item(Training()),))
    (note,) = train(group, engine, Store(tmp_path / "results.sqlite"), Cancel(), Request())
    assert isinstance(note, Note)
    assert "1 GB" in note.text
