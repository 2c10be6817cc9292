# SPDX-License-Identifier: Apache-2.0
"""Encodings whose arrays are wrong: tables, constants, and what gradients reach."""


import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import positions as at
from tests.mutants.table import biased
from tests.mutants.table import four_slopes
from tests.mutants.table import penalty
from tests.mutants.table import record
from tests.mutants.table import sloped_bias
from tests.mutants.table import Table

MUTANTS = Table()
mutant = MUTANTS.add


def _clamped(params, x, positions):
  rows = jnp.asarray(params['table'])[jnp.clip(positions, 0, 63)]
  return (x + at.expand(rows, x.ndim)).astype(x.dtype)


def _rows(key, dims):
  return {'table': jax.random.normal(key, (64, dims.model))}


@mutant('max_length')
def maxtext_clamps_silently():
  """YaRN of MaxText: past the table, the last row again."""
  return record(init=_rows, embed=_clamped, absolute=True, max_length=64)


@mutant('told_apart')
def clamps_without_saying_so():
  return record(init=_rows, embed=_clamped, absolute=True)


def _slopes_too(key, dims):
  return four_slopes(dims)


@mutant('constants')
def trains_its_constants():
  return biased(sloped_bias, init=_slopes_too)


def _integers(key, dims):
  return {'slopes': jnp.ones(dims.heads, jnp.int32)}


@mutant('constants')
def trains_integers():
  return biased(sloped_bias, constants=pe_jax.none().constants, init=_integers)


def _by_width(dims):
  return {'slopes': jnp.full(dims.heads, 1 / dims.model)}


@mutant('constants')
def constants_from_the_width():
  return biased(sloped_bias, constants=_by_width)


def _unseeded(key, dims):
  return {'slopes': jnp.asarray(np.random.normal(size=dims.heads), jnp.float32)}


@mutant('init')
def initializes_without_the_key():
  return biased(sloped_bias, constants=pe_jax.none().constants, init=_unseeded)


ALL_PAIRS = np.abs(np.arange(2048)[:, None] - np.arange(2048)).astype(np.float32)


def _looked_up(params, q, k, q_pos, k_pos, scale):
  rows = jnp.asarray(ALL_PAIRS)[q_pos.astype(int)[..., :, None], k_pos.astype(int)[..., None, :]]
  return -at.expand(params['slopes'][:, None, None], q.ndim) * rows[..., None, :, :]


@mutant('no_constants')
def bakes_in_all_pairs():
  return biased(_looked_up)


# --- Gradients -----------------------------------------------------------------------------------


def _power(key, dims):
  return {'power': jax.random.uniform(key, (dims.heads, 1, 1)) + 0.5}


def _power_bias(params, q, k, q_pos, k_pos, scale):
  steps = jnp.abs(at.distance(q_pos, k_pos))[..., None, :, :]
  power = at.expand(params['power'], steps.ndim)
  return -jnp.where(steps > 0, jnp.exp(power * jnp.log(steps)), 0)


@mutant('gradients_finite')
def log_of_distance_0():
  return record(init=_power, bias=_power_bias, per_head=('power',))


def _two(key, dims):
  return {'slopes': jnp.ones(dims.heads), 'other': jnp.ones(dims.heads)}


def _second_wins(params, q, k, q_pos, k_pos, scale):
  biases = [penalty(q_pos, k_pos, params[name]) for name in ('other', 'slopes')]
  return biases[-1]


@mutant('gradients_reach')
def x_transformers_overwrites_a_bias():
  """x-transformers 2.31.10: two are accepted, one is overwritten."""
  return record(init=_two, bias=_second_wins, per_head=('slopes', 'other'))
