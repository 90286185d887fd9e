"""The race's table in each of its views, and the sentence below it, from literal figures."""

import re
from dataclasses import replace

import pytest

from lib.backends.registry import Runtime
from lib.experiments.backend_race import (
    BATCH_SIZES,
    Cell,
    all_cells,
    standings,
    time_left_s,
)
from lib.views.backend_race import LEAST_GROUND, Shown, key_of, sentence, table
from tests.experiments.test_backend_race import JAX, KERAS, NUMPY, record


def test_the_table_shows_what_is_known_and_what_was_published():
    cells = [Cell(JAX, 32), Cell(KERAS, 32)]
    known = standings(cells, [record(cells[0], [0.2, 0.2]), record(cells[1], [2.0, 2.0])])
    seconds = table([JAX, KERAS], BATCH_SIZES, known, running=Cell(JAX, 512))
    assert [row["cells"][1]["text"] for row in seconds["rows"][:2]] == ["200 ms", "2.00 s"]
    assert seconds["rows"][0]["cells"][3]["text"] == "…", "being measured"
    assert seconds["rows"][0]["cells"][0]["text"] == "–"
    published = [row for row in seconds["rows"] if row["label"].startswith("published")]
    assert len(published) == 4
    assert "6.26 s" in [cell["text"] for cell in published[0]["cells"]]
    faster = table([JAX, KERAS], BATCH_SIZES, known, Shown("speed-up", KERAS))
    assert [row["cells"][1]["text"] for row in faster["rows"]] == ["10 ×", "1 ×"]
    cost = table([JAX], BATCH_SIZES, known, Shown("cost", price_per_h=0.936, price_date="2026-11-01"))
    assert cost["rows"][0]["cells"][1]["text"] == "$0.052"
    assert cost["scale"]["low"] == "$0.052"
    assert "price of 2026-11-01" in cost["rows"][0]["cells"][1]["title"]
    assert table([JAX], BATCH_SIZES, known, Shown("cost"))["rows"][0]["cells"][1]["text"] == "set a price"
    assert "10.0 times as long" in sentence(known)
    assert sentence({}) == ""
    assert time_left_s(cells, {}) is None
    assert time_left_s(cells, known) == pytest.approx(4 * 0.2 + 0.3 + 3.5 + 0.3)


def test_a_row_of_a_card_says_where_its_batches_come_from():
    """PyTorch takes them from images that lie on the card; a compiled step of JAX and Keras are sent each."""
    sent, held = ("jax-step", "jax-operation", "keras-jax"), ("jax-epoch", "torch", "torch-compiled", "cupy")
    made = table([Runtime(backend, "gpu") for backend in (*sent, *held)], BATCH_SIZES, {})["rows"]
    ends = [row["label"].endswith(", each batch from the host") for row in made[: len(sent) + len(held)]]
    assert ends == [True] * len(sent) + [False] * len(held)
    recorded = {row["label"] for row in made if ", recorded " in row["label"]}
    assert {"each batch from the host" in label for label in recorded} == {True, False}
    assert "host" not in table([Runtime("jax-step")], BATCH_SIZES, {})["rows"][0]["label"]


# Seconds an epoch: NumPy wins at 32, JAX at 512; Keras is measured at 32 only.
MEASURED = {Cell(NUMPY, 32): 0.1, Cell(JAX, 32): 0.2, Cell(KERAS, 32): 5.9, Cell(NUMPY, 512): 0.3, Cell(JAX, 512): 0.05}


@pytest.mark.parametrize(
    ("shown", "best", "darkest", "ends"),
    [
        (Shown("seconds"), {Cell(NUMPY, 32), Cell(JAX, 512)}, Cell(KERAS, 32), (r"50(\.0)? ms", r"5\.90? s")),
        (Shown("speed-up", KERAS), {Cell(NUMPY, 32)}, Cell(NUMPY, 32), ("1 ×", "59 ×")),
        (Shown("speed-up", NUMPY), {Cell(NUMPY, 32), Cell(JAX, 512)}, Cell(JAX, 512), (r"0\.017 ×", "6 ×")),
        (Shown("cost", price_per_h=3.6), {Cell(NUMPY, 32), Cell(JAX, 512)}, Cell(KERAS, 32), (r"\$0\.05", r"\$5\.9")),
    ],
    ids=["seconds", "than Keras", "than NumPy", "cost"],
)
def test_each_view_has_its_scale_and_its_winners(shown, best, darkest, ends):
    known = standings(list(MEASURED), [record(cell, [epoch_s] * 3) for cell, epoch_s in MEASURED.items()])
    runtimes, sizes = [NUMPY, JAX, KERAS], (32, 512)
    made = table(runtimes, sizes, known, shown)
    cells = {
        Cell(runtime, size): cell
        for runtime, row in zip(runtimes, made["rows"], strict=False)
        for size, cell in zip(sizes, row["cells"], strict=True)
    }
    levels = {cell: drawn["level"] for cell, drawn in cells.items() if drawn["level"] is not None}
    assert {cell for cell, drawn in cells.items() if drawn["best"]} == best
    assert levels[darkest] == 1.0 == max(levels.values())
    assert min(levels.values()) == LEAST_GROUND > 0, "what is measured is never blank"
    assert cells[Cell(KERAS, 512)]["level"] is None, "what is not measured has no ground"
    events = [made["scale"][end].replace("\u202f", " ") for end in ("low", "high")]
    assert all(re.fullmatch(end, text) for end, text in zip(ends, events, strict=True)), events
    values = {cell: float(re.sub(r"[^0-9.]", "", cells[cell]["text"])) for cell in levels if shown.view != "seconds"}
    by_value = sorted(values, key=values.__getitem__)
    assert sorted(values, key=levels.__getitem__) == by_value, "the larger the figure, the stronger the ground"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (Shown("seconds"), "Fastest so far: JAX, one call an epoch at batch size 512, 50"),
        (
            Shown("speed-up", KERAS),
            "Farthest ahead of Keras on TensorFlow at the same batch size: NumPy at 32, 59 × as fast.",
        ),
        (Shown("speed-up", Runtime("keras-jax")), "Keras on JAX is not measured yet"),
        (
            Shown("cost", price_per_h=3.6),
            "Cheapest so far: JAX, one call an epoch at batch size 512, $0.05 for 1,000 epochs.",
        ),
        (Shown("cost"), "set the $ per hour"),
        (Shown("target"), "counted after the race"),
        (Shown("target-cost", price_per_h=3.6), "counted after the race"),
    ],
)
def test_the_sentence_speaks_of_the_chosen_view(shown, words):
    known = standings(list(MEASURED), [record(cell, [epoch_s] * 3) for cell, epoch_s in MEASURED.items()])
    events = sentence(known, shown).replace("\u202f", " ")
    assert words in events
    assert ("Fastest so far" in events) == (shown.view == "seconds")


def test_cells_of_different_days_are_not_told_apart():
    cells = [Cell(JAX, 32), Cell(KERAS, 32)]
    days = ("2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00")

    def at(*day_of):
        found = [
            replace(record(cell, [second] * 2), measured_at=day)
            for cell, second, day in zip(cells, (0.2, 2.0), day_of, strict=True)
        ]
        return standings(cells, found * 3)

    one_day, apart = at(days[0], days[0]), at(*days)
    told = [
        table([JAX, KERAS], BATCH_SIZES, known, Shown("speed-up", KERAS))["rows"][0]["cells"][1]["title"]
        for known in (one_day, apart)
    ]
    assert told[0].endswith("from 3 repetitions of each): faster")
    assert told[1] == "10 times as fast, without two repetitions of each in one session: not told apart"
    assert ["not told apart" in sentence(known) for known in (one_day, apart)] == [False, True]


def test_keys_are_unique():
    cells = all_cells([NUMPY, JAX, KERAS])
    assert len({key_of(cell) for cell in cells}) == len(cells)
    assert all(re.fullmatch(r"[a-z-]+/(cpu|gpu)/\d+", key_of(cell)) for cell in cells)
