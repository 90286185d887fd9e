"""Products of float32 matrices by JAX, in the precision that a worker's environment asks for.

On a card XLA rounds the factors as it is told. Its code for processors multiplies float32 as it is, or refuses
(jaxlib 0.10.2). There the factors of `bfloat16` are rounded beforehand, so that processors with matrix units for them
(AMX) use these; sums are of float32 all the same.
"""

from functools import partial

import jax
import jax.numpy as jnp

ROUNDED = "bfloat16"  # JAX's own name: on a processor it means nothing to XLA, and other products stay as they are


def product(a, b, contracted: tuple[int, int] = (1, 0)):
    """The product of two matrices over one axis of each, by default the last of `a` and the first of `b`."""
    return _of_rounded(contracted, a, b) if rounds_beforehand() else _dot(contracted, a, b)


def rounds_beforehand() -> bool:
    """Whether `product` rounds its factors itself."""
    return jax.config.jax_default_matmul_precision == ROUNDED and jax.default_backend() == "cpu"


def _dot(contracted: tuple[int, int], a, b):
    axis, other = contracted
    return jax.lax.dot_general(a, b, (((axis,), (other,)), ((), ())), preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_rounded(contracted: tuple[int, int], a, b):
    return _dot(contracted, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))


def _forward(contracted: tuple[int, int], a, b):
    factors = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _dot(contracted, *factors), factors


def _backward(contracted: tuple[int, int], factors, gradient):
    """As on a card, the gradient is a product too, and rounded as its other factor is."""
    (a, b), (axis, other) = factors, contracted
    gradient = gradient.astype(jnp.bfloat16)  # (a's other axis, b's other axis)
    of_a = _dot((1, 1 - other), gradient, b)  # (a's other axis, contracted)
    of_b = _dot((0, 1 - axis), gradient, a)  # (b's other axis, contracted)
    return of_a if axis == 1 else of_a.T, of_b if other == 1 else of_b.T


_of_rounded.defvjp(_forward, _backward)
