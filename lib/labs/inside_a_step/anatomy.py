"""One training step: taken apart by library and operation, and timed in six wrong ways."""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from lib.formatting import counted, justified, listed, seconds, times
from lib.model.backends.registry import ALL_DEVICES, BACKENDS, Runtime, unavailable
from lib.model.hardware.machine import this_machine
from lib.model.hardware.webgpu import KINDS
from lib.model.spec import Network
from lib.sweeps.experiments import anatomy_of_a_step, published, recorded_machines
from lib.sweeps.experiments.anatomy_of_a_step import (
    TRAPS_NETWORK,
    AnatomyTask,
    ceiling_tasks,
    ceilings,
    seconds_of,
    traps_task,
)
from lib.sweeps.experiments.recorded_machines import Machine
from lib.sweeps.storage.records import Kind, Record
from lib.timing.comparison import Comparison, Verdict, compared
from lib.timing.diagnosis import (
    compilation_counted,
    disturbed_measurement,
    transfer_in_the_loop,
    unsynchronised_timing,
)
from lib.timing.measurement import Measurement
from lib.timing.profiling.operations import ALL, COMPILED, OPERATIONS, PRODUCT
from lib.timing.profiling.request import (
    EXPLAINED,
    FIRST_CALL,
    LAUNCHES,
    PARTS,
    REFERENCE,
    TRAP_EPOCHS,
    TRAP_SAMPLES,
    Split,
)
from lib.ui import layout
from lib.ui.controls import FASTEST, Controls, batch_size, dropdown, hidden, runtime, runtimes, several
from lib.ui.lab import Drawing, Shown
from lib.ui.views.chart import Chart, alt, names_y, nice_above, pd, styled
from lib.ui.views.markup import on_demand, table

NO_SUM = "its parts do not add up"
SMALLEST_SHARE = 0.005  # the sentence names each share that rounds to 1 % or more, so that they add up
UNEXPLAINED, UNEXPLAINED_COLOR = "unexplained", "#a08a76"
ARTICLE = (32, Network())  # batch size and network of the published table
LIBRARIES = {
    "numpy": "NumPy",
    "jax": "JAX, op by op",
    "keras-tensorflow": "TensorFlow, eager",
    "torch": "PyTorch, eager",
    "cupy": "CuPy",
}
_REPEATED = (
    "Medians of all rows, timed in turns with a wait after each call. An operation repeated alone finds its numbers in"
    " the cache and the library’s threads awake, so the sum may be less than the whole step. Training waits less often"
    " and writes into arrays it keeps."
)
_PUBLISHED = (
    "Published: Core i9-10885H and Quadro RTX 5000, averages of 1,000 steps without a spread. The compiled step and the"
    " single product are TensorFlow's on both devices."
)


class Step(Controls):
    size = batch_size("Batch size", ARTICLE[0])
    hidden = hidden()
    by = several("Trained by", lambda: list(runtimes().values()), runtimes)


def tasks(today: str, at: Step) -> list[AnatomyTask]:
    """The reader's own program `today` (see `controls.today`) comes first."""
    by = sorted(at.by, key=lambda one: one != today)
    return anatomy_of_a_step.tasks([runtime(one) for one in by], Network.parse(at.hidden), at.size)


def draw(today: str, shown: Shown) -> Drawing:
    wanted, records = shown.tasks, shown.records
    operations, parts = ([t for t in wanted if t.examination.kind == kind] for kind in ("operations", "parts"))
    known = splits(parts, records)
    said = sentence(known, shown.at.size, today)
    of = "examinations" if wanted else "examinations: choose at least one backend"
    whole = Network.parse(shown.at.hidden)
    network = anatomy_of_a_step.shallow(whole)
    only = ", your network's first hidden layer alone" * (network != whole)
    return Drawing(
        layout.said(said)
        + layout.framed(
            "where a step goes; the mark is the measured step",
            parts_chart(known, [task.runtime for task in parts], recorded_splits(shown.at)),
        )
        + shown.state_line(sum(task.complete(records) for task in wanted), len(wanted), of)
        + on_demand(
            "how each part is known",
            table(["part", "known by"], [[one.name, html.escape(one.how)] for one in PARTS], "anatomy-parts"),
        ),
        said,
        f"<h3>Operation by operation: {network.whole_label}{only}</h3>{layout.quiet(_REPEATED)}"
        + operations_table(
            {label_of(task.runtime): task.found(records) for task in operations},
            (shown.at.size, network) == ARTICLE,
        )
        + "".join(
            on_demand(f"The same on a GPU: {recorded_machines.named(machine)}", operations_table(columns, True))
            for machine in recorded_machines.recorded_gpus()
            if (columns := recorded_operations(machine))
        )
        + "".join(map(launches_table, recorded_machines.recorded_gpus()))
        + layout.disturbed([record for task in wanted for record in task.found(records).values()])
        + layout.software(task.runtime for task in wanted),
    )


def splits(parts: Sequence[AnatomyTask], records: Sequence[Record]) -> dict[Runtime, Split]:
    return {task.runtime: known for task in parts if (known := task.split(records)) is not None}


def recorded_splits(at: Step) -> dict[str, Split]:
    """The same step on the recorded cards, by a label that names the card."""
    return {
        f"{recorded_machines.card_of(machine)}, recorded: {runtime.short_label}": one
        for machine in (recorded_machines.recorded_gpus() if Network.parse(at.hidden) == ARTICLE[1] else ())
        for runtime in recorded_machines.gpu_runtimes(machine)
        if (one := machine.split(runtime, at.size)) is not None
    }


def parts_chart(known: Mapping[Runtime, Split], runtimes: Sequence[Runtime], elsewhere: Mapping[str, Split]) -> Chart:
    """Stacked microseconds per step, a row per runtime, with a mark at the measured step. Rows from `elsewhere` are
    pale.
    """
    every = {by.label: one for by, one in known.items()} | dict(elsewhere)
    rows = [
        {
            "label": label,
            "part": name,
            "us": 1e6 * part_s,
            "share": f"{part_s / one.drawn_s:.0%}" if one.adds_up else "none",
            "order": number,
            "opacity": 0.5 if label in elsewhere else 1.0,
        }
        for label, one in every.items()
        for number, (name, part_s) in enumerate(stack(one).items())
    ]
    steps = [
        {"label": label, "us": 1e6 * one.step_s, "end": 1e6 * one.drawn_s, "step": seconds(one.step_s)}
        for label, one in every.items()
    ]
    # Leaves room for the step's label, even on a phone.
    most_us = nice_above(1.25e6 * max((one.drawn_s for one in every.values()), default=1e-3))
    names = [*(by.label for by in runtimes), *elsewhere]
    y = names_y(names, 170)
    scale = alt.Scale(domain=[0, most_us])
    bars = alt.Chart(pd.DataFrame(rows, columns=["label", "part", "us", "share", "order", "opacity"])).mark_bar(
        height=18
    )
    bars = bars.encode(
        x=alt.X("us:Q", stack="zero", title="μs per step", axis=alt.Axis(tickCount=5), scale=scale),
        y=y,
        color=parts_color(),
        order="order:Q",
        opacity=alt.Opacity("opacity:Q", scale=None),
        tooltip=["label:N", "part:N", alt.Tooltip("us:Q", format=".4~g", title="μs per step"), "share:N"],
    )
    marks = alt.Chart(pd.DataFrame(steps, columns=["label", "us", "end", "step"]))
    tick = marks.mark_tick(thickness=3, size=26, color="currentColor").encode(x="us:Q", y=y)
    text = marks.mark_text(align="left", dx=6, color="currentColor").encode(x="end:Q", y=y, text="step:N")
    return Chart(styled(bars + tick + text, height=44 * max(1, len(names))), "where a step goes")


def parts_color() -> "alt.Color":
    names = [part.name for part in PARTS] + [UNEXPLAINED]
    colors = alt.Scale(domain=names, range=[part.color for part in PARTS] + [UNEXPLAINED_COLOR])
    return alt.Color("part:N", scale=colors, sort=names, legend=alt.Legend(orient="top", title=None))


def stack(one: Split) -> dict[str, float]:
    """Seconds of each drawn part, including the unexplained rest, which is clipped at 0."""
    return {**one.parts_s, UNEXPLAINED: max(0.0, one.unexplained_s)}


def sentence(known: Mapping[Runtime, Split], batch_size: int, today: str = FASTEST) -> str:
    """Where a step goes with the reader's own program, else with the slowest, and with the fastest."""
    by_time = sorted(known, key=lambda runtime: known[runtime].step_s)
    first, said = [by for by in known if by.address == today] or by_time[-1:], []
    for by in dict.fromkeys((*first, *by_time[:1])):
        one = known[by]
        shares = {name: one.share(name) or 0.0 for name in sorted(one.parts_s, key=lambda name: -one.parts_s[name])}
        arithmetic, rest = shares.pop("arithmetic"), one.unexplained_s / one.drawn_s
        named = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share > SMALLEST_SHARE)
        parts = f"{one.overhead or 0.0:.0%} of it overhead{f' ({named})' * bool(named)}, {arithmetic:.0%} arithmetic"
        parts += f", {rest:.0%} {UNEXPLAINED}" * (rest >= 0.01)
        takes = f"A step on {counted(batch_size, 'image')} takes {seconds(one.step_s)} with “{by.label}”"
        said.append(f"{takes}: {parts if one.adds_up else NO_SUM}.")
    if off := [f"“{by.label}”" for by, one in known.items() if not one.adds_up]:
        said.append(
            f"The parts of {listed(off)} are more than {EXPLAINED:.0%} off the measured step: some of them overlapped,"
            " or something else used the machine."
        )
    return " ".join(said)


def label_of(runtime: Runtime) -> str:
    return LIBRARIES[BACKENDS[runtime.backend].worker] + runtime.suffix


def recorded_operations(machine: Machine) -> dict[str, dict[str, Record]]:
    found: dict[str, dict[str, Record]] = {}
    size, network = ARTICLE
    for task in anatomy_of_a_step.tasks(list(machine.runtimes), network, size):
        if task.examination.kind == "operations" and task.runtime.on_gpu:
            mine = [r for r in machine.records if r.kind == Kind.ANATOMY and r.is_about(task.subject)]
            if mine:
                found[label_of(task.runtime)] = {str(record.subject["name"]): record for record in mine}
    return found


def operations_table(columns: Mapping[str, Mapping[str, Record]], article_size: bool) -> str:
    """HTML: the article's rows in bold with their sums, our operations below each, and the published figures.

    Args:
        columns: Records by library and operation; a missing one is shown as a dash.
        article_size: Whether batch size and width match the article's, so that its figures are comparable.
    """
    rows: list[list[str]] = []
    row_css: list[str] = []

    def add(label: str, keys: Sequence[str], quoted: tuple[float | None, float | None] | None, css: str) -> None:
        figures = (_sum([one.get(key) for key in keys]) for one in columns.values())
        rows.append(
            [html.escape(label), *figures, *(_quoted(_us(one)) if one else "" for one in quoted or (None, None))]
        )
        row_css.append(css)

    for row in dict.fromkeys(operation.row for operation in OPERATIONS):
        members = [operation for operation in OPERATIONS if operation.row == row]
        add(row, [one.key for one in members], published.OPERATION_S.get(row), "anatomy-sum")
        for one in members if len(members) > 1 else ():
            add(one.label, [one.key], None, "anatomy-one")
    add("sum of all", [one.key for one in OPERATIONS], published.OPERATION_S["total"], "anatomy-sum")
    add("the whole step, one operation after another", [ALL], None, "")
    add("the single product X @ W1", [PRODUCT], published.PRODUCT_S, "")
    add("the whole step, compiled", [COMPILED], published.COMPILED_S, "")
    heads = [
        *map(html.escape, columns),
        *(_quoted(f"published: {which}") for which in ("NumPy, CPU", "TensorFlow, GPU")),
    ]
    comparable = "" if article_size else " Those are for 32 images and 128 neurons, not for the sizes chosen here."
    return table(["μs", *heads], rows, "anatomy", row_css) + layout.quiet(_PUBLISHED + comparable)


def recorded_launches(machine: Machine) -> dict[str, dict[int, Record]]:
    """Records by way of launching (including its first call) and batch size."""
    found: dict[str, dict[int, Record]] = {}
    for one in machine.records:
        if one.says("examination") == LAUNCHES:
            found.setdefault(str(one.says("name")), {})[int(one.subject["batch_size"])] = one
    return found


def launches_table(machine: Machine) -> str:
    found = recorded_launches(machine)
    sizes = sorted({size for of in found.values() for size in of})
    ways = [way for way in found if FIRST_CALL not in way]
    rows = [
        [way, *(_us(seconds_of(found[way][size])) if size in found[way] else "–" for size in sizes), _first(found, way)]
        for way in sorted(ways, key=lambda way: -seconds_of(found[way][min(found[way])]))
    ]
    heads = ["μs per step, PyTorch", *(f"batch size {size:,}" for size in sizes), "first call"]
    title = f"The same step launched in other ways: {recorded_machines.named(machine)}"
    return on_demand(title, table(heads, rows)) if rows else ""


def _first(found: Mapping[str, Mapping[int, Record]], way: str) -> str:
    calls_s = sorted(map(seconds_of, found.get(f"{way}/{FIRST_CALL}", {}).values()))
    return f"{seconds(calls_s[0])} to {seconds(calls_s[-1])}" if calls_s else "–"


def _sum(records: Sequence[Record | None]) -> str:
    known = [seconds_of(record) for record in records if record is not None]
    return _us(sum(known)) if len(known) == len(records) else "–"


def _us(value_s: float) -> str:
    return f"{float(f'{1e6 * value_s:.3g}'):,g}"


def _quoted(text: str) -> str:
    return f'<span class="race-others">{text}</span>'


WRONG, RIGHT = "#d1623a", "#0b7a57"
# What each wrong way does and why it is wrong, by the name of its measurement.
TRAPS = {
    "synchronisation": ("the clock stops when the call returns", "A call puts its work into a queue and returns."),
    "first call counted": (
        f"the average of {TRAP_EPOCHS} short epochs, including the first",
        "A whole training pays for it once; a benchmark of a few steps pays each time.",
    ),
    "one sample": (
        "one step, timed once: any of these",
        "A single step is shorter than what a scheduler, a clock change or a waking thread adds to it.",
    ),
    "best of n": (
        f"the smallest of {TRAP_SAMPLES} single steps",
        "The minimum shows how fast it can be, not how fast it is, and it falls with every repetition.",
    ),
    "transfer inside": (
        "each step copies its batch from host memory",
        "MNIST fits into any memory: it needs to be moved only once.",
    ),
    "busy is not working": (
        "CPU time of all cores",
        "A monitor shows how long something ran, not how much of it was arithmetic: a core that spins, dispatches or"
        " waits in a loop is busy. A GPU is “100 %” busy when one kernel at a time runs on one of its hundred"
        " processors.",
    ),
}
RIGHT_WAY = (
    "the median of blocks of steps, with quartiles: the data is on the device, and each step's result is waited for"
)
TOLD_APART = {Verdict.FASTER: "too short", Verdict.SLOWER: "too long"}
NOT_TOLD_APART = {Verdict.SAME: "no difference here", Verdict.UNCLEAR: "unclear here"}


def trap_devices() -> dict[str, str]:
    usable = [one for one in ALL_DEVICES if unavailable(traps_task(one, 32).runtime) is None]
    return {f"WebGPU, {KINDS[one]}" if one in KINDS else one: one for one in usable}


class Traps(Controls):
    size = batch_size("Batch size", 32)
    hidden = hidden()
    device = dropdown("Device", "cpu", trap_devices, full_width=True)


def trap_tasks(at: Traps) -> list[AnatomyTask]:
    task = traps_task(at.device, at.size, Network.parse(at.hidden))
    return [*ceiling_tasks([task.runtime]), task]


def draw_traps(shown: Shown) -> Drawing:
    task = shown.tasks[-1]
    records = task.found(shown.records)
    found = {name: record.measurement for name, record in records.items()}
    known, device = comparisons(found), task.runtime.device
    ceiling = ceilings(task.runtime, shown.section.page.store)
    said = f"{traps_sentence(known)} {occupancy(found, device) if known else ''}".strip()
    by = f"WebGPU ({KINDS[device]})" if device in KINDS else "JAX"
    cards = recorded_traps(shown.at.size, Network.parse(shown.at.hidden))
    explained = traps_table(
        found, shown.at.size, ceiling.product_flops_per_s if ceiling else None, this_machine().cores
    )
    caption = "; ".join(
        [
            f"one step of {Network.parse(shown.at.hidden).whole_label} by {by}: every sample, and the median",
            *(f"hollow: {card}, recorded" for card in cards),
        ]
    )
    return Drawing(
        layout.said(said)
        + layout.framed(caption, traps_chart(found, cards))
        + shown.state_line(len(known), len(TRAPS), "traps"),
        said,
        (explained if known else "")
        + "".join(
            layout.quiet(f"{card}, recorded: {traps_sentence(comparisons(one))} {occupancy(one, 'gpu')}")
            for card, one in cards.items()
        )
        + layout.disturbed(list(records.values()))
        + layout.software([task.runtime]),
    )


def recorded_traps(batch_size: int, network: Network) -> dict[str, dict[str, Measurement]]:
    """Measurements by trap, by recorded card. Cards without the reference are left out."""
    about = traps_task("gpu", batch_size, network).subject
    found = {
        recorded_machines.card_of(machine): {
            str(one.says("name")): one.measurement
            for one in machine.records
            if one.kind == Kind.ANATOMY and one.is_about(about)
        }
        for machine in recorded_machines.recorded_gpus()
    }
    return {card: one for card, one in found.items() if REFERENCE in one}


def comparisons(found: Mapping[str, Measurement]) -> dict[str, Comparison]:
    """Each wrong way compared with the right one."""
    if (right := found.get(REFERENCE)) is None:
        return {}
    return {key: compared(found[key].step_s, right.step_s, paired=True) for key in TRAPS if key in found}


def occupancy(found: Mapping[str, Measurement], device: str) -> str:
    """The utilisation that a GPU's monitor shows, against the chip's own counters; empty on a CPU.

    Args:
        found: Measurements by name; a share is the value of its measurement.
        device: "cpu" or "gpu".
    """
    if device != "gpu":
        return ""
    shares = (found.get(f"occupancy/{name}") for name in ("utilisation", "activity", "warps"))
    shown, activity, warps = (f"{100 * one.median_s:.3g} %" if one else "" for one in shares)
    text = (
        f"nvidia-smi shows {shown} utilisation during this" if shown else "nvidia-smi shows no utilisation on this GPU"
    )
    if activity and warps:
        had_work = f"{activity} of its multiprocessors had work, with {warps} of the warps they hold"
        return f"{text}; the chip's counters show that {had_work}."
    return f"{text}; this chip does not report true occupancy (NVML's GPM does, since Hopper)."


def traps_chart(found: Mapping[str, Measurement], cards: Mapping[str, Mapping[str, Measurement]]) -> Chart:
    """At most 200 blocks of the reference and of each wrong way on one logarithmic axis, with the medians as ticks.

    Medians recorded on cards are hollow.
    """
    ways = [*((key, "wrong", key) for key in TRAPS), ("right", "right", REFERENCE)]
    shown = [(label, way, found[key]) for label, way, key in ways if key in found]
    rows = [{"label": label, "us": 1e6 * float(s), "way": way} for label, way, m in shown for s in m.step_s[:200]]
    medians = [{"label": label, "us": 1e6 * m.median_s, "way": way} for label, way, m in shown]
    recorded = [
        {"label": key, "us": 1e6 * one.median_s, "way": "right" if key == "right" else "wrong", "card": card}
        for card, of_card in cards.items()
        for key, one in {**of_card, "right": of_card[REFERENCE]}.items()
        if key in ("right", *TRAPS)
    ]
    # A logarithmic axis needs ends above zero, so an empty chart gets a usual range.
    values = [row["us"] for row in rows + medians + recorded] or [10.0, 10_000.0]
    scale = alt.Scale(type="log", domain=[0.9 * min(values), 1.1 * max(values)])
    x = alt.X("us:Q", scale=scale, axis=alt.Axis(tickCount=5), title="μs per step, logarithmic")
    order = ["right", *TRAPS]
    y = names_y(order, 190)
    color = alt.Color("way:N", scale=alt.Scale(domain=["wrong", "right"], range=[WRONG, RIGHT]), legend=None)
    points, ticks = (alt.Chart(pd.DataFrame(one, columns=["label", "us", "way"])) for one in (rows, medians))
    tooltip = ["label:N", alt.Tooltip("us:Q", format=".4~g", title="μs")]
    samples = points.mark_point(filled=True, size=22, opacity=0.35).encode(x=x, y=y, color=color, tooltip=tooltip)
    hollow = alt.Chart(pd.DataFrame(recorded, columns=["label", "us", "way", "card"]))
    chart = (
        samples
        + ticks.mark_tick(thickness=3, size=18).encode(x="us:Q", y=y, color=color)
        + hollow.mark_point(shape="diamond", filled=False, size=90, strokeWidth=2).encode(
            x="us:Q", y=y, color=color, tooltip=["card:N", *tooltip]
        )
    )
    return Chart(styled(chart, height=34 * len(order)), "wrong and right")


def traps_table(
    found: Mapping[str, Measurement], batch_size: int, product_flops_per_s: float | None, cores: int
) -> str:
    """HTML: the right figure once, then a row per trap, compared with it.

    The advice on each trap comes from `lib.timing.diagnosis`, based on these figures.

    Args:
        found: Measurements by name.
        batch_size: Images per step.
        product_flops_per_s: Best rate of a matrix product on this device; None if not measured.
        cores: Cores of this machine's CPU.
    """
    rows = []
    if (right := found.get(REFERENCE)) is not None:
        low, high = right.quartiles_s
        figure = f"{justified(right.median_s, low, high)} ({seconds(low)} to {seconds(high)})"
        rows.append(_row("right", figure, RIGHT_WAY, "1", "The reference for all six, measured in turns with them."))
    for key, comparison in comparisons(found).items():
        (how, why), wrong, right = TRAPS[key], found[key], found[REFERENCE]
        verdict = comparison.verdict
        off = f"{comparison.text}, {(TOLD_APART | NOT_TOLD_APART)[verdict]}"
        if key == "busy is not working" and product_flops_per_s:
            share = TRAPS_NETWORK.step_flops(batch_size) / product_flops_per_s / right.median_s
            off = f"{comparison.ratio / cores:.0%} busy, {share:.0%} of the arithmetic it could do"
        figure = justified(wrong.median_s, *wrong.quartiles_s)
        if key == "one sample":
            figure = f"{seconds(float(np.min(wrong.step_s)))} to {seconds(float(np.max(wrong.step_s)))}"
        rows.append(_row(key, figure, how, off, f"{why} {_advice(key, wrong, right, verdict)}".strip()))
    return table(["trap", "figure", "times the right one", "why, and what to do"], rows, "claims traps")


def _row(name: str, figure: str, how: str, off: str, why: str) -> list[str]:
    return [name, f"{figure}<br><small>{html.escape(how)}</small>", off, html.escape(why)]


def _advice(key: str, wrong: Measurement, right: Measurement, verdict: Verdict) -> str:
    if key == "one sample":
        return disturbed_measurement(wrong.spread)
    wrong_s, right_s = wrong.median_s, right.median_s
    first_s = TRAP_EPOCHS * wrong_s - (TRAP_EPOCHS - 1) * right_s
    advice = {
        "synchronisation": unsynchronised_timing(wrong_s, right_s),
        "first call counted": compilation_counted([first_s, *[right_s] * (TRAP_EPOCHS - 1)]),
        "transfer inside": transfer_in_the_loop(wrong_s - right_s, wrong_s),
    }
    return advice.get(key, "") if verdict in TOLD_APART else ""


def traps_sentence(known: Mapping[str, Comparison]) -> str:
    timed = {key: one for key, one in known.items() if key != "busy is not working"}
    wrong = {key: max(one.ratio, 1 / one.ratio) for key, one in timed.items() if one.verdict in TOLD_APART}
    worst = max(wrong, key=wrong.__getitem__, default="")
    others = ", ".join(f"{key} {times(ratio)}" for key, ratio in wrong.items() if key != worst)
    alike = [key for key in timed if key not in wrong]
    said = [
        f"Largest mistake here: {worst}, by a factor of {times(wrong[worst])}." if worst else "",
        f"The others: {others}." if others else "",
        f"Indistinguishable from the right figure here: {listed(alike)}." if alike else "",
    ]
    return " ".join(filter(None, said))
