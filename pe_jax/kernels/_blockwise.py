# SPDX-License-Identifier: Apache-2.0
"""Attention in O(T) memory on any backend: an online softmax over tiles, in plain JAX.

For a tile of queries, the tiles of keys pass by one after the other. With m the largest logit so
far, l the sum of exp(logit - m) and a the sum of exp(logit - m) v, a tile of logits s gives

  m' = max(m, max s),  l' = l e^(m - m') + sum e^(s - m'),  a' = a e^(m - m') + sum e^(s - m') v,

and at the end the output is a / l and the log-sum-exp m + log l. The backward pass keeps these two
and computes each tile of logits again: with weights p = e^(s - lse) and output cotangent g,

  ds = p (g . v - g . out).

`jax.vjp` of the tile's logits takes ds to q, k, the coordinates and every parameter of the encoding.
Tiles that the mask empties are passed over, in both directions.

Reference: Dao, 2023, https://arxiv.org/abs/2307.08691; Rabe and Staats, 2021,
https://arxiv.org/abs/2112.05682.
"""

import functools
import math
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.kernels._tile import Operands
from pe_jax.kernels._tile import Side
from pe_jax.kernels._tile import tile_logits
from pe_jax.kernels._tile import tile_output
from pe_jax.masks import tile_starts
from pe_jax.positions import expand

Array = jax.Array

HIDDEN = jnp.finfo(jnp.float32).min  # the logit of a key that a query may not see
LEAST = HIDDEN / 2  # the smallest maximum: e^(HIDDEN - LEAST) is 0, in rows that see nothing too


def blockwise(
    q,
    k,
    v,
    q_coords,
    k_coords,
    *,
    encoding,
    params,
    mask,
    scale,
    length,
    softcap,
    tiles: tuple[int, int] | None = None,
):
  """Computes attention tile by tile; see `pe_jax.kernels` for the arguments.

  It has exact gradients to q, k, v, the coordinates, the parameters, scale and softcap. What it
  cannot do, `dense` can: forward-mode and second derivatives, and the `logits` hook.

  Args:
    tiles: queries and keys per tile, by `pe_jax.bind(blockwise, tiles=(128, 128))`; chosen by the
      size of the problem unless given.
  """
  if encoding.logits is not None:
    raise ValueError(
        f'blockwise cannot compute the logits hook of {encoding}, which sees whole rows: use '
        'pe_jax.kernels.dense.'
    )
  q_rows, k_rows = {'q': q}, {'k': k, 'v': v}
  if encoding.query is not None:
    q_rows = {'q': encoding.query(params, q, q_coords, length), **_raw(q, encoding)}
  if encoding.key is not None:
    k_rows = {'k': encoding.key(params, k, k_coords, length), 'v': v, **_raw(k, encoding)}
  shared = {'params': params, 'scale': scale, 'softcap': softcap}
  operands = Operands(Side(q_rows, q_coords), Side(k_rows, k_coords), shared)
  moving, fixed = _split(operands)
  return _attention(_plan(encoding, q, k, tiles), moving, fixed, mask)


def _raw(x: Array, encoding) -> dict[str, Array]:
  return {} if encoding.bias is None else {'raw': x}


# --- Tiles ---------------------------------------------------------------------------------------


class Plan(NamedTuple):
  """What is static: the encoding and the (queries, keys) per tile in each direction."""

  encoding: Any
  forward: tuple[int, int]
  backward: tuple[int, int]


def _plan(encoding, q: Array, k: Array, tiles: tuple[int, int] | None) -> Plan:
  rows = math.prod(q.shape[:-3]) * q.shape[-2]
  forward, backward = (256, 512), (256, 256)
  if encoding.reads_content or encoding.value is not None:  # these hold several arrays per entry
    forward = backward = (128, 128)
  if tiles is not None:
    forward = backward = tiles
  else:
    forward, backward = _shrink(forward, rows), _shrink(backward, rows)
  most = (q.shape[-3], k.shape[-3])
  return Plan(encoding, *(tuple(map(min, tile, most)) for tile in (forward, backward)))


def _shrink(tile: tuple[int, int], rows: int) -> tuple[int, int]:
  """Halves the longer side until a tile of all rows and heads fits a core's cache."""
  queries, keys = tile
  while rows * queries * keys > 2**20 and max(queries, keys) > 64:
    queries, keys = (queries, keys // 2) if keys >= queries else (queries // 2, keys)
  return queries, keys


def _lengths(operands: Operands) -> tuple[int, int]:
  return operands.queries.rows['q'].shape[-3], operands.keys.rows['k'].shape[-3]


def _start(i: Array, tokens: int, tile: int) -> Array:
  return tile_starts(tokens, tile)[i]


def _split(operands: Operands) -> tuple[Operands, Operands]:
  """Separates the leaves that have a gradient from integers, with None in the other's place."""
  moves = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact)
  return (
      jax.tree.map(lambda x: x if moves(x) else None, operands),
      jax.tree.map(lambda x: None if moves(x) else x, operands),
  )


def _join(moving: Operands, fixed: Operands) -> Operands:
  pick = lambda x, y: y if x is None else x
  return jax.tree.map(pick, moving, fixed, is_leaf=lambda x: x is None)


def _allowed(mask, lengths: tuple[int, int], tile: tuple[int, int], i: Array, j: Array):
  """Returns which entries of tile (i, j) count, [..., 1 or N, t, s]; None where all of them do."""
  (queries, keys), (q_tile, k_tile) = lengths, tile
  rows, columns = (_start(i, queries, q_tile), q_tile), (_start(j, keys, k_tile), k_tile)
  allowed = mask.tile(queries, keys, rows, columns).evaluate(q_tile, k_tile)
  if keys % k_tile:  # the last tile starts early: the tile before had its first keys
    fresh = (columns[0] + jnp.arange(k_tile) >= j * k_tile)[None, None]
    allowed = fresh if allowed is None else allowed & expand(fresh, allowed.ndim)
  return allowed


def _hide(logits: Array, allowed: Array | None) -> Array:
  return logits if allowed is None else jnp.where(expand(allowed, logits.ndim), logits, HIDDEN)


# --- Forward -------------------------------------------------------------------------------------


def _forward(plan: Plan, operands: Operands, mask) -> tuple[Array, Array]:
  queries, keys, _ = operands
  lengths = _lengths(operands)
  reached = mask.reached(*lengths, *plan.forward)
  order, counts = jnp.argsort(~reached, axis=1, stable=True), reached.sum(axis=1)
  *batch, _, heads, width = queries.rows['q'].shape
  q_tile, k_tile = plan.forward
  dtype = keys.rows['v'].dtype

  def fill(i, filled):
    start = _start(i, lengths[0], q_tile)
    own = queries.take(start, q_tile)

    def visit(n, running):
      largest, total, out = running
      j = order[i, n]
      tile = operands._replace(queries=own, keys=keys.take(_start(j, lengths[1], k_tile), k_tile))
      logits = tile_logits(plan.encoding, tile)
      logits = _hide(logits, _allowed(mask, lengths, plan.forward, i, j))
      larger = jnp.maximum(largest, logits.max(axis=-1))
      weights, fade = jnp.exp(logits - larger[..., None]), jnp.exp(largest - larger)
      out = out * fade[..., None] + tile_output(plan.encoding, weights, tile)
      return larger, total * fade + weights.sum(axis=-1), out

    zeros = jnp.zeros((*batch, heads, q_tile))
    running = (zeros + LEAST, zeros, jnp.zeros((*batch, heads, q_tile, width)))
    largest, total, out = jax.lax.fori_loop(0, counts[i], visit, running)
    sees = total > 0
    out = jnp.where(sees[..., None], out / jnp.where(sees, total, 1)[..., None], 0).astype(dtype)
    lse = jnp.where(sees, largest + jnp.log(jnp.where(sees, total, 1)), HIDDEN)
    done = jnp.swapaxes(out, -2, -3), jnp.swapaxes(lse, -1, -2)
    return tuple(
        jax.lax.dynamic_update_slice_in_dim(x, new, start, len(batch)) for x, new in zip(filled, done)
    )

  filled = jnp.zeros((*batch, lengths[0], heads, width), dtype), jnp.zeros((*batch, lengths[0], heads))
  return jax.lax.fori_loop(0, counts.size, fill, filled)


# --- Backward ------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan: Plan, moving: Operands, fixed: Operands, mask):
  """Runs `_forward`; `moving` has the leaves that have a gradient, `fixed` all others."""
  return _forward(plan, _join(moving, fixed), mask)


def _attention_forward(plan, moving, fixed, mask):
  kept = _attention(plan, moving, fixed, mask)
  return kept, (moving, fixed, mask, kept)


def _attention_backward(plan, residuals, cotangents):
  moving, fixed, mask, (out, lse) = residuals
  lengths, (q_tile, k_tile) = _lengths(moving), plan.backward
  reached = mask.reached(*lengths, q_tile, k_tile)
  order = jnp.argsort(~reached.ravel(), stable=True)
  by_out = cotangents[0].astype(jnp.float32)
  drop = jnp.einsum('...h,...h->...', by_out, out.astype(jnp.float32)) - cotangents[1]

  def visit(n, grads):
    i, j = order[n] // reached.shape[1], order[n] % reached.shape[1]
    q_start, k_start = _start(i, lengths[0], q_tile), _start(j, lengths[1], k_tile)
    tile, still = (
        x._replace(queries=x.queries.take(q_start, q_tile), keys=x.keys.take(k_start, k_tile))
        for x in (moving, fixed)
    )
    by_head = lambda x: jnp.swapaxes(
        jax.lax.dynamic_slice_in_dim(x, q_start, q_tile, lse.ndim - 2), lse.ndim - 2, lse.ndim - 1
    )
    fresh = q_start + jnp.arange(q_tile) >= i * q_tile  # the last tile starts early
    bound = jnp.where(expand(fresh, lse.ndim), jnp.maximum(by_head(lse), LEAST), jnp.inf)
    logits, to_logits = jax.vjp(lambda x: tile_logits(plan.encoding, _join(x, still)), tile)
    logits = _hide(logits, _allowed(mask, lengths, plan.backward, i, j))
    weights = jnp.exp(logits - bound[..., None])
    _, to_output = jax.vjp(
        lambda w, x: tile_output(plan.encoding, w, _join(x, still)), weights, tile
    )
    by_weights, by_output = to_output(by_head(by_out))
    (by_logits,) = to_logits(weights * (by_weights - by_head(drop)[..., None]))
    terms = jax.tree.map(jnp.add, by_output, by_logits)
    return Operands(
        grads.queries.add(q_start, terms.queries),
        grads.keys.add(k_start, terms.keys),
        jax.tree.map(jnp.add, grads.shared, terms.shared),
    )

  wide = lambda x: jnp.zeros(jnp.shape(x), jnp.promote_types(x.dtype, jnp.float32))
  grads = jax.lax.fori_loop(0, reached.sum(), visit, jax.tree.map(wide, moving))
  return jax.tree.map(lambda grad, x: grad.astype(x.dtype), grads, moving), None, None


_attention.defvjp(_attention_forward, _attention_backward)
