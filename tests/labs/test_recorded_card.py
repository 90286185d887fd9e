"""Every row recorded on a card is shown by some section, for readers without a card."""

from collections import Counter
from collections.abc import Callable

import pytest

from lib.labs import why_slower
from lib.labs.inside_a_step.anatomy import (
    launches_table,
    operations_table,
    recorded_launches,
    recorded_operations,
    recorded_traps,
)
from lib.labs.operations_and_feeds.feeds import recorded_feeds
from lib.labs.operations_and_feeds.operations import (
    RECORDED,
    SINE_WAYS,
    recorded_at,
    recorded_lines,
    recorded_points,
    seconds_chart,
)
from lib.model.backends.registry import Runtime
from lib.sweeps.experiments.anatomy_of_a_step import TRAPS_NETWORK
from lib.sweeps.experiments.recorded_machines import EXPERIMENTS, Machine, card_of, recorded_here
from lib.sweeps.experiments.single_operations import OVERLAP_SIZES
from lib.sweeps.storage.records import Kind, Record

CARDS = [one for one in recorded_here().machines if one.has_gpu]
SECTIONS: dict[str, Callable[[Machine, Record], bool]] = {
    "Why slower?, and Which library?": lambda machine, one: one.kind == Kind.RACE and _is_raced(machine, one),
    "Machines compared": lambda machine, one: one.kind == Kind.RACE and _is_of_the_articles(one),
    "When a GPU wins, as points": lambda machine, one: one.kind == Kind.RACE and "hidden" in one.subject,
    "When a GPU wins, by what its steps cost": lambda _, one: one.kind in (Kind.STEP_TIME, Kind.CEILING),
    "Inside a step, its parts": lambda machine, one: one.subject.get("examination") == "parts",
    "Inside a step, operation by operation": lambda machine, one: any(
        one.subject == shown.subject for column in recorded_operations(machine).values() for shown in column.values()
    ),
    "Inside a step, how it is launched": lambda machine, one: any(
        one is shown for sizes in recorded_launches(machine).values() for shown in sizes.values()
    ),
    "Inside a step, its traps": lambda machine, one: (
        one.subject.get("examination") == "traps"
        and card_of(machine) in recorded_traps(int(one.subject["batch_size"]), TRAPS_NETWORK)
    ),
    "Operations": lambda _, one: any(one.subject == shown.subject for shown in _single_operations()),
    "The data feed": lambda machine, one: one.kind == Kind.PIPELINE and bool(recorded_feeds(machine)),
    "Many networks": lambda machine, one: one.kind in (Kind.MODELS, Kind.SWEEP),
}


def _is_raced(machine: Machine, one: Record) -> bool:
    runtime = Runtime(*(str(one.says(of)) for of in ("backend", "device", "precision")))
    return machine.epoch(runtime, int(one.subject["batch_size"])) is not None


def _is_of_the_articles(one: Record) -> bool:
    cells = {(network.label, size) for of in EXPERIMENTS.values() for network, size in of}
    return (one.subject["hidden"], one.subject["batch_size"]) in cells


def _single_operations() -> list[Record]:
    found = [*recorded_points("product", 2**20).values(), *recorded_points("sine", 2**30, depth=4).values()]
    found += [recorded_at("first use", 1024, 4).values(), recorded_at("fusion", 32, 4).values()]
    found += [recorded_at("overlap", size, 4, 8).values() for size in OVERLAP_SIZES]
    return [record for points in found for point in points for record in point.records.values()]


@pytest.mark.parametrize("machine", CARDS, ids=lambda one: one.name)
def test_every_recorded_row_has_a_section(machine):
    lost = [one for one in machine.records if not any(shows(machine, one) for shows in SECTIONS.values())]
    assert Counter((one.kind, str(one.subject)) for one in lost) == {}


def test_a_row_of_a_new_kind_has_no_section():
    (record,) = CARDS[0].records[:1]
    unknown = Record(**{**record.__dict__, "kind": Kind.FAILURE, "subject": {"what": "new"}})
    assert not any(shows(CARDS[0], unknown) for shows in SECTIONS.values())


def test_recorded_operations_of_a_card_are_drawn_dotted_and_hollow():
    cards = recorded_points("product", 1024)
    assert all(point.size <= 1024 for points in cards.values() for point in points)
    assert set(cards) == {"H100, PyTorch"}
    spec = seconds_chart(recorded_lines(cards, {"waited": ""}), 1024, list(cards), "n").spec
    rows = next(rows for rows in spec["datasets"].values() if rows and "filled" in rows[0])
    assert {(row["dash"], row["filled"]) for row in rows} == {(RECORDED, 0.0)}
    assert len(recorded_lines(recorded_points("sine", 2**30, 4), dict.fromkeys(SINE_WAYS, ""))) == 4


def test_the_ways_to_launch_a_step_on_a_card_have_a_table():
    (table,) = filter(None, map(launches_table, CARDS))
    assert all(way in table for way in ("eager", "compiled", "CUDA graph", "reduce-overhead"))


def test_the_operations_of_a_step_on_a_card_have_a_table():
    columns = recorded_operations(CARDS[0])
    assert len(columns) == 2
    table = operations_table(columns, True)
    assert all(name in table for name in columns)
    assert why_slower.PREDICTED not in table
