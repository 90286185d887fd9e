"""Where MNIST comes from: sources in order, verification, failures. Downloads use a local server."""

import http.server
import io
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.model.data import mnist
from lib.model.data.mnist import batch_starts
from tests.conftest import ROOT
from tests.test_cache_folder import at_once

pytestmark = pytest.mark.images


@pytest.fixture
def no_sources(monkeypatch, tmp_path):
    monkeypatch.delenv("MNIST_NPZ", raising=False)
    monkeypatch.delenv("MNIST_OFFLINE", raising=False)
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(mnist, "_offline", lambda why: (small_arrays(), mnist.Facts("scikit-learn digits", "", why)))
    return tmp_path / "cache"


def small_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"x_train": (600, 28, 28), "y_train": (600,), "x_test": (100, 28, 28), "y_test": (100,)}
    return {name: rng.integers(0, 10, shape, np.uint8) for name, shape in shapes.items()}


@pytest.fixture
def small_mnist(monkeypatch):
    """Pretend that MNIST is small, so that serving and hashing take no time."""
    arrays = small_arrays()
    known = {name: (array.shape, mnist.sha256(array)) for name, array in arrays.items()}
    monkeypatch.setattr(mnist, "ARRAYS", known)
    return arrays


@pytest.fixture
def server(monkeypatch):
    """Yield the base URL, the files served by path, and the paths requested; a missing file answers 404."""
    files: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if (content := files.get(self.path)) is None:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            # With “cut” in the path, the connection drops half-way.
            self.wfile.write(content[: len(content) // 2] if "cut" in self.path else content)

        def log_message(self, format, *args):
            pass

    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{service.server_port}"
    monkeypatch.setattr(mnist, "KERAS_URL", f"{base}/mnist.npz")
    yield base, files, asked
    service.shutdown()
    service.server_close()


def npz_bytes(arrays) -> bytes:
    made = io.BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


@pytest.mark.slow
def test_a_download_is_verified_and_cached(no_sources, small_mnist, server):
    _, files, asked = server
    files["/mnist.npz"] = npz_bytes(small_mnist)
    raw, facts = mnist._find()
    np.testing.assert_array_equal(raw["x_test"], small_mnist["x_test"])
    assert facts.source == "MNIST"
    assert mnist._find()[1].source == "MNIST"
    assert asked == ["/mnist.npz"], "the second time it comes from the cache"
    left = [file.name for file in no_sources.iterdir() if file.suffix != ".lock"]
    assert left == ["mnist.npz"], "nothing partial is left"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["other", "cut", "page"])
def test_a_bad_download_is_never_used(no_sources, small_mnist, server, monkeypatch, fault):
    base, files, _ = server
    monkeypatch.setattr(mnist, "KERAS_URL", f"{base}/{fault}.npz")
    files["/cut.npz"] = npz_bytes(small_mnist)
    files["/other.npz"] = npz_bytes(small_mnist | {"y_test": small_mnist["y_test"][::-1]})
    files["/page.npz"] = b"<html>Please log in to this network</html>"
    _, facts = mnist._find()
    assert facts.source == "scikit-learn digits"
    assert "no copy could be downloaded" in facts.note
    assert not (no_sources / "mnist.npz").exists()
    assert not list(no_sources.glob("*.part*"))


@pytest.mark.slow
def test_a_failed_download_is_not_retried_at_once(no_sources, small_mnist, server):
    _, _, asked = server
    assert mnist._find()[1].source == mnist._find()[1].source == "scikit-learn digits"
    assert asked.count("/mnist.npz") == 1


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", 0.001, 0.9])
def test_a_damaged_cache_is_discarded_and_fetched_again(no_sources, small_mnist, server, damage):
    _, files, _ = server
    content = files["/mnist.npz"] = npz_bytes(small_mnist)
    no_sources.mkdir()
    np.savez_compressed(no_sources / "mnist.npz", **small_mnist)
    damaged = bytearray((no_sources / "mnist.npz").read_bytes())
    if damage == "cut":
        del damaged[1000:]
    else:
        at = int(damage * len(damaged)) + 100
        damaged[at : at + 64] = np.random.default_rng(0).bytes(64)
    (no_sources / "mnist.npz").write_bytes(damaged)
    assert mnist._find()[1].source == "MNIST"
    assert len((no_sources / "mnist.npz").read_bytes()) >= len(content) - 1000


@pytest.mark.slow
def test_two_processes_download_once(no_sources, small_mnist, server):
    base, files, asked = server
    files["/mnist.npz"] = npz_bytes(small_mnist)
    code = f"""
from lib.model.data import mnist
mnist.ARRAYS = {mnist.ARRAYS}
mnist.KERAS_URL = "{base}/mnist.npz"
print(mnist._find()[1].source)
"""
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["MNIST", "MNIST"]
    assert asked == ["/mnist.npz"]


def test_a_missing_network_is_reported(no_sources, monkeypatch):
    monkeypatch.setattr(mnist, "KERAS_URL", "http://127.0.0.1:9/mnist.npz")
    _, facts = mnist._find()
    assert facts.source == "scikit-learn digits"
    assert "no copy could be downloaded (<urlopen error" in facts.note


@pytest.mark.parametrize("content", ["missing", "pickle", "other arrays", "text", "folder"])
def test_a_bad_mnist_npz_is_reported(monkeypatch, tmp_path, content):
    path = tmp_path / "mine.npz"
    if content == "pickle":
        np.savez(path, x_train=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif content == "other arrays":
        np.savez(path, photos=np.zeros(3))
    elif content == "text":
        path.write_text("hello")
    elif content == "folder":
        path.mkdir()
    monkeypatch.setenv("MNIST_NPZ", str(path))
    with pytest.raises(mnist.DataError, match=r"MNIST_NPZ.*expected.*got.*correct MNIST_NPZ") as caught:
        mnist.load()
    assert str(path) in str(caught.value)


def test_concurrent_writes_leave_the_file_whole(tmp_path, caplog):
    path, arrays = tmp_path / "kept.npz", {"x": np.arange(100_000)}

    def write_and_read():
        mnist.save_npz(path, arrays)
        with np.load(path) as archive:
            return int(archive["x"].sum())

    assert set(at_once(write_and_read, 8, 10)) == {int(arrays["x"].sum())}
    assert not caplog.records
    assert [file.name for file in tmp_path.iterdir()] == ["kept.npz"]


def test_an_unwritable_cache_is_a_note_not_a_failure(monkeypatch, no_sources):
    monkeypatch.setenv("MNIST_CACHE_DIR", "/proc/nowhere/cache")  # not writable even for root
    _, facts = mnist._find()
    assert facts.source == "scikit-learn digits"
    assert "cannot be written" in facts.note
    assert "MNIST_CACHE_DIR" in facts.note


def test_a_full_disk_loses_only_the_cache(no_sources, tmp_path):
    code = f"""
import resource, signal
import numpy as np
from pathlib import Path
from lib.model.data import mnist
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
mnist.save_npz(Path("{tmp_path}/mnist.npz"), {{"x": np.zeros(10_000)}})
"""
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not list(tmp_path.glob("*mnist.npz*"))
    assert "not saved" in answer.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MNIST_NPZ"), reason="needs real MNIST: set MNIST_NPZ")
def test_real_mnist_is_split_as_in_the_articles():
    loaded = mnist.load()
    assert loaded.source == "MNIST"
    shapes = [x.shape for x in (loaded.x_train, loaded.x_validation, loaded.x_test)]
    assert shapes == [(48_000, 784), (12_000, 784), (10_000, 784)]
    assert loaded.x_train.ctypes.data % 64 == 0, "XLA uses it in place"
    assert loaded.x_train.max() == 1.0


def test_a_verified_file_is_recognised_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mnist.npz"
    monkeypatch.setenv("MNIST_NPZ", str(path))
    assert mnist.recognised() is None, "no such file"
    path.write_bytes(b"arrays")
    assert mnist.recognised() is None, "never verified"
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "verified.json").write_text("[half")
    assert mnist.recognised() is None, "a damaged note is no proof"
    mnist._remember_verified(path)
    assert mnist.recognised() == mnist.Facts("MNIST", mnist.MNIST_DIGEST)
    path.write_bytes(b"other arrays")
    assert mnist.recognised() is None, "changed since"
    mnist._remember_verified(path)
    assert mnist.recognised() is not None
    os.utime(path, (1, 1))
    assert mnist.recognised() is None
    mnist._remember_verified(path)
    other = tmp_path / "copy.npz"
    other.write_bytes(path.read_bytes())
    monkeypatch.setenv("MNIST_NPZ", str(other))
    assert mnist.recognised() is None, "another file"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 3), st.integers(0, 3))
def test_batches_are_disjoint_full_and_within_the_data(n_images, size, seed, epoch):
    if size > n_images:
        with pytest.raises(ValueError, match="batch size: expected 1 to"):
            batch_starts(n_images, size, seed, epoch)
        return
    starts = batch_starts(n_images, size, seed, epoch)
    assert len(starts) == n_images // size
    assert starts.min() >= 0
    assert starts.max() + size <= n_images
    assert (np.diff(np.sort(starts)) >= size).all()
    np.testing.assert_array_equal(starts, batch_starts(n_images, size, seed, epoch))


@pytest.mark.slow
def test_a_part_of_the_images_is_the_start_of_all(monkeypatch):
    monkeypatch.setenv("MNIST_OFFLINE", "1")
    whole = mnist.load()
    part, facts = mnist.load_part(700, 300)
    assert facts == whole.facts
    for kind, n in (("train", 700), ("validation", 300)):
        x, y = part[f"x_{kind}"], part[f"y_{kind}"]
        assert x.dtype == y.dtype == np.uint8
        np.testing.assert_array_equal(x * np.float32(1 / 255), getattr(whole, f"x_{kind}")[:n])
        np.testing.assert_array_equal(y, getattr(whole, f"y_{kind}")[:n])


def test_the_nonzero_share_is_counted_in_training_images(monkeypatch):
    monkeypatch.setenv("MNIST_OFFLINE", "1")
    mnist.share_not_zero.cache_clear()
    x = mnist.load().x_train
    try:
        assert mnist.share_not_zero() == pytest.approx(float((x > 0).mean()), abs=1e-12)
    finally:
        mnist.share_not_zero.cache_clear()
