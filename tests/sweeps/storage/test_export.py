import copy
import errno
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.labs.which_library import machines as lab
from lib.model.backends.registry import DEVICES, Runtime
from lib.sweeps.experiments.anatomy_of_a_step import best_rate
from lib.sweeps.experiments.recorded_machines import collect, with_unique_names
from lib.sweeps.storage.records import ADDED, Kind, Record
from lib.sweeps.storage.store import NoExport, Store, export_to, import_from, parse_export
from lib.timing.measurement import Ended, Measurement
from tests.machines import CARD, write
from tests.sweeps.storage.test_store import key, lasting

TEXTS = ("subject", "block_s", "warnings", "training", "epochs")  # columns that hold JSON as text


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("sound") / "card.json"
    write(path, CARD, 0.2, [Runtime("jax-epoch", "gpu")])
    store = Store(path.with_suffix(".sqlite"))
    for seed in range(2):
        store.put(key(epochs=2, seed=seed), lasting(2))
    export_to(path, store, {"machine": CARD, "price_per_h": 0.5, "price_date": "2026-11-01", "took_s": 10.0})
    content = json.loads(path.read_text())
    for row in content["curves"]:
        row["machine"] = CARD[:5]
    return content


def use(store: Store, text: str, charts: bool = False) -> None:
    assert store.trouble == ""
    machines = with_unique_names(collect([("a.json", text)]).machines)
    asked = lab.works(lab.learned_from(machines), 0.95).items()
    judged = [one for name, of in asked if (one := lab.judge(machines, name, of)) is not None]
    shown = lab.judged_sentence(judged, machines) + lab.machines_list(machines)
    if charts:
        shown += lab.judged_chart(judged, machines).as_json + lab.article(machines).text
    (shown + (lab.epochs(machines).text if charts else "")).encode()
    for machine in machines:
        assert all(parts.drawn_s >= 0 for runtime in machine.runtimes if (parts := machine.split(runtime)) is not None)
        assert all(machine.models(device) is not None for device in DEVICES)
        assert all(best_rate(machine.records, device, "product") != 0 for device in DEVICES)
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "again.json"
        rows = export_to(again, store)
        assert import_from(again, Store(Path(folder) / "again.sqlite")) == (rows, rows)


def accepted(text: str, charts: bool = False) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder) / "a.json", Store(Path(folder) / "store.sqlite")
        path.write_text(text)
        refused = ""
        try:
            import_from(path, store)
        except NoExport as error:
            refused = str(error)
        if not refused:
            use(store, text, charts)
            return True
        assert refused.isprintable(), "one line, which every terminal can show"
        assert len(refused) < 600
        assert [store.rows(table) for table in ("curves", "measurements")] == [[], []]
        return False


def places(value: object, at: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for name, one in inner for place in places(one, (*at, name)))]


def rows_with(content: dict, change) -> dict:
    tables = {
        name: [row | {c: change(row[c]) for c in TEXTS if c in row} for row in content[name]]
        for name in ("curves", "measurements")
    }
    return content | tables


def put(content: dict, at: tuple, value: object) -> dict:
    changed = copy.deepcopy(content)
    inner = changed
    for name in at[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return changed


NUMBERS = [2**63, -(2**63) - 1, 10**400, 2**40, 0, -1, True, 1e308, 5e-324, float("nan"), float("inf")]
EDGES = [..., *NUMBERS, "\ud800", "", "a\nb", "7", {}, [], [{}]]
VALUES = st.sampled_from(EDGES) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.data())
def test_any_changed_value_is_refused_in_one_sentence_or_usable(sound, data):
    inside = data.draw(st.booleans(), "inside a column's JSON text")
    content = rows_with(sound, json.loads) if inside else sound
    table = data.draw(st.sampled_from(["curves", "measurements"]), "table")
    row = data.draw(st.sampled_from(range(len(content[table]))), "row")
    column = data.draw(st.sampled_from(sorted(content[table][row])), "column")
    within = places(content[table][row][column], (table, row, column))
    # Places outside of columns are tried only while the JSON texts are not decoded.
    outside = (
        [] if inside else [(table,), (table, row), *places(content["about"], ("about",)), ("format",), ("version",)]
    )
    at = data.draw(st.sampled_from([*within, *outside]), "place")
    changed = put(content, at, data.draw(VALUES, "value"))
    accepted(json.dumps(rows_with(changed, json.dumps) if inside else changed))


def test_a_sound_file_is_accepted_even_with_extreme_times(sound):
    assert accepted(json.dumps(sound), charts=True)
    for seconds in (1e-12, 1e9):
        texts = json.dumps([seconds] * 3)
        changed = sound | {"measurements": [row | {"block_s": texts} for row in sound["measurements"]]}
        assert accepted(json.dumps(changed), charts=True), seconds


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("curves", "every", 2**63, "every: Expected `int` <= 9007199254740992, got 9223372036854775808"),
        ("curves", "losses", "%%%", "base64"),
        ("curves", "epochs", "[" * 100_000, "nested too deeply"),
        (
            "measurements",
            "subject",
            "{}",
            "the row of {} is damaged (expected work in the subject (anatomy), got nothing); export it again",
        ),
        ("measurements", "subject", '{"name": "\\ud800", "work": 1.0}', "surrogates not allowed"),
        ("measurements", "steps_per_block", 2**63, "steps_per_block: Expected `int` <= 9007199254740992, got"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_an_unusable_row_is_named(sound, table, column, value, words):
    rows = sound[table]
    number = next(n for n, row in enumerate(rows) if row.get("kind", "anatomy") == "anatomy")
    text = json.dumps(put(sound, (table, number, column), value))
    with pytest.raises(NoExport) as caught:
        parse_export(text, "a.json")
    assert words in str(caught.value)
    assert not accepted(text)


def test_sizes_and_times_of_use_are_not_taken_from_the_file(sound, tmp_path):
    path, store = tmp_path / "a.json", Store(tmp_path / "store.sqlite")
    store.put(key(seed=8), lasting(2))
    path.write_text(json.dumps(put(put(sound, ("curves", 0, "n_bytes"), 2**40), ("curves", 0, "used_at"), 10**400)))
    import_from(path, store)
    store.put(key(seed=9), lasting(2))
    rows = store.rows("curves")
    assert len(rows) == 4
    assert {row["n_bytes"] for row in rows} == {32}
    assert max(row["used_at"] for row in rows) < 1e10


RACE = {"backend": "numpy", "device": "cpu", "batch_size": 32, "hidden": "128"}
MEASURED = Measurement((0.01, 0.012, 0.011), 100, Ended.SPREAD, warnings=("too few",))


def filled(store):
    store.add(Record.of(Kind.RACE, RACE, MEASURED, "numpy 2"))
    store.add(Record.of(Kind.ANATOMY, {"name": "product", "work": 1.0}, MEASURED))
    store.put(key(epochs=1), lasting(1))
    return store


def test_an_interrupted_export_keeps_the_previous_file(store, tmp_path, monkeypatch):
    def full(path, text):
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "a.json"
    export_to(file, filled(store))
    before = file.read_text()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        export_to(file, filled(store))
    assert file.read_text() == before
    assert not list(tmp_path.glob("*.writing"))


def test_export_and_import_give_the_same_rows_once(store, tmp_path):
    first, second, other = tmp_path / "a.json", tmp_path / "b.json", Store(tmp_path / "other.sqlite")
    assert export_to(first, filled(store)) == 3
    assert import_from(first, other) == (3, 3)
    assert import_from(first, other) == (3, 0)
    export_to(second, other)
    assert first.read_text() == second.read_text(), "stable order, nothing lost"
    curve = other.get(key(epochs=1))
    assert curve is not None
    np.testing.assert_array_equal(curve.losses, lasting(1).losses)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be|readable"),
        ('{"format": "less-overhead results", "vers', "cut off.*export it again"),
        ("[1, 2]", "another kind of file"),
        ('{"format": "something else"}', "another kind of file"),
        ('{"format": "less-overhead results", "version": 99}', "newer version.*update"),
        ('{"format": "less-overhead results", "version": 2, "measurements": [{"id": "x"}]}', "expected the columns"),
        ('{"format": "less-overhead results", "version": 2, "measurements": [7]}', "got int"),
        ("[" * 100_000, "nested too deeply"),
        ('{"format": "less-overhead results", "about": ' + "[" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_other_files_are_refused_and_change_nothing(store, tmp_path, content, words):
    filled(store)
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoExport, match=words) as refused:
        import_from(path, store)
    assert str(refused.value).isprintable()
    assert len(store.records()) == 2


def test_an_export_of_an_earlier_version_is_read(store, tmp_path):
    path = tmp_path / "a.json"
    export_to(path, filled(store))
    content = json.loads(path.read_text())
    for table, added in ADDED.items():
        for row in content[table]:
            for column in added:
                del row[column]
    path.write_text(json.dumps(content | {"version": 2}))
    empty = Store(tmp_path / "empty.sqlite")
    assert import_from(path, empty) == (3, 3)
    assert empty.rows("curves") == store.rows("curves")
