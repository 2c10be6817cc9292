# SPDX-License-Identifier: Apache-2.0
"""What the TPU's kernels do with one tile of logits of one head, forward and backward.

A tile lies with its s keys down and its t queries across. What belongs to a query, as the largest
logit, is then a row of registers, and sums over the keys are plain additions of registers.
"""

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp

from pe_jax.kernels import _flash_diagonals as diagonals
from pe_jax.kernels._blockwise import HIDDEN
from pe_jax.kernels._blockwise import LEAST
from pe_jax.kernels._flash_diagonals import Tiles

Array = jax.Array


def forward(visits, refs, out, lse, largest, total, running, room=None, *, hook, sides, tiles):
  """Adds a tile of keys to the running sums of a tile of queries: the online softmax.

  Args:
    visits: which tile each step of the grid loads, see `Blocks.visits`.
    refs: what the tile reads, by name.
    out, lse: what the last tile of keys writes, [t, H] and [1, t].
    largest, total, running: the sums so far, [1, t], [1, t] and [H, t].
    room: [s, t], where the hook computes a bias.
    hook: see `_flash_hook`.
    sides: how many tokens before and after itself a query sees, None for all of them.
    tiles: how the tokens are cut.
  """

  window = tiles.window(pl.program_id(2), pl.program_id(3))

  @pl.when(pl.program_id(3) == 0)
  def start():
    largest[...] = jnp.full_like(largest, LEAST)
    total[...] = jnp.zeros_like(total)
    running[...] = jnp.zeros_like(running)

  @pl.when(_is_visited(visits))
  def add():
    logits = _logits(refs, hook, sides, window, room)
    before, v = largest[...], refs['v'][...]
    larger = jnp.maximum(before, logits.max(axis=0, keepdims=True))
    weights, fade = jnp.exp(logits - larger), jnp.exp(before - larger)
    total[...] = total[...] * fade + weights.sum(axis=0, keepdims=True)
    running[...] = running[...] * fade + _dot(v, weights.astype(v.dtype), contract=(0, 0))
    largest[...] = larger

  @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
  def finish():
    sees = total[...] > 0
    divisor = jnp.where(sees, total[...], 1)
    out[...] = (running[...] / divisor).T
    lse[...] = jnp.where(sees, largest[...] + jnp.log(divisor), HIDDEN)


def backward(
    visits, refs, grads, by_q, by_k, by_v, room=None, *, hook, sides, tiles: Tiles, groups: int
):
  """Adds what a tile gives to the gradients of q, k, v and of the window of its diagonal.

  Args:
    visits, refs, room, hook, sides, tiles: as for `forward`; refs has the cotangent of the output
      too, the log-sum-exp, and what every cotangent of a weight is lowered by.
    grads: of a tile of queries 'q' [t, H] and, by query, 'scale' [1, t]; of all keys of a key head
      'k' and 'v' [S, H]; of all windows of a head, where they are read, 'windows' [blocks,
      min(s, t)]; of what a hook reads, by query, of the head 'head' [F, t] and 'queries' [F, t].
    by_q, by_k, by_v: the sums so far, float32, of a tile of queries [H, t] and all keys [S, H].
    groups: heads that share a key head.
  """
  n, i, j = (pl.program_id(axis) for axis in (1, 2, 3))
  window, size = tiles.window(i, j), refs['k'].shape[0]
  keys = pl.ds(pl.multiple_of(j * size, size), size)

  @pl.when((jax.lax.rem(n, groups) == 0) & (i == 0))
  def start_keys():
    for total in (by_k, by_v):
      total[keys] = jnp.zeros((size, total.shape[1]))

  @pl.when(j == 0)
  def start_queries():
    by_q[...] = jnp.zeros_like(by_q)
    if 'queries' in grads:
      grads['queries'][...] = jnp.zeros_like(grads['queries'])

  @pl.when((i == 0) & (j == 0))
  def start_head():
    for name in grads.keys() & {'windows', 'head'}:
      grads[name][...] = jnp.zeros_like(grads[name])

  @pl.when(_is_visited(visits))
  def add():
    q, k, v, by_out = (refs[name][...] for name in ('q', 'k', 'v', 'by_out'))
    weights = jnp.exp(_logits(refs, hook, sides, window, room) - refs['lse'][...])
    by_logits = weights * (_dot(v, by_out, contract=(1, 1)) - refs['drop'][...])
    if 'windows' in grads:
      diagonals.add(grads['windows'], window, diagonals.collapse(by_logits))
    if 'head' in grads:
      hook.add_gradients(refs, room, by_logits, grads)
    by_logits = by_logits.astype(k.dtype)
    by_v[keys] += _dot(weights.astype(v.dtype), by_out, contract=(1, 0))
    by_k[keys] += _dot(by_logits, q, contract=(1, 0))
    by_q[...] += _dot(k, by_logits, contract=(0, 0))

  @pl.when(j == pl.num_programs(3) - 1)
  def finish_queries():
    grads['q'][...] = (refs['scale'][0, 0] * by_q[...]).T.astype(grads['q'].dtype)
    by_scale = by_q[...] * refs['q'][...].astype(jnp.float32).T
    grads['scale'][...] = by_scale.sum(axis=0, keepdims=True)

  @pl.when((jax.lax.rem(n, groups) == groups - 1) & (i == pl.num_programs(2) - 1))
  def finish_keys():
    grads['k'][keys] = (refs['scale'][0, 0] * by_k[keys]).astype(grads['k'].dtype)
    grads['v'][keys] = by_v[keys].astype(grads['v'].dtype)


def _is_visited(visits) -> Array:
  """Whether the mask leaves something of the tile of this step: else another one is loaded."""
  tile = pl.program_id(2) * pl.num_programs(3) + pl.program_id(3)
  return visits[tile] == tile


def _logits(refs, hook, sides, window, room) -> Array:
  """Computes the logits of a tile, [s, t]."""
  logits = refs['scale'][0, 0] * _dot(refs['k'][...], refs['q'][...], contract=(1, 1))
  if 'windows' in refs:
    logits += diagonals.expand(diagonals.read(refs['windows'], window), logits.shape[0])
  if 'head' in refs:
    logits += hook.bias(refs, room)
  for allowed in _allowed(refs, sides):
    logits = jnp.where(allowed, logits, HIDDEN)
  return logits


def _allowed(refs, sides) -> list[Array]:
  """Lists what the mask asks of a key, each [s, t]."""
  allowed, (left, right) = [], sides
  if left is not None:
    allowed.append(refs['q_index'][...] - left <= refs['k_index'][...])
  if right is not None:
    allowed.append(refs['k_index'][...] <= refs['q_index'][...] + right)
  if 'q_segments' in refs:
    q_segments = refs['q_segments'][...]
    allowed += [refs['k_segments'][...] == q_segments, q_segments != 0]
  return allowed


def _dot(x: Array, y: Array, *, contract: tuple[int, int]) -> Array:
  # What is not float32 has no more bits than one pass keeps, and the compiler refuses to try.
  precision = None if x.dtype == jnp.float32 else 'default'
  axes = (((contract[0],), (contract[1],)), ((), ()))
  return jax.lax.dot_general(x, y, axes, precision=precision, preferred_element_type=jnp.float32)
