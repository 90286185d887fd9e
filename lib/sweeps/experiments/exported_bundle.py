"""A script on data that a reader brought, and beside it the data, as one ZIP file."""

import io
import zipfile

import numpy as np

from lib.model.data import prepared
from lib.model.data.mnist import Facts
from lib.sweeps.experiments.exported_script import DATA_FILE, exported_script, file_name
from lib.sweeps.experiments.results import Line

MAX_BYTES = 64 << 20  # of the rows: all of it goes through the page at once


def exported_bundle(experiment: str, line: Line, data: Facts, library: str) -> bytes:
    """A ZIP of the script and the training and validation rows.

    Args:
        experiment: As of `exported_script`.
        line: A training on data that a reader brought, which is finished.
        data: What it was trained on.
        library: A key of `LIBRARIES`.

    Raises:
        ValueError: It cannot be written, or the data are too large or gone; the text is a sentence for the person.
    """
    rows = prepared.rows_to_train_on(line.item.training.data.digest)
    n_bytes = sum(array.nbytes for array in rows.values())
    if n_bytes > MAX_BYTES:
        raise ValueError(
            f"expected at most {MAX_BYTES >> 20} MiB of rows in a file to take away, got {n_bytes >> 20}; bring a part"
            " of the data"
        )
    script, kept = exported_script(experiment, line, data, library, rows), io.BytesIO()
    np.savez_compressed(kept, **rows)  # pyright: ignore[reportArgumentType]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(file_name(line, library), script)
        archive.writestr(DATA_FILE, kept.getvalue(), zipfile.ZIP_STORED)  # compressed already
    return made.getvalue()
