"""Facts about cards, read from stand-ins for `nvidia-smi`, NVML's binding and the driver's library."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.cli import Unusable
from lib.cli.record import choose_card
from lib.model.backends.registry import device_count
from lib.model.hardware import nvidia
from lib.model.hardware.machine import this_machine
from lib.model.hardware.nvidia import (
    SETTLE_S,
    Card,
    cards,
    driver_version,
    gpus,
    l2_cache_bytes,
    nvidia_driver_answers,
    visible,
    watched_activity,
)


@pytest.fixture(autouse=True)
def nothing_cached():
    nvidia.all_cards.cache_clear()
    this_machine.cache_clear()
    yield
    nvidia.all_cards.cache_clear()
    this_machine.cache_clear()


L4, T4 = Card("GPU-11aa", "NVIDIA L4", "570.86.10", 24 * 2**30), Card("GPU-22bb", "Tesla T4", "570.86.10")


def test_cards_are_read_from_the_driver(driver):
    driver("570.86.10")
    assert cards()[0] == Card("GPU-11aa", "NVIDIA L4", "570.86.10", 23034 * 2**20, 8.9)
    assert [card.name for card in cards()] == ["NVIDIA L4", "Tesla T4"]
    assert driver_version() == "570.86.10"


def test_one_of_several_cards_is_chosen_for_a_recording(driver, monkeypatch, capsys):
    driver("570.86.10")
    choose_card(1)
    assert [card.name for card in cards()] == ["Tesla T4"]
    assert this_machine().gpu == "Tesla T4", "the machine is named, and told apart, by this card"
    assert device_count("gpu") == 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    choose_card(None)
    assert "2 GPUs: recording the first; for another, use --card 1" in capsys.readouterr().out
    assert [card.uuid for card in cards()] == ["GPU-11aa"]
    for number, words in ((1, "expected 0 to 0, got 1"), (-1, "expected 0 to 0, got -1")):
        with pytest.raises(Unusable, match=words):
            choose_card(number)


@pytest.mark.parametrize(
    ("named", "left"),
    [
        (None, (L4, T4)),
        ("", ()),
        ("0", (L4,)),
        ("1,0", (T4, L4)),
        ("0,0", (L4,)),
        ("2", ()),
        ("0,-1,1", (L4,)),  # as in CUDA, an invalid entry hides all that follow
        ("GPU-22bb", (T4,)),
        ("GPU-2, GPU-1", (T4, L4)),
        ("GPU-", ()),  # matches both
    ],
)
def test_cuda_visible_devices_selects_cards(named, left):
    assert visible((L4, T4), named) == left


@given(st.text() | st.lists(st.sampled_from(["0", "1", "2", "-1", "GPU-1", "GPU-22bb", "x"])).map(",".join))
def test_any_value_of_the_variable_selects_each_card_at_most_once(named):
    found = visible((L4, T4), named)
    assert len(set(found)) == len(found)
    assert set(found) <= {L4, T4}


def test_there_is_no_driver_without_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (cards(), driver_version()) == ((), "")
    assert not nvidia_driver_answers()


class NVMLError(Exception):
    """Stand-in for the binding's error."""


@pytest.fixture
def nvml(monkeypatch):
    """Stand-in for `pynvml` with a card slowed by its power limit; `held` counts sessions and unfreed samples."""
    module = ModuleType("pynvml")
    held = SimpleNamespace(sessions=0, begun=0, samples=set())
    monkeypatch.setattr("lib.model.hardware.nvidia.cards", lambda: (L4,))
    metrics = SimpleNamespace(metrics=[SimpleNamespace(), SimpleNamespace()])

    def metrics_get(asked):
        for metric in asked.metrics:
            metric.value = {2: 3.5, 3: 1.25}[metric.metricId] if asked.sample1 != asked.sample2 else 0.0
        return asked

    def opened():
        held.sessions += 1
        held.begun += 1

    def closed():
        held.sessions -= 1

    def allocated():
        held.samples.add(sample := object())
        return sample

    vars(module).update(
        held=held,
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_GPM_METRICS_GET_VERSION=1,
        nvmlInit=opened,
        nvmlShutdown=closed,
        nvmlDeviceGetHandleByUUID=lambda uuid: unknown() if uuid == "GPU-gone" else uuid,
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
        nvmlGpmSampleFree=held.samples.remove,
        c_nvmlGpmMetricsGet_t=lambda: metrics,
        nvmlGpmMetricsGet=metrics_get,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def watched(work_s=0.05):
    """Activity during `work_s` of sleep, sampled from the start instead of after one second."""
    with watched_activity(settle_s=0.0, sample_s=0.005) as busy:
        time.sleep(work_s)
    return busy


def unknown(*_):
    raise NVMLError


def test_the_line_of_a_card_has_all_facts(nvml):
    (gpu,) = gpus()
    assert gpu.throttled_by == ("its power limit",), "being idle is no throttling"
    assert gpu.line == ("NVIDIA L4, 24 GiB, driver 570.86.10, 1200 of 2040 MHz, 72 of 72 W")


def test_facts_unknown_to_chip_or_driver_are_left_out(nvml):
    nvml.nvmlDeviceGetPowerUsage = unknown
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    (gpu,) = gpus()
    assert (gpu.power_w, gpu.throttled_by) == (None, ())


def test_throttling_is_counted_or_else_its_current_state_is_read(nvml):
    nvml.nvmlDeviceGetViolationStatus = lambda _, policy: unknown() if policy else SimpleNamespace(violationTime=3)
    assert gpus()[0].slowed_s == {"its power limit": 3e-9}
    nvml.nvmlDeviceGetViolationStatus = unknown
    assert gpus()[0].slowed_s is None


def test_only_visible_cards_are_queried_by_uuid(nvml, monkeypatch):
    monkeypatch.setattr("lib.model.hardware.nvidia.cards", lambda: (T4, Card("GPU-gone", "", ""), L4))
    assert [gpu.card for gpu in gpus()] == [T4, L4]
    asked = []
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: asked.append(handle) or SimpleNamespace(gpu=1)
    watched()
    assert set(asked) == {"GPU-22bb"}, "the first that this process may use, which is not the driver's first"
    monkeypatch.setattr("lib.model.hardware.nvidia.cards", lambda: ())
    assert gpus() == []
    assert watched().utilisations == [], "all are hidden"


def test_utilisation_is_sampled_by_one_thread_in_one_session(nvml):
    asked_by = set()
    nvml.nvmlDeviceGetUtilizationRates = lambda _: asked_by.add(threading.get_ident()) or SimpleNamespace(gpu=98)
    busy = watched()
    assert len(busy.utilisations) > 1
    assert set(busy.utilisations) == {0.98}
    assert asked_by
    assert threading.get_ident() not in asked_by
    assert (nvml.held.begun, nvml.held.sessions) == (1, 0), "one session, and it is closed"


def test_the_first_second_is_not_sampled(nvml):
    began = time.monotonic()
    with watched_activity() as busy:
        time.sleep(0.05)
    assert (busy.utilisations, busy.activity) == ([], None)
    assert time.monotonic() - began < SETTLE_S, "nobody waits for it"


def test_activity_is_read_if_the_chip_reports_it(nvml):
    assert watched().activity == (0.035, 0.0125)
    assert not nvml.held.samples
    nvml.nvmlGpmQueryDeviceSupport = lambda _: SimpleNamespace(isSupportedDevice=0)
    assert watched().activity is None, "an Ada chip such as the L4 has no GPM"


@pytest.mark.parametrize("failing", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlDeviceGetUtilizationRates"])
@pytest.mark.parametrize("answers", [0, 1])
def test_a_failing_query_leaves_no_sample_or_session_open(nvml, failing, answers):
    works, left = getattr(nvml, failing), [None] * answers
    setattr(nvml, failing, lambda *arguments: works(*arguments) if left and not left.pop() else unknown())
    watched()
    assert (nvml.held.samples, nvml.held.sessions) == (set(), 0)


def test_sampling_ends_when_the_work_fails(nvml):
    with pytest.raises(ZeroDivisionError), watched_activity(settle_s=60.0):
        _ = 1 / 0
    assert nvml.held.sessions == 0


@pytest.mark.parametrize("trouble", ["no binding", "no driver"])
def test_no_cards_are_found_without_binding_or_driver(nvml, monkeypatch, trouble):
    if trouble == "no binding":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        nvml.nvmlInit = unknown
    assert gpus() == []
    busy = watched()
    assert (busy.utilisations, busy.activity) == ([], None)


def driver_library(fails: str):
    """Stand-in for the driver's library: one card with 50 MiB of L2; the function named `fails` returns an error."""

    def start(flags):
        return 100 * (fails == "cuInit") + flags

    def get_device(device, number):
        device._obj.value = 7 + number
        return 100 * (fails == "cuDeviceGet")

    def get_attribute(value, attribute, device):
        value._obj.value = {(38, 7): 50 * 2**20}[attribute, device.value]
        return 100 * (fails == "cuDeviceGetAttribute")

    return SimpleNamespace(cuInit=start, cuDeviceGet=get_device, cuDeviceGetAttribute=get_attribute)


@pytest.mark.parametrize("fails", ["", "cuInit", "cuDeviceGet", "cuDeviceGetAttribute"])
def test_the_l2_size_is_that_of_the_first_card(monkeypatch, fails):
    monkeypatch.setattr(nvidia.ctypes, "CDLL", lambda name: {"libcuda.so.1": driver_library(fails)}[name])
    assert l2_cache_bytes() == (0 if fails else 50 * 2**20)
