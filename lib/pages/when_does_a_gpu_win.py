"""Connects the notebook on when a GPU wins to marimo: two sides, an imagined card, ways to drive it, cost.

All sections watch this machine's calibrations and are drawn again when these change; what a control says is asked of
predictions, which take milliseconds, so nothing runs in the background but the calibration and one measurement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import marimo as mo

from lib.data.mnist import recognised
from lib.experiments import time_to_accuracy
from lib.experiments import when_does_a_gpu_win as experiment
from lib.experiments.background import BackgroundTask
from lib.experiments.calibration import Trained
from lib.experiments.kept_machines import kept_in
from lib.experiments.known_devices import known_devices, of_machine
from lib.experiments.live_calibration import LiveCalibrations
from lib.experiments.published_predictions import published_rows
from lib.experiments.recorded_machines import recorded_gpus, recorded_here, told_apart
from lib.experiments.when_does_a_gpu_win import (
    CHANGEABLE,
    MOVES,
    Recorded,
    Side,
    calibrated_side,
    known_side,
    recorded_ways,
    surface,
)
from lib.formatting import sentence
from lib.once import once
from lib.pages import layout, live_calibration
from lib.pages.controls import Control, Controls, dropdown, number, settings_of, slider
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_at_changes, paint_while_it_runs, refuse, say
from lib.pages.url_state import Address, Setting
from lib.prediction.calibration import NotCalibrated
from lib.prediction.device import Device, DoesNotFit, UnusableDevice
from lib.prediction.question import MOST_PER_H
from lib.prediction.workload import Way, fully_connected
from lib.spec import Network
from lib.storage.store import Store
from lib.views import when_does_a_gpu_win as view
from lib.views import when_does_a_gpu_win_charts as charts

Values = Mapping[str, Any]
WAYS = {"operations": Way.OPERATIONS, "step": Way.STEP, "epoch": Way.EPOCH, "graph": Way.GRAPH}  # as in an address
WAY_NAMES = {str(way): key for key, way in WAYS.items()}
HERE = "here/"  # begins the address of a way to train of this machine
RECORDED = "recorded/"  # begins that of a way to train of another, which was calibrated there
STAND_INS = ("i9-10885h/jax-step/step", "l4")  # for a side of this machine that is not calibrated yet
DEPTHS, NETWORKS = (1, 2, 3, 4), (1, 2, 4, 8, 16, 32, 64, 128)
FACTORS = tuple(2.0**power for power in range(-6, 7))
COUNTED_SIZES = tuple(time_to_accuracy.RATES)  # at which epochs to an accuracy are counted
ASKED_SIZE, ASKED_WIDTH = 32, 128
NETWORK = Network()


@once
def devices() -> dict[str, Device]:
    """The devices that are known by their figures, by key."""
    return known_devices()


@once
def elsewhere() -> dict[str, Recorded]:
    """The ways to train of the recorded machines, by their address behind `RECORDED`."""
    return recorded_ways(told_apart(recorded_here().machines))


def _calibrated(on_gpu: bool) -> dict[str, str]:
    """Labels of the ways to train on a card, or on none, that are or were calibrated, with their addresses.

    This machine's come first, then those of recorded machines.
    """
    ways, others = live_calibration.by_address().items(), elsewhere().items()
    here = {f"{one.label}, here": HERE + key for key, one in ways if one.runtime.on_gpu is on_gpu}
    return here | {one.label: RECORDED + key for key, one in others if one.trained.runtime.on_gpu is on_gpu}


def _processors() -> dict[str, str]:
    """Labels of what may stand on the left, with their addresses: what was calibrated, then known processors."""
    known = {
        f"{device.name}, {device.driven(way)}": f"{key}/{name}"
        for key, device in devices().items()
        if not device.on_gpu
        for name, way in WAYS.items()
        if way in device.ways
    }
    return _calibrated(on_gpu=False) | known


def _cards() -> dict[str, str]:
    """Labels of what may stand on the right, with their addresses: cards that were calibrated, then known ones."""
    return _calibrated(on_gpu=True) | _known_cards()


def _known_cards() -> dict[str, str]:
    return {device.name: key.partition("/")[0] for key, device in devices().items() if device.on_gpu}


def _way(name: str, label: str, usual: str) -> Control:
    return dropdown(name, label, usual, WAY_NAMES, full_width=True)


def _factor(name: str, label: str) -> Control:
    return slider(f"what.{name}", f"{label}, times", 1.0, FACTORS, debounce=False)


def sections() -> dict[str, Controls]:
    """The controls of each section, by its prefix in the address."""
    left = f"{HERE}jax-epoch/cpu"
    processors, cards = _processors(), _cards()
    return {
        "here": live_calibration.controls("here"),
        "win": Controls(
            dropdown("win.left", "Processor", left, processors, full_width=True),
            dropdown("win.right", "GPU", "l4", cards, full_width=True),
            _way("win.way", "The GPU is driven by a", "step"),
            slider("win.depth", "Hidden layers", 1, DEPTHS),
            slider("win.networks", "Networks at once", 1, NETWORKS),
        ),
        "what": Controls(
            dropdown("what.card", "Begin with", "l4", _known_cards(), full_width=True),
            *(_factor(name, view.FACTOR_WORDS[name].capitalize()) for name in CHANGEABLE),
        ),
        "move": Controls(dropdown("move.way", "The GPU is driven by", "step", _moves(), full_width=True)),
        "larger": Controls(
            slider("larger.size", "Batch size", 32, (1, 8, 32, 128, 256)),
            _way("larger.way", "Known devices by a", "step"),
        ),
        "cost": Controls(
            slider("cost.size", "Batch size", 32, COUNTED_SIZES),
            slider("cost.target", "Target accuracy", 0.95, time_to_accuracy.TARGETS),
            _way("cost.way", "Known devices by a", "step"),
            number("cost.price", "$ per hour for this machine", 0.0, 0, MOST_PER_H, step=0.001),
        ),
    }


def _moves() -> dict[str, str]:
    return dict(zip(MOVES, (*WAYS, "many"), strict=True))


def settings() -> dict[str, Setting]:
    """What the controls of all sections may say, by name."""
    return settings_of(sections().values())


def panel(name: str, address: Address, stage: Stage) -> mo.ui.dictionary:
    """The controls of a section, and its buttons."""
    if name == "here":
        return live_calibration.panel("here", address, stage)
    buttons = {
        "what": {"start": button("What would have to be true?", f"For this card to win at batch size {ASKED_SIZE}")},
        "larger": {
            "stop": stop_button(stage),
            "again": button("Measure again", "Measure the steps that are measured here once more"),
        },
    }
    return sections()[name].panel(address, **buttons.get(name, {}))


@dataclass(frozen=True)
class Sides:
    """Both sides of a surface, and sentences on what stands in for one that is not calibrated."""

    left: Side
    right: Side
    notes: tuple[str, ...] = ()


def sides(values: Values, live: LiveCalibrations) -> Sides:
    """The sides that the first section's controls ask for."""
    way, notes, found = WAYS[values["way"]], [], []
    for wanted, instead in zip((values["left"], values["right"]), STAND_INS, strict=True):
        one = side(wanted, way, live)
        if one is None:
            one = side(instead, way, live)
            assert one is not None, "known by its figures"
            notes.append(view.stand_in(_trained(wanted, live).label, one.label))
        found.append(one)
    return Sides(*found, tuple(notes))


def side(written: str, way: Way, live: LiveCalibrations) -> Side | None:
    """A side by its address; None where it is not calibrated.

    Args:
        written: As `_processors` and `_cards` write it.
        way: Of a device whose address does not say it.
        live: This machine's calibrations.
    """
    if written.startswith(HERE):
        trained = _trained(written, live)
        calibration = live.of(trained).calibration
        return calibrated_side(trained, calibration) if calibration is not None else None
    if written.startswith(RECORDED):
        return elsewhere()[written.removeprefix(RECORDED)].side
    key, _, name = written.rpartition("/")
    return known_side(devices()[key], WAYS[name]) if key else known_side(of_machine(devices(), written, way), way)


def _trained(written: str, live: LiveCalibrations) -> Trained:
    """The way to train of this machine that has this address."""
    key = written.removeprefix(HERE)
    return next(one.trained for one in live.view().items if one.trained.address == key)


def calibrate(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html) -> LiveCalibrations:
    """Show and run this machine's calibration; the other sections watch what is returned."""
    live_calibration.show("here", stage, panel, controls)
    return live_calibration.live(stage)


def _show(
    stage: Stage,
    name: str,
    panels: Mapping[str, mo.ui.dictionary],
    live: LiveCalibrations,
    controls: mo.Html,
    draw: Callable[[Mapping[str, Values], LiveCalibrations, Store], tuple[str, str]],
) -> None:
    """Draw a section now and whenever a calibration changes; `draw` gives HTML and the sentence of a script."""
    known = sections()  # made once: it asks which libraries there are
    try:
        values = {key: known[key].checked(one.value) for key, one in panels.items()}
    except ValueError as error:
        return refuse(stage, controls.text, error)

    def paint() -> int:
        version = live.view().version
        try:
            content, said = draw(values, live, stage.store)
        except (DoesNotFit, NotCalibrated, UnusableDevice) as error:
            content = said = sentence(error)
            content = layout.problems([content])
        mo.output.replace(layout.page(controls.text, content))
        say(said)
        return version

    paint_at_changes(stage, live, paint)


def show(
    stage: Stage, name: str, panels: Mapping[str, mo.ui.dictionary], live: LiveCalibrations, controls: mo.Html
) -> None:
    """Show a section that only predicts: the surface, an imagined card, the ways to drive it, or the cost.

    Args:
        stage: Where it is shown.
        name: Of the section.
        panels: Of this section and of those that it reads.
        live: This machine's calibrations.
        controls: HTML of the section's panel.
    """
    _show(
        stage, name, panels, live, controls, {"win": _surface, "what": _imagined, "move": _moved, "cost": _cost}[name]
    )


def _surface(values: Mapping[str, Values], live: LiveCalibrations, store: Store) -> tuple[str, str]:
    of, both = values["win"], sides(values["win"], live)
    depth, networks = of["depth"], of["networks"]
    shown = surface(both.left, both.right, depth, networks)
    points = _points(both, depth, networks, store)
    chart = charts.surface_chart(shown, both.left.label, both.right.label, depth, points)
    said = view.surface_sentence(shown, both.left.label, both.right.label, depth, networks)
    # It speaks of one network: what many at once do elsewhere says nothing of it.
    measured = experiment.against_rule(points, depth) if networks == 1 else []
    check = experiment.check_rule(shown, depth)
    rule = view.rule_sentence(check, both.left.label, both.right.label, measured)
    notes = (*both.notes, *view.not_judged([both.left, both.right]))
    content = (
        "".join(map(layout.quiet, notes))
        + layout.figure(chart.title, chart)
        + charts.legend(both.left.label, both.right.label)
        + layout.sentence(said)
        + layout.said(rule)
        + layout.quiet(view.points_sentence(points))
    )
    return content, f"{said} {rule}"


def _points(both: Sides, depth: int, networks: int, store: Store) -> list[experiment.Point]:
    runtime = both.left.here
    measured = experiment.measured_steps(store, runtime) if runtime and both.left.together == 1 else {}
    of_left = experiment.measured_points(measured, both.right, depth, networks)
    machines = (*recorded_gpus(), *kept_in(store.path).view().items)
    elsewhere = experiment.points_elsewhere(machines, depth, networks)
    return of_left + elsewhere + experiment.published_points(depth, networks)


def _imagined(values: Mapping[str, Values], live: LiveCalibrations, _: Store) -> tuple[str, str]:
    of, what = values["win"], values["what"]
    both, way = sides(of, live), WAYS[of["way"]]
    card = of_machine(devices(), what["card"], way)
    changed = experiment.imagined(card, {name: what[name] for name in CHANGEABLE})
    old, new = (known_side(device, way) for device in (card, changed))
    depth, networks = of["depth"], of["networks"]
    before, after = surface(both.left, old, depth, networks), surface(both.left, new, depth, networks)
    chart = charts.surface_chart(after, both.left.label, new.label, depth, before=before)
    said = view.imagined_sentence(before, after, new.label)
    asked = _wanted(both.left, changed, way, depth, networks) if what["start"] else ""
    content = (
        layout.figure(chart.title, chart)
        + layout.said(asked)
        + layout.sentence(said)
        + view.imagined_table(card, changed)
        + "".join(map(layout.quiet, (*both.notes, *view.not_judged([both.left, new]))))
    )
    return content, said


def _wanted(left: Side, card: Device, way: Way, depth: int, networks: int) -> str:
    network = Network((ASKED_WIDTH,) * depth)
    goal_s = left.all_of(network, ASKED_SIZE, networks).step_s
    workload = fully_connected(network, ASKED_SIZE, way, networks)
    wanted = experiment.what_it_would_take(workload, card, goal_s)
    return view.wanted_sentence(wanted, card.name, left.label, goal_s, ASKED_SIZE, ASKED_WIDTH)


def _moved(values: Mapping[str, Values], live: LiveCalibrations, _: Store) -> tuple[str, str]:
    of, chosen = values["win"], next(name for name, key in _moves().items() if key == values["move"]["way"])
    both, depth = sides(of, live), of["depth"]
    machine = STAND_INS[1] if of["right"].startswith((HERE, RECORDED)) else of["right"]
    cards = {name: known_side(of_machine(devices(), machine, way), way) for name, (way, _) in MOVES.items()}
    surfaces = {name: surface(both.left, cards[name], depth, networks) for name, (_, networks) in MOVES.items()}
    device = devices()[machine]
    chart = charts.moves_chart(surfaces, chosen, device.name)
    said = view.moves_sentence(surfaces, chosen, device.name, both.left.label)
    content = layout.figure(chart.title, chart) + charts.moves_legend(chosen) + layout.sentence(said)
    notes = (*both.notes, *view.not_judged([both.left, *cards.values()]))
    return content + "".join(map(layout.quiet, notes)), said


def _cost(values: Mapping[str, Values], live: LiveCalibrations, store: Store) -> tuple[str, str]:
    of = values["cost"]
    size, target = of["size"], of["target"]
    learned = time_to_accuracy.learned(store, NETWORK, recognised())
    needed = time_to_accuracy.needed(learned, NETWORK, size, target)
    epochs = needed.reached[len(needed.reached) // 2] if needed is not None and needed.reached else None
    known = _known(WAYS[of["way"]])
    here = [
        calibrated_side(one.trained, one.calibration)
        for one in live.view().items
        if one.calibration is not None and not one.trained.together
    ]
    found = experiment.costs([*here, *known], NETWORK, size, epochs, of["price"] or None)
    said = view.cost_sentence(found, target, size, needed.words if needed is not None else "")
    notes = [view.own_price_sentence(bool(here), of["price"]), *view.not_judged(known)]
    return view.cost_table(found) + layout.sentence(said) + "".join(map(layout.quiet, notes)), said


def _known(way: Way) -> list[Side]:
    """All devices that are known by their figures and run a step in this way."""
    return [known_side(one, way) for one in devices().values() if way in one.ways]


def show_larger(
    stage: Stage, panels: Mapping[str, mo.ui.dictionary], live: LiveCalibrations, controls: mo.Html
) -> None:
    """Predict larger work, and measure here what is cheap of it."""
    try:
        values = sections()["larger"].checked(panels["larger"].value)
    except ValueError as error:
        return refuse(stage, controls.text, error)
    size = values["size"]
    running = stage.begin_if_new(
        size, values["again"], stage.request(), lambda _: ((), partial(experiment.measure_larger, size))
    )
    paint_while_it_runs(stage, running, partial(_paint_larger, running, values, live, stage.store, controls.text))


def _paint_larger(running: BackgroundTask, values: Values, live: LiveCalibrations, store: Store, controls: str) -> int:
    now, way, size = running.view(), WAYS[values["way"]], values["size"]
    here = side(f"{HERE}jax-epoch/cpu", way, live)
    found = experiment.answers(size, [*([here] if here else []), *_known(way)], store)
    said = view.larger_sentence(found, size)
    line = layout.state_line(now.state, now.over, 1, now.note or "two steps are measured here", now.problem)
    content = layout.page(
        controls,
        line
        + layout.sentence(said)
        + view.larger_table(found)
        + layout.quiet(view.unsure_sentence(found))
        + view.larger_parts(found),
    )
    mo.output.replace(content)
    if now.over:
        say(said)
    return now.version


def articles() -> mo.Html:
    """The articles' figures with our predictions beside them."""
    rows = _published()
    said = view.published_sentence(rows)
    say(said)
    return mo.Html(layout.sentence(said) + view.published_table(rows))


_published = once(published_rows)
