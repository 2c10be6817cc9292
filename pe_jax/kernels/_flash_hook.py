# SPDX-License-Identifier: Apache-2.0
"""The bias hook of an encoding inside a TPU's kernel: traced for the tile of one head."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from pe_jax import base

Array = jax.Array

# What a hook may be made of: the TPU's kernels have all of it, and no gather.
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


def trace(encoding, params) -> Callable:
  """Returns a function of the refs of a tile that computes its bias, [s, t]."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  shapes = {base.leaf_name(path): jnp.shape(leaf) for path, leaf in leaves}
  return functools.partial(_bias, encoding, shapes)


def _bias(encoding, shapes: dict[str, tuple[int, ...]], refs) -> Array:

  def read(path, ref):
    name = base.leaf_name(path)
    shape = shapes[name]
    return ref[...].reshape((1, *shape[1:]) if name in encoding.per_head else shape)

  params = jax.tree_util.tree_map_with_path(read, refs['params'])
  q_coords, k_coords = refs['q_coords'][:, 0], refs['k_coords'][0, :]
  # Such a hook reads no content: any q and k of the right shape will do.
  q, k = (jnp.zeros((x.shape[0], 1, 1)) for x in (q_coords, k_coords))
  return encoding.bias(params, q, k, q_coords, k_coords, refs['scale'][0, 0])[0].T
