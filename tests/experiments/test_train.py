# SPDX-License-Identifier: Apache-2.0
"""Training: its batches, its loss, its optimizer, and that chunks and members do not matter."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import train
import pe_jax

TEXT = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)


@pytest.fixture(scope='module')
def run_steps():
  return jax.jit(train.run_steps, static_argnames='recipe')


def run(run_steps, config, bounds, encoding=None):
  """Trains from scratch in chunks that end at `bounds`; returns the state and the last loss."""
  recipe = train.recipe(config, encoding or pe_jax.rope())
  members = train.members(config)
  state, loss = train.init(members.seed, members.hypers, recipe=recipe), None
  for start, stop in zip([0, *bounds], bounds, strict=False):
    state, loss = run_steps(
        state, TEXT, members.seed, members.hypers, np.int32(start), np.int32(stop), recipe=recipe
    )
  return state, loss


def test_a_batch_is_a_function_of_seed_and_step_alone():
  def draw(seed, step):
    return train.draw_batch(jnp.asarray(TEXT), seed, step, batch=3, window=8)

  rows = draw(5, 7)
  assert (rows == draw(5, 7)).all()
  assert (rows == jax.jit(draw)(5, 7)).all()
  together = jax.vmap(draw, in_axes=(0, None))(jnp.array([4, 5]), 7)
  assert (together[1] == rows).all()
  for other in (draw(5, 8), draw(6, 7), together[0]):
    assert not (other == rows).all()


def test_the_target_of_a_byte_is_the_next_byte_of_the_text():
  ramp = np.arange(256, dtype=np.uint8)
  rows = np.asarray(train.draw_batch(ramp, 0, 0, batch=500, window=8))
  inputs, targets = rows[:, :-1], rows[:, 1:]
  assert (targets == inputs + 1).all()
  assert rows.min() == 0 and rows.max() == 255  # the first byte and the last are drawn


def test_the_loss_is_minus_the_log_probability_of_the_next_byte(make_config):
  recipe = train.recipe(make_config(), pe_jax.alibi())
  model = train.make_model(3, recipe=recipe)
  rows = np.asarray(train.draw_batch(TEXT, 0, 0, batch=64, window=8))
  losses = train.next_byte_losses(model, rows)
  logits = np.asarray(model(rows[:, :-1]), np.float64)
  for i in range(5):
    for t in range(8):
      total = sum(math.exp(z) for z in logits[i, t])
      expected = math.log(total) - logits[i, t, rows[i, t + 1]]
      assert losses[i, t] == pytest.approx(expected, abs=1e-5)
  assert float(losses.mean()) == pytest.approx(math.log(256), abs=0.5)


def test_the_optimizer_is_adamw_with_clipping_warm_up_and_cosine():
  hypers = {
      'learning_rate': 0.1,
      'warmup': 0.4,
      'final': 0.2,
      'weight_decay': 0.05,
      'clip_norm': 1.5,
      'b1': 0.8,
      'b2': 0.9,
      'eps': 1e-3,
  }
  gradients = np.random.default_rng(1).normal(size=(10, 4)) * 2
  optimizer = train.make_optimizer(hypers, steps=10)
  params = jnp.array([1.0, -2.0, 3.0, 0.5])
  state = optimizer.init(params)
  w, m, v = np.asarray(params, np.float64), np.zeros(4), np.zeros(4)
  for step, g in enumerate(gradients):
    updates, state = optimizer.update(jnp.asarray(g, jnp.float32), state, params)
    params = params + updates
    g = g * min(1.0, 1.5 / math.sqrt((g**2).sum()))
    m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
    direction = (m / (1 - 0.8 ** (step + 1))) / (np.sqrt(v / (1 - 0.9 ** (step + 1))) + 1e-3)
    cosine = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * step / 10))
    w = w - 0.1 * min(1.0, (step + 1) / 4) * cosine * (direction + 0.05 * w)
  np.testing.assert_allclose(params, w, rtol=1e-4)


def test_members_are_the_grid_times_the_seeds(make_config):
  members = train.members(
      make_config({'seed': 5, 'grid.learning_rate': (1e-3, 1), 'grid.b1': (0.5,)})
  )
  assert members.points == ({'learning_rate': 1e-3, 'b1': 0.5}, {'learning_rate': 1.0, 'b1': 0.5})
  assert members.seed.tolist() == [5, 6, 5, 6]
  np.testing.assert_allclose(members.hypers['learning_rate'], [1e-3, 1e-3, 1, 1])
  np.testing.assert_allclose(members.hypers['b1'], [0.5] * 4)
  np.testing.assert_allclose(members.hypers['b2'], [make_config().optimizer.b2] * 4)
  assert len(set(members.labels())) == 4


def test_a_member_trains_as_it_would_alone(make_config, run_steps):
  together, loss = run(run_steps, make_config({'grid.learning_rate': (1e-3, 1e-2)}), [4])
  for i, (rate, seed) in enumerate([(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]):
    alone = make_config({'seed': seed, 'seeds': 1, 'optimizer.learning_rate': rate})
    state, own_loss = run(run_steps, alone, [4])
    one = jax.tree.map(lambda leaf, i=i: leaf[i], together.model)
    chex.assert_trees_all_close(one, jax.tree.map(lambda leaf: leaf[0], state.model), atol=1e-4)
    assert float(loss[i]) == pytest.approx(float(own_loss[0]), abs=1e-5)


def test_chunks_leave_no_trace_and_compile_once(make_config, run_steps):
  config = make_config({'steps': 5})
  whole, _ = run(run_steps, config, [5])
  before = run_steps._cache_size()
  parts, _ = run(run_steps, config, [2, 4, 5])
  chex.assert_trees_all_equal(whole, parts)
  assert run_steps._cache_size() == before


def test_the_loss_falls(make_config, run_steps):
  ramp = np.tile(np.arange(256, dtype=np.uint8), 20)
  config = make_config({'steps': 60, 'optimizer.learning_rate': 1e-2})
  recipe, members = train.recipe(config, pe_jax.rope()), train.members(config)
  state = train.init(members.seed, members.hypers, recipe=recipe)
  arguments = (ramp, members.seed, members.hypers)
  state, first = run_steps(state, *arguments, np.int32(0), np.int32(5), recipe=recipe)
  state, last = run_steps(state, *arguments, np.int32(5), np.int32(60), recipe=recipe)
  assert (last < first - 0.3).all()


def test_encodings_start_from_the_same_values(make_config):
  config = make_config()
  members = train.members(config)
  models = [
      train.init(members.seed, members.hypers, recipe=train.recipe(config, encoding)).model
      for encoding in (pe_jax.rope(), pe_jax.learned(length=8))
  ]
  chex.assert_trees_all_equal(models[0].blocks, models[1].blocks)
  chex.assert_trees_all_equal(models[0].embedding, models[1].embedding)


def test_the_text_is_an_argument_of_the_program(make_config, run_steps):
  config = make_config()
  recipe, members = train.recipe(config, pe_jax.rope()), train.members(config)
  state = train.init(members.seed, members.hypers, recipe=recipe)
  long = np.random.default_rng(2).integers(0, 256, 3_000_000).astype(np.uint8)
  lowered = run_steps.lower(
      state, long, members.seed, members.hypers, np.int32(0), np.int32(1), recipe=recipe
  )
  assert len(lowered.as_text()) < 1_000_000
