# SPDX-License-Identifier: Apache-2.0
"""xPos: RoPE whose channels also fade with distance, the fast ones sooner.

A query at m is multiplied by z_i ** ((m - c) / s) and a key at n by z_i ** (-(n - c) / s), so the
score has z_i ** ((m - n) / s) and no c. It grows with distance for keys after the query, hence a
causal mask. c follows the length of the text, as with c = 0 the factors overflow at positions of
some ten thousand. Keys are therefore cached before they are rotated.

Reference: Sun et al., 2022, https://arxiv.org/abs/2212.10554.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import scaling
from pe_jax._bind import bind
from pe_jax._bind import check_choice
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.encodings._rope import LAYOUTS
from pe_jax.encodings._rope import rope_tables
from pe_jax.positions import as_float
from pe_jax.positions import expand
from pe_jax.positions import split_turns

Array = jax.Array

# With c at 6 s before the end, factors stay within 2 ** 11, float16 too, on 12 s tokens; float32
# and bfloat16 hold out for 64 s tokens.
_BEFORE_END = 6
_LARGEST = 80.0  # of an exponent: exp(88) overflows


def xpos_decay(width: int, gamma: float) -> np.ndarray:
  """Computes ln z_i with z_i = (2 i / width + gamma) / (1 + gamma), float64, shape [width / 2].

  >>> np.exp(xpos_decay(width=4, gamma=0.4)).round(3).tolist()
  [0.286, 0.643]
  """
  return np.log((np.arange(0, width, 2) / width + gamma) / (1 + gamma))


@jax.jit
def xpos_exponents(
    positions: Array, length: float | Array, log_decay: Array, scale_base: float | Array
) -> Array:
  """Computes (p - c) / s ln z_i, c = length - 6 s.

  Args:
    positions: shape [..., T].
    length: 1 + the last position, a number or shape [...].
    log_decay: ln z, shape [W / 2].
    scale_base: s, in tokens.

  Returns:
    Exponents of the query's factor and, negated, of the key's, float32, shape [..., T, W / 2].
  """
  positions = as_float(positions)[..., None]
  length = jnp.asarray(length, jnp.float32)[..., None, None]
  ndim = max(positions.ndim, length.ndim)
  steps = expand(positions, ndim) - expand(length - _BEFORE_END * scale_base, ndim)
  return steps / scale_base * expand(log_decay, ndim)


def _constants(dims, *, base: float, scale_base: float, gamma: float):
  inv_freq, _ = scaling.default_frequencies(dims.head_dim, base)
  arrays = {
      'inv_freq': inv_freq,
      'turns': split_turns(inv_freq)[None],
      'log_decay': xpos_decay(dims.head_dim, gamma),
      'scale_base': scale_base,
  }
  return {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}


def _query(params, q, coords, length, *, rotate: Callable):
  exponents = xpos_exponents(coords, length, params['log_decay'], params['scale_base'])
  turned = _turn(params, q, coords, exponents, rotate)
  # Keys are not marked: one that no query sees, such as a slot to come, must stay finite.
  lost = jnp.any(jnp.abs(exponents) > _LARGEST, axis=-1)[..., None, None]
  return jnp.where(expand(lost, turned.ndim), jnp.asarray(jnp.nan, q.dtype), turned)


def _key(params, k, coords, length, *, rotate: Callable):
  exponents = xpos_exponents(coords, length, params['log_decay'], params['scale_base'])
  return _turn(params, k, coords, -exponents, rotate)


def _turn(params, x, coords, exponents: Array, rotate: Callable):
  cos, sin = rope_tables(coords, params['inv_freq'], 1.0, params['turns'])
  ndim = max(exponents.ndim, cos.ndim)
  factors = expand(jnp.exp(jnp.minimum(exponents, _LARGEST)), ndim)
  cos, sin = (factors * expand(table, ndim) for table in (cos, sin))
  # A barrier, else XLA on a CPU evaluates the exponentials again for each head.
  return rotate(x, *jax.lax.optimization_barrier((cos, sin)))


@factory
def xpos(
    *,
    base: float = 1e4,
    scale_base: float = 512.0,
    gamma: float = 0.4,
    layout: str = 'half',
) -> Encoding:
  """Rotates queries and keys by their positions and lets scores fade with distance.

  Positions may be as large as RoPE's. What counts is how far a query lies before the length: up to
  64 times scale_base tokens (32768 by default; 12 times with float16). Farther queries give NaN.

  Args:
    base: frequencies are base ** (-2 i / head_dim).
    scale_base: s, the distance in tokens over which a channel fades by its z.
    gamma: the smaller, the faster the first channels fade: z_0 = gamma / (1 + gamma).
    layout: 'half' pairs channel i with i + head_dim / 2, 'interleaved' pairs 2 i with 2 i + 1.

  Raises:
    ValueError: a number that is not above 0, or another layout.

  Reference: Sun et al., 2022, https://arxiv.org/abs/2212.10554.
  """
  check_positive(base=base, scale_base=scale_base, gamma=gamma)
  check_choice('layout', layout, LAYOUTS)
  return Encoding(
      name='xpos',
      constants=bind(_constants, base=base, scale_base=scale_base, gamma=gamma),
      query=bind(_query, rotate=LAYOUTS[layout]),
      key=bind(_key, rotate=LAYOUTS[layout]),
      relative=True,
      causal_only=True,
      length_dependent=True,
      reference='Sun et al., 2022, arXiv:2212.10554',
  )
