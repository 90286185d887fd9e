"""The parts of a section as HTML: its frame, figures, sentences, state line and problems. Runs nothing."""

import html
import os
import re
from collections.abc import Iterable, Mapping, Sequence

import marimo as mo

from lib import formatting
from lib.cache_folder import cache_folder
from lib.model.backends.registry import Runtime
from lib.model.data.mnist import Facts
from lib.model.hardware.webgpu import NO_GPU, SOFTWARE
from lib.sweeps.experiments import mnist_training
from lib.sweeps.storage.records import Record
from lib.sweeps.workers.messages import State
from lib.sweeps.workers.queue import END_IT
from lib.timing.measurement import disturbances
from lib.ui.notebooks import APP, SERVED
from lib.ui.views import predict_first
from lib.ui.views.chart import Chart
from lib.ui.views.markup import on_demand, quiet


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
    return quiet(spoilt(warnings))


def spoilt(warnings: Iterable[str]) -> str:
    flags = disturbances([*warnings])
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
