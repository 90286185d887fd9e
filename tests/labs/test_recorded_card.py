"""Every row recorded on a card is shown by some section, for readers without a card."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from lib.labs import why_slower
from lib.labs.inside_a_step import anatomy
from lib.labs.operations_and_feeds import operations
from lib.labs.operations_and_feeds.feeds import recorded_feeds
from lib.labs.operations_and_feeds.operations import recorded_at, recorded_lines, recorded_points
from lib.model.backends.registry import Runtime
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import TRAPS_NETWORK
from lib.sweeps.experiments.recorded_machines import Machine, card_of, recorded_here
from lib.sweeps.experiments.single_operations import OVERLAP_SIZES
from lib.sweeps.storage.records import Kind, Record

CARDS = [one for one in recorded_here().machines if one.has_gpu]
SECTIONS: dict[str, Callable[[Machine, Record], bool]] = {
    "Why slower?, Which library?, When a GPU wins": lambda machine, one: one.kind == Kind.RACE and _raced(machine, one),
    "When a GPU wins, by what its steps cost": lambda _, one: one.kind in (Kind.STEP_TIME, Kind.CEILING),
    "Inside a step, its parts": lambda machine, one: one.subject.get("examination") == "parts",
    "Inside a step, operation by operation": lambda machine, one: any(
        one.subject == shown.subject
        for column in anatomy.recorded_operations(machine).values()
        for shown in column.values()
    ),
    "Inside a step, how it is launched": lambda machine, one: any(
        one is shown for sizes in anatomy.recorded_launches(machine).values() for shown in sizes.values()
    ),
    "Inside a step, its traps": lambda machine, one: (
        one.subject.get("examination") == "traps"
        and card_of(machine) in anatomy.recorded_traps(int(one.subject["batch_size"]), TRAPS_NETWORK)
    ),
    "Operations": lambda _, one: any(one.subject == shown.subject for shown in _single_operations()),
    "The data feed": lambda machine, one: one.kind == Kind.PIPELINE and bool(recorded_feeds(machine)),
    "Many networks": lambda machine, one: one.kind in (Kind.MODELS, Kind.SWEEP),
}


def _raced(machine: Machine, one: Record) -> bool:
    runtime = Runtime(*(str(one.says(of)) for of in ("backend", "device", "precision")))
    epoch = machine.epoch(runtime, int(one.subject["batch_size"]), Network.parse(str(one.subject["hidden"])))
    return epoch is not None


@cache
def _single_operations() -> list[Record]:
    found = [*recorded_points("product", 2**20).values(), *recorded_points("sine", 2**30, depth=4).values()]
    found += [recorded_at("first use", 1024, 4).values(), recorded_at("fusion", 32, 4).values()]
    found += [recorded_at("overlap", size, 4, 8).values() for size in OVERLAP_SIZES]
    return [record for points in found for point in points for record in point.records.values()]


@pytest.mark.parametrize("machine", CARDS, ids=lambda one: one.name)
def test_every_recorded_row_has_a_section(machine):
    lost = [one for one in machine.records if not any(shows(machine, one) for shows in SECTIONS.values())]
    assert Counter((one.kind, str(one.subject)) for one in lost) == {}


def test_a_row_of_a_new_kind_or_of_an_epoch_that_no_section_takes_has_none():
    raced = next(one for one in CARDS[0].records if one.kind == Kind.RACE)
    of_seven = replace(raced, subject={**raced.subject, "batch_size": 7})
    for unknown in (replace(raced, kind=Kind.FAILURE, subject={"what": "new"}), of_seven):
        assert not any(shows(CARDS[0], unknown) for shows in SECTIONS.values())


def test_recorded_operations_of_a_card_are_drawn_dotted_and_hollow():
    cards = recorded_points("product", 1024)
    assert all(point.size <= 1024 for points in cards.values() for point in points)
    assert set(cards) == {"H100, PyTorch"}
    spec = operations.seconds_chart(recorded_lines(cards, {"waited": ""}), 1024, list(cards), "n").spec
    rows = next(rows for rows in spec["datasets"].values() if rows and "filled" in rows[0])
    assert {(row["dash"], row["filled"]) for row in rows} == {(operations.RECORDED, 0.0)}
    assert len(recorded_lines(recorded_points("sine", 2**30, 4), {way.way: "" for way in operations.SINE_WAYS})) == 4


def test_the_ways_to_launch_a_step_on_a_card_have_a_table():
    (table,) = filter(None, map(anatomy.launches_table, CARDS))
    assert all(way in table for way in ("eager", "compiled", "CUDA graph", "reduce-overhead"))


def test_the_operations_of_a_step_on_a_card_have_a_table():
    columns = anatomy.recorded_operations(CARDS[0])
    assert len(columns) == 2
    table = anatomy.operations_table(columns, True)
    assert all(name in table for name in columns)
    assert why_slower.PREDICTED not in table
