"""The one module that knows marimo: a run streams into its cell, ends when a control moves, and can be stopped.

A `Stage` is an experiment's place on one viewer's page. It owns the run that it shows; a new experiment cancels the
old run, and so does the end of the session, when the stage is collected. Nothing that runs in a thread holds the stage.

Where there is nobody to stream to (a script, an export, a test) the run happens in the foreground.
"""

import html
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import marimo as mo
import pandas as pd

from lib import charts as charts_module
from lib import experiments
from lib.backends import Way
from lib.backends.base import Parameters
from lib.engine import Engine, Trained, TrainingFailed, WorkerDied
from lib.experiments import Experiment
from lib.results import DIVERGED, DONE, FAILED, KEPT, RUNNING, STOPPED, WAITING, Results
from lib.spec import Training
from lib.store import Store
from lib.sweep import Item, sweep

FRAME_S = 0.15  # six or seven frames a second are enough for an eye, and leave the processor to the training
AT_ONCE_S = 0.08  # what is kept is shown without an empty frame before it


@dataclass
class Run:
    """A sweep in a thread, filling its results."""

    experiment: Experiment
    results: Results

    @classmethod
    def start(
        cls, experiment: Experiment, engine: Engine, store: Store | None, cancel: threading.Event, fresh: bool
    ) -> "Run":
        run = cls(experiment, Results(experiment.items, experiment.labels))
        arguments = (experiment, run.results, cancel, engine, store, fresh)
        threading.Thread(target=fill, args=arguments, daemon=True, name=f"run {experiment.name}").start()
        return run


def fill(
    experiment: Experiment,
    results: Results,
    cancel: threading.Event,
    engine: Engine,
    store: Store | None,
    fresh: bool = False,
) -> None:
    """Sweep the experiment into the results; whatever goes wrong becomes a sentence in them."""
    try:
        for update in sweep(experiment.items, engine, store, cancel, fresh):
            results.add(update)
        results.end(STOPPED if cancel.is_set() else DONE)
    except (WorkerDied, TrainingFailed, MemoryError, OSError) as error:
        results.end(FAILED, str(error))
    except Exception as error:
        results.end(
            FAILED,
            f"The run ended by a fault of this program ({type(error).__name__}: {error}); the terminal has the details.",
        )
        raise


class Stage:
    """Where one viewer sees one experiment."""

    def __init__(self, engine: Engine, store: Store | None) -> None:
        self.engine, self.store = engine, store
        self._run: Run | None = None
        self._asked = 0  # how often “Run again” had been pressed
        self._shown = [0]  # number of the latest showing; its painter alone may draw
        self._cancel = threading.Event()

    def run(self, experiment: Experiment, asked: int) -> Run:
        """The run of this experiment: the one that is there, or a new one, which ends the old one."""
        again = asked != self._asked
        same = self._run is not None and self._run.experiment == experiment
        if self._run is None or not same or again:
            cancel = self.begin()
            self._run, self._asked = Run.start(experiment, self.engine, self.store, cancel, fresh=again), asked
        return self._run

    def begin(self) -> threading.Event:
        """For work that is no experiment: ends what ran before, and returns the event that will end this."""
        self._cancel.set()
        self._run, self._cancel = None, threading.Event()
        weakref.finalize(self, self._cancel.set)
        return self._cancel

    def stop(self) -> None:
        """Stop what runs; what is finished stays."""
        self._cancel.set()

    def next_showing(self) -> tuple[list[int], int]:
        self._shown[0] += 1
        return self._shown, self._shown[0]


def streaming() -> bool:
    """Whether somebody watches: a page in the editor or under `marimo run`."""
    meta = mo.app_meta()
    return meta.mode in ("edit", "run") and meta.request is not None


def show(
    stage: Stage,
    make: Callable[[], Experiment],
    controls: mo.Html,
    asked: int = 0,
    target: float = 0.95,
    after: Callable[[Experiment, Results], str] | None = None,
    on_done: Callable[[Results], None] | None = None,
) -> None:
    """Run the experiment that `make` describes, and draw it into this cell until it is over.

    A ValueError of `make` is shown in place of the charts. `after` gives HTML to add below, `on_done` hears of the end.
    """
    try:
        experiment = make()
    except ValueError as error:
        stage.stop()
        stage.next_showing()
        mo.output.replace(
            _page(controls.text, f'<p class="lab-state lab-failed" role="alert">{html.escape(_sentence(error))}</p>')
        )
        if not streaming():
            print(_sentence(error), file=sys.stderr)
        return
    if not streaming():
        results = _run_in_foreground(experiment, stage, target)
        mo.output.replace(draw(experiment, results, controls.text, target, after))
        if on_done is not None:
            on_done(results)
        return
    run = stage.run(experiment, asked)
    shown, number = stage.next_showing()
    with run.results.changed:
        run.results.changed.wait_for(lambda: run.results.over, AT_ONCE_S)
    over = run.results.over
    mo.output.replace(draw(experiment, run.results, controls.text, target, after))
    if over:
        if on_done is not None:
            on_done(run.results)
    else:
        arguments = (run, controls.text, target, after, on_done, shown, number)
        mo.Thread(target=_paint, args=arguments, daemon=True).start()


def _paint(
    run: Run, controls: str, target: float, after: Callable[[Experiment, Results], str] | None,
    on_done: Callable[[Results], None] | None, shown: list[int], number: int,
) -> None:  # fmt: skip
    """Draw each new state, at most every `FRAME_S`, until the run is over or another showing took the place."""
    results, seen, next_frame = run.results, -1, 0.0
    while True:
        with results.changed:
            results.changed.wait_for(lambda seen=seen: results.version != seen, 1.0)
            changed, seen, over = results.version != seen, results.version, results.over
        pause_s = next_frame - time.monotonic()
        if pause_s > 0 and not over:
            time.sleep(pause_s)
        if shown[0] != number or mo.current_thread().should_exit:
            return
        if changed or not over:
            next_frame = time.monotonic() + FRAME_S
            mo.output.replace(draw(run.experiment, results, controls, target, after))
        if over:
            if on_done is not None:
                on_done(results)
            return


def show_parameters(
    stage: Stage, item: Item | None, draw_network: Callable[[Item, Parameters], mo.Html], nothing: str
) -> None:
    """Train one network again for its parameters (the same ones: training is deterministic), then draw it into this cell."""
    shown, number = stage.next_showing()
    if item is None:
        stage.stop()
        mo.output.replace(mo.Html(f'<p class="lab-note">{html.escape(nothing)}</p>'))
        return
    if item.training in _parameters:
        mo.output.replace(draw_network(item, _parameters[item.training]))
        return
    cancel = stage.begin()

    def work(still_wanted: Callable[[], bool]) -> None:
        output: mo.Html | None = None
        try:
            parameters = _train_for_parameters(stage_engine, item.training, cancel)
            if parameters is not None:
                output = draw_network(item, parameters)
        except (WorkerDied, TrainingFailed, OSError) as error:
            output = mo.Html(f'<p class="lab-state lab-failed" role="alert">{html.escape(str(error))}</p>')
        if output is not None and still_wanted():
            mo.output.replace(output)

    stage_engine = stage.engine
    if not streaming():
        work(lambda: True)
        return
    mo.output.replace(
        mo.Html('<p class="lab-state lab-waiting"><b>Waiting</b><span>for the network\'s parameters</span></p>')
    )
    mo.Thread(target=work, args=(lambda: shown[0] == number,), daemon=True).start()


_parameters: OrderedDict[Training, Parameters] = OrderedDict()  # of the networks looked into last, for all viewers
_MAX_KEPT_PARAMETERS = 8


def _train_for_parameters(engine: Engine, training: Training, cancel: threading.Event) -> Parameters | None:
    for message in engine.run(Way(), [training], cancel, want_parameters=True):
        if isinstance(message, Trained) and message.parameters is not None:
            _parameters[training] = message.parameters
            while len(_parameters) > _MAX_KEPT_PARAMETERS:
                _parameters.popitem(last=False)
            return message.parameters
    return None


def _run_in_foreground(experiment: Experiment, stage: Stage, target: float) -> Results:
    """For scripts and exports: a line of progress on standard error, then the sentence and the table on standard output."""
    results = Results(experiment.items, experiment.labels)
    cancel = threading.Event()
    thread = threading.Thread(target=fill, args=(experiment, results, cancel, stage.engine, stage.store), daemon=True)
    thread.start()
    script = mo.app_meta().mode == "script"
    try:
        while thread.is_alive():
            thread.join(0.25)
            if script and sys.stderr.isatty():
                print(f"\r{experiment.name}: {_progress_text(results)}\033[K", end="", file=sys.stderr, flush=True)
    finally:
        cancel.set()  # interrupted: the worker stops too
    if script:
        print(f"\r\033[K\n{experiment.name}" if sys.stderr.isatty() else f"\n{experiment.name}")
        print(table(experiment, results).to_string(index=False))
        print(experiments.sentence(experiment, results, target))
    return results


def draw(
    experiment: Experiment,
    results: Results,
    controls: str,
    target: float,
    after: Callable[[Experiment, Results], str] | None = None,
) -> mo.Html:
    """The whole frame: controls left; charts, state, sentence and table right."""
    figures = "".join(
        f'<figure class="lab-figure"><figcaption>{html.escape(chart.title)}</figcaption>{mo.as_html(chart).text}</figure>'
        for chart in charts_module.charts(experiment, results, target)
    )
    parts = [f'<div class="lab-charts lab-{experiment.name}">{figures}</div>', _state_line(results)]
    sentence = experiments.sentence(experiment, results, target)
    if sentence:
        parts.append(f'<p class="lab-sentence" aria-live="polite">{html.escape(sentence)}</p>')
    if results.over and (note := experiments.published_note(experiment.name)):
        parts.append(f'<p class="lab-note">{html.escape(note)}</p>')
    if after is not None:
        parts.append(after(experiment, results))
    if results.over:
        parts.append(_details(experiment, results))
    return _page(controls, "".join(parts))


def _page(controls: str, result: str) -> mo.Html:
    return mo.Html(
        f'<div class="lab"><div class="lab-controls">{controls}</div><div class="lab-result">{result}</div></div>'
    )


_STATE_WORDS = {
    WAITING: "Waiting", RUNNING: "Training", STOPPED: "Stopped", KEPT: "From store", DONE: "Done", FAILED: "Failed", DIVERGED: "Diverged",
}  # fmt: skip


def _state_line(results: Results) -> str:
    """State, progress and time left; the bar keeps its place when it is full."""
    share = 1.0 if results.state in (DONE, KEPT) else results.share_done
    kind = results.state.replace(" ", "-")
    return (
        f'<div class="lab-state lab-{kind}"><b>{_STATE_WORDS[results.state]}</b>'
        f'<progress max="1" value="{share:.3f}" aria-label="progress"></progress><span>{html.escape(_progress_text(results))}</span></div>'
    )


def _progress_text(results: Results) -> str:
    if results.starting:
        return f"starting the worker of {results.starting}: it imports its library and loads the images"
    if results.state == WAITING:
        if results.place is None:
            return "another program on this machine is timing something; this starts when it has finished"
        return (
            ""
            if results.place == 0
            else f"number {results.place + 1} in the queue: one training at a time, so that its seconds are true"
        )
    if results.state == RUNNING:
        left_s = results.left_s
        return f"{results.share_done:.0%}" + (
            f", about {experiments.seconds(max(left_s, 0.1))} left" if left_s is not None else ""
        )
    if results.state == KEPT:
        when = min((line.curve.measured_at for line in results.lines if line.curve), default="")
        return f"trained and timed on this machine {_ago(when)}; “Run again” measures anew"
    if results.state == DONE:
        kept = sum(line.kept for line in results.lines)
        return f"{len(results.lines)} trainings" + (
            f", {kept} of them from the store" if kept else ", measured just now"
        )
    return ""


def _ago(iso: str) -> str:
    """A time in words, from ISO 8601 in UTC."""
    if not iso:
        return "earlier"
    passed_s = (pd.Timestamp.now("UTC") - pd.Timestamp(iso)).total_seconds()
    if passed_s < 90:
        return "a moment ago"
    for limit_s, unit_s, word in ((5400, 60, "minutes"), (129600, 3600, "hours")):
        if passed_s < limit_s:
            return f"{passed_s / unit_s:.0f} {word} ago"
    return f"on {iso[:10]}"


def table(experiment: Experiment, results: Results) -> pd.DataFrame:
    """The summary as people read it."""
    frame = results.summary_frame()
    shown = pd.DataFrame(
        {
            experiment.ordered_by: frame["label"],
            "accuracy": frame["accuracy"].map(lambda value: experiments.percent(value) if value == value else "–"),
            "parameters": frame["parameters"].map("{:,}".format),
            "steps": frame["steps"].map("{:,}".format),
            "s an epoch": frame["epoch_median_s"].map(_plain_s),
            "quartiles": [
                f"{_plain_s(low)} – {_plain_s(high)}"
                for low, high in zip(frame["epoch_q1_s"], frame["epoch_q3_s"], strict=True)
            ],
            "timed epochs": frame["timed_epochs"],
            "s of training": frame["train_s"].map(_plain_s),
            "s of first call": frame["first_call_s"].map(_plain_s),
            "state": frame["state"],
        }
    )
    return shown


def _plain_s(value: float) -> str:
    return "–" if value != value else f"{value:.3g}"


def _details(experiment: Experiment, results: Results) -> str:
    rows = table(experiment, results).to_html(index=False, border=0, classes="lab-table", escape=True)
    how = (
        "Seconds are wall time of the training alone, on a monotonic clock, with the device waited for at the end of each chunk; evaluation, "
        "compilation (“first call”) and waiting are left out. An epoch's seconds are the median and quartiles of all but the first. One training "
        "runs at a time on this machine. Accuracy is on the 12,000 validation images, with one seed: gaps below half a point can be chance."
    )
    return (
        f'<details class="lab-details"><summary>Table</summary><div class="lab-scroll">{rows}</div></details>'
        f'<details class="lab-details"><summary>How this was measured</summary><p>{how}</p></details>'
    )


def _sentence(error: ValueError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


class _QueryParameters(Protocol):
    """What is used of marimo's class, which has no public name."""

    def to_dict(self) -> dict: ...

    def __setitem__(self, key: str, value: str) -> None: ...

    def __delitem__(self, key: str) -> None: ...


class Address:
    """The state of all controls in the page's address, read once when the page opens and written on each change."""

    def __init__(self, parameters: "_QueryParameters | None" = None, arguments: dict | None = None) -> None:
        self._parameters = parameters
        self._given = dict(arguments or {})
        if parameters is not None:
            self._given |= parameters.to_dict()
        # A command line gives 4096 as a number.
        self._given = {name: _written(value) for name, value in self._given.items()}
        self.problems: list[str] = []

    def read(self, name: str, default: object, parse: Callable[[str], object]) -> object:
        """The value that the address gives for a control, or the default; what cannot be used is noted in `problems`."""
        text = self._given.get(name)
        if text is None or not isinstance(text, str):
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.problems.append(f"The address says {name}={text}: {error}. The usual value is used instead.")
            return default

    def choice(self, name: str, default: object, options: Sequence) -> object:
        return self.read(name, default, lambda text: _one_of(text, options))

    def choices(self, name: str, default: Sequence, options: Sequence) -> list:
        def parse(text: str) -> list:
            return [_one_of(part, options) for part in text.split(",") if part]

        return list(self.read(name, list(default), parse))  # type: ignore[call-overload]

    def text(self, name: str, default: str) -> str:
        return str(self.read(name, default, str))[:200]

    def clear(self) -> None:
        """Forget all that the address says."""
        self.problems.clear()
        for name in list(self._given):
            if self._parameters is not None and name in self._parameters.to_dict():
                del self._parameters[name]
        self._given.clear()

    def save(self, prefix: str) -> Callable[[dict], None]:
        """An `on_change` for a panel: writes what changed into the address."""

        def write(values: dict) -> None:
            for key, value in values.items():
                text = (
                    ",".join(_written(part) for part in value) if isinstance(value, (list, tuple)) else _written(value)
                )
                name = f"{prefix}.{key}"
                if self._parameters is not None and self._given.get(name) != text:
                    self._given[name] = text
                    self._parameters[name] = text

        return write


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _one_of(text: str, options: Sequence) -> object:
    for option in options:
        if text == _written(option):
            return option
    raise ValueError(f"expected one of {', '.join(_written(option) for option in options)}")
