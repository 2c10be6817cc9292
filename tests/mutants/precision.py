# SPDX-License-Identifier: Apache-2.0
"""Encodings that compute in too few bits."""


import jax
import jax.numpy as jnp

from pe_jax import positions as at
from tests import references
from tests.mutants.table import biased
from tests.mutants.table import frequencies
from tests.mutants.table import penalty
from tests.mutants.table import record
from tests.mutants.table import Table
from tests.mutants.table import turn

MUTANTS = Table()
mutant = MUTANTS.add


def _half_positions(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions.astype(x.dtype).astype(jnp.float32), frequencies(x)))


@mutant('told_apart')
def rotary_torch_positions_in_the_dtype():
  """rotary-embedding-torch 0.9.1: bfloat16 counts to 256."""
  return record(query=_half_positions, key=_half_positions)


def _bf16_positions(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions.astype(jnp.bfloat16).astype(jnp.float32), frequencies(x)))


@mutant('relative')
def bf16_positions_always():
  return record(query=_bf16_positions, key=_bf16_positions, relative=True)


def _half_frequencies(params, x, positions, length):
  del params, length
  return turn(x, at.phases(positions, frequencies(x).astype(x.dtype)))


@mutant('half_precision')
def half_frequencies():
  return record(query=_half_frequencies, key=_half_frequencies, relative=True)


def _float32_out(params, x, positions, length):
  del params, length
  return turn(x.astype(jnp.float32), at.phases(positions, frequencies(x)))


@mutant('shapes')
def rotation_promotes():
  return record(query=_float32_out, key=_float32_out)


def _bf16_bias(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']).astype(jnp.bfloat16)


@mutant('shapes')
def bf16_bias():
  return biased(_bf16_bias)


def _half_distances(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']).astype(q.dtype).astype(jnp.float32)


@mutant('half_precision')
def half_distances():
  return biased(_half_distances)


def _always_bf16(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']).astype(jnp.bfloat16).astype(jnp.float32)


@mutant('reference', reference=references.ALIBI)
def falcon_bf16_penalty():
  return biased(_always_bf16)


def _overflows(params, q, k, q_pos, k_pos, scale):
  whole = jax.tree.map(
      lambda p: (p.astype(jnp.int32) * 3000).astype(jnp.float32) / 3000, (q_pos, k_pos)
  )
  return penalty(*whole, params['slopes'])


@mutant('far')
def positions_overflow():
  return biased(_overflows, relative=True)
