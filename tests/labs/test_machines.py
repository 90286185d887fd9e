"""Machines side by side: intervals, costs, epochs to an accuracy, and sentences that claim no more than the rows."""

import html
import re
from types import SimpleNamespace

import pytest

from lib.labs.which_library import machines as lab
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.recorded_machines import Collection, Machine, collect, published_machines, spread
from lib.sweeps.storage.store import Store
from tests.machines import CARD, PROCESSOR, write
from tests.ui.views.test_dots import dots_of

GPU, CPU, KERAS = Runtime("jax-epoch", "gpu"), Runtime("jax-epoch"), Runtime("keras-tensorflow")


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    card = write(folder / "card.json", CARD, 0.2, [GPU])
    processor = write(folder / "processor.json", PROCESSOR, 0.1, [CPU, KERAS], curves=True)
    found = collect([(path.name, path.read_text()) for path in (card, processor)])
    assert not found.problems
    return found.machines


@pytest.fixture(scope="module")
def learned(machines):
    return lab.learned_from(machines)


def test_epochs_are_counted_once_for_all_machines(machines, learned):
    """The CPU's record has the number of epochs; the card's seconds are multiplied by the same number."""
    for machine, runtime in zip(machines, (GPU, CPU), strict=True):
        epoch, found = machine.epoch(runtime, 32), lab.quickest_to(machine, runtime, learned, 0.95)
        assert epoch is not None
        assert found is not None
        assert found.middle == pytest.approx(5 * (epoch.middle + 0.01)), "a batch of 4,096 needs six epochs"
        assert found.low < found.middle < found.high


def test_a_machine_is_called_faster_only_by_the_common_comparison_rule(machines, learned):
    work = "an epoch at batch size 32"
    one = lab.judge(machines, work, lab.works(learned, 0.95)[work])
    assert one is not None
    assert one.surely
    assert one.by_speed[0].machine.name == PROCESSOR
    assert lab.judged_sentence([one], machines) == "Surely the fastest: Colossus · 4 cores for 1 of 1."
    dots = dots_of(lab.judged_chart([one], machines))
    assert [dot["of"] for dot in dots] == ["Colossus · 4 cores", "Imaginary 9000 · 8 cores"]

    def both(machine, runtime):
        return spread([[t * (1.05 if machine.name == CARD else 1.0)] for t in (0.9, 1.0, 1.2)])

    unsure = lab.judge(machines, "both", both)
    assert unsure is not None
    assert not unsure.surely
    assert lab.judged_sentence([unsure], machines) == "In 1 of 1 the first two are too close to call."
    assert lab.judge(machines, "none", lambda machine, runtime: None) is None
    assert lab.judged_sentence([], []).startswith("No machine is chosen")


def test_the_articles_chart_shows_all_machines_and_first_calls_separately(machines):
    """Eleven first calls of 0.5 s; published machines have no first calls."""
    every = [*machines, *published_machines()]
    dots = dots_of(lab.article_chart(every))
    (first,) = [dot["x"] for dot in dots if dot["of"] == lab.FIRST_CALLS and "Imaginary" in dot["label"]]
    assert first == pytest.approx(11 * 0.5)
    published = {dot["x"] for dot in dots if dot["known"] == "published"}
    assert {63.0, 423.0, 76.0} <= published
    assert {dot["known"] for dot in dots if dot["of"] == lab.FIRST_CALLS} == {"recorded"}
    sentence = lab.article_sentence(every)
    assert "On Colossus · 4 cores the learning-rate experiment takes" in sentence
    assert "The article's machines took 63.0\u202fs and 28.0\u202fs" in sentence


def test_machine_names_are_distinct(machines):
    assert lab.names(machines) == {CARD: "Imaginary 9000 · 8 cores", PROCESSOR: "Colossus · 4 cores"}
    assert len(set(lab.names([*machines, *machines]).values())) == 2


@pytest.mark.parametrize("name", ['<img src="/?class=T">', "$a$ **b**", "https://evil.example/a.png"])
def test_machine_names_are_escaped_everywhere(name, tmp_path, monkeypatch):
    """Names come from other people's exports: they are shown as text."""
    machines = (Machine(f"{name} · 4 cores · {name}", f"{name}.json"), Machine("Eniac · 2 cores · no GPU", "b.json"))
    monkeypatch.setattr(lab, "gather", lambda dropped, store: Collection(machines))
    hook = lab.MachineChoice.__new__(lab.MachineChoice)
    hook._left_out = set()
    hook.page = SimpleNamespace(store=Store(tmp_path / "results.sqlite"))
    for shown in (hook.panel(Collection()).text, lab.machines_list(machines)):
        # marimo's labels are HTML in an attribute: check them again without the outer escaping
        for layer in (shown, *map(html.unescape, re.findall(r"data-label='([^']*)'", shown))):
            assert not re.search(r"<(img|div style|a |marimo-tex|strong)", layer.replace("\\u003c", "<"))
