"""The words for the reader's own devices: who won, what bounds the other, and why there is no GPU."""

from dataclasses import replace

import pytest

from lib.data.mnist import Facts
from lib.experiments.your_gpu import CPU_WAYS, USUAL_WAY, WAYS, Block, BrowserAdapter, Figure, Found, Hidden, Refusal
from lib.hardware.machine import ThisMachine
from lib.views import your_gpu as view
from tests.experiments.test_your_gpu import JOB, WHO, found, product

SOFTWARE = replace(WHO, adapter=BrowserAdapter("google", "swiftshader", fallback=True))
SERVER = ThisMachine("AMD EPYC", 8, 2**33, "AVX2", "")


def test_the_winner_comes_first_with_the_interval():
    said = view.sentence(found(0.001, 0.004))
    assert said.startswith(
        "Your GPU (apple metal-3) wins over WebAssembly SIMD on one core: 1.50 s an epoch against 6.00 s"
    )
    assert "0.25 (0.2" in said
    said = view.sentence(found(0.004, 0.001))
    assert said.startswith("WebAssembly SIMD on one core wins over your GPU (apple metal-3): 1.5")
    assert "4 (3.9" in said
    assert "not told apart" in view.sentence(found(0.004, 0.001, n=3))
    assert "equally fast" in view.sentence(found(0.1, 0.1, n=9))


def test_what_bounds_the_loser_is_said():
    one = found(0.004, 0.001)
    one.take([Figure("empty", "gpu", USUAL_WAY, 1, 10, 0.035, k) for k in range(5)])
    one.take(product("gpu", 256, 1e-4))
    said = view.sentence(one)
    assert "What bounds your GPU (apple metal-3) is launching: 7 operations with nothing to do take 3.5" in said


def test_a_software_adapter_is_never_called_a_gpu():
    one = replace(found(0.004, 0.001), who=SOFTWARE)
    one.take(product("gpu", 1, 0.001) + product("cpu", 1, 0.0001))
    text = " ".join([view.sentence(one), view.border_sentence(one), view.ways_table(one, {}), *view.problems(one)])
    assert "your GPU" not in text
    assert "Your GPU" not in text
    assert view.labels(SOFTWARE, one) == {
        "gpu": "google swiftshader (software, no GPU)",
        "cpu": "WebAssembly SIMD on one core",
        "software": True,
    }


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (replace(WHO, secure=False, offered=False, host="lab.example.org"), ["http from lab.example.org", "ssh -L"]),
        (
            replace(WHO, offered=False, browser="Firefox 128"),
            ["Firefox 128 does not know WebGPU", "Chrome and Edge from 113"],
        ),
        (WHO, ["found no adapter", "--enable-unsafe-webgpu"]),
        (replace(WHO, failed=[Refusal("gpu", "", "fault", "out of handles")]), ["out of handles", "reload the page"]),
    ],
)
def test_a_missing_gpu_has_a_reason_and_a_remedy(who, words):
    why = view.why_no_gpu(replace(who, adapter=None))
    assert all(word in why for word in words), why
    assert why.endswith(".")
    assert view.why_no_gpu(WHO) == ""


def test_a_browser_without_vectors_says_so_and_goes_on():
    one = found(0.001, 0.002)
    one.take([Refusal("cpu", "simd", "no WebAssembly", "no such opcode")])
    assert view.problems(one) == [
        "WebAssembly SIMD on one core is not in your browser (no such opcode); update it, JavaScript goes on alone."
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("too large", "256 MiB, and the adapter allows 128 MiB; nothing was allocated"),
        ("memory", "out of memory"),
        ("too slow", "would need about 3.0"),
        ("too much for one kernel", "it was not begun"),
        ("shader", "does not compile, says the driver: no such function"),
        ("lost", "was lost (no such function)"),
        ("diverged", "choose a smaller learning rate"),
        ("another kind", "failed: no such function"),
    ],
)
def test_each_trouble_says_what_to_do(kind, words):
    failed = Refusal("gpu", "one_kernel", kind, "no such function", 256 * 2**20, 128 * 2**20, 3.0)
    said = view.trouble(failed, WHO)
    assert words in said
    assert said.startswith("apple metal-3, one kernel for many steps")
    one = Found(WHO, JOB, 512)
    one.take([failed])
    assert said in view.problems(one)
    assert "–" in view.ways_table(one, {}), "the other ways wait"
    one.take([replace(failed, way=way) for way in WAYS] + [replace(failed, device="cpu", way="")])
    assert len(view.problems(one)) == 2, "once for all ways of the GPU"
    assert view.problems(one)[0].startswith("apple metal-3 ")


def test_the_table_has_a_row_for_each_way_the_processor_and_the_server():
    one = found(0.001, 0.002)
    for round in range(9):
        one.take([Block("gpu", way, 10, 0.01 * (k + 1), -1 - round) for k, way in enumerate(WAYS)])
    table = view.ways_table(one, {})
    assert table.count("<tr") == 1 + len(WAYS) + len(CPU_WAYS)
    assert table.count("chosen") == 2 + 2  # the column, its row's class and cell, and the class of the processor's row
    assert "the faster" in table
    assert all(words in table for words in CPU_WAYS.values())


def test_which_machine_is_which():
    told = view.which_is_which(replace(WHO, platform="Linux"), SERVER, "Linux")
    assert told.endswith("As far as a browser tells, both are one machine.")
    for other in (replace(WHO, platform="macOS"), replace(WHO, platform="Linux", host="lab"), replace(WHO, cores=4)):
        assert view.which_is_which(other, SERVER, "Linux").endswith("is another one than the server.")


def test_how_many_images_and_which():
    said = view.images_line(4096, 1.0, Facts("MNIST", ""))
    assert "4,096 images, as many as reached your browser in 1.0" in said
    assert "not MNIST" in view.images_line(1, 1.0, Facts("scikit-learn digits", "", "This is not MNIST."))


def test_before_anything_is_measured_nothing_is_said():
    empty = Found(WHO, JOB, 512)
    assert (
        view.sentence(empty)
        == view.border_sentence(empty)
        == view.accuracy_line(empty)
        == view.hidden_line(empty)
        == ""
    )


def test_blocks_in_the_background_are_counted():
    one = Found(WHO, JOB, 512)
    one.take([Hidden("cpu"), Hidden("gpu")])
    assert view.hidden_line(one).startswith("2 blocks thrown away")
