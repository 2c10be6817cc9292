# SPDX-License-Identifier: Apache-2.0
"""Converts between RoPE's two layouts: channel pairs (i, i + W / 2), 'half', and (2 i, 2 i + 1).

Scores do not change when the q and k projections and the code change layout together. Values and
the output projection have no layout. One function serves all arrays, as only the axis of the heads'
channels matters:

  queries and keys [..., T, N, H]   half_to_interleaved(q)
  kernels [D, N, H], biases [N, H]  half_to_interleaved(kernel)
  kernels [D, N H], biases [N H]    half_to_interleaved(kernel, head_dim=H)
  torch weights [N H, D]            half_to_interleaved(weight, head_dim=H, axis=0)

Keys of grouped heads have the same head_dim and fewer heads; nothing else differs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax._bind import check_choice

Values = jax.Array | np.ndarray
PARTS = ('leading', 'trailing')


def half_to_interleaved(
    x: Values,
    *,
    head_dim: int | None = None,
    width: int | None = None,
    part: str = 'leading',
    axis: int = -1,
) -> Values:
  """Reorders channels 0, 1, .. W - 1 of every head as 0, W / 2, 1, W / 2 + 1, ..

  Args:
    x: an array of numpy or JAX.
    head_dim: channels of a head, which divide the axis; the whole axis is one head unless given.
    width: how many channels of a head turn, W; all of them unless given. The others stay.
    part: 'leading' or 'trailing' channels turn where W is less than the head's.
    axis: the axis that holds the channels, or heads times channels.

  Returns:
    An array like x.

  Raises:
    ValueError: heads that do not divide the axis, an odd width or one above the head's.

  >>> half_to_interleaved(np.arange(8)).tolist()
  [0, 4, 1, 5, 2, 6, 3, 7]
  """
  return _reorder(x, (2, -1), head_dim, width, part, axis)


def interleaved_to_half(
    x: Values,
    *,
    head_dim: int | None = None,
    width: int | None = None,
    part: str = 'leading',
    axis: int = -1,
) -> Values:
  """Undoes `half_to_interleaved`, whose arguments it takes.

  >>> interleaved_to_half(np.array([0, 4, 1, 5, 2, 6, 3, 7])).tolist()
  [0, 1, 2, 3, 4, 5, 6, 7]
  """
  return _reorder(x, (-1, 2), head_dim, width, part, axis)


def _reorder(x, pairs: tuple[int, int], head_dim, width, part: str, axis: int):
  size = x.shape[axis]
  head_dim = size if head_dim is None else head_dim
  width = head_dim if width is None else width
  if size % head_dim:
    raise ValueError(f'axis {axis} has {size} channels, no multiple of head_dim={head_dim}.')
  if width % 2 or not 0 < width <= head_dim:
    raise ValueError(f'width={width} must be even, above 0 and at most head_dim={head_dim}.')
  check_choice('part', part, PARTS)
  xp = jnp if isinstance(x, jax.Array) else np
  channels = xp.moveaxis(x, axis, -1)
  heads = channels.reshape(*channels.shape[:-1], -1, head_dim)
  start = 0 if part == 'leading' else head_dim - width
  before, turning, after = xp.split(heads, [start, start + width], axis=-1)
  turned = turning.reshape(*turning.shape[:-1], *pairs).swapaxes(-1, -2).reshape(turning.shape)
  joined = xp.concatenate([before, turned, after], axis=-1)
  return xp.moveaxis(joined.reshape(channels.shape), -1, axis)
