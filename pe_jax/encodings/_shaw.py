# SPDX-License-Identifier: Apache-2.0
"""Shaw: trained vectors for clipped distances, added to the keys and to the values.

  logit_ij = q_i . (k_j + a^K_(j - i)) / sqrt(H),   output_i = sum_j w_ij (v_j + a^V_(j - i)),

with j - i clipped to -c .. c.

Reference: Shaw et al., 2018, https://arxiv.org/abs/1803.02155.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import distance

Array = jax.Array


@jax.jit
def shaw_index(q_pos: Array, k_pos: Array, table: Array) -> Array:
  """Computes clip(j - i, -c, c) + c, the row of a table of 2 c + 1 rows.

  A distance between two whole numbers takes the row of the nearer.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    table: shape [2 c + 1, H].

  Returns:
    int32 rows, shape [..., T, S].
  """
  clip = table.shape[0] // 2
  return jnp.clip(jnp.round(distance(q_pos, k_pos)), -clip, clip).astype(jnp.int32) + clip


@jax.jit
def shaw_bias(q: Array, q_pos: Array, k_pos: Array, table: Array, scale: float | Array) -> Array:
  """Computes q_i . a^K_(j - i) times the scale.

  Args:
    q: queries, shape [..., T, N, H].
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    table: a^K, one row a clipped distance, shape [2 c + 1, H].
    scale: what q . k is multiplied by.

  Returns:
    Term of the scaled logits, float32, shape [..., N, T, S].

  Reference: Shaw et al., 2018, https://arxiv.org/abs/1803.02155, equation 4.
  """
  by_row = jnp.einsum(
      '...tnh,rh->...ntr', q, table.astype(q.dtype), preferred_element_type=jnp.float32
  )
  rows = shaw_index(q_pos, k_pos, table)[..., None, :, :]
  rows = jnp.broadcast_to(rows, (*by_row.shape[:-1], rows.shape[-1]))
  return scale * jnp.take_along_axis(by_row, rows, axis=-1)


@jax.jit
def shaw_value(weights: Array, q_pos: Array, k_pos: Array, table: Array) -> Array:
  """Computes sum_j w_ij a^V_(j - i).

  Args:
    weights: attention weights, float32, shape [..., N, T, S].
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    table: a^V, shape [2 c + 1, H].

  Returns:
    Term of the output, float32, shape [..., T, N, H].

  Reference: Shaw et al., 2018, https://arxiv.org/abs/1803.02155, equation 3.
  """
  rows = shaw_index(q_pos, k_pos, table)
  hit = jax.nn.one_hot(rows, table.shape[0], dtype=jnp.float32)
  hit = jnp.broadcast_to(hit, (*weights.shape[:-3], *hit.shape[-3:]))
  by_row = jnp.einsum('...nts,...tsr->...tnr', weights, hit)
  return jnp.einsum('...tnr,rh->...tnh', by_row, table.astype(jnp.float32))


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, max_distance: int):
  k_key, v_key = jax.random.split(key)
  shape = (2 * max_distance + 1, dims.head_dim)
  return {
      'keys': jax.random.normal(k_key, shape) * dims.head_dim**-0.5,
      'values': jax.random.normal(v_key, shape) * dims.head_dim**-0.5,
  }


def _bias(params, q, k, q_coords, k_coords, scale):
  del k
  return shaw_bias(q, q_coords, k_coords, params['keys'], scale)


def _value(params, weights, q_coords, k_coords):
  return shaw_value(weights, q_coords, k_coords, params['values'])


@factory
def shaw(*, max_distance: int = 16) -> Encoding:
  """Adds trained vectors of the clipped distance to keys and values; heads share them.

  Args:
    max_distance: distances beyond it are clipped.

  Raises:
    ValueError: a max_distance that is not above 0.

  Reference: Shaw et al., 2018, https://arxiv.org/abs/1803.02155.
  """
  check_positive(max_distance=max_distance)
  return Encoding(
      name='shaw',
      init=bind(_init, max_distance=max_distance),
      bias=_bias,
      value=_value,
      relative=True,
      reads_content=True,
      reference='Shaw et al., 2018, arXiv:1803.02155',
  )
