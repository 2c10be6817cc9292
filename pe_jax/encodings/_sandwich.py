# SPDX-License-Identifier: Apache-2.0
"""Sandwich: the inner product of the sinusoids of two positions, weighed for each head.

  bias_nij = r_n sum_f cos(w_f (j - i)),   w_f = base ** (-2 f / W),   r_n = N / (8 n),  n = 1 .. N.

Nothing is trained. As cos(w (j - i)) = cos(w i) cos(w j) + sin(w i) sin(w j), the sum is a matrix
product of what belongs to the queries and what belongs to the keys.

Reference: Chi et al., 2022, https://arxiv.org/abs/2212.10356.
"""

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import check_sizes
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.encodings._sinusoidal import sinusoidal_frequencies
from pe_jax.positions import expand
from pe_jax.positions import phases
from pe_jax.positions import split_turns

Array = jax.Array


def sandwich_ratios(heads: int) -> tuple[float, ...]:
  """Computes N / (8 n) for n = 1 .. N, what the sum is multiplied by.

  Args:
    heads: number N of query heads in the whole model, not in one shard.

  Returns:
    N ratios.

  >>> sandwich_ratios(4)
  (0.5, 0.25, 0.16666666666666666, 0.125)
  """
  return tuple(heads / (8 * n) for n in range(1, heads + 1))


@jax.jit
def sandwich_bias(
    q_pos: Array, k_pos: Array, ratios: Array, frequencies: Array, turns: Array | None = None
) -> Array:
  """Computes r_n sum_f cos(w_f (j - i)) for every head n, query i and key j.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    ratios: r, one a head, shape [N].
    frequencies: w, radians per position, shape [F].
    turns: exact pieces of the frequencies that are known, see `pe_jax.positions.phases`.

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].

  Reference: Chi et al., 2022, https://arxiv.org/abs/2212.10356.

  >>> one, w = jnp.ones(1), jnp.array([1.0, 0.1])
  >>> [f'{x:.3f}' for x in sandwich_bias(jnp.array([5]), jnp.array([5, 4, 2]), one, w)[0, 0]]
  ['2.000', '1.535', '-0.035']
  """
  q_angle, k_angle = phases(q_pos, frequencies, turns), phases(k_pos, frequencies, turns)
  ndim = max(q_angle.ndim, k_angle.ndim)
  q_angle, k_angle = expand(q_angle, ndim), expand(k_angle, ndim)
  products = [
      jnp.einsum('...tf,...sf->...ts', wave(q_angle), wave(k_angle), precision='highest')
      for wave in (jnp.cos, jnp.sin)
  ]
  total = sum(products)[..., None, :, :]
  return expand(jnp.asarray(ratios, jnp.float32)[:, None, None], total.ndim) * total


# --- Hooks ---------------------------------------------------------------------------------------


def _constants(dims, *, width: int, base: float):
  frequencies = sinusoidal_frequencies(width, base)
  return {
      'ratios': jnp.asarray(sandwich_ratios(dims.heads), jnp.float32),
      'frequencies': jnp.asarray(frequencies, jnp.float32),
      'turns': jnp.asarray(split_turns(frequencies)[None]),
  }


def _bias(params, q, k, q_coords, k_coords, scale):
  del q, k, scale
  return sandwich_bias(
      q_coords, k_coords, params['ratios'], params['frequencies'], params['turns']
  )


@factory
def sandwich(*, width: int = 128, base: float = 1e4) -> Encoding:
  """Adds a fixed sum of cosines of the distance to the scaled logits.

  Args:
    width: channels W of the sinusoids, of which pairs share a frequency.
    base: frequencies are base ** (-2 f / width).

  Raises:
    ValueError: a width that is odd or not above 0, or a base that is not above 0.

  Reference: Chi et al., 2022, https://arxiv.org/abs/2212.10356.
  """
  check_sizes(width=width)
  check_positive(base=base)
  if width % 2:
    raise ValueError(f'width={width} must be even: a sine and a cosine share a frequency.')
  return Encoding(
      name='sandwich',
      constants=bind(_constants, width=width, base=base),
      bias=_bias,
      per_head=('ratios',),
      relative=True,
      by_distance=True,
      reference='Chi et al., 2022, arXiv:2212.10356',
  )
