"""The charts and sentences of the four experiments, and the HTML around them.

A chart's frame (axes, domains, colours) depends only on what is run, so Altair builds it once and it is cached; an
update of a running experiment only replaces the rows. Sizes and domains are fixed, so nothing moves while lines grow.
"""

import csv
import html
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from lib import formatting
from lib.model.spec import MAX_RATE, MIN_RATE, MNIST, N_TRAIN, Training
from lib.once import once
from lib.sweeps.experiments import published
from lib.sweeps.experiments.mnist_training import Experiment
from lib.sweeps.experiments.recorded_machines import EPOCHS, EXPERIMENTS, NETWORK
from lib.sweeps.experiments.results import POINTS_PER_LINE, Line, Results
from lib.sweeps.experiments.teacher import Guess
from lib.sweeps.workers.messages import Item, State
from lib.ui.layout import figure, framed, problems, sentence, spoilt, state_line
from lib.ui.notebooks import is_static
from lib.ui.views import predict_first
from lib.ui.views.chart import (
    AROUND,
    ERROR_DOMAIN,
    HEIGHT,
    LOSS_DOMAIN,
    X_MAX,
    Chart,
    alt,
    decades,
    kept_free,
    labels,
    log_scale,
    moved_apart,
    names_y,
    nice_above,
    ordered_palette,
    room,
    row_color,
    styled,
    with_x_max,
    y_of,
)
from lib.ui.views.markup import on_demand, quiet, table
from lib.ui.views.pinned import difference, with_same_axes

_PUBLISHED_COLOR = "#8a8f98"
BELOW = "<!-- below -->"  # placeholder in a shared frame for one viewer's HTML
DOMAINS = {"loss": LOSS_DOMAIN, "accuracy": ERROR_DOMAIN}
EPOCH_DOMAIN = (0.02, 100.0)  # seconds of an epoch, by batch size


def colors_of(experiment: Experiment) -> tuple[str, ...]:
    if experiment.ordered_by == "backend":
        return tuple(item.runtime.color for item in experiment.items)
    return ordered_palette(len(experiment.items))


def charts(experiment: Experiment, results: Results) -> list[Chart]:
    lines = zip(experiment.labels, results.lines, strict=True)
    states = {label: line.state.lower() for label, line in lines if line.state not in (State.DONE, State.SAVED)}
    return [replace(draw(experiment, results), states=states) for draw in experiment.draw]


def loss_by_step(experiment: Experiment, results: Results) -> Chart:
    """Training loss by step, one line per training; the loss is clipped to `LOSS_DOMAIN`."""
    with results.changed:
        points = [line.thinned(POINTS_PER_LINE) for line in results.lines]
    most = max(line.total_steps for line in results.lines)
    return _line_chart("training loss by step", experiment, "step", "loss", points, most)


def accuracy_by_epoch(experiment: Experiment, results: Results) -> Chart:
    most = max(item.training.epochs for item in experiment.items)
    points = _accuracies(results, "epoch")
    return _line_chart("validation accuracy by epoch", experiment, "epoch", "accuracy", points, most)


def accuracy_by_seconds(experiment: Experiment, results: Results) -> Chart:
    points = _accuracies(results, "spent_s")
    most = nice_above(max((x[-1] for x, _ in points if len(x)), default=0.1))
    title = "validation accuracy by seconds of training"
    chart = _line_chart(title, experiment, "seconds", "accuracy", points, most)
    chart.spec["datasets"]["rule"] = [{"y": round(1 - experiment.target, 4)}]
    return chart


def _accuracies(results: Results, across: str) -> list[np.ndarray]:
    """For each line, an array `(2, epochs)`: the column `across`, and the accuracy."""
    rows = results.epochs_rows()
    of_lines = ([row for row in rows if row["line"] == line] for line in range(len(results.lines)))
    return [np.array([[row[across] for row in of], [row["accuracy"] for row in of]], float) for of in of_lines]


def _line_chart(
    title: str,
    experiment: Experiment,
    x_title: str,
    y_name: str,
    points: Sequence[Iterable[np.ndarray]],
    x_max: float,
) -> Chart:
    """A line per training; `points` has x and y, a loss or an accuracy, of each.

    The points are CSV: as JSON in an HTML attribute they would be ten times as long, and parsed at every frame.
    """
    domain, ends, lines = DOMAINS[y_name], [], [f"label,color,x,y,{y_name}"]
    for label, color, (x, shown) in zip(experiment.labels, colors_of(experiment), points, strict=True):
        y = np.clip(1 - shown if y_name == "accuracy" else shown, min(domain), max(domain))
        if len(x):
            ends.append({"label": label, "x": float(x[-1]), "y": float(y[-1])})
        named = io.StringIO()
        csv.writer(named, lineterminator="").writerow((label, color))
        values = zip(x.tolist(), y.tolist(), shown.tolist(), strict=True)
        lines += [f"{named.getvalue()},{x:.6g},{y:.4g},{value:.4g}" for x, y, value in values]
    moved, free = moved_apart(ends, domain), room(experiment.labels)
    spec = _with_rows(_line_frame(x_title, y_name), experiment, x_max, ends=moved, rule=[], room=free)
    spec["datasets"]["rows"] = "\n".join(lines) + "\n"
    return Chart(spec, title)


def accuracy_by_rate(experiment: Experiment, results: Results) -> Chart:
    """Final accuracy by learning rate; trainings that diverged or did not learn are at the bottom."""
    rows = _finals(experiment, results, lambda line: line.item.training.learning_rate)
    return _scatter("accuracy by learning rate", experiment, rows, "learning rate")


def accuracy_by_cost(experiment: Experiment, results: Results) -> Chart:
    rows = _finals(experiment, results, lambda line: line.train_s if line.curve is not None else None)
    most = max((row["x"] for row in rows), default=1.0)
    return _scatter("accuracy by seconds of training", experiment, rows, "seconds", nice_above(most * 1.15))


def _finals(experiment: Experiment, results: Results, x: Callable[[Line], float | None]) -> list[dict]:
    rows = []
    for label, line in zip(experiment.labels, results.lines, strict=True):
        if line.accuracy is None or x(line) is None:
            continue
        stuck = line.curve is not None and line.accuracy <= line.item.training.data.chance
        outcome = "diverged" if line.diverged_step is not None else "did not learn" if stuck else "learnt"
        error = 1 - line.accuracy if outcome == "learnt" else ERROR_DOMAIN[0]
        y = float(np.clip(error, min(ERROR_DOMAIN), max(ERROR_DOMAIN)))
        rows.append({"x": x(line), "y": y, "label": label, "outcome": outcome, "accuracy": line.accuracy})
    return rows


def seconds_by_batch_size(experiment: Experiment, results: Results) -> Chart:
    rows = [
        {
            "x": row["batch_size"],
            "y": row["epoch_median_s"],
            "low": row["epoch_q1_s"],
            "high": row["epoch_q3_s"],
            "label": row["label"],
            "steps": experiment.items[row["line"]].training.steps_per_epoch(),
            "text": _steps(experiment.items[row["line"]].training),
        }
        for row in results.summary_rows()
        if row["timed_epochs"]
    ]
    texts = [_steps(item.training) for item in experiment.items]
    low_s, high_s = EPOCH_DOMAIN  # the lower end falls with the number of training rows
    domain = low_s * min(1.0, 10.0 ** np.floor(np.log10(experiment.data.n_train / N_TRAIN))), high_s
    spec = _with_rows(_seconds_frame(domain), experiment, rows=rows, ends=moved_apart(rows, domain), room=room(texts))
    return Chart(spec, "seconds per epoch by batch size")


def _steps(training: Training) -> str:
    return f"{training.steps_per_epoch():,} steps"


def published_epoch_s(item: Item) -> float | None:
    """The first article's seconds per epoch of this training; None if it has none."""
    training, runtime = item.training, item.runtime
    if training.network != NETWORK or training.data != MNIST:
        return None
    return published.epoch_s(runtime.backend, runtime.device, training.batch_size)


def backend_dots(experiment: Experiment, results: Results) -> Chart:
    rows, marks = [], []
    for label, line in zip(experiment.labels, results.lines, strict=True):
        if (quoted_s := published_epoch_s(line.item)) is not None:
            marks.append({"label": label, "y": quoted_s, "text": f"published {quoted_s:g} s"})
        if len(line.epoch_s):
            low, middle, high = np.percentile(line.epoch_s, [25, 50, 75])
            told = {"epochs": len(line.epoch_s), "text": formatting.seconds(middle)}
            rows.append({"label": label, "y": middle, "low": low, "high": high, **told})
    domain = decades(
        [0.11, 9.0, *(row[name] for row in rows for name in ("low", "high")), *(mark["y"] for mark in marks)]
    )
    spec = _dots_frame(tuple(experiment.labels), domain, plot_height(experiment))
    filled = _with_rows(spec, experiment, rows=rows, published=marks, room=room(["0.000 s"]))
    return Chart(filled, "seconds per epoch by backend")


def _with_rows(spec: dict, experiment: Experiment, x_max: float | None = None, **datasets: list[dict]) -> dict:
    colors = dict(zip(experiment.labels, colors_of(experiment), strict=True))
    colored = {
        name: [row | {"color": colors[row["label"]]} if "label" in row else row for row in rows]
        for name, rows in datasets.items()
    }
    return (spec if x_max is None else with_x_max(spec, x_max)) | {"datasets": colored}


@once
def _line_frame(x_title: str, y_name: str) -> dict:
    y = y_of(y_name, DOMAINS[y_name])
    tooltip = [
        alt.Tooltip("label:N"),
        alt.Tooltip("x:Q", title=x_title, format=",.4~g"),
        alt.Tooltip(f"{y_name}:Q", format=".3g"),
    ]
    axis = (
        alt.Axis(tickMinStep=1, format="d", tickCount=6)
        if x_title == "epoch"
        else alt.Axis(tickCount=5, format=",.6~g")
    )
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, X_MAX], nice=False), axis=axis, title=x_title)
    rows = alt.NamedData("rows", format=alt.CsvDataFormat(type="csv"))
    base = alt.Chart(rows).encode(x=x, y=y, color=row_color(), tooltip=tooltip)
    points = {"size": 28, "filled": True} if y_name == "accuracy" else False
    line = base.mark_line(strokeWidth=1.8, clip=True, point=points)
    rule = alt.Chart(alt.NamedData("rule")).mark_rule(strokeDash=[4, 4], color="currentColor", opacity=0.6).encode(y=y)
    return styled(alt.layer(line, rule, *labels(x, y, y_of(y_name, DOMAINS[y_name], "at"), row_color())))


def _scatter(title: str, experiment: Experiment, rows: list[dict], x_title: str, x_max: float | None = None) -> Chart:
    ends, free = moved_apart(rows, ERROR_DOMAIN), room(experiment.labels)
    failed = {row["outcome"]: row for row in reversed(rows) if row["outcome"] != "learnt"}  # one label for each outcome
    outcomes = [{name: row[name] for name in ("x", "y", "outcome", "label")} for row in failed.values()]
    frame = _scatter_frame(x_title)
    return Chart(_with_rows(frame, experiment, x_max, rows=rows, ends=ends, outcomes=outcomes, room=free), title)


@once
def _scatter_frame(x_title: str) -> dict:
    if x_title == "learning rate":
        # A little beyond the ends, so that a point at either end lies inside the plot.
        scale = log_scale([MIN_RATE / 1.5, MAX_RATE * 1.5])
        axis = alt.Axis(values=[1e-3, 1e-2, 0.1, 1, 10], format="~g")
    else:
        scale, axis = alt.Scale(domain=[0, X_MAX], nice=False), alt.Axis(tickCount=5, format=".3~g")
    x, y = alt.X("x:Q", scale=scale, axis=axis, title=x_title), y_of("accuracy", ERROR_DOMAIN)
    tooltip = [
        "label:N",
        "outcome:N",
        alt.Tooltip("accuracy:Q", format=".1%"),
        alt.Tooltip("x:Q", title=x_title, format=".3~g"),
    ]
    shape = alt.Shape(
        "outcome:N",
        scale=alt.Scale(domain=["learnt", "diverged", "did not learn"], range=["circle", "cross", "cross"]),
        legend=None,
    )
    points = alt.Chart(alt.NamedData("rows")).mark_point(filled=True, size=90, opacity=1)
    points = points.encode(x=x, y=y, color=row_color(), tooltip=tooltip, shape=shape)
    failed = [
        alt.Chart(alt.NamedData("outcomes"))
        .transform_filter(f"datum.outcome === '{outcome}'")
        .mark_text(dy=dy, fontSize=10, align=alt.expr("scale('x', datum.x) < width / 2 ? 'left' : 'right'"))
        .encode(x=x, y=y, color=row_color(), text="outcome:N")
        for outcome, dy in (("diverged", -12), ("did not learn", -24))
    ]
    return styled(alt.layer(*labels(x, y, y_of("accuracy", ERROR_DOMAIN, "at"), row_color()), points, *failed))


@once
def _seconds_frame(domain: tuple[float, float]) -> dict:
    x = alt.X(
        "x:Q",
        scale=log_scale([0.7, 6000]),
        axis=alt.Axis(values=[1, 8, 32, 256, 4096], labelOverlap=True),
        title="batch size",
    )
    y = y_of("seconds", domain)
    tooltip = [
        "label:N",
        alt.Tooltip("y:Q", title="median s", format=".3g"),
        alt.Tooltip("steps:Q", title="steps per epoch", format=","),
    ]
    base = alt.Chart(alt.NamedData("rows")).encode(x=x, color=row_color(), tooltip=tooltip)
    spread = base.mark_rule(strokeWidth=5, opacity=0.35).encode(y=y_of("seconds", domain, "low"), y2="high:Q")
    line = alt.Chart(alt.NamedData("rows")).mark_line(color="currentColor", opacity=0.3).encode(x=x, y=y)
    points = base.mark_point(filled=True, size=80, opacity=1).encode(y=y)
    return styled(alt.layer(line, *labels(x, y, y_of("seconds", domain, "at"), row_color()), spread, points))


def plot_height(experiment: Experiment) -> int:
    return max(120, 44 * len(experiment.labels)) if experiment.ordered_by == "backend" else HEIGHT


@once
def _dots_frame(names: tuple[str, ...], domain: tuple[float, float], height: int) -> dict:
    """One row per backend. The axis is logarithmic, so that a distant published figure does not squeeze the others."""
    y, scale = names_y(names, 190, domain=False, ticks=False), log_scale(domain)
    axis = alt.Axis(values=[10.0**power for power in range(-4, 5)], format="~g")

    def x(field: str) -> "alt.X":
        return alt.X(f"{field}:Q", scale=scale, axis=axis, title="seconds per epoch, median and quartiles, logarithmic")

    tooltip = [
        "label:N",
        alt.Tooltip("y:Q", title="median s", format=".3g"),
        alt.Tooltip("low:Q", title="1st quartile", format=".3g"),
        alt.Tooltip("high:Q", title="3rd quartile", format=".3g"),
        alt.Tooltip("epochs:Q", title="timed epochs"),
    ]
    base = alt.Chart(alt.NamedData("rows")).encode(y=y, color=row_color(), tooltip=tooltip)
    lead = base.mark_rule(opacity=0.2).encode(x=x("low"), x2=alt.value(0), color=alt.value("currentColor"))
    spread = base.mark_rule(strokeWidth=5, opacity=0.45).encode(x=x("low"), x2="high:Q")
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(x=x("y"))
    text = base.mark_text(align="left", dx=10, fontSize=11, fontWeight=600).encode(x=x("high"), text="text:N")
    quoted = alt.Chart(alt.NamedData("published")).encode(y=y, x=x("y"), tooltip=["label:N", "text:N"])
    ticks = quoted.mark_tick(thickness=2, height=10, color=_PUBLISHED_COLOR, yOffset=14)
    side = alt.expr("scale('x', datum.y) < width / 2 ? 'left' : 'right'")
    inwards = alt.expr("scale('x', datum.y) < width / 2 ? 5 : -5")
    notes = quoted.mark_text(align=side, dx=inwards, dy=14, fontSize=10, color=_PUBLISHED_COLOR).encode(text="text:N")
    free = kept_free(align="left", dx=10, fontSize=11, fontWeight=600)
    return styled(alt.layer(lead, spread, dots, text, ticks, notes, free), height=height)


# Sentences: a run's result, or how it ended.


def run_sentence(experiment: Experiment, results: Results) -> str:
    if results.state is State.FAILED:
        return results.failure
    done = [one for one in zip(results.labels, results.lines, strict=True) if one[1].curve is not None]
    if results.state is State.STOPPED:
        said = f"Stopped: {len(done)} of {len(results.lines)} trainings finished and are saved."
        return f"{said} {results.failure}".strip()
    if not results.over or not done:
        return ""
    return experiment.say(done, experiment.target) if experiment.say is not None else ""


def published_note(experiment: Experiment) -> str:
    """The article's seconds for the same networks, batch sizes and epochs; empty for others."""
    trainings = [item.training for item in experiment.items]
    trained = tuple((one.network, one.batch_size) for one in trainings if one.data == MNIST and one.epochs == EPOCHS)
    if EXPERIMENTS.get(experiment.name) != trained:
        return ""
    gpu_s, cpu_s = published.EXPERIMENT_S[experiment.name]
    return f"Published: {gpu_s:.0f}\u202fs on an NVIDIA L4, {cpu_s:.0f}\u202fs on 22 cores, with Keras on TensorFlow."


# The frame's HTML: charts, state, table, and how it was measured.


def result(
    experiment: Experiment,
    results: Results,
    state: str,
    said: str = "",
    blank: bool = False,
    guess: Guess | None = None,
    pinned: tuple[Experiment, Results] | None = None,
) -> str:
    """HTML right of the controls, ending in `BELOW`: sentence, charts and state, each in a fixed place.

    It depends on nothing else, so that viewers can share it.

    Args:
        experiment: The trainings.
        results: The results so far.
        state: HTML from `state_of`, called before this, so that the charts next to a “Done” are complete.
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
        + BELOW
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


def told(experiment: Experiment, results: Results, guess: Guess | None) -> str:
    text = run_sentence(experiment, results)
    return text if guess is None else f"{predict_first.sentence(experiment, results, guess)} {text}".strip()


def state_of(results: Results) -> str:
    state = State.STARTING if results.starting or results.preparing else results.state
    return state_line(state, results.share_done, 1.0, progress_text(results))


def progress_text(results: Results) -> str:
    if results.starting:
        return results.starting
    if results.preparing:
        on_gpu = any(item.runtime.on_gpu for item in results.to_train or ())
        takes = ", which has taken up to half a minute on a GPU, once per shape" if on_gpu else ""
        return f"preparing the first step: compiling what is not compiled yet{takes}"
    if results.state is State.WAITING:
        if results.place is None:
            return f"{results.other}; this starts when that has finished"
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
        when = min((line.curve.measured_at for line in results.lines if line.curve), default="")
        again = "" if is_static() else "; “Run again” measures again"
        return (
            f"trained {_by(results)}and timed on this {'busy ' if results.disturbed else ''}machine {_ago(when)}{again}"
        )
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
    if passed_s < 5400:
        return f"{passed_s / 60:.0f} minutes ago"
    return f"{passed_s / 3600:.0f} hours ago" if passed_s < 129600 else f"on {iso[:10]}"


def summary(experiment: Experiment, results: Results) -> list[dict[str, str]]:
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
    rows = summary(experiment, results)
    cells = ([html.escape(value) for value in row.values()] for row in rows)
    shown = table([html.escape(name) for name in rows[0]], cells)
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
    return f"{text} {html.escape(spoilt(results.disturbed))}".rstrip()
