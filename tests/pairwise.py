# SPDX-License-Identifier: Apache-2.0
"""One encoding for each way in which a tile may be computed, and two that are not public."""

import dataclasses

import jax
import jax.numpy as jnp

import pe_jax
from pe_jax import bind
from pe_jax import Encoding
from pe_jax.positions import distance
from pe_jax.positions import expand


def _table_init(key, dims, *, reach: int):
  return {'table': jax.random.normal(key, (dims.heads, 2 * reach + 1))}


def _table_bias(params, q, k, q_pos, k_pos, scale, *, reach: int):
  del q, k, scale
  row = jnp.round(distance(q_pos, k_pos)).astype(jnp.int32) + reach
  return jnp.moveaxis(params['table'].T.at[row].get(mode='fill', fill_value=jnp.nan), -1, -3)


def table(*, reach):
  """A trained number for every distance up to `reach`."""
  return Encoding(
      name='table',
      init=bind(_table_init, reach=reach),
      bias=bind(_table_bias, reach=reach),
      by_distance=True,
      per_head=('table',),
  )


def _fire_bias(params, q, k, q_pos, k_pos, scale):
  del q, k, scale
  c, threshold = jnp.exp(params['log_c']), jnp.exp(params['log_threshold'])
  x = pe_jax.fire_ratio(q_pos, k_pos, c, threshold)[..., None]
  hidden = jax.nn.relu(x * expand(params['w'], x.ndim) + expand(params['b'], x.ndim))
  return jnp.einsum('...tsf,nf->...nts', hidden, params['v'])


def fire_of_arrays():
  """FIRE as it is usually written, with an array of all features of every pair."""
  return dataclasses.replace(pe_jax.fire(), name='fire of arrays', bias=_fire_bias)


PAIRWISE = (
    pe_jax.none(),
    pe_jax.rope(),
    pe_jax.alibi_learned(),
    pe_jax.t5(buckets=8, max_distance=9, bidirectional=True),
    pe_jax.shaw(max_distance=3),
    pe_jax.fox(),
    pe_jax.kerple_log(),
    pe_jax.kerple_power(),
    table(reach=128),
    pe_jax.sandwich(),
    pe_jax.fire(),
    pe_jax.music_transformer(max_distance=3),
    pe_jax.transformer_xl(),
    pe_jax.compose(pe_jax.rope(), pe_jax.transformer_xl(), pe_jax.t5(buckets=4, max_distance=9)),
    pe_jax.compose(pe_jax.rope(), pe_jax.alibi_learned()),
)
