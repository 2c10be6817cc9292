# SPDX-License-Identifier: Apache-2.0
"""Angles far out: float32 phases against 50 digits, and what they leave as it was."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as at

PAIRS = 16
BASES = (1e4, 5e5)


def frequencies(base):
  return base ** (-np.arange(PAIRS) / PAIRS)


def truth(base, positions):
  """Returns the angles modulo 2 pi by mpmath, with 50 digits."""
  with mpmath.workdps(50):
    w = [mpmath.mpf(base) ** (-mpmath.mpf(i) / PAIRS) for i in range(PAIRS)]
    return modulo(w, positions)


def modulo(w, positions):
  turn = 2 * mpmath.pi
  return np.array([[float(mpmath.fmod(float(p) * x, turn)) for x in w] for p in positions])


def error(angles, base, positions):
  """Returns the largest error of the angles, in radians."""
  off = np.asarray(angles, np.float64) - truth(base, positions)
  return np.abs((off + np.pi) % (2 * np.pi) - np.pi).max()


def exact(base, positions):
  w = frequencies(base)
  return at.phases(jnp.asarray(positions), jnp.float32(w), at.split_turns(w)[None])


RNG = np.random.default_rng(0)
FAR = np.concatenate([2**24 - np.arange(32), RNG.integers(-(2**24), 2**24, 72)])
BROKEN = np.concatenate([RNG.uniform(-9, 9, 32), RNG.uniform(0, 2**20, 32)]).astype(np.float32)


@pytest.mark.parametrize('base', BASES)
@pytest.mark.parametrize('jit', [True, False], ids=['jit', 'eager'])
@pytest.mark.parametrize('positions', [FAR.astype(np.int32), BROKEN], ids=['int', 'float'])
def test_angles_are_right_to_a_millionth(base, jit, positions):
  run = jax.jit(functools.partial(exact, base)) if jit else functools.partial(exact, base)
  assert error(run(positions), base, positions) < 1e-6
  # The plain product is not: this is what the pieces are for.
  assert error(at.phases(positions, jnp.float32(frequencies(base))), base, positions) > 1e-2


@pytest.mark.parametrize(
    'scaling',
    [
        pe_jax.scaling.default(),
        pe_jax.scaling.yarn(factor=4, original_length=4096),
        pe_jax.scaling.longrope(
            short_factor=tuple(np.linspace(1, 2, PAIRS)),
            long_factor=tuple(np.linspace(1, 60, PAIRS)),
            original_length=4096,
            factor=32,
        ),
    ],
    ids=lambda rule: rule.name.split('(')[0],
)
def test_rope_is_exact_by_default(scaling):
  length = 2**24
  w, factor = scaling(2 * PAIRS, 1e4, length)
  with mpmath.workdps(50):
    angles = modulo([mpmath.mpf(float(x)) for x in w], FAR)
  x = RNG.normal(size=(1, FAR.size, 1, 2 * PAIRS)).astype(np.float32)
  encoding = pe_jax.rope(scaling=scaling)
  constants = encoding.constants(pe_jax.Dims(model=2 * PAIRS, heads=1))
  turned = encoding.query(constants, jnp.asarray(x), jnp.asarray(FAR, jnp.int32)[None], length)
  a, b = np.split(x[0, :, 0].astype(np.float64), 2, axis=-1)
  cos, sin = np.cos(angles), np.sin(angles)
  want = float(factor) * np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  np.testing.assert_allclose(turned[0, :, 0], want, atol=1e-5)


def test_gradients_are_those_of_the_product():
  w = frequencies(1e4)
  turns = at.split_turns(w)[None]
  for p in (3.0, 12345.5, 1234567.0):
    by_w = jax.jacobian(lambda w, p=p: at.phases(jnp.array([p]), w, turns)[0])(jnp.float32(w))
    np.testing.assert_array_equal(by_w, p * np.eye(PAIRS))
    by_p = jax.jacobian(lambda p: at.phases(p[None], jnp.float32(w), turns)[0])(jnp.float32(p))
    np.testing.assert_allclose(by_p, w, rtol=1e-6)


def test_a_frequency_of_the_callers_own_is_used_as_given():
  w = frequencies(1e4)
  turns = at.split_turns(w)[None]
  other = jnp.float32(w).at[3].set(0.0).at[5].multiply(1.001)
  positions = jnp.arange(7)
  mixed = at.phases(positions, other, turns)
  plain = at.phases(positions, other)
  np.testing.assert_array_equal(mixed[:, [3, 5]], plain[:, [3, 5]])
  swept = jax.vmap(lambda w: at.phases(positions, w, turns))(jnp.stack([other, jnp.float32(w)]))
  np.testing.assert_array_equal(swept[0], mixed)
  np.testing.assert_array_equal(swept[1], at.phases(positions, jnp.float32(w), turns))


def test_of_two_known_sets_each_row_finds_its_own():
  sets = [frequencies(base) for base in BASES]
  turns = np.stack([at.split_turns(w) for w in sets])
  rows = at.phases(jnp.asarray(FAR, jnp.int32)[None], jnp.float32(sets), turns)
  for row, base in zip(rows, BASES):
    assert error(row, base, FAR) < 1e-6


def test_pieces_in_half_precision_are_refused():
  turns = jnp.asarray(at.split_turns(frequencies(1e4))[None], jnp.bfloat16)
  with pytest.raises(ValueError, match='turns have dtype bfloat16'):
    at.phases(jnp.arange(3), jnp.float32(frequencies(1e4)), turns)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16], ids=lambda d: d.__name__)
def test_exact_phases_move_no_more_bytes(dtype):
  x = jax.ShapeDtypeStruct((1, 4096, 16, 64), dtype)
  positions = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
  w = 1e4 ** (-np.arange(32) / 32)
  moved = []
  for turns in (None, at.split_turns(w)[None]):
    turn = functools.partial(pe_jax.apply_rope, inv_freq=jnp.float32(w), turns=turns)
    moved.append(jax.jit(turn).lower(x, positions).compile().cost_analysis()['bytes accessed'])
  assert moved[1] <= 1.01 * moved[0]
