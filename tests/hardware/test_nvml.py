"""What NVML says, from a stand-in for its Python binding: no card is needed, and none is pretended to be measured."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from lib.hardware.nvml import Activity, gpus, watched_activity


class NVMLError(Exception):
    """As the binding's."""


@pytest.fixture
def nvml(monkeypatch):
    """A binding with one card whose power limit slows it; a test may take functions away."""
    module = ModuleType("pynvml")
    metrics = SimpleNamespace(metrics=[SimpleNamespace(), SimpleNamespace()])

    def metrics_get(asked):
        values = {2: 3.5, 3: 1.25}
        for metric in asked.metrics:
            metric.value = values[metric.metricId] if asked.sample1 != asked.sample2 else 0.0
        return asked

    samples = iter("abcdef")
    vars(module).update(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_GPM_METRICS_GET_VERSION=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"570.86",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "NVIDIA L4",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=24 * 2**30),
        nvmlDeviceGetClockInfo=lambda _, kind: 1200,
        nvmlDeviceGetMaxClockInfo=lambda _, kind: 2040,
        nvmlDeviceGetPowerUsage=lambda _: 71_900,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 72_000,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=98),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4 | 0x1,
        nvmlGpmQueryDeviceSupport=lambda _: SimpleNamespace(isSupportedDevice=1),
        nvmlGpmSampleAlloc=lambda: next(samples),
        nvmlGpmSampleGet=lambda _, sample: sample,
        nvmlGpmSampleFree=lambda _: None,
        c_nvmlGpmMetricsGet_t=lambda: metrics,
        nvmlGpmMetricsGet=metrics_get,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_a_card_with_all_that_it_says(nvml):
    (gpu,) = gpus()
    assert gpu.utilisation == 0.98
    assert gpu.throttled_by == ("its power limit",), "being idle is no throttling"
    assert gpu.line == "NVIDIA L4, 24 GiB, driver 570.86, 1200 of 2040 MHz, 72 of 72 W, slowed by its power limit"


def test_what_an_older_card_does_not_know_is_left_out(nvml):
    def unknown(*_):
        raise NVMLError

    nvml.nvmlDeviceGetPowerUsage = unknown
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    (gpu,) = gpus()
    assert (gpu.power_w, gpu.throttled_by) == (None, ())
    assert " W" not in gpu.line


def test_true_activity_where_the_chip_reports_it(nvml):
    with watched_activity() as found:
        pass
    assert found == [Activity(0.035, 0.0125)]
    nvml.nvmlGpmQueryDeviceSupport = lambda _: SimpleNamespace(isSupportedDevice=0)
    with watched_activity() as found:
        pass
    assert found == [], "an Ada chip such as the L4 has no GPM"


@pytest.mark.parametrize("trouble", ["no binding", "no driver"])
def test_without_binding_or_driver_there_are_no_cards(nvml, monkeypatch, trouble):
    def no_driver():
        raise NVMLError

    if trouble == "no binding":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        nvml.nvmlInit = no_driver
    assert gpus() == []
    with watched_activity() as found:
        pass
    assert found == []
