"""What the calls of a trace do, in words, and what a trace cannot show."""

import re
from functools import lru_cache

from lib.timing.profiling.traces.explanation import no_share
from lib.timing.profiling.traces.form import Trace
from lib.timing.profiling.traces.kinds import COMMUNICATION, DISPATCH, KERNEL, LAUNCH, PROFILER, PYTHON, TRANSFER, WAIT

# How a compiled program is called: by JAX, by TensorFlow through XLA, by torch.compile.
_COMPILED = re.compile(r"^PjitFunction|^_?Xla(Launch|Run|CompileOnDemand)|Torch-Compiled Region|CompiledFxGraph")

# What calls do, for the reader: the first that is found in the name. Each ends a sentence that begins with the name.
_MEANS = tuple(
    (re.compile(words), means)
    for words, means in (
        (
            r"^encode commands",
            "writes operations down for the device, some calls of the library for each; the device has none of it yet",
        ),
        (
            r"^queue\.submit",
            "hands what was encoded to the device's queue, and waits for none of it; some queues take the next"
            " submission only when the last one is done",
        ),
        (r"^queue\.write_buffer", "puts bytes of the host into the device's queue"),
        (r"^queue\.read_buffer", "waits for the device, and brings a result from there to the host"),
        (r"^batch of images", "copies the batch that is due out of all images, within the device's memory"),
        (r"steps in one kernel", "is so many steps that the device makes without asking the host"),
        (r"layer.*: (product|gradient by)", "is a matrix product, with what follows it"),
        (
            r"CtxSetCurrent",
            "tells the driver which card this thread means; libraries repeat it before nearly every call",
        ),
        (r"EventRecord", "puts a mark into a card's queue, by which somebody later sees how far it has come"),
        (r"GraphLaunch", "starts a whole recorded graph of kernels by one call"),
        (
            r"Launch(Cooperative)?Kernel",
            "puts one kernel into the card's queue; the call costs the same however small the kernel",
        ),
        (
            r"emcpyDtoH|copy_to_host|device to host",
            "brings a result from the device to the host, often just a loss that somebody prints",
        ),
        (r"emcpyHtoD|DevicePut|host to device|shard_args", "brings input from the host to the device"),
        (r"[Mm]emcpy|CopyToDevice", "copies bytes"),
        (r"[Mm]emset", "fills memory with one value"),
        (
            r"^(cuda|cuMem)(Malloc|Alloc|Free)",
            "asks the driver for memory or gives it back; frameworks keep a pool to avoid it",
        ),
        (
            r"^PjitFunction",
            "is JAX's call of a compiled function: looks up its program by the arguments' shapes, and starts it",
        ),
        (r"ExecuteHelper|LoadedExecutable", "hands a compiled program its buffers and starts it"),
        (r"^ThunkExecutor", "walks through a compiled program on a processor and starts one operation after another"),
        (r"^ParseArguments|^Handle inputs", "looks at the arguments of a call, in Python's types"),
        (
            r"^while|^conditional|^call",
            "is a loop or branch of a compiled program; what runs inside has rows of its own",
        ),
        (r"^\[iter=", "is one turn of such a loop; what runs inside has rows of its own"),
        (r"CollectGarbage", "lets go of Python objects that a device no longer needs"),
        (r"dot_general|MatMul|aten::(add)?b?mm|gemm|cublas", "is a matrix product: the arithmetic that a step is for"),
        (
            r"[Ss]oft[Mm]ax|[Nn]ll_?[Ll]oss|CrossEntropy|cross_entropy|Xent",
            "is part of the loss: a softmax, or what follows it",
        ),
        (
            r"[Rr]elu|threshold_backward|clamp_min|maximum",
            "is the ReLU or its gradient, one comparison for each number",
        ),
        (
            r"multiply_subtract_fusion|AssignSub|Optimizer\.step|_foreach_",
            "subtracts what it has multiplied: in plain SGD, the update",
        ),
        (r"zero_grad", "lets go of the last step's gradients"),
        (r"AccumulateGrad", "adds a gradient to the parameter that it belongs to"),
        (r"^autograd::|Backward0$", "is PyTorch's walk back through the step, an operation at a time"),
        (r"fusion", "is several operations that XLA has put into one"),
        (r"reduce|sum|mean", "adds numbers up"),
        (r"^copy|aten::copy_|transpose", "moves numbers within the device's memory"),
        (
            r"^aten::(t|view|as_strided|transpose|expand|detach|slice|empty\w*|\w*like)$",
            "makes or renames a tensor without computing anything",
        ),
        (r"^tf\.function-graph_building", "traces a function into a graph, which should happen once"),
        (r"^Eager|^TFE_|KernelAndDeviceFunc", "is TensorFlow's dispatch of one operation from Python"),
        (
            r"^Executor|^FunctionRun|InstantiatedCapturedFunction",
            "is TensorFlow's executor, which finds the next operation that is ready",
        ),
        (r"^MakeIterator|Dataset", "builds the input pipeline, once for each epoch"),
        (r"convert_to_tensor|^tf\.constant", "makes a tensor of what Python holds"),
    )
)
_BY_KIND = {
    KERNEL: "is arithmetic on the device",
    TRANSFER: "moves bytes",
    LAUNCH: "is the driver's work around a kernel, and no arithmetic",
    DISPATCH: "is the library finding out what to run, and no arithmetic",
    PYTHON: "is the Python program",
    WAIT: "waits for something else",
    COMMUNICATION: "exchanges numbers with other devices or machines",
    PROFILER: "is the profiler's own",
}


@lru_cache(maxsize=4096)
def meaning(name: str, kind: str) -> str:
    """What a call does, to follow its name; where the name says nothing, what its kind does."""
    found = next((means for words, means in _MEANS if words.search(name)), None)
    return found or _BY_KIND.get(kind, "has a name that says nothing here")


def hidden(trace: Trace) -> list[str]:
    """What this trace cannot show, a sentence each."""
    counts = {call.name: call.count for call in trace.calls}
    graphs = sum(count for name, count in counts.items() if "GraphLaunch" in name)
    loops = sum(count for name, count in counts.items() if re.fullmatch(r"while(\.\d+)?", name))
    kernels = sum(call.count for call in trace.calls if call.kind == KERNEL and call.name != "a whole CUDA graph")
    inside = f"{kernels:,} kernels" if kernels else "no kernel"
    said = {
        f"{graphs:,} launch{'es' * (graphs > 1)} of a CUDA graph: the profiler shows {inside} beside them, and what"
        " runs inside a graph may be one row or none. Profile with --cuda-graph-trace=node to see each.": graphs,
        "While a profile is recorded, XLA launches kernel by kernel what it otherwise puts into CUDA graphs: there may"
        " be fewer launches without the profiler. The flag --xla_enable_command_buffers_during_profiling=true keeps"
        " the graphs.": trace.made_by.startswith(("JAX", "TensorFlow")) and trace.has_device and not graphs,
        f"{loops:,} loop{'s' * (loops > 1)} of a compiled program: many steps are one call, so the host has nothing to"
        " show between them, and which step a row belongs to is lost.": loops,
        "A step is one compiled program: dispatch is seen once for each call, and a fused row no longer says which"
        " lines of the model are in it.": not loops and any(map(_COMPILED.search, counts)),
        "Timestamps are written between passes, so each operation is in a pass of its own here: a training puts all"
        " that it submits at once into one. What runs inside an operation, or a kernel of many steps, is one row.": (
            trace.made_by.startswith("WebGPU") and trace.has_device
        ),
        "On a processor PyTorch's arithmetic runs inside its calls: the time that such a call needs to begin counts as"
        " a kernel's here, so overhead is larger than shown.": (
            trace.made_by.startswith("PyTorch") and not trace.has_device and not no_share(trace)
        ),
        "A report of sums: it has no starts, so there are no lanes and no gaps to draw.": (
            trace.calls and not len(trace.rows)
        ),
        f"Drawn are {len(trace.rows):,} of {trace.n_rows:,} rows: without those inside others of their kind, and of the"
        " steps or a stretch in the middle; the table counts all of them.": 0 < len(trace.rows) < trace.n_rows,
    }
    return [text for text, holds in said.items() if holds]
