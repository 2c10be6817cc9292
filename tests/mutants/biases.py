# SPDX-License-Identifier: Apache-2.0
"""Wrong KERPLE, Sandwich, FIRE, Music Transformer and Transformer-XL."""

import dataclasses

import jax
import jax.numpy as jnp

import pe_jax
from pe_jax import positions as at
from tests import references_pairwise as references
from tests.mutants.table import Table

MUTANTS = Table()
mutant = MUTANTS.add


def changed(encoding, **hooks) -> pe_jax.Encoding:
  return dataclasses.replace(encoding, **hooks)


# --- KERPLE --------------------------------------------------------------------------------------


def _past_alone(params, q, k, q_pos, k_pos, scale):
  r1, r2 = (at.expand(jnp.exp(params[n])[:, None, None], q.ndim) for n in ('log_r1', 'log_r2'))
  return -r1 * jnp.log1p(r2 * jnp.maximum(-at.distance(q_pos, k_pos), 0)[..., None, :, :])


@mutant('reference', reference=references.KERPLE_LOG)
def kerple_keys_ahead_are_here():
  """KERPLE's gpt-neox: distances are the lower triangle alone, the future is at distance 0."""
  return changed(pe_jax.kerple_log(), bias=_past_alone)


def _plain_power(params, q, k, q_pos, k_pos, scale):
  r1 = at.expand(jnp.exp(params['log_r1'])[:, None, None], q.ndim)
  r2 = at.expand(2 * jax.nn.sigmoid(params['logit_r2'])[:, None, None], q.ndim)
  steps = jnp.abs(at.distance(q_pos, k_pos))[..., None, :, :]
  return -r1 * jnp.where(steps > 0, jnp.exp(r2 * jnp.log(steps)), 0)


@mutant('gradients_finite')
def kerple_power_of_distance_zero():
  """jax-ml/jax #5798: the branch that is not taken gives NaN to r2."""
  return changed(pe_jax.kerple_power(), bias=_plain_power)


def _clipped(params, q, k, q_pos, k_pos, scale):
  r1, r2 = (jnp.maximum(params[name], 0.01) for name in ('log_r1', 'log_r2'))
  return pe_jax.kerple_log_bias(q_pos, k_pos, r1, r2)


def _below(key, dims):
  return {name: jnp.full(dims.heads, -3.0) for name in ('log_r1', 'log_r2')}


@mutant('gradients_reach')
def kerple_clips_and_freezes():
  """Numbers that a step took below the least get no gradient any more."""
  return changed(pe_jax.kerple_log(), init=_below, bias=_clipped)


# --- Sandwich ------------------------------------------------------------------------------------


def _negative(params, q, k, q_pos, k_pos, scale):
  return pe_jax.sandwich_bias(q_pos, k_pos, -params['ratios'], params['frequencies'])


@mutant('reference', reference=references.SANDWICH)
def sandwich_rewards_distance():
  return changed(pe_jax.sandwich(), bias=_negative)


def _local(params, q, k, q_pos, k_pos, scale):
  ratios = jnp.asarray(pe_jax.sandwich_ratios(q.shape[-2]))
  return pe_jax.sandwich_bias(q_pos, k_pos, ratios, params['frequencies'])


@mutant('heads')
def sandwich_counts_the_heads_of_a_tile():
  return changed(pe_jax.sandwich(), bias=_local)


def _rounded_phases(params, q, k, q_pos, k_pos, scale):
  return pe_jax.sandwich_bias(q_pos, k_pos, params['ratios'], params['frequencies'])


@mutant('far')
def sandwich_of_rounded_phases():
  """Phases of positions as float32 products: far out, their difference is not the distance's."""
  return changed(pe_jax.sandwich(), bias=_rounded_phases)


# --- FIRE ----------------------------------------------------------------------------------------


def _network(params, x):
  x = x[..., None]
  hidden = jax.nn.relu(x * at.expand(params['w'], x.ndim) + at.expand(params['b'], x.ndim))
  return jnp.einsum('...tsf,nf->...nts', hidden, params['v'])


def _with_eps(params, q, k, q_pos, k_pos, scale):
  c, threshold = jnp.exp(params['log_c']), jnp.exp(params['log_threshold'])
  steps = jnp.log1p(c * jnp.abs(at.distance(q_pos, k_pos)))
  longest = jnp.log1p(c * jnp.maximum(threshold, at.as_float(q_pos))) + 1e-3
  return _network(params, steps / at.expand(longest, steps.ndim - 1)[..., None])


@mutant('reference', reference=references.FIRE)
def fire_adds_eps_to_the_divisor():
  """DAPE's gpt-neox, whose eps is smaller and shows in half precision only."""
  return changed(pe_jax.fire(threshold=20), bias=_with_eps)


def _by_key(params, q, k, q_pos, k_pos, scale):
  c, threshold = jnp.exp(params['log_c']), jnp.exp(params['log_threshold'])
  return _network(params, jnp.swapaxes(pe_jax.fire_ratio(k_pos, q_pos, c, threshold), -1, -2))


@mutant('reference', reference=references.FIRE)
def fire_divides_by_the_key():
  return changed(pe_jax.fire(threshold=20), bias=_by_key)


def _by_longest(params, q, k, q_pos, k_pos, scale):
  c, threshold = jnp.exp(params['log_c']), jnp.exp(params['log_threshold'])
  steps = jnp.log1p(c * jnp.abs(at.distance(q_pos, k_pos)))
  last = jnp.max(at.as_float(q_pos), axis=-1, keepdims=True)[..., None]
  return _network(params, steps / jnp.log1p(c * jnp.maximum(threshold, last)))


@mutant('decode')
def fire_divides_by_the_length():
  return changed(pe_jax.fire(threshold=20), bias=_by_longest)


# --- Music Transformer ---------------------------------------------------------------------------


def _unclipped(params, q, k, q_pos, k_pos, scale):
  reach = params['table'].shape[1] // 2
  rows = at.distance(q_pos, k_pos).astype(jnp.int32)[..., None, :, :] + reach
  by_row = jnp.einsum('...tnh,nrh->...ntr', q, params['table'])
  rows = jnp.broadcast_to(rows, (*by_row.shape[:-1], rows.shape[-1]))
  return scale * jnp.take_along_axis(by_row, rows, axis=-1)


@mutant('reference', reference=references.MUSIC_TRANSFORMER)
def music_index_without_a_clip():
  """huggingface/transformers #17026: distances past the table leave it."""
  return changed(pe_jax.music_transformer(max_distance=16), bias=_unclipped)


def _mirrored(params, q, k, q_pos, k_pos, scale):
  mirrored = params['table'][:, ::-1]
  return pe_jax.music_transformer_bias(q, q_pos, k_pos, mirrored, scale)


@mutant('reference', reference=references.MUSIC_TRANSFORMER)
def music_distance_of_query_minus_key():
  """BERT of transformers 4.57 counts distances the other way."""
  return changed(pe_jax.music_transformer(), bias=_mirrored)


# --- Transformer-XL ------------------------------------------------------------------------------


def _xl(params, q, k, q_pos, k_pos, scale, **replaced):
  width = params['projection'].shape[-1]
  arrays = [replaced.get(name, params[name]) for name in ('u', 'v', 'projection')]
  w = pe_jax.sinusoidal_frequencies(width)
  return pe_jax.transformer_xl_bias(q, k, q_pos, k_pos, *arrays, w, scale)


def _unscaled(params, q, k, q_pos, k_pos, scale):
  return _xl(params, q, k, q_pos, k_pos, 1.0)


@mutant('reference', reference=references.TRANSFORMER_XL)
def xl_terms_beside_the_scale():
  """McGill-NLP's length generalization: the terms are added without the factor of the logits."""
  return changed(pe_jax.transformer_xl(), bias=_unscaled)


def _sides_swapped(params, q, k, q_pos, k_pos, scale):
  return _xl(params, k, q, q_pos, k_pos, scale)


@mutant('reference', reference=references.TRANSFORMER_XL)
def xl_swaps_query_and_key():
  """u asks the query, and the key asks for the distance."""
  return changed(pe_jax.transformer_xl(), bias=_sides_swapped)


def _negated(params, q, k, q_pos, k_pos, scale):
  return _xl(params, q, k, -q_pos, -k_pos, scale)


@mutant('reference', reference=references.TRANSFORMER_XL)
def xl_distance_of_key_minus_query():
  return changed(pe_jax.transformer_xl(), bias=_negated)


def _one_bias(params, q, k, q_pos, k_pos, scale):
  return _xl(params, q, k, q_pos, k_pos, scale, v=params['u'])


@mutant('gradients_reach')
def xl_uses_u_twice():
  return changed(pe_jax.transformer_xl(), bias=_one_bias)
