# SPDX-License-Identifier: Apache-2.0
"""The frame of every kernel that keeps but its output and log-sum-exp for the backward pass.

Such a kernel is a forward and a backward function, `Passes`. `attention` runs those of the platform
that a program is compiled for, whatever machine compiles it.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.kernels._tile import Operands
from pe_jax.kernels._tile import Side
from pe_jax.masks import Mask

Array = jax.Array


class Call(NamedTuple):
  """A call of a kernel; in its operands `query` and `key` have acted."""

  encoding: Any
  operands: Operands
  mask: Mask

  @property
  def q(self) -> Array:
    return self.operands.queries.rows['q']

  @property
  def k(self) -> Array:
    return self.operands.keys.rows['k']

  @property
  def v(self) -> Array:
    return self.operands.keys.rows['v']


def prepare(
    q, k, v, q_coords, k_coords, *, encoding, params, mask, scale, length, softcap
) -> Call:
  """Makes a `Call` of what every kernel takes; see `pe_jax.kernels`."""
  queries, keys = {'q': q}, {'k': k, 'v': v}
  # Both hooks act on one token at a time, so outside the tiles. A bias reads what they have read.
  keeps_raw = encoding.bias is not None and not encoding.by_distance
  if encoding.query is not None:
    queries = {'q': encoding.query(params, q, q_coords, length)} | ({'raw': q} if keeps_raw else {})
  if encoding.key is not None:
    keys['k'] = encoding.key(params, k, k_coords, length)
    keys |= {'raw': k} if keeps_raw else {}
  operands = Operands(
      queries=Side(queries, q_coords),
      keys=Side(keys, k_coords),
      shared={'params': params, 'scale': scale, 'softcap': softcap},
  )
  return Call(encoding, *_vary_alike((operands, mask)))


class Passes(NamedTuple):
  """Two directions of attention, and what both know before they are traced.

  Attributes:
    plan: hashable.
    forward: (plan, operands, mask) -> (out [..., T, N, H], lse [..., T, N]), both float32.
    backward: (plan, (moving, fixed, mask, out, lse), cotangents of out and lse) -> gradients of
      `moving`, the operands that have one. `fixed` has the others.
  """

  plan: Any
  forward: Callable
  backward: Callable


def attention(call: Call, **by_platform: Passes) -> tuple[Array, Array]:
  """Runs the passes of the platform that is compiled for, `default` where it is not named."""
  out, lse = _attention(tuple(by_platform.items()), *split(call.operands), call.mask)
  return out.astype(call.v.dtype), lse


def mesh_axes(tree: Any) -> frozenset[str]:
  """Returns the axes of `jax.shard_map` over which some leaf varies."""
  axes = [jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(tree)]
  return frozenset().union(*axes)


def _vary_alike(tree: Any) -> Any:
  """Lets every leaf vary over the same axes of a mesh, so that loops keep the types they have.

  The transpose of that sums the gradient of what the devices share, such as parameters.
  """
  axes = mesh_axes(tree)
  vary = lambda leaf: jax.lax.pcast(leaf, tuple(sorted(axes - mesh_axes(leaf))), to='varying')
  return jax.tree.map(vary, tree) if axes else tree


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(by_platform: tuple[tuple[str, Passes], ...], moving, fixed, mask):
  return _run(by_platform, _forward, join(moving, fixed), mask)


def _forward(passes: Passes, operands: Operands, mask: Mask):
  return passes.forward(passes.plan, operands, mask)


def _backward(passes: Passes, residuals, cotangents):
  return passes.backward(passes.plan, residuals, cotangents)


def _run(by_platform, step: Callable, *args):
  steps = {platform: functools.partial(step, passes) for platform, passes in by_platform}
  if len(steps) == 1:
    return steps['default'](*args)
  return jax.lax.platform_dependent(*args, **steps)


def _attention_forward(by_platform, moving, fixed, mask):
  out, lse = _attention(by_platform, moving, fixed, mask)
  return (out, lse), (moving, fixed, mask, out, lse)


def _attention_backward(by_platform, residuals, cotangents):
  return _gradients(by_platform, residuals, cotangents), None, None


_attention.defvjp(_attention_forward, _attention_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(by_platform, residuals, cotangents):
  return _run(by_platform, _backward, residuals, cotangents)


def _gradients_forward(by_platform, residuals, cotangents):
  return _gradients(by_platform, residuals, cotangents), None


def _gradients_backward(by_platform, residuals, cotangents):
  raise ValueError('only pe_jax.kernels.dense has second derivatives: pass it as kernel.')


_gradients.defvjp(_gradients_forward, _gradients_backward)


def split(operands: Operands) -> tuple[Operands, Operands]:
  """Separates the leaves that have a gradient from the others, with None in the other's place."""
  moves = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)
  return (
      jax.tree.map(lambda x: x if moves(x) else None, operands),
      jax.tree.map(lambda x: None if moves(x) else x, operands),
  )


def join(moving: Operands, fixed: Operands) -> Operands:
  """Undoes `split`."""
  return jax.tree.map(
      lambda x, y: y if x is None else x, moving, fixed, is_leaf=lambda x: x is None
  )
