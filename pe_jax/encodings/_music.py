# SPDX-License-Identifier: Apache-2.0
"""Music Transformer: trained vectors for clipped distances, per head, added to the keys.

  logit_nij = q_ni . (k_nj + r_n(j - i)) / sqrt(H),   with j - i clipped to -c .. c.

Reference: Huang et al., 2018, https://arxiv.org/abs/1809.04281.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import check_sizes
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.encodings._shaw import shaw_index

Array = jax.Array


@jax.jit
def music_transformer_bias(
    q: Array, q_pos: Array, k_pos: Array, table: Array, scale: float | Array
) -> Array:
  """Computes q_ni . r_n(j - i) times the scale, for every head n, query i and key j.

  Args:
    q: queries, shape [..., T, N, H].
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    table: r, one row a head and clipped distance, shape [N, 2 c + 1, H].
    scale: what q . k is multiplied by.

  Returns:
    Term of the scaled logits, float32, shape [..., N, T, S].

  Reference: Huang et al., 2018, https://arxiv.org/abs/1809.04281.

  >>> table = jnp.arange(5.0)[None, :, None]  # c = 2: rows for -2, -1, 0, 1, 2
  >>> q = jnp.ones((1, 1, 1))
  >>> music_transformer_bias(q, jnp.array([3]), jnp.array([0, 2, 3, 4]), table, 1.0).tolist()
  [[[0.0, 1.0, 2.0, 3.0]]]
  """
  by_row = jnp.einsum(
      '...tnh,nrh->...ntr', q, table.astype(q.dtype), preferred_element_type=jnp.float32
  )
  rows = shaw_index(q_pos, k_pos, table[0])[..., None, :, :]
  rows = jnp.broadcast_to(rows, (*by_row.shape[:-1], rows.shape[-1]))
  return scale * jnp.take_along_axis(by_row, rows, axis=-1)


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, max_distance: int):
  shape = (dims.heads, 2 * max_distance + 1, dims.head_dim)
  return {'table': jax.random.normal(key, shape) * dims.head_dim**-0.5}


def _bias(params, q, k, q_coords, k_coords, scale):
  del k
  return music_transformer_bias(q, q_coords, k_coords, params['table'], scale)


@factory
def music_transformer(*, max_distance: int = 128) -> Encoding:
  """Adds a trained vector of the clipped distance to the keys; every head has its own.

  It is `shaw` but for that, and for the values, which it leaves alone. Rows for keys ahead of the
  query serve attention without a causal mask.

  Args:
    max_distance: c; distances beyond it are clipped.

  Raises:
    ValueError: a max_distance that is no positive integer.

  Reference: Huang et al., 2018, https://arxiv.org/abs/1809.04281.
  """
  check_sizes(max_distance=max_distance)
  return Encoding(
      name='music_transformer',
      init=bind(_init, max_distance=max_distance),
      bias=_bias,
      per_head=('table',),
      relative=True,
      reads_content=True,
      reference='Huang et al., 2018, arXiv:1809.04281',
  )
