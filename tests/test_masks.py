# SPDX-License-Identifier: Apache-2.0
"""Masks against the definition, entry by entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax import Mask


def in_blocks_of_three(q_index, k_index):
  return (q_index // 3 + k_index // 3) % 2 == 0


def evaluate(mask, queries, keys):
  return np.asarray(mask.evaluate(queries, keys)).astype(int)


def test_causal_is_aligned_at_the_end():  # google/flax #5591
  assert evaluate(Mask(causal=True), 2, 5).tolist() == [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]
  assert evaluate(Mask(causal=True), 1, 5).tolist() == [[[1, 1, 1, 1, 1]]]
  assert evaluate(Mask(causal=True), 5, 2)[0].tolist() == [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]


def test_a_window_counts_the_token_itself():  # huggingface/transformers #39408
  rows = [''.join(map(str, row)) for row in evaluate(Mask(causal=True, window=3), 6, 6)[0]]
  assert rows == ['100000', '110000', '111000', '011100', '001110', '000111']
  assert (evaluate(Mask(window=1), 4, 4)[0] == np.eye(4)).all()
  ring = Mask(causal=True, window=3, q_index=jnp.array([5]), k_index=jnp.array([3, 4, 5]))
  assert evaluate(ring, 1, 3).tolist() == [[[1, 1, 1]]]


@pytest.mark.parametrize('window', [2, (0, 0), (1, 2), (3, 0)])
def test_a_window_without_causality_has_two_sides(window):
  left, right = window if isinstance(window, tuple) else (window - 1, window - 1)
  want = [[int(i - left <= j <= i + right) for j in range(6)] for i in range(6)]
  assert evaluate(Mask(window=window), 6, 6)[0].tolist() == want


def test_padding_neither_sees_nor_is_seen():
  segments = jnp.array([[1, 1, 2, 0], [0, 3, 3, 3]])
  got = evaluate(Mask(q_segments=segments, k_segments=segments), 4, 4)
  for row, ids in enumerate(np.asarray(segments)):
    want = [[int(a == b and a != 0) for b in ids] for a in ids]
    assert got[row, 0].tolist() == want


def block_of_two(q_index, k_index):
  return q_index // 2 == k_index // 2


def test_all_that_is_given_must_allow_it():
  dense = jnp.arange(16).reshape(4, 4) % 3 > 0
  mask = Mask(causal=True, where=block_of_two, dense=dense)
  want = [
      [int(j <= i and i // 2 == j // 2 and (4 * i + j) % 3 > 0) for j in range(4)] for i in range(4)
  ]
  assert evaluate(mask, 4, 4)[0].tolist() == want


def test_order_is_given_by_index_arrays():
  order = jnp.array([2, 0, 1])
  got = evaluate(Mask(causal=True, q_index=order, k_index=order), 3, 3)[0]
  assert got.tolist() == [[1, 1, 1], [0, 1, 0], [0, 1, 1]]


def test_an_empty_mask_forbids_nothing():
  assert Mask().evaluate(3, 3) is None
  assert not Mask(q_index=jnp.arange(3), k_index=jnp.arange(3)).restricts


def test_a_mask_is_a_pytree_with_static_options():
  mask = Mask(causal=True, window=(1, 0), q_segments=jnp.ones((2, 3)), k_segments=jnp.ones((2, 3)))
  leaves, tree = jax.tree.flatten(mask)
  assert len(leaves) == 2
  again = jax.tree.unflatten(tree, leaves)
  assert again.window == (1, 0) and again.causal
  seen = jax.jit(jax.vmap(lambda m: m.evaluate(3, 3)))(mask)
  assert (seen == mask.evaluate(3, 3)).all()


@pytest.mark.parametrize(
    'options, said',
    [
        ({'causal': 1}, 'causal=1'),
        ({'window': 0}, 'window=0'),
        ({'window': (1, 2, 3)}, r'window=\(1, 2, 3\)'),
        ({'window': (1,)}, r'window=\(1,\)'),
        ({'window': ()}, r'window=\(\)'),
        ({'window': 2.0}, 'window=2.0'),
        ({'q_segments': jnp.ones(3)}, 'give q_segments and k_segments'),
        ({'dense': jnp.zeros((3, 3))}, 'float32'),
    ],
)
def test_a_wrong_option_is_named(options, said):
  with pytest.raises(ValueError, match=said):
    Mask(**options)


# --- Tiles ---------------------------------------------------------------------------------------

SEGMENTS = jnp.array([[1] * 5 + [2] * 6 + [0] * 2, [3] * 13])
MASKS = {
    'all': Mask(),
    'causal': Mask(causal=True),
    'window': Mask(window=(2, 1)),
    'causal window': Mask(causal=True, window=3),
    'segments': Mask(causal=True, q_segments=SEGMENTS[:1], k_segments=SEGMENTS[:1]),
    'where': Mask(causal=True, where=in_blocks_of_three),
    'dense': Mask(dense=jax.random.bernoulli(jax.random.key(0), 0.1, (4, 13, 13))),
}


@pytest.mark.parametrize('mask', MASKS.values(), ids=MASKS)
def test_tiles_that_the_mask_empties_are_found(mask):
  allowed = mask.evaluate(13, 13)
  allowed = np.ones((1, 13, 13), bool) if allowed is None else np.asarray(allowed)
  allowed = allowed.reshape(-1, 13, 13).any(0)
  starts = [0, 4, 8, 9]
  want = [[allowed[i : i + 4, j : j + 4].any() for j in starts] for i in starts]
  np.testing.assert_array_equal(mask.reached(13, 13, 4, 4), want)


def test_rows_of_a_batch_keep_the_tiles_of_each():
  mask = Mask(q_segments=SEGMENTS, k_segments=SEGMENTS)
  assert mask.reached(13, 13, 4, 4).all()


def test_a_tile_of_a_mask_is_that_part_of_it():
  mask = Mask(
      causal=True,
      window=(4, 0),
      q_segments=SEGMENTS,
      k_segments=SEGMENTS[:, 3:],
      where=in_blocks_of_three,
      dense=jax.random.bernoulli(jax.random.key(0), 0.7, (4, 13, 10)),
  )
  whole = mask.evaluate(13, 10)
  part = mask.tile(13, 10, (5, 4), (jnp.int32(2), 6)).evaluate(4, 6)
  np.testing.assert_array_equal(part, whole[..., 5:9, 2:8])
