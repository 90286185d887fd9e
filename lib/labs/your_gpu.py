"""The "Your GPU" page: drive the measurement in the viewer's browser, and draw and describe what it reports.

`lib.sweeps.experiments.your_gpu` checks and compares the browser's answers.
"""

import html
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import marimo as mo
from msgspec import structs

from lib.formatting import counted, justified, listed, percent, seconds, times
from lib.formatting import sentence as as_sentence
from lib.model.backends.webgpu import kernels
from lib.model.data.mnist import DataError, Facts, load_part
from lib.model.hardware.machine import ThisMachine, this_machine
from lib.model.spec import RATE_STEPS, Network, Training
from lib.once import once
from lib.sweeps.experiments import your_gpu
from lib.sweeps.experiments.backend_race import Cell, Standing, plan, race, standings
from lib.sweeps.experiments.recorded_machines import RECORDED, Machine
from lib.sweeps.experiments.your_gpu import (
    CPU_WAYS,
    DEVICES,
    MAX_IMAGES,
    N_SAMPLE,
    PART,
    SIDES,
    USUAL_WAY,
    WAYS,
    BrowserJob,
    Contest,
    Found,
    Opened,
    Refusal,
    kept_machines,
)
from lib.sweeps.storage.records import Kind, Record
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.engine import Engine
from lib.sweeps.workers.messages import Note, State
from lib.sweeps.workers.queue import Cancel, Request
from lib.timing.comparison import Verdict
from lib.timing.prediction.workload import Ceiling
from lib.ui import layout
from lib.ui.controls import Controls, batch_size, dropdown, hidden, slider
from lib.ui.lab import Asked, Drawing, Hook, Lab, Painter, Section, Shown, Work, nothing, say
from lib.ui.notebooks import is_static, link
from lib.ui.opened import streaming
from lib.ui.views.chart import Chart
from lib.ui.views.dots import Dot, dots_chart
from lib.ui.views.markup import quiet, table
from lib.ui.widgets import MeasureInBrowser

CAPTIONS = (
    "loss by seconds of training; the devices take turns",
    "seconds per product by size; hollow: predicted, not measured",
)
# State shown, stages of `N_STAGES` already done, and text, by the browser's stage.
N_STAGES = 6
STAGES = {
    "opening": (State.STARTING, 0, "your browser is opening its GPU"),
    "images": (State.STARTING, 1, "your browser is receiving images for a second"),
    "starting": (State.STARTING, 2, "compiling kernels and making the first steps"),
    "training": (State.MEASURING, 3, "the GPU and CPU train in turns"),
    "ways": (State.MEASURING, 4, "timing the other ways of launching, in turns"),
    "sizes": (State.MEASURING, 5, "timing products of growing size on both devices"),
    "hidden": (State.WAITING, 6, "this tab is in the background; it continues when you return to it"),
    "another tab": (State.WAITING, 6, "another tab of this page is measuring; this one waits its turn"),
    "held": (State.WAITING, 6, "the server, which may be this machine, is measuring; this continues afterwards"),
    "over": (State.DONE, 6, "measured in your browser just now"),
    "stopped": (State.STOPPED, 6, "“Measure again” starts over"),
}
ONLY_IN_A_BROWSER = (
    "This notebook measures in your browser and needs a server: run `make run NOTEBOOK=notebooks/your_gpu.py`."
)
KEPT = "Kept on this notebook's server as “{}”; “Which library?” shows it alongside the others."
NO_SIDE_BY_SIDE = "No machine is kept for this network and batch size yet. Press “Keep as a machine” to add the first."
SOFTWARE = "software, no GPU"
DEVICE_COLORS = {"GPU": "#3a72d8", "CPU": "#d1623a", SOFTWARE: "#8a8f98"}  # as `webgpu_drawing.js` draws them
NO_FAULT = ("no adapter", "not offered")  # kinds of refusal that are not faults


class ReaderTraining(Controls):
    size = batch_size("Batch size", 32)
    hidden = hidden()
    rate = slider("Learning rate", 0.1, RATE_STEPS)
    way = dropdown("The GPU's operations are launched by", USUAL_WAY, {v: k for k, v in WAYS.items()}, full_width=True)


class ServerLibraries(Controls):
    AGAIN = "Measure the server's libraries", "Time an epoch of the same training with each; your browser waits"


class YourGpu(Lab):
    def __init__(self) -> None:
        self.browser = InBrowser()
        super().__init__("your_gpu", (self.browser,), yours=ReaderTraining, server=ServerLibraries)


class InBrowser(Hook):
    def __init__(self) -> None:
        self._who: Opened | None = None
        self._job: BrowserJob | None = None
        self._found: Found | None = None
        self._server: Mapping[Cell, Standing] = {}
        self._presses: object = 0  # of “Measure again”
        self._number = self._sent = self._n_kept = 0  # number of the current job; images sent; rows kept
        self._n_drawn = 0  # records of all readers, in “Side by side”
        self._images_line = self._problem = self._kept = ""
        self._stage = "opening"
        self.widget = MeasureInBrowser(kernels(), {})
        self.widget.on_msg(lambda _widget, content, _buffers: self._hear(content))
        means = "Store this on the notebook's server and nowhere else; “Which library?” shows it"
        self._keep = mo.ui.button(
            label="Keep as a machine", value=0, on_click=lambda n: self.keep() or n + 1, tooltip=means
        )

    def stopped(self, section: Section) -> None:
        """Stop the measurement in the browser. The server's measurement has its own button."""
        if section.prefix == "yours":
            self.widget.send({"do": "stop"})

    def show(self) -> mo.Html:
        if is_static():  # without a server the widget would say "starting" forever
            return mo.Html(quiet(ONLY_IN_A_BROWSER))
        self.tell()
        controls = f'{self.page.sections["yours"].controls()}<div class="lab-buttons">{self._keep.text}</div>'
        return layout.page(
            controls, mo.as_html(mo.ui.anywidget(self.widget)).text, self.page.sections["yours"].buttons()
        )

    def follow(self, panel: mo.ui.dictionary) -> None:
        try:
            job = _job(panel.value)
        except ValueError as error:
            self._job, self._problem = None, as_sentence(error)
            self.widget.send({"do": "stop"})
            return self.tell()
        if streaming():
            self.measure(job, panel.value["again"])
        else:
            say(ONLY_IN_A_BROWSER)
        section = self.page.sections["yours"]
        section.drawing = Painter(partial(self._draw_kept, job.training), look=self._look_at_kept)
        section.drawing.show(section.stage)

    def measure(self, job: BrowserJob, presses: object) -> None:
        """Replace the current measurement by `job`.

        Args:
            job: What to measure.
            presses: Count of "Measure again"; a new count reopens the GPU and measures everything.
        """
        again, self._presses = presses != self._presses, presses
        if job == self._job and not again:
            return  # some other control changed
        self._job, self._problem = job, ""
        if again and self._found is not None:
            self._found, self._images_line, self._stage = None, "", "opening"
            self.widget.send({"do": "reopen"})
            self.tell()
        else:
            self._begin()

    def keep(self) -> None:
        """Store the measurements as a machine; after the first time, only the new blocks."""
        found = self._found
        new = your_gpu.records(replace(found, rows=found.rows[self._n_kept :])) if found is not None else []
        if found is not None and new:
            try:
                self._problem = your_gpu.keep(self.page.store, self.page.sections["yours"].stage.viewer, new)
                self._kept = "Nothing was kept." if self._problem else KEPT.format(new[0].machine_line)
                self._n_kept = len(found.rows)
            except ValueError as error:
                self._kept = as_sentence(error)
        self._kept = self._kept or "There is nothing to keep yet: wait until a few blocks are measured."
        self.tell()

    def look_at_server(self) -> None:
        if self._job is not None:
            found = standings(your_gpu.cells(self._job.training), self.page.store.records(Kind.RACE))
            self._server = dict(sorted(found.items(), key=lambda item: item[1].quartiles_s[1]))
        self.tell()

    def _begin(self) -> None:
        if self._job is None or self._who is None or not self._images_line:
            return
        before, self._kept, self._n_kept = self._found, "", 0
        self._found = before.again(self._job) if before else Found(self._who, self._job)
        self._number += 1
        message = {"do": "measure", "id": self._number, **self._job.message(sizes=not self._found.has_sizes)}
        self.widget.send(message, buffers=self._job.buffers(self._sent))
        self._stage = "starting"
        self.look_at_server()

    def _hear(self, content: Any) -> None:
        """Handle a message from the browser. An invalid one is reported and changes nothing."""
        try:
            self._answer(content if isinstance(content, dict) else {})
        except (ValueError, DataError) as error:
            self._problem = as_sentence(error)
        self.tell()

    def _answer(self, content: Mapping[str, Any]) -> None:
        what, of_this_job = content.get("is"), content.get("job") == self._number
        if what == "opened":
            self._who, self._found, self._sent, self._images_line = your_gpu.opened(content), None, 0, ""
            self._stage = "images"
            self.page.sections["yours"].redraw()  # a kept machine may turn out to be this reader's
            self._send_images("validation", slice(None), sample=True)
        elif what == "more":
            part = slice(self._sent, self._sent + PART)
            self._sent = min(part.stop, MAX_IMAGES)
            self._send_images("train", part, last=self._sent == MAX_IMAGES)
        elif what == "enough":
            self._images_line = images_line(self._sent, float(content.get("took_s") or 0), _images()[1])
            self._begin()
        elif what == "rows" and self._found is not None and of_this_job:
            self._found.take(your_gpu.rows(content))
        elif what == "at" and of_this_job and content.get("stage") in STAGES:
            self._stage = str(content["stage"])

    def _send_images(self, kind: str, part: slice, **about: bool) -> None:
        arrays, _ = _images()
        buffers = [arrays[f"{of}_{kind}"][part].tobytes() for of in "xy"]
        self.widget.send({"do": "images", **about}, buffers=buffers)

    def tell(self) -> None:
        who, found, server = self._who, self._found, self._server
        state, n_done, words = STAGES[self._stage]
        line = layout.state_line(state, n_done, N_STAGES, words, self._problem)
        told: dict[str, Any] = {"captions": CAPTIONS, "line": line, "under_way": state.under_way}
        told["sentence"] = layout.sentence(sentence(found) if found is not None else "")
        if who is not None:
            told["labels"] = labels(who, found)
        if who is not None and found is not None and self._job is not None:
            server_line = which_is_which(who, this_machine(), platform.system())
            notes = (self._kept, accuracy_line(found), self._images_line, hidden_line(found), server_line)
            told |= {
                "border": found.border() or 0,
                "said": layout.problems(problems(found))
                + layout.said(border_sentence(found))
                + layout.said(server_sentence(found, server)),
                "table": ways_table(found, server),
                "below": "".join(map(quiet, (*notes, clock_line(who)))),
            }
        self.widget.told = told

    def _look_at_kept(self) -> None:
        """Draw again once any reader has kept more."""
        if sum(len(one.records) for one in kept_machines(self.page.store)) != self._n_drawn:
            self.page.sections["yours"].redraw()

    def _draw_kept(self, training: Training) -> None:
        machines = kept_machines(self.page.store)
        self._n_drawn = sum(len(one.records) for one in machines)
        yours = your_gpu.machine_of(self._who)[0] if self._who is not None else ""
        cell = training.network, training.batch_size
        contests = your_gpu.contests(machines, *cell)
        content = layout.said(class_sentence(contests, *cell, yours) or NO_SIDE_BY_SIDE)
        if contests:
            chart = class_chart(contests, yours)
            content += layout.framed("seconds per epoch, by each device's fastest way", chart)
        content += f'<p class="lab-note">All machines side by side: {link("which_library")}.</p>'
        mo.output.replace(mo.Html(f'<div class="webgpu-kept">{content}</div>'))

    def on_server(
        self, panel: mo.ui.dictionary
    ) -> tuple[Callable[[ServerLibraries], Asked], Callable[[Shown], Drawing]]:
        values = dict(panel.value)

        def ask(_: ServerLibraries) -> Asked:
            training = _job(values).training

            def make(pressed: bool) -> tuple[tuple, Work]:
                todo = plan(your_gpu.cells(training), self.page.store.records(Kind.RACE), rounds=1) if pressed else []
                return (len(todo),), partial(self._race, todo) if todo else nothing

            return Asked((training.network, training.batch_size), make)

        return ask, self._draw_server

    def _race(
        self, todo: Sequence[Cell], engine: Engine, store: Store, cancel: Cancel, request: Request
    ) -> Iterator[Record | Note]:
        """Time these cells while the browser pauses: it may run on the same machine as the server."""
        self.widget.send({"do": "hold", "hold": True})
        try:
            yield from race(todo, engine, store, cancel, request)
        finally:
            self.widget.send({"do": "hold", "hold": False})

    def _draw_server(self, shown: Shown) -> Drawing:
        self.look_at_server()
        (n_todo,), now = shown.known, shown.now
        known = f"{len(now.items)} of {n_todo} libraries" if n_todo else "the table above has the stored figures"
        state = now.state if n_todo else State.NOT_RUNNING
        return Drawing(layout.state_line(state, len(now.items), n_todo, now.note or known, now.problem), "")


def _job(values: Mapping[str, Any]) -> BrowserJob:
    """The job that the controls select. Raises ValueError with a sentence for the viewer."""
    at = ReaderTraining.checked("yours", values)
    return BrowserJob(Training(Network.parse(at.hidden), at.rate, at.size, 1), at.way)


@once
def _images() -> tuple[Mapping[str, Any], Facts]:
    return load_part(MAX_IMAGES, N_SAMPLE)


# Sentences and tables.


def gpu_name(who: Opened) -> str:
    if who.adapter is None:
        return "no GPU"
    return f"{who.adapter.name} (software, no GPU)" if who.has_software else who.adapter.name


def labels(who: Opened, found: Found | None) -> dict[str, str | bool]:
    return {"gpu": gpu_name(who), "cpu": _cpu(found) if found is not None else "", "software": who.has_software}


def _cpu(found: Found) -> str:
    return CPU_WAYS[found.way("cpu")]


def _gpu(who: Opened) -> str:
    return gpu_name(who) if who.adapter is None or who.has_software else f"your GPU ({who.adapter.name})"


def _short(who: Opened) -> str:
    return "your GPU" if who.adapter is not None and not who.has_software else "software adapter"


def why_no_gpu(who: Opened) -> str:
    if who.adapter is not None:
        return ""
    fault = next((one.message for one in who.failed if one.device == "gpu" and one.kind not in NO_FAULT), None)
    reasons = (
        (
            not who.secure,
            f" to a page loaded over http from {who.host}: only localhost and https may use it, so open the page"
            " through a tunnel (`ssh -L 2718:localhost:2718 MACHINE`, then localhost:2718) or behind TLS.",
        ),
        (
            not who.offered,
            f": {who.browser} does not support WebGPU; Chrome and Edge from 113, Safari from 26 and Firefox from 141"
            " do, on systems where they offer it.",
        ),
        (fault is not None, f": it reports “{fault}”; reload the page, or update the browser and the driver."),
        (
            True,
            f": {who.browser} supports WebGPU but found no adapter it can use; update the graphics driver, check"
            " chrome://gpu, and on Linux start Chrome with --enable-unsafe-webgpu.",
        ),
    )
    return "Your browser offers no GPU" + next(why for holds, why in reasons if holds)


def trouble(failed: Refusal, who: Opened) -> str:
    what = CPU_WAYS.get(failed.way, "Your CPU") if failed.device == "cpu" else gpu_name(who)
    way = f", {WAYS[failed.way]}" if failed.way in WAYS else ""
    needs, allows = (f"{size / 2**20:,.0f} MiB" for size in (failed.needs, failed.allows))
    words = {
        "too large": (
            f"needs a buffer of {needs}, but the adapter allows {allows}, so nothing was allocated; choose a smaller"
            " network or batch"
        ),
        "memory": (
            f"ran out of memory at a buffer of {needs}; choose a smaller network or batch, or close other pages"
        ),
        "too slow": (
            f"would need about {seconds(failed.expected_s)} a step, so none was made; choose a smaller network or batch"
        ),
        "too much for one kernel": (
            "would run on one of the GPU's many processors for so long that the driver may end it, so it was not"
            " started; choose a smaller network or batch"
        ),
        "shader": f"does not compile: the driver reports {failed.message}; the other ways continue",
        "no WebAssembly": (
            f"is not in your browser ({failed.message or 'switched off'}); JavaScript continues alone until you update"
            " it"
        ),
        "lost": f"was lost ({failed.message or 'no reason given'}); “Measure again” reopens it",
        "diverged": "ended with a loss that is not a number; choose a smaller learning rate",
    }
    said = words.get(failed.kind, f"failed: {failed.message or failed.kind}; “Measure again” retries")
    return f"{what}{way} {said}."


def sentence(found: Found) -> str:
    comparison, gpu, cpu = found.comparison(), _gpu(found.who), _cpu(found)
    epochs = (found.epochs(device, found.way(device)) for device in DEVICES)
    on_gpu, on_cpu = (one.text if one is not None else "" for one in epochs)
    if comparison is None or not on_gpu or not on_cpu:
        alone = f"{gpu} takes {on_gpu}" if on_gpu else f"{cpu} takes {on_cpu}"
        return f"{alone[:1].upper()}{alone[1:]} an epoch." if on_gpu or on_cpu else ""
    ratio = comparison.text
    words = {
        Verdict.FASTER: f"{gpu} beats {cpu}: {on_gpu} an epoch against {on_cpu}, {ratio} of the time. ",
        Verdict.SLOWER: f"{cpu} beats {gpu}: {on_cpu} an epoch against {on_gpu}, which is {ratio} times as long. ",
        Verdict.SAME: f"{gpu} and {cpu} are equally fast",
        Verdict.UNCLEAR: f"{gpu} and {cpu} are indistinguishable so far",
    }
    bounded = {Verdict.FASTER: "cpu", Verdict.SLOWER: "gpu"}.get(comparison.verdict)
    why = bound(found, bounded) if bounded else f": {on_gpu} and {on_cpu} an epoch, a ratio of {ratio}."
    text = f"{words[comparison.verdict]}{why}".strip()
    return text[:1].upper() + text[1:]


def bound(found: Found, device: str) -> str:
    if (parts := found.launching(device)) is None:
        return ""
    step, launching_s, arithmetic_s = map(seconds, parts)
    launching = f"{len(found.job.program.operations)} empty operations take {launching_s} of each {step} step"
    arithmetic = f"at its best product rate, the arithmetic takes {arithmetic_s}"
    by = {
        Ceiling.DISPATCH: f"launching: {launching}; {arithmetic}.",
        Ceiling.PRODUCT: f"arithmetic: {arithmetic} of each {step} step.",
        None: (
            f"neither launching nor arithmetic: {launching}, and {arithmetic}; the rest goes into products too small"
            " to run at that rate, and into memory."
        ),
    }
    return f"What limits {_cpu(found) if device == 'cpu' else _gpu(found.who)} is {by[your_gpu.bound(*parts)]}"


def border_sentence(found: Found) -> str:
    """From which matrix size the GPU is faster, and the cost of a launch and a copy; empty until both devices
    measured the same size.
    """
    measured = [
        side for side in SIDES if all(found.measured(of="product", device=device, size=side) for device in DEVICES)
    ]
    if not measured:
        return ""
    name, border, most = _gpu(found.who), found.border(), max(measured)
    said = f"No product of up to {most} × {most} is faster on {name} than on the CPU."
    if border is not None:
        said = f"From {border} × {border}, a product is faster on {name} than on the CPU."
    if (least := found.measured(of="product", device="gpu", size=1)) is not None:
        said += f" The smallest, one multiplication, takes {least.text} including the wait: the cost of a launch."
    if (cost := found.copies("gpu")) is not None and cost.latency_s > 0:
        low, high = cost.latency_interval_s
        said += f" A copy there and back costs {justified(cost.latency_s, low, high)}, whatever its size"
        said += f", plus its bytes at {times(cost.bytes_per_s / 1e9)} GB/s." if cost.grows else "."
    return said


def ways_table(found: Found, server: Mapping[Cell, Standing]) -> str:
    on_gpu = WAYS if found.who.adapter is not None else {}
    ways = [("gpu", way, f"{_short(found.who)}, {words}") for way, words in on_gpu.items()]
    ways += [("cpu", way, words) for way, words in CPU_WAYS.items()]
    rows = [_row(found, device, way, words) for device, way, words in ways]
    css = ["webgpu-chosen" if way == found.way(device) else "" for device, way, _ in ways]
    for cell, standing in server.items():
        label = html.escape(f"server: {cell.runtime.label}")
        rows.append([label, standing.text, f"{1 / standing.quartiles_s[1]:.3g}", "", "", ""])
        css.append("webgpu-server")
    head = ["trained by", "an epoch", "epochs a second", "times as long", "launching", "first step"]
    return table(head, rows, "webgpu-ways", css)


def server_sentence(found: Found, server: Mapping[Cell, Standing]) -> str:
    if (beside := your_gpu.compared_with_server(found, server)) is None:
        return ""
    device, way, comparison = beside
    (cell, standing), *_ = server.items()
    yours = CPU_WAYS[way] if device == "cpu" else f"{_short(found.who)}, {WAYS[way]}"
    words = {Verdict.FASTER: "faster", Verdict.SLOWER: "slower", Verdict.SAME: "equally fast"}
    told = words.get(comparison.verdict, "indistinguishable")
    return (
        f"The server's fastest is {cell.runtime.label}, {standing.text} an epoch; your browser's fastest"
        f" ({yours}) is {told}: {comparison.text} times as long."
    )


def _row(found: Found, device: str, way: str, name: str) -> list[str]:
    failed = found.failed.get((device, way)) or found.failed.get((device, ""))
    epoch, empty = found.epochs(device, way), found.measured(of="empty", device=device, way=way)
    starts = found.blocks(of="first step", device=device, way=way)
    first = seconds(starts[-1].block_s) if starts else ""
    if epoch is None:
        marks = {"shader": "does not compile", "no WebAssembly": "not in this browser"}
        mark = marks.get(failed.kind, failed.kind) if failed is not None else "–"
        return [html.escape(name), html.escape(mark), "", "", "", first]
    compared, epoch_s = found.of_way(device, way), epoch.median_s
    ratio = compared.text if compared else ""
    if way == found.way(device):  # the pair that the sentence compares
        ratio = {"gpu": "chosen", "cpu": "the faster"}[device]
    n_steps = found.job.training.steps_per_epoch()
    share = f"{min(1.0, empty.median_s * n_steps / epoch_s):.0%}" if empty and epoch_s else ""
    return [html.escape(name), epoch.text, f"{1 / epoch_s:.3g}" if epoch_s else "", ratio, share, first]


def accuracy_line(found: Found) -> str:
    names = {"cpu": _cpu(found), "gpu": gpu_name(found.who)}
    said = [
        f"{names[device]}: {percent(last.accuracy)} after {seconds(last.train_s)} of training"
        for device, last in found.evaluated.items()
    ]
    return f"{'; '.join(said)}. Of 1,000 validation images not used in training." if said else ""


def images_line(n_images: int, took_s: float, facts: Facts) -> str:
    which = f"Images: {facts.source}. {facts.note}".rstrip()
    return (
        f"Trained on the {n_images:,} images that reached your browser in {seconds(took_s)}; an epoch counts as 48,000."
        f" {which}"
    )


def which_is_which(who: Opened, server: ThisMachine, system: str) -> str:
    yours = f"{who.browser} on {who.platform or 'an unnamed system'}, {counted(who.cores, 'core')}"
    local = who.host in ("localhost", "127.0.0.1", "[::1]")
    alike = who.cores == server.cores and system.lower() in who.platform.lower() and local
    same = "As far as a browser can tell, both are one machine" if alike else "Your browser's machine is not the server"
    return f"Yours: {yours}. The server: {server.line}. {same}."


def clock_line(who: Opened) -> str:
    return (
        f"Your browser's clock shows multiples of {seconds(who.clock_s)}; a block lasts at least a hundred of them, and"
        " every interval allows for one more or less at each end. The CPU computes on one core: in WebAssembly with"
        " vectors of four float32, and in JavaScript, which has no vectors, with sums in float64. The faster of the two"
        " is compared with the GPU."
    )


def hidden_line(found: Found) -> str:
    why = "discarded and measured again: this tab was in the background, where browsers slow it down."
    n = len(found.blocks(of="discarded"))
    return f"{counted(n, 'block')} {why}" if n else ""


def problems(found: Found) -> list[str]:
    said, who = [], found.who
    if why := why_no_gpu(who):
        said.append(f"{why} Your CPU is measured anyway.")
    elif who.adapter is not None and who.has_software:
        said.append(
            f"What your browser offers as a GPU is {who.adapter.name}, software that computes on the CPU: it proves"
            " that the kernels are right but says nothing about a GPU's speed."
        )
    alike: dict[str, list[Refusal]] = {}  # a failure that several ways share is listed once
    for one in found.failed.values():
        alike.setdefault(trouble(structs.replace(one, way=""), who), []).append(one)
    return said + [trouble(of[0], who) if len(of) == 1 else words for words, of in alike.items()]


# Comparing the machines of a class.


def machine_label(machine: Machine, yours: str = "") -> str:
    """The machine's name with the GPU first, because that differs most within a class.

    Args:
        machine: Kept from a browser.
        yours: Id of the viewer's own machine.
    """
    system, *others, gpu = machine.name.split(" · ")
    return ("yours: " if machine.records[0].machine == yours else "") + " · ".join([gpu, system, *others])


def class_chart(contests: Sequence[Contest], yours: str = "") -> Chart:
    dots = [
        Dot(
            machine_label(one.machine, yours),
            SOFTWARE if one.is_software and best is one.gpu else device,
            RECORDED,
            *(best.seconds.middle, best.seconds.low, best.seconds.high),
            best.runtime.label + (f", {one.comparison.text} of the CPU's time" if one.comparison else ""),
        )
        for one in contests
        for best, device in ((one.gpu, "GPU"), (one.cpu, "CPU"))
        if best is not None
    ]
    names = [machine_label(one.machine, yours) for one in contests]
    return dots_chart(dots, DEVICE_COLORS, "seconds per epoch", "seconds per epoch by machine", names)


def class_sentence(contests: Sequence[Contest], network: Network, batch_size: int, yours: str = "") -> str:
    fair = [one for one in contests if one.verdict is not None]
    gpu, cpu, same, unclear = ([one for one in fair if one.verdict is verdict] for verdict in Verdict)
    software = sum(one.is_software for one in contests)
    others = len(contests) - len(fair) - software
    what = f"batch size {batch_size:,} and {'hidden layers of ' * bool(network.hidden)}{network.label}"
    share = f", in {_range(gpu)} of the CPU's time" if gpu else ""
    said = {
        f"With {what} the GPU wins on {len(gpu)} of {counted(len(fair), 'machine')}{share}.": fair,
        f"The CPU wins on {len(cpu)}, where the GPU takes {_range(cpu)} times as long{_which(cpu, gpu, yours)}.": cpu,
        f"On {len(same)} both are equally fast{_which(same, [*gpu, *cpu], yours)}.": same,
        f"On {len(unclear)} the winner is unclear{_which(unclear, [*gpu, *cpu], yours)}.": unclear,
        f"{counted(software, 'machine')} offered software instead of a GPU, which says nothing about a GPU.": software,
        f"For {counted(others, 'machine')}, only one of the two devices was kept.": others,
    }
    return " ".join(words for words, applies in said.items() if applies)


def _range(won: Sequence[Contest]) -> str:
    """Range of the ratios: GPU time over CPU time. `won` is sorted by ratio."""
    ratios = [times(one.comparison.ratio, 3) for one in won if one.comparison is not None]
    return " to ".join(dict.fromkeys([*ratios[:1], *ratios[-1:]]))


def _which(these: Sequence[Contest], others: Sequence[Contest], yours: str) -> str:
    if not 0 < len(these) <= max(3, len(others)):
        return ""
    return f": {listed([machine_label(one.machine, yours) for one in these])}"
