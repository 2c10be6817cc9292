# SPDX-License-Identifier: Apache-2.0
"""Distances laid out by diagonal of tiles, against the whole array of pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.kernels import _flash_diagonals as diagonals

SIZES = [(512, 512), (384, 256), (1024, 384), (128, 1024)]


def tiles_of(sizes):
  tiles = diagonals.Tiles(*sizes)
  (rows, columns), (t, s) = tiles.counts, tiles.shape
  for i in range(rows):
    for j in range(columns):
      yield tiles.window(i, j), slice(i * t, i * t + t), slice(j * s, j * s + s)


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_the_windows_hold_what_belongs_to_every_pair(sizes):
  tiles, (queries, keys) = diagonals.Tiles(*sizes), sizes
  of_distance = np.random.default_rng(0).normal(size=queries + keys - 1).astype(np.float32)
  of_pair = of_distance[np.arange(keys)[:, None] - np.arange(queries) + queries - 1]
  blocks = diagonals.lay_out(jnp.asarray(of_distance), tiles)
  expand = jax.jit(diagonals.expand, static_argnums=1)
  for window, across, down in tiles_of(sizes):
    tile = expand(blocks[jnp.asarray(window)].reshape(1, -1), tiles.shape[1])
    np.testing.assert_array_equal(tile, of_pair[down, across])


@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_cotangents_of_pairs_reach_their_distance(sizes):
  tiles, (queries, keys) = diagonals.Tiles(*sizes), sizes
  of_pair = np.random.default_rng(0).normal(size=(keys, queries)).astype(np.float32)
  want = [np.trace(of_pair.T, offset=d, dtype=np.float64) for d in range(1 - queries, keys)]
  by_blocks = np.zeros(tiles.blocks, np.float32)
  collapse = jax.jit(diagonals.collapse)
  for window, across, down in tiles_of(sizes):
    by_blocks[window] += collapse(jnp.asarray(of_pair[down, across])).reshape(len(window), -1)
  zeros = jnp.zeros(queries + keys - 1)
  _, to_distance = jax.vjp(lambda x: diagonals.lay_out(x, tiles), zeros)
  np.testing.assert_allclose(to_distance(jnp.asarray(by_blocks))[0], want, atol=1e-4)
