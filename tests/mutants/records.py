# SPDX-License-Identifier: Apache-2.0
"""Records that remember, or do not say what they do."""

import dataclasses

import numpy as np

import pe_jax
from pe_jax import positions as at
from tests.mutants.table import biased
from tests.mutants.table import frequencies
from tests.mutants.table import Mutant
from tests.mutants.table import penalty
from tests.mutants.table import record
from tests.mutants.table import Table
from tests.mutants.table import turn

MUTANTS = Table()
mutant = MUTANTS.add


# --- Nothing is remembered -----------------------------------------------------------------------
CACHE = {}


def _cached_turn(params, x, positions, length, *, base):
  del params, length
  w = CACHE.setdefault(x.shape[-1], base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
  return turn(x, at.phases(positions, w))


@mutant('options')
def equinox_cache_without_the_base(*, base=1e4):
  """Equinox 0.13.8: a table cached by width, whatever the base."""
  hook = pe_jax.bind(_cached_turn, base=base)
  return record(query=hook, key=hook)


LONGEST = {'seen': 0}


def _turn_by_longest(params, x, positions, length):
  del params, length
  LONGEST['seen'] = max(LONGEST['seen'], x.shape[-3])
  return turn(x, at.phases(positions, frequencies(x) * 8 / LONGEST['seen']))


@mutant('pure')
def transformers_ntk_remembers_the_longest():
  """huggingface/transformers #25104: the base follows the longest input seen so far."""
  return record(query=_turn_by_longest, key=_turn_by_longest)


def _keeps_a_tracer(params, x, positions, length):
  del params, length
  return turn(x, CACHE.setdefault('angle', at.phases(positions, frequencies(x))))


@mutant('pure')
def keeps_a_tracer():
  return record(query=_keeps_a_tracer)


# --- Records -------------------------------------------------------------------------------------


def _closure():
  return record(query=lambda params, q, positions, length: q * 2)


MUTANTS['closure_is_not_equal'] = Mutant('equal', _closure)
MUTANTS['closure_does_not_pickle'] = Mutant('picklable', _closure)
MUTANTS['closure_retraces'] = Mutant('no_retrace', _closure)


def _double(params, x, *rest):
  return 2 * x


@mutant('one_site')
def acts_at_two_sites():
  return record(embed=_double, query=_double, parts=(pe_jax.none(),))


# --- Claims --------------------------------------------------------------------------------------


@mutant('relative')
def x_transformers_leaves_the_table_on():
  """x-transformers 2.31.10: ALiBi, and an absolute encoding beside it."""
  return dataclasses.replace(pe_jax.compose(pe_jax.sinusoidal(), pe_jax.alibi()), relative=True)


@mutant('absolute')
def claims_to_be_absolute():
  return dataclasses.replace(pe_jax.rope(), absolute=True)


@mutant('length')
def claims_to_read_the_length():
  return dataclasses.replace(pe_jax.rope(), length_dependent=True)


@mutant('length')
def reads_the_length_in_silence():
  rule = pe_jax.scaling.dynamic_ntk(factor=2, original_length=64)
  return dataclasses.replace(pe_jax.rope(scaling=rule), length_dependent=False)


@mutant('reads_content')
def reads_content_in_silence():
  return dataclasses.replace(pe_jax.shaw(), reads_content=False)


def _fire(params, q, k, q_pos, k_pos, scale):
  bias = penalty(q_pos, k_pos, params['slopes'])
  return bias / (1 + at.as_float(q_pos)[..., None, :, None])


@mutant('by_distance')
def divides_by_the_query_position():
  return biased(_fire, by_distance=True)


@mutant('permutation')
def depends_on_order_in_silence():
  return dataclasses.replace(pe_jax.fox(), order_dependent=False)


@mutant('permutation')
def claims_to_depend_on_order():
  return dataclasses.replace(pe_jax.alibi(), order_dependent=True)
