# pyright: reportArgumentType=false
"""The page's requests to its reader's browser, which is simulated here, and the texts for its answers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from lib.labs import your_gpu as lab
from lib.model.data.mnist import Facts
from lib.model.spec import Network, Training
from lib.sweeps.experiments.recorded_machines import browsers_in, with_unique_names
from lib.sweeps.experiments.your_gpu import USUAL_WAY, WAYS, BrowserAdapter, BrowserJob, Found, Refusal, contests
from lib.sweeps.storage.records import Kind
from lib.sweeps.storage.store import Store
from lib.ui.widgets import MeasureInBrowser
from tests.sweeps.experiments.test_your_gpu import CELL, JOB, SWIFTSHADER, WHO, found, keep, product
from tests.ui.views.test_dots import dots_of

SMALL = BrowserJob(Training(Network((16,)), 0.1, 32, 1))
OPENED = {"is": "opened", "browser": "Safari 26", "platform": "macOS", "cores": 8, "clock_s": 1e-4, "failed": []}
OPENED |= {"secure": True, "offered": True, "host": "localhost"}
OPENED |= {"adapter": {"vendor": "apple", "architecture": "metal-3"}}
SOFTWARE = replace(WHO, adapter=BrowserAdapter("google", "swiftshader", fallback=True))


class FakeBrowser:
    def __init__(self, store: Store, monkeypatch) -> None:
        images = {f"x_{kind}": np.zeros((1024, 784), np.uint8) for kind in ("train", "validation")}
        images |= {f"y_{kind}": np.zeros(1024, np.uint8) for kind in ("train", "validation")}
        monkeypatch.setattr(lab, "_images", lambda: (images, Facts("MNIST", "")))
        self.page, self.sent = lab.InBrowser(), []
        yours = SimpleNamespace(stage=SimpleNamespace(viewer=None), redraw=lambda: None)
        self.page.attach(SimpleNamespace(store=store, sections={"yours": yours}))
        monkeypatch.setattr(self.page.widget, "send", lambda content, buffers=(): self.sent.append((content, buffers)))

    def says(self, **content: object) -> None:
        self.page.widget._handle_custom_msg(content, [])

    def asked(self) -> list[str]:
        return [content["do"] for content, _ in self.sent]

    def shown(self, where: str) -> str:
        return self.page.widget.told[where]

    def open(self, **else_said: object) -> None:
        for message in (OPENED | else_said, {"is": "more"}, {"is": "enough", "took_s": 1.0}):
            self.says(**message)

    def measures(self, pairs: int = 9, job: int = 1) -> None:
        rows = [
            {
                "is": "block",
                "of": "training",
                "device": device,
                "way": way,
                "steps": 10,
                "block_s": seconds,
                "round": pair,
            }
            for pair in range(pairs)
            for device, way, seconds in (("gpu", "one_submission", 0.01), ("cpu", "simd", 0.04))
        ]
        self.says(**{"is": "rows", "job": job, "rows": rows})


@pytest.fixture
def fake_browser(tmp_path, monkeypatch) -> FakeBrowser:
    return FakeBrowser(Store(tmp_path / "results.sqlite"), monkeypatch)


def test_images_are_sent_before_the_job_and_its_buffers(fake_browser):
    fake_browser.page.measure(SMALL, 0)
    assert fake_browser.asked() == [], "nobody has opened the page yet"
    fake_browser.open()
    assert fake_browser.asked() == ["images", "images", "measure"]
    (sample, (x, y)), (part, _), (job, (parameters, starts)) = fake_browser.sent
    assert (sample["sample"], len(x), len(y)) == (True, 1024 * 784, 1024)
    assert part == {"do": "images", "last": False}
    assert (job["id"], job["sizes"], len(parameters)) == (1, True, 4 * SMALL.training.network.n_parameters)
    assert len(starts) % 4 == 0
    fake_browser.measures()
    assert "beats" in fake_browser.shown("sentence")


def test_malformed_messages_are_reported_and_change_nothing(fake_browser):
    fake_browser.page.measure(SMALL, 0)
    fake_browser.open()
    fake_browser.measures()
    before = fake_browser.shown("sentence")
    fake_browser.says(**{"is": "rows", "job": 1, "rows": [{"is": "block", "device": "gpu"}]})
    assert "reload the page" in fake_browser.shown("line")
    for strange in ({"is": "gossip"}, {}, {"is": "at", "job": 1, "stage": "the moon"}):
        fake_browser.says(**strange)
    assert fake_browser.shown("sentence") == before


def test_an_invalid_control_stops_the_browser_and_says_why(fake_browser):
    values = {"size": 0, "hidden": "16", "rate": 0.1, "way": USUAL_WAY, "again": 0}
    fake_browser.page.follow(SimpleNamespace(value=values))
    assert fake_browser.asked() == ["stop"]
    assert "expected" in fake_browser.shown("line")
    assert "got 0" in fake_browser.shown("line")


def test_measurements_are_stored_once(fake_browser):
    fake_browser.page.measure(SMALL, 0)
    fake_browser.open()
    fake_browser.page.keep()
    assert "nothing to keep yet" in fake_browser.shown("below")
    fake_browser.measures()
    for _ in range(3):
        fake_browser.page.keep()
    store = fake_browser.page.page.store
    assert len(store.records(Kind.RACE)) == 2
    assert "Kept on this notebook" in fake_browser.shown("below")
    fake_browser.measures(pairs=4)
    fake_browser.page.keep()
    blocks = [len(record.block_s) for record in store.records(Kind.RACE)]
    assert sorted(blocks) == [4, 4, 9, 9], "no block twice: it would count as two repetitions"
    for number in range(1, 5):
        fake_browser.open(reader=str(number))
        fake_browser.measures(job=1 + number)
        fake_browser.page.keep()
    assert "Expected at most 3 of your machines" in fake_browser.shown("below")
    for record in store.records(Kind.RACE):
        assert set(record.subject) >= {"browser", "clock_s", "off_s"}
        assert "Safari 26" in record.command


def test_the_sentence_names_the_winner_first_with_the_interval():
    faster = "Your GPU (apple metal-3) beats WebAssembly SIMD on one core: 1.50 s an epoch against 6.00 s, 0.25\xa0(0.2"
    assert lab.sentence(found(0.001, 0.004)).startswith(faster)
    said = lab.sentence(found(0.004, 0.001))
    assert said.startswith("WebAssembly SIMD on one core beats your GPU (apple metal-3): 1.5")
    assert "4\xa0(3.9" in said
    assert "indistinguishable" in lab.sentence(found(0.004, 0.001, n=3))
    assert "equally fast" in lab.sentence(found(0.1, 0.1, n=9))


def test_a_software_adapter_is_never_called_a_gpu():
    one = replace(found(0.004, 0.001), who=SOFTWARE)
    one.take(product("gpu", 1, 0.001) + product("cpu", 1, 0.0001))
    text = " ".join([lab.sentence(one), lab.border_sentence(one), lab.ways_table(one, {}), *lab.problems(one)])
    assert "your gpu" not in text.lower()
    software = {"gpu": "google swiftshader (software, no GPU)", "software": True}
    assert lab.labels(SOFTWARE, one) == software | {"cpu": "WebAssembly SIMD on one core"}


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (replace(WHO, secure=False, offered=False, host="lab.example.org"), ["http from lab.example.org", "ssh -L"]),
        (
            replace(WHO, offered=False, browser="Firefox 128"),
            ["Firefox 128 does not support WebGPU", "Chrome and Edge from 113"],
        ),
        (WHO, ["found no adapter", "--enable-unsafe-webgpu"]),
        (replace(WHO, failed=[Refusal("gpu", "", "fault", "out of handles")]), ["out of handles", "reload the page"]),
    ],
)
def test_a_missing_gpu_has_a_reason_and_a_remedy(who, words):
    why = lab.why_no_gpu(replace(who, adapter=None))
    assert all(word in why for word in words), why
    assert why.endswith(".")
    assert lab.why_no_gpu(WHO) == ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("too large", "256 MiB, but the adapter allows 128 MiB, so nothing was allocated"),
        ("memory", "out of memory"),
        ("too slow", "would need about 3.0"),
        ("too much for one kernel", "it was not started"),
        ("shader", "does not compile: the driver reports no such function"),
        ("lost", "was lost (no such function)"),
        ("diverged", "choose a smaller learning rate"),
        ("another kind", "failed: no such function"),
    ],
)
def test_each_failure_is_explained_once(kind, words):
    failed = Refusal("gpu", "one_kernel", kind, "no such function", 256 * 2**20, 128 * 2**20, 3.0)
    said = lab.trouble(failed, WHO)
    assert words in said
    assert said.startswith("apple metal-3, one kernel for many steps")
    one = Found(WHO, JOB)
    one.take([failed])
    assert said in lab.problems(one)
    assert ">–<" in lab.ways_table(one, {}), "the other ways wait"
    one.take(
        [structs.replace(failed, way=way) for way in WAYS]
        + [Refusal("cpu", "simd", "no WebAssembly", "no such opcode")]
    )
    of_gpu, of_cpu = lab.problems(one)
    assert of_gpu.startswith("apple metal-3 "), "once for all its ways"
    missing = "WebAssembly SIMD on one core is not in your browser (no such opcode); JavaScript continues alone"
    assert of_cpu == f"{missing} until you update it."


def of(store):
    return contests(with_unique_names(browsers_in(store)), *CELL)


def test_the_class_sentence_counts_wins_and_names_exceptions(store):
    assert lab.class_sentence([], *CELL) == ""
    for reader, gpu_s in (("a", 0.001), ("b", 0.002), ("c", 0.003)):
        keep(store, replace(WHO, reader=reader), gpu_s, 0.004)
    assert lab.class_sentence(of(store), *CELL) == (
        "With batch size 32 and hidden layers of 16 the GPU wins on 3 of 3 machines, in 0.25 to 0.75 of the CPU's time."
    )
    keep(store, replace(WHO, reader="d", platform="Windows"), 0.008, 0.004)
    keep(store, replace(WHO, reader="e", platform="Android"), 0.004, 0.004)
    keep(store, replace(WHO, reader="f", platform="Linux", clock_s=0.02), 0.003, 0.004)
    keep(store, SWIFTSHADER, 0.02, 0.004)
    keep(store, replace(WHO, reader="g", adapter=None), 0, 0.004)
    said = lab.class_sentence(of(store), *CELL)
    for words in (
        "the GPU wins on 3 of 6 machines",
        "The CPU wins on 1, where the GPU takes 2 times as long: apple metal-3 · Windows, Safari 26 · 8 cores.",
        "On 1 both are equally fast: apple metal-3 · Android, Safari 26 · 8 cores.",
        "On 1 the winner is unclear: apple metal-3 · Linux, Safari 26 · 8 cores.",
        "1 machine offered software instead of a GPU",
        "For 1 machine, only one of the two devices was kept.",
    ):
        assert words in said


def test_each_machine_of_a_class_has_a_row_and_software_is_not_a_gpu(store):
    keep(store, replace(WHO, reader="a"), 0.001, 0.004)
    keep(store, SWIFTSHADER, 0.02, 0.004)
    keep(store, replace(WHO, reader="c", adapter=None), 0, 0.004)
    found = of(store)
    yours = found[1].machine.records[0].machine
    dots = dots_of(lab.class_chart(found, yours))
    assert len({dot["label"] for dot in dots}) == 3
    assert sum(dot["label"].startswith("yours: ") for dot in dots) >= 1
    assert sorted(dot["of"] for dot in dots) == ["CPU", "CPU", "CPU", "GPU", lab.SOFTWARE]
    assert "wins on 1 of 1 machine" in lab.class_sentence(found, *CELL)
    assert all(color in str(MeasureInBrowser._esm) for color in lab.DEVICE_COLORS.values()), "as in the drawing above"
