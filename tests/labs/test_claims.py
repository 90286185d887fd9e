"""The table of claims: a heading per article, a verdict per row, recorded cards where this machine has none. Verdicts
that rest on a measurement can go either way."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lib.labs import claims as lab
from lib.labs.claims import CELLS, CLAIMS, OCCUPANCY, ClaimStatus, Judgement, Known, cells_to_measure
from lib.model.backends.registry import ALL_DEVICES, Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments.anatomy_of_a_step import tasks
from lib.sweeps.experiments.backend_race import ROUNDS, Cell, Standing
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Repetitions, Verdict
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.operations import ALL, KERNELS, OPERATIONS, PRODUCT
from lib.timing.profiling.request import Split

HOLDS, NOT_HERE, CORRECTED, OPEN, NO_GPU = ClaimStatus


def standings(**seconds):
    """Return standings by cell: from `numpy_32=1.0`, or with quartiles, `numpy_32=(1.0, 1.1, 1.2)`.

    Devices other than the CPU come first: `gpu_keras_tensorflow_32`.
    """
    found = {}
    for name, second in seconds.items():
        first, _, rest = name.partition("_")
        device, name = (first, rest) if first in ALL_DEVICES else ("cpu", name)
        backend, _, size = name.rpartition("_")
        cell = Cell(Runtime(backend.replace("_", "-"), device), int(size))
        # quartiles of five values are the second and the fourth
        low, middle, high = second if isinstance(second, tuple) else (second,) * 3
        found[cell] = Standing(cell, (low, low, middle, high, high), (low, middle, high), False, (), "")
    return found


def judged(words, here):
    (claim,) = [claim for claim in CLAIMS if words in claim.text]
    return claim.judge(here)


def operations(**seconds: float) -> dict[str, dict[str, Repetitions]]:
    """Return each library's operations, all of the same duration; `_gpu` marks a library's rows on the GPU."""
    every = [*(operation.key for operation in OPERATIONS), ALL]
    return {
        name.replace("_gpu", ", GPU").replace("_", "-"): {key: repeated_thrice(one_s) for key in every}
        for name, one_s in seconds.items()
    }


def repeated_thrice(value, off=0.01):
    return Repetitions((value / (1 + off), value, value * (1 + off)))


def occupancy(*shares):
    return {name: repeated_thrice(share, off=0.001) for name, share in zip(OCCUPANCY, shares, strict=False)}


KERAS = Runtime("keras-tensorflow")


def keras_step(step_s, *arithmetic_s):
    """A step of Keras timed three times, with a split into parts per `arithmetic_s`."""
    each = [Split(step_s, {"arithmetic": one, "Python": step_s - one}) for one in arithmetic_s or (0.0,)]
    return {"splits": {KERAS: each}, "steps_s": {KERAS: repeated_thrice(step_s)}}


ALL_FASTER, ONE_SLOWER, ONE_UNCLEAR = (
    operations(numpy=1e-4, keras_tensorflow=3e-4, keras_tensorflow_gpu=5e-4) for _ in range(3)
)
ONE_SLOWER["keras-tensorflow, GPU"][OPERATIONS[0].key] = repeated_thrice(0.9e-4)
ONE_UNCLEAR["keras-tensorflow, GPU"][OPERATIONS[0].key] = repeated_thrice(1.1e-4, off=0.3)
SECOND = 93 * 512 * (4 * 784 * 128 + 6 * 128 * 10)  # FLOP/s at which an epoch's products in batches of 512 take 1 s
SAME_WORDS = "takes 4.4 s per epoch on a CPU"

# Invented figures on both sides of each border, and undecided ones.
MEASURED = [
    (SAME_WORDS, Known(standings(keras_tensorflow_32=1.0, gpu_keras_tensorflow_32=1.2)), HOLDS),
    (SAME_WORDS, Known(standings(keras_tensorflow_32=1.0, gpu_keras_tensorflow_32=1.01)), NOT_HERE),
    (SAME_WORDS, Known(standings(keras_tensorflow_32=(0.9, 1.0, 1.3), gpu_keras_tensorflow_32=1.2)), OPEN),
    (SAME_WORDS, Known(standings(keras_tensorflow_32=1.0)), NO_GPU),
    (SAME_WORDS, Known(), OPEN),
    ("NumPy takes longer", Known(standings(numpy_32=1.0, numpy_128=1.1)), HOLDS),
    ("NumPy takes longer", Known(standings(numpy_32=1.0, numpy_128=1.0)), NOT_HERE),
    ("NumPy takes longer", Known(standings(numpy_32=1.0, numpy_128=(0.8, 1.1, 1.4))), OPEN),
    ("NumPy takes longer", Known(standings(numpy_32=1.0)), OPEN),
    ("slows down again", Known(standings(numpy_2048=1.0, numpy_4096=1.3)), HOLDS),
    ("slows down again", Known(standings(numpy_2048=1.0, numpy_4096=0.9)), NOT_HERE),
    ("takes 0.14 s per epoch", Known(standings(jax_step_4096=(0.095, 0.1, 0.105), jax_epoch_4096=0.1)), HOLDS),
    ("takes 0.14 s per epoch", Known(standings(jax_step_4096=(0.2, 0.21, 0.22), jax_epoch_4096=0.1)), NOT_HERE),
    ("takes 0.14 s per epoch", Known(standings(jax_step_4096=0.16, jax_epoch_4096=0.1)), OPEN),  # within `DRIFT`
    ("takes 0.14 s per epoch", Known(standings(jax_step_4096=0.1)), OPEN),
    ("every single operation", Known(operations=ALL_FASTER), HOLDS),
    ("every single operation", Known(operations=ONE_SLOWER), NOT_HERE),
    ("every single operation", Known(operations=ONE_UNCLEAR), OPEN),
    ("every single operation", Known(operations=operations(numpy=1e-4, keras_tensorflow=3e-4)), NO_GPU),
    ("every single operation", Known(operations=operations(numpy=1e-4)), OPEN),
    ("no overhead", Known(**keras_step(1.0, 0.9, 0.91, 0.92)), HOLDS),
    ("no overhead", Known(**keras_step(1.0, 0.79, 0.8, 0.81)), NOT_HERE),
    ("no overhead", Known(**keras_step(1.0, 0.7, 0.8, 0.9)), OPEN),
    ("no overhead", Known(**keras_step(1.0, 0.5)), OPEN),  # a single repetition
    ("no overhead", Known(splits={KERAS: [Split(1.0, {"arithmetic": 0.9, "idle": 0.5})] * 3}), OPEN),
    ("no overhead", Known(), OPEN),
    ("dmon", Known(occupancy=occupancy(0.98, 0.97)), HOLDS),
    ("dmon", Known(occupancy=occupancy(0.98, 0.0125)), NOT_HERE),
    ("dmon", Known(occupancy=occupancy(0.98)), OPEN),
    ("dmon", Known(), NO_GPU),
    ("need CUDA", Known(standings(integrated_webgpu_chunk_32=2.0, jax_epoch_32=0.5)), NOT_HERE),
    ("need CUDA", Known(standings(discrete_webgpu_chunk_32=(1.9, 2.0, 2.2))), NOT_HERE),
    ("need CUDA", Known(standings(software_webgpu_chunk_32=2.0)), NO_GPU),
    ("eagerly", Known(**keras_step(1e-3), operations=operations(keras_tensorflow=1.1e-3)), NOT_HERE),
    ("eagerly", Known(**keras_step(1e-3), operations=operations(keras_tensorflow=0.5e-3)), OPEN),
    ("eagerly", Known(**keras_step(1e-3)), OPEN),
    ("fused kernel", Known(operations={"jax": {KERNELS: repeated_thrice(1, off=0)}}), HOLDS),
    ("fused kernel", Known(operations={"jax": {KERNELS: repeated_thrice(2, off=0)}}), NOT_HERE),
    ("fused kernel", Known(), OPEN),
    ("hard floor", Known(standings(jax_epoch_1=(0.29, 0.3, 0.31))), NOT_HERE),
    ("hard floor", Known(standings(jax_epoch_1=0.45)), OPEN),
    ("hard floor", Known(standings(jax_epoch_1=1.92, numba_1=0.2)), NOT_HERE),
    ("hard floor", Known(standings(numba_1=0.2)), NOT_HERE),
    ("hard floor", Known(), OPEN),
    ("dense matrix products", Known(standings(numba_512=0.5), product_flops_per_s=SECOND), NOT_HERE),
    ("dense matrix products", Known(standings(numba_512=1.6), product_flops_per_s=SECOND), HOLDS),
    ("dense matrix products", Known(standings(numba_512=1.4), product_flops_per_s=SECOND), OPEN),
    ("dense matrix products", Known(standings(numba_512=0.5)), OPEN),
    ("dense matrix products", Known(product_flops_per_s=SECOND), OPEN),
    ("Below 500,000", Known(), OPEN),
    ("0.77", Known(), OPEN),
]
BY_ARITHMETIC = ("1,500 training steps", "11.31", "45 times", "capacity", "210 μs", "22,500 steps", "multiply-adds")


@pytest.mark.parametrize(("words", "here", "verdict"), MEASURED)
def test_verdicts_follow_from_the_figures(words, here, verdict):
    assert judged(words, here).verdict is verdict


def test_no_claim_is_decided_without_measurements():
    verdicts = [claim.judge(Known()).verdict for claim in CLAIMS]
    assert verdicts.count(CORRECTED) == len(BY_ARITHMETIC)
    assert not {HOLDS, NOT_HERE} & set(verdicts)


def test_corrections_show_the_calculated_figures():
    assert judged("capacity", Known()).measured == "0.1% of the peak"
    assert "0.58" in judged("capacity", Known()).why
    assert judged("22,500 steps", Known()).measured == "18,000 training steps"
    assert judged("1,500 training steps", Known()).measured == "1,500 + 375 = 1,875 batches"
    assert judged("multiply-adds", Known()).measured == "3.2 million"
    assert "63 s over 18,000 steps is 3.5\u202fms per step, 17 times as much" in judged("210 μs", Known()).why
    assert "gives 17" in judged("45 times", Known()).why
    assert "a factor of 2.6" in judged("11.31", Known()).why


def test_verdicts_quote_the_measured_figures():
    here = Known(standings(jax_epoch_1=0.6, keras_tensorflow_32=2.0, keras_tensorflow_4096=0.3, jax_step_4096=0.1))
    assert judged("hard floor", here).measured == "12.5 μs for a whole step at batch size 1 by JAX, one call an epoch"
    assert judged("45 times", here).measured == "20 mixed, 3.0 with both at 4,096 (Keras on the CPU)"
    eager = Known(operations=operations(numpy=1e-4, keras_tensorflow=1e-3))
    assert "10.0 times" in judged("every single operation", eager).measured
    assert judged("fused kernel", Known(operations={"jax": {KERNELS: repeated_thrice(17, off=0)}})).measured.startswith(
        "17 kernels"
    )


def anatomy(task, seconds, at=None):
    """Return the records of one examination of a step, one per entry of `seconds`."""
    subjects = {name: task.subject | {"name": name, "work": 1.0} for name in seconds}
    made = [timed(Kind.ANATOMY, subjects[name], second, task.runtime) for name, second in seconds.items()]
    return made if at is None else [replace(one, measured_at=at) for one in made]


def timed(kind, subject, seconds, runtime):
    return Record.of(kind, subject, Measurement((seconds,) * 3, 1, Ended.CAP), versions(runtime))


EVERY_OPERATION = dict.fromkeys([*(o.key for o in OPERATIONS), ALL, PRODUCT, KERNELS], 1e-5)
EVERY_PART = {"step": 2e-4, "busy": 2e-4, "returns": 2e-5, "transfer": 1e-6, "fit-tiny": 3e-6, "call-tiny": 1e-6}
EVERY_PART |= {"many": 1e-4, "many-tiny": 0.0, "call": 1.5e-4}


def test_stored_records_are_read_as_known_figures():
    parts, operations = tasks([KERAS], Network((128,)), 32)
    cell = Cell(KERAS, 32)
    records = [timed(Kind.RACE, cell.subject | {"scaled": 0}, 1.0, KERAS)]
    records += anatomy(operations, EVERY_OPERATION)
    records += anatomy(operations, dict.fromkeys(list(EVERY_OPERATION)[:4], 3e-05))  # stopped early: does not count
    records += anatomy(operations, dict.fromkeys(EVERY_OPERATION, 2e-05))
    records += anatomy(parts, EVERY_PART)
    here = lab.known([KERAS], records)
    assert here.cells[cell].quartiles_s == (1.0, 1.0, 1.0)
    assert here.operations["keras-tensorflow"][ALL].values == pytest.approx((1e-5, 2e-5))
    assert here.splits[KERAS][0].parts_s["arithmetic"] == pytest.approx(1e-4)
    assert here.steps_s[KERAS].values == pytest.approx((2e-4,))


@pytest.mark.slow
def test_only_what_is_missing_is_measured(engine, tmp_path, monkeypatch):
    store = Store(tmp_path / "r.sqlite")
    assert {cell for cell in cells_to_measure([]) if cell.runtime.device == "cpu"} == set(CELLS)
    monkeypatch.setattr("lib.labs.claims.CELLS", (Cell(Runtime("numpy"), 4096),))
    monkeypatch.setattr("lib.labs.claims.usable_runtimes", lambda: [])
    events = list(lab.measure_missing(engine, store, Cancel(), Request()))
    assert len([one for one in events if not isinstance(one, Note)]) == ROUNDS
    assert cells_to_measure(store.records()) == []
    (standing,) = lab.known([], store.records()).cells.values()
    assert standing.repetitions >= 2, "one repetition has no spread: no two cells could be told apart"
    assert np.all(np.array(store.records(Kind.RACE)[0].block_s) > 0)


def test_times_in_another_precision_are_kept_separate():
    runtimes = [Runtime("jax-epoch"), Runtime("jax-epoch", precision="bfloat16")]
    examined = [task for task in tasks(runtimes, Network((128,)), 32) if task.examination.kind == "operations"]
    records = []
    for task in examined:
        records += anatomy(task, dict.fromkeys(EVERY_OPERATION, 1.0 + runtimes.index(task.runtime)))
    found = lab.known(runtimes, records).operations
    assert {library: of[ALL].values for library, of in found.items()} == {"jax": (1.0,), "jax, bfloat16": (2.0,)}


def on_days(cell, days, seconds=1.0):
    times = tuple(seconds * (1 + 0.001 * number) for number in range(len(days)))
    return Standing(cell, times, times, False, (), "", repeated_at=tuple(f"2026-11-{day}:00+00:00" for day in days))


@pytest.mark.parametrize(
    ("days", "others", "verdict"),
    [
        (["20T10:00", "20T10:10", "20T10:20"], ["20T10:05", "20T10:15", "20T10:25"], Verdict.SLOWER),
        (["20T10:00", "20T10:10", "20T10:20"], ["21T10:05", "21T10:15", "21T10:25"], Verdict.UNCLEAR),
        (["20T10:00", "20T10:10", "23T10:20"], ["23T10:05", "23T10:15", "23T10:25"], Verdict.UNCLEAR),
        (["20T10:00", "23T10:10", "23T10:20"], ["23T10:05", "23T10:15", "23T10:25"], Verdict.SLOWER),
    ],
)
def test_times_from_different_days_are_not_compared(days, others, verdict):
    one, two = Cell(Runtime("numpy"), 128), Cell(Runtime("numpy"), 32)
    here = Known({one: on_days(one, days, 1.2), two: on_days(two, others)})
    ratio = here.compare(one, two)
    assert ratio is not None
    assert ratio.verdict is verdict
    told = judged("NumPy takes longer at batch size 128", here)
    assert told.verdict is (HOLDS if verdict is Verdict.SLOWER else OPEN)
    assert "inf" not in told.measured


def test_two_cells_of_different_days_are_both_measured_again():
    days = ("2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00")
    made = [timed(Kind.RACE, cell.subject, 1.0, cell.runtime) for cell in CELLS for _ in range(ROUNDS)]
    records = [replace(one, measured_at=days[one.subject["batch_size"] == 128]) for one in made]
    again = [cell for cell in cells_to_measure(records) if cell.runtime == Runtime("numpy")]
    assert Counter(cell.batch_size for cell in again) == {128: ROUNDS, 32: ROUNDS}


def test_parts_of_a_step_are_measured_again_if_days_differ(monkeypatch):
    monkeypatch.setattr("lib.labs.claims.usable_runtimes", lambda: [KERAS])
    _, operations = wanted = lab.anatomy_tasks([KERAS])
    assert lab.anatomy_to_measure([]) == ROUNDS * wanted

    def on(*days):
        """Records of the parts and of the operations, with a repetition for each of their days."""
        made = zip(wanted, (EVERY_PART, EVERY_OPERATION), days, strict=True)
        return [one for task, seconds, at in made for day in at for one in anatomy(task, seconds, f"2026-11-{day}")]

    one_day = [f"20T10:{minute}0:00+00:00" for minute in range(ROUNDS)]
    other_day = [at.replace("20T", "21T") for at in one_day]
    assert lab.anatomy_to_measure(on(one_day, one_day)) == []
    assert lab.anatomy_to_measure(on(one_day, one_day[:2])) == [operations]
    assert lab.anatomy_to_measure(on(one_day, other_day)) == ROUNDS * wanted
    assert lab.anatomy_to_measure(on(one_day, [])) == ROUNDS * [operations]


# Claims that measured figures decide, with the cells whose times are equal here.
EQUAL = {
    SAME_WORDS: ["keras_tensorflow_32", "gpu_keras_tensorflow_32"],
    "NumPy takes longer": ["numpy_32", "numpy_128"],
    "slows down again": ["numpy_2048", "numpy_4096"],
    "takes 0.14 s per epoch": ["jax_step_4096", "jax_epoch_4096"],
    "hard floor": ["jax_epoch_1", "numba_1"],
    "dense matrix products": ["numba_512"],
    "every single operation": [],
    "eagerly": [],
    "no overhead": [],
    "dmon": [],
}
TRUE_S = {"takes 0.14 s per epoch": 0.14, "hard floor": 0.48}
DAYS = (  # of both sides' repetitions
    ((1, 1, 1), (1, 1, 1)),
    ((1, 1, 1), (2, 2, 2)),
    ((1, 1, 2), (1, 2, 2)),
    ((1, 2, 3), (3, 1, 2)),
    ((1, 1, 2), (2, 3, 3)),
)


@pytest.mark.slow
@pytest.mark.parametrize("words", EQUAL)
@pytest.mark.parametrize("drift", [0.05, 0.1])
def test_equal_figures_are_rarely_called_different_across_days(words, drift):
    """Each day scales a machine's times by a random factor (standard deviation `drift`), and each time has 4 % noise,
    too much for a verdict of “same”. Of 200 tries per order of days, at most a tenth may be decided."""
    rng = np.random.default_rng(7)

    def repeated(days, of_day, true=1.0):
        at = tuple(f"2026-11-2{day}T10:{number}0:00+00:00" for number, day in enumerate(days))
        return Repetitions(tuple(true * of_day[day] * np.exp(rng.normal(0, 0.04)) for day in days), at)

    for both in DAYS:
        wrong = 0
        for _ in range(200):
            of_day = np.exp(rng.normal(0, drift, 4))
            sides = [repeated(days, of_day, TRUE_S.get(words, 1.0)) for days in both]
            cells = {
                cell: replace(one, repetition_s=side.values, repeated_at=side.at)
                for (cell, one), side in zip(standings(**dict.fromkeys(EQUAL[words], 1.0)).items(), sides, strict=False)
            }
            keras, numpy, card = (
                {one.key: repeated(days, of_day) for one in OPERATIONS} | {ALL: repeated(days, of_day)}
                for days in (*both, both[1])
            )
            shares = [0.85 * np.exp(rng.normal(0, 0.02)) for _ in range(3)]
            here = Known(
                cells,
                {KERAS: [Split(1.0, {"arithmetic": one, "Python": 1 - one}) for one in shares]},
                {"keras-tensorflow": keras, "numpy": numpy, "keras-tensorflow, GPU": card},
                {KERAS: sides[1]},
                dict(zip(OCCUPANCY, sides, strict=True)),
                SECOND * of_day[0],  # measured on another day
            )
            wrong += judged(words, here).verdict is not OPEN
        assert wrong <= 0.1 * 200, f"{wrong} of 200 on days {both}"


def test_every_comparing_claim_is_tested_with_equal_figures():
    exact = {"fused kernel", "need CUDA", "Below 500,000", "0.77"}  # counted, present or not, or not decided here
    assert {words for words, *_ in MEASURED} == EQUAL.keys() | exact


def test_the_table_lists_every_claim_by_article_with_its_verdict():
    judged = [Judgement(status, "1 < 2", "because") for status, _ in zip(list(ClaimStatus) * 9, CLAIMS, strict=False)]
    text = lab.table(CLAIMS, judged)
    assert text.count('scope="row"') == len(CLAIMS)
    assert text.count('scope="colgroup"') == len({claim.source for claim in CLAIMS})
    assert all(status.value in text for status in ClaimStatus)
    assert "1 &lt; 2" in text


def test_the_sentence_uses_singular_and_plural():
    for status in ClaimStatus:
        one, two = (lab.sentence([Judgement(status, "", "")] * n) for n in (1, 2))
        assert one.startswith("Of 1 claims: 1 ")
        assert two.startswith("Of 2 claims: 2 ")
        assert one.partition("1 ")[2] != two.partition("2 ")[2]
