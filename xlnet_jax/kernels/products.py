"""Matrix products in the form that XLA computes fastest, forward and backward.

XLA:TPU stores a product [B, T, N, H] with T innermost, and copies it for the kernels, which read rows of joined heads.
With N and H joined in the product it does not.

XLA:CPU's library multiplies [M, K] by [K, N] or [N, K]. The gradient of a right operand is a sum over rows, left^T x
gradient. Other code computes it at about half the speed, unless the left operand is transposed in memory before. XLA
would undo the transposition, but it does not look through an optimization barrier.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.arguments import einsum_float32
from xlnet_jax.kernels.mesh import CPU, platform


def dense(rows: jnp.ndarray, kernel_DF: jnp.ndarray) -> jnp.ndarray:
    """Return rows [..., D] times the kernel, in their type."""
    return _dense(rows, kernel_DF) if platform() == CPU else jnp.dot(rows, kernel_DF)


def to_heads_BNTH(
    rows_BTD: jnp.ndarray, w_DNH: jnp.ndarray, multiply: Callable[..., jnp.ndarray] = dense
) -> jnp.ndarray:
    """Return the projection of rows to heads. multiply: `jnp.dot` in functions that define their own gradient."""
    joined_BTE = multiply(rows_BTD, joined_DE(w_DNH))
    return joined_BTE.reshape(*joined_BTE.shape[:2], *w_DNH.shape[1:]).swapaxes(1, 2)


def from_heads_BTD(x_BNTH: jnp.ndarray, w_DNH: jnp.ndarray) -> jnp.ndarray:
    """Return the projection of heads to rows."""
    return dense(join_heads_BTE(x_BNTH), joined_DE(w_DNH).T)


def joined_DE(w_DNH: jnp.ndarray) -> jnp.ndarray:
    """Return the weights of all heads side by side, E = N x H."""
    return w_DNH.reshape(len(w_DNH), -1)


def join_heads_BTE(x_BNTH: jnp.ndarray) -> jnp.ndarray:
    """Return the heads side by side, [..., T, E = N x H]."""
    x_BTNH = x_BNTH.swapaxes(-3, -2)
    return x_BTNH.reshape(*x_BTNH.shape[:-2], x_BTNH.shape[-2] * x_BTNH.shape[-1])


def outer_sum_DE(rows_BTD: jnp.ndarray, grad_BTE: jnp.ndarray) -> jnp.ndarray:
    """Return the gradient of a right operand: the sum of the outer products of rows and their gradients, float32."""
    if platform() == CPU:
        return _outer_sum_on_cpu_DE(rows_BTD, grad_BTE)
    return einsum_float32("BTD,BTE->DE", rows_BTD, grad_BTE)


def _outer_sum_on_cpu_DE(rows_BTD: jnp.ndarray, grad_BTE: jnp.ndarray) -> jnp.ndarray:
    columns = jax.lax.optimization_barrier(jnp.moveaxis(rows_BTD, -1, 0))
    return jnp.tensordot(columns, grad_BTE, grad_BTE.ndim - 1, preferred_element_type=jnp.float32)


def product_BNTK(query_BNTH: jnp.ndarray, key_BNKH: jnp.ndarray) -> jnp.ndarray:
    """Return the products of all rows and keys, float32."""
    multiply = _product_BNTK if platform() == CPU else _multiply_BNTK
    return multiply(query_BNTH, key_BNKH)


def sum_rows_BNKH(weights_BNTK: jnp.ndarray, rows_BNTH: jnp.ndarray) -> jnp.ndarray:
    """Return the sum of the rows for each key, by these weights, float32."""
    if platform() == CPU:
        return _sum_rows_on_cpu_BNKH(weights_BNTK, rows_BNTH)
    return einsum_float32("BNTK,BNTH->BNKH", weights_BNTK, rows_BNTH)


def _sum_rows_on_cpu_BNKH(weights_BNTK: jnp.ndarray, rows_BNTH: jnp.ndarray) -> jnp.ndarray:
    store = jax.lax.optimization_barrier  # the transposed rows, which are smaller than the weights, and the result
    return store(einsum_float32("BNHT,BNTK->BNHK", store(rows_BNTH.swapaxes(2, 3)), weights_BNTK)).swapaxes(2, 3)


@jax.custom_vjp
def _dense(rows: jnp.ndarray, kernel_DF: jnp.ndarray) -> jnp.ndarray:
    return jnp.dot(rows, kernel_DF)


def _dense_backward(saved: tuple[Any, Any], grad: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
    rows, kernel_DF = saved
    return jnp.dot(grad, kernel_DF.T), _outer_sum_on_cpu_DE(rows, grad).astype(kernel_DF.dtype)


_dense.defvjp(lambda rows, kernel_DF: (jnp.dot(rows, kernel_DF), (rows, kernel_DF)), _dense_backward)


def _multiply_BNTK(query_BNTH: jnp.ndarray, key_BNKH: jnp.ndarray) -> jnp.ndarray:
    return einsum_float32("BNTH,BNKH->BNTK", query_BNTH, key_BNKH)


_product_BNTK = jax.custom_vjp(_multiply_BNTK)


def _product_backward(saved: tuple[Any, Any], grad_BNTK: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
    query_BNTH, key_BNKH = saved
    grad_query_BNTH = einsum_float32("BNTK,BNKH->BNTH", grad_BNTK, key_BNKH)
    grad_key_BNKH = _sum_rows_on_cpu_BNKH(grad_BNTK, query_BNTH)
    return grad_query_BNTH.astype(query_BNTH.dtype), grad_key_BNKH.astype(key_BNKH.dtype)


_product_BNTK.defvjp(
    lambda query_BNTH, key_BNKH: (_multiply_BNTK(query_BNTH, key_BNKH), (query_BNTH, key_BNKH)), _product_backward
)
