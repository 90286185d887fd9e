"""A plan for a card: asked in time of a stand-in that takes the seconds it claims, gone on with; bad ones refused."""

import itertools
import re
import tomllib
from dataclasses import replace
from types import MappingProxyType

import pytest

from lib import ROOT
from lib.cli import record as record_module
from lib.cli.record import CannotRecord, main, record
from lib.model.backends import cuda, registry
from lib.model.backends.registry import Runtime, Unavailable
from lib.model.hardware.nvidia_smi import Card
from lib.sweeps.experiments import full_recording, recording_plan
from lib.sweeps.experiments.full_recording import QUESTIONS, Battery, RecordingTask
from lib.sweeps.experiments.recording_plan import Entry, NoPlan, read_plan
from lib.sweeps.experiments.single_operations import OperationTask
from lib.sweeps.storage.export import read_export
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.cancel import Cancel
from lib.sweeps.workers.messages import CardLost
from lib.timing.measurement import Ended, Measurement
from lib.timing.profiling.request import OperationRequest

SHIPPED = ROOT / "recorded" / "plan.toml"
TASKS = 4  # that a question of the stand-in has
ONE = Measurement((1.0,), 1, Ended.CAP)
OF_A_CARD = [
    Runtime(backend.key, device, precision)
    for backend in registry.BACKENDS.values()
    for device in registry.DEVICES
    if device in backend.devices
    for precision in backend.offered(device)
]


class StandIn:
    """A card whose questions take the seconds that its plan claims, times `factor`, and of which some tasks fail."""

    def __init__(self, plan, factor=1.0, fails=lambda _: None, sources="this version", late=False):
        self.plan, self.factor, self.fails, self.sources, self.late = plan, factor, fails, sources, late
        self.now, self.asked = 0.0, []

    def clock(self):
        return self.now

    def questions(self):
        return MappingProxyType({name: lambda battery, name=name: self.tasks(name, battery) for name in QUESTIONS})

    def tasks(self, question, battery):
        entry = next(e for e in self.plan if e.question == question and e.among(OF_A_CARD) == list(battery.runtimes))
        runtime = battery.runtimes[0]
        return [
            RecordingTask(
                f"task {number}", runtime, lambda _, n=number: self.measured(entry, n, battery.store, runtime)
            )
            for number in range(TASKS)
        ]

    def measured(self, entry, number, store, runtime):
        self.now += self.factor * entry.expected_s / TASKS
        name = f"{entry.title}, {number}"
        error = self.fails(name)
        if error and not self.late:
            raise error
        self.asked.append(name)
        asked = OperationTask(runtime, OperationRequest("product")).subject
        one = replace(Record.of(Kind.OPERATION, asked | {"name": name, "work": 1.0}, ONE), sources=self.sources)
        store.add(one)
        yield one
        if error:
            raise error


@pytest.fixture
def card(monkeypatch):
    """Makes a stand-in of a card, which has all runtimes there can be."""
    monkeypatch.setattr(record_module, "usable_runtimes", lambda: OF_A_CARD)
    monkeypatch.setattr(recording_plan, "all_runtimes", lambda: OF_A_CARD)
    monkeypatch.setattr(full_recording, "cards", lambda: (Card("GPU-1", "A card", "580.1"),))
    monkeypatch.setattr(full_recording, "listed_now", lambda: {"GPU-1"})
    monkeypatch.setattr(Battery, "left_out", lambda _: [])
    monkeypatch.setattr(
        record_module, "about", lambda battery, took_s, _: {"asked": sorted(battery.asked), "took_s": took_s}
    )

    def make(plan, **how):
        stand_in = StandIn(plan, **how)
        monkeypatch.setattr(full_recording, "QUESTIONS", stand_in.questions())
        return stand_in

    return make


def asked_of(path):
    """Sources of each answer, by its name."""
    return {str(one.subject["name"]): one.sources for one in read_export(path).records if one.kind == Kind.OPERATION}


@pytest.mark.slow
def test_twelve_minutes_suffice_for_the_shipped_plan_in_two_calls_by_two_versions(card, tmp_path, capsys):
    plan, path = read_plan(SHIPPED, QUESTIONS), tmp_path / "card.json"
    first = card(plan, sources="an older version")
    assert record(path, 7, plan=plan, clock=first.clock) is False
    assert 6 * 60 < first.now <= 7 * 60
    assert "The same command goes on from here" in capsys.readouterr().out
    cached = asked_of(path)
    assert len(cached) == len(first.asked)
    second = card(plan)
    assert record(path, 5, plan=plan, clock=second.clock) is True, "nothing is left"
    assert second.now <= 5 * 60
    whole = asked_of(path)
    assert set(cached.values()) == {"an older version"}
    assert cached.items() < whole.items(), "what the older version recorded is kept, and says so"
    assert len(whole) == TASKS * len(plan)
    assert not set(first.asked) & set(second.asked)
    assert {whole[name] for name in second.asked} == {"this version"}


def test_what_does_not_fit_waits_and_what_follows_goes_before(card, tmp_path):
    plan = [Entry("ceilings", ("*/gpu",), 40), Entry("overlap", ("torch/gpu",), 60), Entry("race", ("cupy/gpu",), 10)]
    stand_in, path = card(plan), tmp_path / "card.json"
    assert record(path, 1, plan=plan, clock=stand_in.clock) is False
    assert [name.partition(" of")[0] for name in stand_in.asked] == ["ceilings"] * TASKS + ["race"] * TASKS
    assert stand_in.now == 50


def test_a_question_that_takes_too_long_is_left_and_goes_on_in_the_next_call(card, tmp_path, capsys):
    plan, path = [Entry("ceilings", ("*/gpu",), 10), Entry("race", ("*/gpu",), 10)], tmp_path / "card.json"
    slow = card(plan, factor=3.0)
    assert record(path, 1, plan=plan, clock=slow.clock) is False
    assert [name.partition(" of")[0] for name in slow.asked] == ["ceilings"] * 3 + ["race"] * 3
    assert "of which 10 were expected; left for the next call: 1" in capsys.readouterr().out
    again = card(plan)
    assert record(path, 1, plan=plan, clock=again.clock) is True
    assert len(again.asked) == 2
    assert again.now == 5, "a quarter of each is left"


@pytest.mark.parametrize("late", [False, True])
def test_a_card_that_disappears_half_way_leaves_its_rows_and_says_what_to_do(card, tmp_path, monkeypatch, capsys, late):
    """Before a question's first row, or after some of its rows."""
    plan, path = [Entry(name, ("torch/gpu",), 10) for name in ("ceilings", "race", "overlap")], tmp_path / "card.json"
    stand_in = card(
        plan, fails=lambda name: CardLost("the card is gone") if name.startswith("race") else None, late=late
    )
    monkeypatch.setattr(full_recording, "listed_now", lambda: set() if stand_in.now > 10 else {"GPU-1"})
    assert record(path, 1, plan=plan, clock=stand_in.clock) is False
    said = capsys.readouterr().out
    assert "the graphics card no longer answers; what was measured is kept: when `nvidia-smi -L` lists" in said
    assert stand_in.now == 12.5, "nothing more is asked"
    assert len(asked_of(path)) == TASKS + late
    back = card(plan)
    monkeypatch.setattr(full_recording, "listed_now", lambda: {"GPU-1"})
    assert record(path, 1, plan=plan, clock=back.clock) is True
    assert len(back.asked) == 2 * TASKS


def test_one_library_that_fails_ends_nothing_while_the_card_answers(card, tmp_path):
    plan = [Entry("race", ("torch/gpu",), 10), Entry("race", ("cupy/gpu",), 10)]
    stand_in = card(plan, fails=lambda name: CardLost("no such address") if "torch" in name else None)
    record(tmp_path / "card.json", 1, plan=plan, clock=stand_in.clock)
    assert len(stand_in.asked) == TASKS


def test_every_way_on_a_card_is_asked_whatever_the_table_has(tmp_path, monkeypatch):
    """A backend that is added to the table is raced, its calls are counted, and every question knows what to do."""
    on_cards = [one for one in OF_A_CARD if one.device == "gpu"]
    monkeypatch.setattr(full_recording.single_operations, "usable_runtimes", lambda: OF_A_CARD)
    monkeypatch.setattr(full_recording, "usable_memory_bytes", lambda _: 1e12)
    monkeypatch.setattr(full_recording.input_pipeline, "unavailable", lambda _: None)
    battery = Battery(None, Store(tmp_path / "s.sqlite"), Cancel(), OF_A_CARD)  # pyright: ignore[reportArgumentType]
    tasks = {title: make(battery) for title, make in QUESTIONS.items() if "accuracy" not in title}
    asked = {title: {task.runtime for task in todo} for title, todo in tasks.items()}
    for title in ("race", "CUDA calls of a step"):
        assert {one for one in asked[title] if one.device == "gpu"} == set(on_cards)
    assert asked["ways to launch a step"] == {Runtime("torch", "gpu"), Runtime("torch", "gpu", "tf32")}
    assert asked["products in bfloat16"] == {
        Runtime(backend, "gpu") for backend in ("jax-epoch", "torch", "keras-tensorflow")
    }
    assert asked["the traps"] == {Runtime("jax-epoch", "cpu"), Runtime("jax-epoch", "gpu")}
    names = [[task.name for task in todo] for todo in tasks.values()]
    assert all(len(set(of)) == len(of) for of in names), "a plan remembers by its name what was asked"
    processors = Battery(None, battery.store, Cancel(), [Runtime("numpy")])  # pyright: ignore[reportArgumentType]
    assert not {phase.title for phase in processors.questions()} & {*full_recording.ABOUT_CARDS}


ASK = '[[ask]]\nquestion = "race"\nof = ["*/gpu"]\nexpected_s = 10\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ASK.replace("race", "rase"), "plan.toml, question 1: expected one of ceilings, race, "),
        (ASK.replace("race", "rase"), ", got 'rase'; choose among these."),
        (ASK + ASK, "expected each question once, got race of */gpu twice; leave one out."),
        (
            ASK + ASK.replace("10", "0"),
            "question 2: expected more than 0 and up to 36,000 seconds in `expected_s`, got 0;",
        ),
        (ASK.replace("10", "inf"), "got inf; correct it."),
        (ASK.replace("10", '"10"'), "got '10'; correct it."),
        (ASK.replace('["*/gpu"]', '"gpu"'), "in `of`, got 'gpu'; correct it."),
        (ASK.replace("*/gpu", "jax-epok/gpu"), "or a pattern, got 'jax-epok/gpu'; correct it."),
        (ASK.replace("*/gpu", "torch/gpu/bfloat16"), "or a pattern, got 'torch/gpu/bfloat16'; correct it."),
        (ASK + 'and = "more"\n', "got and, expected_s, of, question; correct it."),
        ("ask = 3\n", "expected tables [[ask]] and nothing else, got ask; see recorded/plan.toml."),
        ("", "got none; see recorded/plan.toml."),
        ("[[ask]", "Expected a plan in TOML, got plan.toml ("),
    ],
)
def test_a_bad_plan_is_refused_in_a_sentence_before_anything_is_asked(tmp_path, monkeypatch, capsys, text, words):
    monkeypatch.setattr(record_module, "record", lambda *_: pytest.fail("it measured"))
    (tmp_path / "plan.toml").write_text(text)
    assert main([str(tmp_path / "a.json"), "--plan", str(tmp_path / "plan.toml")]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_plan_that_is_missing_is_said(tmp_path, capsys):
    assert main([str(tmp_path / "a.json"), "--plan", str(tmp_path / "none.toml")]) == 1
    assert "Expected a plan in TOML, got none.toml (No such file or directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("570.86", "needs NVIDIA driver 580 or newer, and this one is 570.86; update the driver"),
        ("", "no NVIDIA driver answers"),
    ],
)
def test_a_driver_that_is_too_old_or_missing_is_said_before_time_is_spent(tmp_path, monkeypatch, driver, words):
    monkeypatch.setattr(registry, "nvidia_driver_answers", lambda: bool(driver))
    monkeypatch.setattr(registry, "cards", lambda: (Card("GPU-1", "A card", driver, compute_capability=9.0),))
    monkeypatch.setitem(cuda.BUILDS, "jax", lambda _: 13)  # type: ignore[arg-type]
    monkeypatch.setattr(cuda, "driver_version", lambda: driver)
    plan = [Entry("ceilings", ("numpy/cpu",), 5), Entry("race", ("jax-*/gpu",), 10)]
    with pytest.raises(CannotRecord, match=words):
        record(tmp_path / "card.json", 1, plan=plan)
    assert not (tmp_path / "card.json").exists()


def test_a_library_that_was_not_brought_is_left_out_and_said(monkeypatch):
    here, missing = Runtime("torch", "gpu"), Runtime("keras-jax", "gpu")
    monkeypatch.setattr(recording_plan, "all_runtimes", lambda: [here, missing])
    monkeypatch.setattr(recording_plan, "unavailable", lambda _: Unavailable("keras is not installed", "install it"))
    plan = [Entry("race", (one.address,), 1.0) for one in (here, missing)]
    assert recording_plan.not_here(plan, [here]) == {
        plan[1]: "race of keras-jax/gpu: Keras on JAX, GPU: keras is not installed"
    }
    with pytest.raises(NoPlan, match="expected a card that can be used, as the plan asks for one, but keras is not"):
        recording_plan.not_here(plan[1:], [])


def test_a_plan_of_which_nothing_can_be_asked_here_asks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Battery, "run", lambda _: pytest.fail("it measured"))
    with pytest.raises(
        CannotRecord, match="expected a question that can be asked here, but race of webgpu-step/discrete"
    ):
        record(tmp_path / "card.json", 1, plan=[Entry("race", ("webgpu-step/discrete",), 1.0)])


def test_the_shipped_plan_says_what_each_question_takes():
    text = SHIPPED.read_text()
    asked = tomllib.loads(text)["ask"]
    sums = list(itertools.accumulate(one["expected_s"] for one in asked))
    assert sums[-1] <= 12 * 60
    before = text.partition("# Second call")[0].count("[[ask]]")
    assert 6 * 60 <= sums[before - 1] <= 7 * 60


def test_a_bare_machine_gets_locked_wheels_and_two_commands_that_can_be_read(monkeypatch):
    (names,) = re.findall(r"^BARE_NAMES := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    locked = {line.partition("==")[0] for line in (ROOT / "requirements-gpu.txt").read_text().splitlines()}
    assert set(names.replace("\\\n", " ").split()) <= locked
    (words,) = re.findall(
        r"python3 -m lib.cli.record (.+ 7)$", (ROOT / "deploy" / "README.md").read_text(), re.MULTILINE
    )
    asked = []
    monkeypatch.setattr(record_module, "record", lambda *of: asked.append(of) or True)
    monkeypatch.chdir(ROOT)
    assert main(words.split()) == 0
    ((path, minutes, *_, plan),) = asked
    assert (path.name, minutes, len(plan)) == ("card.json", 7, len(read_plan(SHIPPED, QUESTIONS)))
