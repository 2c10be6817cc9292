# SPDX-License-Identifier: Apache-2.0
"""Log-n scaling: queries grow with the logarithm of how much they may see.

  q_p -> max(1, ln(p + 1) / ln(L)) q_p

Entropy of the attention then stays about the same beyond the trained length.

Reference: Su, 2021, https://kexue.fm/archives/8823; Chiang and Cholak, 2022,
https://arxiv.org/abs/2202.12172.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import as_float
from pe_jax.positions import expand

Array = jax.Array


@jax.jit
def log_n_scale(positions: Array, trained_length: float | Array) -> Array:
  """Computes max(1, ln(p + 1) / ln(L)) for every position p.

  Args:
    positions: of the queries, shape [..., T].
    trained_length: L, in tokens, above 1.

  Returns:
    What the query is multiplied by, float32, shape [..., T].

  >>> log_n_scale(jnp.array([0, 15, 255]), 16).tolist()
  [1.0, 1.0, 2.0]
  """
  seen = jnp.maximum(as_float(positions) + 1, 1)
  return jnp.maximum(jnp.log(seen) / jnp.log(jnp.asarray(trained_length, jnp.float32)), 1)


def _constants(dims, *, trained_length: float):
  del dims
  return {'trained_length': jnp.asarray(trained_length, jnp.float32)}


def _query(params, q, coords, length):
  del length
  scale = log_n_scale(coords, params['trained_length'])[..., None, None]
  return (q.astype(jnp.float32) * expand(scale, q.ndim)).astype(q.dtype)


@factory
def log_n(*, trained_length: float) -> Encoding:
  """Multiplies the query at position p by max(1, ln(p + 1) / ln(L)); compose it with RoPE.

  Up to the trained length L nothing changes. Positions are counted from 0.

  Args:
    trained_length: L, in tokens.

  Raises:
    ValueError: a length that is not above 1.

  Reference: Su, 2021, https://kexue.fm/archives/8823.

  >>> import pe_jax
  >>> pe_jax.compose(pe_jax.rope(), log_n(trained_length=512))
  compose(rope(base=10000.0), log_n(trained_length=512.0))
  """
  if not trained_length > 1:
    raise ValueError(f'trained_length={trained_length!r} must be above 1: its logarithm divides.')
  return Encoding(
      name='log_n',
      constants=bind(_constants, trained_length=trained_length),
      query=_query,
      reference='Su, 2021, https://kexue.fm/archives/8823',
  )
