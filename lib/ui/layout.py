"""The frame of an experiment as HTML: controls, charts, state, sentence, table. Runs nothing."""

import html
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import marimo as mo

from lib import formatting
from lib.cache_folder import cache_folder
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.hardware.webgpu import NO_GPU, SOFTWARE
from lib.model.spec import MNIST
from lib.sweeps.experiments import mnist_training
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.results import Results
from lib.sweeps.experiments.teacher import Guess
from lib.sweeps.storage.records import Record
from lib.sweeps.workers.messages import State
from lib.sweeps.workers.queue import END_IT, PATIENCE_S
from lib.timing.measurement import disturbances
from lib.ui.notebooks import APP, SERVED, is_static
from lib.ui.views import markup, predict_first
from lib.ui.views.chart import AROUND, Chart
from lib.ui.views.markup import on_demand, quiet
from lib.ui.views.mnist_training import charts, plot_height, published_note, run_sentence
from lib.ui.views.pinned import difference, with_same_axes


def result(
    experiment: Experiment,
    results: Results,
    state: str,
    after: str = "",
    said: str = "",
    blank: bool = False,
    guess: Guess | None = None,
    pinned: tuple[Experiment, Results] | None = None,
) -> str:
    """HTML right of the controls: sentence, charts and state, each in a fixed place; same results, same HTML.

    Args:
        experiment: The trainings.
        results: The results so far.
        state: HTML from `state_of`, called before this, so that the charts next to a “Done” are complete.
        after: HTML at the end.
        said: The previous run's sentence, whose space is reserved while this run has none.
        blank: Reserve the charts' space without drawing them.
        guess: The viewer's guess, if any.
        pinned: Another run of this section, whose charts are shown next to these, if any.
    """
    return (
        quiet(_trained_on(experiment, results))
        + sentence(told(experiment, results, guess), said)
        + _figures(experiment, results, blank, pinned)
        + state
        + problems(results.notices)
        + quiet(published_note(experiment))
        + after
    )


def _figures(experiment: Experiment, results: Results, blank: bool, pinned: tuple[Experiment, Results] | None) -> str:
    """HTML of the charts, or of their `blank` places; with a pinned run, its charts too, and how the runs differ.

    Always one element, so that the browser keeps the menu below it open.
    """
    beside = difference_line(difference(pinned, (experiment, results))) if pinned is not None else ""
    if pinned is None or pinned[0] == experiment:
        place = framed("\u00a0", f'<div class="lab-chart" style="height:{plot_height(experiment) + AROUND}px"></div>')
        drawn = [place for _ in experiment.draw] if blank else [figure(c.title, c) for c in charts(experiment, results)]
        return f'<div>{beside}<div class="lab-charts lab-{experiment.name}">{"".join(drawn)}</div></div>'
    pairs = (with_same_axes(*pair) for pair in zip(charts(*pinned), charts(experiment, results), strict=True))
    figures = "".join(figure(f"pinned: {kept.title}", kept, "lab-kept") + figure(now.title, now) for kept, now in pairs)
    return f'<div>{beside}<div class="lab-charts lab-beside">{figures}</div></div>'


def difference_line(text: str) -> str:
    return f'<p class="lab-difference">{html.escape(text)}</p>'


def _trained_on(experiment: Experiment, results: Results) -> str:
    if experiment.data == MNIST:
        return ""
    name = results.data.source if results.data is not None else "your own data"
    return f"On {name}: {experiment.data.n_train:,} training and {experiment.data.n_validation:,} validation rows."


def told(experiment: Experiment, results: Results, guess: Guess | None = None) -> str:
    text = run_sentence(experiment, results)
    if guess is None:
        return text
    return f"{predict_first.sentence(experiment, results, guess)} {text}".strip()


def figure(caption: str, chart: Chart, css: str = "") -> str:
    return framed(caption, drawing(chart, caption, chart.height_px), css)


def drawing(chart: Chart, caption: str, height_px: int = 0) -> str:
    """HTML: a chart, its text for screen readers, and its values as text below. `height_px` 0 reserves no height."""
    style = f' style="height:{height_px}px"' if height_px else ""
    label, spec = html.escape(chart.text.label(caption)), html.escape(chart.as_json)
    shown = f'<div class="lab-chart" role="img" aria-label="{label}"{style} data-spec="{spec}"></div>'
    return shown + chart.text.as_html(caption)


def framed(caption: str, content: Chart | str, css: str = "") -> str:
    shown = content if isinstance(content, str) else drawing(content, caption)
    classes = f"lab-figure {css}".rstrip()
    return f'<figure class="{classes}"><figcaption>{html.escape(caption)}</figcaption>{shown}</figure>'


def figures(shown: Mapping[str, Chart | str]) -> str:
    drawn = (figure(name, one) if isinstance(one, Chart) else framed(name, one) for name, one in shown.items())
    return f'<div class="lab-figures">{"".join(drawn)}</div>'


def said(text: str) -> str:
    return sentence(text) if text else ""


def sentence(text: str, before: str = "") -> str:
    """HTML: a sentence; while it is empty, the space of `before` is reserved."""
    shown = html.escape(text) if text else f'<span class="lab-unsaid" aria-hidden="true">{html.escape(before)}</span>'
    return f'<p class="lab-sentence" aria-live="polite">{shown}</p>'


def refused(controls: str, error: ValueError) -> mo.Html:
    return page(controls, f'<div class="lab-refused">{failed(formatting.sentence(error)).text}</div>')


def failed(sentence: str) -> mo.Html:
    return mo.Html(f'<p class="lab-state lab-failed" role="alert">{_problem(sentence)}</p>')


def paused() -> str:
    said = html.escape(formatting.sentence(predict_first.PAUSED))
    return f'<div class="lab-refused"><p class="lab-state class-paused" role="status">{said}</p></div>'


def out_of_sight(name: str, words: str = "Starts when it comes into view.") -> str:
    """HTML instead of a section that has not started; `WholePage` reports when it comes near."""
    return f'<div data-out-of-sight="{name}">{quiet(words)}</div>'


def problems(sentences: Iterable[str]) -> str:
    return "".join(f'<p class="lab-problem" role="alert">{_problem(sentence)}</p>' for sentence in sentences)


def _problem(sentence: str) -> str:
    """HTML of a problem. Outside the editor, omits the path of the results folder: it reveals whose machine this is."""
    if os.environ.get(SERVED, "edit") not in ("edit", APP):
        folder = str(cache_folder())
        sentence = sentence.replace(folder + os.sep, "").replace(folder, "of this server")
    return html.escape(sentence)


def images_line(data: Facts | None, brought: str = "") -> str:
    """HTML: which images are used, in a line whose height does not change.

    A longer note opens on demand: it arrives once a worker has loaded the images, and must not move what is being read.

    Args:
        data: None until a worker has loaded the images.
        brought: Name of the viewer's own data, if used instead.
    """
    if brought:
        return f'<p class="lab-images">Data: {html.escape(brought)}, not MNIST</p>'
    if data is None or not data.note:
        return f'<p class="lab-images">Images: {html.escape(data.source) if data else "looking for MNIST"}</p>'
    which = "MNIST, but read this" if data.source == "MNIST" else f"{data.source}, not MNIST"
    return (
        f'<div class="lab-images lab-problem" role="alert"><details><summary>Images: {html.escape(which)}</summary>'
        f"<p>{_problem(data.note)}</p></details></div>"
    )


def software(runtimes: Iterable[Runtime]) -> str:
    return quiet(formatting.sentence(NO_GPU) if any(one.device == SOFTWARE for one in runtimes) else "")


def disturbed(records: Sequence[Record]) -> str:
    return disturbed_by(warning for record in records for warning in record.warnings)


def disturbed_by(warnings: Iterable[str]) -> str:
    return quiet(_spoilt(disturbances([*warnings])))


def _spoilt(flags: Sequence[str]) -> str:
    return f"Disturbed, so times are too long: {'; '.join(flags)}." if flags else ""


def missing(not_used: Sequence[tuple[Runtime, str, str]] = ()) -> str:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for runtime, reason, remedy in [*mnist_training.missing_backends(), *not_used]:
        by_reason.setdefault((reason, remedy), []).append(runtime.label)
    rows = "".join(
        f"<li><b>{html.escape('; '.join(labels))}</b>: {html.escape(reason)}; {html.escape(remedy)}.</li>"
        for (reason, remedy), labels in by_reason.items()
    )
    ways = formatting.counted(sum(map(len, by_reason.values())), "more way")
    return (
        on_demand(f"{ways} cannot run here: why, and what to install", f'<ul class="lab-note lab-missing">{rows}</ul>')
        if rows
        else ""
    )


FOOT = "<!-- foot -->"  # placeholder in a state line for the frame's buttons and menu
_TEXT_OF_CHART = re.compile(r'<details class="lab-details lab-text">.*?</details>', re.DOTALL)


def page(controls: str, result: str, buttons: str = "", menu: str = "", frame: str = "lab") -> mo.Html:
    """Controls and results in a frame, all HTML.

    Args:
        controls: HTML left of the result.
        result: Buttons and menu go into its state line, or to its end if it has none. Its charts' values as text move
            into the menu.
        buttons: The section's buttons.
        menu: Rarely needed actions, behind “⋯”.
        frame: CSS class of the frame; `lab` puts controls and result side by side.
    """
    menu = "".join(_TEXT_OF_CHART.findall(result)) + menu
    result = _TEXT_OF_CHART.sub("", result)
    more = '<details class="lab-more"><summary title="More" aria-label="More">⋯</summary><div class="lab-menu">'
    foot = f'<div class="lab-buttons">{buttons}</div>' * bool(buttons) + f"{more}{menu}</div></details>" * bool(menu)
    if foot and FOOT not in result:
        result += f'<div class="lab-foot">{FOOT}</div>'
    columns = f'<div class="lab-controls">{controls}</div><div class="lab-result">{result.replace(FOOT, foot, 1)}</div>'
    return mo.Html(f'<div class="{frame}">{columns}</div>')


def state_line(state: State, done: float, total: float, words: str, problem: str = "") -> str:
    """HTML: the state, what is happening, and a progress bar while the run is under way; a problem below.

    The bar lies on the line's lower edge, so that nothing moves when it disappears. `done` and `total` share any unit;
    a total of 0 counts as done.
    """
    kind = state.lower().replace(" ", "-")
    share = done / total if total else 1.0
    bar = f'<progress max="1" value="{share:.3f}" aria-label="progress"></progress>' if state.under_way else ""
    end_it = f'<button type="button" class="lab-button lab-end">{END_IT.strip("“”")}</button>'  # handled by `WholePage`
    said = html.escape(words).replace(END_IT, end_it)
    line = f'<div class="lab-state lab-{kind}"><b>{state}</b><span>{said or "&nbsp;"}</span>{bar}</div>'
    line = f'<div class="lab-foot{" lab-under-way" if state.under_way else ""}">{line}{FOOT}</div>'
    return line + (f'<p class="lab-problem" role="alert">{_problem(problem)}</p>' if problem else "")


def saved_or(state: State, saved: bool) -> State:
    """`SAVED` instead of `DONE` if everything was already stored; other states unchanged."""
    return State.SAVED if saved and state is State.DONE else state


def state_of(results: Results) -> str:
    return state_line(_state(results), results.share_done, 1.0, progress_text(results))


def _state(results: Results) -> State:
    if results.starting:
        return State.STARTING
    return State.STARTING if results.preparing else results.state


def progress_text(results: Results) -> str:
    if results.starting:
        return f"{results.starting}: its worker imports the library and loads the images"
    if results.preparing:
        on_gpu = any(item.runtime.on_gpu for item in results.to_train or ())
        takes = ", which has taken up to half a minute on a GPU, once per shape" if on_gpu else ""
        return f"preparing the first step: compiling what is not compiled yet{takes}"
    if results.state is State.WAITING:
        if results.place is None:
            return f"{results.other}; this starts when that has finished, or after {PATIENCE_S:.0f} s alongside it"
        return (
            ("it is next" if results.to_train else "")
            if results.place == 0
            else f"number {results.place + 1} in the queue: one training at a time, so that timings are not distorted"
        )
    if results.state is State.TRAINING:
        left_s = results.left_s
        return f"{results.share_done:.0%}" + (
            f", about {formatting.seconds(max(left_s, 0.1))} left" if left_s is not None else ""
        )
    if results.state is State.SAVED:
        by = _by(results)
        when = min((line.curve.measured_at for line in results.lines if line.curve), default="")
        again = "" if is_static() else "; “Run again” measures again"
        return f"trained {by}and timed on this {'busy ' if results.disturbed else ''}machine {_ago(when)}{again}"
    if results.state is State.DONE:
        cached, when = sum(line.cached for line in results.lines), "for this page" if is_static() else "just now"
        when = "on a busy machine" if results.disturbed else when
        return f"{formatting.counted(len(results.lines), 'training')} {_by(results)}".strip() + (
            f", {cached} of them saved earlier" if cached else f", measured {when}"
        )
    return ""


def _by(results: Results) -> str:
    """The runtime, with a trailing space; empty if runtimes differ, because the chart then names them."""
    trained = {item.runtime for item in results.items}
    return f"by {trained.pop().short_label} " if len(trained) == 1 else ""


def _ago(iso: str) -> str:
    """An ISO 8601 UTC time in words; only its date on a static page, which may be read at any time."""
    if not iso:
        return "earlier"
    if is_static():
        return f"on {iso[:10]}"
    passed_s = (datetime.now(UTC) - datetime.fromisoformat(iso)).total_seconds()
    if passed_s < 90:
        return "a moment ago"
    for limit_s, unit_s, word in ((5400, 60, "minutes"), (129600, 3600, "hours")):
        if passed_s < limit_s:
            return f"{passed_s / unit_s:.0f} {word} ago"
    return f"on {iso[:10]}"


def table(experiment: Experiment, results: Results) -> list[dict[str, str]]:
    return [
        {
            experiment.ordered_by: row["label"],
            "accuracy": formatting.percent(row["accuracy"]) if row["accuracy"] == row["accuracy"] else "–",
            "parameters": f"{row['parameters']:,}",
            "steps": f"{row['steps']:,}",
            "s per epoch": _plain_s(row["epoch_median_s"]),
            "quartiles": f"{_plain_s(row['epoch_q1_s'])} – {_plain_s(row['epoch_q3_s'])}",
            "timed epochs": str(row["timed_epochs"]),
            "s of training": _plain_s(row["train_s"]),
            "s of first call": _plain_s(row["first_call_s"]),
            "state": row["state"],
        }
        for row in results.summary_rows()
    ]


def _plain_s(value: float) -> str:
    return "–" if value != value else f"{value:.3g}"


def details(experiment: Experiment, results: Results) -> str:
    rows = table(experiment, results)
    cells = ([html.escape(value) for value in row.values()] for row in rows)
    shown = markup.table([html.escape(name) for name in rows[0]], cells)
    how = (
        "Seconds are the wall time of training alone, on a monotonic clock; each chunk ends once the device has"
        " finished, and evaluation, compilation (“first call”) and waiting are excluded. Seconds per epoch are the"
        " median and quartiles of all epochs but the first. One training runs at a time on this machine. Accuracy is on"
        f" the {experiment.data.n_validation:,} validation {experiment.data.rows}, with one seed{_by_chance(results)}."
    ) + _how_swept(results)
    return on_demand("Table", shown) + on_demand("How this was measured", f"<p>{how}</p>")


def _by_chance(results: Results) -> str:
    """How large an accuracy gap near the best may be by chance; empty without a result."""
    best = results.best()
    if best is None:
        return ""
    accuracy = results.lines[results.items.index(best)].accuracy or 0
    gap = best.training.data.gap_by_chance(accuracy, accuracy)
    return f": near the best, {formatting.percent(accuracy)}, gaps of up to {100 * gap:.1f} points can be chance"


def _how_swept(results: Results) -> str:
    together = max((line.curve.together for line in results.lines if line.curve is not None), default=1)
    text = f" These were trained by: {html.escape(results.picked.why)}." if results.picked is not None else ""
    earlier = max((line.cached_epochs for line in results.lines), default=0)
    if earlier:
        text += f" Up to {earlier} epochs per training were saved earlier and continued; their times date from then."
    for card in sorted(results.cards, key=lambda card: card.precision):
        text += (
            f" The library reports the device as {html.escape(card.name)}, driver"
            f" {html.escape(card.driver or 'unknown')}, products in {card.precision}."
        )
    if together > 1:
        text += (
            f" Up to {together} were trained in one program; each one's seconds are an equal share of the program's."
        )
    return f"{text} {html.escape(_spoilt(results.disturbed))}".rstrip()
