# SPDX-License-Identifier: Apache-2.0
"""Encodings of a user's own, one for each way in which a tile may be computed."""

import jax
import jax.numpy as jnp

import pe_jax
from pe_jax import bind
from pe_jax import Encoding
from pe_jax.positions import as_float
from pe_jax.positions import distance
from pe_jax.positions import expand


def _spread(per_head, steps):
  return expand(per_head[:, None, None], steps.ndim)


def _kerple_init(key, dims):
  a, p = jax.random.uniform(key, (2, dims.heads), minval=0.5)
  return {'a': a, 'p': p}


def _kerple_bias(params, q, k, q_pos, k_pos, scale):
  del q, k, scale
  steps = jnp.abs(distance(q_pos, k_pos))[..., None, :, :]
  return -_spread(params['p'], steps) * jnp.log1p(_spread(params['a'], steps) * steps)


def kerple():
  """-p log(1 + a |distance|): trained, of the distance alone."""
  return Encoding(
      name='kerple',
      init=_kerple_init,
      bias=_kerple_bias,
      by_distance=True,
      per_head=('a', 'p'),
  )


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


def _sandwich_bias(params, q, k, q_pos, k_pos, scale):
  del k, scale, params
  frequencies = 1e4 ** -(jnp.arange(64, dtype=jnp.float32) / 64)
  steps = distance(q_pos, k_pos)[..., None, :, :]
  total = jnp.zeros_like(steps)
  total = jax.lax.fori_loop(0, 64, lambda i, x: x + jnp.cos(steps * frequencies[i]), total)
  heads = q.shape[-2]
  return _spread(heads / (8 * (jnp.arange(heads, dtype=jnp.float32) + 1)), steps) * total


def sandwich():
  """A sum of cosines of the distance: no parameters, dear to evaluate."""
  return Encoding(name='sandwich', bias=_sandwich_bias, by_distance=True)


def _fire_init(key, dims):
  first, second, shift = jax.random.split(key, 3)
  return {
      'first': jax.random.normal(first, (32,)),
      'shift': jax.random.normal(shift, (32,)),
      'second': jax.random.normal(second, (dims.heads, 32)),
      'c': jnp.float32(0.1),
      'least': jnp.float32(512),
  }


def _fire_bias(params, q, k, q_pos, k_pos, scale):
  del q, k, scale
  steps = jnp.log1p(params['c'] * jnp.abs(distance(q_pos, k_pos)))
  longest = jnp.log1p(params['c'] * jnp.maximum(params['least'], as_float(q_pos)))
  x = (steps / longest[..., None])[..., None]
  hidden = jax.nn.relu(x * expand(params['first'], x.ndim) + expand(params['shift'], x.ndim))
  return jnp.einsum('...tsf,nf->...nts', hidden, params['second'])


def fire():
  """A small network of the distance over the query's position: a bias by the pair."""
  return Encoding(name='fire', init=_fire_init, bias=_fire_bias)


def _relative_init(key, dims, *, reach: int):
  names = {'vectors': (2 * reach + 1,), 'content': (dims.heads,), 'place': (dims.heads,)}
  keys = dict(zip(names, jax.random.split(key, 3)))
  return {
      name: jax.random.normal(keys[name], (*shape, dims.head_dim)) * dims.head_dim**-0.5
      for name, shape in names.items()
  }


def _rows_of(params, q_pos, k_pos):
  reach = params['vectors'].shape[0] // 2
  row = jnp.clip(jnp.round(distance(q_pos, k_pos)), -reach, reach).astype(jnp.int32) + reach
  return row[..., None, :, :]


def _pick(by_row, rows):
  rows = jnp.broadcast_to(rows, (*by_row.shape[:-1], rows.shape[-1]))
  return jnp.take_along_axis(by_row, rows, axis=-1)


def _music_bias(params, q, k, q_pos, k_pos, scale):
  del k
  by_row = jnp.einsum('...tnh,rh->...ntr', q, params['vectors'])
  return scale * _pick(by_row, _rows_of(params, q_pos, k_pos))


def _music_init(key, dims, *, reach: int):
  return {'vectors': _relative_init(key, dims, reach=reach)['vectors']}


def music(*, reach):
  """Music Transformer: q_i . r_(j - i)."""
  return Encoding(
      name='music', init=bind(_music_init, reach=reach), bias=_music_bias, reads_content=True
  )


def _transformer_xl_bias(params, q, k, q_pos, k_pos, scale):
  of_place = q + expand(params['place'], q.ndim)
  by_row = jnp.einsum('...tnh,rh->...ntr', of_place, params['vectors'])
  by_key = jnp.einsum('...snh,nh->...ns', k, params['content'])[..., None, :]
  return scale * (_pick(by_row, _rows_of(params, q_pos, k_pos)) + by_key)


def transformer_xl(*, reach):
  """Transformer-XL's three terms beside q . k: they read q and k."""
  return Encoding(
      name='transformer_xl',
      init=bind(_relative_init, reach=reach),
      bias=_transformer_xl_bias,
      reads_content=True,
      per_head=('content', 'place'),
  )


PAIRWISE = (
    pe_jax.none(),
    pe_jax.rope(),
    pe_jax.alibi_learned(),
    pe_jax.t5(buckets=8, max_distance=9, bidirectional=True),
    pe_jax.shaw(max_distance=3),
    pe_jax.fox(),
    kerple(),
    table(reach=128),
    sandwich(),
    fire(),
    music(reach=3),
    transformer_xl(reach=3),
    pe_jax.compose(pe_jax.rope(), transformer_xl(reach=3), pe_jax.t5(buckets=4, max_distance=9)),
    pe_jax.compose(pe_jax.rope(), pe_jax.alibi_learned()),
)
