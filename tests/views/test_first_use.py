"""A first use as a reader sees it, from literal points."""

import pytest

from lib.backends.registry import Runtime
from lib.experiments.single_operations import OperationPoint, OperationTask
from lib.profiling.request import Operation
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.views import first_use as view
from tests.views.test_single_operations import rows

NUMPY = Runtime("numpy")
JAX = Runtime()


def first(runtime, **stages):
    task = OperationTask(runtime, Operation("first use", 1024, depth=4))

    def record(name, seconds):
        blocks = Measurement(tuple(seconds * (1 + 0.01 * k) for k in range(3)), 1, Ended.CAP)
        return Record.of(Kind.OPERATION, task.subject | {"name": name, "work": 1.0}, blocks)

    return OperationPoint(
        task, {name.replace("_", " "): record(name.replace("_", " "), s) for name, s in stages.items()}
    )


FIRST = [
    first(NUMPY, process=0.05, **{"import": 0.1}, context=1e-4, first=3e-5, second=5e-6, steady=5e-6),
    first(
        JAX,
        process=0.05,
        **{"import": 0.7},
        context=0.01,
        first=0.1,
        second=5e-5,
        steady=5e-5,
        compiled_first=0.06,
        compiled_second=6e-5,
        compiled_steady=4e-5,
    ),
]


def test_a_first_use_is_told_stage_by_stage():
    text = view.first_sentence(FIRST)
    assert text.startswith(
        "NumPy has its first result after 152\u202fms and JAX has its first result after 869\u202fms"
    )
    assert "81% of the latter is “import”." in text
    assert (
        "Compared with a steady call, the first one takes 6 times as long with NumPy and 2,000 times as long with JAX."
        in text
    )
    assert "JAX's compiled program has earned its compilation after 6,000 calls." in text
    assert "NumPy's" not in text
    assert view.first_sentence([]) == ""
    assert "after 152\u202fms: 67% of that is “import”." in view.first_sentence(FIRST[:1])


@pytest.mark.parametrize("steady_s", [5e-5, 4e-5])
def test_a_compiled_program_that_is_not_quicker_has_earned_nothing(steady_s):
    jax = first(JAX, first=0.1, steady=4e-5, compiled_first=0.06, compiled_steady=steady_s)
    assert "JAX's compiled program is no quicker at this size." in view.first_sentence([jax])


def test_the_stages_are_stacked_and_those_that_a_library_lacks_left_out():
    chart = view.first_chart(FIRST, ["NumPy", "JAX", "TensorFlow"])
    stacked = rows(chart, "stage")
    assert {row["stage"] for row in stacked if row["label"] == "NumPy"} == {stage.label for stage in view.STAGES[:-1]}
    assert len([row for row in stacked if row["label"] == "JAX"]) == len(view.STAGES)
    assert view.first_chart([], ["NumPy", "JAX", "TensorFlow"]).height_px == chart.height_px
    assert "5\u202fμs to 15\u202fμs" in view.first_table(FIRST)
