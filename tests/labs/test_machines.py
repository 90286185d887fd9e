"""Machines side by side: intervals, costs, epochs to an accuracy, and sentences that say no more than the rows."""

import html
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lib.labs.which_library import machines as lab
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.recorded_machines import (
    Collection,
    Machine,
    Seconds,
    best_runtime,
    collect,
    published_machines,
    spread,
)
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.ui.views.recorded_gpus import interval
from tests.machines import CARD, PROCESSOR, records, write

GPU, CPU, KERAS = Runtime("jax-epoch", "gpu"), Runtime("jax-epoch"), Runtime("keras-tensorflow")
TORCH = Runtime("torch", "gpu")


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


def test_the_best_is_looked_for_in_float32_alone(tmp_path):
    """A card that rounds to bfloat16 would otherwise stand beside a processor that does not."""
    path = write(tmp_path / "card.json", CARD, 0.1, [Runtime("jax-epoch", "gpu", "bfloat16"), GPU])
    (machine,) = collect([(path.name, path.read_text())]).machines
    best = best_runtime(machine, lambda machine, runtime: machine.epoch(runtime, 32), "gpu")
    assert best is not None
    assert (best.runtime.precision, best.seconds.middle) == ("float32", pytest.approx(0.2)), "the other takes 0.1 s"
    assert best_runtime(machine, lambda machine, runtime: machine.epoch(runtime, 32), device="cpu") is None


def test_epochs_are_counted_once_for_all_machines(machines, learned):
    """The processor's record counted them; the card's seconds are multiplied by the same number."""
    counted = lab.epochs_needed(learned, 32, 0.95)
    assert counted is not None
    assert counted.reached == (5, 5, 5)
    for machine, runtime in zip(machines, (GPU, CPU), strict=True):
        epoch, found = machine.epoch(runtime, 32), lab.to_target(machine, runtime, 32, learned, 0.95)
        assert epoch is not None
        assert found is not None
        assert found.middle == pytest.approx(5 * (epoch.middle + 0.01))
        assert found.low < found.middle < found.high
    assert lab.to_target(machines[0], GPU, 512, learned, 0.95) is None, "nobody counted there"
    best = lab.quickest_to(machines[1], CPU, learned, 0.95)
    assert best is not None
    assert best.middle == pytest.approx(5 * 0.11), "a batch of 4,096 needs six epochs"


def test_no_machine_is_called_quicker_unless_the_rule_of_all_comparisons_says_so(machines, learned):
    work = "an epoch at batch size 32"
    prices = {CARD: 0.5, PROCESSOR: 2.0}
    one = lab.judge(machines, work, lab.works(learned, 0.95)[work], prices)
    assert one is not None
    assert one.surely
    assert one.by_speed[0].machine.name == PROCESSOR
    assert one.cheapest is not None
    assert one.cheapest.machine.name == CARD, "twice as slow, at a quarter of the price"
    assert lab.judged_sentence([one], machines) == f"Colossus · 4 cores is surely the quickest for {work}."

    def both(machine, runtime):
        return spread([[t * (1.05 if machine.name == CARD else 1.0)] for t in (0.9, 1.0, 1.2)])

    unsure = lab.judge(machines, "both", both, {})
    assert unsure is not None
    assert not unsure.surely
    assert lab.judged_sentence([unsure], machines) == "For both it cannot be told which of the first two is quicker."
    assert "not surely" in lab.judged_table([unsure], {}, machines)
    assert lab.judge(machines, "none", lambda machine, runtime: None, {}) is None
    assert lab.judged_sentence([], []).startswith("No machine is chosen")


def test_the_articles_table_has_the_published_machines_and_ours(machines):
    """First calls, eleven of 0.5 s, are a column of their own; a published machine does not tell them."""
    every = [*machines, *published_machines()]
    table = lab.article_table(every)
    words = ("published: GCP g2-standard-4: NVIDIA L4", "423", KERAS.label, "<th>of it first calls</th>", "5.5\u202fs")
    assert [one for one in words if one not in table] == []
    assert machines[0].first_calls_s(GPU) == pytest.approx(11 * 0.5)
    assert all(machine.first_calls_s(Runtime("keras-tensorflow", "gpu")) == 0 for machine in published_machines())
    sentence = lab.article_sentence(every)
    assert "On Colossus · 4 cores the learning-rate experiment takes" in sentence
    assert "The article's machines took 63.0\u202fs and 28.0\u202fs" in sentence


def slower_in(record, label, factor):
    """The record of a race, with epochs `factor` times as long where it is of this network."""
    if record.kind != Kind.RACE or record.subject["hidden"] != label:
        return record
    return replace(record, block_s=tuple(factor * s for s in record.block_s))


def test_the_quickest_beside_the_article_is_so_in_all_experiments_together():
    """JAX takes half as long as PyTorch but for one network of the last experiment, where it takes three times that."""
    made = [
        slower_in(record, "256→128→64", 6.0) if record.says("backend") == GPU.backend else record
        for record in records(CARD, 0.2, [GPU, TORCH])
    ]
    machine = Machine(CARD, "card.json", tuple(made))
    torch, jax = (machine.experiment("depth", runtime) for runtime in (TORCH, GPU))
    assert torch is not None
    assert jax is not None
    assert torch.middle < jax.middle
    table = lab.article_table([machine])
    assert GPU.label in table
    assert TORCH.label not in table


def test_charts_hold_all_machines_on_the_same_axes(machines):
    charts = lab.epoch_charts([*machines, published_machines()[0]])
    assert [caption for caption, _ in charts] == [
        "Eniac · 8 cores · Imaginary 9000 (recorded 2026-11-01)",
        "Colossus · 4 cores (recorded 2026-11-01)",
        "Workstation: Core i9-10885H, Quadro RTX 5000 (published)",
    ]
    axes = [layer["encoding"]["y"] for _, chart in charts for layer in chart.spec["layer"]]
    assert len({json.dumps(y["scale"]) for y in axes if "scale" in y}) == 1


def test_names_tell_machines_apart(machines):
    assert lab.names(machines) == {CARD: "Eniac · 8 cores · Imaginary 9000", PROCESSOR: "Colossus · 4 cores"}
    assert len(set(lab.names([*machines, *machines]).values())) == 2


def test_an_interval_has_no_more_digits_than_it_justifies():
    assert interval(Seconds(0.95, 1.0, 1.2, 3)) == "1.0\u202fs (950\u202fms – 1.2\u202fs)"
    assert interval(Seconds(63.0, 63.0, 63.0)) == "63.0\u202fs"


@pytest.mark.parametrize(("blocks", "is_wide"), [((1.0, 1.02, 1.05), False), ((1.0, 1.4, 2.0), True)])
def test_a_wide_spread_is_warned_of_though_nothing_was_seen_to_disturb(blocks, is_wide):
    """In a table, and among the machine's disturbed measurements; on the card and on a processor."""
    for line, runtime in ((CARD, GPU), (PROCESSOR, CPU)):
        made = [replace(one, block_s=blocks) if one.kind == Kind.RACE else one for one in records(line, 1.0, [runtime])]
        machine = Machine(line, "card.json", tuple(made))
        assert (machine.disturbed > 0) is is_wide
        assert ("wide: the host was busy" in lab.article_table([machine])) is is_wide


@pytest.mark.parametrize("name", ['<img src="/?class=T">', "$a$ **b**", "https://evil.example/a.png"])
def test_a_machine_s_name_is_text_wherever_the_page_shows_it(name, tmp_path, monkeypatch):
    """What comes from others' exports is shown, and does nothing."""
    machines = (Machine(f"{name} · 4 cores · {name}", f"{name}.json"), Machine("Eniac · 2 cores · no GPU", "b.json"))
    monkeypatch.setattr(lab, "gather", lambda dropped, store: Collection(machines))
    hook = lab.MachineChoice.__new__(lab.MachineChoice)
    hook._prices, hook._left_out = {}, set()
    hook.page = SimpleNamespace(store=Store(tmp_path / "results.sqlite"))
    for shown in (lab.choices(hook.panel(Collection())).text, lab.machines_table(machines, {})):
        # marimo's labels are HTML in an attribute: seen once more without the outer escaping.
        for layer in (shown, *map(html.unescape, re.findall(r"data-label='([^']*)'", shown))):
            assert not re.search(r"<(img|div style|a |marimo-tex|strong)", layer.replace("\\u003c", "<"))


@pytest.mark.parametrize("price", [-1, 1e9, float("nan")])
def test_a_price_that_cannot_be_is_refused_in_a_sentence(price):
    with pytest.raises(ValueError, match="expected a number from 0 to 1000"):
        lab._prices_of({CARD: price})
    assert lab._prices_of({CARD: 0.5, PROCESSOR: 0}) == {CARD: 0.5}
