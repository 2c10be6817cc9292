# SPDX-License-Identifier: Apache-2.0
"""Loss by length, against loops in numpy."""

from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from experiments import evaluate
from experiments import train
import pe_jax

TEXT = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint8)


@given(st.integers(2, 60), st.integers(1, 400), st.integers(61, 500))
def test_stretches_do_not_overlap_and_reach_both_ends(length, size, available):
  text = np.arange(available) % 251
  found = evaluate.stretches(text, length=length, size=size)
  count = max(1, min(size, available - 1) // length)
  assert found.shape == (count, length + 1)
  positions = evaluate.stretches(np.arange(available), length=length, size=size)
  assert (np.diff(positions, axis=1) == 1).all()
  assert (np.diff(positions[:, 0]) >= length).all()
  assert positions[0, 0] == 0
  if count > 1:
    assert positions[-1, -1] == available - 1
  assert (found == text[positions]).all()


def test_windows_of_every_length_predict_the_same_bytes():
  stretches = evaluate.stretches(TEXT, length=12, size=60)
  for length in (1, 2, 3, 4, 6, 12):
    rows = evaluate.windows(stretches, length)
    assert rows.shape == (60 // length, length + 1)
    assert (rows[:, 1:].ravel() == stretches[:, 1:].ravel()).all()
    assert (rows[:, :-1].ravel() == stretches[:, :-1].ravel()).all()


def test_lengths_are_multiples_of_the_window(make_config):
  config = make_config({'window': 8, 'evaluate.times': (1, 1.5, 4.0)})
  assert evaluate.lengths(config) == [8, 12, 32]
  assert evaluate.stretch_length(config) == 96


@pytest.fixture(scope='module')
def models(make_config):
  members = train.members(make_config())
  recipe = train.recipe(make_config(), pe_jax.rope())
  return train.init(members.seed, members.hypers, recipe=recipe).model


def loop(models, member: int, rows: np.ndarray) -> np.ndarray:
  """Computes the loss of every byte of every row in float64 from the logits of one member."""
  model = jax.tree.map(lambda leaf: leaf[member], models)
  logits = np.asarray(jax.jit(lambda model, x: model(x))(model, rows[:, :-1].astype(np.int32)))
  losses = np.zeros(logits.shape[:2])
  for i, t in np.ndindex(losses.shape):
    z = logits[i, t].astype(np.float64)
    losses[i, t] = np.log(np.exp(z).sum()) - z[rows[i, t + 1]]
  return losses


def test_losses_are_means_over_bytes_whatever_the_batch(make_config, models):
  config = make_config({'evaluate.bytes': 112})
  found = evaluate.by_length(models, TEXT, config, max_length=None)
  stretches = evaluate.stretches(TEXT, length=16, size=112)
  for entry, length in zip(found, (8, 16), strict=True):
    assert (entry['length'], entry['bytes']) == (length, 112)
    rows = evaluate.windows(stretches, length)
    for member in (0, 1):
      losses = loop(models, member, rows)
      quarter = losses[:, length - length // 4 :]
      assert entry['loss'][member] == pytest.approx(losses.mean(), abs=1e-5)
      assert entry['last_quarter'][member] == pytest.approx(quarter.mean(), abs=1e-5)
  rows = evaluate.windows(stretches, 8)
  whole = evaluate.losses_by_position(models, rows, batch=14)
  for batch in (4, 100):  # 14 rows: with two rows of padding, with 86
    np.testing.assert_allclose(
        evaluate.losses_by_position(models, rows, batch=batch), whole, atol=1e-5
    )


def test_a_length_past_the_table_gets_a_reason(make_config, models):
  found = evaluate.by_length(models, TEXT, make_config(), max_length=8)
  assert 'loss' in found[0]
  assert found[1] == {'length': 16, 'reason': 'its table ends at 8 positions'}
