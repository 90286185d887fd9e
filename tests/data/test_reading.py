"""What a reader brings: every format reads back to the same rows, and what cannot be used is refused in a sentence."""

import gzip
import struct
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lib.data import mnist_arrays
from lib.data.mnist_arrays import DataError
from lib.data.own import prepared, reading, tables
from lib.data.own.rows import MIN_ROWS, Rows, classes_of, prepare

RNG = np.random.default_rng(5)
LETTERS = st.text(st.characters(codec="utf-8", categories=("L",)), min_size=1, max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MNIST_CACHE_DIR", str(tmp_path / "cache"))
    prepared.load.cache_clear()


def table(n=30, **columns):
    found = {"width": RNG.random(n), "height": RNG.integers(0, 9, n), "label": np.resize(["cat", "dog"], n)}
    return pd.DataFrame(found | columns)


def csv_of(path, text):
    (path / "table.csv").write_text(text, encoding="utf-8")
    return path / "table.csv"


def bring(*paths):
    return reading.read([(path.name, str(path)) for path in paths], "")


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files(path, n=20, n_labels=None, packed=True, prefix="train", side=6):
    pixels = RNG.integers(0, 256, (n, side, side), np.uint8)
    labels = np.resize(np.arange(4, dtype=np.uint8), n if n_labels is None else n_labels)
    made = []
    for name, array in (("images-idx3-ubyte", pixels), ("labels-idx1-ubyte", labels)):
        made.append(path / f"{prefix}-{name}{'.gz' if packed else ''}")
        made[-1].write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return made, pixels, labels


# Reading back what was written.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_table_written_as_csv_reads_back_to_the_same_rows_and_labels(tmp_path, data):
    n = data.draw(st.integers(1, 12))
    x = data.draw(arrays.arrays(np.float64, (n, data.draw(st.integers(1, 4))), elements=FINITE))
    labels = data.draw(st.lists(LETTERS | st.integers(-99, 99).map(str), min_size=n, max_size=n))
    frame = pd.DataFrame(x, columns=[f"column {place}" for place in range(x.shape[1])])
    frame.insert(data.draw(st.integers(0, x.shape[1])), "label", labels)
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False, sep=data.draw(st.sampled_from(",;\t")))
    read = tables.read_csv(path)
    np.testing.assert_array_equal(read.x, x)
    assert read.labels.tolist() == labels


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_table_written_as_npz_reads_back_to_the_same_rows_and_labels(tmp_path, data):
    n, kind = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int16]))
    elements = FINITE if kind == np.float64 else None
    x = data.draw(arrays.arrays(kind, (n, data.draw(st.integers(1, 4))), elements=elements))
    y = data.draw(arrays.arrays(data.draw(st.sampled_from([np.int32, np.uint8, np.int64])), n))
    np.savez(tmp_path / "arrays.npz", X=x, y=y)
    read = tables.read_npz(tmp_path / "arrays.npz")
    np.testing.assert_array_equal(read.x, x)
    np.testing.assert_array_equal(read.labels, y)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(MIN_ROWS, 80), st.integers(1, 5), st.integers(2, 6), st.booleans())
def test_prepared_rows_are_the_source_s_scaled_and_each_in_one_part(n, inputs, n_classes, divided):
    x = RNG.random((n, inputs)) * 50 - 20
    labels = np.resize(np.arange(n_classes), n) * 3
    n_test = max(1, n - MIN_ROWS) if divided and n > MIN_ROWS else 0
    made = prepare("rows", Rows(x, labels, n_test))
    data = prepared.load(made.digest)
    parts = [data.x_train, data.x_validation, data.x_test]
    together, classes = np.concatenate(parts), np.concatenate([data.y_train, data.y_validation, data.y_test])
    assert len(together) == n
    assert min(map(len, parts)) >= 1
    assert len(data.x_test) == (n_test or n // 5)
    assert len(data.x_validation) == max(1, (n - len(data.x_test)) // 5)
    assert together.min() >= 0
    assert together.max() <= 1
    assert made.about.classes == tuple(str(3 * one) for one in range(min(n_classes, n)))
    low, high = x.min(axis=0), x.max(axis=0)
    order = np.random.default_rng(0).permutation(n - n_test)
    source = np.concatenate([x[order], x[n - n_test :]])
    low, high = source[: len(data.x_train)].min(axis=0), source[: len(data.x_train)].max(axis=0)
    np.testing.assert_allclose(together, np.clip((source - low) / (high - low), 0, 1), atol=1e-6)
    np.testing.assert_array_equal(classes * 3, np.concatenate([labels[order], labels[n - n_test :]]))


def test_numbered_classes_are_ordered_as_numbers():
    classes, y = classes_of(np.array(["10", "9", "10", "2"], object))
    assert classes == ("2", "9", "10")
    assert y.tolist() == [2, 1, 2, 0]


def test_a_csv_table_is_ready_to_train_on(tmp_path):
    table().to_csv(tmp_path / "pets.csv", index=False)
    made = bring(tmp_path / "pets.csv")
    about = made.about
    assert (about.name, about.n_inputs, about.classes) == ("pets.csv", 2, ("cat", "dog"))
    assert (about.n_train, about.n_validation, about.n_test) == (20, 4, 6)
    assert about.notes == ("labels from column “label”",)
    assert "seed 0" in about.split


def test_npz_with_its_own_test_rows_keeps_them(tmp_path):
    x, y = RNG.integers(0, 256, (40, 6, 5), np.uint8), np.resize(np.arange(4), 40)
    np.savez_compressed(tmp_path / "set.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    made = bring(tmp_path / "set.npz")
    assert made.about.image == (6, 5)
    data = prepared.load(made.digest)
    np.testing.assert_array_equal(data.x_test, x[30:].reshape(10, 30) * np.float32(1 / 255))
    np.testing.assert_array_equal(data.y_test, y[30:])


def test_colour_images_of_an_npz_have_an_input_a_channel(tmp_path):
    np.savez(tmp_path / "set.npz", x=RNG.integers(0, 256, (20, 4, 4, 3), np.uint8), y=np.resize([0, 1], 20))
    assert bring(tmp_path / "set.npz").about.n_inputs == 48


@pytest.mark.parametrize("packed", [True, False])
def test_two_idx_files_and_four(tmp_path, packed):
    train, pixels, labels = idx_files(tmp_path, packed=packed)
    made = bring(*reversed(train))
    assert (made.about.image, made.about.classes) == ((6, 6), ("0", "1", "2", "3"))
    data = prepared.load(made.digest)
    together = np.concatenate([data.x_train, data.x_validation, data.x_test])
    assert sorted(map(tuple, together)) == sorted(map(tuple, pixels.reshape(20, 36) * np.float32(1 / 255)))
    test, pixels, labels = idx_files(tmp_path, 8, packed=packed, prefix="t10k")
    data = prepared.load(bring(test[0], *train, test[1]).digest)
    np.testing.assert_array_equal(data.x_test, pixels.reshape(8, 36) * np.float32(1 / 255))
    np.testing.assert_array_equal(data.y_test, labels)


@pytest.mark.parametrize(
    ("name", "inputs", "classes", "rows"),
    [("digits", 64, 10, 1797), ("iris", 4, 3, 150), ("wine", 13, 3, 178), ("breast_cancer", 30, 2, 569)],
)
def test_scikit_learn_s_own_sets(name, inputs, classes, rows):
    made = reading.read([], name)
    about = made.about
    assert about.zeros == np.mean(prepared.load(made.digest).x_train == 0)
    assert about.name == f"scikit-learn’s {name.replace('_', ' ')}"
    assert (about.n_inputs, len(about.classes)) == (inputs, classes)
    assert about.n_train + about.n_validation + about.n_test == rows


# Refused, each in a sentence.


def refused(*paths):
    with pytest.raises(DataError) as error:
        bring(*paths)
    said = str(error.value)
    assert 20 < len(said) < 330
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("a,b,label\n1,2,x\n", "at least 10 rows, got 1"),
        ("a,b,label\n" + "1,2,x\n2,3,x\n" * 9, "at least 2 classes, got one: x"),
        ("a,b,label\n" + "".join(f"{i},{i},c{i}\n" for i in range(101)), "at most 100 classes, got 101"),
        ("5.1,3.5,setosa\n" + "1,2,x\n2,3,y\n" * 9, "names of the columns in the first line, got the number 5.1"),
        ("a,b,label\n" + "1,2,x\n2,red,y\n" * 9, "numbers in column “b”, got “red” in row 2"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "3,4,\n", "a label in every row, got none in row 19"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "3,,x\n", "finite number in row 19, column “b”, got no value"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "NaN,1,x\n", "finite number in row 19, column “a”, got no value"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "3,inf,x\n", "row 19, column “b”, got an infinite value"),
        ("a,b,label\n" + "1,2,0.5\n2,3,1\n" * 9, "classes (whole numbers or texts), got 0.5 in row 1"),
        ("a,b,label\n" + "1,2,x\n1,2,y\n" * 9, "inputs that differ between rows, got only constant ones"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "1,2,3,4,5\n", "as many values in each row as columns"),
        ("label\n" + "x\ny\n" * 9, "got one column"),
        ("<html><body>", "a page of HTML or XML"),
        ('{"a": 1}', "JSON"),
    ],
    ids=lambda value: value[:40] if " " in value else "",
)
def test_a_csv_table_that_cannot_be_used(tmp_path, text, says):
    assert says in refused(csv_of(tmp_path, text))


def test_other_bytes_than_text_are_no_table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes("größe,label\n1,x\n".encode("latin-1"))
    assert "expected text in UTF-8" in refused(path)
    path.write_bytes(b"\x01\x02\0\0abc")
    assert "binary file of another kind" in refused(path)
    path.write_bytes(b"\x89PNG\r\n")
    assert "looks like a picture; expected a CSV table, an .npz of NumPy or IDX files" in refused(path)


def test_a_constant_column_among_others_teaches_nothing_and_is_said(tmp_path):
    table(fixed=np.full(30, 7)).to_csv(tmp_path / "table.csv", index=False)
    assert "1 of 3 inputs are constant and teach nothing" in bring(tmp_path / "table.csv").about.notes


def test_a_file_of_two_gigabytes_is_refused_by_its_size(tmp_path):
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(2 << 30)  # sparse: it takes no room
    assert "at most 256 MiB, got 2,048 MiB" in refused(path)


def test_what_is_not_there_and_what_is_no_file(tmp_path):
    assert "there is no file “nowhere.csv”" in refused(tmp_path / "nowhere.csv")
    (tmp_path / "folder").mkdir()
    assert "“folder” is not a file; expected a CSV table" in refused(tmp_path / "folder")


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"a": np.zeros((20, 2)), "b": np.zeros(20)}, "expected the arrays x and y, or x_train"),
        ({"x": np.zeros((20, 2)), "y": np.array([{}] * 20, object)}, "pickled objects, which are never loaded"),
        ({"x": np.zeros((20, 2)), "y": np.zeros(19, int)}, "19 labels for 20 rows"),
        ({"x": np.full((20, 2), np.nan), "y": np.arange(20) % 2}, "row 1, input 1, got no value"),
        ({"x": RNG.random((20, 2)), "y": RNG.random(20)}, "classes (whole numbers or texts)"),
        ({"x": RNG.random((20, 2)), "y": np.eye(20)}, "one label a row in y"),
        ({"x": np.array(["a"] * 20), "y": np.arange(20)}, "expected numbers in x"),
        ({"x": RNG.random((20, 5000)), "y": np.arange(20) % 2}, "1 to 4,096 inputs a row, got 5,000"),
        ({"x": RNG.random((20, 2)) * [1e308, -1e308], "y": np.arange(20) % 2}, ""),
    ],
    ids=["names", "pickle", "lengths", "nan", "floats", "one-hot", "texts", "wide", "large"],
)
def test_an_npz_that_cannot_be_used(tmp_path, contents, says):
    np.savez(tmp_path / "arrays.npz", allow_pickle=True, **contents)
    if says:
        assert says in refused(tmp_path / "arrays.npz")
    else:
        data = prepared.load(bring(tmp_path / "arrays.npz").digest)
        assert np.isfinite(data.x_train).all()


def test_a_cut_npz_is_damaged(tmp_path):
    np.savez(tmp_path / "arrays.npz", x=RNG.random((50, 9)), y=np.arange(50) % 3)
    content = (tmp_path / "arrays.npz").read_bytes()
    (tmp_path / "arrays.npz").write_bytes(content[: len(content) // 2])
    assert "damaged" in refused(tmp_path / "arrays.npz")


@pytest.mark.slow
def test_an_npz_that_unpacks_to_much_is_refused_before(tmp_path):
    np.savez_compressed(tmp_path / "arrays.npz", x=np.zeros((80_000, 900)), y=np.zeros(80_000, int))
    assert "at most 512 MiB of arrays" in refused(tmp_path / "arrays.npz")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["cat/0.png", "dog/0.png"],
            "expected the arrays x and y, or x_train, y_train, x_test and y_test, got cat/0.png",
        ),
        (["x.npy", "y.npy"], "expected numbers in x, of 2 to 4 axes"),
    ],
    ids=["pictures", "texts"],
)
def test_a_zip_of_anything_but_arrays(tmp_path, names, says):
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "not an array")
    assert says in refused(tmp_path / "files.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_called_damaged_however_it_is_packed(tmp_path, method):
    np.savez(tmp_path / "plain.npz", x_train=RNG.random((40, 9)), y_train=np.resize([0, 1], 40))
    path = tmp_path / "packed.npz"
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(path, "w", method) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert bring(path).about.n_inputs == 9
    content = bytearray(path.read_bytes())
    content[200:1200] = RNG.bytes(1000)
    path.write_bytes(content)
    assert "expected an .npz file of NumPy, got a damaged one" in refused(path)
    with pytest.raises(DataError, match="got an unreadable file"):
        mnist_arrays.read_npz(path, "MNIST_NPZ")


def test_idx_files_that_cannot_be_used(tmp_path):
    (x, y), _, _ = idx_files(tmp_path)
    assert "two IDX files (images and labels) or four" in refused(x)
    assert "two IDX files" in refused(x, y, x)
    assert "expected images (3 axes) and labels (1 axis), got 3 and 3 axes" in refused(x, x)
    whole = gzip.decompress(x.read_bytes())
    x.write_bytes(gzip.compress(whole[:-5]))
    assert "expected 736 bytes for 20 × 6 × 6" in refused(x, y)
    x.write_bytes(gzip.compress(b"\0\0\x0d" + whole[3:]))
    assert "which begins with 0, 0, 8" in refused(x, y)
    x.write_bytes(gzip.compress(whole)[:-20])
    assert "damaged" in refused(x, y)
    x.write_bytes(b"\x93\x94" + whole)
    assert "which begins with 0, 0, 8" in refused(x, y)
    (x, y), _, _ = idx_files(tmp_path, 20, n_labels=19)
    assert "do not belong together: they hold 20 images and 19 labels" in refused(x, y)


def test_files_that_do_not_belong_together(tmp_path):
    table().to_csv(tmp_path / "one.csv", index=False)
    table().to_csv(tmp_path / "two.csv", index=False)
    assert "expected one file, or the two or four IDX files" in refused(tmp_path / "one.csv", tmp_path / "two.csv")
    train, _, _ = idx_files(tmp_path)
    other, _, _ = idx_files(tmp_path, prefix="more")
    assert "“test” or “t10k” in their names" in refused(*train, *other)
    test, _, _ = idx_files(tmp_path, prefix="t10k", side=7)
    assert "images of one size, got (6, 6) and (7, 7)" in refused(*train, *test)
