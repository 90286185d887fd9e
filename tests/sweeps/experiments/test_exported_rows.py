"""What can be taken away: rows that say what they are of, in files that can be read again."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.formatting import seconds
from lib.model.backends.base import Epoch
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.experiments import exported_rows
from lib.sweeps.experiments.exported_rows import as_csv, as_parquet, can_write_parquet, takeaway, takeaway_of_search
from lib.sweeps.experiments.results import Results
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import Finished
from lib.sweeps.workers.messages import Item

FACTS = Facts("MNIST", "741c9888")
ITEMS = [Item(Training(Network((8,)), rate, 4096, 2), Runtime("numpy")) for rate in (0.1, 0.5, 10.0)]


def curve(accuracy: float, diverged: int | None = None) -> Curve:
    epochs = tuple(Epoch(n, 11, 0.4, accuracy, 0.2, 0.1, list, diverged if n else None) for n in range(2))
    return Curve(0.0, epochs, np.full(22, 0.5, np.float32), "2026-11-23T05:00:00")


@pytest.fixture
def results() -> Results:
    found = Results(ITEMS, ["0.1", "0.5", "10"])
    for item, one in zip(ITEMS, (curve(0.8), curve(0.9), curve(0.95, 3)), strict=True):
        found.add(Finished(item, one, cached=False))
    return found


def test_the_best_is_first_and_what_diverged_last(results):
    assert takeaway("learning rate", results, FACTS, "").best_first() == [1, 0, 2]


@pytest.mark.parametrize("epoch_s", [(0.3, 0.1, 0.2), (0.1, 0.3, 0.2)])
def test_one_training_by_several_runtimes_is_ordered_by_its_seconds(epoch_s):
    """The slowest is not offered as the best because rounding gave it two images more."""
    training = Training(Network((8,)), 0.1, 4096, 2)
    items = [Item(training, Runtime(key)) for key in ("numpy", "jax-epoch", "jax-step")]
    found = Results(items, [item.runtime.label for item in items])
    for item, train_s, accuracy in zip(items, epoch_s, (0.9, 0.9002, 0.9004), strict=True):
        epochs = tuple(replace(epoch, train_s=train_s) for epoch in curve(accuracy).epochs)
        found.add(Finished(item, replace(curve(accuracy), epochs=epochs), cached=False))
    one = takeaway("backend", found, FACTS, "")
    assert [epoch_s[place] for place in one.best_first()] == sorted(epoch_s)
    assert one.described(0).startswith(f"NumPy: 90.0\u202f%, {seconds(epoch_s[0])} an epoch")


def test_what_is_not_finished_is_not_offered():
    found = Results(ITEMS, ["0.1", "0.5", "10"])
    found.add(Finished(ITEMS[2], curve(0.3), cached=True))
    assert takeaway("learning rate", found, FACTS, "").best_first() == [2]


def test_every_row_says_what_it_is_of_and_where_it_comes_from(results):
    for name, make in takeaway("learning rate", results, FACTS, "").rows.items():
        rows = make()
        assert len(rows), name
        about = {"backend", "learning_rate", "batch_size", "hidden_layers", "machine", "data", "data_digest"}
        assert about <= set(rows.columns), name
        assert all(rows["machine"].tolist()), name
        assert set(rows["data_digest"]) == {FACTS.digest}, name


def test_seconds_have_their_unit_in_the_name_of_the_column(results):
    rows = takeaway("learning rate", results, FACTS, "").rows["each epoch"]()
    assert [column for column in rows.columns if column.endswith("_s")] == ["train_s", "evaluation_s", "spent_s"]
    assert rows["spent_s"].tolist()[:2] == pytest.approx([0.3, 0.6])


def test_csv_is_read_again_as_it_was(results):
    rows = takeaway("learning rate", results, FACTS, "").rows["each epoch"]()
    again = pd.read_csv(io.BytesIO(as_csv(rows)), dtype={"label": str, "hidden_layers": str})
    pd.testing.assert_frame_equal(again, rows, check_dtype=False)


@pytest.mark.skipif(not can_write_parquet(), reason="pyarrow is not installed")
def test_parquet_is_read_again_as_it_was(results):
    for make in takeaway("learning rate", results, FACTS, "").rows.values():
        rows = make()
        pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(as_parquet(rows))), rows, check_dtype=False)


def test_parquet_without_its_library_is_a_sentence(results, monkeypatch):
    monkeypatch.setattr(exported_rows, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="Parquet needs pyarrow"):
        as_parquet(results.epochs_frame())


def test_a_search_has_a_line_for_each_setting():
    found = {item.training: curve(accuracy) for item, accuracy in zip(ITEMS, (0.8, 0.9, 0.7), strict=True)}
    taken = takeaway_of_search(found, FACTS)
    assert taken.best_first() == [1, 0, 2]
    assert taken.labels[1] == "8, rate 0.5, batch size 4096"
    assert len(taken.rows["each setting"]()) == 3
    assert set(taken.rows["loss by step, averaged"]()["data"]) == {"MNIST"}
