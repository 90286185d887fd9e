"""The pinned run next to the current one: the same axes for both, and a sentence on the difference."""

from dataclasses import replace
from typing import Any

from lib.formatting import listed, percent, seconds
from lib.sweeps.experiments.mnist_training import Experiment, settings_of
from lib.sweeps.experiments.results import Results
from lib.sweeps.workers.messages import Item
from lib.ui.views.chart import Chart

Pair = tuple[Experiment, Results]
PIN, UNPIN = "Pin this run", "Unpin this run"
PIN_MEANS, UNPIN_MEANS = "Its charts stay next to those of the next run", "Its charts go; its results stay saved"
HIDDEN = (
    "The pinned run stays hidden until you guess its outcome. Set the controls to match it and guess, or press"
    f" “{UNPIN}”."
)
WAITS = "The pinned run starts when the class resumes."


def with_same_axes(one: Chart, other: Chart) -> tuple[Chart, Chart]:
    """Both charts, with axes that span the values of both; axes of names stay as they are."""
    ends = {
        channel: [domain for chart in (one, other) for domain in _domains(chart.spec, channel)]
        for channel in ("x", "y")
    }
    wide = {}
    for channel, domains in ends.items():
        if domains:
            low, high = min(map(min, domains)), max(map(max, domains))
            wide[channel] = [low, high] if domains[0][0] <= domains[0][1] else [high, low]
    return replace(one, spec=_with_domains(one.spec, wide)), replace(other, spec=_with_domains(other.spec, wide))


def _domains(part: Any, channel: str) -> list[list[float]]:
    found = []
    for layer in part.get("layer", ()):
        domain = ((layer.get("encoding", {}).get(channel) or {}).get("scale") or {}).get("domain")
        if isinstance(domain, list) and len(domain) == 2 and all(isinstance(end, int | float) for end in domain):
            found.append(domain)
    return found


def _with_domains(spec: dict, wide: dict[str, list[float]]) -> dict:
    def widened(layer: dict) -> dict:
        encoding = dict(layer.get("encoding", {}))
        for channel, domain in wide.items():
            if _domains({"layer": [layer]}, channel):
                encoding[channel] = encoding[channel] | {"scale": encoding[channel]["scale"] | {"domain": domain}}
        return layer | {"encoding": encoding}

    return spec | {"layer": [widened(layer) for layer in spec["layer"]]}


def difference(pinned: Pair, now: Pair) -> str:
    """How the current run's settings differ from the pinned run's and, once both are over, how the results differ."""
    if pinned[0] == now[0]:
        return f"This run is pinned: it stays next to the following one. Move a control, or press “{UNPIN}”."
    settings = [
        f"{name} {was} pinned, {here} now"
        for (name, was), (_, here) in zip(*(settings_of(one.items) for one, _ in (pinned, now)), strict=True)
        if was != here
    ]
    text = f"{listed(settings)}." if settings else "Different trainings within the same range."
    text = text[:1].upper() + text[1:]
    best = [results.best() for _, results in (pinned, now) if results.over]
    if len(best) < 2 or best[0] is None or best[1] is None:
        return text
    (was, was_told), (here, here_told) = _told(pinned[1], best[0]), _told(now[1], best[1])
    more = f"{100 * abs(here - was):.1f} points {'more' if here > was else 'less'} than the pinned run"
    if abs(here - was) <= max(one.training.data.gap_by_chance(was, here) for one in (best[0], best[1])):
        more += "; one seed cannot tell such a gap from chance"
    return f"{text} Best pinned: {was_told}. Best now: {here_told}, {more}."


def _told(results: Results, best: Item) -> tuple[float, str]:
    place, total_s = results.items.index(best), sum(one.train_s for one in results.lines)
    accuracy = results.lines[place].accuracy or 0
    return accuracy, f"{percent(accuracy)} ({results.labels[place]}), {seconds(total_s)} of training in all"
