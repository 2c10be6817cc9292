# SPDX-License-Identifier: Apache-2.0
"""Frequency rules traced: every number swept and differentiated, and those that read the length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import scaling
from tests.rules import BASE
from tests.rules import each_by_length
from tests.rules import LISTS
from tests.rules import P
from tests.rules import query
from tests.rules import WIDTH
from tests.rules import X

# --- Every number traces -------------------------------------------------------------------------

BY_PARTS = {'factor': 3.0, 'original_length': 512.0, 'beta_fast': 16.0, 'beta_slow': 0.7}
TRACED = {
    'default': {},
    'linear': {'factor': 3.0},
    'ntk': {'factor': 3.0},
    'ntk_fixed': {'factor': 3.0},
    'ntk_mixed': {'factor': 3.0, 'exponent': 0.6},
    'proportional': {'fraction': 0.55, 'factor': 3.0},
    'ntk_by_parts': BY_PARTS,
    'yarn': {**BY_PARTS, 'mscale': 0.7, 'mscale_all_dim': 1.1},
    'llama3': {
        'factor': 3.0, 'original_length': 512.0, 'low_freq_factor': 0.9, 'high_freq_factor': 5.0,
    },
    'dynamic_ntk': {'length': 40.0, 'factor': 3.0, 'original_length': 16.0},
    'dynamic_yarn': {
        'length': 2000.0, 'original_length': 512.0, 'beta_fast': 16.0, 'beta_slow': 0.7,
    },
    'longrope': {'length': 20.0, 'original_length': 16.0, 'attention_factor': 1.3},
}
STATIC = {
    'ntk_by_parts': {'truncate': False},
    'yarn': {'truncate': False},
    'dynamic_yarn': {'truncate': False},
    'longrope': LISTS,
}
# Numbers that choose, and so have no slope.
CHOICES = {('proportional', 'fraction'), ('longrope', 'length'), ('longrope', 'original_length')}


def both(name, numbers):
  """Returns log frequencies (0 counts as 1) and attention factor as one vector."""
  frequencies = getattr(scaling, f'{name}_frequencies')
  options = {**STATIC.get(name, {}), **numbers}
  base = options.pop('base')
  inv_freq, factor = frequencies(WIDTH, base, **options)
  xp = jnp if isinstance(inv_freq, jax.Array) else np
  logs = xp.log(xp.where(inv_freq > 0, inv_freq, 1.0))
  return xp.concatenate([logs, xp.atleast_1d(xp.asarray(factor, logs.dtype))])


def test_every_rule_is_traced():
  rules = {name for name in scaling.__all__ if f'{name}_frequencies' in scaling.__all__}
  assert rules == {*TRACED, 'given'}  # whose numbers are what it returns


@pytest.mark.parametrize('name', TRACED)
def test_every_number_is_swept_and_differentiated(name):
  numbers = {'base': 2e4, **TRACED[name]}
  want = both(name, numbers)
  assert want.dtype == np.float64
  run = functools.partial(both, name)
  np.testing.assert_allclose(jax.jit(run)(numbers), want, rtol=1e-5, atol=1e-5)
  slopes = jax.jit(jax.jacfwd(run))(numbers)
  for option, value in numbers.items():
    moved = [both(name, {**numbers, option: value * (1 + step)}) for step in (1e-6, -1e-6)]
    slope = (moved[0] - moved[1]) / (2e-6 * value)
    np.testing.assert_allclose(slopes[option], slope, rtol=2e-3, atol=2e-4 / abs(value))
    assert (name, option) in CHOICES or np.abs(slope).max() > 0, f'{option} has no influence'
  swept = {option: jnp.array([value, value * 1.1]) for option, value in numbers.items()}
  rows = jax.vmap(run)(swept)
  for i, row in enumerate(rows):
    one = {option: float(values[i]) for option, values in swept.items()}
    np.testing.assert_allclose(row, both(name, one), rtol=1e-5, atol=1e-5)


def test_a_base_is_learned_through_rope():
  encoding, dims = pe_jax.rope(), pe_jax.Dims(model=32, heads=2)
  constants = encoding.constants(dims)
  weights = jax.random.normal(jax.random.key(3), X.shape)

  def loss(base):
    inv_freq, _ = scaling.default_frequencies(16, base)
    params = {**constants, 'inv_freq': inv_freq}
    return jnp.vdot(encoding.query(params, X, P % 64, None), weights)

  # The value at the default base is that of the exact phases, and the slope is not lost there.
  slope = jax.grad(loss)(1e4)
  np.testing.assert_allclose(slope, (loss(1e4 * 1.01) - loss(1e4 * 0.99)) / 200, rtol=1e-2)
  swept = jax.vmap(loss)(jnp.array([1e4, 5e5]))
  want = jnp.vdot(query(pe_jax.rope(base=5e5), X, P % 64), weights)
  np.testing.assert_allclose(swept[1], want, rtol=1e-5)


# --- Rules that read the length ------------------------------------------------------------------


def attended(rule, q, k, v, q_pos, k_pos, length):
  options = {'encoding': pe_jax.rope(scaling=rule), 'params': {}, 'length': length}
  return pe_jax.attend(q, k, v, q_pos, k_pos, mask=pe_jax.Mask(causal=True), **options)


@each_by_length
def test_decoding_equals_the_whole_at_equal_length(rule):
  q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 12, 2, 16))
  at = jnp.arange(12)
  whole = attended(rule, q, k, v, at, at, 12)
  # Below the original length of 8 the keys would be turned otherwise, did they not know the 12.
  first = attended(rule, q[:, :5], k[:, :5], v[:, :5], at[:5], at[:5], 12)
  rest = attended(rule, q[:, 5:], k, v, at[5:], at, 12)
  np.testing.assert_allclose(jnp.concatenate([first, rest], axis=1), whole, atol=2e-6)
  assert np.abs(attended(rule, q, k, v, at, at, 8) - whole).max() > 1e-3


@each_by_length
def test_each_row_has_its_length_and_nothing_is_remembered(rule):
  q, k, v = jax.random.normal(jax.random.key(2), (3, 2, 6, 2, 16))
  at = jnp.arange(6)
  short = attended(rule, q, k, v, at, at, 6)
  rows = attended(rule, q, k, v, at, at, jnp.array([6, 64]))
  np.testing.assert_array_equal(attended(rule, q, k, v, at, at, 6), short)
  np.testing.assert_allclose(rows[0], short[0], atol=1e-6)
  np.testing.assert_allclose(rows[1], attended(rule, q, k, v, at, at, 64)[1], atol=1e-6)
  assert np.abs(rows[1] - short[1]).max() > 1e-3


@each_by_length
def test_a_length_does_not_retrace(rule):
  traces = []

  @jax.jit
  def run(x, length):
    traces.append(length)
    return query(pe_jax.rope(scaling=rule), x, P, length)

  for length in (4, 9, 100):
    run(X, length)
  assert len(traces) == 1
  with pytest.raises(ValueError, match='reads the length'):
    rule(WIDTH, BASE)
