"""What a device costs: a file that is read whole or refused by name, and figures that cannot be meant."""

import json
from datetime import date
from pathlib import Path

import pytest

from lib.timing.prediction.workload import (
    FILE,
    QUANTITIES,
    DoesNotFit,
    Origin,
    SheetFigure,
    UnusableDevice,
    read_devices,
    resnet18,
)
from tests.timing.prediction.invented import device, figure, workload

KEYS = ("quadro-rtx-5000", "l4", "a100-pcie-40gb", "t4", "h100-pcie", "h100-sxm", "i9-10885h", "c3-highcpu-22")


def test_every_preset_is_read_with_a_source_for_each_figure():
    devices = read_devices()
    assert tuple(devices) == KEYS
    for one in devices.values():
        assert all(len(each.source) > 10 for each in one.figures.values())
        assert one.remarks
        assert bool(one.dated) == ("price_per_h" in one.figures), "a price is dated"
        assert not one.dated or date.fromisoformat(one.dated), "to the day"
    assert {key for key, one in devices.items() if one.on_gpu} == set(KEYS[:6])


def test_presets_say_no_machine_was_measured_and_assume_widely():
    for one in read_devices().values():
        for name, each in one.figures.items():
            assert each.origin in (Origin.PUBLISHED, Origin.DATA_SHEET, Origin.ASSUMED)
            if each.origin is Origin.ASSUMED:
                assert each.low == 0 or each.high / each.low >= 2, f"{one.name}, {name}: a guess is not that sure"


@pytest.mark.parametrize(
    ("key", "flops_per_s", "memory_bytes_per_s"),
    [
        ("quadro-rtx-5000", 3072 * 2 * 1.815e9, 256 / 8 * 14e9),
        ("l4", 7424 * 2 * 2.04e9, 192 / 8 * 12.5e9),
        ("a100-pcie-40gb", 6912 * 2 * 1.41e9, 5120 / 8 * 2.43e9),
        ("t4", 2560 * 2 * 1.59e9, 256 / 8 * 10e9),
        ("h100-pcie", 14592 * 2 * 1.755e9, 5120 / 8 * 3.2e9),
        ("h100-sxm", 16896 * 2 * 1.98e9, 5120 / 8 * 5.2e9),
    ],
)
def test_peaks_are_cores_times_clock_and_bus_times_rate(key, flops_per_s, memory_bytes_per_s):
    """Data sheets' figures from other lines of theirs."""
    one = read_devices()[key]
    assert one.figures["product_flops_per_s"].value == pytest.approx(flops_per_s, rel=0.02)
    assert one.figures["memory_bytes_per_s"].value == pytest.approx(memory_bytes_per_s, rel=0.03)


def changed(tmp_path, change):
    content = json.loads(FILE.read_text())
    change(content)
    path = tmp_path / "devices.json"
    path.write_text(json.dumps(content))
    return path


def first(content):
    return content["devices"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(version=2), r"devices.json: expected .* invalid enum value 2"),
        (lambda c: first(c).pop("key"), r"missing required field `key` - at `\$.devices\[0\]`"),
        (lambda c: c["devices"].append(first(c)), "expected each device with a key of its own, got quadro-rtx-5000"),
        (lambda c: first(c).update(name="T4"), "expected each device with a name of its own, got T4 twice"),
        (lambda c: first(c).update(on_gpu="no"), r"expected `bool`, got `str` - at `\$.devices\[0\].on_gpu`"),
        (lambda c: first(c)["figures"]["launch_s"].pop("low"), "missing required field `low`"),
        (lambda c: first(c)["figures"]["launch_s"].update(value=1e-9), "expected 0 ≤ low"),
        (lambda c: first(c)["figures"]["launch_s"].update(origin="heard"), "invalid enum value 'heard'"),
        (lambda c: first(c)["figures"].pop("launch_s"), "quadro rtx 5000: expected a figure “launch_s”"),
        (lambda c: first(c)["figures"].update(colour=first(c)["figures"]["launch_s"]), "known names, got colour"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path, change, said):
    with pytest.raises(UnusableDevice, match=f"(?i){said}"):
        read_devices(changed(tmp_path, change))


def test_a_file_that_is_missing_or_torn_is_refused(tmp_path):
    (tmp_path / "devices.json").write_text(FILE.read_text()[:-100])
    with pytest.raises(UnusableDevice, match=r"devices\.json: expected a JSON file of devices .* Unterminated"):
        read_devices(tmp_path / "devices.json")
    with pytest.raises(UnusableDevice, match=r"\.: expected a JSON file .* cannot be read"):
        read_devices(Path())


@pytest.mark.parametrize("name", [name for name, quantity in QUANTITIES.items() if quantity.required])
def test_a_figure_that_is_absurd_is_refused_by_name(name):
    """Also where only an end of its range is."""
    quantity = QUANTITIES[name]
    with pytest.raises(UnusableDevice, match=f"an invented card: expected {name} between .* correct it"):
        device(**{name: figure(10 * quantity.most)})
    with pytest.raises(UnusableDevice, match=f"expected {name} between"):
        device(**{name: figure(quantity.most, high=10 * quantity.most)})


def test_a_cache_slower_than_memory_is_refused():
    with pytest.raises(UnusableDevice, match="expected a cache no slower than memory"):
        device(cache_bytes_per_s=1e8)


@pytest.mark.parametrize(
    ("value", "low", "high"), [(1, 2, 3), (3, 1, 2), (1, -1, 2), (float("nan"), 0, 1), (1, 0, float("inf"))]
)
def test_a_range_without_its_figure_is_refused(value, low, high):
    with pytest.raises(ValueError, match="expected 0 ≤ low ≤ value ≤ high"):
        SheetFigure(value, low, high, Origin.ASSUMED, "")


def test_what_no_memory_holds_is_refused_in_a_sentence():
    device().check(workload(parameter_bytes=499_000_000))
    with pytest.raises(
        DoesNotFit, match=r"an invented layer: expected a step of at most the 1 GB of an invented card, got .* 1.2"
    ):
        device().check(workload(parameter_bytes=600_000_000))
    with pytest.raises(DoesNotFit, match="batch size 4,096 and 64 at once; choose a smaller batch"):
        read_devices()["l4"].check(resnet18(4_096, networks=64))
