# SPDX-License-Identifier: Apache-2.0
"""ALiBi: a penalty on the logits that grows with distance, one slope m_n a head.

  bias_nij = -m_n |j - i|

Reference: Press et al., 2022, https://arxiv.org/abs/2108.12409.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import distance
from pe_jax.positions import expand

Array = jax.Array


def alibi_slopes(heads: int) -> tuple[float, ...]:
  """Computes the authors' slopes: 2 ** (-8 h / N), h = 1 .. N, where N is a power of two.

  For other N: the slopes of the power of two below, then every other one of twice as many heads,
  in that order, unsorted.

  Args:
    heads: number N of query heads in the whole model, not in one shard.

  Returns:
    N slopes.

  Reference: https://github.com/ofirpress/attention_with_linear_biases.

  >>> alibi_slopes(3)
  (0.0625, 0.00390625, 0.25)
  """
  power = 1 << (heads.bit_length() - 1)
  slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
  between = [2 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
  return tuple(slopes + between[: heads - power])


@jax.jit
def alibi_bias(q_pos: Array, k_pos: Array, slopes: Array) -> Array:
  """Computes the penalty -m_n |j - i| for every head n, query i and key j.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    slopes: penalty per unit of distance for each head, shape [N].

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].

  Reference: Press et al., 2022, https://arxiv.org/abs/2108.12409.

  >>> alibi_bias(jnp.array([4]), jnp.arange(5), jnp.array([0.5])).tolist()
  [[[-2.0, -1.5, -1.0, -0.5, -0.0]]]
  """
  steps = jnp.abs(distance(q_pos, k_pos))[..., None, :, :]
  slopes = expand(jnp.asarray(slopes, jnp.float32)[:, None, None], steps.ndim)
  return -slopes * steps


# --- Hooks ---------------------------------------------------------------------------------------


def _slopes(dims, *, slopes: tuple[float, ...] | None):
  slopes = alibi_slopes(dims.heads) if slopes is None else slopes
  return {'slopes': jnp.asarray(slopes, jnp.float32)}


def _initial_slopes(key, dims, *, slopes: tuple[float, ...] | None):
  del key
  return _slopes(dims, slopes=slopes)


def _bias(params, q, k, q_coords, k_coords, scale):
  del q, k, scale
  return alibi_bias(q_coords, k_coords, params['slopes'])


@factory
def alibi(*, slopes: tuple[float, ...] | None = None) -> Encoding:
  """Adds -m_n |distance| to the scaled logits. It serves causal and symmetric attention alike.

  Args:
    slopes: m, one a query head; the authors' unless given.

  Raises:
    ValueError: a slope that is not above 0; from `attend`, another number of slopes than heads.

  Reference: Press et al., 2022, https://arxiv.org/abs/2108.12409.
  """
  _check_slopes(slopes)
  return Encoding(
      name='alibi',
      constants=bind(_slopes, slopes=slopes),
      bias=_bias,
      per_head=('slopes',),
      relative=True,
      by_distance=True,
      reference='Press et al., 2022, arXiv:2108.12409',
  )


@factory
def alibi_learned(*, slopes: tuple[float, ...] | None = None) -> Encoding:
  """Is `alibi` with trained slopes, which start at the given ones.

  Args:
    slopes: initial m, one a query head; the authors' unless given.

  Raises:
    ValueError: as for `alibi`.

  Reference: Press et al., 2022, https://arxiv.org/abs/2108.12409, section 3.
  """
  _check_slopes(slopes)
  return Encoding(
      name='alibi_learned',
      init=bind(_initial_slopes, slopes=slopes),
      bias=_bias,
      per_head=('slopes',),
      relative=True,
      by_distance=True,
      reference='Press et al., 2022, arXiv:2108.12409',
  )


def _check_slopes(slopes: tuple[float, ...] | None):
  for head, slope in enumerate(slopes or ()):
    check_positive(**{f'slopes[{head}]': slope})
