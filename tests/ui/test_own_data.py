# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
"""The panel for the reader's own data: its messages, which field counts, and a look inside a network on such data."""

from types import MappingProxyType, SimpleNamespace

import pytest

import mnist_training
from lib.labs import mnist_training as mnist_page
from lib.model.backends.base import initial_parameters
from lib.model.backends.registry import Runtime
from lib.model.data import reading
from lib.model.spec import Training
from lib.sweeps.experiments.results import Results
from lib.sweeps.workers.messages import Item
from lib.ui import network_inside
from lib.ui import own_data as page
from tests import made


def choice(name, files=()):
    return page.DataChoice.checked("data", {"set": name, "label": "", "files": files})


def test_the_default_is_mnist_and_reads_no_file(lab, shown):
    here = lab()
    here.own.read(here.own.panel())
    assert here.own.data is None
    assert here.own.stage.running is None
    assert "<details" in shown[-1]
    assert "<details open" not in shown[-1].replace(' class="lab-own"', "")


@pytest.mark.slow
def test_data_of_the_address_are_read_before_experiments_start(lab, shown):
    here = lab(**{"data.set": "iris", "rate.size": "8", "rate.epochs": "1", "rate.hidden": "4"})
    address = here.page.address
    address.check(here.page.settings)
    assert address.problems == []
    rate = here.controls("rate")
    mnist_training.learning_rate.run(lab=here, rate=rate)
    assert "The experiments start once the data are read." in shown[-1]
    here.own.read(here.own.panel())
    assert here.own.data is not None
    assert "iris: 150 rows, 4 inputs scaled to [0, 1], 3 classes (setosa, versicolor, virginica)" in shown[-1]
    mnist_training.learning_rate.run(lab=here, rate=rate)
    assert "On scikit-learn’s iris: " in shown[-1]
    assert "lab-figure" in shown[-1]


@pytest.mark.slow
def test_a_link_restores_the_label_column_and_a_change_rereads_the_file(lab, shown):
    here = lab(**{"data.label": "colour"})
    here.page.address.check(here.page.settings)
    assert here.page.address.problems == []
    panel = here.own.panel()
    assert (panel.value["set"], panel.value["label"]) == ("mnist", "colour")
    rows = "".join(f"{n / 7},{n % 3},{'rb'[n % 2]},{'xyz'[n % 3]}\n" for n in range(30))
    content = f"size,parts,colour,kind\n{rows}".encode()
    here.own.read(panel)

    def read(label):
        values = {"set": "mnist", "files": [SimpleNamespace(name="a.csv", contents=content)], "label": label}
        here.own.read(SimpleNamespace(value=values, elements={}))
        return here.own.data

    assert read("nowhere") is None
    assert "expected “nowhere” among the columns of “a.csv”, got size, parts, colour, kind;" in shown[-1]
    assert read("colour") is None
    assert "numbers in column “kind”, got “x” in row 1" in shown[-1]
    content = content.replace(b"x\n", b"1\n").replace(b"y\n", b"2\n").replace(b"z\n", b"4\n")
    assert (found := read("colour")) is not None
    assert found.about.classes == ("b", "r")
    assert read("nowhere") is found, "what cannot be read changes nothing"


def test_the_last_changed_field_counts():
    own, dropped = page.OwnData(), [SimpleNamespace(name="a.csv", contents=b"1")]
    assert own._files_of(choice("mnist")) == ()
    assert own._files_of(choice("mnist", dropped)) == (("a.csv", b"1"),)
    assert own._files_of(choice("iris", dropped)) == ()
    assert len(own._files_of(choice("iris", [*dropped, *dropped]))) == 2
    assert own._files_of(choice("iris")) == (), "the file is taken away again"


@pytest.mark.slow
def test_experiments_use_the_data_and_name_what_they_leave_out(lab):
    here = lab()
    here.own.data = reading.read([], "iris")

    def asked(prefix, changes=MappingProxyType({})):
        values = here.controls(prefix).value | changes
        return here.own.changed(made.jobs(prefix)(mnist_page.PANELS[prefix].checked(prefix, values)))

    sizes = asked("size")
    assert sizes.labels == ("1", "32")
    results = Results(sizes.items, sizes.labels)
    below = here.own.below(here.page.sections["size"], sizes, results)
    assert "Left out, for lack of training rows: batch size 256." in below
    assert {item.training.network.widths for item in asked("rate").items} == {(4, 128, 3)}
    dense = asked("rate", {"backend": "numba"})
    assert {item.runtime for item in dense.items} == {Runtime()}
    below = here.own.below(here.page.sections["rate"], dense, Results(dense.items, dense.labels))
    assert "JAX, one call an epoch trains instead of “Numba, zeros left out”: expected at least 75" in below
    assert {item.training.data for item in asked("backend").items} == {here.own.data.data_set}


@pytest.mark.parametrize(("name", "figures"), [("iris", 1), ("digits", 3)])
def test_a_network_on_own_data_is_examined(name, figures):
    own = reading.read([], name)
    training = Training(own.network((6,)), batch_size=8, data=own.data_set)
    canvas = network_inside.Inside().digit
    seen = network_inside.drawn_for(canvas, Item(training), initial_parameters(training.network, 0), own.facts).text
    assert seen.count("<figure") == figures
    assert f"test rows of scikit-learn’s {name}" in seen
    assert canvas.network == {}
    assert "network trained on MNIST" in canvas.says
