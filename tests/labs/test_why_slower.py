# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
"""The first section: its rows at a batch size, its sentence, and what it measures."""

import re
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from lib.labs import why_slower
from lib.labs.why_slower import MEASURED, PREDICTED, PUBLISHED, RECORDED, EpochRow, rows_html, sentence, ways_at
from lib.model.backends.registry import Runtime
from lib.model.spec import Network
from lib.sweeps.experiments.backend_race import BATCH_SIZES, Cell
from lib.sweeps.experiments.recorded_machines import Collection, exactly, recorded_here
from lib.sweeps.experiments.results import View
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import State
from lib.sweeps.workers.queue import Cancel, Request, Urgency
from lib.timing.profiling.request import Split
from lib.ui.controls import SHARED, SHARED_TODAY
from lib.ui.lab import Shown
from lib.ui.url_state import Address
from tests.conftest import ROOT
from tests.sweeps.experiments.test_backend_race import record

CARD = Runtime("torch", "gpu")


def way(runtime, epoch_s, where="2 cores here", source=MEASURED):
    return EpochRow(runtime, where, source, "", None if epoch_s is None else exactly(epoch_s))


@pytest.mark.parametrize("size", BATCH_SIZES)
def test_every_recorded_card_epoch_has_a_row_and_the_sentence_is_short(size):
    ways = ways_at(size, [])
    shown = {one.runtime for one in ways if one.source == RECORDED and one.runtime.on_gpu}
    recorded = {
        runtime
        for machine in recorded_here().machines
        for runtime in machine.runtimes
        if runtime.on_gpu and runtime.precision == "float32" and machine.epoch(runtime, size)
    }
    assert shown == recorded != set()
    assert 10 < len(sentence(ways).split()) <= 35
    times = [one.epoch.middle for one in ways]
    assert times == sorted(times)
    drawn = rows_html(ways)
    assert len(re.findall(r"<li ", drawn)) == len(ways)
    assert all(0 <= float(left) <= 100 for left in re.findall(r"left:([\d.]+)%", drawn))


def test_pending_rows_come_last_and_move_into_order_once_measured():
    waiting = ways_at(32, [], waiting=True)
    pending = [one.runtime for one in waiting if one.epoch is None]
    assert Runtime("numpy") in pending
    assert waiting[-len(pending) :] == [one for one in waiting if one.epoch is None]
    known = ways_at(32, [record(Cell(Runtime("numpy"), 32), [0.1, 0.1])], waiting=True)
    assert [one.source for one in known[:4]] == [*[RECORDED] * 3, MEASURED], "after both cards and sixteen cores"
    assert known[3].epoch.middle == 0.1
    assert len(known) == len(waiting), "no row comes or goes"
    assert "its host's" in sentence(known), "Numba is still to come, and would change it"
    assert "this machine's" in sentence(ways_at(32, [record(Cell(Runtime("numba"), 32), [0.1, 0.1])], waiting=True))
    parts = ways_at(32, [record(Cell(Runtime("numba"), 32), [9.0, 9.1], scaled=1)])
    assert [one.how for one in parts if "median of 2 scaled parts of an epoch" in one.how], "not of epochs"
    assert not [one for one in ways_at(32, []) if one.source == MEASURED], "nothing will come"


def test_the_sentence_is_about_one_card_and_its_host():
    ways = ways_at(32, [])
    assert len({way.where for way in ways if way.source == RECORDED and way.runtime.on_gpu}) > 1
    assert sentence(ways) == sentence([way for way in ways if not way.where.startswith("H200")])


def test_a_gain_over_a_disturbed_epoch_is_a_least_gain():
    keras, numba = way(Runtime("keras-tensorflow"), 3.0), replace(way(Runtime("numba"), 0.3), disturbed=True)
    assert "Rewritten in Numba: at least 10 times as fast." in sentence([numba, keras], keras)


def test_the_sentence_names_the_processor_the_card_and_why():
    numba, jax = Runtime("numba"), Runtime("jax-epoch", "gpu")
    small = [way(jax, 0.039, "H100", RECORDED), way(numba, 0.081), way(CARD, 1.6, "H100", RECORDED)]
    said = sentence(small)
    assert "it takes 1.6\u202fs, mostly overhead" in said
    assert "2 cores with Numba (81\u202fms an" in said
    assert "The H100 helps only when compiled whole: 2.1 times as fast" in said
    slow = sentence([small[1], way(jax, 0.1, "H100", RECORDED), small[2]])
    assert slow.startswith("The H100 does not help here: run eagerly it takes 20 times as long as")
    assert slow.endswith("; compiled whole, 1.2 times as long.")
    large = [way(CARD, 0.01, "H100", RECORDED), way(numba, 0.1)]
    assert re.search("arithmetic dominates: .* 10 times as long", sentence(large))
    alone = [way(numba, 0.1), way(Runtime("keras-jax"), 1.0)]
    assert "This machine's 2 cores take 100\u202fms" in sentence(alone)
    assert sentence([]) == sentence([way(numba, None)]) == ""
    assert sentence([way(numba, 1.0, "Core i9", PUBLISHED)]) == "", "another machine of another year says nothing here"


def test_the_readers_own_program_is_compared_with_every_way():
    keras = way(Runtime("keras-tensorflow"), 3.0)
    ways = [way(Runtime("jax-epoch", "gpu"), 0.03, "H100", RECORDED), way(Runtime("numba"), 0.3), keras]
    ways.append(way(CARD, 6.0, "H100", RECORDED))
    assert why_slower.used_today(ways, keras.runtime.address, 32, why_slower.NETWORK) is keras
    split = Split(1e-3, {"arithmetic": 4e-4, "launch and wait": 1e-4, "dispatch": 4e-4, "Python": 1e-4})
    keras_alone, keras_apart = (sentence(ways, keras, one).replace("\u202f", " ") for one in (None, split))
    assert keras_alone.endswith("an epoch. Rewritten in Numba: 10 times; JAX on the H100: 100 times as fast.")
    assert keras_apart == (
        "Change the library: Keras on TensorFlow takes 3.0 s an epoch, 60% overhead; adding a GPU, at most 2 times as"
        " fast. Rewritten in Numba: 10 times; JAX on the H100: 100."
    )
    assert sentence([ways[0], *ways[2:]], keras, split).startswith("Keras"), "no other library is measured here"
    assert "an epoch. Rewritten" in sentence(ways, keras, replace(split, step_s=2e-3)), "its parts do not add up"
    torch = sentence(ways, way(Runtime("torch"), 3.0), split)
    assert "an epoch, 60% overhead; on the H100, 0.5 times as fast. Rewritten in Numba" in torch, "as recorded"
    assert why_slower.with_a_gpu(Runtime("numpy"), split) == "", "it has no GPU"
    with_one = why_slower.with_a_gpu(keras.runtime, split).replace("\u202f", " ")
    assert with_one.startswith("At most 2 times as fast: Python and dispatch, 50% of the step, stay on the CPU.")
    assert "an L4 was 0.39 to 0.44 times as fast as 22 cores; a Quadro RTX 5000 0.58 to 1.8 times" in with_one
    compiled = [replace(ways[0], first_call_s=8.9), *ways[1:]]
    with_one = why_slower.with_a_gpu(keras.runtime, split, compiled, keras).replace("\u202f", " ")
    assert with_one.endswith(
        "JAX on the H100 compiles first: recorded first calls took up to 8.9 s, as long as 3 epochs of yours."
    )
    assert why_slower.with_a_gpu(keras.runtime, None).startswith("Published with Keras on TensorFlow")
    assert re.findall(r"· ([\d.]+×|yours)</span>", rows_html(ways, mine=keras)) == ["100×", "10×", "yours", "0.5×"]
    assert [one.backend for one, _ in why_slower.changes(ways, 32, mine=keras.runtime)] == ["keras-tensorflow"]
    eager = why_slower.used_today([], "torch/gpu", 32, why_slower.NETWORK)
    assert (eager.source, eager.where) == (RECORDED, "H100")
    assert "run eagerly" not in sentence(ways_at(32, []), eager)
    assert why_slower.used_today([], "keras-jax/gpu", 1, why_slower.NETWORK) is None
    programs, said, quick = map(why_slower.runtime, SHARED[SHARED_TODAY].options[1:]), [], way(Runtime("numba"), 0.1)
    for one, network, size in product(programs, (Network((128, 64)), Network((1024,))), (1, 64, 4096)):
        far, mine = ways_at(size, [], network), way(one, 27.0)
        said.append(sentence(sorted([quick, mine, *far], key=lambda row: row.epoch.middle), mine, split))
        said.append(sentence(far, why_slower.used_today(far, one.address, size, network), split))
    assert max(len(one.split()) for one in said) <= 35


def test_a_code_change_is_suggested_with_its_gain_here():
    keys = {"keras-tensorflow": 2.7, "keras-jax": 0.6, "jax-operation": 9.0, "jax-step": 0.5, "jax-epoch": 0.49}
    ways = [way(Runtime(key), epoch_s) for key, epoch_s in keys.items()]
    found = list(why_slower.changes([*ways, way(CARD, 1.0, source=RECORDED)], 32))
    assert [one.backend for one, _ in found] == ["keras-tensorflow", "jax-operation", "torch"]
    keras, operation, *others = (line for _, line in found)
    assert keras.endswith(
        '4.5 times as fast, measured here: `import os; os.environ["KERAS_BACKEND"] = "jax"  # before “import keras”`'
    )
    assert operation.startswith(
        "JAX, one call a step, 500\u202fms an epoch, 18 times as fast, measured here: `step = jax"
    )
    assert not any("jax.lax.scan" in one for one in others), "one call an epoch is worth no change here"
    assert any("torch.compile" in one and "recorded for AMD EPYC, 2 cores" in one for one in others)
    predicted = list(why_slower.changes([], 64, Network((128, 64))))
    assert re.search(r"as fast, predicted for AMD EPYC, 2 cores", predicted[0][1])
    assert list(why_slower.changes([], 256, Network((32, 32)))) == [], "nobody knows by how much"


def test_a_row_explains_its_difference_from_the_row_above():
    step, epoch = way(Runtime("jax-step"), 0.4), way(Runtime("jax-epoch"), 0.2)
    assert why_slower.apart(step, epoch) == "2 times the row above: the host makes one call a step, not one an epoch."
    assert "it runs on H100" in why_slower.apart(way(CARD, 4.0, "H100"), step)
    assert "in the row above products skip the images' zeros" in why_slower.apart(step, way(Runtime("numba"), 0.1))
    assert why_slower.apart(epoch, None) == why_slower.apart(way(CARD, None), step) == ""


@pytest.mark.parametrize("machines", [(), "damaged"])
def test_published_rows_remain_without_a_recorded_file(monkeypatch, tmp_path, machines):
    (tmp_path / "damaged.json").write_text("{")
    found = recorded_here(tmp_path) if machines else Collection(problems=("damaged",))
    monkeypatch.setattr(why_slower, "recorded_here", lambda: found)
    ways = ways_at(32, [])
    assert {one.source for one in ways} == {PUBLISHED}
    assert rows_html(ways).count("<li ") == 4
    assert "No recorded figure is near" in rows_html(ways_at(7, []))


@pytest.mark.parametrize(("hidden", "size"), [((128,), 64), ((128, 64), 64), ((256,), 8), ((512, 256), 100)])
def test_unrecorded_networks_are_predicted_and_marked_as_such(hidden, size):
    ways = ways_at(size, [], Network(hidden))
    assert {one.source for one in ways} == {PREDICTED}
    assert all(one.epoch.low < one.epoch.middle < one.epoch.high and "Predicted from" in one.how for one in ways)
    said = sentence(ways)
    helps = r"help.* when compiled whole: [\d.]+\xa0\([\d.]+–[\d.]+\) times as fast .*s \(predicted\), mostly"
    assert re.search(helps, said)
    assert len(said.split()) <= 35
    assert Network(hidden).whole_label in rows_html(ways, Network(hidden))


def test_nothing_is_predicted_at_or_far_from_recorded_points():
    assert PREDICTED not in {one.source for one in ways_at(32, [])}
    assert ways_at(4096, [], Network((4096, 4096))) == []


def test_cells_are_timed_once_and_after_the_first_experiment(monkeypatch, tmp_path):
    store, raced, urgencies, numbers, spoilt = Store(tmp_path / "results.sqlite"), [], [], [], list[str]()
    known, new = Cell(Runtime("jax-operation"), 32), Cell(Runtime("jax-epoch"), 32)
    first = SimpleNamespace(asked_as=Request().number)
    store.add(record(known, [0.1, 0.1]))

    def fake_race(cells, _engine, store, _cancel, request):
        raced.extend(cells)
        urgencies.append(request.urgency)
        numbers.append(request.number)
        store.add(found := record(cells[0], [0.2, 0.2], warnings=(spoilt.pop(),) if spoilt else ()))
        yield found

    monkeypatch.setattr(why_slower, "race", fake_race)
    found = list(why_slower.measure([new, known], False, first, (), None, store, Cancel(), Request()))
    assert ([one.block_s[0] for one in found], raced) == ([0.2, 0.1], [new])
    list(why_slower.measure([new, known], True, first, (), None, store, Cancel(), Request()))
    assert raced == [new, new, known], "asked for once more"
    assert urgencies == [Urgency.IN_ORDER, Urgency.IN_ORDER, Urgency.LATER]
    mine = Request()
    first.asked_as = 0  # as before the page has reached that experiment
    threading.Timer(0.1, lambda: setattr(first, "asked_as", Request().number)).start()
    for backend in ("jax-epoch", "numba", "numpy", "jax-operation"):
        list(why_slower.measure([Cell(Runtime(backend), 32)], True, first, (), None, store, Cancel(), mine))
        assert mine.number < first.asked_as < numbers[-1], "after the first experiment"
        assert urgencies[-1] == Urgency.IN_ORDER
    assert why_slower.cells_here(32)[-1].runtime.backend == "jax-operation"
    assert why_slower.cells_here(32, program="jax-operation/cpu")[0].runtime.backend == "jax-operation", "one's own"
    for spoilt[:] in (["one"], ["one", "two", "three"]):
        other = Cell(Runtime("numpy"), 64 * len(spoilt))
        list(why_slower.measure([other], False, first, (), None, store, Cancel(), Request()))
        assert raced.count(other) == 2, "once more if disturbed, but no more than that"


def test_parts_that_do_not_add_up_are_measured_once_more(monkeypatch, tmp_path):
    measured, store = [], Store(tmp_path / "results.sqlite")
    split = Split(1e-3, {"arithmetic": 4e-4})
    apart, whole, unknown = (
        SimpleNamespace(split=lambda _, one=one: one) for one in (split, replace(split, step_s=4e-4), None)
    )
    monkeypatch.setattr(why_slower, "measure_tasks", lambda todo, *_: iter(measured.append(todo) or ()))
    tasks, first = [apart, whole, unknown], SimpleNamespace(asked_as=1)
    assert list(why_slower.measure([], False, first, tasks, None, store, Cancel(), Request())) == []
    assert measured == [tasks, [apart]]


@pytest.mark.parametrize(
    ("who", "streams", "again", "measures"),
    [
        ("teacher", True, False, True),
        ("pupil", True, False, False),
        ("pupil", True, True, True),
        ("teacher", False, False, False),
    ],
)
def test_opening_a_page_in_a_class_or_a_script_measures_nothing(monkeypatch, tmp_path, who, streams, again, measures):
    monkeypatch.setattr(why_slower, "role", lambda: who)
    sections = dict.fromkeys(("net", "rate"), SimpleNamespace(stage=SimpleNamespace(streams=streams)))
    page = SimpleNamespace(store=Store(tmp_path / "results.sqlite"), sections=sections, address=Address())
    ask, _ = why_slower.answer(page, "")
    (_, n_wanted), _work = ask(why_slower.WhySlower({"size": 32, "today": "numpy/cpu"})).make(again)
    assert n_wanted == (len(why_slower.cells_here(32)) + 1 if measures else 0), "and the parts of a step of NumPy's"


def test_the_steps_of_the_readers_program_are_compared_with_its_epoch(monkeypatch):
    mine, split = way(Runtime("numpy"), 0.2), Split(2e-4, {"arithmetic": 1e-4, "dispatch": 6e-5, "Python": 4e-5})
    monkeypatch.setattr(why_slower, "known_at", lambda *_: ([mine], mine, split))
    _, draw = why_slower.answer(SimpleNamespace(address=Address()), "")
    at = why_slower.WhySlower({"size": 64, "today": "numpy/cpu"})
    below = draw(Shown(at, View([], State.DONE, "", "", 0), ([], 0), None)).below.replace("\u202f", " ")
    assert "750 such steps take 150 ms, a whole epoch 200 ms; the rest passes between the steps." in below


@pytest.mark.slow
def test_the_first_figure_is_drawn_without_slow_imports():
    code = (
        "import sys; from lib.labs import mnist_training; from lib.labs.why_slower import rows_html, sentence, ways_at;"
        "ways = ways_at(32, []); print(sentence(ways), rows_html(ways));"
        "print({'altair', 'pandas', 'matplotlib', 'scipy', 'jax', 'keras', 'tensorflow'} & {*sys.modules})"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "ways" in said
    assert said.splitlines()[-1] == "set()"
