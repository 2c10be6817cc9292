# SPDX-License-Identifier: Apache-2.0
"""CoPE: a key's position is how many tokens since it the query counts, by gates on the logits.

  g_ij = sigmoid(logit_ij),   p_ij = g_ij + ... + g_ii (at most P - 1),   logit_ij + q_i . e[p_ij],

where e between two whole positions is their interpolation.

Reference: Golovneva et al., 2024, https://arxiv.org/abs/2405.18719.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import factory
from pe_jax.base import Encoding

Array = jax.Array


@jax.jit
def contextual_positions(logits: Array, mask: Array) -> Array:
  """Sums the gates sigmoid(logit) from each key on to the last that the query may see.

  Args:
    logits: scaled, float32, shape [..., N, T, S].
    mask: True where the query may see the key, shape [..., 1 or N, T, S].

  Returns:
    Positions from 0 to S, float32, shape [..., N, T, S].
  """
  gates = jnp.where(mask, jax.nn.sigmoid(logits), 0)
  return jnp.flip(jnp.cumsum(jnp.flip(gates, -1), axis=-1), -1)


@jax.jit
def cope_logits(logits: Array, q: Array, mask: Array, table: Array) -> Array:
  """Adds q_i . e[p_ij] to the logits.

  Args:
    logits: scaled, float32, shape [..., N, T, S].
    q: queries, shape [..., T, N, H].
    mask: True where the query may see the key, shape [..., 1 or N, T, S].
    table: e, shape [P, H].

  Returns:
    Logits, float32, shape [..., N, T, S].

  Reference: Golovneva et al., 2024, https://arxiv.org/abs/2405.18719, equations 3 to 6.
  """
  last = table.shape[0] - 1
  position = jnp.minimum(contextual_positions(logits, mask), last)
  low = jnp.floor(position).astype(jnp.int32)
  by_row = jnp.einsum(
      '...tnh,ph->...ntp', q, table.astype(q.dtype), preferred_element_type=jnp.float32
  )
  at_low = jnp.take_along_axis(by_row, low, axis=-1)
  at_high = jnp.take_along_axis(by_row, jnp.minimum(low + 1, last), axis=-1)
  part = position - low
  return logits + (1 - part) * at_low + part * at_high


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, max_position: int):
  del key
  return {'table': jnp.zeros((max_position, dims.head_dim))}


def _logits(params, logits, q, k, q_coords, k_coords, mask):
  del k, q_coords, k_coords
  return cope_logits(logits, q, mask, params['table'])


@factory
def cope(*, max_position: int = 64) -> Encoding:
  """Lets each query count the tokens that matter to it, and reads a trained vector at the count.

  Args:
    max_position: rows P of the table; counts stop at P - 1.

  Raises:
    ValueError: fewer than 2 rows.

  Reference: Golovneva et al., 2024, https://arxiv.org/abs/2405.18719.
  """
  if max_position < 2:
    raise ValueError(f'max_position={max_position} must be at least 2, to tell positions apart.')
  return Encoding(
      name='cope',
      init=bind(_init, max_position=max_position),
      logits=_logits,
      relative=True,
      causal_only=True,
      order_dependent=True,
      reads_content=True,
      reference='Golovneva et al., 2024, arXiv:2405.18719',
  )
