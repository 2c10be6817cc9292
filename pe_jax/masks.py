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

from pe_jax.positions import expand

Array = jax.Array
Span = tuple[int | Array, int]  # where a tile starts, how many tokens it has


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
        len(sides) != (2 if isinstance(self.window, tuple) else 1)
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
    q_index, k_index = _pair(*self.indices(queries, keys))
    left, right = self.sides()
    allowed = []
    if left is not None:
      allowed.append(q_index - left <= k_index)
    if right is not None:
      allowed.append(k_index <= q_index + right)
    if self.where is not None:
      allowed.append(self.where(q_index, k_index))
    if self.q_segments is not None:
      q_segments, k_segments = _pair(self.q_segments, self.k_segments)
      allowed.append((q_segments == k_segments) & (q_segments != 0))
    allowed = [term[..., None, :, :] for term in allowed]
    return _all(allowed if self.dense is None else [*allowed, self.dense], rank=3)

  def tile(self, queries: int, keys: int, rows: Span, columns: Span) -> Mask:
    """Cuts out the mask of some neighbouring queries and keys.

    Args:
      queries: number T of all queries.
      keys: number S of all keys.
      rows: the first of the queries, which may be traced, and how many.
      columns: the first of the keys, and how many.

    Returns:
      The mask whose `evaluate` gives that part of the whole.
    """
    q_index, k_index = self.indices(queries, keys)
    return dataclasses.replace(
        self,
        q_segments=_cut(self.q_segments, 1, rows),
        k_segments=_cut(self.k_segments, 1, columns),
        q_index=_cut(q_index, 1, rows),
        k_index=_cut(k_index, 1, columns),
        dense=_cut(_cut(self.dense, 2, rows), 1, columns),
    )

  def reached(self, queries: int, keys: int, q_tile: int, k_tile: int) -> Array:
    """Finds the tiles of the mask in which some query may see some key.

    Order, window and segments are judged by their range in each tile, so a tile that only shuffled
    ids empty counts as reached. `where` and `dense` are evaluated, one tile at a time.

    Args:
      queries: number T of queries.
      keys: number S of keys.
      q_tile: queries per tile, at most T; tiles start where `tile_starts` says.
      k_tile: keys per tile, at most S.

    Returns:
      Boolean, shape [tiles of queries, tiles of keys].
    """
    q_starts, k_starts = tile_starts(queries, q_tile), tile_starts(keys, k_tile)
    if self.where is not None or self.dense is not None:

      def seen(i, j):
        return self.tile(queries, keys, (i, q_tile), (j, k_tile)).evaluate(q_tile, k_tile).any()

      return jax.lax.map(lambda i: jax.lax.map(lambda j: seen(i, j), k_starts), q_starts)
    q_index, k_index = self.indices(queries, keys)
    q_index, k_index = _tiles(q_index, q_starts, q_tile), _tiles(k_index, k_starts, k_tile)
    left, right = self.sides()
    reached = [jnp.ones((q_starts.size, k_starts.size), bool)]
    if left is not None:
      q_first, k_last = _pair(q_index.min(-1), k_index.max(-1))
      reached.append(q_first - left <= k_last)
    if right is not None:
      q_last, k_first = _pair(q_index.max(-1), k_index.min(-1))
      reached.append(k_first <= q_last + right)
    if self.q_segments is not None:
      q_low, q_high = _id_range(_tiles(self.q_segments, q_starts, q_tile))
      k_low, k_high = _id_range(_tiles(self.k_segments, k_starts, k_tile))
      reached += [jnp.less_equal(*_pair(q_low, k_high)), jnp.greater_equal(*_pair(q_high, k_low))]
    reached = _all(reached, rank=2)
    return reached.any(axis=range(reached.ndim - 2))

  def indices(self, queries: int, keys: int) -> tuple[Array, Array]:
    """Returns the order of the queries and of the keys, as given or by default."""
    q_index = jnp.arange(keys - queries, keys) if self.q_index is None else self.q_index
    return q_index, jnp.arange(keys) if self.k_index is None else self.k_index

  def sides(self) -> tuple[int | None, int | None]:
    """Returns how many tokens before and after itself a query sees, None for all of them."""
    left, right = None, None
    if self.window is not None:
      left, right = self.window if isinstance(self.window, tuple) else (self.window - 1,) * 2
    return left, 0 if self.causal else right

  def sees_all(self, queries: int, keys: int) -> bool:
    """Whether every query surely sees a key and every key is surely seen, by the options alone."""
    if not self.restricts:
      return True
    given = (self.q_segments, self.where, self.dense, self.q_index, self.k_index)
    if any(field is not None for field in given):
      return False
    # A token is in its own window; with fewer queries than keys, some keys may be in none.
    return queries == keys or (queries < keys and self.window is None)


# --- Tiles ---------------------------------------------------------------------------------------


def tile_starts(tokens: int, tile: int) -> Array:
  """Returns where the tiles of `tile` tokens start; the last ends at the last token.

  >>> tile_starts(10, 4).tolist()
  [0, 4, 6]
  """
  return jnp.minimum(jnp.arange(0, tokens, tile), tokens - tile)


def _cut(x: Array | None, from_right: int, span: Span) -> Array | None:
  """Slices an axis; one of size 1 is shared by all tokens and stays."""
  if x is None or x.ndim < from_right or x.shape[-from_right] == 1:
    return x
  return jax.lax.dynamic_slice_in_dim(x, *span, axis=x.ndim - from_right)


def _tiles(ids: Array, starts: Array, tile: int) -> Array:
  """Cuts ids [..., T] into tiles [..., I, tile]."""
  return jax.vmap(lambda start: _cut(ids, 1, (start, tile)), out_axes=-2)(starts)


def _id_range(segments: Array) -> tuple[Array, Array]:
  """Returns the smallest and the largest id along the last axis; padding has an empty range."""
  least, most = jnp.iinfo(segments.dtype).min, jnp.iinfo(segments.dtype).max
  padding = segments == 0
  return jnp.where(padding, most, segments).min(-1), jnp.where(padding, least, segments).max(-1)


def _pair(of_queries: Array, of_keys: Array) -> tuple[Array, Array]:
  """Lays [..., T] and [..., S] out against each other, as [..., T, 1] and [..., 1, S]."""
  ndim = max(of_queries.ndim, of_keys.ndim)
  return expand(of_queries, ndim)[..., :, None], expand(of_keys, ndim)[..., None, :]


def _all(terms: list[Array], rank: int) -> Array:
  """Returns where all the terms are true; their last axes are the same."""
  rank = max(rank, *(term.ndim for term in terms))
  return functools.reduce(jnp.logical_and, (expand(term, rank) for term in terms))
