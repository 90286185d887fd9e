"""The export menu: its answers to a browser, and to any other client."""

import io
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.data.mnist import Facts
from lib.model.spec import DataSet, Network, Training
from lib.sweeps.experiments.exported_script import LIBRARIES, installed, takeaway, takeaway_of_search
from lib.sweeps.experiments.results import Results
from lib.sweeps.sweep import Finished
from lib.ui.export_menu import ExportMenu
from tests.sweeps.experiments.test_exported_script import ITEMS, MNIST_FACTS, curve


class Menu(ExportMenu):
    def __init__(self, now):
        super().__init__()
        self.said: list[tuple[dict, list]] = []
        self.widget.send = lambda content, buffers=None: self.said.append((content, buffers or []))
        self.now = now

    def ask(self, asked):
        self.said.clear()
        self.widget._handle_custom_msg(asked, [])
        return self.said


def shown(items=ITEMS, facts=MNIST_FACTS):
    results = Results(items, ["0.1", "0.5", "10"])
    results.add(Finished(items[0], curve(0.8), cached=False))
    results.add(Finished(items[1], curve(0.9), cached=False))
    return takeaway("learning rate", results, facts, "0.5 was best.")


def test_nothing_is_computed_before_the_menu_opens():
    asked = []
    menu = Menu(lambda: asked.append(1))
    assert not asked
    assert "marimo-anywidget" in menu.text
    ((sorry, _),) = menu.ask({"ask": "open"})
    assert asked == [1]
    assert "got none yet" in sorry["sentence"]


def test_the_menu_offers_finished_trainings_and_installed_libraries():
    ((choices, _),) = Menu(shown).ask({"ask": "open"})
    assert choices["lines"] == [
        [1, "0.5: 90.0\u202f%, 200\u202fms per epoch"],
        [0, "0.1: 80.0\u202f%, 200\u202fms per epoch"],
    ]
    assert choices["libraries"] == installed()
    absent = [label for key, (label, _) in LIBRARIES.items() if key not in installed()]
    assert all(any(label in note for note in choices["notes"]) for label in absent)


def test_scripts_and_rows_are_sent_as_named_files():
    menu = Menu(shown)
    ((script, (text,)),) = menu.ask({"ask": "script", "line": 1, "library": "numpy"})
    assert script["file"] == "mnist_8_rate_0.5_batch_4096_numpy.py"
    compile(text, script["file"], "exec")
    ((rows, (content,)),) = menu.ask({"ask": "rows", "rows": "each epoch"})
    assert rows["file"] == "learning_rate_each_epoch.csv"
    assert content.startswith(b"line,label,epoch,accuracy,")
    again = pd.read_csv(io.BytesIO(content), dtype={"label": str, "hidden_layers": str})
    pd.testing.assert_frame_equal(again, shown().rows["each epoch"](), check_dtype=False)


def test_a_picture_has_its_sentence_and_describes_its_trainings():
    """A picture is seen without its controls. A search has too many networks to name."""
    ((picture, _),) = Menu(shown).ask({"ask": "picture", "form": "png"})
    assert (picture["form"], picture["title"]) == ("png", "0.5 was best.")
    assert "MNIST" in picture["source"]
    wanted = "Learning rate 0.1 to 10; batch size 4,096; epochs 2; hidden layers 8; trained by NumPy"
    assert wanted in picture["source"]
    found = {Training(Network((width,)), 0.1, 4096, 2): curve(0.9) for width in range(8, 40)}
    ((picture, _),) = Menu(lambda: takeaway_of_search(found, MNIST_FACTS)).ask({"ask": "picture", "form": "svg"})
    assert "batch size 4,096; epochs 2; hidden layers 32 different; trained by" in picture["source"]


@pytest.mark.parametrize(
    "asked",
    [
        {"ask": "script", "line": 2, "library": "numpy"},  # not finished
        {"ask": "script", "line": 0, "library": "fortran"},
        {"ask": "rows", "rows": "each pixel"},
    ],
    ids=["unfinished", "library", "rows"],
)
def test_unknown_choices_are_answered_with_a_sentence(asked):
    ((sorry, _),) = Menu(shown).ask(asked)
    assert sorry["is"] == "sorry"
    assert "expected" in sorry["sentence"].lower()


def test_deleted_own_data_allow_rows_but_no_script():
    """Even if the file is named like MNIST."""
    pets = DataSet("f" * 32, 8192, 2048, 0.5)
    items = [replace(item, training=replace(item.training, data=pets)) for item in ITEMS]
    menu = Menu(lambda: shown(items, Facts("MNIST", "f" * 32)))
    ((choices, _),) = menu.ask({"ask": "open"})
    assert [place for place, _ in choices["lines"]] == [1, 0]
    assert any("comes in a ZIP" in note for note in choices["notes"])
    ((sorry, _),) = menu.ask({"ask": "script", "line": 1, "library": "numpy"})
    assert "load them again" in sorry["sentence"]
    ((rows, (content,)),) = menu.ask({"ask": "rows", "rows": "each epoch"})
    assert rows["is"] == "file"
    assert content.decode().splitlines()[1].endswith("f" * 32)


KEYS = st.sampled_from(["ask", "line", "library", "rows", "form"])
WORDS = st.sampled_from(["open", "script", "rows", "picture", "numpy", "csv", "each epoch"])
VALUES = st.one_of(WORDS, st.none(), st.integers(-3, 3), st.floats(), st.text(max_size=9), st.lists(st.integers()))


@given(st.one_of(VALUES, st.dictionaries(KEYS, VALUES)))
def test_any_message_is_answered_or_ignored(asked):
    assert all(content["is"] in ("sorry", "choices", "file", "picture") for content, _ in Menu(shown).ask(asked))
