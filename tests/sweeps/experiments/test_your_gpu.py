# pyright: reportArgumentType=false, reportOptionalIterable=false, reportOptionalMemberAccess=false
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.backends.base import initial_parameters
from lib.model.backends.registry import TRAINERS, Runtime
from lib.model.hardware.webgpu import BROWSER, SOFTWARE
from lib.model.spec import Network, Training
from lib.sweeps.experiments import your_gpu
from lib.sweeps.experiments.recorded_machines import browsers_in, collect
from lib.sweeps.experiments.your_gpu import USUAL_WAY, Block, BrowserAdapter, BrowserJob, Found, Opened, kept_machines
from lib.sweeps.storage.records import Record
from lib.sweeps.storage.store import Store, export_to
from lib.timing.comparison import Verdict, between, compared
from lib.timing.prediction.workload import Ceiling
from lib.ui.widgets import worker_scripts

APPLE = BrowserAdapter("apple", "metal-3")
WHO = Opened("Safari 26", "macOS", 8, True, True, "localhost", 1e-4, APPLE, [])
JOB = BrowserJob(Training(Network((16,)), 0.1, 32, 1))
CELL = (JOB.training.network, JOB.training.batch_size)
SWIFTSHADER = replace(WHO, reader="s", adapter=BrowserAdapter("google", "swiftshader", fallback=True))


def block(device: str, way: str, block_s: float, round: int, steps: int = 10) -> Block:
    return Block("training", device, block_s, steps, way, round=round)


def found(gpu_s=0.0, cpu_s=0.0, n=9, who=WHO, job=JOB, way=USUAL_WAY, drift=0.0) -> Found:
    one = Found(who, job)
    for pair in range(n):
        for device, of, step_s in (("gpu", way, gpu_s), ("cpu", "simd", cpu_s)):
            if step_s:
                one.take([block(device, of, 10 * step_s * (1 + drift * pair), pair)])
    return one


def product(device: str, side: int, seconds: float) -> list[Block]:
    return [Block("product", device, seconds, size=side, round=k) for k in range(9)]


BLOCK = {"is": "block", "of": "training", "device": "gpu", "way": "one_kernel", "steps": 40, "block_s": 0.05}


@pytest.mark.parametrize(
    "row",
    [
        None,
        {"is": "gossip"},
        BLOCK | {"of": "gossip"},
        BLOCK | {"way": "by magic"},
        BLOCK | {"device": "tpu"},
        BLOCK | {"steps": 0},
        BLOCK | {"block_s": -0.1},
        {"is": "evaluated", "device": "gpu", "train_s": 1.0, "loss": 0.3, "accuracy": 1.3},
        {"is": "failed", "device": "gpu", "way": "", "kind": "shader", "message": "x" * 10_000},
    ],
)
def test_what_is_no_measurement_is_refused_in_a_sentence(row):
    with pytest.raises(ValueError, match=r"expected a browser's measurements.*reload the page"):
        your_gpu.rows({"rows": [row]})


def test_sound_messages_become_rows():
    sent = [
        {"is": "block", "of": "first step", "device": "gpu", "way": "one_kernel", "block_s": 0.2},
        BLOCK,
        {"is": "evaluated", "device": "cpu", "train_s": 1.0, "loss": None, "accuracy": 0.1},
        {"is": "block", "of": "discarded", "device": "cpu", "block_s": 0.1},
    ]
    one = found()
    one.take(your_gpu.rows({"rows": sent}))
    assert [one.of for one in one.blocks()] == ["first step", "training", "discarded"]
    assert one.evaluated["cpu"].accuracy == 0.1


@pytest.mark.parametrize(
    "row", [block("gpu", "", 0.1, 0), your_gpu.Evaluated("cpu", 1.0, 0.1), your_gpu.Refusal("gpu", "", "lost")]
)
def test_a_page_that_sends_without_end_fills_no_memory(row):
    one = found()
    for _ in range(2):
        one.take([row] * your_gpu.MAX_ROWS)
    assert len(one.rows) == your_gpu.MAX_ROWS


def test_a_browser_starts_from_the_parameters_and_batches_of_all_backends():
    n_images = 1000
    parameters, starts = (
        np.frombuffer(one, kind) for one, kind in zip(JOB.buffers(n_images), ("<f4", "<u4"), strict=True)
    )
    layers = initial_parameters(JOB.training.network, 0)
    np.testing.assert_array_equal(parameters, np.concatenate([part.ravel() for layer in layers for part in layer]))
    assert starts.max() + JOB.training.batch_size <= n_images
    message = JOB.message(sizes=True)
    assert json.loads(json.dumps(message)) == message
    regions = message["program"]["regions"]
    assert sum(np.prod(one["shape"]) for name, one in regions.items() if name.startswith("layer ")) == len(parameters)
    assert len(message["empty"]["operations"]) == len(message["program"]["operations"])
    assert [one["side"] for one in message["products"]] == list(your_gpu.SIDES)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=6, max_size=30), st.floats(0, 0.01))
def test_a_rounded_clock_only_widens_the_interval(pairs, clock_s):
    sides = ([block("gpu", "", pair[side], k, 4) for k, pair in enumerate(pairs)] for side in (0, 1))
    wide = your_gpu.rounded_clock(*sides, clock_s)
    exact = compared([pair[0] / 4 for pair in pairs], [pair[1] / 4 for pair in pairs], paired=True)
    assert wide.low <= exact.low <= exact.ratio <= exact.high <= wide.high
    assert wide.ratio == exact.ratio
    if clock_s == 0:
        assert wide == exact


def test_only_whole_pairs_are_compared():
    one = found(0.001, 0.003)
    one.take([block("gpu", USUAL_WAY, 5.0, 99)])
    comparison = one.comparison()
    assert (comparison.n, comparison.verdict) == (9, Verdict.FASTER)
    assert found(0.001).comparison() is None


def test_the_border_is_where_the_gpu_is_faster_at_every_larger_size():
    one = found()
    assert one.border() is None
    for side, gpu_s, cpu_s in ((1, 0.002, 0.001), (2, 0.001, 0.009), (4, 0.02, 0.01), (8, 0.02, 0.08), (16, 0.02, 0.6)):
        one.take(product("gpu", side, gpu_s) + product("cpu", side, cpu_s))
    one.take(product("gpu", 32, 0.02))  # not measured on the CPU: it would take too long
    assert one.border() == 8


def test_sizes_are_kept_and_trainings_dropped_when_a_slider_moves():
    one = found(0.001, 0.002)
    one.take(product("gpu", 8, 0.1))
    assert one.again(JOB).rows == [], "else blocks of two rounds would be taken for neighbours"
    one.take([Block("copy", "gpu", 0.1, size=4), Block("empty", "gpu", 0.1, way=USUAL_WAY)])
    after = one.again(BrowserJob(Training(Network((8,)))))
    assert after.has_sizes
    assert {row.of for row in after.rows} == {"product", "copy"}


@pytest.mark.parametrize(
    ("empty_s", "product_s", "bound"),
    [(0.0009, 1e-6, Ceiling.DISPATCH), (1e-5, 0.3, Ceiling.PRODUCT), (1e-5, 1e-6, None)],
)
def test_a_part_that_takes_half_of_a_step_bounds_it(empty_s, product_s, bound):
    one = found(0.001, 0.002)
    one.take([Block("empty", "gpu", 10 * empty_s, 10, USUAL_WAY, round=k) for k in range(5)])
    one.take(product("gpu", 256, product_s))
    assert your_gpu.bound(*one.launching("gpu")) is bound


def test_copies_are_fitted_as_latency_and_bandwidth():
    one = found()
    one.take([Block("copy", "gpu", 1e-4 + n / 1e9, size=n, round=k) for n in your_gpu.COPIED_BYTES for k in range(5)])
    cost = one.copies("gpu")
    assert cost.latency_s == pytest.approx(1e-4, rel=0.01)
    assert cost.bytes_per_s == pytest.approx(1e9, rel=0.01)
    assert one.copies("cpu") is None


@pytest.mark.parametrize(
    ("adapter", "software"),
    [
        (BrowserAdapter("google", "swiftshader", fallback=True), True),
        (BrowserAdapter("mesa", description="llvmpipe (LLVM 19)"), True),
        (BrowserAdapter("microsoft", description="Microsoft Basic Render Driver"), True),
        (APPLE, False),
        (BrowserAdapter(), False),
    ],
)
def test_a_software_adapter_is_recognised_by_its_name(adapter, software):
    assert adapter.is_software is software
    assert adapter.name


def test_every_way_is_implemented_in_the_worker_script():
    for way in your_gpu.WAYS:
        assert f"{way}: async" in worker_scripts()["gpu"]
    assert [way for device, way in your_gpu.TRAINER_OF if device == "gpu"] == list(your_gpu.WAYS)
    assert all(trainer in TRAINERS for trainer in your_gpu.TRAINER_OF.values())


def test_the_processor_is_compared_by_the_way_of_its_pairs():
    one = found(0.001, 0.002)
    for round in range(9):
        one.take([block("cpu", way, block_s, -1 - round) for way, block_s in (("simd", 0.02), ("javascript", 0.2))])
    assert one.way("cpu") == "simd"
    assert one.of_way("cpu", "javascript").ratio == pytest.approx(10)
    assert one.of_way("gpu", "one_kernel") is None
    with_pairs = Found(WHO, JOB, [block("cpu", "javascript", 0.01, 0)])
    assert with_pairs.way("cpu") == "javascript"


def test_stored_browser_results_form_a_machine_of_their_own(tmp_path, store):
    assert your_gpu.records(found()) == []
    one = found(0.001, 0.004)
    one.take([Block("first step", "cpu", 0.2, way="simd")])
    for record in your_gpu.records(one):
        store.add(record)
    (machine,) = browsers_in(store)
    assert machine.name == "macOS, Safari 26 · 8 cores · apple metal-3"
    assert machine.has_gpu
    on_gpu, on_cpu = (
        machine.epoch(runtime, 32, Network((16,)))
        for runtime in (Runtime("webgpu-chunk", BROWSER), Runtime("wasm-simd"))
    )
    assert on_gpu.middle == pytest.approx(1.5), "1,500 steps of 1 ms"
    assert on_cpu.middle == pytest.approx(6.0)
    off_s = 1500 * WHO.clock_s / 10  # ten steps between clock readings
    assert (on_cpu.low, on_cpu.high) == pytest.approx((6.0 - off_s, 6.0 + off_s))
    comparison = between(on_gpu.estimate, on_cpu.estimate)
    assert (comparison.low, comparison.high) == pytest.approx(((1.5 - off_s) / 6.015, (1.5 + off_s) / 5.985))
    path = tmp_path / "export.json"
    export_to(path, store)
    assert collect([(path.name, path.read_text())]).problems == (), "it can be given to others"
    assert {record.subject["backend"] for record in machine.records} == {"webgpu-chunk", "wasm-simd"}
    assert all(record.subject["clock_s"] == WHO.clock_s for record in machine.records)
    for record in your_gpu.records(replace(one, who=replace(WHO, reader="another"))):
        store.add(record)
    assert len(browsers_in(store)) == 2, "an equal laptop of somebody else"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ('<img src="/?class=T">', "img src / class T"),
        ("$x$ `y` [z](w)", "x y z (w)"),
        ("AMD Radeon™ RX 7900 (RADV, 1.3+)\n", "AMD Radeon RX 7900 (RADV, 1.3+)"),
        ("a · b · no GPU\u202e", "a b no GPU"),
    ],
)
def test_public_machine_names_are_stripped_of_markup(said, kept):
    who = your_gpu.opened(
        {"browser": said, "platform": said, "cores": 8, "secure": True, "offered": True, "host": "[::1]"}
        | {"clock_s": 1e-4, "adapter": {"vendor": said}, "failed": []}
    )
    assert your_gpu.machine_of(who)[1] == f"{kept}, {kept} · 8 cores · {kept}"
    assert who.host == "[::1]"


def keep(store: Store, who: Opened, gpu_s: float, cpu_s: float, job: BrowserJob = JOB, way: str = USUAL_WAY) -> None:
    one = found(gpu_s, cpu_s, who=who, job=job, way=way, drift=0.001)
    your_gpu.keep(store, object(), your_gpu.records(one))


def test_stored_machines_are_limited_per_viewer_and_in_all(store, monkeypatch):
    machines, results = 8, 12
    monkeypatch.setattr(your_gpu, "MOST_MACHINES", machines)
    monkeypatch.setattr(your_gpu, "MOST_RECORDS", results)
    (record,) = your_gpu.records(found(cpu_s=0.002))

    def kept_of(offers: Iterable[tuple[object, Record]]) -> int:
        for viewer, one in offers:
            with suppress(ValueError):
                your_gpu.keep(store, viewer, [one])
        return len(store.records())

    assert kept_of(("a script", replace(record, machine=f"{n}")) for n in range(6)) == your_gpu.MOST_OF_A_VIEWER
    again = ((None, replace(record, machine="0", command=f"{n}")) for n in range(2 * results))
    assert kept_of(again) == your_gpu.MOST_OF_A_VIEWER - 1 + results
    assert kept_of((n, replace(record, machine=f"of {n}")) for n in range(2 * machines))
    assert len(browsers_in(store)) == machines
    with pytest.raises(ValueError, match=f"at most {machines} machines from all readers"):
        your_gpu.keep(store, "another", [record])
    your_gpu.keep(store, "a pupil's second tab", [replace(record, machine="of 0", command="later")])


def test_contests_are_sorted_by_the_gpus_lead(store):
    for name, platform, gpu_s in (("a", "macOS", 0.002), ("b", "macOS", 0.001), ("c", "Windows", 0.008)):
        keep(store, replace(WHO, reader=name, platform=platform), gpu_s, 0.004)
    keep(store, SWIFTSHADER, 0.02, 0.004)
    keep(store, replace(WHO, reader="d", adapter=None), 0, 0.004)
    machines = browsers_in(store)
    contests = your_gpu.contests(machines, *CELL)
    assert [one.comparison.ratio for one in contests[:4]] == pytest.approx([0.25, 0.5, 2, 5])
    assert contests[4].comparison is None
    assert [one.verdict for one in contests] == [Verdict.FASTER, Verdict.FASTER, Verdict.SLOWER, None, None]
    assert [one.is_software for one in contests] == [False, False, False, True, False]
    assert [one.gpu.runtime.device for one in contests if one.gpu] == [BROWSER] * 3 + [SOFTWARE]
    assert your_gpu.contests(machines, Network((8,)), 32) == your_gpu.contests(machines, CELL[0], 1) == []


def test_a_coarse_clock_leaves_a_contest_unclear(store):
    keep(store, replace(WHO, clock_s=0.01), 0.001, 0.002)
    (one,) = your_gpu.contests(browsers_in(store), *CELL)
    assert one.verdict is Verdict.UNCLEAR


def test_a_gpu_is_represented_by_its_fastest_way(store):
    for way, gpu_s in (("one_submission_a_step", 0.003), (USUAL_WAY, 0.002), ("waiting_after_each_operation", 0.04)):
        keep(store, WHO, gpu_s, 0, way=way)
    keep(store, WHO, 0, 0.004)
    (one,) = your_gpu.contests(browsers_in(store), *CELL)
    assert one.gpu.runtime.backend == "webgpu-chunk"


@pytest.mark.slow
def test_machines_stored_by_another_process_are_noticed(store, monkeypatch):
    assert kept_machines(store) == ()
    keep(Store(store.path), WHO, 0.001, 0.004)
    your_gpu._stamp.cache_clear()  # a second later
    assert [machine.name for machine in kept_machines(store)] == ["macOS, Safari 26 · 8 cores · apple metal-3"]
    monkeypatch.setattr(your_gpu, "browsers_in", None)  # nobody has written meanwhile, so nobody reads
    your_gpu._stamp.cache_clear()
    assert len(kept_machines(store)) == 1


def test_stored_results_are_anonymous(store):
    keep(store, replace(WHO, reader="4711"), 0.001, 0.004)
    (machine,) = browsers_in(store)
    assert "4711" not in repr(machine)
    assert "localhost" not in repr(machine)
