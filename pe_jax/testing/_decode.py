# SPDX-License-Identifier: Apache-2.0
"""Laws of generation: tokens in chunks, with a cache, are the tokens at once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import attend
from pe_jax.masks import Mask
from pe_jax.testing._compare import compare
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import refusals
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import project
from pe_jax.testing._run import Row
from pe_jax.testing._run import run_place
from pe_jax.testing._subject import BATCH
from pe_jax.testing._subject import Subject


def law_decode(subject: Subject):
  """Decoding with a cache gives what all tokens give at once, at every split"""
  half = max(subject.size // 2, 1)
  rest = [1] * (subject.size - half)
  want = subject.layer()
  for chunks in ([half, *rest], [1] * subject.size):
    got = _decode(subject, chunks)
    compare(
        'attend',
        got,
        want,
        'with cached keys, against all tokens at once',
        positions=subject.positions,
        chunks=chunks,
    )


def _caches_rotated(encoding) -> bool:
  """Whether keys may be cached after `key`: it acts on the token alone, once and for all."""
  return encoding.key is not None and not (
      encoding.reads_content or encoding.length_dependent or encoding.logits is not None
  )


def _decode(subject: Subject, chunks: list[int]) -> np.ndarray:
  """Runs a layer chunk by chunk, over a cache with two slots to spare."""
  d, slots = subject.dims, subject.size + 2
  row = subject.row()
  coords, _ = subject.place(row.x, row.positions)
  cache = {
      'k': np.zeros((BATCH, slots, d.kv_heads, d.head_dim), np.float32),
      'v': np.zeros((BATCH, slots, d.kv_heads, d.head_dim), np.float32),
      'coords': jax.tree.map(lambda leaf: np.zeros((*leaf.shape[:-1], slots), leaf.dtype), coords),
      'carry': subject.carry(),
  }
  outputs, start = [], 0
  for size in chunks:
    own = slice(start, start + size)
    x, positions = _cut(row, own)
    with refusals(subject.kernel):
      out, cache = _step(
          subject.params,
          subject.weights,
          cache,
          x,
          positions,
          start,
          row.length,
          encoding=subject.encoding,
          kernel=subject.kernel,
      )
    outputs.append(np.asarray(out))
    start += size
  return np.concatenate(outputs, axis=1)


def _cut(row: Row, own: slice):
  """The hidden states and positions of some of the tokens."""
  return row.x[:, own], jax.tree.map(lambda p: p[:, own], row.positions)


@functools.partial(jax.jit, static_argnames=('encoding', 'kernel'))
def _step(params, weights, cache, x, positions, start, length, *, encoding, kernel):
  """Appends some tokens to the cache and attends from them."""
  batch, size = x.shape[:2]
  slots = cache['k'].shape[1]
  y = x if encoding.embed is None else encoding.embed(params, x, positions)
  q, k, v = project(y, weights)
  ones = jnp.ones((batch, size), jnp.int32)
  coords, carry = run_place(params, y, positions, ones, cache['carry'], encoding=encoding)
  rotated = _caches_rotated(encoding)
  if rotated:
    k = encoding.key(params, k, coords, length)
  write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start)
  at_end = lambda old, new: write(old, new, axis=old.ndim - 1)
  cache = {
      'k': write(cache['k'], k, axis=1),
      'v': write(cache['v'], v, axis=1),
      'coords': jax.tree.map(at_end, cache['coords'], coords),
      'carry': carry,
  }
  k_index = jnp.arange(slots)
  out = attend(
      q,
      cache['k'],
      cache['v'],
      coords,
      cache['coords'],
      encoding=dataclasses.replace(encoding, key=None) if rotated else encoding,
      params=params,
      mask=Mask(
          causal=True,
          q_segments=ones[:1],
          k_segments=(k_index < start + size).astype(jnp.int32)[None],
          q_index=(start + jnp.arange(size))[None],
          k_index=k_index[None],
      ),
      length=length,
      kernel=kernel,
  )
  return out, cache


# --- place ---------------------------------------------------------------------------------------


def law_place_prefix(subject: Subject):
  """`place` on a beginning, then on the rest with its carry, is `place` on the whole"""
  _needs_place(subject)
  _check_carry(subject)
  row = subject.row()
  whole, _ = subject.place(row.x, row.positions)
  half = max(subject.size // 2, 1)
  for chunk in {half, 1}:
    carry, parts = subject.carry(), []
    for start in range(0, subject.size, chunk):
      own = slice(start, start + chunk)
      coords, carry = subject.place(*_cut(row, own), carry=carry)
      parts.append(coords)
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *parts)
    _compare_coords(joined, whole, f'in chunks of {chunk}, against all at once')


def _check_carry(subject: Subject):
  """A carry keeps its shape and dtype, as a scan needs."""
  row, before = subject.row(), subject.carry()
  _, after = jax.eval_shape(lambda: subject.place(row.x, row.positions))
  for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
    if (old.shape, old.dtype) != (new.shape, new.dtype):
      raise Violation(
          f'the carry is {old.dtype}{list(old.shape)} before `place` and '
          f'{new.dtype}{list(new.shape)} after it: a scan cannot carry it'
      )


def law_place_segments(subject: Subject):
  """`place` starts again with each segment, and padding adds nothing even if it is NaN"""
  _needs_place(subject)
  half = subject.size // 2
  if not half:
    return
  row = subject.row()
  cut = functools.partial(_cut, row)
  both, ends = slice(0, 2 * half), slice(half, 2 * half)
  two = np.repeat(np.array([[1, 2]], np.int32), half, axis=1).repeat(BATCH, axis=0)
  first, second = (subject.place(*cut(slice(start, start + half)))[0] for start in (0, half))
  got, _ = subject.place(*cut(both), two)
  at_end = lambda coords: jax.tree.map(lambda leaf: leaf[..., half:], coords)
  _compare_coords(
      at_end(got), second, 'of a second segment, against it alone', segments=two[0].tolist()
  )
  _, carry = subject.place(*cut(slice(0, half)), two[:, :half])
  got, _ = subject.place(*cut(ends), two[:, half:], carry)
  _compare_coords(got, second, 'of a second segment after a carry, against it alone')
  # Every other token is padding: what is left is the first half of the tokens, alone.
  spaced = np.tile(np.array([0, 1], np.int32), (BATCH, half))
  stretch = lambda array: np.repeat(array[:, :half], 2, axis=1)
  x = np.where(spaced[..., None] == 0, np.nan, stretch(row.x))
  got, _ = subject.place(x, jax.tree.map(stretch, row.positions), spaced)
  kept = jax.tree.map(lambda leaf: leaf[..., 1::2], got)
  _compare_coords(
      kept, first, 'between padding, against the tokens alone', segments=spaced[0].tolist()
  )


def _needs_place(subject: Subject):
  if subject.encoding.place is None:
    raise NotApplicable('it has no `place`')


def _compare_coords(got, want, why: str, **given):
  for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    compare('place', np.asarray(one), np.asarray(two), why, **given)
