"""The reader's own devices as a reader sees them: sentences, a table, and why there is no GPU. Measures nothing."""

import html
from collections.abc import Mapping
from dataclasses import replace

from lib.data.mnist import Facts
from lib.experiments.backend_race import Cell, Standing
from lib.experiments.your_gpu import CPU_WAYS, SIDES, WAYS, Found, Opened, Refusal, beside_server
from lib.formatting import justified, percent, seconds
from lib.hardware.machine import ThisMachine
from lib.timing.comparison import Comparison, Verdict
from lib.timing.measurement import Measurement
from lib.timing.roofline import Ceiling
from lib.views.markup import table

LOCAL = ("localhost", "127.0.0.1", "[::1]")
NO_GPU = "Your browser offers no GPU"


def gpu_name(who: Opened) -> str:
    """The GPU as the browser names it; a software adapter is called what it is."""
    if who.adapter is None:
        return "no GPU"
    return f"{who.adapter.name}, software on the processor" if who.adapter.is_software else who.adapter.name


def labels(who: Opened, found: Found | None) -> dict[str, str | bool]:
    """What the lines of both charts are called, and whether that of the GPU is a piece of software."""
    cpu = _cpu(found) if found is not None else ""
    software = who.adapter is not None and who.adapter.is_software
    name = f"{who.adapter.name} (software, no GPU)" if software and who.adapter else gpu_name(who)
    return {"gpu": name, "cpu": cpu, "software": software}


def _cpu(found: Found) -> str:
    """The processor, by the way that is compared."""
    return CPU_WAYS[found.way("cpu")]


def why_no_gpu(who: Opened) -> str:
    """Why the browser offers no GPU and what to do about it, in one sentence; empty where it does."""
    if who.adapter is not None:
        return ""
    failed = next((one for one in who.failed if one.device == "gpu"), None)
    if not who.secure:
        return (
            f"{NO_GPU} to a page that came over http from {who.host}: only localhost and https are trusted with it, so"
            " open the page through a tunnel (`ssh -L 2718:localhost:2718 MACHINE`, then localhost:2718) or behind TLS."
        )
    if not who.offered:
        return (
            f"{NO_GPU}: {who.browser} does not know WebGPU; Chrome and Edge from 113, Safari from 26 and Firefox from"
            " 141 do, where they support the system."
        )
    if failed is not None and failed.kind not in ("no adapter", "not offered"):
        return f"{NO_GPU}: it says “{failed.message}”; reload the page, or update browser and driver."
    return (
        f"{NO_GPU}: {who.browser} knows WebGPU, but found no adapter that it uses; update the graphics driver, look at"
        " chrome://gpu, and on Linux start Chrome with --enable-unsafe-webgpu."
    )


def trouble(failed: Refusal, who: Opened) -> str:
    """Why something could not be measured and what to do, in a sentence."""
    what = CPU_WAYS.get(failed.way, "Your processor") if failed.device == "cpu" else gpu_name(who)
    way = f", {WAYS[failed.way]}" if failed.way in WAYS else ""
    mib = 2**20
    words = {
        "too large": (
            f"needs a buffer of {failed.needs / mib:,.0f} MiB, and the adapter allows {failed.allows / mib:,.0f} MiB;"
            " nothing was allocated: choose a smaller network or batch"
        ),
        "memory": (
            f"is out of memory at a buffer of {failed.needs / mib:,.0f} MiB; choose a smaller network or batch, or"
            " close other pages"
        ),
        "too slow": (
            f"would need about {seconds(failed.expected_s)} a step, so none was made; choose a smaller network or batch"
        ),
        "too much for one kernel": (
            "would run on one of the GPU's many processors for so long that drivers may end it, so it was not begun;"
            " choose a smaller network or batch"
        ),
        "shader": f"does not compile, says the driver: {failed.message}; the other ways go on",
        "no WebAssembly": (
            f"is not in your browser ({failed.message or 'switched off'}); update it, JavaScript goes on alone"
        ),
        "lost": f"was lost ({failed.message or 'no reason given'}); “Measure again” opens it once more",
        "diverged": "ended with a loss that is no number: choose a smaller learning rate",
    }
    said = words.get(failed.kind, f"failed: {failed.message or failed.kind}; “Measure again” tries once more")
    return f"{what}{way} {said}."


def epoch_s(found: Found, measured: Measurement) -> tuple[float, float, float]:
    """Median and quartiles of the seconds that an epoch of all training images takes by its steps."""
    low, high = measured.quartiles_s
    n = found.job.steps_per_epoch
    return n * measured.median_s, n * low, n * high


def sentence(found: Found) -> str:
    """Which of the reader's two devices won, by how much, and what bounds the other; empty before there is a pair."""
    who, comparison = found.who, found.comparison()
    timed = {device: _timed(found, device) for device in ("gpu", "cpu")}
    if comparison is None or timed["gpu"] is None or timed["cpu"] is None:
        return _alone(found, timed["gpu"] or timed["cpu"], "gpu" if timed["gpu"] else "cpu")
    gpu, cpu, ratio = _subject(who), _cpu(found), _interval(comparison)
    on_gpu, on_cpu = _epoch(found, timed["gpu"]), _epoch(found, timed["cpu"])
    if comparison.verdict is Verdict.FASTER:
        said = f"{gpu} wins over {cpu}: {on_gpu} an epoch against {on_cpu}, {ratio} of the time. {bound(found, 'cpu')}"
    elif comparison.verdict is Verdict.SLOWER:
        said = f"{cpu} wins over {gpu}: {on_cpu} an epoch against {on_gpu}, which is {ratio} times as long."
        said += f" {bound(found, 'gpu')}"
    else:
        told = "equally fast" if comparison.verdict is Verdict.SAME else "not told apart yet"
        said = f"{gpu} and {cpu} are {told}: {on_gpu} and {on_cpu} an epoch, a ratio of {ratio}."
    return _capital(said.strip())


def _timed(found: Found, device: str) -> Measurement | None:
    return found.training_of(device, found.way(device))


def _alone(found: Found, measured: Measurement | None, device: str) -> str:
    if measured is None:
        return ""
    name = _subject(found.who) if device == "gpu" else _cpu(found)
    return _capital(f"{name} takes {_epoch(found, measured)} an epoch.")


def _subject(who: Opened) -> str:
    if who.adapter is None:
        return "no GPU"
    return f"{who.adapter.name} (software, no GPU)" if who.adapter.is_software else f"your GPU ({who.adapter.name})"


def _epoch(found: Found, measured: Measurement) -> str:
    return justified(*epoch_s(found, measured))


def _interval(comparison: Comparison) -> str:
    return f"{comparison.ratio:.3g} ({comparison.low:.3g} to {comparison.high:.3g})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def bound(found: Found, device: str) -> str:
    """What bounds a device, in a sentence; empty where that was not measured."""
    parts = found.launching(device)
    if parts is None or parts.arithmetic_s is None or parts.launching_s is None:
        return ""
    name = _cpu(found) if device == "cpu" else _subject(found.who)
    n = len(found.job.program.operations)
    launching = (
        f"{n} operations with nothing to do take {seconds(parts.launching_s)} of its {seconds(parts.step_s)} a step"
    )
    arithmetic = f"at its best rate of a product the arithmetic takes {seconds(parts.arithmetic_s)}"
    if parts.bound is Ceiling.DISPATCH:
        return f"What bounds {name} is launching: {launching}; {arithmetic}."
    if parts.bound is Ceiling.PRODUCT:
        return f"What bounds {name} is arithmetic: {arithmetic} of its {seconds(parts.step_s)} a step."
    return (
        f"What bounds {name} is neither launching nor arithmetic: {launching}, and {arithmetic}; the rest goes into"
        " products too small to run at that rate, and into memory."
    )


def border_sentence(found: Found) -> str:
    """From which product on the GPU pays, and what an empty launch and a copy cost; empty before both measured one."""
    measured = [side for side in SIDES if found.product("gpu", side) and found.product("cpu", side)]
    if not measured:
        return ""
    name, border, most = _subject(found.who), found.border(), max(measured)
    if border is None:
        said = f"No product of up to {most} × {most} is faster by {name} than by the processor."
    else:
        said = f"From {border} × {border} on, a product is faster by {name} than by the processor."
    least = found.product("gpu", 1)
    if least is not None:
        said += f" The smallest, one multiplication, takes {least.text} there, waited for: that is the price of asking."
    if (cost := found.copies("gpu")) is not None and cost.latency_s > 0:
        low, high = cost.latency_interval_s
        said += f" A copy there and back costs {justified(cost.latency_s, low, high)}, whatever its size"
        said += f", and then {cost.bytes_per_s / 1e9:.2g} GB/s." if cost.grows else "."
    return said


def ways_table(found: Found, server: Mapping[Cell, Standing]) -> str:
    """HTML: a row for each way of launching and of computing on the processor, then the server's libraries."""
    rows, css = [], []
    on_gpu = WAYS if found.who.adapter is not None else {}
    ways = [("gpu", way, f"{_short(found.who)}, {words}") for way, words in on_gpu.items()]
    ways += [("cpu", way, words) for way, words in CPU_WAYS.items()]
    for device, way, words in ways:
        rows.append(_row(found, device, way, words))
        css.append("webgpu-chosen" if way == found.way(device) else "")
    for cell, standing in server.items():
        low, middle, high = standing.quartiles_s
        rate = f"{1 / middle:.3g}"
        rows.append([html.escape(f"server: {cell.runtime.label}"), justified(middle, low, high), rate, "", "", ""])
        css.append("webgpu-server")
    head = ["trained by", "an epoch", "epochs a second", "of the chosen", "launching", "first step"]
    return table(head, rows, "webgpu-ways", css)


def server_sentence(found: Found, server: Mapping[Cell, Standing]) -> str:
    """The server's fastest library beside the browser's fastest; empty where one of both has nothing."""
    if (beside := beside_server(found, server)) is None:
        return ""
    device, way, comparison = beside
    (cell, standing), *_ = server.items()
    low, middle, high = standing.quartiles_s
    yours = CPU_WAYS[way] if device == "cpu" else f"{_short(found.who)}, {WAYS[way]}"
    words = {Verdict.FASTER: "faster", Verdict.SLOWER: "slower", Verdict.SAME: "equally fast"}
    told = words.get(comparison.verdict, "not told apart from it")
    return (
        f"The server's fastest is {cell.runtime.label}, {justified(middle, low, high)} an epoch; your browser's fastest"
        f" ({yours}) is {told}: {_interval(comparison)} times as long."
    )


def _short(who: Opened) -> str:
    return "your GPU" if who.adapter is not None and not who.adapter.is_software else "software adapter"


_COMPARED = {"gpu": "chosen", "cpu": "the faster"}  # and is what stands in the sentence


def _row(found: Found, device: str, way: str, name: str) -> list[str]:
    failed = found.failed.get((device, way)) or found.failed.get((device, ""))
    measured, prepared = found.training_of(device, way), found.prepared.get((device, way))
    cells = [html.escape(name)]
    if measured is None:
        return [*cells, html.escape(_mark(failed)) if failed else "–", "", "", "", _first(prepared)]
    middle, low, high = epoch_s(found, measured)
    compared = found.of_way(device, way) if way != found.way(device) else None
    empty = found.empty(device, way)
    share = f"{min(1.0, empty.median_s / measured.median_s):.0%}" if empty and measured.median_s else ""
    ratio = _interval(compared) if compared else _COMPARED[device] if way == found.way(device) else ""
    return [*cells, justified(middle, low, high), f"{1 / middle:.3g}" if middle else "", ratio, share, _first(prepared)]


def _first(prepared) -> str:
    return seconds(prepared.first_s) if prepared is not None else ""


def _mark(failed: Refusal) -> str:
    return {
        "too large": "too large",
        "too slow": f"predicted: {seconds(failed.expected_s)} a step",
        "too much for one kernel": "too much for one kernel",
        "shader": "does not compile",
        "diverged": "diverged",
        "no WebAssembly": "not in this browser",
        "lost": "lost",
    }.get(failed.kind, "failed")


def accuracy_line(found: Found) -> str:
    """How good both networks are after their seconds of training."""
    said = []
    for device, all_of_them in found.evaluated.items():
        last = all_of_them[-1]
        name = _cpu(found) if device == "cpu" else gpu_name(found.who)
        said.append(f"{name}: {percent(last.accuracy)} after {seconds(last.train_s)} of training")
    return f"{'; '.join(said)}. Of 1,000 validation images that no training saw." if said else ""


def images_line(n_images: int, took_s: float, facts: Facts) -> str:
    """How many images the browser has, and which."""
    which = f"Images: {facts.source}. {facts.note}".rstrip()
    return (
        f"Trained on {n_images:,} images, as many as reached your browser in {seconds(took_s)}; an epoch is counted as"
        f" 48,000. {which}"
    )


def which_is_which(who: Opened, server: ThisMachine, system: str) -> str:
    """Whose figures are whose: the browser's machine and the server's."""
    yours = f"{who.browser} on {who.platform or 'an unnamed system'}, {who.cores} core{'s' if who.cores != 1 else ''}"
    alike = who.cores == server.cores and system.lower() in who.platform.lower() and who.host in LOCAL
    told = (
        "as far as a browser tells, both are one machine"
        if alike
        else "your browser's machine is another one than the server"
    )
    return f"Yours: {yours}. The server: {server.line}. {_capital(told)}."


def clock_line(who: Opened) -> str:
    """How fine the browser's clock is."""
    return (
        f"Your browser's clock shows multiples of {seconds(who.clock_s)}; a block lasts at least a hundred of them, and"
        " one more or less at each end is part of every interval. The processor computes on one core: by WebAssembly"
        " with vectors of four float32, and by JavaScript without vectors, which it does not have, and with sums in"
        " float64. The faster of both is compared with the GPU."
    )


def hidden_line(found: Found) -> str:
    """How often the tab was in the background; empty where it never was."""
    if not found.hidden:
        return ""
    n = f"{found.hidden} block{'s' if found.hidden > 1 else ''}"
    return f"{n} thrown away and measured again: this tab was in the background meanwhile, where browsers slow it down."


def problems(found: Found) -> list[str]:
    """A sentence for each thing that could not be measured, and for a GPU that is none."""
    said = []
    if why := why_no_gpu(found.who):
        said.append(f"{why} Your processor is measured all the same.")
    elif found.who.adapter is not None and found.who.adapter.is_software:
        said.append(
            f"What your browser offers as a GPU is {found.who.adapter.name}, software that computes on the processor:"
            " it proves that the kernels are right, and says nothing of a GPU's speed."
        )
    alike: dict[str, list[Refusal]] = {}  # what several ways failed by is said once
    for one in found.failed.values():
        alike.setdefault(trouble(replace(one, way=""), found.who), []).append(one)
    return said + [trouble(of[0], found.who) if len(of) == 1 else words for words, of in alike.items()]


KEEP_LATER = "There is nothing to keep yet: wait until a few blocks are measured."


def kept(name: str) -> str:
    """What was kept, and where it is seen."""
    return f"Kept on this notebook's server as “{name}”; “Which library?” shows it beside the others."
