# SPDX-License-Identifier: Apache-2.0
"""What one tile of attention computes from the encoding's hooks: its logits and its output.

All of it is plain JAX, so `jax.vjp` of these functions is the backward pass of a tile.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.kernels._dense import check_bias
from pe_jax.kernels._dense import repeat_heads
from pe_jax.positions import expand

Array = jax.Array


class Side(NamedTuple):
  """What belongs to the tokens of the queries, or to those of the keys.

  Attributes:
    rows: arrays [..., T, heads, H] by name: `q`, or `k` and `v`, as the logits and the output read
      them; `raw`, q or k before `query` or `key`, where a bias might read it.
    coords: coordinates, leaves [..., T] or [..., N, T].
  """

  rows: dict[str, Array]
  coords: Any

  def take(self, start: Array, size: int) -> 'Side':
    """Cuts out `size` tokens from `start` on."""
    cut = lambda axis: lambda x: jax.lax.dynamic_slice_in_dim(x, start, size, x.ndim + axis)
    return Side(jax.tree.map(cut(-3), self.rows), jax.tree.map(cut(-1), self.coords))

  def add(self, start: Array, terms: 'Side') -> 'Side':
    """Adds `terms` to the tokens from `start` on."""

    def added(axis):
      def add(x, term):
        now = jax.lax.dynamic_slice_in_dim(x, start, term.shape[axis], x.ndim + axis)
        return jax.lax.dynamic_update_slice_in_dim(x, now + term, start, x.ndim + axis)

      return add

    rows = jax.tree.map(added(-3), self.rows, terms.rows)
    return Side(rows, jax.tree.map(added(-1), self.coords, terms.coords))


class Operands(NamedTuple):
  """All that attention reads, but for the mask. `shared` has params, scale and softcap."""

  queries: Side
  keys: Side
  shared: dict[str, Any]


def tile_logits(encoding, tile: Operands) -> Array:
  """Computes the logits of a tile before the mask, float32, shape [..., N, t, s].

  A bias of the distance alone is evaluated once a distance where the positions are consecutive, and
  else, as every other bias, once a pair.
  """
  by_pair = functools.partial(_logits, encoding, bias_by_pair)
  q_pos, k_pos = tile.queries.coords, tile.keys.coords
  if not (encoding.bias and encoding.by_distance and counts(q_pos, tile) and counts(k_pos, tile)):
    return by_pair(tile)
  by_distance = functools.partial(_logits, encoding, _bias_by_distance)
  return jax.lax.cond(  # checkpoint: neither branch leaves arrays of its size to the other
      consecutive(q_pos) & consecutive(k_pos),
      jax.checkpoint(by_distance, prevent_cse=False),
      jax.checkpoint(by_pair, prevent_cse=False),
      tile,
  )


def tile_output(encoding, weights: Array, tile: Operands) -> Array:
  """Computes what weights [..., N, t, s] make of the values, float32, shape [..., N, t, H]."""
  # In float32: the backward pass takes sum_s p (g . v) to be g . out, and a slope that weighs it by
  # the distance was seen ten times farther off in bfloat16 than with the dense kernel.
  v = repeat_heads(tile.keys.rows['v'].astype(jnp.float32), weights.shape[-3])
  out = jnp.einsum('...nts,...snh->...nth', weights, v)
  if encoding.value is not None:
    params = tile.shared['params']
    term = encoding.value(params, weights, tile.queries.coords, tile.keys.coords)
    out = out + jnp.swapaxes(term, -2, -3)
  return out


def _logits(encoding, bias, tile: Operands) -> Array:
  q, shared = tile.queries.rows['q'], tile.shared
  k = repeat_heads(tile.keys.rows['k'], q.shape[-2])
  logits = jnp.einsum('...tnh,...snh->...nts', q, k, preferred_element_type=jnp.float32)
  logits = shared['scale'] * logits
  if encoding.bias is not None:
    term = check_bias(bias(encoding, tile), logits, encoding)
    logits = logits + _spread(term, logits.shape)
  if shared['softcap'] is not None:
    logits = shared['softcap'] * jnp.tanh(logits / shared['softcap'])
  return logits


def bias_by_pair(encoding, tile: Operands) -> Array:
  """Computes the bias of a tile, [..., N, t, s], once for every pair of a query and a key."""
  queries, keys, shared = tile
  q = queries.rows.get('raw', queries.rows['q'])
  k = repeat_heads(keys.rows.get('raw', keys.rows['k']), q.shape[-2])
  return encoding.bias(shared['params'], q, k, queries.coords, keys.coords, shared['scale'])


def _bias_by_distance(encoding, tile: Operands) -> Array:
  """Evaluates the t + s - 1 distances of consecutive positions; row t is a slice of them.

  On a CPU a slice a row, and its sum backward, are cheaper than a gather or a skewed reshape.
  """
  by_step = bias_by_step(encoding, tile)
  queries, keys = tile.queries.coords.shape[-1], tile.keys.coords.shape[-1]

  def row(start):
    return jax.lax.dynamic_slice_in_dim(by_step, start, keys, by_step.ndim - 1)

  return jax.vmap(row, out_axes=-2)(jnp.arange(queries - 1, -1, -1))


def bias_by_step(encoding, tile: Operands) -> Array:
  """Computes a bias of the distance between consecutive positions, [..., N, t + s - 1].

  The first distance is that of the first key from the last query, the others count on from it.
  """
  q_pos, k_pos, q = _wide(tile.queries.coords), _wide(tile.keys.coords), tile.queries.rows['q']
  steps = jnp.arange(q_pos.shape[-1] + k_pos.shape[-1] - 1, dtype=k_pos.dtype)
  steps = k_pos[..., :1] - q_pos[..., -1:] + expand(steps, k_pos.ndim)
  origin = jnp.zeros_like(steps[..., :1])
  # A bias of the distance reads no content: any q and k of the right shape will do.
  q, k = (jnp.zeros((*x.shape, *q.shape[-2:]), q.dtype) for x in (origin, steps))
  scale = tile.shared['scale']
  return encoding.bias(tile.shared['params'], q, k, origin, steps, scale)[..., 0, :]


def counts(coords: Any, tile: Operands) -> bool:
  """Whether the coordinates are one array of whole numbers, one a token."""
  is_array = isinstance(coords, jax.Array)
  return is_array and jnp.issubdtype(coords.dtype, jnp.integer) and (
      coords.ndim == tile.queries.rows['q'].ndim - 2
  )


def _wide(positions: Array) -> Array:
  """Returns whole numbers as the default int: uint8 has no -1, and int8 no 200."""
  return positions.astype(int)


def consecutive(positions: Array) -> Array:
  """Whether whole numbers count by one along the last axis, in all rows."""
  positions = _wide(positions)
  return (positions[..., 1:] == positions[..., :-1] + 1).all()


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _spread(bias: Array, shape: tuple[int, ...]) -> Array:
  """Gives all rows of the batch the bias that they share."""
  return jnp.broadcast_to(bias, shape)


def _spread_forward(bias, shape):
  return _spread(bias, shape), bias.shape


def _spread_backward(shape, to, cotangent):
  # A dot with ones, since XLA sums the leading axes of an array slowly on a CPU.
  axes = [axis for axis, (have, want) in enumerate(zip(to, shape)) if have != want]
  ones = jnp.ones([shape[axis] for axis in axes], cotangent.dtype)
  total = jnp.tensordot(ones, cotangent, (list(range(len(axes))), axes), precision='highest')
  return (total.reshape(to),)


_spread.defvjp(_spread_forward, _spread_backward)
