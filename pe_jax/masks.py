# SPDX-License-Identifier: Apache-2.0
"""Who may attend to whom, as a record that is evaluated on index tiles.

A mask comes from the order of the tokens and from segments, never from positions: randomized or
interpolated positions leave it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools

import jax
import jax.numpy as jnp

Array = jax.Array


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=['q_segments', 'k_segments', 'q_index', 'k_index', 'dense'],
    meta_fields=['causal', 'window', 'where'],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mask:
  """Says which key each query may see; all that is given must allow it.

  Attributes:
    causal: a query sees no key after it. T queries over S keys are the last T of the S tokens.
    window: W, for keys at less than W tokens from the query, which counts itself; or (left, right),
      for keys from `left` tokens before to `right` tokens after.
    q_segments, k_segments: ids, shape [..., T] and [..., S]. Tokens of one segment see each other.
      Id 0 is padding, which neither sees nor is seen.
    q_index, k_index: order of the tokens, shape [..., T] and [..., S]; by default 0 .. S - 1 for
      keys and the last T of them for queries.
    where: a function of (q_index, k_index), broadcast against each other, that is True where the
      query may see the key. A module-level function or a `bind`.
    dense: True where the query may see the key; right-aligned against [..., N, T, S].

  Raises:
    ValueError: an option of the wrong kind, or only one of the two arrays of segments.

  >>> Mask(causal=True).evaluate(2, 5).astype(int).tolist()
  [[[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]
  >>> Mask(causal=True, window=2).evaluate(3, 3).astype(int).tolist()
  [[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]
  """

  causal: bool = False
  window: int | tuple[int, int] | None = None
  q_segments: Array | None = None
  k_segments: Array | None = None
  q_index: Array | None = None
  k_index: Array | None = None
  where: Callable | None = None
  dense: Array | None = None

  def __post_init__(self):
    if not isinstance(self.causal, bool):
      raise ValueError(f'causal={self.causal!r} must be True or False.')
    sides = self.window if isinstance(self.window, tuple) else (self.window,)
    least = 0 if isinstance(self.window, tuple) else 1
    if self.window is not None and (
        len(sides) > 2
        or any(isinstance(w, bool) or not isinstance(w, int) or w < least for w in sides)
    ):
      raise ValueError(
          f'window={self.window!r} must be a number of tokens above 0, or (left, right) of at '
          'least 0.'
      )
    if (self.q_segments is None) != (self.k_segments is None):
      raise ValueError('give q_segments and k_segments, or neither.')
    dtype = getattr(self.dense, 'dtype', jnp.bool_)
    if self.dense is not None and dtype != jnp.bool_:
      raise ValueError(
          f'dense has dtype {dtype}: it is boolean, True where a query may see a key. An additive '
          'bias belongs in an encoding.'
      )

  @property
  def restricts(self) -> bool:
    """Whether the mask may forbid anything at all."""
    given = (self.window, self.q_segments, self.where, self.dense)
    return self.causal or any(field is not None for field in given)

  def evaluate(self, queries: int, keys: int) -> Array | None:
    """Builds the whole mask.

    Args:
      queries: number T of queries.
      keys: number S of keys.

    Returns:
      True where a query may see a key, shape [..., 1 or N, T, S]; None where nothing is forbidden.
    """
    if not self.restricts:
      return None
    q_index = jnp.arange(keys - queries, keys) if self.q_index is None else self.q_index
    k_index = jnp.arange(keys) if self.k_index is None else self.k_index
    allowed = [self._by_index(q_index[..., :, None], k_index[..., None, :])]
    if self.q_segments is not None:
      q_segments, k_segments = self.q_segments[..., :, None], self.k_segments[..., None, :]
      allowed.append((q_segments == k_segments) & (q_segments != 0))
    allowed = [term[..., None, :, :] for term in allowed if term is not None]
    if self.dense is not None:
      allowed.append(self.dense)
    rank = max(3, *(term.ndim for term in allowed))
    return functools.reduce(
        jnp.logical_and, (jnp.expand_dims(term, range(rank - term.ndim)) for term in allowed)
    )

  def _by_index(self, q_index: Array, k_index: Array) -> Array | None:
    rank = max(q_index.ndim, k_index.ndim)
    q_index, k_index = (
        jnp.expand_dims(index, range(rank - index.ndim)) for index in (q_index, k_index)
    )
    allowed = []
    if self.causal:
      allowed.append(k_index <= q_index)
    if self.window is not None:
      left, right = (
          self.window if isinstance(self.window, tuple) else (self.window - 1, self.window - 1)
      )
      allowed.append((k_index >= q_index - left) & (k_index <= q_index + right))
    if self.where is not None:
      allowed.append(self.where(q_index, k_index))
    return functools.reduce(jnp.logical_and, allowed) if allowed else None

  def sees_all(self, queries: int, keys: int) -> bool:
    """Whether every query surely sees a key and every key is surely seen, by the options alone."""
    if not self.restricts:
      return True
    others = (self.window, self.q_segments, self.where, self.dense, self.q_index, self.k_index)
    return queries <= keys and all(field is None for field in others)
