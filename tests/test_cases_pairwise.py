# SPDX-License-Identifier: Apache-2.0
"""Faults of trained biases that were reported in public, with the right values.

The number in the name of a test is that of the fault here, counted on from test_cases.py.

  49  gradients that are NaN at distance 0, from a log, a root or a power: jax-ml/jax #5798
  51  trained numbers of a bias leave their range: chijames/KERPLE #3
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import Dims

DIMS = Dims(model=16, heads=2)
TRAINED = (pe_jax.kerple_log(), pe_jax.kerple_power(), pe_jax.fire(width=4))
each_trained = pytest.mark.parametrize('encoding', TRAINED, ids=repr)


def bias(encoding, params, q_pos, k_pos):
  q, k = (jnp.zeros((len(positions), DIMS.heads, 8)) for positions in (q_pos, k_pos))
  return encoding.bias(params, q, k, q_pos, k_pos, 1.0)


# --- Distance 0 ----------------------------------------------------------------------------------


def test_49_values_near_and_at_distance_0():
  one, here = jnp.ones(1), jnp.array([0])
  steps = -jnp.array([0, 1, 10, 1000])
  log = pe_jax.kerple_log_bias(here, steps, one, one)[0, 0]
  np.testing.assert_allclose(log, [0, -0.693147, -2.397895, -6.908755], rtol=1e-6)
  power = pe_jax.kerple_power_bias(here, -jnp.array([0, 1, 4]), one, one / 2)[0, 0]
  np.testing.assert_allclose(power, [0, -1, -2], rtol=1e-6)


@pytest.mark.parametrize(
    'i, d, threshold, ratio', [(9, 3, 4, 0.602060), (2, 2, 4, 0.682606), (0, 0, 4, 0), (0, 0, 0, 0)]
)
def test_49_fire_divides_by_the_threshold_or_the_position(i, d, threshold, ratio):
  where = jnp.array([i]), jnp.array([i - d])
  np.testing.assert_allclose(pe_jax.fire_ratio(*where, 1.0, threshold)[0, 0], ratio, rtol=1e-5)
  slopes = jax.grad(lambda *args: pe_jax.fire_ratio(*where, *args).sum(), (0, 1))
  assert np.isfinite(slopes(1.0, jnp.float32(threshold))).all()


@each_trained
@pytest.mark.parametrize('length', [1, 2, 64])
def test_49_gradients_are_finite_with_the_diagonal(encoding, length):
  params = encoding.init(jax.random.key(0), DIMS)
  if 'logit_r2' in params:
    params['logit_r2'] = jnp.log(jnp.full(2, 1 / 3))  # the exponent 1/2
  total = lambda params, positions: bias(encoding, params, positions, positions).sum()
  gradients = jax.grad(total, (0, 1))(params, jnp.arange(float(length)))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


# --- Ranges --------------------------------------------------------------------------------------

IN_RANGE = {  # leaf and what it stands for, which must stay above 0 and at most the number
    'log_r1': (jnp.exp, np.inf),
    'log_r2': (jnp.exp, np.inf),
    'logit_r2': (lambda x: 2 * jax.nn.sigmoid(x), 2),
    'log_c': (jnp.exp, np.inf),
    'log_threshold': (jnp.exp, np.inf),
}


@each_trained
@pytest.mark.parametrize('down', [1, -1])
def test_51_no_step_leaves_the_range_and_none_freezes(encoding, down):
  """From -3 on, 200 steps of SGD push every number that must be positive one way."""
  params = encoding.init(jax.random.key(0), DIMS)
  params |= {name: jnp.full_like(params[name], -3) for name in IN_RANGE if name in params}
  names = [name for name in IN_RANGE if name in params]
  positions = jnp.arange(8)

  def values(params):
    return {name: IN_RANGE[name][0](params[name]) for name in names}

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def slope(params):
    found = values(params)
    return down * sum(leaf.sum() for leaf in found.values()), found

  for _ in range(200):
    steps, _ = slope(params)
    # Clipped, as trainers do: else the exponential of a number that grows is soon infinite.
    params = jax.tree.map(lambda x, step: x - jnp.clip(step, -0.05, 0.05), params, steps)
  steps, found = slope(params)
  for name in names:
    assert (found[name] > 0).all() and (found[name] <= IN_RANGE[name][1]).all()
    assert (steps[name] != 0).all()
  curve = np.asarray(bias(encoding, params, positions[-1:], positions)[:, 0])
  assert np.isfinite(curve).all()
  if encoding.by_distance:  # KERPLE's
    assert (curve <= 0).all() and (np.diff(curve, axis=1) >= 0).all()


def test_51_kerple_starts_where_the_paper_does():
  many = Dims(model=4000, heads=1000)
  log = pe_jax.kerple_log().init(jax.random.key(1), many)
  power = pe_jax.kerple_power().init(jax.random.key(2), many)
  for raw, read, top in [
      (log['log_r1'], jnp.exp, 2),
      (log['log_r2'], jnp.exp, 1),
      (power['log_r1'], jnp.exp, 1),
      (power['logit_r2'], lambda x: 2 * jax.nn.sigmoid(x), 2),
  ]:
    drawn = np.asarray(read(raw))
    assert 0.009 < drawn.min() < 0.05 and 0.97 * top < drawn.max() <= top
    np.testing.assert_allclose(drawn.mean(), top / 2, rtol=0.06)
