"""Connects the traces to marimo: what is profiled now, files that somebody brings, and two traces beside each other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import marimo as mo

from lib.experiments import trace_of_a_step as experiment
from lib.experiments.background import BackgroundTask
from lib.experiments.trace_of_a_step import Brought
from lib.pages import layout
from lib.pages.controls import Controls, dropdown, runtime, settings_of, slider, span, text
from lib.pages.dropped_files import file_fields, files_of, stacked
from lib.pages.stage import Stage, button, stop_button
from lib.pages.streaming import paint_while_it_runs, painted, refuse
from lib.pages.url_state import Address, Setting
from lib.profiling.traces.explanation import no_share
from lib.profiling.traces.form import Trace, as_chrome_json
from lib.spec import BATCH_SIZES, Network
from lib.storage.records import Kind
from lib.storage.store import Store
from lib.views import trace_of_a_step as view
from lib.views.markup import on_demand
from lib.workers.cancel import Cancel
from lib.workers.engine import Engine
from lib.workers.notes import Note, State
from lib.workers.queue import Request, Urgency

PERCENT = tuple(range(0, 101, 5))  # of the time of a trace
PREFERRED = "jax-step/cpu"


def _panels() -> dict[str, Controls]:
    usable = {one.label: one.address for one in experiment.runtimes()}
    usual = PREFERRED if PREFERRED in usable.values() else next(iter(usable.values()), "")
    return {
        "live": Controls(
            dropdown("live.by", "Trained by", usual, usable, full_width=True),
            slider("live.size", "Batch size", 32, BATCH_SIZES),
            text("live.hidden", "Hidden layers", "128", Network.parse, "none"),
            span("live.part", "Part of the profile that is shown, %", (45, 60), PERCENT),
        ),
        "file": Controls(span("file.part", "Part of the trace that is shown, %", (0, 100), PERCENT)),
    }


def settings() -> dict[str, Setting]:
    """What the controls may say, by name."""
    return settings_of(_panels().values())


# Profiled now.


def live_panel(address: Address, stage: Stage) -> mo.ui.dictionary:
    """Backend, batch size, hidden layers, the part that is shown, and the two buttons."""
    again = button("Profile now", "Record a new profile of these settings")
    return _panels()["live"].panel(address, stop=stop_button(stage), again=again)


def live(stage: Stage, panel: mo.ui.dictionary, controls: mo.Html, done: Callable[[Trace], object]) -> None:
    """Show the profile of these settings: the saved one, or one that is recorded now.

    Args:
        stage: Where it is recorded.
        panel: From `live_panel`.
        controls: The panel as HTML.
        done: Called with the trace, once it is there.
    """
    try:
        values = _panels()["live"].checked(panel.value)
        low, high = _part(values["part"])
        task = experiment.task_of(runtime(values["by"]), Network.parse(values["hidden"]), values["size"])
    except ValueError as error:
        return refuse(stage, controls.text, error)

    def make(again: bool):
        kept = None if again else experiment.saved(task, stage.store.records(Kind.ANATOMY))
        before = _trace_in(stage.running.view().items) if stage.running is not None else None
        return (kept is not None, before), partial(_recorded, task, kept)

    running = stage.begin_if_new(task, values["again"], Request(stage.viewer, Urgency.NOW), make)
    told: list[Trace] = []
    paint = partial(_paint_live, task, running, *stage.began_with, (low, high), controls.text, done, told)
    paint_while_it_runs(stage, running, paint)


def _recorded(
    task: experiment.AnatomyTask, kept: Trace | None, engine: Engine, store: Store, cancel: Cancel, request: Request
) -> Iterator[object]:
    if kept is not None:
        yield kept
        return
    yield from experiment.profile(task, engine, store, cancel, request)


def _paint_live(
    task: experiment.AnatomyTask,
    running: BackgroundTask,
    was_saved: bool,
    before: Trace | None,
    part: tuple[float, float],
    controls: str,
    done: Callable[[Trace], object],
    told: list[Trace],
) -> int:
    now = running.view()
    trace = _trace_in(now.items)
    state = layout.saved_or(now.state, was_saved)
    words = now.note or (view.origin(trace) if trace is not None else "")
    line = layout.state_line(state, float(trace is not None), 1.0, words, now.problem)
    # Until there is a trace, the one before it stays, so that nothing below it jumps.
    shown, css = (trace, "") if trace is not None else (before, "trace-before")
    sentence = view.sentence(trace, *part) if trace is not None else ""
    figures, told_below, below = _PLACE, "", ""
    if shown is not None:
        figures, told_below, below = (
            f'<div class="{css}">{text}</div>'
            for text in (_figures(shown, part), layout.sentence(view.sentence(shown, *part)), _below(shown))
        )
    told_below += layout.software([task.runtime])
    version = painted(now, layout.page(controls, figures + line + told_below).text + below, sentence)
    if trace is not None and trace not in told and now.state is State.DONE:
        told.append(trace)
        done(trace)
    return version


_PLACE = '<div class="trace-place"></div>'  # of the charts, while there are none


def _trace_in(items: Sequence[object]) -> Trace | None:
    """The trace among what a task has yielded so far, if there is one."""
    return next((item for item in reversed(items) if isinstance(item, Trace)), None)


def _figures(trace: Trace, part: tuple[float, float]) -> str:
    """The lanes, and overhead against kernels, under one legend; nothing where a report of sums has no rows."""
    if not len(trace.rows):
        return ""
    chart = view.timeline_chart(trace, *part)
    return (
        view.legend()
        + layout.figure("who was waited for, and what each thread did; Shift and the wheel zoom, dragging moves", chart)
        + layout.quiet(view.not_drawn(trace, *part))
        + (
            ""
            if no_share(trace)
            else layout.figure("overhead against kernels", view.part_and_whole_chart(trace, *part))
        )
    )


def _below(trace: Trace) -> str:
    """What is told of a trace below its charts."""
    return (
        "<h3>The ten most expensive calls</h3>"
        + view.dearest_list(trace)
        + view.hidden_list(trace)
        + on_demand("all calls: how often, how long", view.calls_table(trace))
        + perfetto(trace)
    )


def perfetto(trace: Trace) -> str:
    """HTML: a button that saves the rows as a file that Perfetto reads."""
    if not len(trace.rows):
        return ""
    saved = mo.download(
        data=lambda: as_chrome_json(trace).encode(),
        filename="trace.json",
        mimetype="application/json",
        label="Save for Perfetto",
    )
    return f'<div class="lab-buttons">{saved.text}</div>' + layout.quiet(
        "Open the saved file at ui.perfetto.dev, or drop it below: this page reads it again."
    )


def _part(ends: Sequence[float]) -> tuple[float, float]:
    """The two ends of a part, which is never empty, as shares; given in percent."""
    low, high = ends
    low, high = (low, high) if high > low else (max(0, low - 5), min(100, low + 5))
    return low / 100, high / 100


# Brought by somebody.


def drop() -> mo.ui.dictionary:
    """The field for traces, and in the editor one for the path of a file too large to be dropped."""
    label = "Drop traces here: .xplane.pb, Chrome or PyTorch JSON (also .gz), Nsight Systems as SQLite or CSV"
    return mo.ui.dictionary(file_fields(label))


def read(stage: Stage, dropped: mo.ui.dictionary, done: Callable[[tuple[Trace, ...]], object]) -> None:
    """Read what was brought, in a process of its own, and say what cannot be read."""
    files = files_of(dropped.value)
    if not files:
        stage.stop()
        stage.next_showing()
        mo.output.replace(stacked(dropped))
        if stage.running is not None:  # there were some
            done(())
        return
    asked = tuple((name, hash(content)) for name, content in files)
    running = stage.begin_if_new(asked, 0, Request(stage.viewer, Urgency.NOW), lambda _: ((), partial(_read, files)))
    paint_while_it_runs(stage, running, partial(_paint_read, running, len(files), stacked(dropped).text, done, []))


def _read(
    files: Sequence[tuple[str, bytes | Path]], engine: Engine, _store: Store, cancel: Cancel, request: Request
) -> Iterator[Brought | Note]:
    yield from experiment.read_files(files, cancel, request, engine.niceness)


def _paint_read(
    running: BackgroundTask, total: int, fields: str, done: Callable[[tuple[Trace, ...]], object], told: list[bool]
) -> int:
    now = running.view()
    found = [item for item in now.items if isinstance(item, Brought)]
    traces = tuple(one.trace for one in found if one.trace is not None)
    words = now.note or f"{len(traces)} of {total} files read"
    line = layout.state_line(now.state, len(found), total, words, now.problem)
    version = painted(now, fields + line + layout.problems(one.problem for one in found if one.problem), "")
    if now.over and not told:
        told.append(True)
        done(traces)
    return version


class Choices:
    """The traces that a viewer chose: they stay chosen when a profile is recorded, until other files are brought."""

    def __init__(self) -> None:
        self._brought: tuple[Trace, ...] = ()
        self._titles: dict[str, str] = {}

    def dropdown(
        self, name: str, label: str, known: Sequence[str], usual: str | None, brought: tuple[Trace, ...]
    ) -> mo.ui.dropdown:
        """A field for one of the `known` titles: the one that was chosen in the field of this name, or the usual."""
        if brought is not self._brought:
            self._brought, self._titles = brought, {}
        kept = self._titles.get(name)

        def keep(title: str | None) -> None:
            self._titles |= {name: title} if title is not None else {}

        value = kept if kept in known else usual
        return mo.ui.dropdown(list(known), value=value, label=label, full_width=True, on_change=keep)


def file_panel(address: Address, brought: tuple[Trace, ...], live: Trace | None, choices: Choices) -> mo.ui.dictionary:
    """Which trace is shown: one that was brought, or one of the project's; and which part of it."""
    known = list(view.titles(all_traces(brought, live)))
    choice = choices.dropdown("trace", "Trace", known, next(iter(known), None), brought)
    return mo.ui.dictionary({"trace": choice, **_panels()["file"].elements(address)}, on_change=_saved(address))


def _saved(address: Address) -> Callable[[dict], None]:
    save = address.save("file")
    return lambda values: save({"part": values["part"]})


def all_traces(brought: tuple[Trace, ...], live: Trace | None) -> list[Trace]:
    """What was brought, the project's own, and what was profiled now."""
    return [*brought, *experiment.shipped(), *([live] if live is not None else [])]


def show_file(panel: mo.ui.dictionary, brought: tuple[Trace, ...], live: Trace | None) -> mo.Html:
    """One trace: its lanes, its sentence, its calls."""
    fields = "".join(f"<div>{element.text}</div>" for element in panel.elements.values())
    trace = view.titles(all_traces(brought, live)).get(str(panel.value["trace"]))
    if trace is None:
        return layout.page(fields, layout.note("Choose a trace.").text)
    part = _part(_panels()["file"].checked({"part": panel.value["part"]})["part"])
    is_recorded = any(trace is one for one in experiment.shipped())
    told = view.origin(trace) + (" · recorded by this project" if is_recorded else "")
    shown = _figures(trace, part) + layout.quiet(told) + layout.sentence(view.sentence(trace, *part))
    return mo.Html(layout.page(fields, shown).text + _below(trace))


# Two beside each other.


def compare_panel(brought: tuple[Trace, ...], live: Trace | None, choices: Choices) -> mo.ui.dictionary:
    """The two traces that are compared."""
    known = list(view.titles(all_traces(brought, live)))
    first, second = (known[0], known[-1 if live is not None else 1 % len(known)]) if known else (None, None)
    return mo.ui.dictionary(
        {
            "before": choices.dropdown("before", "First", known, first, brought),
            "after": choices.dropdown("after", "Second", known, second, brought),
        }
    )


def compare(panel: mo.ui.dictionary, brought: tuple[Trace, ...], live: Trace | None) -> mo.Html:
    """Two traces: where the time of each went, and which calls became shorter."""
    fields = "".join(f"<div>{element.text}</div>" for element in panel.elements.values())
    known = view.titles(all_traces(brought, live))
    before, after = (known.get(str(panel.value[name])) for name in ("before", "after"))
    if before is None or after is None:
        return layout.page(fields, layout.note("Choose two traces.").text)
    figure = ""
    if all(len(trace.rows) and not no_share(trace) for trace in (before, after)):
        figure = view.legend() + layout.figure("where the time went, a bar for each", view.both_chart(before, after))
    told = layout.sentence(view.comparison_sentence(before, after))
    return layout.page(fields, figure + told + view.changes_table(before, after))
