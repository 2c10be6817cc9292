# SPDX-License-Identifier: Apache-2.0
"""What the TPU's kernels read and write in a step of their grid, and where it lies.

The grid is (row of the batch, head, tile of queries, tile of keys), the last fastest. A `Block` is
an array and a `BlockSpec`, which says what part of it a step finds in the chip's fast memory. A
step whose tile the mask empties does nothing. Its inputs are those of the last tile before it that
is not empty, so that nothing is loaded for it.
"""

from collections.abc import Callable
import math
from typing import Any
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pe_jax.kernels._flash_diagonals import Tiles
from pe_jax.kernels._tile import Operands
from pe_jax.masks import Mask
from pe_jax.positions import expand

Array = jax.Array

_QUERIES, _KEYS = 0, 1  # the sides of a tile, in the order of the grid


class Block(NamedTuple):
  """An array, or the shape and dtype of one to be written, and what part of it a step has."""

  array: Any
  spec: pl.BlockSpec


class Blocks(NamedTuple):
  """Lays arrays out for the grid, which merges the `batch` axes of q, [..., N, T, H], into one."""

  tiles: Tiles
  batch: tuple[int, ...]
  heads: int
  kv_heads: int
  mesh_axes: Any  # over which q varies, and so what is written

  @classmethod
  def of(cls, operands: Operands) -> 'Blocks':
    """Makes those of q and k."""
    q, k = operands.queries.rows['q'], operands.keys.rows['k']
    tiles, axes = Tiles(q.shape[-2], k.shape[-2]), jax.typeof(q).manual_axis_type
    return cls(tiles, q.shape[:-3], q.shape[-3], k.shape[-3], axes)

  @property
  def grid(self) -> tuple[int, ...]:
    """Returns the rows of the batch, heads, tiles of queries and tiles of keys."""
    return math.prod(self.batch), self.heads, *self.tiles.counts

  @property
  def groups(self) -> int:
    """Returns how many heads share a key head."""
    return self.heads // self.kv_heads

  def visits(self, mask: Mask) -> Array:
    """Returns the tile that every step loads, by number: its own if the mask leaves any of it."""
    reached = mask.reached(*self.tiles, *self.tiles.shape).ravel()
    return jax.lax.cummax(jnp.where(reached, jnp.arange(reached.size, dtype=jnp.int32), -1))

  def queries(self, x: Array) -> Block:
    """Cuts [..., N, T, H] into [t, H]."""
    shape = self.tiles.shape[_QUERIES], x.shape[-1]
    return self._read(_one_batch(x, 3), shape, lambda b, n, i, j: (b, n, i, 0))

  def keys(self, x: Array) -> Block:
    """Cuts [..., K, S, H] into [s, H]."""
    shape = self.tiles.shape[_KEYS], x.shape[-1]
    at = lambda b, n, i, j: (b, jax.lax.div(n, self.groups), j, 0)
    return self._read(_one_batch(x, 3), shape, at)

  def per_query(self, x: Array) -> Block:
    """Cuts [..., N, T] into [1, t]."""
    x = _one_batch(x[..., None, :], 3)
    return self._read(x, (1, self.tiles.shape[_QUERIES]), lambda b, n, i, j: (b, n, 0, i))

  def across(self, x: Array, side: int) -> Block:
    """Cuts numbers of one side of the tiles, [..., tokens], into rows [1, tile]."""
    x = self._merge(x)[:, None, :]
    at = lambda b, n, *tile: (_one(x.shape[0], b), 0, tile[side])
    return self._read(x, (1, self.tiles.shape[side]), at)

  def down(self, x: Array, side: int) -> Block:
    """Cuts numbers of one side of the tiles, [..., tokens], into columns [tile, 1]."""
    x = self._merge(x)[:, :, None]
    at = lambda b, n, *tile: (_one(x.shape[0], b), tile[side], 0)
    return self._read(x, (self.tiles.shape[side], 1), at)

  def windows(self, x: Array) -> Block:
    """Takes of [B or 1, N or 1, blocks, min(s, t)] the windows of all tiles of a head."""
    rows, heads = x.shape[:2]
    at = lambda b, n, i, j: (_one(rows, b), _one(heads, n), 0, 0)
    return self._read(x, x.shape[-2:], at)

  def numbers(self, x: dict[str, Array]) -> dict[str, Block]:
    """Cuts what `Hook.outside` gives into [1, F] of a head, [F, t] and [s, F]."""
    head, queries, keys = x['head'], x['queries'], x['keys']
    rows, (t, s) = queries.shape[0], self.tiles.shape
    of_head = self._read(head, head.shape[1:], lambda b, n, i, j: (n, 0, 0), pltpu.SMEM)
    of_queries = lambda b, n, i, j: (_one(rows, b), n, 0, i)
    of_keys = lambda b, n, i, j: (_one(rows, b), 0, j, 0)
    return {
        'head': of_head,
        'queries': self._read(queries, (queries.shape[2], t), of_queries),
        'keys': self._read(keys, (s, keys.shape[3]), of_keys),
    }

  def _read(self, x: Array, shape: tuple[int, ...], at: Callable, space=None) -> Block:
    columns = self.tiles.counts[_KEYS]

    def index(b, n, i, j, visits):
      tile = jnp.maximum(visits[i * columns + j], 0)
      return at(b, n, jax.lax.div(tile, columns), jax.lax.rem(tile, columns))

    return Block(x, _spec(x.ndim, shape, index, space))

  def _merge(self, x: Array) -> Array:
    """Merges the batch axes of [..., tokens]; an array that rows share keeps an axis of 1."""
    x = expand(x, len(self.batch) + 1)
    shared = all(size == 1 for size in x.shape[:-1])
    batch = x.shape[:-1] if shared else self.batch
    return jnp.broadcast_to(x, (*batch, x.shape[-1])).reshape(-1, x.shape[-1])

  def out_queries(self, width: int, dtype: Any) -> Block:
    """Makes [B, N, T, H] to be written by [t, H]."""
    shape = self.tiles.shape[_QUERIES], width
    whole = *self.grid[:2], self.tiles.queries, width
    return self._write(whole, dtype, shape, lambda b, n, i, j, _: (b, n, i, 0))

  def out_per_query(self) -> Block:
    """Makes [B, N, 1, T] to be written by [1, t]."""
    shape = 1, self.tiles.shape[_QUERIES]
    whole = *self.grid[:2], 1, self.tiles.queries
    return self._write(whole, jnp.float32, shape, lambda b, n, i, j, _: (b, n, 0, i))

  def out_keys(self, width: int, dtype: Any) -> Block:
    """Makes [B, K, S, H] to be written a key head at a time."""
    shape = self.tiles.keys, width
    at = lambda b, n, i, j, _: (b, jax.lax.div(n, self.groups), 0, 0)
    return self._write((self.grid[0], self.kv_heads, *shape), dtype, shape, at)

  def out_numbers(self, x: dict[str, Array]) -> dict[str, Block]:
    """Makes [B, N, F, t], written a head at a time, and [B, N, F, T], by [F, t]."""
    t = self.tiles.shape[_QUERIES]
    of_head, of_queries = (x['head'].shape[-1], t), (x['queries'].shape[-2], t)
    at_head, at_queries = (lambda b, n, i, j, _: (b, n, 0, 0)), (lambda b, n, i, j, _: (b, n, 0, i))
    whole = *self.grid[:2], of_queries[0], self.tiles.queries
    return {
        'head': self._write((*self.grid[:2], *of_head), jnp.float32, of_head, at_head),
        'queries': self._write(whole, jnp.float32, of_queries, at_queries),
    }

  def out_windows(self) -> Block:
    """Makes [B, N, blocks, min(s, t)] to be written a head at a time."""
    whole, at = (*self.grid[:2], *self.tiles.blocks), lambda b, n, i, j, _: (b, n, 0, 0)
    return self._write(whole, jnp.float32, self.tiles.blocks, at)

  def _write(self, whole: tuple[int, ...], dtype: Any, shape: tuple[int, ...], at) -> Block:
    written = jax.ShapeDtypeStruct(whole, dtype, manual_axis_type=self.mesh_axes)
    return Block(written, _spec(len(whole), shape, at))

  def split_batch(self, x: Array) -> Array:
    """Gives [B, ...] the batch axes of q."""
    return x.reshape(*self.batch, *x.shape[1:])


def _spec(ndim: int, shape: tuple[int, ...], at: Callable, space=None) -> pl.BlockSpec:
  return pl.BlockSpec((*(None,) * (ndim - len(shape)), *shape), at, memory_space=space)


def _one(size: int, index):
  """Returns the index along an axis of this size, which is 1 where all share what is there."""
  return index if size > 1 else 0


def _one_batch(x: Array, ndim: int) -> Array:
  """Merges all axes before the last `ndim` into one."""
  return x.reshape(-1, *x.shape[-ndim:])


# --- All that a tile reads -----------------------------------------------------------------------


def of_tile(blocks: Blocks, operands: Operands, mask: Mask, bias: dict[str, Array]):
  """Lists the blocks that both passes read, by name; see `_flash_calls` for the arguments."""
  queries, keys, shared = operands
  q_index, k_index = mask.indices(*blocks.tiles)
  scale = jnp.asarray(shared['scale'], jnp.float32).reshape(1, 1)
  inputs = {
      'q': blocks.queries(queries.rows['q']),
      'k': blocks.keys(keys.rows['k']),
      'v': blocks.keys(keys.rows['v']),
      'scale': Block(scale, pl.BlockSpec(memory_space=pltpu.SMEM)),
      'q_index': blocks.across(q_index, _QUERIES),
      'k_index': blocks.down(k_index, _KEYS),
  }
  if mask.q_segments is not None:
    inputs['q_segments'] = blocks.across(mask.q_segments, _QUERIES)
    inputs['k_segments'] = blocks.down(mask.k_segments, _KEYS)
  if 'windows' in bias:
    inputs['windows'] = blocks.windows(bias['windows'])
  if 'head' in bias:
    inputs |= blocks.numbers(bias)
  return inputs
