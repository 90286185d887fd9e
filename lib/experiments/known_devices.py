"""Devices that are known by their figures, with what published figures say of the libraries that drive them.

A data sheet says what a card computes at best. What its host spends on a call or on an operation (a loop such as
Keras' included), and how fast it is fed with images, is a library's: it is fitted to the figures that set the model
(`lib.experiments.published_figures`). Where a library was fitted on a device, that device has its costs there; where it
was fitted on others of the same kind alone, it has their geometric mean, from the least to the largest of them. So a
device has an entry for each library, with the ways in which that runs a step, and one for the ways that no published
figure speaks of.

All published figures that tell of products are of one small network, whose feeding takes as many times longer: they
cannot say what share of its peak a card attains, which stays an assumption of the file.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from lib.experiments.published_figures import LIBRARIES, REPEATED, PublishedFigure, published_figures
from lib.prediction.device import DRIVEN, QUANTITIES, Device, Figure, Origin, read_devices
from lib.prediction.workload import Way

# Parts of a step that are fitted, each with the figure of a device that it is the cost of.
FITTED: Mapping[str, str] = {"call": "host_call_s", "dispatch": "dispatch_s", "transfer": "transfer_bytes_per_s"}
# The way of running a step whose host a part is the cost of.
DRIVES: Mapping[str, Way] = {"dispatch": Way.OPERATIONS, "call": Way.STEP}
TOGETHER = ("jax-step",)  # libraries of which a figure with many networks in one program was published, too
MEASURED = (Origin.MEASURED, Origin.RECORDED)  # figures that no fit takes the place of
COVERAGE = 0.9  # of the figures that set the model, in the ranges of a device that no library's costs are fitted on
NOT_JUDGED = "no published figure is of a step that is run in this way, and nothing judges it"


def known_devices(
    devices: Mapping[str, Device] | None = None, figures: Sequence[PublishedFigure] | None = None
) -> dict[str, Device]:
    """The devices that predictions are made for: by the key of the file, or `key/library` where a library's costs are
    fitted.

    The ends of those are further out by as much as two published times of one thing are apart. Where no published
    figure speaks of a way to run a step, they are so far out that nine in ten of the figures that set the model would
    lie inside, were those predicted by the file alone.

    Args:
        devices: By key, from a file of presets; None for those of the project. A figure that was measured stands.
        figures: That set the costs; None for those of the articles.
    """
    recorded = read_devices()
    figures = published_figures() if figures is None else figures
    fits, widening = _fits(figures, recorded), _widening(figures, recorded)
    found: dict[str, Device] = {}
    for key, device in (recorded if devices is None else devices).items():
        driven = {f"{key}/{library}": _driven_by(library, key, device, fits, recorded) for library, _ in fits}
        driven = {name: one for name, one in driven.items() if one.ways}
        ways = {way for one in driven.values() for way in one.ways}
        # A processor has no graphs: what would be one is its compiled epoch.
        left = tuple(way for way in DRIVEN if way not in ways and (device.on_gpu or way is not Way.GRAPH))
        found |= {key: replace(device, ways=left, widening=widening, warning=NOT_JUDGED), **driven}
    return found


def of_machine(devices: Mapping[str, Device], machine: str, way: Way) -> Device:
    """The entry of a machine that is driven in this way; of several libraries the first."""
    return next(one for key, one in devices.items() if key.partition("/")[0] == machine and way in one.ways)


def _widening(figures: Sequence[PublishedFigure], recorded: Mapping[str, Device]) -> float:
    """How many times further out the ends must lie for the file alone to hold `COVERAGE` of the figures that set."""
    needed = []
    for one in figures:
        if one.sets:
            found = one.predicted(recorded[one.machine])
            needed.append(max(1.0, one.published_s / found.high_s, found.low_s / one.published_s))
    return float(np.quantile(needed, COVERAGE, method="higher"))


_Fits = Mapping[tuple[str, str], Mapping[str, Figure]]  # of each library and machine


def _driven_by(library: str, key: str, device: Device, fits: _Fits, recorded: Mapping[str, Device]) -> Device:
    """The device with the costs of a library, and in the ways for which they are known; in none where they are not."""
    costs = {**_elsewhere(library, device.on_gpu, fits, recorded), **fits.get((library, key), {})}
    costs = {name: one for name, one in costs.items() if device.figures[name].origin not in MEASURED}
    ways = tuple(way for part, way in DRIVES.items() if FITTED[part] in costs)
    label, _ = LIBRARIES.get(library, (library, None))
    together = device.together if library in TOGETHER else 1
    driven = {"library": label, "ways": ways, "together": together, "widening": REPEATED}
    return replace(device, figures={**device.figures, **costs}, **driven)


def _elsewhere(library: str, on_gpu: bool, fits: _Fits, recorded: Mapping[str, Device]) -> dict[str, Figure]:
    """What a library costs on a device of this kind, by those on which it was fitted."""
    found = {}
    for name in FITTED.values():
        known = {
            machine: costs[name].value
            for (driver, machine), costs in fits.items()
            if driver == library and recorded[machine].on_gpu is on_gpu and name in costs
        }
        if known:
            low, high = min(known.values()), max(known.values())
            middle = min(max(statistics.geometric_mean(known.values()), low), high) if low else 0.0
            names = "; ".join(recorded[machine].name for machine in known)
            source = f"Fitted to published figures of the same library on {names}"
            found[name] = Figure(middle, low, high, Origin.PUBLISHED, source)
    return found


def _fits(figures: Sequence[PublishedFigure], recorded: Mapping[str, Device]) -> _Fits:
    """What each library costs on each machine that has figures which set the model."""
    found: dict[tuple[str, str], Mapping[str, Figure]] = {}
    for library, machine in dict.fromkeys((one.library, one.machine) for one in figures if one.sets):
        setting = [one for one in figures if one.sets and (one.library, one.machine) == (library, machine)]
        device = recorded[machine]
        elsewhere = _elsewhere(library, device.on_gpu, found, recorded)
        device = replace(device, figures={**device.figures, **elsewhere})
        found[library, machine] = _fitted(device, setting, FITTED["transfer"] in elsewhere)
    return found


def _fitted(device: Device, setting: Sequence[PublishedFigure], fed: bool) -> dict[str, Figure]:
    """Costs that are not negative, with the smallest relative errors of the figures.

    Args:
        device: Whose other figures are kept.
        setting: Figures that set it.
        fed: Whether the rate at which it is fed with images is known already; it is not fitted then.
    """
    costs = device.costs()
    amounts = []
    for one in setting:
        each = [(steps, device.amounts(workload)) for steps, workload in one.work]
        amounts.append({part: sum(steps * of[part] for steps, of in each) for part in costs})
    parts = [part for part in FITTED if any(of[part] for of in amounts) and not (fed and part == "transfer")]
    shares = np.array(
        [[of[part] / one.published_s for part in parts] for of, one in zip(amounts, setting, strict=True)]
    )
    kept = np.array(
        [
            sum(cost * of[part] for part, cost in costs.items() if part not in parts) / one.published_s
            for of, one in zip(amounts, setting, strict=True)
        ]
    )
    sizes = shares.max(axis=0)
    found = nnls(shares / sizes, 1 - kept)[0] / sizes
    source = "Fitted to published figures: " + "; ".join(one.name for one in setting)
    fitted = {}
    for part, cost in zip(parts, found, strict=True):
        name = FITTED[part]
        quantity = QUANTITIES[name]
        figure = (1 / cost if cost else quantity.most) if part == "transfer" else cost
        value = float(np.clip(figure, quantity.least, quantity.most))
        fitted[name] = Figure(value, value, value, Origin.PUBLISHED, source)
    return fitted
