# SPDX-License-Identifier: Apache-2.0
"""Positions as data: arrays that an encoding reads, made from masks, segments, grids or chance.

An encoding never numbers tokens by itself. What a token's position is, is decided here, or by the
caller, and handed over as an array.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


# --- What encodings compute from positions -------------------------------------------------------


def as_float(positions: Array) -> Array:
  """Returns positions as float32.

  Raises:
    ValueError: half-precision positions, which repeat neighbours past 256 (bfloat16) or 2048
      (float16), or booleans.
  """
  positions = jnp.asarray(positions)
  check_countable('positions', positions)
  return positions.astype(jnp.float32)


def check_countable(name: str, positions: Array):
  """Raises a ValueError for positions of a dtype that cannot hold every whole number."""
  if positions.dtype in (jnp.bfloat16, jnp.float16, jnp.bool_):
    raise ValueError(
        f'{name} of dtype {positions.dtype} cannot count tokens: pass int32 or float32.'
    )


def expand(x: Array, ndim: int) -> Array:
  """Puts axes of size 1 in front of x until it has `ndim` axes."""
  return x.reshape((1,) * (ndim - x.ndim) + x.shape)


# Up to positions of 2 ** 24, far and near are at most 2 ** 12. Coarse turns are at most a half, or
# 2 ** 12 steps of the grid. Their products then have 24 bits at most, so float32 holds them.
_SPAN = 4096
_GRID = 8192


def phases(positions: Array, frequencies: Array, turns: Array | None = None) -> Array:
  """Computes the angle w p of every position p and frequency w, in float32.

  A float32 product w p errs by up to w p 2 ** -23: 0.02 rad at 2 ** 20 for w near 1. With `turns`
  whole turns are taken off before anything is rounded. Modulo 2 pi, and with u the known frequency,

    w p = 2 pi (far turns(4096) + near turns(1)) + u part + (w - u) p,

  where p = 4096 far + near + part with whole far and near, |near| <= 2048 and |part| <= 1 / 2, and
  turns(n) = u n / (2 pi) without whole turns. The angle is then right to 1e-6 up to positions of
  2 ** 24. Gradients are those of w p in either case.

  Args:
    positions: shape [..., T].
    frequencies: radians per position, shape [F], or [..., F] for one set a row.
    turns: what `split_turns` makes of frequencies that are known exactly, shape [S, 5, F]. A
      channel whose frequency is none of the S known ones is a float32 product.

  Returns:
    Angles in radians, float32, shape [..., T, F].
  """
  frequencies = jnp.asarray(frequencies, jnp.float32)[..., None, :]
  positions = as_float(positions)[..., None]
  ndim = max(positions.ndim, frequencies.ndim)
  positions, frequencies = expand(positions, ndim), expand(frequencies, ndim)
  if turns is None:
    return positions * frequencies
  known, near_coarse, near_fine, far_coarse, far_fine = _known(frequencies, turns)
  far = jnp.round(positions / _SPAN)
  near = jnp.round(positions - far * _SPAN)
  part = positions - far * _SPAN - near
  coarse = _fraction(far * far_coarse) + _fraction(near * near_coarse)
  turn = _fraction(_fraction(coarse) + (far * far_fine + near * near_fine))
  return 2 * np.pi * turn + part * known + positions * (frequencies - known)


def split_turns(frequencies: np.ndarray) -> np.ndarray:
  """Splits frequencies into pieces whose products with positions are exact in float32.

  It runs on the host, in float64.

  Args:
    frequencies: radians per position, float64, shape [F].

  Returns:
    float32, shape [5, F]: the frequency itself; then the turns per position and the turns per 4096
    positions, without whole turns, each as a multiple of 1 / 8192 and a remainder.
  """
  rows = [frequencies]
  for span in (1, _SPAN):
    turns = _fraction(np.asarray(frequencies, np.float64) / (2 * np.pi) * span)
    coarse = np.round(turns * _GRID) / _GRID
    rows += [coarse, turns - coarse]
  return np.stack(rows).astype(np.float32)


def _fraction(x):
  return x - x.round()


def _known(frequencies: Array, turns: Array) -> tuple[Array, ...]:
  """Returns the five pieces of each frequency, zeros where it is none of the known ones."""
  if turns.dtype != jnp.float32:
    raise ValueError(
        f'turns have dtype {turns.dtype}: they are constants of the encoding, kept in float32. '
        'Cast trained arrays only.'
    )
  pieces = expand(jnp.zeros_like(turns[0, :, None]), frequencies.ndim + 1)
  for one in turns:
    one = expand(one[:, None], frequencies.ndim + 1)  # [5, 1, F] behind axes of size 1
    pieces = jnp.where((frequencies == one[..., 0, :, :])[..., None, :, :], one, pieces)
  return tuple(pieces[..., i, :, :] for i in range(5))


def distance(q_positions: Array, k_positions: Array) -> Array:
  """Computes k - q for every query and key, float32 [..., T, S]."""
  q_positions, k_positions = as_float(q_positions), as_float(k_positions)
  ndim = max(q_positions.ndim, k_positions.ndim)
  return expand(k_positions, ndim)[..., None, :] - expand(q_positions, ndim)[..., :, None]


def is_concrete(x: Any) -> bool:
  """Tells whether the values of x can be looked at, that is, x is not being traced."""
  return not isinstance(x, jax.core.Tracer)


# --- Making positions ----------------------------------------------------------------------------


@jax.jit
def from_mask(mask: Array) -> Array:
  """Numbers the tokens that are not padding 0, 1, 2, ...; padding before them gets 0.

  Args:
    mask: True (or 1) for a token, False (or 0) for padding, shape [..., T].

  Returns:
    int32 positions, shape [..., T].

  >>> from_mask(jnp.array([0, 0, 1, 1, 1])).tolist()
  [0, 0, 0, 1, 2]
  """
  counted = jnp.cumsum(mask.astype(jnp.int32), axis=-1)
  return jnp.maximum(counted - 1, 0)


@jax.jit
def from_segments(segments: Array) -> Array:
  """Numbers the tokens of every packed document from 0; padding (segment 0) gets 0.

  Args:
    segments: segment of each token, equal ones adjacent, shape [..., T].

  Returns:
    int32 positions, shape [..., T].

  >>> from_segments(jnp.array([1, 1, 1, 2, 2, 0])).tolist()
  [0, 1, 2, 0, 1, 0]
  """
  index = jax.lax.broadcasted_iota(jnp.int32, segments.shape, segments.ndim - 1)
  before = jnp.concatenate([segments[..., :1], segments[..., :-1]], axis=-1)
  start = jax.lax.cummax(jnp.where(segments != before, index, 0), axis=segments.ndim - 1)
  return jnp.where(segments == 0, 0, index - start)


@jax.jit
def interpolate(positions: Array, factor: float | Array) -> Array:
  """Divides positions by `factor`, so that a longer text falls on the trained range.

  Args:
    positions: shape [..., T].
    factor: how many times longer the text is.

  Returns:
    float32 positions, shape [..., T].

  Reference: Chen et al., 2023, https://arxiv.org/abs/2306.15595.
  """
  return as_float(positions) / factor


@functools.partial(jax.jit, static_argnames=('length', 'max_length'))
def randomize(key: Array, *, length: int, max_length: int) -> Array:
  """Draws `length` positions from 0..max_length-1 without replacement, in increasing order.

  Args:
    key: a PRNG key. The same key draws the same positions; vmap over keys for one draw a row.
    length: how many positions.
    max_length: how many to draw from.

  Returns:
    int32 positions, shape [length].

  Raises:
    ValueError: max_length is below length.

  Reference: Ruoss et al., 2023, https://arxiv.org/abs/2305.16843.
  """
  if length > max_length:
    raise ValueError(
        f'length={length} positions cannot be drawn from max_length={max_length}: raise max_length.'
    )
  return jnp.sort(jax.random.permutation(key, max_length)[:length]).astype(jnp.int32)
