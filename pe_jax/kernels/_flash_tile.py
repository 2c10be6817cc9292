# SPDX-License-Identifier: Apache-2.0
"""What `_flash_tpu` runs on the chip: one tile of queries against one tile of keys of one head."""

import dataclasses

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from pe_jax import base
from pe_jax.kernels._blockwise import HIDDEN
from pe_jax.kernels._blockwise import LEAST
from pe_jax.masks import Mask

Array = jax.Array

# What a bias hook may be made of: the TPU's kernels have all of it, and no gather.
PRIMITIVES = frozenset(
    'abs add and broadcast_in_dim convert_element_type div eq exp ge gt integer_pow jit le log '
    'log1p lt max min mul ne neg not or reshape select_n sqrt square squeeze sub tanh'.split()
)


def foreign_primitives(encoding, params, q: Array, k: Array, q_coords: Array, k_coords: Array):
  """Names what the bias hook does that no kernel of a TPU can, sorted."""
  if encoding.bias is None:
    return []
  rows = lambda x: jax.ShapeDtypeStruct((*x.shape[-3:-2], 1, x.shape[-1]), x.dtype)
  tokens = lambda x: jax.ShapeDtypeStruct(x.shape[-1:], x.dtype)
  traced = jax.make_jaxpr(encoding.bias)(
      base.take_heads(encoding, params, slice(1)),
      rows(q),
      rows(k),
      tokens(q_coords),
      tokens(k_coords),
      1.0,
  )
  return sorted(_primitives(traced.jaxpr) - PRIMITIVES)


def _primitives(jaxpr) -> set[str]:
  names = {eqn.primitive.name for eqn in jaxpr.eqns}
  inner = [eqn.params['jaxpr'].jaxpr for eqn in jaxpr.eqns if eqn.primitive.name == 'jit']
  return names.union(*map(_primitives, inner))


def kernel(reached, refs, out_ref, lse_ref, largest, total, running, *, encoding, mask, shapes):
  """Adds one tile of keys to the running sums of one tile of queries."""
  i, j = pl.program_id(2), pl.program_id(3)

  @pl.when(j == 0)
  def start():
    largest[...] = jnp.full_like(largest, LEAST)
    total[...] = jnp.zeros_like(total)
    running[...] = jnp.zeros_like(running)

  @pl.when(reached[i, j] != 0)
  def add():
    logits = _logits(refs, encoding, mask, shapes)
    before = largest[:, :1]
    larger = jnp.maximum(before, logits.max(axis=-1, keepdims=True))
    weights, fade = jnp.exp(logits - larger), jnp.exp(before - larger)
    v = refs['v'][...]
    out = _dot(weights.astype(v.dtype), v, contract=(1, 0))
    total[...] = total[...] * fade + weights.sum(axis=-1, keepdims=True)
    running[...] = running[...] * fade + out
    largest[...] = jnp.broadcast_to(larger, largest.shape)

  @pl.when(j == pl.num_programs(3) - 1)
  def finish():
    sees = total[...] > 0
    divisor = jnp.where(sees, total[...], 1)
    out_ref[...] = running[...] / divisor[:, :1]
    lse_ref[...] = jnp.where(sees, largest[...] + jnp.log(divisor), HIDDEN)


def _logits(refs, encoding, mask: Mask, shapes: dict[str, tuple[int, ...]]) -> Array:
  """Computes the logits of one tile of one head, [t, s]."""
  q, k, scale = refs['q'][...], refs['k'][...], refs['scale'][0, 0]
  logits = scale * _dot(q, k, contract=(1, 1))
  down = {name: ref[:, 0] for name, ref in refs['of_queries'].items() if ref is not None}
  across = {name: ref[0, :] for name, ref in refs['of_keys'].items() if ref is not None}
  if encoding.bias is not None:
    params = jax.tree_util.tree_map_with_path(
        lambda path, ref: _read(encoding, base.leaf_name(path), ref, shapes), refs['params']
    )
    bias = encoding.bias(
        params, q[:, None], k[:, None], down['coords'], across['coords'], scale
    )
    logits = logits + bias[0]
  mask = dataclasses.replace(
      mask,
      q_index=down['index'],
      k_index=across['index'],
      q_segments=down.get('segments'),
      k_segments=across.get('segments'),
  )
  allowed = mask.evaluate(*logits.shape)
  return logits if allowed is None else jnp.where(allowed[0], logits, HIDDEN)


def _read(encoding, name: str, ref, shapes: dict[str, tuple[int, ...]]) -> Array:
  shape = shapes[name]
  return ref[...].reshape((1, *shape[1:]) if name in encoding.per_head else shape)


def _dot(x: Array, y: Array, *, contract: tuple[int, int]) -> Array:
  # What is not float32 has no more bits than one pass keeps, and the compiler refuses to try.
  precision = None if x.dtype == jnp.float32 else 'default'
  axes = (((contract[0],), (contract[1],)), ((), ()))
  return jax.lax.dot_general(x, y, axes, precision=precision, preferred_element_type=jnp.float32)
