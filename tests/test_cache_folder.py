"""The folder for results and downloads, and atomic replacement of files in it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lib.cache_folder import CacheUnwritable, cache_dir, replaced


def at_once(ask, threads=20, times=200) -> list:
    """Return all answers of many threads that call `ask` at the same time, again and again."""
    barrier = threading.Barrier(threads)

    def each(_):
        barrier.wait()
        return [ask() for _ in range(times)]

    with ThreadPoolExecutor(threads) as pool:
        return [answer for answers in pool.map(each, range(threads)) for answer in answers]


def test_threads_can_create_the_cache_folder_concurrently(monkeypatch, tmp_path):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "made" / "here"))
    assert set(at_once(cache_dir)) == {tmp_path / "made" / "here"}
    assert list((tmp_path / "made" / "here").iterdir()) == []


def test_an_unwritable_folder_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheUnwritable, match=r"file/cache cannot be written .*set MNIST_CACHE_DIR"):
        cache_dir()


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted() -> None:
        with replaced(path) as temporary:
            temporary.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    with replaced(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old", "until the block ends"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
