# SPDX-License-Identifier: Apache-2.0
"""T5: a trained bias per head and bucket of distance; buckets widen with the distance.

Of the b buckets on a side, the first m = b / 2 hold one distance each. Bucket m + k starts at the
smallest n with n >= m (D / m) ** (k / (b - m)), D the largest distance that is told apart. That is
n ** (b - m) m ** k >= D ** k m ** (b - m), which whole numbers decide without a rounded logarithm.

Reference: Raffel et al., 2020, https://arxiv.org/abs/1910.10683.
"""

import bisect
import functools

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import factory
from pe_jax.base import Encoding
from pe_jax.positions import distance

Array = jax.Array


def t5_boundaries(buckets: int, max_distance: int) -> tuple[int, ...]:
  """Computes the smallest distance of each bucket from the second on.

  Args:
    buckets: buckets b on one side.
    max_distance: from here on everything falls into the last bucket.

  Returns:
    b - 1 distances, increasing: bucket(n) is the number of those that n reaches.

  >>> t5_boundaries(8, 32)
  (1, 2, 3, 4, 7, 12, 20)
  """
  exact = buckets // 2
  wide = buckets - exact

  def reached(n: int, k: int) -> bool:
    return n**wide * exact**k >= max_distance**k * exact**wide

  boundaries = list(range(1, exact + 1))
  for k in range(1, wide):
    candidates = range(boundaries[-1], max_distance + 1)
    boundaries.append(candidates[bisect.bisect_left(candidates, True, key=lambda n: reached(n, k))])
  return tuple(boundaries)


@jax.jit
def t5_causal_buckets(relative: Array, boundaries: Array) -> Array:
  """Finds the bucket of each key position minus query position; keys ahead are in bucket 0.

  Args:
    relative: key position minus query position, any shape.
    boundaries: what `t5_boundaries` gives for all the buckets.

  Returns:
    int32 buckets, the shape of `relative`.

  Reference: Raffel et al., 2020, https://arxiv.org/abs/1910.10683.
  """
  return jnp.searchsorted(boundaries, -relative, side='right', method='compare_all')


@jax.jit
def t5_bidirectional_buckets(relative: Array, boundaries: Array) -> Array:
  """Finds the bucket of each key position minus query position; keys ahead have the upper half.

  Args:
    relative: key position minus query position, any shape.
    boundaries: what `t5_boundaries` gives for half of the buckets.

  Returns:
    int32 buckets, the shape of `relative`.

  Reference: Raffel et al., 2020, https://arxiv.org/abs/1910.10683.
  """
  side = jnp.searchsorted(boundaries, jnp.abs(relative), side='right', method='compare_all')
  return side + jnp.where(relative > 0, boundaries.shape[0] + 1, 0)


@functools.partial(jax.jit, static_argnames=('find',))
def t5_bias(q_pos: Array, k_pos: Array, table: Array, boundaries: Array, *, find) -> Array:
  """Looks up the bias of every head n, query i and key j in the bucket of j - i.

  Args:
    q_pos: positions of the queries, shape [..., T].
    k_pos: positions of the keys, shape [..., S].
    table: trained, shape [N, buckets].
    boundaries: as `find` takes them.
    find: `t5_causal_buckets` or `t5_bidirectional_buckets`.

  Returns:
    Bias for the scaled logits, float32, shape [..., N, T, S].

  Reference: Raffel et al., 2020, https://arxiv.org/abs/1910.10683.
  """
  bucket = find(distance(q_pos, k_pos), boundaries)
  by_head = table.astype(jnp.float32)[:, bucket]  # on a TPU, tokens are cheap last axes, heads dear
  return jnp.moveaxis(by_head, 0, -3)


# --- Hooks ---------------------------------------------------------------------------------------


def _init(key, dims, *, buckets: int):
  return {'table': jax.random.normal(key, (dims.heads, buckets)) * dims.model**-0.5}


def _constants(dims, *, boundaries: tuple[int, ...]):
  del dims
  return {'boundaries': jnp.asarray(boundaries, jnp.float32)}


def _bias(params, q, k, q_coords, k_coords, scale, *, find):
  del q, k, scale
  return t5_bias(q_coords, k_coords, params['table'], params['boundaries'], find=find)


@factory
def t5(*, buckets: int = 32, max_distance: int = 128, bidirectional: bool = False) -> Encoding:
  """Adds a trained bias per head and bucket of distance to the scaled logits.

  Args:
    buckets: how many, on both sides together.
    max_distance: from here on, one bucket. At most the trained length, or buckets stay untrained.
    bidirectional: keys ahead of the query get the upper half of the buckets, for encoders; else
      they share bucket 0, for decoders.

  Raises:
    ValueError: too few buckets, an odd number of them for two sides, or a max_distance that the
      first half of the buckets covers already.

  Reference: Raffel et al., 2020, https://arxiv.org/abs/1910.10683.
  """
  per_side = buckets // 2 if bidirectional else buckets
  if per_side < 2 or (bidirectional and buckets % 2):
    raise ValueError(
        f'buckets={buckets} with bidirectional={bidirectional} must be at least 2 a side, and even '
        'for two sides.'
    )
  if max_distance <= per_side // 2:
    raise ValueError(
        f'max_distance={max_distance} must be more than {per_side // 2}, the distances that '
        f'already have a bucket of their own among buckets={buckets}.'
    )
  find = t5_bidirectional_buckets if bidirectional else t5_causal_buckets
  return Encoding(
      name='t5',
      init=bind(_init, buckets=buckets),
      constants=bind(_constants, boundaries=t5_boundaries(per_side, max_distance)),
      bias=bind(_bias, find=find),
      per_head=('table',),
      relative=True,
      by_distance=True,
      reference='Raffel et al., 2020, arXiv:1910.10683',
  )
