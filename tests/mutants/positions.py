# SPDX-License-Identifier: Apache-2.0
"""Encodings that do not take positions as they are given."""


import jax.numpy as jnp

from pe_jax import positions as at
from tests.mutants.table import biased
from tests.mutants.table import frequencies
from tests.mutants.table import penalty
from tests.mutants.table import record
from tests.mutants.table import Table
from tests.mutants.table import turn

MUTANTS = Table()
mutant = MUTANTS.add


def _counts(params, q, k, q_pos, k_pos, scale):
  return penalty(jnp.arange(q.shape[-3])[None], jnp.arange(k.shape[-3])[None], params['slopes'])


@mutant('tiles')
def bias_from_arange():
  return biased(_counts)


def _outer(params, x, positions):
  del params
  angle = jnp.outer(positions, frequencies(x))
  return x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).reshape(x.shape)


@mutant('per_row')
def x_transformers_breaks_on_rows():
  """x-transformers 2.31.10: crashes on anything but shared positions."""
  return record(embed=_row_of_one, absolute=True)


def _row_of_one(params, x, positions):
  return _outer(params, x, positions if positions.ndim == 1 else positions.reshape(x.shape[:1]))


def _needs_integers(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions | 0, frequencies(x)))


@mutant('float_positions')
def integers_only():
  return record(query=_needs_integers)


def _by_largest(params, x, positions, length):
  del params, length
  longest = jnp.max(positions, axis=-1, keepdims=True) + 1
  return turn(x, at.phases(positions / longest, frequencies(x)))


@mutant('decode')
def stale_base():
  """Keys turn by the length so far, so those that are cached keep an old one."""
  return record(query=_by_largest, key=_by_largest)


@mutant('token_local')
def normalized_by_the_largest_position():
  return record(query=_by_largest, key=_by_largest)


def _differs_by_trace(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions, frequencies(x, 1e4 if at.is_concrete(x) else 1e3)))


@mutant('jit')
def compiled_differently():
  return record(query=_differs_by_trace)


def _mixes_rows(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions, frequencies(x))) - 0.1 * x.mean(0, keepdims=True)


@mutant('vmap')
def mixes_rows():
  return record(query=_mixes_rows)
