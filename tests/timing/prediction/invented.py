"""Invented devices and work whose exact times can be computed by hand."""

from lib.timing.prediction.workload import Device, OperationKind, SheetFigure, StepOperation, Way, Workload

# Each part of a step shows in its own decimal place.
FIGURES = {
    "host_call_s": 1.0e-2,
    "dispatch_s": 1.0e-3,
    "launch_s": 1.0e-4,
    "graph_launch_s": 1.0e-5,
    "wait_s": 2.0e-3,
    "transfer_latency_s": 3.0e-3,
    "transfer_bytes_per_s": 1e6,
    "memory_bytes_per_s": 1e9,
    "cache_bytes": 1e4,
    "cache_bytes_per_s": 1e10,
    "product_flops_per_s": 1e9,
    "filled_by": 200.0,
    "memory_bytes": 1e9,
}


def figure(value: float, low: float | None = None, high: float | None = None) -> SheetFigure:
    return SheetFigure(value, value if low is None else low, value if high is None else high)


def device(**other: float | SheetFigure) -> Device:
    figures = {name: one if isinstance(one, SheetFigure) else figure(one) for name, one in (FIGURES | other).items()}
    return Device("an invented card", True, figures)


def workload(way: Way = Way.STEP, networks: int = 1, resident: bool = True, parameter_bytes: int = 1_000) -> Workload:
    return Workload(
        "an invented layer",
        (
            StepOperation(OperationKind.PRODUCT, 2_000_000, 4_000, rows=10, outputs=100),
            *(StepOperation(OperationKind.ELEMENTWISE, n_bytes=2_000),) * 3,
            StepOperation(OperationKind.UPDATE, n_bytes=10_000),
        ),
        batch_size=10,
        input_bytes=500,
        parameter_bytes=parameter_bytes,
        activation_bytes=100,
        images=1_000,
        networks=networks,
        way=way,
        resident=resident,
    )
