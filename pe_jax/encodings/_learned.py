# SPDX-License-Identifier: Apache-2.0
"""Learned positions: one trained vector for each position, and none past the last.

  x_p -> x_p + table_(p + offset)
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax._bind import bind
from pe_jax._bind import check_positive
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import as_float
from pe_jax.positions import expand
from pe_jax.positions import is_concrete

Array = jax.Array


def learned_embedding(table: Array, positions: Array) -> Array:
  """Reads row p of the table for every position p.

  Positions between two whole numbers get the linear interpolation of the rows about them.

  Args:
    table: one row a position, shape [length, width].
    positions: int or float, any order, shape [..., T].

  Returns:
    Rows, shape [..., T, width]. Under a trace, NaN where a position is outside the table.

  Raises:
    ValueError: a position outside the table, when its value is known.

  Reference: Gehring et al., 2017, https://arxiv.org/abs/1705.03122.

  >>> learned_embedding(jnp.eye(3), jnp.array([2, 0])).tolist()
  [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
  """
  if is_concrete(positions):
    _check_range(np.asarray(positions), table.shape[0])
  return _lookup(table, positions)


def _check_range(positions: np.ndarray, length: int):
  if positions.size and not (positions.min() >= 0 and positions.max() < length):
    raise ValueError(
        f'positions run from {positions.min()} to {positions.max()}, but the table holds 0 to '
        f'{length - 1}: learn a longer table, or use an encoding without one.'
    )


@functools.partial(jax.jit, inline=True)
def _lookup(table: Array, positions: Array) -> Array:
  """Reads row p of a table for every position p; between two rows, their linear interpolation.

  Args:
    table: shape [rows, width].
    positions: int or float, shape [...].

  Returns:
    Rows, shape [..., width]; NaN where a position is outside 0..rows-1.
  """
  positions = jnp.asarray(positions)
  rows = functools.partial(jnp.take, table, axis=0, mode='fill', fill_value=jnp.nan)
  valid = (positions >= 0) & (positions <= table.shape[0] - 1)
  if jnp.issubdtype(positions.dtype, jnp.integer):
    found = rows(jnp.where(valid, positions, 0))
  else:
    low = jnp.clip(jnp.floor(as_float(positions)), 0, table.shape[0] - 1)
    part = (positions - low)[..., None].astype(table.dtype)
    high = jnp.minimum(low + 1, table.shape[0] - 1)
    found = (1 - part) * rows(low.astype(jnp.int32)) + part * rows(high.astype(jnp.int32))
  return jnp.where(valid[..., None], found, jnp.asarray(jnp.nan, table.dtype))


@functools.partial(jax.jit, static_argnames=('length',))
def resize_table(table: Array, *, length: int) -> Array:
  """Stretches or shrinks a trained table to another number of rows, by linear interpolation.

  Row r of n covers the interval r / n .. (r + 1) / n, so both tables span the same positions.

  Args:
    table: shape [rows, width].
    length: wanted rows.

  Returns:
    The table, shape [length, width], in its dtype; the arithmetic is float32. Unchanged where it
    has that length already.

  Reference: Dosovitskiy et al., 2021, https://arxiv.org/abs/2010.11929, section 3.2.

  >>> resize_table(jnp.arange(8.0)[:, None], length=4)[:, 0].tolist()
  [0.5, 2.5, 4.5, 6.5]
  """
  if length == table.shape[0]:
    return table
  shape = (length, table.shape[1])
  resized = jax.image.resize(table.astype(jnp.float32), shape, method='linear', antialias=False)
  return resized.astype(table.dtype)


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, length: int):
  return {'table': jax.random.normal(key, (length, dims.model)) * dims.model**-0.5}


def _add(params, x, positions, *, offset: int):
  rows = learned_embedding(params['table'], jnp.asarray(positions) + offset)
  return (x + expand(rows, x.ndim)).astype(x.dtype)


@factory
def learned(*, length: int, offset: int = 0) -> Encoding:
  """Adds a trained vector per position to the embedding.

  Args:
    length: rows of the table. Positions up to length - offset - 1 can be read.
    offset: row of position 0, such as OPT's 2.

  Raises:
    ValueError: a length below 1, or an offset outside the table.

  Reference: Gehring et al., 2017, https://arxiv.org/abs/1705.03122; as good as sinusoids in Vaswani
  et al., 2017, https://arxiv.org/abs/1706.03762, table 3 row E.

  >>> learned(length=512, offset=2).max_length
  510
  """
  check_positive(length=length)
  if not 0 <= offset < length:
    raise ValueError(f'offset={offset} is outside the table: it must be 0 to {length - 1}.')
  return Encoding(
      name='learned',
      init=bind(_init, length=length),
      embed=bind(_add, offset=offset),
      absolute=True,
      max_length=length - offset,
      reference='Gehring et al., 2017, arXiv:1705.03122',
  )
