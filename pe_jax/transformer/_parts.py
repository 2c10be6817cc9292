# SPDX-License-Identifier: Apache-2.0
"""The formulas that a Transformer is made of."""

from collections.abc import Callable
import math

from flax import nnx
import jax
import jax.numpy as jnp

from pe_jax.positions import expand

Array = jax.Array


def pre_norm(x: Array, norm: Callable, f: Callable) -> Array:
  """Computes x + f(norm(x))."""
  return x + f(norm(x))


def post_norm(x: Array, norm: Callable, f: Callable) -> Array:
  """Computes norm(x + f(x)), as in Vaswani et al., 2017, https://arxiv.org/abs/1706.03762."""
  return norm(x + f(x))


def swiglu(x: Array) -> Array:
  """Computes silu(a) b of the halves a, b of x; Shazeer, 2020, https://arxiv.org/abs/2002.05202."""
  a, b = jnp.split(x, 2, axis=-1)
  return jax.nn.silu(a) * b


def dropout(x: Array, rate: float, key: Array | None) -> Array:
  """Drops a part `rate` of x and scales up the rest; returns x where there is no key."""
  if key is None or rate == 0:
    return x
  return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


class RMSNorm(nnx.Module):
  """g x / sqrt(mean(x ** 2) + 1e-6)."""

  def __init__(self, width: int):
    self.scale = nnx.Param(jnp.ones(width))

  def __call__(self, x: Array) -> Array:
    """Normalises the last axis, in float32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
    return (expand(self.scale[...], y.ndim) * y).astype(x.dtype)


class LayerNorm(RMSNorm):
  """g (x - mean(x)) / sqrt(var(x) + 1e-6) + b."""

  def __init__(self, width: int, *, bias: bool):
    super().__init__(width)
    self.bias = nnx.Param(jnp.zeros(width)) if bias else None

  def __call__(self, x: Array) -> Array:
    """Normalises the last axis, in float32."""
    y = x.astype(jnp.float32)
    y = super().__call__(y - jnp.mean(y, axis=-1, keepdims=True))
    y = y if self.bias is None else y + expand(self.bias[...], y.ndim)
    return y.astype(x.dtype)


class Linear(nnx.Module):
  """x W + b, for W of shape [*inputs, *outputs]."""

  def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], *, bias: bool, rngs):
    self.axes = len(inputs)
    self.kernel = nnx.Param(
        jax.random.normal(rngs.params(), inputs + outputs) * math.prod(inputs) ** -0.5
    )
    self.bias = nnx.Param(jnp.zeros(outputs)) if bias else None

  def __call__(self, x: Array) -> Array:
    """Maps x [..., *inputs] to [..., *outputs]."""
    y = jnp.tensordot(x, self.kernel.astype(x.dtype), self.axes)
    return y if self.bias is None else y + expand(self.bias.astype(x.dtype), y.ndim)
