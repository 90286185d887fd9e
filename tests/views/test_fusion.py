"""What a compiler leaves as a reader sees it, from literal counts."""

from lib.backends.registry import Runtime
from lib.experiments.single_operations import OperationPoint, OperationTask
from lib.profiling.request import Operation
from lib.storage.records import Kind, Record
from lib.timing.measurement import Ended, Measurement
from lib.views import fusion as view
from tests.views.test_single_operations import rows

JAX = Runtime()


def counted(runtime, **counts):
    task = OperationTask(runtime, Operation("fusion", 32, depth=4))
    records = {
        name.replace("_", "/"): Record.of(Kind.OPERATION, {"work": 1.0}, Measurement((float(n),), 1, Ended.CAP))
        for name, n in counts.items()
    }
    return OperationPoint(task, records)


COUNTED = counted(
    JAX,
    step_before_product=5,
    step_before_elementwise=40,
    step_after_product=5,
    step_after_fusion=10,
    step_inside_fusion=9,
    sine_before_elementwise=4,
    sine_after_fusion=1,
)


def test_kernels_are_counted_in_words_and_bars():
    text = view.fusion_sentence([COUNTED], 4)
    assert text == (
        "On the processor, XLA makes 15 kernels of the step's 45 operations: 5 of them products, and the largest fusion"
        " has 9 operations. Of 4 sines it makes 1."
    )
    assert view.fusion_sentence([], 4) == ""
    totals = {row["label"]: row["text"] for row in rows(view.fusion_chart([COUNTED]), "text")}
    assert totals == {
        "the step, before": "45",
        "the step, after": "15",
        "the sines, before": "4",
        "the sines, after": "1",
    }
    assert view.fusion_chart([]).height_px == view.fusion_chart([COUNTED]).height_px
