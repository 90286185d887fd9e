# pyright: reportArgumentType=false
"""All input to the notebooks, from people, links, command lines and attackers: every setting is used or answered by a
sentence, whatever the text."""

import importlib.metadata
import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace

import marimo as mo
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from marimo._entrypoints import registry
from marimo._runtime.executor import evaluator

from lib.labs import many_networks, your_gpu
from lib.labs import mnist_training as page
from lib.labs.inside_a_step import anatomy, trace
from lib.labs.operations_and_feeds import feeds as operations_and_feeds
from lib.labs.when_a_gpu_wins import work
from lib.labs.which_library import machines, race
from lib.model.spec import MAX_TEXT
from lib.sweeps.experiments import mnist_training as random_search
from lib.ui import opened, own_data
from lib.ui import random_search as search_page
from lib.ui.controls import settings_of
from lib.ui.notebooks import APP, SERVED
from lib.ui.url_state import Address, checked
from tests import made
from tests.conftest import ROOT
from tests.ui.test_mnist_training import answer_of

INSIDE_A_STEP = {"step": anatomy.Step, "live": trace.Live, "file": trace.TraceFile, "traps": anatomy.Traps}
MANY = {"compare": many_networks.ArticleSweep, "count": many_networks.Saturation, "mixed": many_networks.MixedWidths}
# Each notebook's settings, and their panels by the names in the address.
PAGES = {
    "mnist_training": settings_of(page.PANELS) | own_data.OwnData().settings,
    "which_library": race.Race.settings("race") | machines.Machines.settings("compare"),
    "inside_a_step": settings_of(INSIDE_A_STEP),
    "many_networks": settings_of(MANY),
    "operations_and_feeds": settings_of(operations_and_feeds.PANELS),
    "your_gpu": your_gpu.ReaderTraining.settings("yours"),
    "when_a_gpu_wins": settings_of(work.PANELS),
    "claims": {},
}


def experiment(prefix, values):
    return made.jobs(prefix)(page.PANELS[prefix].checked(prefix, values))


EVERY = [setting for known in PAGES.values() for setting in known.values()]
PANELS = page.PANELS | INSIDE_A_STEP | MANY | operations_and_feeds.PANELS | work.PANELS
PANELS |= {"data": own_data.DataChoice, "race": race.Race, "yours": your_gpu.ReaderTraining}
EXPERIMENTS = {
    **{prefix: partial(experiment, prefix) for prefix in page.EXPERIMENTS},
    "search": lambda values: search_page.trainings_of(search_page.SearchControls.checked("search", values).values),
}

# What people write, what they mistype, and hostile input.
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(-3, 5000), st.just(10**400)).map(str)
TEXTS = st.one_of(
    st.text(max_size=40),
    NUMBERS,
    st.lists(NUMBERS, max_size=4).map(",".join),
    st.just(""),
    st.just("x" * 20_000),
    st.sampled_from([option for setting in EVERY for option in map(str, setting.options)]),
)
# What any client may send as a control's value: anything that JSON can hold.
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.lists(TEXTS, max_size=3))
QUICKLY = hypothesis(suppress_health_check=[HealthCheck.function_scoped_fixture])


def panels_of(prefix, address):
    """Return the panels with this prefix; two pages have one called `compare`."""
    declared = [PANELS[prefix], machines.Machines] if prefix == "compare" else [PANELS[prefix]]
    return [mo.ui.dictionary(one.elements(prefix, address)) for one in declared]


CONTROLS = {f"{prefix}.{key}" for prefix in PANELS for made in panels_of(prefix, Address()) for key in made.elements}


def test_settings_and_controls_correspond():
    not_saved = {"compare.files", "file.files", "data.files", "data.path"}
    buttons = {
        name for name in CONTROLS if name.endswith((".stop", ".again", ".start", ".keep", ".mnist")) or ".apply" in name
    }
    pins = {f"{prefix}.pin" for prefix, one in page.PANELS.items() if one.PINS}  # a section makes their button
    assert CONTROLS - buttons - not_saved == {setting.name for setting in EVERY} - pins
    assert not [name for name, times in Counter(setting.name for setting in EVERY).items() if times > 1]


@QUICKLY
@given(st.data(), st.sampled_from(EVERY))
def test_any_text_in_an_address_is_used_or_reported(data, setting):
    said = data.draw(TEXTS)
    address = Address(arguments={setting.name: said})
    address.check({one.name: one for one in EVERY})
    value = address.read(setting)
    if address.problems:
        (sentence,) = address.problems
        assert setting.name in sentence
        assert "expected" in sentence
        assert len(sentence) < 900
        assert value == setting.usual
    panels_of(setting.name.partition(".")[0], address)


@QUICKLY
@given(st.data(), st.sampled_from(sorted(CONTROLS)))
def test_any_value_of_a_control_gives_an_experiment_or_an_error(data, control):
    """These values come from outside, so the browser's limits do not hold."""
    panel, _, key = control.partition(".")
    known = {one.name: one for one in EVERY}
    values = {name.partition(".")[2]: one.usual for name, one in known.items() if name.startswith(f"{panel}.")}
    sentence = ""
    try:
        found = checked(known, panel, values | {key: data.draw(VALUES)})
        if panel in EXPERIMENTS:
            EXPERIMENTS[panel](found)
    except ValueError as error:
        sentence = str(error)
    assert not sentence or "expected" in sentence
    assert len(sentence) < 900


@given(st.data(), st.sampled_from([one for one in EVERY if one.options]))
def test_saved_values_of_controls_read_back_unchanged(data, setting):
    value = st.sampled_from(setting.options)
    if isinstance(setting.usual, tuple):
        value = st.lists(value, min_size=2, max_size=2).map(sorted)
    value = data.draw(value)
    written = Parameters()
    panel, _, key = setting.name.partition(".")
    Address(written).save(panel, {key: value})
    assert Address(written).read(setting) == value


class Parameters(dict):
    def to_dict(self):
        return dict(self)


def test_a_text_of_20_mb_is_neither_parsed_nor_saved_in_the_address():
    text, written = "1," * 10_000_000, Parameters({"rate.epochs": "3"})
    Address(written).save("rate", {"hidden": text, "epochs": 4, "range": [0.001, 10.0], "backend": "numpy"})
    assert written == {"rate.epochs": "4", "rate.range": "0.001,10", "rate.backend": "numpy"}
    usual = {name.partition(".")[2]: one.usual for name, one in page.RateControls.settings("rate").items()}
    with pytest.raises(ValueError, match="expected at most 200 characters, got 20,000,000") as caught:
        page.RateControls.checked("rate", usual | {"hidden": text})
    assert len(str(caught.value)) < MAX_TEXT


def test_an_unknown_setting_is_reported_with_the_nearest():
    address = Address(arguments={"rate.epoch": "4", "file": "notebooks/claims.py", "utm_source": "mail"})
    address.check(PAGES["mnist_training"])
    assert address.problems == [
        "The address has rate.epoch, which is not a setting of this page; the nearest is rate.epochs. It is ignored."
    ]


def test_a_search_of_too_many_settings_is_refused():
    """One rate, three sizes, four widths, three depths; drawing used to loop forever."""
    space = random_search.Space(rates=(0.1, 0.1))
    with pytest.raises(ValueError, match="at most 36"):
        random_search.draw(space, 1024, 1, 0)
    assert len(set(random_search.draw(space, 36, 1, 0))) == 36


@given(st.sampled_from(page.RATE_STEPS), st.sampled_from(page.RATE_STEPS))
def test_the_size_of_a_space_counts_its_distinct_rates(low, high):
    low, high = sorted((low, high))
    space = random_search.Space((low, high), (32,), (16,), (1,))
    rates = {10.0} | {float(f"{mantissa}e{power}") for mantissa in range(100, 1000) for power in range(-6, -1)}
    assert space.size == sum(low <= rate <= high for rate in rates)


@pytest.mark.parametrize(
    ("name", "words", "wanted"),
    [
        ("mnist_training", ["--rate.epochs", "abc"], "--rate.epochs abc: expected one of 1, 2, 3"),
        ("mnist_training", ["--rate.epochs"], "--rate.epochs: expected one argument"),
        ("mnist_training", ["--rate.epoch", "5"], "got --rate.epoch; the nearest is --rate.epochs"),
        ("mnist_training", ["--nonsense", "1"], "Expected an option of mnist_training.py, got --nonsense"),
        ("mnist_training", ["nonsense"], "got nonsense"),
        ("mnist_training", ["--search.seed", "-1"], "--search.seed -1: expected a whole number from 0 to 9999"),
        ("mnist_training", ["--depth.own", "128, x"], "got “x”"),
        ("which_library", ["--race.view", "second"], "--race.view second: expected one of "),
        ("claims", ["--rate.epochs", "5"], "Expected an option of claims.py, got --rate.epochs"),
    ],
)
def test_a_wrong_option_is_refused_with_the_nearest(name, words, wanted, capsys):
    with pytest.raises(SystemExit) as ended:
        opened.script_options(PAGES[name], words, f"{name}.py")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert wanted in said
    assert said.count("\n") == 1


@QUICKLY
@given(
    st.sampled_from(sorted(PAGES)),
    st.lists(st.one_of(TEXTS, st.sampled_from([f"--{one.name}" for one in EVERY])), max_size=4),
)
def test_any_command_line_is_used_or_reported(name, words):
    status, found = None, {}
    try:
        found = opened.script_options(PAGES[name], words, f"{name}.py")
    except SystemExit as ended:
        status = ended.code
    assert status in (None, 0, 2), "0: help"
    address = Address(arguments=found)
    address.check(PAGES[name])
    assert not address.problems


def test_marimos_entry_points_are_read_once(monkeypatch):
    read = []

    def counted(**options):
        read.append(options)
        return importlib.metadata.entry_points(**options)

    monkeypatch.setattr(registry, "entry_points", counted)
    before = evaluator._EXECUTOR_REGISTRY.names()
    evaluator.resolve_executor()
    assert len(read) == 2, "marimo reads them only once by itself: then nobody need do it for marimo"
    for _ in range(2):  # for any number of viewers
        opened.opened("claims", {})
        assert evaluator._EXECUTOR_REGISTRY.names() == before
    assert len(read) == 3


@pytest.mark.parametrize(
    ("served", "meta", "wanted"),
    [
        ("", {"role": "pupil"}, opened.PUPIL),
        ("", {"role": "teacher"}, opened.TEACHER),
        ("", {"role": "headmaster"}, opened.PUPIL),
        ("", {}, opened.TEACHER),
        ("run", {}, opened.PUPIL),
        ("run", None, opened.PUPIL),
        ("edit", None, opened.TEACHER),
        (APP, {"role": "pupil"}, opened.TEACHER),
    ],
)
def test_the_role_follows_from_the_server(monkeypatch, served, meta, wanted):
    request = SimpleNamespace(meta=meta) if meta is not None else None
    monkeypatch.setattr(opened.mo, "app_meta", lambda: SimpleNamespace(request=request))
    monkeypatch.setenv(SERVED, served)
    assert opened.role() == wanted


@pytest.mark.slow
def test_a_script_with_a_wrong_option_exits_with_2_before_training():
    answer = answer_of(sys.executable, "mnist_training.py", "--search.seed", "99999999")
    assert answer.returncode == 2
    assert answer.stdout == ""
    said = "--search.seed 99999999: expected a whole number from 0 to 9999. See mnist_training.py --help.\n"
    assert answer.stderr == said


@pytest.mark.slow
def test_a_script_with_conflicting_settings_exits_with_2():
    answer = answer_of(sys.executable, "mnist_training.py", "--rate.range", "1,1")
    assert answer.returncode == 2
    assert answer.stderr.startswith("Learning rates: expected a range, got only 1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "notebook", ["mnist_training.py", pytest.param("notebooks/inside_a_step.py", marks=pytest.mark.release)]
)
def test_a_script_with_a_failed_experiment_exits_with_1(notebook, tmp_path):
    answer = answer_of(sys.executable, notebook, MNIST_NPZ=str(tmp_path), PYTHONPATH=str(ROOT))
    assert answer.returncode == 1
    assert f"expected a file, got {tmp_path}, which is not one" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert "waiting" not in answer.stdout
    if notebook == "mnist_training.py":
        assert answer.stdout.count(" not run") == 4
