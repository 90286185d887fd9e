"""Vectors of floats for Numba: a few instructions that its own loops do not keep in registers.

Numba vectorises a loop, but stores a row after each addition to it; with these, a row is added up in registers, which
takes half as long. Each is a line or two of LLVM's own language; what is not a multiple of `LANES` wide is padded.
"""

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, models, register_model

# Of the processor that compiles: 16 where it has AVX-512, else 8, which AVX2 has and others make of two.
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
_FLOATS, _INDEX = ir.VectorType(ir.FloatType(), LANES), ir.IntType(32)
_ZERO = ir.Constant(_FLOATS, [0.0] * LANES)


class Vector(types.Type):
    """`LANES` floats in a register."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


VECTOR = Vector()


@register_model(Vector)
class _InARegister(models.PrimitiveModel):
    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, _FLOATS)


def _address(context, builder, array_type, array, offset):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), _FLOATS.as_pointer())


def _lanes(first: int, count: int):
    return ir.Constant(ir.VectorType(_INDEX, count), list(range(first, first + count)))


@intrinsic
def load(_context, array, offset):
    """`array[offset : offset + LANES]`, of a flat float32 array."""

    def code(context, builder, signature, args):
        return builder.load(_address(context, builder, signature.args[0], *args), align=4)

    return VECTOR(array, types.int64), code


@intrinsic
def store(_context, vector, array, offset):
    """`array[offset : offset + LANES] = vector`"""

    def code(context, builder, signature, args):
        builder.store(args[0], _address(context, builder, signature.args[1], *args[1:]), align=4)
        return context.get_dummy_value()

    return types.void(vector, array, types.int64), code


@intrinsic
def fill(_context, number):
    """The same number in all lanes."""

    def code(_target, builder, _signature, args):
        first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), args[0], _INDEX(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))

    return VECTOR(types.float32), code


@intrinsic
def element(_context, array, offset):
    """`array[offset]`, of a flat array. Numba's own looks whether the offset counts from the end, each time."""

    def code(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load(builder.gep(data, [args[1]]))

    return array.dtype(array, types.int64), code


@intrinsic
def add_product(_context, total, a, b):
    """`total + a * b`, in one instruction where the processor has it."""

    def code(_target, builder, _signature, args):
        product = builder.fmul(args[1], args[2], flags=["contract"])
        return builder.fadd(args[0], product, flags=["contract"])

    return VECTOR(VECTOR, VECTOR, VECTOR), code


@intrinsic
def summed(_context, vector):
    """The sum of all lanes, by halves."""

    def code(_target, builder, _signature, args):
        rest, count = args[0], LANES
        while count > 1:
            count //= 2
            halves = [builder.shuffle_vector(rest, rest, _lanes(first, count)) for first in (0, count)]
            rest = builder.fadd(*halves)
        return builder.extract_element(rest, _INDEX(0))

    return types.float32(VECTOR), code


@intrinsic
def relu(_context, vector):
    """The larger of each lane and zero; NaN stays NaN."""

    def code(_target, builder, _signature, args):
        return builder.select(builder.fcmp_ordered("<=", args[0], _ZERO), _ZERO, args[0])

    return VECTOR(VECTOR), code


@intrinsic
def where_positive(_context, test, vector):
    """The lanes of `vector` where `test` is above zero, and zero elsewhere."""

    def code(_target, builder, _signature, args):
        return builder.select(builder.fcmp_ordered(">", args[0], _ZERO), args[1], _ZERO)

    return VECTOR(VECTOR, VECTOR), code


@intrinsic
def arrive(_context, counter):
    """Add one to `counter[0]`, which several threads do at once."""

    def code(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "acq_rel")

    return types.int64(counter), code


@intrinsic
def arrived(_context, counter):
    """`counter[0]`, to which others add meanwhile; what they wrote before is visible after it."""

    def code(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "acquire", 8)

    return types.int64(counter), code
