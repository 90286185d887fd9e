# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
"""The panel for data that somebody brings: what it says, which field counts, and a network on such data looked into."""

from types import SimpleNamespace

import marimo as mo
import pytest

from lib.backends.base import initial_parameters
from lib.data.own import reading
from lib.pages import mnist_training, network_inside
from lib.pages import own_data as page
from lib.pages.stage import Stage
from lib.pages.url_state import Address
from lib.pages.widgets import DrawDigit
from lib.spec import Training
from lib.storage.store import Store
from lib.workers.messages import Item


@pytest.fixture
def stage(engine, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(mo.output, "replace", lambda html: shown.append(html.text))
    made = Stage(engine, Store(tmp_path / "results.sqlite"))
    made.shown = shown
    return made


def test_mnist_is_the_default_and_reads_nothing(stage):
    told = []
    assert page.read(stage, page.panel(Address()), page.Chosen(), told.append) is None
    assert told == []
    assert stage.running is None
    assert "<details" in stage.shown[-1]
    assert "<details open" not in stage.shown[-1].replace(' class="lab-own"', "")


@pytest.mark.slow
def test_a_set_of_the_address_is_read_before_the_experiments_begin(stage):
    address, told = Address(arguments={"data.set": "iris"}), []
    address.check(page.settings())
    assert address.problems == []
    assert page.at_first(address) == page.PENDING
    found = page.read(stage, page.panel(address), page.Chosen(), told.append)
    assert told == [found]
    assert page.now(page.PENDING, found) is found
    assert page.now(found, None) is found
    assert page.now(None, None) is None
    assert "iris: 150 rows, 4 inputs scaled to [0, 1], 3 classes (setosa, versicolor, virginica)" in stage.shown[-1]
    with pytest.raises(mo.MarimoStopError):
        page.now(page.PENDING, None)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("f" * 32, "a file that somebody dropped is not part of a link; drop it on this page"),
        ("irys", "the nearest is iris"),
    ],
)
def test_an_address_names_a_set_and_never_a_file(said, problem):
    address = Address(arguments={"data.set": said})
    address.check(page.settings())
    assert problem in address.problems[0]
    assert page.at_first(address) is None


@pytest.mark.slow
def test_a_link_restores_the_column_of_labels_and_another_is_read_anew(stage):
    address = Address(arguments={"data.label": "colour"})
    address.check(page.settings())
    assert address.problems == []
    panel = page.panel(address)
    assert (panel.value["set"], panel.value["label"]) == ("mnist", "colour")
    rows = "".join(f"{n / 7},{n % 3},{'rb'[n % 2]},{'xyz'[n % 3]}\n" for n in range(30))
    content = f"size,parts,colour,kind\n{rows}".encode()
    values = {"set": "mnist", "files": [SimpleNamespace(name="a.csv", contents=content)]}

    chosen = page.Chosen()
    chosen.of({"set": "mnist", "files": []})

    def read(label):
        return page.read(stage, SimpleNamespace(value=values | {"label": label}, elements={}), chosen, id)

    assert read("nowhere") is None
    assert "expected “nowhere” among the columns of “a.csv”, got size, parts, colour, kind;" in stage.shown[-1]
    assert read("colour") is None
    assert "numbers in column “kind”, got “x” in row 1" in stage.shown[-1]
    content = content.replace(b"x\n", b"1\n").replace(b"y\n", b"2\n").replace(b"z\n", b"4\n")
    values["files"] = [SimpleNamespace(name="a.csv", contents=content)]
    assert (found := read("colour")) is not None
    assert found.about.classes == ("b", "r")


@pytest.mark.parametrize("label", ["x" * 201, "y" * 5000])
def test_a_column_of_labels_is_a_short_text(label):
    address = Address(arguments={"data.label": label})
    address.check(page.settings())
    assert "expected at most 200 characters" in address.problems[0]


def test_the_field_that_changed_last_counts():
    chosen, dropped = page.Chosen(), [SimpleNamespace(name="a.csv", contents=b"1")]
    assert chosen.of({"set": "mnist", "files": []}) == ((), "mnist")
    assert chosen.of({"set": "mnist", "files": dropped}) == ((("a.csv", b"1"),), "")
    assert chosen.of({"set": "iris", "files": dropped}) == ((), "iris")
    assert chosen.of({"set": "iris", "files": [*dropped, *dropped]})[0]
    assert chosen.of({"set": "iris", "files": []}) == ((), "iris"), "the file is taken away again"


def test_experiments_run_on_the_data_and_name_what_they_leave_out(stage):
    own = reading.read([], "iris")
    sizes = mnist_training.size_experiment(mnist_training.size_panel(Address(), stage).value, own)
    assert sizes.labels == ("1", "32")
    below = mnist_training.left_out({"sizes": [1, 32, 256]}, own)(sizes, None)
    assert "Batch size 256 is left out: there are fewer training rows." in below
    rates = mnist_training.rate_experiment(mnist_training.rate_panel(Address(), stage).value, own)
    assert {item.training.network.widths for item in rates.items} == {(4, 128, 3)}
    backends = mnist_training.backend_experiment(mnist_training.backend_panel(Address(), stage).value, own)
    assert {item.training.data for item in backends.items} == {own.data_set}


@pytest.mark.parametrize(("name", "figures"), [("iris", 1), ("digits", 3)])
def test_a_network_on_such_data_is_looked_into(name, figures):
    own = reading.read([], name)
    training = Training(own.network((6,)), batch_size=8, data=own.data_set)
    canvas = DrawDigit()
    seen = network_inside.drawn_for(canvas, Item(training), initial_parameters(training.network, 0), own.facts).text
    assert seen.count("<figure") == figures
    assert f"test rows of scikit-learn’s {name}" in seen
    assert canvas.network == {}
    assert "networks trained on MNIST" in canvas.says
