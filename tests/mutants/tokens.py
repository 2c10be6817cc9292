# SPDX-License-Identifier: Apache-2.0
"""Encodings that see what they must not: other chunks, padding, later tokens, other documents."""

import dataclasses

import jax.numpy as jnp

import pe_jax
from pe_jax import positions as at
from tests import references
from tests.mutants.table import biased
from tests.mutants.table import Mutant
from tests.mutants.table import penalty
from tests.mutants.table import record
from tests.mutants.table import Table

MUTANTS = Table()
mutant = MUTANTS.add


def _forgets(params, x, positions, segments, carry):
  gates = pe_jax.forget_gates(x, params['kernel'], params['bias'])
  return jnp.cumsum(jnp.where(segments[..., None, :] == 0, 0, gates), axis=-1), carry


def fox_of_the_chunk_alone():
  return dataclasses.replace(pe_jax.fox(), place=_forgets)


MUTANTS['x_transformers_fox_of_new_tokens'] = Mutant('decode', fox_of_the_chunk_alone)
MUTANTS['fox_drops_the_carry'] = Mutant('place_prefix', fox_of_the_chunk_alone)
MUTANTS['fox_runs_across_documents'] = Mutant('place_segments', fox_of_the_chunk_alone)


def _counts_padding(params, x, positions, segments, carry):
  gates = pe_jax.forget_gates(x, params['kernel'], params['bias'])
  sums = carry['sum'][..., None] + jnp.cumsum(gates, axis=-1)
  return sums, {'segment': carry['segment'], 'sum': sums[..., -1]}


@mutant('padding')
def fox_counts_padding():
  return dataclasses.replace(pe_jax.fox(), place=_counts_padding)


def _looks_ahead(params, x, positions, segments, carry):
  gates = pe_jax.forget_gates(x, params['kernel'], params['bias'])
  return jnp.cumsum(gates, -1) * gates[..., -1:], carry


@mutant('causal')
def fox_looks_ahead():
  return dataclasses.replace(pe_jax.fox(), place=_looks_ahead)


def _half_gates(params, x, positions, segments, carry):
  sums, carry = pe_jax.fox().place(params, x, positions, segments, carry)
  return sums * 1.01, carry


def _half_coords(params, x, positions, segments, carry):
  sums, carry = pe_jax.fox().place(params, x, positions, segments, carry)
  return sums.astype(x.dtype), carry


@mutant('shapes')
def fox_sums_in_the_dtype():
  return dataclasses.replace(pe_jax.fox(), place=_half_coords)


@mutant('place_reference', reference=references.FOX)
def fox_gates_off():
  return dataclasses.replace(pe_jax.fox(), place=_half_gates)


# --- Masks ---------------------------------------------------------------------------------------


def _hides_larger(params, q, k, q_pos, k_pos, scale):
  bias = penalty(q_pos, k_pos, params['slopes'])
  return jnp.where(at.distance(q_pos, k_pos)[..., None, :, :] > 0, -1e30, bias)


@mutant('mask_order')
def masks_by_position():
  return biased(_hides_larger, relative=True)


def _centred(params, x, positions):
  return x - x.mean(axis=-2, keepdims=True)


@mutant('hidden')
def centres_over_tokens():
  return record(embed=_centred)


@mutant('packing')
def packs_with_a_mean():
  return record(embed=_centred)
