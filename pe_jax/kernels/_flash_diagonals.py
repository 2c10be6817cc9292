# SPDX-License-Identifier: Apache-2.0
"""A bias of the distance alone as the TPU's kernels hold it: by distance, not by pair.

Positions that count by one have T + S - 1 distances. A tile lies with its keys down and its queries
across, so its entry (c, r) has distance c - r plus what all of its diagonal share, and all tiles of
one diagonal are the same s x t numbers: w[r - c + s - 1], a window of s + t - 1 numbers, and one
more that is not read. The windows of neighbours overlap: all are cut from one row of T + S numbers,
which HBM holds in blocks of min(s, t), as every window starts with a block.

A row of a tile is its window, rotated. Eight rows are one strided rotation of a register; the other
rows are those eight, rotated by 8, 16, ... lanes, and by whole registers, which is free.

`lay_out` makes the blocks and is plain JAX, so `jax.vjp` of it takes their cotangents back to the
distances; `read` and `add`, `expand` and `collapse` run in the kernels and are transposes.
"""

import math
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

Array = jax.Array

SUBLANES, LANES = 8, 128  # of a TPU's registers


class Tiles(NamedTuple):
  """How T queries and S keys are cut into tiles, of 128, 256 or 512 tokens."""

  queries: int
  keys: int

  @property
  def shape(self) -> tuple[int, int]:
    """Returns the queries and the keys of one tile."""
    return tuple(math.gcd(tokens, 4 * LANES) for tokens in self)

  @property
  def counts(self) -> tuple[int, int]:
    """Returns the numbers of tiles."""
    return tuple(tokens // size for tokens, size in zip(self, self.shape))

  @property
  def blocks(self) -> tuple[int, int]:
    """Returns how many blocks of distances there are, and how many numbers one has."""
    return sum(self) // min(self.shape), min(self.shape)

  def window(self, i, j) -> list:
    """Returns the blocks of the window of tile (i, j)."""
    t, s = (size // min(self.shape) for size in self.shape)
    first = i * t + (self.counts[1] - 1 - j) * s
    return [first + n for n in range(t + s)]


def lay_out(by_distance: Array, tiles: Tiles) -> Array:
  """Cuts what distances have into blocks.

  Args:
    by_distance: shape [..., T + S - 1], from the first key less the last query on.
    tiles: of T queries and S keys.

  Returns:
    Shape [..., blocks, min(s, t)], the last distance first, and a zero at the end.
  """
  batch = by_distance.shape[:-1]
  padded = jnp.concatenate([jnp.zeros((*batch, 1), by_distance.dtype), by_distance], axis=-1)
  return jnp.flip(padded, -1).reshape(*batch, *tiles.blocks)


def read(blocks, window: list) -> Array:
  """Reads a window, [1, s + t]."""
  return jnp.concatenate([blocks[pl.ds(block, 1)] for block in window], axis=1)


def add(blocks, window: list, terms: Array):
  """Adds terms [1, s + t] to a window."""
  for block, part in zip(window, jnp.split(terms, len(window), axis=1)):
    blocks[pl.ds(block, 1)] += part


def expand(window: Array, keys: int) -> Array:
  """Spreads a window [1, s + t] over a tile [s, t] of `keys` keys."""
  queries = window.shape[1] - keys
  rows = jnp.broadcast_to(window, (SUBLANES, window.shape[1]))
  rows = pltpu.roll(rows, 1, axis=1, stride=1, stride_axis=0)
  strip = jnp.concatenate([_rotate(rows, shift) for shift in range(0, LANES, SUBLANES)], axis=0)
  return jnp.concatenate(
      [strip[:, start : start + queries] for start in range(keys, 0, -LANES)], axis=0
  )


def collapse(tile: Array) -> Array:
  """Sums a tile [s, t] along its diagonals into a window [1, s + t]; undoes `expand`."""
  keys = tile.shape[0]
  strip = sum(
      jnp.pad(tile[first : first + LANES], ((0, 0), (keys - first, first)))
      for first in range(0, keys, LANES)
  )
  rows = sum(
      _rotate(strip[first : first + SUBLANES], -first) for first in range(0, LANES, SUBLANES)
  )
  for half in (4, 2, 1):
    rows = rows[:half] + _rotate(rows[half:], -half)
  return _rotate(rows, -1)


def _rotate(x: Array, shift: int) -> Array:
  shift %= x.shape[1]
  return pltpu.roll(x, shift, axis=1) if shift else x
