"""What NVML says, from a stand-in for its Python binding: no card is needed, and none is pretended to be measured."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

from lib.model.hardware.nvidia import SETTLE_S, Activity, Card, gpus, watched_activity

L4, T4 = Card("GPU-l4", "NVIDIA L4", "570.86"), Card("GPU-t4", "Tesla T4", "570.86")


class NVMLError(Exception):
    """As the binding's."""


@pytest.fixture
def nvml(monkeypatch):
    """A binding with one card whose power limit slows it; a test may take functions away.

    It counts its sessions and the samples that are not freed, in `held`.
    """
    module = ModuleType("pynvml")
    held = {"sessions": 0, "begun": 0, "samples": set()}
    monkeypatch.setattr("lib.model.hardware.nvidia.cards", lambda: (L4,))
    metrics = SimpleNamespace(metrics=[SimpleNamespace(), SimpleNamespace()])

    def metrics_get(asked):
        values = {2: 3.5, 3: 1.25}
        for metric in asked.metrics:
            metric.value = values[metric.metricId] if asked.sample1 != asked.sample2 else 0.0
        return asked

    def opened():
        held["sessions"] += 1
        held["begun"] += 1

    def closed():
        held["sessions"] -= 1

    def allocated():
        held["samples"].add(sample := object())
        return sample

    def by_uuid(uuid):
        if uuid not in ("GPU-l4", "GPU-t4"):
            raise NVMLError
        return uuid

    vars(module).update(
        held=held,
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_GPM_METRICS_GET_VERSION=1,
        nvmlInit=opened,
        nvmlShutdown=closed,
        nvmlSystemGetDriverVersion=lambda: b"570.86",
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetName=lambda handle: {"GPU-l4": "NVIDIA L4", "GPU-t4": "Tesla T4"}[handle],
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=24 * 2**30),
        nvmlDeviceGetClockInfo=lambda _, kind: 1200,
        nvmlDeviceGetMaxClockInfo=lambda _, kind: 2040,
        nvmlDeviceGetPowerUsage=lambda _: 71_900,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 72_000,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=98),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4 | 0x1,
        nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=1),
        nvmlDeviceGetViolationStatus=lambda _, policy: SimpleNamespace(violationTime={0: 2_500_000_000}.get(policy, 0)),
        nvmlGpmSampleAlloc=allocated,
        nvmlGpmSampleGet=lambda _, sample: sample,
        nvmlGpmSampleFree=held["samples"].remove,
        c_nvmlGpmMetricsGet_t=lambda: metrics,
        nvmlGpmMetricsGet=metrics_get,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def watched(work_s=0.05):
    """How busy the card was during so much work, without a second's patience."""
    with watched_activity(settle_s=0.0, sample_s=0.005) as busy:
        time.sleep(work_s)
    return busy


def unknown(*_):
    raise NVMLError


def test_a_card_with_all_that_it_says(nvml):
    (gpu,) = gpus()
    assert gpu.throttled_by == ("its power limit",), "being idle is no throttling"
    assert gpu.line == (
        "NVIDIA L4, 24 GiB, driver 570.86, 1200 of 2040 MHz, 72 of 72 W,"
        " slowed for 2.5 s by its power limit since its driver was loaded"
    )


def test_what_an_older_card_does_not_know_is_left_out(nvml):
    nvml.nvmlDeviceGetPowerUsage = unknown
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    (gpu,) = gpus()
    assert (gpu.power_w, gpu.throttled_by) == (None, ())
    assert " W" not in gpu.line


def test_the_link_to_a_card_is_said_where_both_parts_are_known(nvml):
    nvml.nvmlDeviceGetCurrPcieLinkGeneration = lambda _: 5
    assert "PCIe" not in gpus()[0].line
    nvml.nvmlDeviceGetCurrPcieLinkWidth = lambda _: 16
    assert ", PCIe 5 × 16, " in gpus()[0].line


def test_a_chip_that_does_not_count_is_asked_what_slows_it_now(nvml):
    nvml.nvmlDeviceGetViolationStatus = unknown
    (gpu,) = gpus()
    assert gpu.slowed_s is None
    assert gpu.line.endswith("slowed by its power limit at this moment")


def test_a_chip_that_counts_one_kind_alone_counts(nvml):
    nvml.nvmlDeviceGetViolationStatus = lambda _, policy: unknown() if policy else SimpleNamespace(violationTime=3)
    (gpu,) = gpus()
    assert gpu.slowed_s == {"its power limit": 3e-9}


def test_only_the_cards_that_may_be_used_are_asked_by_uuid(nvml, monkeypatch):
    """In CUDA's order, and none that NVML does not know."""
    monkeypatch.setattr("lib.model.hardware.nvidia.cards", lambda: (T4, Card("GPU-gone", "", ""), L4))
    assert [(gpu.name, gpu.uuid) for gpu in gpus()] == [("Tesla T4", "GPU-t4"), ("NVIDIA L4", "GPU-l4")]
    asked = []
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: asked.append(handle) or SimpleNamespace(gpu=1)
    watched()
    assert set(asked) == {"GPU-t4"}, "the first that this process may use, which is not the driver's first"
    monkeypatch.setattr("lib.model.hardware.nvidia.cards", lambda: ())
    assert gpus() == []
    assert watched().utilisations == [], "all are hidden"


def test_utilisation_is_sampled_by_a_thread_in_one_session_while_the_work_runs(nvml):
    asked_by = set()
    nvml.nvmlDeviceGetUtilizationRates = lambda _: asked_by.add(threading.get_ident()) or SimpleNamespace(gpu=98)
    busy = watched()
    assert len(busy.utilisations) > 1
    assert set(busy.utilisations) == {0.98}
    assert asked_by
    assert threading.get_ident() not in asked_by
    assert (nvml.held["begun"], nvml.held["sessions"]) == (1, 0), "one session, and it is closed"


def test_the_first_second_is_left_out(nvml):
    """What NVML shows then is still of before the work: so where the work is shorter, nothing is shown."""
    began = time.monotonic()
    with watched_activity() as busy:
        time.sleep(0.05)
    assert (busy.utilisations, busy.activity) == ([], None)
    assert time.monotonic() - began < SETTLE_S, "nobody waits for it"


def test_true_activity_where_the_chip_reports_it(nvml):
    assert watched().activity == Activity(0.035, 0.0125)
    assert not nvml.held["samples"]
    nvml.nvmlGpmQueryDeviceSupport = lambda _: SimpleNamespace(isSupportedDevice=0)
    assert watched().activity is None, "an Ada chip such as the L4 has no GPM"


@pytest.mark.parametrize("failing", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlDeviceGetUtilizationRates"])
@pytest.mark.parametrize("answers", [0, 1])
def test_no_sample_and_no_session_is_left_where_a_query_fails(nvml, failing, answers):
    """At once, or after it has answered: a card may disappear in the middle."""
    works, left = getattr(nvml, failing), [None] * answers
    setattr(nvml, failing, lambda *arguments: works(*arguments) if left and not left.pop() else unknown())
    watched()
    assert (nvml.held["samples"], nvml.held["sessions"]) == (set(), 0)


def test_the_watching_ends_with_work_that_fails(nvml):
    with pytest.raises(ZeroDivisionError), watched_activity(settle_s=60.0):
        _ = 1 / 0
    assert nvml.held["sessions"] == 0


@pytest.mark.parametrize("trouble", ["no binding", "no driver"])
def test_without_binding_or_driver_there_are_no_cards(nvml, monkeypatch, trouble):
    def no_driver():
        raise NVMLError

    if trouble == "no binding":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        nvml.nvmlInit = no_driver
    assert gpus() == []
    busy = watched()
    assert (busy.utilisations, busy.activity) == ([], None)
