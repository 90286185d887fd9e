# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lib.labs import claims, many_networks
from lib.labs.inside_a_step import anatomy
from lib.labs.which_library import machines, race
from lib.model.backends.registry import Runtime, versions
from lib.model.spec import Network
from lib.sweeps.experiments import published, recorded_machines
from lib.sweeps.experiments.recorded_machines import Seconds, collect, live_machine, recorded_here, total_of
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.workers.messages import Note
from lib.sweeps.workers.queue import Cancel
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import FIRST_CALL
from tests.labs.test_race import at, raced
from tests.machines import CARD, PROCESSOR, write

GPU, CPU = Runtime("jax-epoch", "gpu"), Runtime("jax-epoch")


@pytest.fixture
def card(tmp_path):
    return write(tmp_path / "card.json", CARD, 0.2, [GPU, Runtime("torch", "gpu")])


def only(path):
    (machine,) = collect([(path.name, path.read_text())]).machines
    return machine


@pytest.mark.slow
def test_a_machine_has_the_figures_of_its_export(card):
    machine = only(card)
    assert (machine.name, machine.source, machine.dates) == (CARD, "card.json", ("2026-11-01", "2026-11-01"))
    assert machine.runtimes == (GPU, Runtime("torch", "gpu"))
    assert machine.has_gpu
    epoch = machine.epoch(GPU, 32)
    assert (epoch.low, epoch.middle, epoch.high) == pytest.approx((0.195, 0.2, 0.205))
    assert epoch.n == 3
    assert machine.epoch(CPU, 32) is None
    assert machine.epoch(GPU, 32, Network((7,))) is None
    assert machine.disturbed == 0
    assert machine.split(GPU).step_s == pytest.approx(1e-4)
    assert machine.split(CPU) is None
    assert machine.models("gpu")["vmap", 8].middle == pytest.approx(0.01 / 8)


def test_an_experiment_sums_first_calls_epochs_and_evaluations(card):
    found = only(card).experiment("batch-size", GPU)
    assert found.middle == pytest.approx(3 * 0.5 + 9 * 0.2 + 9 * 0.01)
    assert found.high - found.low == pytest.approx(9 * 0.01)
    assert set(recorded_machines.EXPERIMENTS) == set(published.EXPERIMENT_S)


def test_a_sum_needs_all_its_parts():
    one, two = Seconds(0.5, 1.0, 1.25, 3), Seconds(1.5, 2.0, 2.5, 5)
    assert total_of([one, two]) == Seconds(2.0, 3.0, 3.75, 3)
    assert total_of([one]) == one
    assert total_of([one, None]) is None
    assert total_of([]) is None


@pytest.mark.slow
def test_two_exports_of_a_machine_are_merged_without_duplicates(card):
    text = card.read_text()
    found = collect([("a.json", text), ("b.json", text)])
    (machine,) = found.machines
    assert len(machine.records) == len(only(card).records)
    assert found.notes == (f"a.json and b.json are from the same machine ({CARD}): merged, each figure once.",)


def test_disturbed_measurements_are_counted(tmp_path):
    path = write(tmp_path / "a.json", PROCESSOR, 0.1, [CPU], warnings=("other programs kept 1.0 cores busy",))
    assert only(path).disturbed == 1


def test_a_bad_export_is_one_sentence_and_the_others_are_read(card):
    text = card.read_text()
    empty = json.dumps(json.loads(text) | {"measurements": []})
    found = collect([("x.json", text[:-400]), ("empty.json", empty), ("card.json", text)])
    assert [machine.source for machine in found.machines] == ["card.json"]
    cut_off, without = found.problems
    assert re.fullmatch(r"Expected an export, but x.json is not JSON or was cut off .*; export it again\.", cut_off)
    assert re.fullmatch(r"empty.json is an export without measurements; record some with .*", without)


@pytest.mark.slow
def test_dropped_exports_are_read_in_a_separate_process(card, monkeypatch):
    files = [("binary.json", b"\xff\xfe"), ("x.json", b"{"), ("card.json", card.read_bytes())]
    monkeypatch.setattr(recorded_machines, "collect", None)  # not in this process
    said, found = recorded_machines.read_exports(files, Cancel())
    assert said == Note("reading binary.json, x.json and card.json")
    assert isinstance(found, recorded_machines.Collection)
    assert [machine.source for machine in found.machines] == ["card.json"]
    assert "binary.json is not JSON" in found.problems[0]
    assert "x.json is not JSON" in found.problems[1]


def test_the_published_machines_are_marked_and_have_their_source():
    assert json.loads(published.FILE.read_text())["marked"] == "published"
    workstation, card, cores = machines = recorded_machines.published_machines()
    assert all(machine.is_published and machine.source and not machine.records for machine in machines)
    on_gpu, on_cpu = (Runtime("keras-tensorflow", device) for device in ("gpu", "cpu"))
    epoch = workstation.epoch(on_gpu, 4096)
    assert (epoch.middle, epoch.n) == (2.32, 0)
    assert card.experiment("batch-size", on_gpu).middle == 423
    assert cores.experiment("batch-size", on_cpu).middle == 164


def test_shipped_recordings_are_sound_and_machine_made():
    found = recorded_here()
    assert not found.problems
    assert found.machines, "the machine at hand is there"
    for machine in found.machines:
        for record in machine.records:
            assert re.match(r"python (-u )?-m lib\.(cli\.)?record ", record.command)
            assert "numpy" in record.versions
            assert record.machine_line == machine.name
            # Sweeps and first calls are timed once; cache sizes, kernel counts and occupancy are not times.
            name = str(record.subject.get("name"))
            is_time = name not in ("cache", "kernels") and not name.startswith("occupancy/")
            is_time = is_time and not name.endswith(FIRST_CALL)
            if is_time and record.kind in (Kind.RACE, Kind.ANATOMY, Kind.CEILING, Kind.MODELS):
                assert len(record.block_s) >= 2, record.subject


def test_recorded_cards_are_shown_with_machine_and_date(card, monkeypatch):
    for module in (claims, race, recorded_machines, many_networks):
        monkeypatch.setattr(module, "recorded_gpus", lambda: (only(card),))
    assert claims.epoch_note(32).startswith("Imaginary 9000, recorded 2026-11-01: an epoch at batch size 32 takes 200")
    assert " by JAX, one call an epoch; " in claims.epoch_note(32)
    hollow = many_networks.recorded(64, 32)
    assert {(point.count, round(1e3 * point.each_s, 1)) for _, point in hollow} >= {(1, 10.0), (8, 1.2)}
    assert many_networks.recorded(64, 256) == [], "they were recorded at one batch size"
    ends = many_networks.saturation_chart([], 64, hollow).spec["datasets"]["ends"]
    assert {row["label"] for row in ends} == {"Imaginary 9000, one after another", "Imaginary 9000, vmap"}
    pale = anatomy.recorded_splits(SimpleNamespace(hidden="128", size=32))
    assert any(of.startswith("Imaginary 9000, recorded: ") and one.share("arithmetic") for of, one in pale.items())
    rows = race.table([Runtime("numpy")], raced({}), at())["rows"]
    assert [(row["group"], row["label"]) for row in rows[1:3]] == [
        ("Imaginary 9000, recorded", runtime.short_label) for runtime in (GPU, Runtime("torch", "gpu"))
    ]
    assert rows[1]["cells"][0]["title"] == "Imaginary 9000, recorded 2026-11-01, not measured here"


def test_recorded_cards_are_hidden_on_a_machine_with_a_card(card, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_machines, "recorded_here", lambda: recorded_here(tmp_path))
    for answers, count in ((False, 1), (True, 0)):
        monkeypatch.setattr(recorded_machines, "nvidia_driver_answers", lambda answers=answers: answers)
        recorded_machines.recorded_gpus.cache_clear()
        assert len(recorded_machines.recorded_gpus()) == count
    recorded_machines.recorded_gpus.cache_clear()


def test_machines_of_the_same_make_are_numbered(card):
    names = [machine.name for machine in recorded_machines.with_unique_names([only(card)] * 3)]
    assert names == [CARD, f"{CARD} #2", f"{CARD} #3"]


def repetition(epoch_s: tuple[float, ...], batch_size: int, **other) -> Record:
    subject = {"backend": "jax-epoch", "device": "cpu", "batch_size": batch_size, "hidden": "128", "evaluation_s": 0.01}
    return replace(Record.of(Kind.RACE, subject, Measurement(epoch_s, 1, Ended.CAP), versions(CPU)), **other)


def test_this_machine_is_included_by_its_current_records(store):
    assert live_machine(store) is None
    for other in ("sources", "machine", "versions"):
        store.add(repetition((9.0,), 1, **{other: "another"}))
    assert live_machine(store) is None
    store.add(repetition((1.0, 2.0, 3.0), 32))
    machine = live_machine(store)
    assert (machine.live, machine.is_published, machine.runtimes) == (True, False, (CPU,))
    assert machine.epoch(CPU, 1) is None
    assert machine.epoch(CPU, 32) == Seconds(1.5, 2.0, 2.5, 3)
    assert machines.names([machine])[machine.name] == "this machine"
    assert machine.dated.startswith("live, 20")


def test_a_recording_of_one_round_still_has_its_sentence():
    (machine,) = [one for one in recorded_here().machines if not one.has_gpu]
    assert "times less (" in machines.article_sentence([machine])
