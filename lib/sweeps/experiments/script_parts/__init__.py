"""What a script says of its training; the export writes the training's own values in this place.

Beside this, the pieces of which `lib.sweeps.experiments.exported_script` puts a script together: real code, checked as
all other.
"""

N_INPUTS, N_CLASSES, N_TRAIN = 784, 10, 48_000  # inputs of a row, classes, rows to train on; the rest validate
DATA_FILE = ""  # of data that came with it, beside it
HIDDEN: tuple[int, ...] = (128,)
LEARNING_RATE = 0.1
BATCH_SIZE = 32
EPOCHS = 3
SEED = 0
DATA_SHA256: dict[str, str] = {}  # of the arrays' bytes, or its beginning
EXPECTED: list[tuple[float, float]] = []  # validation loss and accuracy, by epoch
DIVERGED_AT: int | None = None  # first step, from 1, whose loss was no number
TOLERANCE = (0.01, 0.005, 0)  # of the expected loss; of accuracy; in steps
