"""The reader's own devices in a real browser: Chromium's software adapter, and JavaScript on the processor."""

import base64
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.browser import CHROMIUM, FLAGS
from lib.backends import reference
from lib.backends.base import initial_parameters
from lib.backends.webgpu import description
from lib.data.mnist import batch_starts
from lib.experiments import your_gpu
from lib.experiments.your_gpu import WAYS
from lib.pages.widgets import worker_scripts
from lib.spec import N_CLASSES, N_PIXELS, Network, Training
from tests.browser import DESK, MARKS, MISSING, assert_accessible, serving, tab

pytestmark = MARKS
# Without these, Chromium finds no adapter on a machine without a GPU.
WITH_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
NOTEBOOK = "notebooks/your_gpu.py"
SMALL = "?yours.width=16&yours.size=8"

N_IMAGES = 100
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 256, (N_IMAGES, N_PIXELS), np.uint8)
LABELS = RNG.integers(0, N_CLASSES, N_IMAGES).astype(np.uint8)
X, Y = PIXELS * np.float32(1 / 255), LABELS.astype(np.int32)


@pytest.fixture(scope="module")
def launched() -> Iterator:
    """Launches a browser with these flags; Playwright runs once in a thread."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail(MISSING, pytrace=False)
    with sync_playwright() as playwright:

        def launch(*flags: str):
            opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(flags))
            browsers.append(opened)
            return opened.new_context(viewport={"width": DESK["width"], "height": DESK["height"]})

        browsers: list = []
        yield launch
        for opened in browsers:
            opened.close()


@pytest.fixture(scope="module")
def browser(launched):
    """Of all other tests: it has no adapter."""
    return launched(*FLAGS)


@pytest.fixture(scope="module")
def with_webgpu(launched):
    """The same, with the software adapter."""
    return launched(*(flag for flag in FLAGS if flag != "--disable-gpu"), *WITH_WEBGPU)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("cache"), NOTEBOOK) as (address, _):
        yield address


# The workers by themselves, on an empty page.

START = """([scripts, name, kernels, before]) => {
    const source = new Blob([before, scripts.worker, scripts[name]], { type: "text/javascript" });
    const worker = new Worker(URL.createObjectURL(source));
    const waiting = [];
    worker.onmessage = ({ data }) => {
        if (data.lost !== undefined) return;
        waiting.shift()(data.failed ? { failed: data.failed } : data.found);
    };
    window.ask = (what, asked = {}) => new Promise((resolve) => {
        waiting.push(resolve);
        worker.postMessage({ id: 0, what, ...asked });
    });
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    window.images = ([pixels, labels]) => {
        const images = { pixels: bytes(pixels), labels: bytes(labels) };
        return window.ask("images", { ...images, sample: images });
    };
    window.train = async ({ parameters, steps, way, ...job }) => {
        job.parameters = new Float32Array(bytes(parameters).buffer);
        let found;
        for (const [what, asked] of [
            ["train", job], ["prepare", { task: "train", way, least_s: 0 }], ["block", { task: "train", steps }],
        ]) {
            found = await window.ask(what, asked);
            if (found?.failed) return found;
        }
        return {
            losses: [...found.losses].map(String),
            parameters: [...(await window.ask("parameters"))].map(String),
            evaluated: await window.ask("evaluate"),
        };
    };
    return window.ask("open", { kernels });
}"""


def base64_of(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


class Worker:
    """A worker of this executor, on a page of its own; `before` runs in it before anything else."""

    def __init__(self, page, device: str, kernels: dict, before: str = "") -> None:
        page.route("http://localhost/", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
        page.goto("http://localhost/")
        self.page = page
        self.opened = page.evaluate(START, [worker_scripts(), device, kernels, before])
        self.failed = page.evaluate("images => window.images(images)", [base64_of(PIXELS), base64_of(LABELS)])

    def train(self, training: Training, steps: int, way: str, fused: bool = True, **changed: object) -> dict:
        """The losses, the parameters and the evaluation after so many steps; or what failed."""
        slice_size = N_IMAGES // 2
        network = training.network
        flat = [part.ravel() for layer in initial_parameters(network, training.seed) for part in layer]
        job = {
            "program": your_gpu.as_json(description.step(network, training.batch_size, fused)),
            "evaluation": your_gpu.as_json(description.evaluation(network, slice_size)),
            "slice": slice_size,
            "rate": training.learning_rate,
            "starts": batch_starts(N_IMAGES, training.batch_size, training.seed, 0).tolist(),
            "parameters": base64_of(np.concatenate(flat)),
        }
        return self.page.evaluate("job => window.train(job)", job | {"steps": steps, "way": way} | changed)


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def worker(with_webgpu, request):
    page = with_webgpu.new_page()
    yield Worker(page, request.param, your_gpu.kernels())
    page.close()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hidden=st.lists(st.integers(1, 40), max_size=3),
    batch_size=st.integers(1, 40),
    fused=st.booleans(),
    way=st.sampled_from(list(WAYS)),
)
def test_steps_agree_with_float64(worker, hidden, batch_size, fused, way):
    training = Training(Network(tuple(hidden)), 0.1, batch_size, 1)
    steps = min(4, N_IMAGES // batch_size)
    found = worker.train(training, steps, way, fused)
    images = SimpleNamespace(x_train=X, y_train=Y)
    losses, parameters = reference.train(training, images, steps)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.float64(found["losses"]), losses, rtol=2e-5)
    flat = np.concatenate([part.ravel() for layer in parameters for part in layer])
    np.testing.assert_allclose(np.float64(found["parameters"]), flat, rtol=2e-4, atol=2e-6)
    loss, _ = reference.loss_and_gradients(parameters, X, Y)
    assert found["evaluated"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert found["evaluated"]["accuracy"] == pytest.approx(round(100 * found["evaluated"]["accuracy"]) / 100)


def test_a_loss_that_is_no_number_stays_one(worker):
    losses = worker.train(Training(Network((16,)), 0.1, 20, 1), 5, "one_submission", rate=1e38)["losses"]
    assert np.isfinite(float(losses[0]))
    assert losses[3:] == ["NaN", "NaN"]


def test_what_the_adapter_does_not_allow_is_refused_by_its_figure(with_webgpu):
    page = with_webgpu.new_page()
    before = """
        const limits = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "limits");
        Object.defineProperty(GPUAdapter.prototype, "limits", {
            get() { return { maxStorageBufferBindingSize: 2 ** 20, maxBufferSize: 2 ** 28 }; },
        });"""
    on = Worker(page, "gpu", your_gpu.kernels(), before)
    failed = on.train(Training(Network((512,)), 0.1, 32, 1), 1, "one_submission")["failed"]
    assert failed["kind"] == "too large"
    assert failed["allows"] == 2**20 < failed["needs"]
    assert "losses" in on.train(Training(Network((8,)), 0.1, 32, 1), 1, "one_submission"), "a smaller one is trained"
    page.close()


def test_one_module_that_does_not_compile_leaves_the_other_ways(with_webgpu):
    kernels = your_gpu.kernels()
    sources = kernels["sources"] | {
        "whole_steps": kernels["sources"]["whole_steps"].replace("fn end_step", "fn no_step")
    }
    page = with_webgpu.new_page()
    on = Worker(page, "gpu", kernels | {"sources": sources})
    small = Training(Network((8,)), 0.1, 32, 1)
    for _ in range(2):  # asked once more, it says the same
        failed = on.train(small, 1, "one_kernel")["failed"]
        assert failed["kind"] == "shader"
        assert "whole_steps.wgsl" in failed["message"]
    assert "losses" in on.train(small, 1, "one_submission_a_step")
    page.close()


def test_a_lost_device_says_so(with_webgpu):
    page = with_webgpu.new_page()
    before = """
        const request = GPUAdapter.prototype.requestDevice;
        GPUAdapter.prototype.requestDevice = async function (asked) {
            return (self.made = await request.call(this, asked));
        };
        self.addEventListener("message", ({ data }) => { if (data.what === "train") self.made.destroy(); });"""
    on = Worker(page, "gpu", your_gpu.kernels(), before)
    assert on.train(Training(Network((8,)), 0.1, 32, 1), 1, "one_submission")["failed"]["kind"] == "lost"
    page.close()


# The page.


def texts(page, selector: str) -> list[str]:
    """What the page shows at this selector, also in shadow roots."""
    return page.locator(selector).all_inner_texts()


def wait_done(page, timeout=120_000) -> None:
    page.locator(".webgpu .lab-state b", has_text="Done").wait_for(timeout=timeout)


def test_both_devices_are_measured_and_kept_and_a_software_adapter_is_called_one(with_webgpu, base):
    with tab(with_webgpu) as page:
        page.goto(base + SMALL)
        wait_done(page)
        assert "says nothing of a GPU's speed" in texts(page, ".lab-problem")[0]
        said = " ".join(texts(page, ".lab-sentence"))
        assert "(software, no GPU)" in said
        assert "your GPU" not in said
        assert "an epoch" in said
        table = page.locator("table.webgpu-ways").inner_text()
        for words in (*WAYS.values(), "JavaScript on one core"):
            assert words in table
        assert "–" not in table, "each way was measured"
        assert "images, as many as reached your browser" in " ".join(texts(page, ".lab-note"))
        page.get_by_role("button", name="Keep as a machine").click()
        page.locator(".lab-note", has_text="Kept on this notebook's server").wait_for(timeout=10_000)
        page.get_by_role("slider").nth(1).focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("() => location.search.includes('yours.width=8')", timeout=10_000)
        page.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=60_000)
        page.get_by_role("button", name="Stop", exact=True).first.click()
        page.locator(".webgpu .lab-state b", has_text="Stopped").wait_for(timeout=20_000)
        assert_accessible(page)
        page.goto(base.replace("your_gpu", "compare_machines"))
        page.locator("table.compare", has_text="google swiftshader").first.wait_for(timeout=60_000)


LOST_WHEN_ASKED_FOR_ONE_KERNEL = """
    const whole = Blob;
    window.Blob = function (parts, options) { return new whole([`
        if (self.GPUAdapter) {
            const request = GPUAdapter.prototype.requestDevice;
            GPUAdapter.prototype.requestDevice = async function (asked) {
                return (self.made = await request.call(this, asked));
            };
            self.addEventListener("message", ({ data }) => {
                if (data.task === "train" && data.way === "one_kernel") self.made?.destroy();
            });
        }`, ...parts], options); };"""


def test_after_a_lost_device_the_processor_goes_on_and_the_button_opens_it_again(with_webgpu, base):
    with tab(with_webgpu) as page:
        page.add_init_script(LOST_WHEN_ASKED_FOR_ONE_KERNEL)
        page.goto(base + SMALL)
        wait_done(page)
        lost = page.locator(".lab-problem", has_text="was lost")
        assert lost.count() == 1
        assert "wins over" in texts(page, ".lab-sentence")[0], "what was measured before stays"
        page.get_by_role("button", name="Measure again").click()
        page.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=60_000)
        assert lost.count() == 0
        page.get_by_role("button", name="Stop", exact=True).first.click()


HOLDS_THE_LOCK = "navigator.locks.request('your_gpu', () => new Promise((resolve) => { window.letGo = resolve; }))"
HIDDEN = """hidden => {
    Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_without_webgpu_the_page_says_why_and_measures_the_processor(page, base):
    page.add_init_script(HOLDS_THE_LOCK)
    page.goto(base + SMALL)
    words = page.locator(".webgpu .lab-state span")
    words.filter(has_text="another tab").wait_for(timeout=60_000)
    page.evaluate("() => letGo()")
    page.locator(".webgpu .lab-state b", has_text="Measuring").wait_for(timeout=60_000)
    page.evaluate(HIDDEN, True)
    words.filter(has_text="in the background").wait_for(timeout=20_000)
    page.evaluate(HIDDEN, False)
    wait_done(page)
    why = texts(page, ".lab-problem")
    assert len(why) == 1
    assert "no adapter" in why[0]
    assert "--enable-unsafe-webgpu" in why[0]
    assert "JavaScript on one core takes" in texts(page, ".lab-sentence")[0]
    assert "submission" not in page.locator("table.webgpu-ways").inner_text()
    assert_accessible(page)
