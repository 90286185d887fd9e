"""Connects the reader's own devices to marimo: controls, what the browser is asked for, and what its answers say."""

import platform
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import marimo as mo

from lib.backends.webgpu.for_browsers import kernels
from lib.data.mnist import Facts, load_part
from lib.data.mnist_arrays import DataError
from lib.experiments import kept_machines, your_gpu
from lib.experiments.backend_race import Cell, Standing, plan, race, records_and_notes
from lib.experiments.background import BackgroundTask
from lib.experiments.kept_machines import KeptMachines, kept_in
from lib.experiments.your_gpu import MAX_IMAGES, N_SAMPLE, PART, USUAL_WAY, WAYS, Found, Job, Opened
from lib.formatting import sentence
from lib.hardware.machine import this_machine
from lib.once import once
from lib.pages import layout
from lib.pages.controls import Controls, dropdown, slider
from lib.pages.notebooks import is_static, link
from lib.pages.stage import Stage, button, stop_button, streaming
from lib.pages.streaming import paint_at_changes, paint_while_it_runs, painted, say
from lib.pages.url_state import Address, Setting
from lib.pages.widgets import MeasureInBrowser
from lib.spec import BATCH_SIZES, RATE_STEPS, Network, Training
from lib.storage.records import Kind, Record
from lib.storage.store import Store
from lib.views import kept_machines as kept_view
from lib.views import your_gpu as view
from lib.views.markup import on_demand
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note, State
from lib.workers.queue import Request, Urgency

WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
DEPTHS = (0, 1, 2, 3, 4)
CAPTIONS = (
    "loss by seconds of training, in turns",
    "seconds of a product by its size; hollow: predicted, not measured",
)
# What the browser is at, and the words for it.
STAGES = {
    "opening": (State.STARTING, "your browser opens its GPU"),
    "images": (State.STARTING, "images come to your browser, for a second"),
    "starting": (State.STARTING, "kernels are compiled, first steps are made"),
    "training": (State.MEASURING, "GPU and processor train in turns"),
    "ways": (State.MEASURING, "the other ways of launching, in turns"),
    "sizes": (State.MEASURING, "products of growing size, on both devices"),
    "hidden": (State.WAITING, "this tab is in the background; it goes on when you look at it"),
    "another tab": (State.WAITING, "another tab of this page measures; this one follows"),
    "held": (State.WAITING, "the server measures, which may be this machine; this goes on afterwards"),
    "over": (State.DONE, "measured in your browser just now"),
    "stopped": (State.STOPPED, "“Measure again” begins anew"),
}
ONLY_IN_A_BROWSER = (
    "This notebook measures in the browser of whoever opens it on a server: `make run NOTEBOOK=notebooks/your_gpu.py`."
)


def _controls() -> Controls:
    return Controls(
        slider("yours.size", "Batch size", 32, BATCH_SIZES),
        slider("yours.width", "Width of the hidden layers", 128, WIDTHS),
        slider("yours.depth", "Hidden layers", 1, DEPTHS),
        slider("yours.rate", "Learning rate", 0.1, RATE_STEPS),
        dropdown("yours.way", "The GPU's operations are launched by", USUAL_WAY, {v: k for k, v in WAYS.items()}, True),
    )


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return _controls().settings


class InBrowser:
    """What one viewer's browser is asked for, and what it has answered."""

    def __init__(self, store: Store, viewer: Hashable = None) -> None:
        self._store, self._viewer = store, viewer
        self._who: Opened | None = None
        self._job: Job | None = None
        self._found: Found | None = None
        self._server: Mapping[Cell, Standing] = {}
        self._number = 0  # of the present job
        self._presses: object = 0
        self._sent = 0  # images
        self._images_line, self._problem = "", ""
        self._kept, self._n_kept = "", 0
        self._stage = "opening"
        self.widget = MeasureInBrowser(kernels(), {})
        self.widget.on_msg(lambda _widget, content, _buffers: self._hear(content))
        self.tell()

    def ask(self, job: Job, presses: object) -> None:
        """Have this measured in place of what is measured now.

        Args:
            job: What.
            presses: How often “Measure again” was pressed; a new count opens the GPU anew, and measures everything.
        """
        again, self._presses = presses != self._presses, presses
        if job == self._job and not again:
            return  # another button was pressed
        self._job, self._problem = job, ""
        if again and self._found is not None:
            self._found, self._images_line, self._stage = None, "", "opening"
            self.widget.send({"do": "reopen"})
            self.tell()
        else:
            self._begin()

    @property
    def machine(self) -> str:
        """Id of the machine that this browser's results are kept as; empty before it has opened the page."""
        return your_gpu.machine_of(self._who)[0] if self._who is not None else ""

    def hold(self, hold: bool) -> None:
        """Have the browser wait before its next block, or go on: the server measures, and may be the same machine."""
        self.widget.send({"do": "hold", "hold": hold})

    def keep(self) -> None:
        """Store what was measured as a machine of its own; of what is stored already, only what came since."""
        blocks = self._found.blocks if self._found is not None else []
        records = your_gpu.records(replace(self._found, blocks=blocks[self._n_kept :])) if self._found else []
        if records:
            try:
                self._problem = kept_in(self._store.path).keep(self._viewer, records)
                self._kept = "Nothing was kept." if self._problem else view.kept(records[0].machine_line)
                self._n_kept = len(blocks)
            except ValueError as error:
                self._kept = sentence(error)
        self._kept = self._kept or view.KEEP_LATER
        self.tell()

    def stop(self) -> None:
        """End what is measured."""
        self.widget.send({"do": "stop"})

    def refuse(self, problem: str) -> None:
        """End what is measured, and say what is wrong with the controls."""
        self._job, self._problem = None, problem
        self.stop()
        self.tell()

    def look_at_server(self) -> None:
        """Read anew what the server has measured of this training, and tell it."""
        if self._job is not None:
            self._server = your_gpu.on_server(self._job.training, self._store.records(Kind.RACE))
        self.tell()

    def _begin(self) -> None:
        if self._job is None or self._who is None or not self._images_line:
            return
        self._number += 1
        before, self._kept, self._n_kept = self._found, "", 0
        self._found = before.again(self._job) if before else Found(self._who, self._job, self._sent)
        message = self._job.message(sizes=not self._found.has_sizes)
        buffers = self._job.buffers(self._sent)
        self.widget.send({"do": "measure", "id": self._number, **message}, buffers=buffers)
        self._stage = "starting"
        self.look_at_server()

    def _hear(self, content: Any) -> None:
        """A message of the browser; one that is not sound is told, and changes nothing."""
        try:
            self._answer(content if isinstance(content, dict) else {})
        except (ValueError, DataError) as error:
            self._problem = sentence(error)
        self.tell()

    def _answer(self, content: Mapping[str, Any]) -> None:
        what = content.get("is")
        if what == "opened":
            self._who, self._found, self._sent, self._images_line = your_gpu.opened(content), None, 0, ""
            self._stage = "images"
            kept_in(self._store.path).recognise(self.machine)
            arrays, _ = _images()
            self._send_images({"sample": True}, arrays["x_validation"], arrays["y_validation"])
        elif what == "more":
            arrays, _ = _images()
            part = slice(self._sent, self._sent + PART)
            self._sent = min(part.stop, MAX_IMAGES)
            last = {"last": self._sent == MAX_IMAGES}
            self._send_images(last, arrays["x_train"][part], arrays["y_train"][part])
        elif what == "enough":
            took_s = content.get("took_s")
            self._images_line = view.images_line(self._sent, float(took_s or 0), _images()[1])
            self._begin()
        elif what == "rows" and self._found is not None and content.get("job") == self._number:
            self._found.take(your_gpu.rows(content))
        elif what == "at" and content.get("job") == self._number and content.get("stage") in STAGES:
            self._stage = str(content["stage"])

    def _send_images(self, about: Mapping[str, Any], x, y) -> None:
        self.widget.send({"do": "images", **about}, buffers=[x.tobytes(), y.tobytes()])

    def tell(self) -> None:
        """Say what is known now."""
        who, found = self._who, self._found
        state, words = STAGES[self._stage]
        told: dict[str, Any] = {
            "captions": CAPTIONS,
            "line": layout.state_line(state, *_progress(self._stage), words, self._problem),
        }
        if who is not None:
            told["labels"] = view.labels(who, found)
        if found is not None and who is not None and self._job is not None:
            server = self._server
            notes = (self._kept, view.accuracy_line(found), self._images_line, view.hidden_line(found))
            told |= {
                "border": found.border() or 0,
                "sentence": layout.problems(view.problems(found))
                + layout.sentence(view.sentence(found))
                + layout.said(view.border_sentence(found))
                + layout.said(view.server_sentence(found, server)),
                "table": view.ways_table(found, server),
                "below": "".join(map(layout.quiet, filter(None, notes)))
                + layout.quiet(view.which_is_which(who, this_machine(), platform.system()))
                + layout.quiet(view.clock_line(who)),
            }
        self.widget.told = told


def _progress(stage: str) -> tuple[float, float]:
    under_way = [name for name, (state, _) in STAGES.items() if state in (State.STARTING, State.MEASURING)]
    return (under_way.index(stage), len(under_way)) if stage in under_way else (1.0, 1.0)


@once
def _images() -> tuple[Mapping[str, Any], Facts]:
    """The images that travel to browsers, loaded once for all viewers."""
    return load_part(MAX_IMAGES, N_SAMPLE)


def panel(address: Address, browser: InBrowser) -> mo.ui.dictionary:
    """Batch size, width, depth, learning rate, way of launching, and the two buttons."""
    stop = mo.ui.button(label="Stop", value=0, on_click=lambda n: browser.stop() or n + 1, tooltip="Stop measuring")
    again = button("Measure again", "Measure all of it anew")
    keep = mo.ui.button(
        label="Keep as a machine",
        value=0,
        on_click=lambda n: browser.keep() or n + 1,
        tooltip="Stored on this notebook's server, and nowhere else; “Which library?” shows it",
    )
    return _controls().panel(address, keep=keep, stop=stop, again=again)


def show(browser: InBrowser, controls: mo.Html) -> mo.Html:
    """The controls, and what the browser measures and draws."""
    if is_static():  # nothing would tell it what to measure, and it would be starting for ever
        return layout.note(ONLY_IN_A_BROWSER)
    return layout.page(controls.text, mo.as_html(mo.ui.anywidget(browser.widget)).text)


def _training(panel: mo.ui.dictionary) -> tuple[Training, str]:
    """What is trained, and the way of launching; raises ValueError, with a sentence for the person."""
    values = _controls().checked(panel.value)
    network = Network((values["width"],) * values["depth"])
    return Training(network, values["rate"], values["size"], 1), values["way"]


def ask(browser: InBrowser, panel: mo.ui.dictionary) -> None:
    """Have the browser measure what the controls say."""
    if not streaming():
        say(ONLY_IN_A_BROWSER)
        return
    try:
        job = Job(*_training(panel))
    except ValueError as error:
        return browser.refuse(sentence(error))
    browser.ask(job, panel.value["again"])


# Beside all others who keep theirs on this server.


def side_by_side(stage: Stage, browser: InBrowser, panel: mo.ui.dictionary) -> None:
    """Show the kept machines with the chosen network and batch size, and go on as others keep theirs."""
    try:
        training, _ = _training(panel)
    except ValueError:
        return  # the first section says it
    kept = kept_in(stage.store.path)
    paint_at_changes(stage, kept, partial(_paint_kept, kept, browser, training))


def _paint_kept(kept: KeptMachines, browser: InBrowser, training: Training) -> int:
    now = kept.view()
    cell, yours = (training.network, training.batch_size), browser.machine
    contests = kept_machines.contests(now.items, *cell)
    content = layout.said(kept_view.sentence(contests, *cell, yours) or kept_view.NO_SIDE_BY_SIDE)
    if contests:
        figures = kept_view.charts(contests, yours)
        drawn = "".join(layout.framed(caption, chart, "lab-low") for caption, chart in figures)
        details = on_demand("the same in figures", kept_view.contests_table(contests, yours))
        content += f'{kept_view.legend()}<div class="compare-grid">{drawn}</div>{details}'
    content += layout.quiet(kept_view.elsewhere_note(kept_machines.elsewhere(now.items, *cell)))
    content += f'<p class="lab-note">Beside all other machines: {link("which_library")}.</p>'
    mo.output.replace(mo.Html(f'<div class="webgpu-kept">{content}</div>'))
    return now.version


# Beside the server's libraries.


def server_panel(stage: Stage) -> mo.ui.dictionary:
    """A button that measures the server's libraries, and one that stops that."""
    measure = button("Measure the server's libraries", "Time an epoch of the same training by each; your browser waits")
    return mo.ui.dictionary({"stop": stop_button(stage), "again": measure})


def on_server(
    stage: Stage, browser: InBrowser, panel: mo.ui.dictionary, yours: mo.ui.dictionary, controls: mo.Html
) -> None:
    """Measure the same training by the server's libraries where the button was pressed; the table above shows it."""
    try:
        training, _ = _training(yours)
    except ValueError:
        return  # the first section says it
    cells = your_gpu.cells(training)

    def make(again: bool):
        todo = plan(cells, stage.store.records(Kind.RACE), rounds=1) if again else []
        return (len(todo),), partial(_measured, browser, todo)

    request = Request(stage.viewer, Urgency.NOW)
    asked = (training.network, training.batch_size)
    running = stage.begin_if_new(asked, panel.value["again"], request, make)
    paint_while_it_runs(stage, running, partial(_paint_server, browser, running, *stage.began_with, controls.text))


def _measured(
    browser: InBrowser, todo: Sequence[Cell], engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[Record | Note]:
    if not todo:
        return
    browser.hold(True)
    try:
        yield from records_and_notes(race(todo, engine, store, cancel, request))
    finally:
        browser.hold(False)


def _paint_server(browser: InBrowser, running: BackgroundTask, n_todo: int, controls: str) -> int:
    now = running.view()
    browser.look_at_server()
    state = now.state if n_todo else State.NOT_RUNNING
    words = now.note or (
        f"{len(now.items)} of {n_todo} libraries" if n_todo else "stored figures are in the table above"
    )
    line = layout.state_line(state, len(now.items), n_todo, words, now.problem)
    return painted(now, layout.page(controls, line).text, "")
