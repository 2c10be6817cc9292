# SPDX-License-Identifier: Apache-2.0
"""Positions that are drawn by chance."""

import functools

import jax
import numpy as np
import pytest

from pe_jax import positions

LENGTH, MOST, DRAWS = 5, 16, 1000


@functools.cache
def draws():
  """One draw for each of many keys, by vmap."""
  keys = jax.random.split(jax.random.key(7), DRAWS)
  draw = functools.partial(positions.randomize, length=LENGTH, max_length=MOST)
  return np.asarray(jax.vmap(draw)(keys))


def test_positions_increase_without_repeats_and_stay_in_range():
  found = draws()
  assert found.shape == (DRAWS, LENGTH) and found.dtype == np.int32
  assert (np.diff(found, axis=1) > 0).all()
  assert found.min() >= 0 and found.max() < MOST


def test_equal_keys_draw_equal_positions_and_others_do_not():
  keys = jax.random.split(jax.random.key(7), DRAWS)
  for row in (0, 1, 2):
    alone = positions.randomize(keys[row], length=LENGTH, max_length=MOST)
    np.testing.assert_array_equal(alone, draws()[row])
  assert len(np.unique(draws(), axis=0)) > 500  # of 4368 sets


def test_every_position_is_drawn_as_often_as_any_other():
  """Each with probability 5 / 16, within 4 standard deviations of a binomial count."""
  share = LENGTH / MOST
  counts = np.bincount(draws().ravel(), minlength=MOST)
  assert np.abs(counts - share * DRAWS).max() < 4 * np.sqrt(DRAWS * share * (1 - share))


def test_every_pair_is_drawn_as_often_as_any_other():
  """Each with probability 5 / 16 x 4 / 15, so neighbours are no more likely together."""
  member = (draws()[:, :, None] == np.arange(MOST)).any(axis=1)
  pairs = (member[:, :, None] & member[:, None, :]).sum(axis=0)[np.triu_indices(MOST, 1)]
  share = LENGTH / MOST * (LENGTH - 1) / (MOST - 1)
  assert np.abs(pairs - share * DRAWS).max() < 5 * np.sqrt(DRAWS * share * (1 - share))


def test_as_many_positions_as_there_are_is_all_of_them():
  found = positions.randomize(jax.random.key(0), length=MOST, max_length=MOST)
  assert found.tolist() == list(range(MOST))


def test_more_positions_than_there_are_is_refused():
  with pytest.raises(ValueError, match='length=17 .* max_length=16: raise max_length'):
    positions.randomize(jax.random.key(0), length=17, max_length=16)
