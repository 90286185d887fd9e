import bz2
import gzip
import lzma
import re
import struct
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lib.model.data import mnist, prepared, reading
from lib.model.data.mnist import DataError
from lib.model.data.prepared import MIN_ROWS, DataRows, prepare

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


def file_of(folder, content, name="table.csv"):
    """Write bytes, a text, or a table as CSV."""
    text = content.to_csv(index=False) if isinstance(content, pd.DataFrame) else content
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


def npz_of(folder, **contents):
    np.savez(folder / "arrays.npz", allow_pickle=True, **contents)
    return folder / "arrays.npz"


def bring(*paths):
    return reading.read([(path.name, str(path)) for path in paths], "")


def inputs_of(made):
    data = prepared.load(made.digest)
    return np.concatenate([data.x_train, data.x_validation, data.x_test])


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_table_written_as_csv_reads_back_unchanged(tmp_path, data):
    n = data.draw(st.integers(1, 12))
    x = data.draw(arrays.arrays(np.float64, (n, data.draw(st.integers(1, 4))), elements=FINITE))
    labels = data.draw(st.lists(LETTERS | st.integers(-99, 99).map(str), min_size=n, max_size=n))
    frame = pd.DataFrame(x, columns=[f"column {place}" for place in range(x.shape[1])])
    frame.insert(data.draw(st.integers(0, x.shape[1])), "label", labels)
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False, sep=data.draw(st.sampled_from(",;\t")))
    with path.open("rb") as file:
        read = reading.read_tables([("table.csv", file)])
    np.testing.assert_array_equal(read.x, x)
    assert read.labels.tolist() == labels


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(MIN_ROWS, 80), st.integers(1, 5), st.integers(2, 6), st.booleans())
def test_prepared_rows_are_scaled_and_split_into_disjoint_parts(n, inputs, n_classes, divided):
    x = RNG.random((n, inputs)) * 50 - 20
    labels = np.resize(np.arange(n_classes), n) * 3
    n_test = max(1, n - MIN_ROWS) if divided and n > MIN_ROWS else 0
    made = prepare("rows", DataRows(x, labels, n_test))
    data = prepared.load(made.digest)
    together, classes = inputs_of(made), np.concatenate([data.y_train, data.y_validation, data.y_test])
    assert len(together) == n
    assert len(data.x_test) == (n_test or n // 5)
    assert len(data.x_validation) == max(1, (n - len(data.x_test)) // 5)
    assert made.about.classes == tuple(str(3 * one) for one in range(min(n_classes, n)))
    order = np.random.default_rng(0).permutation(n - n_test)
    source = np.concatenate([x[order], x[n - n_test :]])
    low, high = source[: len(data.x_train)].min(axis=0), source[: len(data.x_train)].max(axis=0)
    np.testing.assert_allclose(together, np.clip((source - low) / (high - low), 0, 1), atol=1e-6)
    np.testing.assert_array_equal(classes * 3, np.concatenate([labels[order], labels[n - n_test :]]))


def test_two_or_four_idx_files_are_read(tmp_path):
    train, pixels, labels = idx_files(tmp_path)
    made = bring(*reversed(train))
    assert (made.about.image, made.about.classes) == ((6, 6), ("0", "1", "2", "3"))
    assert sorted(map(tuple, inputs_of(made))) == sorted(map(tuple, pixels.reshape(20, 36) * np.float32(1 / 255)))
    test, pixels, labels = idx_files(tmp_path, 8, packed=False, prefix="t10k")
    data = prepared.load(bring(test[0], *train, test[1]).digest)
    np.testing.assert_array_equal(data.x_test, pixels.reshape(8, 36) * np.float32(1 / 255))
    np.testing.assert_array_equal(data.y_test, labels)


@pytest.mark.parametrize(
    ("name", "inputs", "classes", "rows"),
    [("digits", 64, 10, 1797), ("iris", 4, 3, 150), ("wine", 13, 3, 178), ("breast_cancer", 30, 2, 569)],
)
def test_scikit_learns_data_sets_are_read(name, inputs, classes, rows):
    made = reading.read([], name)
    about = made.about
    assert about.zeros == np.mean(prepared.load(made.digest).x_train == 0)
    assert about.name == f"scikit-learn’s {name.replace('_', ' ')}"
    assert (about.n_inputs, len(about.classes)) == (inputs, classes)
    assert about.n_train + about.n_validation + about.n_test == rows


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
        ("a,b,label\n1,2,x\n", "at least 10 training rows, got 1"),
        ("a,b,label\n" + "1,2,x\n2,3,x\n" * 9, "at least 2 classes, got one: x"),
        ("a,b,label\n" + "".join(f"{i},{i},c{i}\n" for i in range(101)), "at most 100 classes, got 101"),
        ("a,b,label\n" + "1,2,x\n2,red,y\n" * 9, "numbers in column “b”, got “red” in row 2"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "3,4,\n", "a label in every row, got none in row 19"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "3,,x\n", "finite number in row 19, column “b”, got no value"),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "3,inf,x\n", "row 19, column “b”, got an infinite value"),
        ("a,b,label\n" + "1,2,0.5\n2,3,1\n" * 9, "classes (whole numbers or texts), got 0.5 in row 1"),
        (
            "a,b,label\n" + "1,2,x\n1,2,y\n" * 9,
            "left out, because they are the same in (nearly) all training rows: “a”, “b”)",
        ),
        ("a,b,label\n" + "1,2,x\n2,3,y\n" * 9 + "1,2,3,4,5\n", "one value per column in each row"),
        ("label\n" + "x\ny\n" * 9, "got one column"),
        ("a,b,kind\n" + "1,2,x\n2,3,y\n" * 9 + "Total,5,\n", "got “Total” in row 19; correct it, or remove the column"),
        ("name,kind\n" + "".join(f"n{n},{'xy'[n % 2]}\n" for n in range(20)), "numbers besides the labels, got none"),
        ("<html><body>", "an HTML or XML page"),
        ('{"a": 1}', "JSON"),
    ],
    ids=lambda value: value[:40] if " " in value else "",
)
def test_an_unusable_csv_table_is_refused(tmp_path, text, says):
    assert says in refused(file_of(tmp_path, text))


def test_missing_files_and_folders_are_refused(tmp_path):
    assert "there is no file “nowhere.csv”" in refused(tmp_path / "nowhere.csv")
    (tmp_path / "folder").mkdir()
    assert "there is no file “folder”" in refused(tmp_path / "folder")


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"a": np.zeros((20, 2)), "b": np.zeros(9)}, "expected the arrays x and y, or x_train"),
        ({"x": np.zeros((20, 2)), "y": np.array([{}] * 20, object)}, "pickled objects are never loaded"),
        ({"x": np.zeros((20, 2)), "y": np.zeros(19, int)}, "19 labels for 20 rows"),
        ({"x": np.full((20, 2), np.nan), "y": np.arange(20) % 2}, "row 1, input 1, got no value"),
        ({"x": RNG.random((20, 2)), "y": np.eye(20)}, "one label per row in y"),
        ({"x": np.array(["a"] * 20), "y": np.arange(20)}, "expected numbers in x"),
        ({"x": RNG.random((20, 5000)), "y": np.arange(20) % 2}, "at most 4,096 inputs per row, got 5,000"),
    ],
    ids=["names", "pickle", "lengths", "nan", "one-hot", "texts", "wide"],
)
def test_an_unusable_npz_is_refused(tmp_path, contents, says):
    assert says in refused(npz_of(tmp_path, **contents))


def test_numbers_near_the_largest_float_are_scaled(tmp_path):
    made = bring(npz_of(tmp_path, x=RNG.random((20, 2)) * [1e308, -1e308], y=np.arange(20) % 2))
    assert np.isfinite(inputs_of(made)).all()


@pytest.mark.slow
def test_an_npz_that_unpacks_to_too_much_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "arrays.npz", x=np.zeros((80_000, 900)), y=np.zeros(80_000, int))
    assert "the arrays: expected at most 512 MiB" in refused(tmp_path / "arrays.npz")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["cat/0.png", "dog/0.png"], "in “files.zip”, got cat/0.png, dog/0.png; include one of these"),
        (["data.pkl", "version"], "a PyTorch file, which is never loaded"),
        (["xl/workbook.xml"], "an Excel workbook: save the sheet as CSV"),
        (["x.npy", "y.npy"], "expected numbers in x, of 2 to 4 axes"),
    ],
    ids=["pictures", "torch", "excel", "texts"],
)
def test_a_zip_without_arrays_is_refused(tmp_path, names, says):
    assert says in refused(zipped(tmp_path / "files.zip", **dict.fromkeys(names, "not an array")))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_reported_for_every_compression(tmp_path, method):
    made, path = npz_of(tmp_path, x_train=RNG.random((40, 9)), y_train=np.resize([0, 1], 40)), tmp_path / "packed.npz"
    with zipfile.ZipFile(made) as plain, zipfile.ZipFile(path, "w", method) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert bring(path).about.n_inputs == 9
    content = bytearray(path.read_bytes())
    content[200:1200] = RNG.bytes(1000)
    path.write_bytes(content)
    assert re.search("it is damaged or locked|it cannot be read or saved", refused(path))
    with pytest.raises(DataError, match="got an unreadable file"):
        mnist.read_npz(path, "MNIST_NPZ")


def test_mismatched_files_are_refused(tmp_path):
    (x, y), _, _ = idx_files(tmp_path)
    assert "two IDX files (images and labels), or two more for test" in refused(x)
    assert "expected images (3 axes) and labels (1 axis), got 3 and 3 axes" in refused(x, x)
    whole = gzip.decompress(x.read_bytes())
    for content, says in (
        (gzip.compress(whole[:-5]), "as many bytes as the header says, got 731"),
        (gzip.compress(b"\0\0\x07" + whole[3:]), "which begins with 0, 0, its type"),
        (gzip.compress(whole)[:-20], "it is damaged or locked (Compressed file ended"),
    ):
        x.write_bytes(content)
        assert says in refused(x, y)
    (x, y), _, _ = idx_files(tmp_path, 20, n_labels=19)
    assert "do not belong together: they hold 20 images and 19 labels" in refused(x, y)
    train, _, _ = idx_files(tmp_path)
    other, _, _ = idx_files(tmp_path, prefix="more")
    assert "“test” or “t10k” in their names" in refused(*train, *other)
    test, _, _ = idx_files(tmp_path, prefix="t10k", side=7)
    assert "rows of one size, got (6, 6) and (7, 7)" in refused(*train, *test)
    said = refused(*[file_of(tmp_path, written(), name) for name in ("one.csv", "two.csv")])
    assert "expected one table, or two with “train” and “test” in their names, got 2 (one.csv, two.csv)" in said


def noted(made, words):
    return any(words in note for note in made.about.notes)


def sorted_noise(**columns):
    n = 60
    found: dict = {name: np.resize(values, n) for name, values in columns.items()}
    return pd.DataFrame(found | {"noise": RNG.random(n), "kind": np.repeat(["a", "b"], n // 2)})


@pytest.mark.parametrize(
    "numbers",
    [
        {"Id": np.arange(1, 61)},
        {"Unnamed: 0": np.arange(60)},
        {"downwards with gaps": -np.cumsum(RNG.integers(1, 9, 60))},
        {"shuffled": RNG.permutation(60)},
        {"patient_id": RNG.permutation(900)[:60]},
    ],
    ids=lambda numbers: next(iter(numbers)),
)
def test_row_numbers_are_left_out_of_the_inputs(tmp_path, numbers):
    made = bring(file_of(tmp_path, sorted_noise(**numbers)))
    assert made.about.n_inputs == 1
    assert noted(made, "left out, because row numbers carry no information: “")


@pytest.mark.parametrize(
    "numbers",
    [{"grid": np.linspace(0, 1, 60)}, {"humidity": RNG.permutation(np.arange(60) * 7 // 5)}],
    ids=["a grid of fractions", "whole numbers with gaps"],
)
def test_measured_numbers_stay_inputs(tmp_path, numbers):
    assert bring(file_of(tmp_path, sorted_noise(**numbers))).about.n_inputs == 2


def test_row_numbers_in_an_array_are_left_out_and_alone_refused(tmp_path):
    x, y = np.c_[np.arange(40), RNG.random(40)], np.repeat([0, 1], 20)
    made = bring(npz_of(tmp_path, x=x, y=y))
    assert (made.about.n_inputs, noted(made, "input 1")) == (1, True)
    assert "besides the labels, got none (left out, because row numbers carry no information: input 1)" in refused(
        npz_of(tmp_path, x=x[:, :1], y=y)
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fixed", np.full(300, 7)),
        ("rounded", np.where(np.arange(300) % 3, 0.3, 0.1 + 0.2)),
        ("float32", np.float32(1e6) + np.arange(300) % 2 * 0.06),
        ("rare", np.arange(300) < 1),
    ],
)
def test_nearly_constant_inputs_are_left_out(tmp_path, name, values):
    made = bring(file_of(tmp_path, table(300, **{name: values})))
    assert made.about.n_inputs == 2
    assert f"left out, because they are the same in (nearly) all training rows: “{name}”" in made.about.notes


def test_small_values_and_rare_events_stay_inputs(tmp_path):
    made = bring(file_of(tmp_path, table(300, tiny=RNG.normal(0, 1e-9, 300), rare=np.arange(300) % 20 == 0)))
    assert made.about.n_inputs == 4


@pytest.mark.parametrize("twin", ["café ", "caf\u00e9\u00a0", "cafe\u0301"])
def test_labels_that_look_alike_are_one_class(twin):
    made = prepare("rows", DataRows(RNG.random((30, 2)), np.resize(["caf\u00e9", twin, "cafe"], 30)))
    assert made.about.classes == ("cafe", "caf\u00e9")
    assert noted(made, "labels that differ only in blanks or invisible characters count as one class (1 merged)")


@pytest.mark.parametrize(
    "names",
    [[f"pixel{n}" for n in range(64)], [f"{row}x{column}" for row in range(8) for column in range(8)], None],
    ids=["kaggle", "rows and columns", "no header"],
)
def test_a_table_of_pixels_is_read_as_images(tmp_path, names):
    pixels = RNG.integers(0, 256, (40, 64))
    pixels[:, 0] = 0
    frame = pd.DataFrame(pixels, columns=names)
    frame.insert(0, "label", np.arange(40) % 4)
    made = bring(file_of(tmp_path, frame.to_csv(index=False, header=names is not None)))
    assert (made.about.image, made.about.n_inputs, made.about.classes) == ((8, 8), 64, ("0", "1", "2", "3"))
    assert sorted(map(tuple, inputs_of(made))) == sorted(map(tuple, pixels.astype(np.uint8) * np.float32(1 / 255)))


def test_a_table_without_labels_is_refused(tmp_path):
    pixels = pd.DataFrame(RNG.integers(0, 3, (40, 64)), columns=[f"pixel{n}" for n in range(64)])
    for content in (pixels, "a,b\n" + "1.5,2.5\n2.5,3.5\n" * 9):
        assert re.search("expected a label column .*or use rows that have labels", refused(file_of(tmp_path, content)))


@pytest.mark.parametrize(
    ("columns", "guess"),
    [
        ({"id": range(30), "diagnosis": ["B", "M"], "radius": RNG.random(30)}, "diagnosis"),
        ({"x": RNG.random(30), "y": RNG.random(30), "color": ["red", "blue"]}, "color"),
        ({"age": np.arange(30) // 2, "weight": RNG.random(30), "Outcome": [0, 1]}, "Outcome"),
        ({"kind": [1, 2, 3], "ash": RNG.random(30), "hue": RNG.integers(200, 900, 30)}, "kind"),
        ({"name": [f"n{n}" for n in range(30)], "legs": [2, 4, 6], "wide": RNG.random(30), "type": ["a", "b"]}, "type"),
        ({"length": RNG.random(30), "quality": [3, 4, 5], "y": [0, 1]}, "y"),
        ({"smoker": [True, False], "weight": RNG.random(30), "region": ["NA", "EU", "AS"]}, "region"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_label_column_is_guessed_and_the_user_can_correct_it(tmp_path, columns, guess):
    made = bring(file_of(tmp_path, pd.DataFrame({name: np.resize(values, 30) for name, values in columns.items()})))
    ask = "; if another column holds them, enter its name under “Label column”"
    assert made.about.notes[0] == f"labels from column “{guess}”{ask}"


def test_a_named_label_column_is_used(tmp_path):
    path = str(file_of(tmp_path, table(size=np.resize([1, 2, 3], 30)).drop(columns="label")))
    made = reading.read([("table.csv", path)], "", " Size ")
    assert (made.about.classes, made.about.notes[0]) == (("1", "2", "3"), "labels from column “size”")
    with pytest.raises(
        DataError, match=r"expected “colour” among the columns of “table.csv”, got width, height, size;"
    ):
        reading.read([("table.csv", path)], "", "colour")


ROWS = [(round(5 + n / 7, 3), round(n % 5 + 0.25, 2), "abc"[n % 3]) for n in range(24)]


def written(separator=",", decimal=".", end="\n", header=("length", "width", "species"), rows=ROWS):
    lines = [separator.join(header)] if header else []
    lines += [separator.join(str(one).replace(".", decimal) for one in row) for row in rows]
    return end.join(lines) + end


GERMAN = written(";", ",", "\r\n", ("Länge", "Breite", "Größe"))
NUMBERED = [f"{n}," + line if n else '"",' + line for n, line in enumerate(written().splitlines())]
WITH_ROW_NAMES = [f'"{n}" ' + line if n else line for n, line in enumerate(written(" ").splitlines())]


def test_a_text_column_with_empty_cells_is_named(tmp_path):
    rows = [f"{'' if n % 4 == 0 else 'red' if n % 2 else 'blue'},{n / 7:.2f},{n % 2}" for n in range(40)]
    text = "\n".join(["colour,size,class", *rows])
    assert "expected numbers in column “colour”, got “red” in row 2" in refused(file_of(tmp_path, text))
    without_red = file_of(tmp_path, text.replace("red", "?"))
    assert "expected numbers in column “colour”, got “blue” in row" in refused(without_red)


TABLES = {
    "excel ansi": ("table.csv", GERMAN.encode("cp1252")),
    "excel utf-8": ("table.csv", GERMAN.encode("utf-8-sig")),
    "excel unicode text": ("table.txt", GERMAN.replace(";", "\t").encode("utf-16")),
    "spreadsheet titles": ("table.csv", f"Messung 3;;\r\n;;\r\nLabor, Raum 7;;\r\n{GERMAN};;\r\n".encode("cp1252")),
    "titles": ("table.csv", "Report\nof 2024, May\n\n" + written()),
    "excel macintosh": ("table.csv", written(end="\r")),
    "bars": ("table.txt", written("|")),
    "blanks after commas": ("table.csv", written(", ")),
    "blanks": ("table.dat", written("   ", header=None)),
    "uci": ("table.data", written(header=None)),
    "numpy": ("savetxt.csv", "# " + written(",")),
    "trailing commas": ("table.csv", written(end=",,\n")),
    "r write.csv": ("write.csv", "\n".join(NUMBERED)),
    "r write.table": ("write.table", "\n".join(WITH_ROW_NAMES)),
    "google sheets": ("sheets.csv", "\r\n".join(f'"{a}","{b}",{c}'.replace(".", ",") for a, b, c in ROWS)),
    "decimal commas and blanks": ("table.dat", written("  ", ",", header=None)),
    "two lines in a name": ("table.csv", '"length\n(cm)",width,species\n' + written(header=None)),
    "gzip": ("table.csv.gz", gzip.compress(written().encode())),
    "bzip2": ("table.csv.bz2", bz2.compress(written().encode())),
    "xz": ("table.csv.xz", lzma.compress(written().encode())),
}


@pytest.mark.parametrize(("name", "content"), TABLES.values(), ids=TABLES)
def test_tables_written_by_other_tools_are_read(tmp_path, name, content):
    made = bring(file_of(tmp_path, content, name))
    assert (made.about.n_inputs, made.about.classes) == (2, ("a", "b", "c"))
    x = np.array([row[:2] for row in ROWS])[np.random.default_rng(0).permutation(24)]
    low, high = x[: made.about.n_train].min(axis=0), x[: made.about.n_train].max(axis=0)
    np.testing.assert_allclose(inputs_of(made), np.clip((x - low) / (high - low), 0, 1), atol=1e-6)


def test_an_assumed_windows_1252_encoding_is_noted(tmp_path):
    made = bring(file_of(tmp_path, GERMAN.encode("cp1252")))
    assert noted(made, "labels from column “Größe”")
    assert noted(made, "it is not UTF-8, so Windows-1252 was assumed")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"PAR1", "Parquet: save the table as CSV"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "an Excel workbook (.xls): save the sheet as CSV"),
        (b'[{"a": 1}]', "JSON"),
        (b"\x93NUMPY", "save x and y together with numpy.savez"),
        (b"\x89PNG\r\n", "looks like a picture; expected a CSV table, a NumPy .npz or IDX files"),
        (b"\x01\x02\0\0abc", "binary file of another kind"),
    ],
    ids=["parquet", "xls", "json", "npy", "picture", "binary"],
)
def test_other_file_formats_are_named_with_a_remedy(tmp_path, head, says):
    assert says in refused(file_of(tmp_path, head + bytes(20), "data"))


@pytest.mark.parametrize(
    ("x", "y", "names"),
    [
        ("x_{}", "y_{}", ("train", "test")),
        ("{}_images", "{}_labels", ("train", "test")),
        ("X{}", "Y{}", ("train", "test")),
        ("{}_data", "{}_target", ("training", "testing")),
        ("{}_images", "{}_labels", ("train", "val", "test")),
    ],
    ids=["usual", "keras", "matlab", "training", "medmnist"],
)
def test_an_npz_with_common_array_names_keeps_its_own_test_rows(tmp_path, x, y, names):
    images = [RNG.integers(0, 256, (n, 4, 3), np.uint8) for n in (30, 12, 10)[: len(names)]]
    labels = [np.arange(len(one)) % 3 for one in images]
    arrays = {x.format(name): one for name, one in zip(names, images, strict=True)}
    arrays |= {y.format(name): one for name, one in zip(names, labels, strict=True)}
    made = bring(npz_of(tmp_path, **arrays))
    assert (made.about.image, len(inputs_of(made))) == ((4, 3), sum(map(len, images)))
    data = prepared.load(made.digest)
    np.testing.assert_array_equal(data.x_test, images[-1].reshape(-1, 12) * np.float32(1 / 255))
    np.testing.assert_array_equal(data.y_test, labels[-1])


def test_an_npz_without_test_rows_is_read(tmp_path):
    others = {"labels": np.arange(30)[:, None] % 2, "names": np.array(["a"] * 5)}
    made = bring(npz_of(tmp_path, features=RNG.random((30, 5)), **others))
    assert inputs_of(made).shape == (30, 5)


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


CLUTTER = {
    "__MACOSX/data/._table.csv": b"\0\5\x16\7",
    "data/.DS_Store": b"\0\0\0\1Bud1",
    "Thumbs.db": b"\xd0\xcf\x11\xe0",
    "data/desktop.ini": b"[.ShellClassInfo]",
    "README.txt": b"of these data",
}


def test_a_table_is_read_from_an_archive_with_clutter(tmp_path):
    made = bring(zipped(tmp_path / "data.zip", **CLUTTER, **{"data/table.csv": written()}))
    assert (made.about.name, made.about.n_inputs) == ("data.zip", 2)
    inner = zipped(tmp_path / "inner.zip", **{"iris.data": written(header=None), "iris.names": "names", "Index": "of"})
    assert bring(zipped(tmp_path / "outer.zip", **{"inner.zip": inner.read_bytes()})).about.n_inputs == 2
    said = refused(zipped(tmp_path / "two.zip", **{"one.csv": written(), "two.csv": written() * 2}))
    assert "got 2 (one.csv, two.csv); provide only the one to train on" in said
    assert "got Thumbs.db; include one of these" in refused(zipped(tmp_path / "none.zip", **{"Thumbs.db": b"x"}))


def test_idx_files_are_read_from_an_archive(tmp_path):
    train, _, _ = idx_files(tmp_path)
    test, pixels, _ = idx_files(tmp_path, 8, packed=False, prefix="t10k")
    members = {f"{folder}{one.name}": one.read_bytes() for one in (*train, *test) for folder in ("", "again/")}
    made = bring(zipped(tmp_path / "archive.zip", **CLUTTER, **members))
    found = prepared.load(made.digest).x_test
    np.testing.assert_array_equal(found, pixels.reshape(8, 36) * np.float32(1 / 255), "each file once")


def test_a_test_table_is_read_beside_the_training_table(tmp_path):
    made = bring(zipped(tmp_path / "two.zip", **{"train.csv": written(), "test.csv": written(rows=ROWS[:9])}))
    assert (made.about.n_test, "come from the source" in made.about.split) == (9, True)
    without = written(header=("length", "width"), rows=[row[:2] for row in ROWS])
    members = {"train.csv": written(), "test.csv": without, "sample.csv": "a,b\n1,2\n"}
    made = bring(zipped(tmp_path / "three.zip", **members))
    assert noted(made, "“test.csv” is left out: it has no column “species”")
    assert noted(made, "“sample.csv” is left out")


def test_unreadable_archives_are_refused(tmp_path):
    with tarfile.open(tmp_path / "data.tgz", "w:gz") as archive:
        archive.add(file_of(tmp_path, written()), "table.csv")
    assert "a tar archive: unpack it, or zip it" in refused(tmp_path / "data.tgz")
    path = zipped(tmp_path / "data.zip", **{"table.csv": written()})
    content = bytearray(path.read_bytes())
    content[60:70] = bytes(10)
    path.write_bytes(content)
    assert "it is damaged or locked (Error -3 while decompressing" in refused(path)
    path = zipped(tmp_path / "locked.zip", **{"table.csv": written()})
    content = bytearray(path.read_bytes())
    for place in (6, content.index(b"PK\1\2") + 8):
        content[place] |= 1
    path.write_bytes(content)
    assert "is encrypted, password required" in refused(path)


@pytest.mark.slow
def test_compressed_files_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_FILE_BYTES", 1 << 20)
    packed = file_of(tmp_path, gzip.compress(bytes(2 << 20)), "table.csv.gz")
    assert "table.csv.gz: expected at most 1 MiB, got more" in refused(packed)
    assert "data.zip: expected at most 1 MiB, got more" in refused(
        zipped(tmp_path / "data.zip", **{"table.csv": bytes(2 << 20)})
    )
