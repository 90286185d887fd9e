"""Why is my GPU slower? Seconds per epoch for every way of training: measured, recorded, predicted or published."""

import html
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from urllib.parse import urlencode

from lib.formatting import counted, factor, minute, seconds, times
from lib.model.backends.registry import BACKENDS, DEFAULT, PRECISIONS, Runtime, usable_runtimes
from lib.model.hardware.machine import this_machine, usable_cores
from lib.model.spec import Network, Training
from lib.sweeps.experiments import published, recorded_machines
from lib.sweeps.experiments.anatomy_of_a_step import AnatomyTask, measure_tasks, tasks
from lib.sweeps.experiments.backend_race import NETWORK, Cell, race, records_of
from lib.sweeps.experiments.mnist_training import missing_backends
from lib.sweeps.experiments.recorded_machines import (
    MEASURED,
    PREDICTED,
    PUBLISHED,
    RECORDED,
    Machine,
    Seconds,
    best_runtime,
    exactly,
    recorded_here,
    spread,
)
from lib.sweeps.storage.records import Kind, Record, undisturbed
from lib.sweeps.storage.store import Store
from lib.sweeps.sweep import QUICKEST
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import POLL_S, Cancel, Request, Urgency
from lib.timing.comparison import ratio_of
from lib.timing.prediction.remedies import WORTH, Remedy
from lib.timing.profiling.request import ONE_CALL, Split
from lib.ui import layout
from lib.ui.controls import (
    FASTEST,
    SHARED,
    SHARED_HIDDEN,
    SHARED_SIZE,
    SHARED_TODAY,
    Controls,
    batch_size,
    runtime,
    today,
)
from lib.ui.lab import Asked, Drawing, Page, Shown, Stage
from lib.ui.notebooks import link
from lib.ui.opened import PUPIL, role
from lib.ui.views.chart import log_ticks
from lib.ui.views.markup import inline, quiet

# How often each backend dispatches work to the device: the main source of its overhead.
DISPATCH_UNITS = {
    "an epoch": ("jax-epoch", "numba", "numba-cuda"),
    "for many steps": ("webgpu-chunk", "webgpu-kernel"),
    "a step": ("jax-step", "torch-compiled", "webgpu-step"),
    "a step, through Keras": ("keras-jax", "keras-tensorflow", "keras-torch"),
    "an image": ("cupy-image",),
}
AN_OPERATION = "an operation"  # all other backends
EAGER = ("torch", "cupy")  # how programs for a card usually start out
COMPILED = {"an epoch": "compiled whole", "a step": "compiled step by step"}
SKIPS_ZEROS = "products skip the images' zeros"
STARTS_SOON = (DEFAULT, "numpy", "jax-step", QUICKEST)  # Numba's first compilation on a machine takes up to 20 s
TAKES_LONG = ("jax-operation", "cupy-image")  # half a minute per epoch
# The backend of the reader's program, a remedy that changes one line, and the backend afterwards.
CHANGES = (
    ("keras-tensorflow", Remedy.KERAS, "keras-jax"),
    ("jax-operation", Remedy.STEP, "jax-step"),
    ("jax-step", Remedy.EPOCH, "jax-epoch"),
    ("torch", Remedy.STEP, "torch-compiled"),
)
FURTHER = (
    ("where a step's time goes", "inside_a_step"),
    ("which library is fastest here", "which_library"),
    ("where a GPU wins", "when_a_gpu_wins"),
)
REMEDIES = "remedy.by={by}#6-what-would-help"  # of “When a GPU wins”


class WhySlower(Controls):
    AGAIN = "Measure again", "Time every way of training at this batch size again"
    size = batch_size("Batch size", 32, debounce=False)
    today = today()


@dataclass(frozen=True)
class EpochRow:
    """A way of training on one machine, with the seconds of its epoch; None while they are being measured."""

    runtime: Runtime
    where: str  # the device, in one or two words
    source: str  # MEASURED, RECORDED, PREDICTED from recordings, or PUBLISHED
    how: str  # where the figure comes from, a sentence
    epoch: Seconds | None
    disturbed: bool = False  # so it took too long
    first_call_s: float = 0.0  # at most, of all networks recorded there

    @property
    def key(self) -> str:
        source = RECORDED if self.source == PREDICTED else self.source
        return f"{source} {self.where} {self.runtime.address}"


def dispatch_unit(runtime: Runtime) -> str:
    return next((per for per, keys in DISPATCH_UNITS.items() if runtime.backend in keys), AN_OPERATION)


def how_it_trains(runtime: Runtime) -> str:
    return (
        f"The host makes one call {dispatch_unit(runtime)}"
        f"{f', and {SKIPS_ZEROS}' * BACKENDS[runtime.backend].skips_zeros}."
    )


def answer(page: Page, below: str) -> tuple[Callable[[WhySlower], Asked], Callable[[Shown], Drawing]]:
    """Build the section's job, which queues behind everything viewers wait for, and its drawing; `below` is HTML."""
    hidden = page.address.read(SHARED[SHARED_HIDDEN])
    network = Network.parse(hidden)

    def ask(at: WhySlower) -> Asked:
        cells, parts = cells_here(at.size, network, at.today), parts_of(at.today, at.size, network)

        def make(again: bool) -> tuple[tuple, Callable]:
            known = [*page.store.records(Kind.RACE), *(page.store.records(Kind.ANATOMY) if parts else ())]
            todo = cells if again else [cell for cell in cells if not _measured(cell, known)]
            more = [task for task in parts if again or not task.complete(known)]
            if not again and (role() == PUPIL or not page.sections["net"].stage.streams):
                todo, more = [], []  # neither opening a page in a class nor running a script measures anything
            return (known, len(todo) + len(more)), partial(measure, todo, again, page.sections["rate"].stage, more)

        return Asked((at.size, at.today if parts else FASTEST), make)

    def draw(shown: Shown) -> Drawing:
        at, now, (known, n_wanted) = shown.at, shown.now, shown.known
        measured = [item for item in now.items if isinstance(item, Record)]
        ways, mine, split = known_at(at.size, [*known, *measured], network, at.today, now.state.under_way)
        said = sentence(ways, mine, split)
        n_done = len([one for one in measured if one.kind == Kind.RACE or one.says("name") == "step"])
        n_here = sum(way.source == MEASURED and way.epoch is not None for way in ways)
        lacking = f"; {n} more need a GPU or a library (section 4 names them)" if (n := len(missing_backends())) else ""
        words = now.note or f"{counted(n_here, 'way')} measured on this machine{lacking}"
        state = layout.saved_or(now.state, not n_wanted) if n_here or n_wanted else State.NOT_RUNNING
        line = layout.state_line(state, n_done, n_wanted, words, now.problem)
        return Drawing(
            layout.sentence(said) + rows_html(ways, network, mine) + line,
            said,
            "".join(notes(at, ways, mine, split)) + below,
            legend(ways),
            "answer",
        )

    def notes(at: WhySlower, ways: Sequence[EpochRow], mine: EpochRow | None, split: Split | None) -> Iterator[str]:
        query = urlencode({SHARED_HIDDEN: hidden, SHARED_SIZE: at.size, SHARED_TODAY: at.today}, safe=",/")
        if split is not None:
            from lib.labs.inside_a_step.anatomy import sentence as parts_sentence  # imported late, as `recorded` below

            why = html.escape(parts_sentence({runtime(at.today): split}, at.size))
            if mine is not None:
                n = Training(network, batch_size=at.size).steps_per_epoch()
                rest = "; the rest passes between the steps" * (_s(mine) > 1.1 * n * split.step_s)
                why += (
                    f" {counted(n, 'such step')} take {seconds(n * split.step_s)}, a whole epoch {_took(mine)}{rest}."
                )
            yield f'<p class="lab-note"><b>Why?</b> {why}</p>'
        if at.today != FASTEST and (said := with_a_gpu(runtime(at.today), split, ways, mine)):
            yield f'<p class="lab-note"><b>Would a GPU help?</b> {said}</p>'
        if at.today != FASTEST and mine is None:
            yield quiet(f"{runtime(at.today).label}: not measured here, and not recorded near this network.")
        if lines := "".join(
            f"<li>{_program(one, query)} → {inline(line)}</li>"
            for one, line in changes(ways, at.size, network, mine and mine.runtime)
        ):
            yield f'<div class="lab-note"><b>One line to change</b><ul>{lines}</ul></div>'
        if "<a" in (links := ", ".join(link(name, query=query, title=words) for words, name in FURTHER)):
            yield f'<p class="lab-note">For this network: {links}.</p>'

    return ask, draw


def _program(runtime: Runtime, query: str) -> str:
    """HTML: the backend in use today, linked to its remedies if it can be measured here."""
    linked = link("when_a_gpu_wins", query=f"{query}&{REMEDIES.format(by=runtime.address)}", title=runtime.label)
    return linked if runtime in usable_runtimes() else html.escape(runtime.label)


def cells_here(size: int, network: Network = NETWORK, program: str = FASTEST) -> list[Cell]:
    """Cells that can be measured here: the reader's program, then those that start soonest (the default is warm)."""
    usual = [one for one in usable_runtimes() if one.precision == PRECISIONS[0]]

    def order(one: Runtime) -> tuple[bool, int, bool]:
        return one.address != program, [*STARTS_SOON, one.backend].index(one.backend), one.backend in TAKES_LONG

    return [Cell(one, size, network) for one in sorted(usual, key=order)]


def parts_of(program: str, size: int, network: Network) -> list[AnatomyTask]:
    """The task that measures the parts of this program's step; none if it cannot run here."""
    every = tasks([one for one in usable_runtimes() if one.address == program], network, size)
    return [one for one in every if one.examination.kind == "parts"]


def measure(
    cells: Sequence[Cell],
    again: bool,
    first: Stage,
    parts: Sequence[AnatomyTask],
    engine: Engine,
    store: Store,
    cancel: Cancel,
    request: Request,
) -> Iterator[Record | Note]:
    """Time each cell once, and once more at the end if something disturbed it; `parts`, if they do not add up to the
    step. The `parts` of the reader's own step, the first cell and those that start soon follow the run of the stage
    `first`; the others wait for all other requests. Epochs that another page has timed are reused.

    Raises:
        TrainingFailed: A backend could not train; the text says why.
    """
    began_s = time.monotonic()
    # Wait until the page has requested that run, if it does.
    while not first.asked_as and time.monotonic() - began_s < 5 and not cancel.is_set():
        time.sleep(POLL_S)

    def soon() -> Request:
        return replace(request, number=max(request.number, first.asked_as) + 1)

    yield from measure_tasks(parts, engine, store, cancel, soon())
    for number, cell in enumerate([*cells, *cells]):
        if number == 1:  # preload: the slider's next position may need it
            from lib.sweeps.experiments.advice import recorded

            recorded()
        late = number >= len(cells)
        when = soon() if cell.runtime.backend in STARTS_SOON or not number else replace(request, urgency=Urgency.LATER)
        found = _measured(cell, store.records(Kind.RACE)) if late or not again else []
        if not (late and found):
            yield from found or race([cell], engine, store, cancel, when)
    records = store.records(Kind.ANATOMY)
    overlapped = [task for task in parts if (split := task.split(records)) is not None and not split.adds_up]
    yield from measure_tasks(overlapped, engine, store, cancel, replace(request, urgency=Urgency.LATER))


def _measured(cell: Cell, records: Sequence[Record]) -> list[Record]:
    """Enough records to show: one undisturbed epoch, or two disturbed ones."""
    known = records_of(cell, records)
    return [one for one in known if not one.warnings] or known[1:]


# The rows.


def known_at(
    size: int, records: Sequence[Record], network: Network, program: str, waiting: bool = False
) -> tuple[list[EpochRow], EpochRow | None, Split | None]:
    """`ways_at`, the reader's own program among them, and the measured parts of its step."""
    ways = ways_at(size, records, network, waiting)
    split = next((task.split(records) for task in parts_of(program, size, network)), None)
    return ways, used_today(ways, program, size, network), split


def ways_at(size: int, records: Sequence[Record], network: Network = NETWORK, waiting: bool = False) -> list[EpochRow]:
    """The ways of training at this batch size, fastest first; those still being measured come last.

    Args:
        size: Images per step.
        records: Of this machine.
        network: The network to train.
        waiting: Whether to include ways that are about to be measured.
    """
    published_too = _published(size) if network == NETWORK else ()
    found = [*_here(cells_here(size, network), records, waiting), *_recorded(size, network), *published_too]
    return sorted(found, key=lambda way: way.epoch.middle if way.epoch is not None else math.inf)


def _here(cells: Sequence[Cell], records: Sequence[Record], waiting: bool) -> Iterator[EpochRow]:
    machine, cores = this_machine(), f"{counted(usable_cores(), 'core')} here"
    for cell in cells:
        repeated = undisturbed(records_of(cell, records))
        where = f"{machine.gpu or 'GPU'} here" if cell.runtime.on_gpu else cores
        epoch = spread([one.block_s for one in repeated])
        if epoch is not None:
            last = repeated[-1]
            how = (
                f"Measured on this machine, {minute(last.measured_at)}: median of {epoch.n}"
                f" {'scaled parts of an epoch' if last.says('scaled') else 'epochs'},"
                f" quartiles {seconds(epoch.low)} to {seconds(epoch.high)}"
            )
            how += "".join(f"; at most this long: {warning}" for warning in last.warnings)
            yield EpochRow(cell.runtime, where, MEASURED, how, epoch, bool(last.warnings))
        elif waiting:
            yield EpochRow(cell.runtime, where, MEASURED, "Being measured here", None)


def _recorded(size: int, network: Network) -> Iterator[EpochRow]:
    """Recorded or predicted epochs on machines with a card: every way on the card, and the fastest on its CPU."""
    for machine in (one for one in recorded_here().machines if one.has_gpu):
        host = best_runtime(machine, partial(_epoch_there, size=size, network=network), "cpu")
        usual = [one for one in machine.runtimes if one.precision == PRECISIONS[0]]
        wanted = [one for one in usual if one.on_gpu or (host is not None and one == host.runtime)]
        yield from filter(None, (recorded_row(machine, one, size, network) for one in wanted))


def recorded_row(machine: Machine, runtime: Runtime, size: int, network: Network) -> EpochRow | None:
    """A way of training on a recorded machine; None if neither it nor anything near enough was recorded."""
    if (epoch := _epoch_there(machine, runtime, size, network)) is None:
        return None
    on, ends = f"{machine.name}, {machine.dates[1]}", f"{seconds(epoch.low)} to {seconds(epoch.high)}"
    source, how = RECORDED, f"Recorded on {on}: median of {epoch.n} epochs, quartiles {ends}"
    if not epoch.n:
        source, how = PREDICTED, f"Predicted from other epochs recorded on {on}: 90 % interval {ends}"
    where = recorded_machines.card_of(machine) if runtime.on_gpu else recorded_machines.host_of(machine)
    first_call_s = machine.longest_first_call_s(runtime)
    if first_call_s > epoch.middle:
        how += f"; first calls, which compile, took up to {seconds(first_call_s)} there"
    return EpochRow(runtime, where, source, how, epoch, first_call_s=first_call_s)


def _epoch_there(machine: Machine, runtime: Runtime, size: int, network: Network) -> Seconds | None:
    known = machine.epoch(runtime, size, network)
    if known is not None or (network == NETWORK and (network, size) in machine.cells):
        return known  # no predictions for the articles' network where others were recorded
    return predicted_epoch(recorded_machines.place(machine, runtime.on_gpu), runtime.backend, size, network)


@lru_cache(4096)
def predicted_epoch(where: str, backend: str, size: int, network: Network) -> Seconds | None:
    """An epoch predicted from recorded ones, with a 90 % interval and `n` 0; None if none near enough was recorded.

    Args:
        where: The CPU or the card, by `recorded_machines.place`.
        backend: The backend that trains there.
        size: Images per step.
        network: The network to train.
    """
    from lib.sweeps.experiments.advice import recorded  # imported late, so that the first drawing does not wait for it
    from lib.timing.prediction.predict import REACHED, Calibration, predict
    from lib.timing.prediction.workload import fully_connected

    way = next((one for one in recorded().get(where, {}).values() if one.backend == backend), None)
    if way is None:
        return None
    work = fully_connected(network, size).by(way.way)
    if not isinstance(way.device, Calibration) or not way.device.is_known(work, REACHED):
        return None
    step = predict(work, way.device)
    return Seconds(step.low_s, step.step_s, step.high_s).times(Training(network, batch_size=size).steps_per_epoch())


def _published(size: int) -> Iterator[EpochRow]:
    where = {"cpu": "Core i9", "gpu": "RTX 5000"}  # the article's workstation
    for (backend, device), by_size in published.EPOCH_S.items():
        if size in by_size:
            how = f"Published in “{published.OVERHEAD_ARTICLE}”, without a spread; not measured by this project"
            yield EpochRow(Runtime(backend, device), where[device], PUBLISHED, how, exactly(by_size[size]))


# Sentences.


def used_today(ways: Sequence[EpochRow], program: str, size: int, network: Network) -> EpochRow | None:
    """The reader's own program (see `controls.today`): measured here, else recorded; None if neither is known."""
    if program == FASTEST:
        return None
    mine = runtime(program)
    here = (way for way in ways if way.source == MEASURED and way.epoch is not None and way.runtime == mine)
    there = (recorded_row(machine, mine, size, network) for machine in recorded_here().machines)
    return next(filter(None, (*here, *there)), None)


def sentence(ways: Sequence[EpochRow], mine: EpochRow | None = None, split: Split | None = None) -> str:
    """The fastest way, by how much, and why, in at most 35 words; empty without figures.

    Args:
        ways: Fastest first.
        mine: The reader's own program, to compare with.
        split: The parts of its step, if measured.
    """
    known = [way for way in ways if way.epoch is not None and way.source != PUBLISHED]
    every = cards = [way for way in known if way.runtime.on_gpu]
    eager = next((way for key in EAGER for way in cards if way.runtime.backend == key), cards[-1] if cards else None)
    if eager is not None:  # with several cards, a sentence without the reader's program is about this one and its host
        cards = [way for way in cards if way.where == eager.where]
        known = [way for way in known if way.source == MEASURED or way.where.startswith(eager.where)]
    here = [way for way in known if not way.runtime.on_gpu]
    # Until the fastest is measured, a recorded host stands in, or the sentence would change with each row.
    coming = any(way.epoch is None and way.runtime.backend == QUICKEST for way in ways)
    here = [way for way in here if (way.source == MEASURED) != coming] or here
    if not here:
        return ""
    cpu = here[0]
    owner = "this machine's" if cpu.source == MEASURED else "its host's"
    cores = f"{owner} {re.sub(r' here$|^.*, ', '', cpu.where)}"
    if mine is not None:
        return _against_today(mine, cpu, every, split)
    if eager is None:
        return (
            f"{cores[0].upper()}{cores[1:]} take {_took(cpu)} for this epoch with “{cpu.runtime.short_label}” and"
            f" {_took(here[-1])} with “{here[-1].runtime.short_label}”: the same arithmetic, but different overhead."
        )
    best, card = cards[0], cards[0].where.removesuffix(" here")
    if _s(eager) <= _s(cpu):
        return (
            f"At this batch size arithmetic dominates: the {card} takes {_took(best)} for an epoch, {cores}"
            f" {_took(cpu)}, {times(_s(cpu) / _s(best))} times as long."
        )
    took = f" with {_library(cpu)} ({seconds(_s(cpu))} an epoch)"
    longer = f"{times(_s(eager) / _s(cpu))} times as long{' (predicted)' * (PREDICTED in (eager.source, cpu.source))}"
    compiled = COMPILED.get(dispatch_unit(best.runtime), "at its best")
    if _s(best) < _s(cpu):
        helps = "helps" if _gain(best, cpu)[0] > 1 or PREDICTED not in (best.source, cpu.source) else "may help"
        return (
            f"The {card} {helps} only when {compiled}: {_against(best, cpu)} as {cores}{took}. Run eagerly, it takes"
            f" {_took(eager)}, mostly overhead."
        )
    at_best = f"; {compiled}, {_against(best, cpu)}" if best is not eager else ""
    return f"The {card} does not help here: run eagerly it takes {longer} as {cores}{took}, mostly overhead{at_best}."


def _against_today(mine: EpochRow, cpu: EpochRow, cards: Sequence[EpochRow], split: Split | None) -> str:
    """What to change, what the reader's program takes, what it gains on a GPU, and the best CPU and card against it."""
    measured = mine.source == MEASURED
    same = next((one for one in cards if one.runtime == replace(mine.runtime, device="gpu") and one != mine), None)
    if same is not None:
        most, on_gpu = (
            _s(mine) / _s(same),
            f"; on the {same.where.removesuffix(' here')}, {_faster(same, mine)} times as fast",
        )
    else:
        most = most_on_gpu(mine.runtime, split) if measured and split is not None else None
        on_gpu = f"; adding a GPU, at most {times(most)} times as fast" if most is not None else ""
    took = f"{mine.runtime.short_label} takes {seconds(_s(mine))} an epoch"
    overhead = f", {split.overhead:.0%} overhead" if split is not None and split.overhead is not None else ""
    took += (overhead if measured else f" ({mine.where.partition(',')[0]}, {mine.source})") + on_gpu
    # Once it is measured, wait for this machine's fastest library rather than name a recorded one.
    others = [one for one in (cpu, *cards[:1]) if one.key != mine.key and one != same]
    others = [one for one in others if one.runtime.on_gpu or one.source == MEASURED or not measured]
    gains = measured and most is not None and cpu in others and _s(mine) / _s(cpu) > most
    said = " times; ".join(f"{_named(one)}: {_faster(one, mine)}" for one in others)
    as_fast = " times" * (len(others) == 1 or not on_gpu) + " as fast" * (not on_gpu)
    return (
        f"{'Change the library: ' * gains}{took}."
        f" {f'Rewritten in {said}{as_fast}' if said else 'Nothing else is faster'}."
    )


def most_on_gpu(runtime: Runtime, split: Split) -> float | None:
    """At most how many times as fast a GPU makes this program: if nothing remains but Python and dispatch.

    None for a program that runs on a GPU already or cannot, whose whole epoch is one call, or whose parts do not add up
    to its step.
    """
    host = sum(split.share(one) or 0.0 for one in ("Python", "dispatch"))
    movable = not runtime.on_gpu and "gpu" in BACKENDS[runtime.backend].devices and runtime.backend not in ONE_CALL
    return 1 / host if movable and host else None


def with_a_gpu(
    runtime: Runtime, split: Split | None, ways: Sequence[EpochRow] = (), mine: EpochRow | None = None
) -> str:
    """What is known of a program on a GPU: the most that it can gain, what the articles published, and how long the
    fastest card among `ways` compiles, in epochs of `mine`.
    """
    said, most = [], most_on_gpu(runtime, split) if split is not None else None
    if most is not None:
        said.append(
            f"At most {times(most)} times as fast: Python and dispatch, {1 / most:.0%} of the step, stay on the CPU."
        )
    on_gpu = published.EPOCH_S.get((runtime.backend, "gpu"), {})
    if on_gpu and not runtime.on_gpu:
        own = [cpu_s / on_gpu[size] for size, cpu_s in published.EPOCH_S[runtime.backend, "cpu"].items()]
        other = [on_22_cores / on_l4 for on_l4, on_22_cores in published.EXPERIMENT_S.values()]
        said.append(
            f"Published with {runtime.label} on other machines, for small networks: an L4 was {times(min(other))} to"
            f" {times(max(other))} times as fast as 22 cores; a Quadro RTX 5000 {times(min(own))} to"
            f" {times(max(own))} times as fast as a Core i9."
        )
    best = next((way for way in ways if way.runtime.on_gpu and way.source in (RECORDED, PREDICTED)), None)
    if best is not None and mine is not None and (n := best.first_call_s / _s(mine)) >= 1:
        said.append(
            f"{_library(best)} on the {best.where} compiles first: recorded first calls took up to"
            f" {seconds(best.first_call_s)}, as long as {counted(round(n), 'epoch')} of yours."
        )
    return " ".join(said)


def _named(way: EpochRow) -> str:
    elsewhere = "" if way.source == MEASURED else f", {way.where.partition(',')[0]}"
    return _library(way) + (f" on the {way.where.removesuffix(' here')}" if way.runtime.on_gpu else elsewhere)


def _library(way: EpochRow) -> str:
    return way.runtime.label.partition(",")[0]


def _against(way: EpochRow, cpu: EpochRow) -> str:
    if _s(way) >= _s(cpu):
        return f"{times(_s(way) / _s(cpu))} times as long"
    return f"{_faster(way, cpu)} times as fast"


def _faster(way: EpochRow, other: EpochRow) -> str:
    low, ratio, high = _gain(way, other)
    predicted = PREDICTED in (way.source, other.source)
    return factor(ratio, low, high) if predicted else "at least " * (way.disturbed > other.disturbed) + times(ratio)


def _gain(way: EpochRow, other: EpochRow) -> tuple[float, float, float]:
    return ratio_of(*((one.low, one.middle, one.high) for one in (_epoch(other), _epoch(way))))


def _epoch(way: EpochRow) -> Seconds:
    assert way.epoch is not None, "the epoch is known"
    return way.epoch


def changes(
    ways: Sequence[EpochRow], size: int, network: Network = NETWORK, mine: Runtime | None = None
) -> Iterator[tuple[Runtime, str]]:
    """Certain gains from changing one line, by the backend in use today, measured here or else recorded; of the
    reader's own program alone if `mine` is given.
    """
    here = {way.runtime: way for way in ways if way.source == MEASURED and way.epoch is not None}
    for key, remedy, after in CHANGES:
        if mine is not None and mine.backend != key:
            continue
        by = [one for one in here if one == (mine or one) and one.backend == key]
        there = [replace(mine or Runtime(key), backend=one) for one in (key, after)]
        pairs = (
            *((here[one], here.get(replace(one, backend=after))) for one in by),
            *([recorded_row(machine, one, size, network) for one in there] for machine in recorded_here().machines),
        )
        known = ((before, then) for before, then in pairs if before is not None and then is not None)
        for before, then in islice(known, 1):
            low, gain, _ = _gain(then, before)
            if gain >= WORTH and (low > 1 or before.source != PREDICTED):
                line = remedy.lines[key.partition("-")[0]].format(other=after.partition("-")[2])
                source = MEASURED if before.source == MEASURED else f"{before.source} for {before.where}"
                yield (
                    before.runtime,
                    f"{then.runtime.label}, {seconds(_s(then))} an epoch, {_against(then, before)}, {source}: `{line}`",
                )


def _s(way: EpochRow) -> float:
    return _epoch(way).middle


def _took(way: EpochRow) -> str:
    return seconds(_s(way)) + (" (predicted)" if way.source == PREDICTED else "")


def apart(way: EpochRow, above: EpochRow | None) -> str:
    """What separates a row from the one above, in a sentence; empty for the first row, or without figures."""
    if above is None or way.epoch is None or above.epoch is None:
        return ""
    why = []
    if way.where != above.where:
        why.append(f"it runs on {way.where}, not on {above.where}")
    if (here := dispatch_unit(way.runtime)) != (there := dispatch_unit(above.runtime)):
        why.append(f"the host makes one call {here}, not one {there}")
    if BACKENDS[above.runtime.backend].skips_zeros and not BACKENDS[way.runtime.backend].skips_zeros:
        why.append(f"in the row above {SKIPS_ZEROS}")
    reason = "; ".join(why) or "the two libraries differ in what they do between the products"
    ratio = times(_s(way) / _s(above))
    return f"{'As long as' if ratio == '1' else f'{ratio} times'} the row above: {reason}."


# HTML.


def legend(ways: Sequence[EpochRow]) -> str:
    sources = [one for one in (MEASURED, RECORDED, PREDICTED, PUBLISHED) if any(way.source == one for way in ways)]
    entries = (("cpu", "CPU"), ("gpu", "GPU"), *((one.split()[0], one) for one in sources))
    return (
        '<div class="ways-legend">'
        + "".join(f'<span class="ways-{kind}"><b></b>{words}</span>' for kind, words in entries)
        + "</div>"
    )


def rows_html(ways: Sequence[EpochRow], network: Network = NETWORK, mine: EpochRow | None = None) -> str:
    """HTML: a row per way, marked on a logarithmic axis of seconds, and how many times as fast as `mine` it is.

    `rows.js` animates rows that change places.
    """
    known = [way for way in ways if way.epoch is not None]
    if not known:
        return quiet("No recorded figure is near this network and batch size, and nothing is measured here yet.")
    low, high = axis_ends([_s(way) for way in known])
    ticks = "".join(
        f"<i{' class=ways-minor' * (not math.log10(tick).is_integer())}"
        f' style="left:{100 * place(tick, low, high):.2f}%">'
        f"{html.escape(seconds(tick).replace('.0', ''))}</i>"
        for tick in log_ticks(low, high, (1, 2, 5), 9)
    )
    rows = [_row(way, above, low, high, mine) for way, above in zip(ways, [None, *ways[:-1]], strict=True)]
    moved = hash(tuple((way.key, way.epoch and way.epoch.middle) for way in ways))
    what = html.escape(f"seconds per epoch of {network.whole_label}" if mine is None else "seconds per epoch · gain")
    return (
        f'<div class="ways"><div class="ways-axis" aria-hidden="true"><span>{what}</span>'
        f'<div>{ticks}</div></div><ol data-moved="{moved}">{"".join(rows)}</ol></div>'
    )


def _row(way: EpochRow, above: EpochRow | None, low: float, high: float, mine: EpochRow | None) -> str:
    css = f"ways-{way.source.partition(' ')[0]} ways-{'gpu' if way.runtime.on_gpu else 'cpu'}"
    label, where = html.escape(way.runtime.short_label), html.escape(way.where)
    if way.epoch is None:
        drawn, took = "<span>…</span>", "…"
    else:
        left = 100 * place(_s(way), low, high)
        gain = "yours" if mine is None or way.key == mine.key else f"{times(_s(mine) / _s(way))}×"
        took = "≤ " * way.disturbed + seconds(_s(way)) + f" · {gain}" * (mine is not None)
        drawn = (
            f'<i class="ways-line" style="width:{left:.2f}%"></i><i class="ways-mark" style="left:{left:.2f}%"></i>'
            f'<span style="left:{left:.2f}%">{html.escape(took)}</span>'
        )
    tip = html.escape(f"{way.how}. {how_it_trains(way.runtime)} {apart(way, above)}".strip())
    said = html.escape(f"{way.runtime.short_label}, {way.where}, {way.source}: {took}")
    return (
        f'<li tabindex="0" class="{css}" data-row="{html.escape(way.key)}" aria-label="{said}"><b>{label}</b>'
        f'<em>{where}</em><div>{drawn}</div><p role="note">{tip}</p></li>'
    )


def axis_ends(epoch_s: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis in seconds, with room for a label at the upper end."""
    low, high = min(epoch_s), max(epoch_s)
    step = max(high / low, 2.0) ** 0.12
    return low / step**0.5, high * step


def place(value_s: float, low: float, high: float) -> float:
    return math.log(value_s / low) / math.log(high / low)
