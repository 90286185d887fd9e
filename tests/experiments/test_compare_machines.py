"""Machines side by side: best runtimes, intervals, costs, epochs to an accuracy, and sentences that say no more than
the rows."""

import json
from dataclasses import replace

import pytest

from lib.backends.registry import DEVICES, Runtime
from lib.experiments import compare_machines
from lib.experiments.recorded_machines import Machine, Seconds, collect, published_machines, recorded_here, spread
from lib.storage.records import Kind
from lib.views import compare_machines as view
from lib.views import compare_machines_charts
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
    return compare_machines.learned_from(machines)


def test_the_best_runtime_of_a_machine(machines):
    card, processor = machines
    best = compare_machines.best_runtime(processor, lambda machine, runtime: machine.epoch(runtime, 32))
    assert best is not None
    assert (best.runtime, best.seconds.middle) == (CPU, 0.1)
    assert (
        compare_machines.best_runtime(card, lambda machine, runtime: machine.epoch(runtime, 32), device="cpu") is None
    )


def test_the_best_is_looked_for_in_float32_alone(tmp_path):
    """A card that rounds to bfloat16 would otherwise stand beside a processor that does not."""
    rounded = Runtime("jax-epoch", "gpu", "bfloat16")
    path = write(tmp_path / "card.json", CARD, 0.1, [rounded, Runtime("jax-epoch", "gpu")])
    (machine,) = collect([(path.name, path.read_text())]).machines
    best = compare_machines.best_runtime(machine, lambda machine, runtime: machine.epoch(runtime, 32), "gpu")
    assert best is not None
    assert (best.runtime.precision, best.seconds.middle) == ("float32", pytest.approx(0.2)), "the other takes 0.1 s"


def test_epochs_are_counted_once_for_all_machines(machines, learned):
    """The processor's record counted them; the card's seconds are multiplied by the same number."""
    counted = compare_machines.epochs_needed(learned, 32, 0.95)
    assert counted is not None
    assert counted.reached == (5, 5, 5)
    for machine, runtime in zip(machines, (GPU, CPU), strict=True):
        epoch, found = machine.epoch(runtime, 32), compare_machines.to_target(machine, runtime, 32, learned, 0.95)
        assert epoch is not None
        assert found is not None
        assert found.middle == pytest.approx(5 * (epoch.middle + 0.01))
        assert found.low < found.middle < found.high
    assert compare_machines.to_target(machines[0], GPU, 512, learned, 0.95) is None, "nobody counted there"
    best = compare_machines.quickest_to(machines[1], CPU, learned, 0.95)
    assert best is not None
    assert best.middle == pytest.approx(5 * 0.11), "a batch of 4,096 needs six epochs"


def test_a_cost_is_seconds_times_a_price(machines):
    best = compare_machines.Best(machines[0], GPU, Seconds(9.0, 10.0, 12.0, 3))
    cost = best.cost({CARD: 3.6})
    assert cost is not None
    assert (cost.low, cost.middle, cost.high) == pytest.approx((0.009, 0.010, 0.012))
    assert best.cost({}) is None


def test_no_machine_is_called_quicker_unless_the_rule_of_all_comparisons_says_so(machines, learned):
    works = {work.name: work for work in compare_machines.works(learned, 0.95)}
    one = compare_machines.judge(machines, works["an epoch at batch size 32"], {CARD: 0.5, PROCESSOR: 2.0})
    assert one is not None
    assert one.surely
    assert one.by_speed[0].machine.name == PROCESSOR
    assert one.cheapest is not None
    assert one.cheapest.machine.name == CARD, "twice as slow, at a quarter of the price"
    sentence = view.judged_sentence([one], machines)
    assert sentence == "Colossus · 4 cores is surely the quickest for an epoch at batch size 32."
    close = compare_machines.Work(
        "both",
        lambda machine, runtime: spread([[t * (1.05 if machine.name == CARD else 1.0)] for t in (0.9, 1.0, 1.2)]),
    )
    unsure = compare_machines.judge(machines, close, {})
    assert unsure is not None
    assert not unsure.surely
    assert view.judged_sentence([unsure], machines) == "For both it cannot be told which of the first two is quicker."
    assert "not surely" in view.judged_table([unsure], {}, machines)
    assert compare_machines.judge(machines, compare_machines.Work("none", lambda machine, runtime: None), {}) is None
    assert view.judged_sentence([], []).startswith("No machine is chosen")


def test_the_articles_table_has_the_published_machines_and_ours(machines):
    table = view.article_table([*machines, *published_machines()], {CARD: 3.6})
    assert "published: GCP g2-standard-4: NVIDIA L4" in table
    assert "423" in table
    assert "Keras on TensorFlow" in table
    sentence = view.article_sentence([*machines, *published_machines()])
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
    table = view.article_table([machine], {})
    assert GPU.label in table
    assert TORCH.label not in table


@pytest.mark.slow
def test_no_recorded_machine_is_shown_by_a_slower_backend_than_it_has():
    """Each recorded device's row is of the least sum, whatever the last experiment says."""
    for machine in recorded_here().machines:
        shown = view.article_table([machine], {})
        for device in DEVICES:
            sums = {r: s.middle for r in machine.runtimes if r.device == device and (s := machine.experiments(r))}
            if sums:
                assert f">{min(sums, key=lambda runtime: sums[runtime]).label}<" in shown


def test_first_calls_are_a_column_of_their_own(machines):
    """Eleven trainings of 0.5 s; a published machine does not tell them."""
    assert machines[0].first_calls_s(GPU) == pytest.approx(11 * 0.5)
    table = view.article_table([machines[0], *published_machines()], {})
    assert "<th>of it first calls</th>" in table
    assert "5.5\u202fs" in table
    assert all(machine.first_calls_s(Runtime("keras-tensorflow", "gpu")) == 0 for machine in published_machines())


def test_charts_hold_all_machines_and_their_quartiles(machines, learned):
    charts = compare_machines_charts.epoch_charts([*machines, published_machines()[0]])
    assert [caption for caption, _ in charts] == [
        "Eniac · 8 cores · Imaginary 9000 (recorded 2026-11-01)",
        "Colossus · 4 cores (recorded 2026-11-01)",
        "Workstation: Core i9-10885H, Quadro RTX 5000 (published)",
    ]
    scales = {
        json.dumps(layer["encoding"]["y"]["scale"])
        for _, c in charts
        for layer in c.spec["layer"]
        if "scale" in layer["encoding"]["y"]
    }
    assert len(scales) == 1, "the same axes for all"
    assert [caption.split(" (")[0] for caption, _ in compare_machines_charts.step_charts(machines)] == list(
        view.names(machines).values()
    )
    for chart in (
        compare_machines_charts.target_chart(machines, learned, 0.95),
        compare_machines_charts.models_chart(machines),
    ):
        assert json.dumps(chart.spec).count("Colossus") > 0


@pytest.mark.parametrize("step_s", [5e-5, 7e-5])
def test_parts_that_do_not_add_up_are_shown_as_no_shares(step_s):
    made = records(CARD, 0.2, [GPU, TORCH])
    off = [
        replace(record, block_s=(step_s,) * 3)
        if record.kind == Kind.ANATOMY and (record.says("by"), record.says("name")) == (GPU.backend, "step")
        else record
        for record in made
    ]
    ((caption, chart),) = compare_machines_charts.step_charts([Machine(CARD, "card.json", tuple(off))])
    assert caption.endswith(f"; without {GPU.label}: parts that do not add up to the step")
    drawn = {row["label"] for rows in chart.spec["datasets"].values() for row in rows}
    assert drawn == {TORCH.label}


def test_names_tell_machines_apart(machines):
    twice = [*machines, *machines]
    assert view.names(machines) == {CARD: "Eniac · 8 cores · Imaginary 9000", PROCESSOR: "Colossus · 4 cores"}
    assert len(set(view.names(twice).values())) == 2


def test_an_interval_has_no_more_digits_than_it_justifies():
    assert view.interval(Seconds(0.95, 1.0, 1.2, 3)) == "1.0\u202fs (950\u202fms – 1.2\u202fs)"
    assert view.interval(Seconds(63.0, 63.0, 63.0)) == "63.0\u202fs"


@pytest.mark.parametrize(("blocks", "is_wide"), [((1.0, 1.02, 1.05), False), ((1.0, 1.4, 2.0), True)])
def test_a_wide_spread_is_warned_of_though_nothing_was_seen_to_disturb(blocks, is_wide):
    """In a table, in a sentence, and among the machine's disturbed measurements; on the card and on a processor."""
    for line, runtime in ((CARD, GPU), (PROCESSOR, CPU)):
        made = [replace(one, block_s=blocks) if one.kind == Kind.RACE else one for one in records(line, 1.0, [runtime])]
        machine = Machine(line, "card.json", tuple(made))
        epoch = machine.epoch(runtime, 32)
        assert epoch is not None
        assert ("wide: the host was busy" in view.interval(epoch)) is is_wide
        assert (machine.disturbed > 0) is is_wide
        assert ("wide: the host was busy" in view.article_table([machine], {})) is is_wide


def test_every_figure_is_a_row_with_its_cost(machines, learned):
    frame = view.figures([*machines, published_machines()[0]], {PROCESSOR: 3.6}, learned, 0.95)
    row = frame[(frame.machine == PROCESSOR) & (frame.trained_by == CPU.label) & (frame.batch_size == 32)].iloc[0]
    assert row.epoch_median_s == pytest.approx(0.1)
    assert row.thousand_epoch_dollars == pytest.approx(0.1)
    assert row.thousand_to_95_percent_dollars == pytest.approx(0.55)
    published = frame[frame.figures == "published"]
    assert len(published)
    assert published.epoch_q1_s.isna().all(), "no spread was published"
    assert frame[frame.machine == CARD].thousand_epoch_dollars.isna().all(), "no price"
