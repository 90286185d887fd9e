"""The random search section: its search space, its training, and its drawing while results arrive."""

from collections.abc import Callable, Sequence
from functools import partial

from lib.model.backends.registry import DEFAULT, Runtime, device_count
from lib.model.data.prepared import Prepared
from lib.model.spec import BATCH_SIZES, RATE_STEPS, Training
from lib.sweeps.experiments import mnist_training as random_search
from lib.sweeps.experiments.exported_script import takeaway_of_search
from lib.sweeps.experiments.mnist_training import not_used, on, that_fit
from lib.sweeps.storage.records import Curve
from lib.sweeps.sweep import AUTO, POOLED, QUICKEST, STRATEGIES, Finished, Picked, backends_for, quickest_runtime
from lib.sweeps.workers.messages import State
from lib.ui import layout
from lib.ui.controls import Controls, backend, dropdown, number, several, slider, span
from lib.ui.lab import Asked, Drawing, Shown
from lib.ui.own_data import OwnData
from lib.ui.stage import Work
from lib.ui.views import random_search as view
from lib.ui.views.random_search import Dimension

COUNTS = (16, 32, 64, 128, 256, 512, 1024)
EPOCHS = (1, 2, 3, 4, 6, 8, 16)
WIDTHS = (16, 32, 64, 128, 256, 512)
DEPTHS = (1, 2, 3, 4)
MAX_SEED = 9999


def _strategies() -> dict[str, str]:
    found = {"the quickest expected": AUTO} | {
        s.label: key for key, s in STRATEGIES.items() if key != "cluster" and {DEFAULT, QUICKEST} & {*backends_for(s)}
    }
    alone = device_count("cpu") < 2
    return {label: key for label, key in found.items() if not (alone and key in ("sharded", *POOLED))}


class SearchControls(Controls):
    AGAIN = "Search", "Train the settings that are not saved yet"
    EXPORTS = True
    count = slider("Settings", 64, COUNTS)
    epochs = slider("Epochs", 3, EPOCHS)
    rates = span("Learning rates", random_search.Space().rates, RATE_STEPS)
    sizes = several("Batch sizes", random_search.Space().batch_sizes, BATCH_SIZES)
    widths = several("Neurons per layer", random_search.Space().widths, WIDTHS)
    depths = several("Hidden layers", random_search.Space().depths, DEPTHS)
    seed = number("Drawn with seed", 0, 0, MAX_SEED, whole=True)
    backend = backend(lambda: quickest_runtime().backend)
    strategy = dropdown("Strategy", AUTO, _strategies, full_width=True)


def trainings_of(values: dict, own: Prepared | None = None) -> list[Training]:
    """The settings drawn for these control values; equal values give equal settings.

    On own data, batch sizes larger than the data are dropped.

    Raises:
        ValueError: The values cannot be used; the message is a sentence for the viewer.
    """
    space = random_search.Space(
        (values["rates"][0], values["rates"][1]),
        that_fit(own, values["sizes"]),
        tuple(values["widths"]),
        tuple(values["depths"]),
    )
    drawn = random_search.draw(space, values["count"], values["epochs"], values["seed"])
    return [on(own, training) for training in drawn]


def search(own: OwnData) -> tuple[Callable[[SearchControls], Asked], Callable[[Shown], Drawing]]:
    """Build the section's job and its drawing.

    A page shows cached settings until “Search” is pressed; a script always trains.
    """

    def runtimes(at: SearchControls) -> tuple[Runtime, str]:
        runtime, data = Runtime(at.backend), own.data
        on_what = "" if data is None else f"On {data.about.name}: {data.about.n_train:,} training rows."
        for left_out, reason, _ in not_used(data, [runtime]):
            runtime = Runtime(DEFAULT)
            on_what += f" Trained by {runtime.label}, not by {left_out.label}: {reason}."
        return runtime, on_what

    def ask(at: SearchControls) -> Asked:
        trainings, (runtime, _), section = trainings_of(at.values, own.data), runtimes(at), own.page.sections["search"]

        def make(again: bool) -> tuple[tuple, Work]:
            if again or not section.stage.streams:
                return (True,), partial(random_search.search, trainings, runtime, strategy=at.strategy)
            return (False,), partial(random_search.cached, trainings, runtime)

        return Asked((at, own.data), make)

    def draw(shown: Shown) -> Drawing:
        at, stage, data = shown.at, shown.section.stage, own.data
        trainings, (runtime, on_what) = trainings_of(at.values, data), runtimes(at)
        done = _done(shown.now.items, trainings)
        if stage.menu is not None:
            stage.menu.now = partial(
                takeaway_of_search, done, stage.engine.known_facts() if data is None else data.facts
            )
        values = at.values | {"sizes": sorted({training.batch_size for training in trainings}), "runtime": runtime}
        rows, dimensions = random_search.search_frame(done), _dimensions(values)
        sentence = view.search_sentence(rows, dimensions) if shown.now.over else ""
        lines = layout.framed(
            "each line is a setting; colour shows its accuracy", view.parallel_coordinates(rows, dimensions)
        )
        line = _state_line(shown, len(done), len(trainings), runtime)
        return Drawing(layout.quiet(on_what) + layout.said(sentence) + lines + line, sentence)

    return ask, draw


def _state_line(shown: Shown, n_done: int, n_wanted: int, runtime: Runtime) -> str:
    now, (trains,), complete = shown.now, shown.known, n_done == n_wanted
    picked, state = next((item for item in now.items if isinstance(item, Picked)), None), now.state
    if not trains and state is not State.FAILED:
        state = State.SAVED if complete else State.NOT_RUNNING
    press = "" if trains or complete else ": press “Search”"
    words = now.note or f"{n_done:,} of {n_wanted:,} settings{press}"
    line = layout.state_line(state, n_done, n_wanted, words, now.problem)
    return line + (layout.note(f"{picked.why}. {runtime.label}.").text if picked is not None else "")


def _dimensions(values: dict) -> list[Dimension]:
    found = [
        ("learning_rate", list(values["rates"]), True, False, "learning rate"),
        ("batch_size", values["sizes"], True, True, "batch size"),
        ("width", values["widths"], True, True, "neurons"),
        ("depth", values["depths"], False, True, "hidden layers"),
    ]
    return [
        Dimension(column, min(options), max(options), log, whole, label)
        for column, options, log, whole, label in found
        if min(options) < max(options)
    ]


def _done(items: Sequence[object], trainings: Sequence[Training]) -> dict[Training, Curve]:
    finished = {item.item.training: item.curve for item in items if isinstance(item, Finished)}
    return {training: finished[training] for training in trainings if training in finished}
