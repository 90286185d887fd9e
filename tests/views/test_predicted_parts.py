"""What a step consists of, as a table: all of its parts, and none where none is known."""

from lib.prediction.predict import Prediction, predict
from lib.prediction.workload import Way
from lib.views.predicted_parts import parts_on_demand
from tests.prediction.invented import device, workload


def test_each_part_has_its_seconds_and_its_share():
    both = {"slow": Prediction(2e-3, 1e-3, 3e-3, {"calls": 5e-4, "products": 1.5e-3})}
    both["quick"] = Prediction(1e-3, 1e-3, 1e-3, {"products": 1e-3, "waiting": 0.0})
    text = parts_on_demand({"a <network>": both})
    assert text.startswith('<details class="lab-details">')
    assert "a &lt;network&gt;" in text
    head, heading, slow, quick = text.split("<tr>")[1:]
    assert [head.index(name) for name in ("calls", "products", "waiting")] == sorted(
        head.index(name) for name in ("calls", "products", "waiting")
    )
    assert slow.count("<td>") == quick.count("<td>") == 1 + 3
    assert "500\u202fμs (25%)" in slow
    assert "1.5\u202fms (75%)" in slow
    assert quick.count("<td>–</td>") == 2, "what costs nothing and what it does not have"
    assert "colspan" in heading


def test_a_step_whose_parts_are_not_known_is_left_out():
    unknown = Prediction(1.0, 1.0, 1.0, {})
    assert parts_on_demand({"": {"unknown": unknown}}) == ""
    assert "unknown" not in parts_on_demand({"": {"unknown": unknown, "known": predict(workload(), device())}})


def test_parts_of_a_device_are_named_in_words():
    text = parts_on_demand({"": {"card": predict(workload(Way.OPERATIONS), device())}})
    assert "dispatching operations" in text
    assert "products" in text
