"""What a page asks of its reader's browser, and what it makes of the answers; the browser is played here."""

import numpy as np
import pytest

from lib.data.mnist import Facts
from lib.experiments.your_gpu import Job
from lib.pages import your_gpu
from lib.pages.your_gpu import InBrowser
from lib.spec import Network, Training
from lib.storage.records import Kind
from lib.storage.store import Store

JOB, OTHER = (Job(Training(Network((width,)), 0.1, 32, 1)) for width in (16, 8))
OPENED = {
    "is": "opened",
    "browser": "Safari 26",
    "platform": "macOS",
    "cores": 8,
    "secure": True,
    "offered": True,
    "host": "localhost",
    "clock_s": 1e-4,
    "adapter": {"vendor": "apple", "architecture": "metal-3"},
    "failed": [],
}


class Played:
    """A page, and its reader's browser, which says what a test has it say."""

    def __init__(self, store: Store, monkeypatch) -> None:
        images = {f"x_{kind}": np.zeros((1024, 784), np.uint8) for kind in ("train", "validation")}
        images |= {f"y_{kind}": np.zeros(1024, np.uint8) for kind in ("train", "validation")}
        monkeypatch.setattr(your_gpu, "_images", lambda: (images, Facts("MNIST", "")))
        self.page, self.sent = InBrowser(store), []
        monkeypatch.setattr(self.page.widget, "send", lambda content, buffers=(): self.sent.append((content, buffers)))

    def says(self, **content: object) -> None:
        self.page.widget._handle_custom_msg(content, [])

    def asked(self) -> list[str]:
        return [content["do"] for content, _ in self.sent]

    def open(self, **else_said: object) -> None:
        self.says(**OPENED, **else_said)
        self.says(**{"is": "more"})
        self.says(**{"is": "enough", "took_s": 1.0})

    def measures(self, pairs: int = 9, job: int = 1) -> None:
        rows = [
            {"is": "block", "device": device, "way": way, "steps": 10, "block_s": seconds, "pair": pair}
            for pair in range(pairs)
            for device, way, seconds in (("gpu", "one_submission", 0.01), ("cpu", "simd", 0.04))
        ]
        self.says(**{"is": "rows", "job": job, "rows": rows})


@pytest.fixture
def played(tmp_path, monkeypatch) -> Played:
    return Played(Store(tmp_path / "results.sqlite"), monkeypatch)


def test_images_come_first_and_then_the_job_with_its_buffers(played):
    played.page.ask(JOB, 0)
    assert played.asked() == [], "nobody has opened the page yet"
    played.open()
    assert played.asked() == ["images", "images", "measure"]
    (sample, (x, y)), (part, _), (job, (parameters, starts)) = played.sent
    assert (sample["sample"], len(x), len(y)) == (True, 1024 * 784, 1024)
    assert part == {"do": "images", "last": False}
    assert (job["id"], job["sizes"], len(parameters)) == (1, True, 4 * JOB.training.network.n_parameters)
    assert len(starts) % 4 == 0
    played.measures()
    assert "wins over" in played.page.widget.told["sentence"]


def test_a_moved_slider_begins_a_job_and_another_button_does_not(played):
    played.page.ask(JOB, 0)
    played.open()
    played.page.ask(JOB, 0)  # “Stop” was pressed
    assert played.asked().count("measure") == 1
    played.page.ask(OTHER, 0)
    assert played.asked().count("measure") == 2
    played.measures(job=1)
    assert "wins over" not in played.page.widget.told["sentence"], "of the job before"
    played.measures(job=2)
    assert "wins over" in played.page.widget.told["sentence"]
    played.page.ask(OTHER, 1)
    assert played.asked()[-1] == "reopen"
    played.open()
    assert played.asked()[-1] == "measure"


def test_what_is_not_sound_is_told_and_changes_nothing(played):
    played.page.ask(JOB, 0)
    played.open()
    played.measures()
    before = played.page.widget.told["sentence"]
    played.says(**{"is": "rows", "job": 1, "rows": [{"is": "block", "device": "gpu"}]})
    assert played.page.widget.told["sentence"] == before
    assert "reload the page" in played.page.widget.told["line"]
    for strange in ({"is": "gossip"}, {}, {"is": "at", "job": 1, "stage": "the moon"}):
        played.says(**strange)
    assert played.page.widget.told["sentence"] == before


def test_what_is_measured_is_kept_once(played, tmp_path):
    store = Store(tmp_path / "results.sqlite")
    played.page.ask(JOB, 0)
    played.open()
    played.page.keep()
    assert "nothing to keep yet" in played.page.widget.told["below"]
    played.measures()
    for _ in range(3):
        played.page.keep()
    assert len(store.records(Kind.RACE)) == 2
    assert "Kept on this notebook" in played.page.widget.told["below"]
    played.measures(pairs=4)
    played.page.keep()
    blocks = [len(record.block_s) for record in store.records(Kind.RACE)]
    assert sorted(blocks) == [4, 4, 9, 9], "no block twice: it would count as two repetitions"
    for number in range(1, 5):
        played.open(reader=str(number))
        played.measures(job=1 + number)
        played.page.keep()
    assert "Expected at most 3 machines of yours" in played.page.widget.told["below"]
    for record in store.records(Kind.RACE):
        assert set(record.subject) >= {"browser", "clock_s", "off_s"}
        assert "Safari 26" in record.command


def test_a_wrong_control_stops_the_browser_and_says_why(played):
    played.page.ask(JOB, 0)
    played.open()
    played.page.refuse("Batch size: expected 1 to 48,000, got 0; choose a positive one.")
    assert played.asked()[-1] == "stop"
    assert "choose a positive one" in played.page.widget.told["line"]
    played.page.ask(JOB, 0)
    assert played.asked()[-1] == "measure"
