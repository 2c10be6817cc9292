# SPDX-License-Identifier: Apache-2.0
"""Wrong biases, logits and values, and kernels that drop a part of them."""

import dataclasses
import math

import jax
import jax.numpy as jnp

import pe_jax
from pe_jax import kernels
from pe_jax import positions as at
from tests import references
from tests.mutants.table import biased
from tests.mutants.table import DIMS
from tests.mutants.table import four_slopes
from tests.mutants.table import Mutant
from tests.mutants.table import penalty
from tests.mutants.table import record
from tests.mutants.table import sloped_bias
from tests.mutants.table import Table

MUTANTS = Table()
mutant = MUTANTS.add


def _swapped(params, q, k, q_pos, k_pos, scale):
  return penalty(k_pos, q_pos, params['slopes'])


@mutant('tiles')
def deberta_swapped_arguments():
  """DeBERTa-v2 of transformers 5.24: right as long as there are as many queries as keys."""
  return biased(_swapped)


def _nearest_first(params, q, k, q_pos, k_pos, scale):
  bias = penalty(q_pos, k_pos, params['slopes'])
  return bias - bias.max(axis=-1, keepdims=True)


@mutant('tiles')
def subtracts_the_largest():
  return biased(_nearest_first)


def _local_slopes(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, jnp.asarray(pe_jax.alibi_slopes(q.shape[-2])))


@mutant('heads')
def slopes_from_local_heads():
  return record(bias=_local_slopes)


@mutant('sharded')
def megatron_slopes_of_a_shard():
  return record(bias=_local_slopes)
@mutant('heads')
def per_head_not_named():
  return record(bias=sloped_bias, constants=four_slopes)


def _gain(key, dims):
  return {'gain': jax.random.normal(key, (dims.heads,))}


def _first_gains(params, k, positions, length):
  gain = params['gain'][: k.shape[-2]]
  return k * at.expand(gain[:, None], k.ndim).astype(k.dtype)


@mutant('grouped')
def gains_of_the_wrong_heads():
  return record(init=_gain, key=_first_gains, per_head=('gain',))


def tiled_heads(q, k, v, *args, **kwargs):
  tile = lambda x: jnp.tile(x, (1,) * (x.ndim - 2) + (q.shape[-2] // x.shape[-2], 1))
  return kernels.dense(q, tile(k), tile(v), *args, **kwargs)


MUTANTS['kernel_tiles_key_heads'] = Mutant('grouped', pe_jax.rope, {'kernel': tiled_heads})


def unbiased_steps(q, k, *args, encoding, **kwargs):
  if q.shape[-3] == 1:
    encoding = dataclasses.replace(encoding, bias=None)
  return kernels.dense(q, k, *args, encoding=encoding, **kwargs)


MUTANTS['kernel_drops_the_bias_in_decoding'] = Mutant(
    'decode', pe_jax.alibi, {'kernel': unbiased_steps}
)


def _nan_rows(q, *args, **kwargs):
  """Divides queries by their norm, which is 0 where `attend` has silenced them."""
  norm = jnp.sqrt(jnp.sum(q * q, axis=-1, keepdims=True))
  return kernels.dense(q / norm, *args, **kwargs)


def frozen_coords(q, k, v, q_coords, k_coords, **kwargs):
  return kernels.dense(q, k, v, *jax.lax.stop_gradient((q_coords, k_coords)), **kwargs)


MUTANTS['kernel_trains_no_gate'] = Mutant('kernel', pe_jax.fox, {'kernel': frozen_coords})


MUTANTS['kernel_gives_nan_for_empty_rows'] = Mutant(
    'empty_gradients', pe_jax.alibi, {'kernel': _nan_rows}
)


def leaky_weights(*args, **kwargs):
  out, lse = kernels.dense(*args, **kwargs)
  return out * 0.999, lse


MUTANTS['kernel_does_not_normalize'] = Mutant(
    'constant_value', pe_jax.none, {'kernel': leaky_weights}
)


def _reads_scale(params, q, k, q_pos, k_pos, scale):
  return penalty(q_pos, k_pos, params['slopes']) / scale


@mutant('scale')
def bias_before_the_scale():
  return biased(_reads_scale)


def _table(key, dims):
  return {'table': jax.random.normal(key, (dims.heads, 32))}


def _t5_times_root(params, q, k, q_pos, k_pos, scale):
  boundaries = jnp.asarray(pe_jax.t5_boundaries(32, 128), jnp.float32)
  bias = pe_jax.t5_bias(q_pos, k_pos, params['table'], boundaries, find=pe_jax.t5_causal_buckets)
  return bias * math.sqrt(q.shape[-1])


@mutant('reference', reference=references.T5)
def x_transformers_t5_times_root():
  """x-transformers 2.31.10: the bias is multiplied by sqrt(head_dim)."""
  return record(init=_table, bias=_t5_times_root, per_head=('table',))


def _best_query(params, logits, q, k, q_pos, k_pos, mask):
  return logits - logits.max(axis=-2, keepdims=True)


@mutant('rows')
def logits_across_queries():
  return record(logits=_best_query)


def _squares(params, weights, q_pos, k_pos):
  return jnp.einsum('...nts->...tn', weights**2)[..., None] * jnp.ones((1, 1, 1, DIMS.head_dim))


@mutant('value_linear')
def squares_the_weights():
  return record(value=_squares)
