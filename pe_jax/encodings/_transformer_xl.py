# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL: queries ask for content and, through a trained projection, for a distance.

  logit_nij = ((q_ni + u_n) . k_nj + (q_ni + v_n) . W_n R(i - j)) / sqrt(H),
  R(d) = (sin(w_1 d), ..., sin(w_F d), cos(w_1 d), ..., cos(w_F d)).

No distance is ever formed. With a and b what W takes from q + v to the sines and the cosines, the
angle addition theorem gives

  a sin(w (i - j)) + b cos(w (i - j))
    = (a sin(w i) + b cos(w i)) cos(w j) + (b sin(w i) - a cos(w i)) sin(w j),

a product of what belongs to the query, which the position i has turned, and R(j).

Reference: Dai et al., 2019, https://arxiv.org/abs/1901.02860.
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


@jax.jit
def transformer_xl_bias(
    q: Array,
    k: Array,
    q_pos: Array,
    k_pos: Array,
    u: Array,
    v: Array,
    projection: Array,
    frequencies: Array,
    scale: float | Array,
    turns: Array | None = None,
) -> Array:
  """Computes u_n . k_nj + (q_ni + v_n) . W_n R(i - j) times the scale.

  Args:
    q: queries, shape [..., T, N, H].
    k: keys, shape [..., S, N, H].
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    u: what every query asks of the content, shape [N, H].
    v: what every query asks of the distance, shape [N, H].
    projection: W, shape [N, H, 2 F]: sines first, then cosines.
    frequencies: w, radians per position, shape [F].
    scale: what q . k is multiplied by.
    turns: exact pieces of the frequencies that are known, see `pe_jax.positions.phases`.

  Returns:
    Term of the scaled logits, float32, shape [..., N, T, S].

  Reference: Dai et al., 2019, https://arxiv.org/abs/1901.02860, section 3.3.
  """
  q, k, u, v, projection = (x.astype(jnp.float32) for x in (q, k, u, v, projection))
  by_content = jnp.einsum('...snh,nh->...ns', k, u)
  waves = jnp.einsum('...tnh,nhw->...tnw', q + expand(v, q.ndim), projection)
  turned = _turn(waves, phases(q_pos, frequencies, turns))
  k_angle = expand(phases(k_pos, frequencies, turns), turned.ndim - 1)
  rows = jnp.concatenate([jnp.sin(k_angle), jnp.cos(k_angle)], axis=-1)
  by_distance = jnp.einsum('...tnw,...sw->...nts', turned, rows, precision='highest')
  return scale * (by_distance + by_content[..., None, :])


def _turn(waves: Array, angle: Array) -> Array:
  """Turns what belongs to R(i - j), [..., T, N, 2 F], into what belongs to R(j)."""
  a, b = jnp.split(waves, 2, axis=-1)
  angle = expand(angle[..., None, :], waves.ndim)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  return jnp.concatenate([b * sin - a * cos, a * sin + b * cos], axis=-1)


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, width: int | None):
  width = dims.model if width is None else width
  if width % 2:
    raise ValueError(
        f'transformer_xl: width={width} must be even, as a sine and a cosine share a frequency: '
        'give width=...'
    )
  u_key, v_key, projection_key = jax.random.split(key, 3)
  head = (dims.heads, dims.head_dim)
  return {
      'u': 0.02 * jax.random.normal(u_key, head),
      'v': 0.02 * jax.random.normal(v_key, head),
      'projection': jax.random.normal(projection_key, (*head, width)) * width**-0.5,
  }


def _bias(params, q, k, q_coords, k_coords, scale, *, base: float):
  projection = params['projection']
  frequencies = sinusoidal_frequencies(projection.shape[-1], base)
  turns = split_turns(frequencies)[None]
  return transformer_xl_bias(
      q, k, q_coords, k_coords, params['u'], params['v'], projection, frequencies, scale, turns
  )


@factory
def transformer_xl(*, width: int | None = None, base: float = 1e4) -> Encoding:
  """Adds Transformer-XL's terms of content and distance to the scaled logits.

  Each pair of tokens costs a product of `width` channels a head.

  Args:
    width: channels 2 F of R; those of the model unless given.
    base: frequencies are base ** (-2 f / width).

  Raises:
    ValueError: a base or width that is not above 0; from `init`, an odd width.

  Reference: Dai et al., 2019, https://arxiv.org/abs/1901.02860.
  """
  check_positive(base=base)
  if width is not None:
    check_sizes(width=width)
  return Encoding(
      name='transformer_xl',
      init=bind(_init, width=width),
      bias=bind(_bias, base=base),
      per_head=('u', 'v', 'projection'),
      relative=True,
      reads_content=True,
      reference='Dai et al., 2019, arXiv:1901.02860',
  )
