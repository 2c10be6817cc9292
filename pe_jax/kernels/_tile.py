# SPDX-License-Identifier: Apache-2.0
"""What one tile of attention computes from the encoding's hooks: its logits and its output.

All of it is plain JAX, so `jax.vjp` of these functions is the backward pass of a tile.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.base import leaf_name
from pe_jax.kernels._dense import check_bias
from pe_jax.kernels._dense import repeat_heads
from pe_jax.masks import Span
from pe_jax.positions import expand

Array = jax.Array


class Part(NamedTuple):
  """One of `count` equal parts of the heads."""

  index: int | Array
  count: int

  def of(self, heads: int) -> Span:
    """Returns the part of an axis of heads, which may serve several heads of the queries each."""
    return self.index * heads // self.count, max(1, heads // self.count)


class Side(NamedTuple):
  """What belongs to the tokens of the queries, or to those of the keys.

  Attributes:
    rows: arrays [..., T, heads, H] by name: `q`, or `k` and `v`, as the logits and the output read
      them; `raw`, q or k before `query` or `key`, where a bias might read it.
    coords: coordinates, leaves [..., T] or [..., N, T].
  """

  rows: dict[str, Array]
  coords: Any

  def take(self, tokens: Span, part: Part) -> 'Side':
    """Cuts out some tokens and part of the heads; of heads of the coordinates, all."""
    return self._each(cut, tokens, part)

  def add(self, tokens: Span, part: Part, terms: 'Side') -> 'Side':
    """Adds `terms` to what `take` cuts out."""
    return self._each(_add, tokens, part, terms)

  def _each(self, fn, tokens: Span, part: Part, *terms: 'Side') -> 'Side':
    rows = lambda x, *y: fn(x, {-3: tokens, -2: part.of(x.shape[-2])}, *y)
    coords = lambda x, *y: fn(x, {-1: tokens}, *y)
    return Side(
        jax.tree.map(rows, self.rows, *(side.rows for side in terms)),
        jax.tree.map(coords, self.coords, *(side.coords for side in terms)),
    )


class Operands(NamedTuple):
  """All that attention reads, but for the mask. `shared` has params, scale and softcap."""

  queries: Side
  keys: Side
  shared: dict[str, Any]


def take_shared(encoding, shared: dict[str, Any], part: Part) -> dict[str, Any]:
  """Cuts the part of the heads out of the parameters that have heads."""
  return _each_shared(encoding, cut, part, shared)


def add_shared(encoding, shared: dict[str, Any], part: Part, terms: dict[str, Any]):
  """Adds `terms` to what `take_shared` cuts out."""
  return _each_shared(encoding, _add, part, shared, terms)


def _each_shared(encoding, fn, part: Part, shared, *terms):
  def each(path, x, *y):
    has_heads = path[0].key == 'params' and leaf_name(path[1:]) in encoding.per_head
    return fn(x, {-x.ndim: part.of(x.shape[0])} if has_heads else {}, *y)

  return jax.tree_util.tree_map_with_path(each, shared, *terms)


def cut(x: Array, spans: dict[int, Span]) -> Array:
  """Cuts a span out of each of some axes, which count from the last."""
  for axis, (start, size) in spans.items():
    x = jax.lax.dynamic_slice_in_dim(x, start, size, x.ndim + axis)
  return x


def put(x: Array, spans: dict[int, Span], part: Array) -> Array:
  """Replaces what `cut` cuts out."""
  starts = [spans.get(axis, (0, 0))[0] for axis in range(-x.ndim, 0)]
  return jax.lax.dynamic_update_slice(x, part, starts)


def _add(x: Array, spans: dict[int, Span], term: Array) -> Array:
  return put(x, spans, cut(x, spans) + term) if spans else x + term


def tile_logits(encoding, tile: Operands, hide: Callable[[Array], Array]) -> Array:
  """Computes the logits of a tile, float32, shape [..., N, t, s], and lets `hide` mask them.

  A bias of the distance alone is evaluated once a distance where the positions are consecutive, and
  else, as every other bias, once a pair. XLA masks a tile as it adds the bias, but only within one
  branch: after both, it would read and write all of the tile again.
  """
  by_pair = lambda tile: hide(_logits(encoding, bias_by_pair, tile))
  if not is_of_whole_distances(encoding, tile):
    return by_pair(tile)
  by_distance = lambda tile: hide(_logits(encoding, _bias_by_distance, tile))
  return jax.lax.cond(  # checkpoint: neither branch leaves arrays of its size to the other
      consecutive(tile.queries.coords) & consecutive(tile.keys.coords),
      jax.checkpoint(by_distance, prevent_cse=False),
      jax.checkpoint(by_pair, prevent_cse=False),
      tile,
  )


def tile_output(encoding, weights: Array, tile: Operands) -> Array:
  """Computes what weights [..., N, t, s] make of the values, float32, shape [..., N, t, H]."""
  # In float32: the backward pass takes sum_s p (g . v) to be g . out, and a slope weighs the
  # difference of the two by the distance.
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
  logits = _products(shared['scale'], q, k)
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


def is_of_whole_distances(encoding, tile: Operands) -> bool:
  """Whether the bias is one of the distance between positions that are whole numbers."""

  def counts(coords):
    is_array = isinstance(coords, jax.Array)
    return is_array and jnp.issubdtype(coords.dtype, jnp.integer) and (
        coords.ndim == tile.queries.rows['q'].ndim - 2
    )

  sides = tile.queries, tile.keys
  has_bias = encoding.bias is not None and encoding.by_distance
  return has_bias and all(counts(side.coords) for side in sides)


def _wide(positions: Array) -> Array:
  """Returns whole numbers as the default int: uint8 has no -1, and int8 no 200."""
  return positions.astype(int)


def consecutive(positions: Array) -> Array:
  """Whether whole numbers count by one along the last axis, in all rows."""
  positions = _wide(positions)
  return (positions[..., 1:] == positions[..., :-1] + 1).all()


@jax.custom_vjp
def _products(scale: float | Array, q: Array, k: Array) -> Array:
  """Computes scale q k^T, float32 [..., N, t, s], from q [..., t, N, H] and k [..., s, N, H]."""
  return scale * jnp.einsum('...tnh,...snh->...nts', q, k, preferred_element_type=jnp.float32)


def _products_forward(scale, q, k):
  return _products(scale, q, k), (scale, q, k)


def _products_backward(residuals, g):
  # g is the largest array by far. Written so, neither dot has to transpose it.
  scale, q, k = residuals
  by_q = jnp.einsum('...nts,...snh->...nth', g, k, preferred_element_type=jnp.float32)
  by_k = jnp.einsum('...tnh,...nts->...nhs', q, g, preferred_element_type=jnp.float32)
  by_q, by_k = jnp.swapaxes(by_q, -2, -3), jnp.moveaxis(by_k, -1, -3)
  by_scale = jnp.sum(q * by_q).astype(jnp.result_type(scale))
  return by_scale, (scale * by_q).astype(q.dtype), (scale * by_k).astype(k.dtype)


_products.defvjp(_products_forward, _products_backward)


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
