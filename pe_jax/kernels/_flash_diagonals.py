# SPDX-License-Identifier: Apache-2.0
"""A bias of the distance alone as the TPU's kernels hold it: by diagonal of tiles, not by pair.

Positions that count by one have T + S - 1 distances. A tile lies with its keys down and its queries
across, so its entry (c, r) has distance c - r plus what all of its diagonal share, and all tiles of
one diagonal are the same s x t numbers: w[r - c + s], a window of s + t numbers. HBM holds a window
eight times, the m-th copy shifted by m, which are the eight sublanes of a register. The other rows
of a tile are those eight, rotated by 8, 16, ... lanes, and by whole registers, which is free.

`lay_out` makes the windows and is plain JAX, so `jax.vjp` of it takes their cotangents back to the
distances; `expand` and `collapse` run in the kernels and are each other's transpose.
"""

import math
from typing import NamedTuple

import jax
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
  def diagonals(self) -> int:
    """Returns how many windows of distances the tiles have."""
    return sum(self) // min(self.shape) - sum(self.shape) // min(self.shape) + 1

  def diagonal(self, i, j):
    """Returns the window of tile (i, j)."""
    t, s = (size // min(self.shape) for size in self.shape)
    return i * t + (self.counts[1] - 1 - j) * s


def lay_out(by_distance: Array, tiles: Tiles) -> Array:
  """Cuts what distances have into the windows of the diagonals.

  Args:
    by_distance: shape [..., T + S - 1], from the first key less the last query on.
    tiles: of T queries and S keys.

  Returns:
    Windows, shape [..., diagonals, 8, s + t].
  """
  batch = by_distance.shape[:-1]
  step, length = min(tiles.shape), sum(tiles)
  reversed_ = jnp.flip(by_distance, -1)
  padded = jnp.concatenate([jnp.zeros((*batch, SUBLANES), by_distance.dtype), reversed_], axis=-1)
  starts = range(SUBLANES - 1, -1, -1)
  copies = jnp.stack([padded[..., start : start + length] for start in starts], axis=-2)
  blocks = jnp.swapaxes(copies.reshape(*batch, SUBLANES, -1, step), -2, -3)
  ahead = range(sum(tiles.shape) // step)
  return jnp.concatenate([blocks[..., n : n + tiles.diagonals, :, :] for n in ahead], axis=-1)


def expand(window: Array, keys: int) -> Array:
  """Spreads a window [8, s + t] over a tile [s, t] of `keys` keys."""
  queries = window.shape[1] - keys
  shifts = range(0, LANES, SUBLANES)
  strip = jnp.concatenate([_rotate(window, shift) for shift in shifts], axis=0)
  return jnp.concatenate(
      [strip[:, start : start + queries] for start in range(keys, 0, -LANES)], axis=0
  )


def collapse(tile: Array) -> Array:
  """Sums a tile [s, t] along its diagonals into a window [8, s + t]; undoes `expand`."""
  keys = tile.shape[0]
  strip = sum(
      jnp.pad(tile[first : first + LANES], ((0, 0), (keys - first, first)))
      for first in range(0, keys, LANES)
  )
  return sum(
      _rotate(strip[first : first + SUBLANES], strip.shape[1] - first)
      for first in range(0, LANES, SUBLANES)
  )


def _rotate(x: Array, shift: int) -> Array:
  shift %= x.shape[1]
  return pltpu.roll(x, shift, axis=1) if shift else x
