# SPDX-License-Identifier: Apache-2.0
"""Sinusoidal positions: added to the embedding, or put beside it.

Channel pair i of position p is (sin(w_i p), cos(w_i p)). A shift by k turns every pair by the angle
w_i k, whatever p is, so PE(p + k) = M_k PE(p) and PE(p) . PE(p + k) = sum_i cos(w_i k).

Reference: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax._bind import bind
from pe_jax._bind import check_choice
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import expand
from pe_jax.positions import phases

Array = jax.Array

_ORDERS = ('interleaved', 'concat')


def sinusoidal_frequencies(width: int, base: float | Array = 1e4) -> np.ndarray | Array:
  """Computes w_i = base ** (-2 i / width), for i = 0 .. ceil(width / 2) - 1.

  Args:
    width: channels of the encoding.
    base: the longest wavelength is just below 2 pi base. May be traced.

  Returns:
    Frequencies in radians per position, shape [ceil(width / 2)], float64 for a number.

  >>> sinusoidal_frequencies(4)
  array([1.  , 0.01])
  """
  return base ** (-np.arange(0, width, 2) / width)


def sinusoidal_wavelengths(width: int, base: float | Array = 1e4) -> np.ndarray | Array:
  """Computes 2 pi / w_i, a geometric progression from 2 pi.

  Returns:
    Wavelengths in positions, shape [ceil(width / 2)].

  >>> sinusoidal_wavelengths(4).round(2).tolist()
  [6.28, 628.32]
  """
  return 2 * np.pi / sinusoidal_frequencies(width, base)


def timescale_frequencies(
    width: int, *, min_timescale: float = 1.0, max_timescale: float = 1e4
) -> np.ndarray:
  """Computes 1 / t_i, for t_i geometric from min_timescale to max_timescale, both included.

  The paper's progression stops one step short of its end; tensor2tensor's does not.

  Args:
    width: channels of the encoding; an odd one has a last channel without a frequency.
    min_timescale: wavelength of the first pair, over 2 pi.
    max_timescale: wavelength of the last pair, over 2 pi.

  Returns:
    Frequencies in radians per position, shape [width // 2].
  """
  steps = np.arange(width // 2) / max(width // 2 - 1, 1)
  return 1 / (min_timescale * (max_timescale / min_timescale) ** steps)


@functools.partial(jax.jit, static_argnames=('width', 'order'))
def sinusoidal_embedding(
    positions: Array, frequencies: Array, *, width: int, order: str = 'interleaved'
) -> Array:
  """Computes sin(w_i p) and cos(w_i p) for every position p and frequency w_i.

  Args:
    positions: int or float, any order, shape [..., T].
    frequencies: w, shape [ceil(width / 2)] or [width // 2].
    width: number of channels. An odd width has a last sine without its cosine, or, where it has one
      frequency fewer, a last channel of zeros.
    order: 'interleaved' for sin, cos, sin, cos, ... as in the paper, 'concat' for all the sines and
      then all the cosines.

  Returns:
    The encoding, float32, shape [..., T, width].

  Raises:
    ValueError: another order.

  Reference: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.5.

  >>> row = sinusoidal_embedding(jnp.arange(3), sinusoidal_frequencies(4), width=4)[1]
  >>> [f'{channel:.2f}' for channel in row]
  ['0.84', '0.54', '0.01', '1.00']
  """
  check_choice('order', order, _ORDERS)
  angle = phases(positions, frequencies)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  if order == 'interleaved':
    channels = jnp.stack([sin, cos], axis=-1).reshape(*angle.shape[:-1], -1)[..., :width]
  else:
    channels = jnp.concatenate([sin, cos[..., : width // 2]], axis=-1)
  spare = width - channels.shape[-1]
  return jnp.pad(channels, [(0, 0)] * (channels.ndim - 1) + [(0, spare)])


@functools.partial(jax.jit, static_argnames=('width',))
def sinusoidal_shift(k: float | Array, width: int, base: float | Array = 1e4) -> Array:
  """Builds the matrix M_k for which PE(p + k) = M_k PE(p) at every p.

  Interleaved channels make it block-diagonal: block i is [[cos a, sin a], [-sin a, cos a]] with
  a = w_i k.

  Args:
    k: the shift, in positions.
    width: channels of the encoding, even.
    base: as in `sinusoidal_frequencies`.

  Returns:
    M_k, float32, shape [width, width].

  Raises:
    ValueError: an odd width, whose last sine has no cosine to turn with.
  """
  if width % 2:
    raise ValueError(f'width={width} is odd, its last sine has no shift matrix: make it even.')
  angle = jnp.asarray(k * sinusoidal_frequencies(width, base), jnp.float32)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  blocks = jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin, cos], -1)], -2)
  return jax.scipy.linalg.block_diag(*blocks)


# --- Hooks ---------------------------------------------------------------------------------------


def _add(params, x, positions, *, base: float, order: str):
  del params
  width = x.shape[-1]
  encoded = sinusoidal_embedding(
      positions, sinusoidal_frequencies(width, base), width=width, order=order
  )
  return (x + expand(encoded, x.ndim)).astype(x.dtype)


def _add_timing_signal(params, x, positions, *, min_timescale: float, max_timescale: float):
  del params
  width = x.shape[-1]
  frequencies = timescale_frequencies(
      width, min_timescale=min_timescale, max_timescale=max_timescale
  )
  encoded = sinusoidal_embedding(positions, frequencies, width=width, order='concat')
  return (x + expand(encoded, x.ndim)).astype(x.dtype)


def _put_beside(params, x, positions, *, width: int, base: float):
  del params
  if width >= x.shape[-1]:
    raise ValueError(
        f'width={width} leaves no channel for the content: the model has {x.shape[-1]} channels.'
    )
  encoded = sinusoidal_embedding(positions, sinusoidal_frequencies(width, base), width=width)
  encoded = jnp.broadcast_to(expand(encoded, x.ndim), (*x.shape[:-1], width))
  return jnp.concatenate([x[..., :-width], encoded.astype(x.dtype)], axis=-1)


# --- Factories -----------------------------------------------------------------------------------


@factory
def sinusoidal(*, base: float = 1e4, order: str = 'interleaved') -> Encoding:
  """Adds sines and cosines of geometric wavelengths to the embedding.

  Args:
    base: the longest wavelength is just below 2 pi base positions.
    order: 'interleaved' as in the paper, or 'concat'.

  Raises:
    ValueError: another order, or a base that is not above 0.

  Reference: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.

  >>> sinusoidal(order='concat')
  sinusoidal(base=10000.0, order='concat')
  """
  check_choice('order', order, _ORDERS)
  check_positive(base=base)
  return Encoding(
      name='sinusoidal',
      embed=bind(_add, base=base, order=order),
      absolute=True,
      reference='Vaswani et al., 2017, arXiv:1706.03762',
  )


@factory
def timing_signal(*, min_timescale: float = 1.0, max_timescale: float = 1e4) -> Encoding:
  """Adds tensor2tensor's sinusoids: all sines, then all cosines, on time scales of both ends.

  Args:
    min_timescale: first wavelength over 2 pi, in positions.
    max_timescale: last wavelength over 2 pi, in positions.

  Raises:
    ValueError: a time scale that is not above 0.

  Reference: Vaswani et al., 2018, https://arxiv.org/abs/1803.07416.
  """
  check_positive(min_timescale=min_timescale, max_timescale=max_timescale)
  return Encoding(
      name='timing_signal',
      embed=bind(_add_timing_signal, min_timescale=min_timescale, max_timescale=max_timescale),
      absolute=True,
      reference='Vaswani et al., 2018, arXiv:1803.07416',
  )


@factory
def concatenated(*, width: int, base: float = 1e4) -> Encoding:
  """Lets the last `width` channels hold the position and the others the content, without a sum.

  Args:
    width: channels given to the position, fewer than the model has.
    base: as in `sinusoidal`.

  Raises:
    ValueError: a width or base that is not above 0; later, a width that leaves no content.

  Reference: Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, for the sinusoids.
  """
  check_positive(width=width, base=base)
  return Encoding(
      name='concatenated',
      embed=bind(_put_beside, width=width, base=base),
      absolute=True,
      reference='Vaswani et al., 2017, arXiv:1706.03762',
  )
