# SPDX-License-Identifier: Apache-2.0
"""Attention in O(T) memory on any backend: an online softmax over tiles, in plain JAX.

For a tile of queries, the tiles of keys pass by one after the other. With m the largest logit so
far, l the sum of exp(logit - m) and a the sum of exp(logit - m) v, a tile of logits s gives

  m' = max(m, max s),  l' = l e^(m - m') + sum e^(s - m'),  a' = a e^(m - m') + sum e^(s - m') v,

and at the end the output is a / l and the log-sum-exp m + log l. The backward pass keeps these two
and computes each tile of logits again: with weights p = e^(s - lse) and output cotangent g,

  ds = p (g . v - g . out).

`jax.vjp` of the tile's logits takes ds to q, k, the coordinates and every parameter of the
encoding. Tiles that the mask empties are passed over, in both directions.

Reference: Rabe and Staats, 2021, https://arxiv.org/abs/2112.05682; Dao, 2023,
https://arxiv.org/abs/2307.08691.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Call
from pe_jax.kernels._passes import join
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare
from pe_jax.kernels._tile import Operands
from pe_jax.kernels._tile import tile_logits
from pe_jax.kernels._tile import tile_output
from pe_jax.masks import Mask
from pe_jax.masks import tile_starts
from pe_jax.positions import expand

Array = jax.Array

HIDDEN = jnp.finfo(jnp.float32).min  # the logit of a key that a query may not see
LEAST = HIDDEN / 2  # the smallest maximum: e^(HIDDEN - LEAST) is 0, in rows that see nothing too


def blockwise(*args, tile: tuple[int, int] | None = None, **kwargs):
  """Computes attention tile by tile; see `pe_jax.kernels` for the arguments.

  Its gradients are exact, to q, k, v, the coordinates, the parameters, scale and softcap. For the
  `logits` hook, forward-mode and second derivatives there is `dense`.

  Args:
    tile: queries and keys per tile, by `pe_jax.bind(blockwise, tile=(128, 128))`; `choose_tile`
      unless given.

  Raises:
    ValueError: an encoding with a `logits` hook.
  """
  call = prepare(*args, **kwargs)
  if call.encoding.logits is not None:
    raise ValueError(
        f'blockwise cannot compute the logits hook of {call.encoding}, which sees whole rows: use '
        'pe_jax.kernels.dense.'
    )
  return attention(call, default=passes(call, tile))


def passes(call: Call, tile: tuple[int, int] | None = None) -> Passes:
  """Makes both passes for a call; tiles are of `choose_tile` unless given."""
  q_tile, k_tile = choose_tile(call.encoding, call.q, call.k) if tile is None else tile
  queries, keys = call.q.shape[-3], call.k.shape[-3]
  grid = Grid(call.encoding, queries, keys, min(q_tile, queries), min(k_tile, keys))
  return Passes(grid, forward, backward)


def choose_tile(encoding, q: Array, k: Array) -> tuple[int, int]:
  """Chooses (queries, keys) whose logits, of all rows and heads, stay in the cache of a core."""
  content = encoding.reads_content or encoding.value is not None  # more arrays for every logit
  queries = keys = 128 if content else 256
  rows = math.prod(q.shape[:-3]) * q.shape[-2]
  while rows * queries * keys > 2**20 and keys > 64:
    queries, keys = (queries, keys // 2) if queries < keys else (queries // 2, keys)
  return queries, keys


class Grid(NamedTuple):
  """What is static: the encoding, the numbers of queries and keys, and those of one tile."""

  encoding: Any
  queries: int
  keys: int
  q_tile: int
  k_tile: int

  def reached(self, mask: Mask) -> Array:
    """Returns the tiles that the mask does not empty, boolean [tiles, tiles]."""
    return mask.reached(self.queries, self.keys, self.q_tile, self.k_tile)

  def starts(self, i: Array, j: Array) -> tuple[Array, Array]:
    """Returns the first query and the first key of tile (i, j)."""
    q_starts = tile_starts(self.queries, self.q_tile)
    return q_starts[i], tile_starts(self.keys, self.k_tile)[j]

  def cut(self, operands: Operands, i: Array, j: Array) -> Operands:
    """Cuts out what tile (i, j) reads."""
    q_start, k_start = self.starts(i, j)
    queries = operands.queries.take(q_start, self.q_tile)
    return operands._replace(queries=queries, keys=operands.keys.take(k_start, self.k_tile))

  def cut_rows(self, x: Array, i: Array, axis: int) -> Array:
    """Cuts out the queries of tile (i, .) along the axis before the heads, and puts heads first."""
    start, _ = self.starts(i, 0)
    rows = jax.lax.dynamic_slice_in_dim(x, start, self.q_tile, axis)
    return jnp.swapaxes(rows, axis, axis + 1)

  def hide(self, logits: Array, mask: Mask, i: Array, j: Array) -> Array:
    """Replaces the logits of tile (i, j) where the mask forbids or another tile has the key."""
    q_start, k_start = self.starts(i, j)
    rows, columns = (q_start, self.q_tile), (k_start, self.k_tile)
    allowed = mask.tile(self.queries, self.keys, rows, columns).evaluate(self.q_tile, self.k_tile)
    if allowed is not None:
      logits = jnp.where(expand(allowed, logits.ndim), logits, HIDDEN)
    if self.keys % self.k_tile:  # the last tile starts early, on keys of the tile before
      fresh = k_start + jnp.arange(self.k_tile) >= j * self.k_tile
      logits = jnp.where(expand(fresh, logits.ndim), logits, HIDDEN)
    return logits


# --- Forward -------------------------------------------------------------------------------------


def forward(grid: Grid, operands: Operands, mask: Mask) -> tuple[Array, Array]:
  """Computes the output and the log-sum-exp, see `Passes`."""
  reached = grid.reached(mask)
  order, counts = jnp.argsort(~reached, axis=1, stable=True), reached.sum(axis=1)
  q = operands.queries.rows['q']
  *batch, _, heads, width = q.shape
  zeros = lambda shape: jnp.zeros_like(q, jnp.float32, shape)  # they vary as q under shard_map

  def visit(i, n, running):
    """Adds the n-th of the reached tiles of keys to tile i of the queries."""
    largest, total, out = running
    j = order[i, n]
    tile = grid.cut(operands, i, j)
    logits = grid.hide(tile_logits(grid.encoding, tile), mask, i, j)
    larger = jnp.maximum(largest, logits.max(axis=-1))
    weights, fade = jnp.exp(logits - larger[..., None]), jnp.exp(largest - larger)
    out = out * fade[..., None] + tile_output(grid.encoding, weights, tile)
    return larger, total * fade + weights.sum(axis=-1), out

  def fill(i, filled):
    rows = (*batch, heads, grid.q_tile)
    running = zeros(rows) + LEAST, zeros(rows), zeros((*rows, width))
    running = jax.lax.fori_loop(0, counts[i], functools.partial(visit, i), running)
    start, _ = grid.starts(i, 0)
    return tuple(
        jax.lax.dynamic_update_slice_in_dim(x, jnp.swapaxes(rows, axis, axis + 1), start, axis)
        for x, rows, axis in zip(filled, _finish(*running), (len(batch),) * 2)
    )

  filled = zeros(q.shape), zeros(q.shape[:-1])
  return jax.lax.fori_loop(0, counts.size, fill, filled)


def _finish(largest: Array, total: Array, out: Array) -> tuple[Array, Array]:
  """Turns the running sums of some rows into their output and log-sum-exp."""
  sees = total > 0
  total = jnp.where(sees, total, 1)
  return out / total[..., None], jnp.where(sees, largest + jnp.log(total), HIDDEN)


# --- Backward ------------------------------------------------------------------------------------


def backward(grid: Grid, residuals, cotangents) -> Operands:
  """Computes the gradients of what moves, see `Passes`."""
  moving, fixed, mask, out, lse = residuals
  by_out, by_lse = cotangents
  # Of the output in float32: a row of ds sums to 0, which a rounded one would spoil for a bias.
  drop = jnp.einsum('...h,...h->...', by_out, out, precision='highest') - by_lse
  lse = jnp.maximum(lse, LEAST)
  reached = grid.reached(mask)
  order = jnp.argsort(~reached.ravel(), stable=True)
  rows = functools.partial(grid.cut_rows, axis=lse.ndim - 2)

  def visit(n, grads):
    i, j = order[n] // reached.shape[1], order[n] % reached.shape[1]
    tile, still = grid.cut(moving, i, j), grid.cut(fixed, i, j)
    logits, to_tile = jax.vjp(lambda x: tile_logits(grid.encoding, join(x, still)), tile)
    weights = jnp.exp(grid.hide(logits, mask, i, j) - _fresh(grid, rows(lse, i), i)[..., None])
    _, to_weights = jax.vjp(
        lambda w, x: tile_output(grid.encoding, w, join(x, still)), weights, tile
    )
    by_weights, by_output = to_weights(rows(by_out, i))
    (by_logits,) = to_tile(weights * (by_weights - rows(drop, i)[..., None]))
    return _add(grads, jax.tree.map(jnp.add, by_output, by_logits), *grid.starts(i, j))

  wide = lambda x: jnp.zeros_like(x, jnp.promote_types(x.dtype, jnp.float32))
  grads = jax.lax.fori_loop(0, reached.sum(), visit, jax.tree.map(wide, moving))
  return jax.tree.map(lambda grad, x: grad.astype(x.dtype), grads, moving)


def _fresh(grid: Grid, lse: Array, i: Array) -> Array:
  """Gives rows that the tile before had already no weight: the last tile starts early."""
  start, _ = grid.starts(i, 0)
  fresh = start + jnp.arange(grid.q_tile) >= i * grid.q_tile
  return jnp.where(expand(fresh, lse.ndim), lse, jnp.inf)


def _add(grads: Operands, terms: Operands, q_start: Array, k_start: Array) -> Operands:
  return Operands(
      queries=grads.queries.add(q_start, terms.queries),
      keys=grads.keys.add(k_start, terms.keys),
      shared=jax.tree.map(jnp.add, grads.shared, terms.shared),
  )
