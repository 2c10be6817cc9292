# SPDX-License-Identifier: Apache-2.0
"""Attention in O(T) memory on any backend: an online softmax over tiles, in plain JAX.

For a tile of queries, the tiles of keys pass by one after the other. With m the largest logit so
far, l the sum of exp(logit - m) and a the sum of exp(logit - m) v, a tile of logits s gives

  m' = max(m, max s),  l' = l e^(m - m') + sum e^(s - m'),  a' = a e^(m - m') + sum e^(s - m') v,

and at the end the output is a / l and the log-sum-exp m + log l. The backward pass keeps these two
and computes each tile of logits again: with weights p = e^(s - lse) and output cotangent g,

  ds = p (g . v - g . out).

`jax.vjp` of the tile's logits takes ds to q, k, the coordinates and every parameter of the
encoding. A tile is of one or two heads where no work is shared among them, else of all. Tiles that
the mask empties are passed over, in both directions.

Reference: Rabe and Staats, 2021, https://arxiv.org/abs/2112.05682; Dao, 2023,
https://arxiv.org/abs/2307.08691.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.kernels._dense import dense
from pe_jax.kernels._passes import attention
from pe_jax.kernels._passes import Call
from pe_jax.kernels._passes import join
from pe_jax.kernels._passes import Passes
from pe_jax.kernels._passes import prepare
from pe_jax.kernels._tile import add_shared
from pe_jax.kernels._tile import cut
from pe_jax.kernels._tile import Operands
from pe_jax.kernels._tile import Part
from pe_jax.kernels._tile import put
from pe_jax.kernels._tile import take_shared
from pe_jax.kernels._tile import tile_logits
from pe_jax.kernels._tile import tile_output
from pe_jax.masks import Mask
from pe_jax.masks import Span
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
  if 0 in (call.q.shape[-3], call.k.shape[-3]):  # there is nothing to cut
    return dense(*args, **kwargs)
  if call.encoding.logits is not None:
    raise ValueError(
        f'blockwise cannot compute the logits hook of {call.encoding}, which sees whole rows: use '
        'pe_jax.kernels.dense.'
    )
  return attention(call, default=passes(call, tile))


def passes(call: Call, tile: tuple[int, int] | None = None) -> Passes:
  """Makes both passes for a call; tiles are of `choose_tile` unless given."""
  (*batch, queries, heads, _), keys = call.q.shape, call.k.shape[-3]
  parts = _choose_parts(call.encoding, math.prod(batch), heads, call.k.shape[-2])
  rows = math.prod(batch) * heads // parts
  q_tile, k_tile = choose_tile(call.encoding, rows) if tile is None else tile
  grid = Grid(call.encoding, queries, keys, min(q_tile, queries), min(k_tile, keys), parts)
  return Passes(grid, forward, backward)


def _choose_parts(encoding, batch: int, heads: int, k_heads: int) -> int:
  """Chooses the number of parts in which the heads are taken."""
  if _joins_heads(encoding):
    return 1
  pairs = heads // 2
  splits_evenly = heads % 2 == 0 and (k_heads % pairs == 0 or pairs % k_heads == 0)
  # XLA on a CPU gives whole dots of a batch to threads, which is faster than to split one.
  return pairs if batch == 1 and splits_evenly else heads


def _joins_heads(encoding) -> bool:
  """Whether a tile is of all heads: biases by the pair, and values, may share work among them."""
  by_pair = encoding.bias is not None and not encoding.by_distance
  return by_pair or encoding.value is not None


def choose_tile(encoding, rows: int) -> tuple[int, int]:
  """Chooses (queries, keys) whose logits, of all rows of a tile, stay in the cache of a core."""
  queries = keys = 512  # XLA on a CPU splits a dot among threads by these, and not by its rows
  if _joins_heads(encoding):
    queries = keys = 128 if encoding.reads_content or encoding.value is not None else 256
  while rows * queries * keys > 2**20 and keys > 64:
    queries, keys = (queries, keys // 2) if queries < keys else (queries // 2, keys)
  return queries, keys


class Grid(NamedTuple):
  """What is static: the encoding, the numbers of queries and keys, and those of one tile.

  Heads are taken in `parts`: 1 for all at once, up to as many as there are heads.
  """

  encoding: Any
  queries: int
  keys: int
  q_tile: int
  k_tile: int
  parts: int

  def reached(self, mask: Mask) -> Array:
    """Returns the tiles that the mask does not empty, boolean [tiles, tiles]."""
    return mask.reached(self.queries, self.keys, self.q_tile, self.k_tile)

  def q_span(self, i: Array) -> Span:
    """Returns the queries of tiles (i, .)."""
    return tile_starts(self.queries, self.q_tile)[i], self.q_tile

  def k_span(self, j: Array) -> Span:
    """Returns the keys of tiles (., j)."""
    return tile_starts(self.keys, self.k_tile)[j], self.k_tile

  def part(self, h: Array) -> Part:
    """Returns the h-th part of the heads."""
    return Part(h, self.parts)

  def cut(self, operands: Operands, h: Array, i: Array, j: Array) -> Operands:
    """Cuts out what tile (i, j) of the h-th part of the heads reads."""
    return Operands(
        operands.queries.take(self.q_span(i), self.part(h)),
        operands.keys.take(self.k_span(j), self.part(h)),
        take_shared(self.encoding, operands.shared, self.part(h)),
    )

  def hide(self, mask: Mask, h: Array, i: Array, j: Array, logits: Array) -> Array:
    """Replaces the logits of a tile where the mask forbids or another tile has the key."""
    rows, columns = self.q_span(i), self.k_span(j)
    allowed = mask.tile(self.queries, self.keys, rows, columns).evaluate(self.q_tile, self.k_tile)
    if allowed is not None:
      allowed = cut(allowed, {-3: self.part(h).of(allowed.shape[-3])})
      logits = jnp.where(expand(allowed, logits.ndim), logits, HIDDEN)
    if self.keys % self.k_tile:  # the last tile starts early, on keys of the tile before
      fresh = columns[0] + jnp.arange(self.k_tile) >= j * self.k_tile
      logits = jnp.where(expand(fresh, logits.ndim), logits, HIDDEN)
    return logits


def _first(reached: Array) -> tuple[Array, Array]:
  """Returns for every row of the tiles those that are reached, before the others, and how many."""
  return jnp.argsort(~reached, axis=1, stable=True), reached.sum(axis=1)


# --- Forward -------------------------------------------------------------------------------------


def forward(grid: Grid, operands: Operands, mask: Mask) -> tuple[Array, Array]:
  """Computes the output and the log-sum-exp, see `Passes`."""
  order, counts = _first(grid.reached(mask))
  q = operands.queries.rows['q']
  *batch, _, heads, width = q.shape
  zeros = lambda shape: jnp.zeros_like(q, jnp.float32, shape)  # they vary as q under shard_map

  def visit(h, i, n, running):
    """Adds the n-th of the reached tiles of keys to tile i of the queries."""
    largest, total, out = running
    j = order[i, n]
    tile = grid.cut(operands, h, i, j)
    logits = tile_logits(grid.encoding, tile, functools.partial(grid.hide, mask, h, i, j))
    larger = jnp.maximum(largest, logits.max(axis=-1))
    weights, fade = jnp.exp(logits - larger[..., None]), jnp.exp(largest - larger)
    out = out * fade[..., None] + tile_output(grid.encoding, weights, tile)
    return larger, total * fade + weights.sum(axis=-1), out

  def fill(n, filled):
    h, i = n // counts.size, n % counts.size
    rows = (*batch, heads // grid.parts, grid.q_tile)
    running = zeros(rows) + LEAST, zeros(rows), zeros((*rows, width))
    running = jax.lax.fori_loop(0, counts[i], functools.partial(visit, h, i), running)
    out, lse = _finish(*running)
    tokens, part = grid.q_span(i), grid.part(h).of(heads)
    return (
        put(filled[0], {-3: tokens, -2: part}, jnp.swapaxes(out, -2, -3)),
        put(filled[1], {-2: tokens, -1: part}, jnp.swapaxes(lse, -1, -2)),
    )

  return jax.lax.fori_loop(0, grid.parts * counts.size, fill, (zeros(q.shape), zeros(q.shape[:-1])))


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
  order, counts = _first(grid.reached(mask).T)

  def visit(h, j, n, grads):
    """Adds what the n-th of the reached tiles of queries gives; grads.keys are those of tile j."""
    i, part = order[j, n], grid.part(h)
    tile, still = grid.cut(moving, h, i, j), grid.cut(fixed, h, i, j)
    g, g_out, total = (_rows(grid, x, h, i) for x in (by_out, drop[..., None], lse[..., None]))
    hide = functools.partial(grid.hide, mask, h, i, j)
    logits, to_tile = jax.vjp(lambda x: tile_logits(grid.encoding, join(x, still), hide), tile)
    weights = jnp.exp(logits - _fresh(grid, total, i))
    _, to_weights = jax.vjp(
        lambda w, x: tile_output(grid.encoding, w, join(x, still)), weights, tile
    )
    by_weights, by_output = to_weights(g)
    (by_logits,) = to_tile(weights * (by_weights - g_out))
    terms = jax.tree.map(jnp.add, by_output, by_logits)
    return Operands(
        grads.queries.add(grid.q_span(i), part, terms.queries),
        jax.tree.map(jnp.add, grads.keys, terms.keys),
        add_shared(grid.encoding, grads.shared, part, terms.shared),
    )

  def fill(n, grads):
    h, j = n // counts.size, n % counts.size
    columns, part = grid.k_span(j), grid.part(h)
    running = grads._replace(keys=jax.tree.map(jnp.zeros_like, grads.keys.take(columns, part)))
    running = jax.lax.fori_loop(0, counts[j], functools.partial(visit, h, j), running)
    return running._replace(keys=grads.keys.add(columns, part, running.keys))

  wide = lambda x: jnp.zeros_like(x, jnp.promote_types(x.dtype, jnp.float32))
  grads = jax.lax.fori_loop(0, grid.parts * counts.size, fill, jax.tree.map(wide, moving))
  return jax.tree.map(lambda grad, x: grad.astype(x.dtype), grads, moving)


def _rows(grid: Grid, x: Array, h: Array, i: Array) -> Array:
  """Cuts the queries of tiles (i, .) out of x [..., T, N, H], heads first."""
  rows = cut(x, {-3: grid.q_span(i), -2: grid.part(h).of(x.shape[-2])})
  return jnp.swapaxes(rows, -2, -3)


def _fresh(grid: Grid, lse: Array, i: Array) -> Array:
  """Gives rows that the tile before had already no weight: the last tile starts early."""
  start, _ = grid.q_span(i)
  fresh = start + jnp.arange(grid.q_tile) >= i * grid.q_tile
  return jnp.where(expand(fresh[:, None], lse.ndim), lse, jnp.inf)
