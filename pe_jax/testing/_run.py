# SPDX-License-Identifier: Apache-2.0
"""Ways to run an encoding: hook by hook, and in a layer as a model uses it."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.attention import attend
from pe_jax.base import Arrays
from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.base import initial_carry
from pe_jax.kernels._dense import repeat_heads
from pe_jax.masks import Mask
from pe_jax.positions import expand
from pe_jax.testing._compare import Violation

Array = jax.Array


class Tokens(NamedTuple):
  """All that hooks read, T queries over S keys."""

  x: Array  # [B, S, D]
  positions: Any  # [B, S]
  q: Array  # [B, T, N, H]
  k: Array  # [B, S, K, H]
  q_coords: Any  # [B, T]
  k_coords: Any  # [B, S]
  logits: Array  # [B, N, T, S]
  weights: Array  # [B, N, T, S]
  mask: Array  # [B, 1, T, S]
  length: Array  # [B]
  scale: Array  # []


class Row(NamedTuple):
  """What one attention layer reads, T tokens over themselves."""

  x: Array  # [B, T, D]
  positions: Any  # [B, T]
  segments: Array  # [B, T]
  index: tuple[Array, Array]  # order of queries and of keys, [B, T] each; later keys are hidden
  dense: Array  # who may see whom besides, [B, 1, T, T]
  length: Array  # [B]


def run_hooks(params: Arrays, tokens: Tokens, *, encoding: Encoding) -> dict[str, Array]:
  """Calls every hook that the encoding has, except `place`."""
  t = tokens
  k = repeat_heads(t.k, t.q.shape[-2])
  arguments = {
      'embed': (t.x, t.positions),
      'query': (t.q, t.q_coords, t.length),
      'key': (t.k, t.k_coords, t.length),
      'bias': (t.q, k, t.q_coords, t.k_coords, t.scale),
      'logits': (t.logits, t.q, k, t.q_coords, t.k_coords, t.mask),
      'value': (t.weights, t.q_coords, t.k_coords),
  }
  out = {
      name: getattr(encoding, name)(params, *args)
      for name, args in arguments.items()
      if getattr(encoding, name) is not None
  }
  if 'bias' in out:
    out['bias'] = _with_batch(out['bias'], jnp.shape(t.logits))
  return out


def _with_batch(bias: Array, shape: tuple[int, ...]) -> Array:
  """Repeats a bias over the rows, where they share the positions."""
  if bias.shape[-3:] != shape[-3:]:
    raise Violation(f'bias has shape {bias.shape}, not {shape}')
  return jnp.broadcast_to(bias, shape)


hooks = jax.jit(run_hooks, static_argnames='encoding')


def run_place(params, x, positions, segments, carry, *, encoding: Encoding):
  """Calls `place`, or passes the positions on where there is none."""
  if encoding.place is None:
    return positions, carry
  return encoding.place(params, x, positions, segments, carry)


place = jax.jit(run_place, static_argnames='encoding')


def project(x: Array, weights: Arrays) -> tuple[Array, Array, Array]:
  """Computes q, k, v from the hidden state."""
  q = jnp.einsum('...td,dnh->...tnh', x, weights['q'])
  k = jnp.einsum('...td,dnh->...tnh', x, weights['k'])
  v = jnp.einsum('...td,dnh->...tnh', x, weights['v'])
  return q, k, v + expand(weights['v_bias'], v.ndim)


def run_layer(params, weights, row: Row, *, encoding, dims: Dims, kernel=None) -> Array:
  """Embeds, projects, places and attends: an encoding as a model uses it, [B, T, N, H]."""
  x = row.x
  if encoding.embed is not None:
    x = encoding.embed(params, x, row.positions)
  q, k, v = project(x, weights)
  carry = initial_carry(encoding, dims, x.shape[:-2])
  coords, _ = run_place(params, x, row.positions, row.segments, carry, encoding=encoding)
  mask = Mask(
      causal=True,
      q_segments=row.segments,
      k_segments=row.segments,
      q_index=row.index[0],
      k_index=row.index[1],
      dense=row.dense,
  )
  return attend(
      q,
      k,
      v,
      coords,
      coords,
      encoding=encoding,
      params=params,
      mask=mask,
      length=row.length,
      kernel=kernel,
  )


layer = jax.jit(run_layer, static_argnames=('encoding', 'dims', 'kernel'))
