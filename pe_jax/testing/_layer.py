# SPDX-License-Identifier: Apache-2.0
"""Laws of a whole layer: who sees whom, packed, padded, grouped and empty rows."""

import numpy as np

from pe_jax.base import Dims
from pe_jax.positions import from_mask
from pe_jax.testing._compare import compare
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import refusals
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import layer
from pe_jax.testing._subject import BATCH
from pe_jax.testing._subject import Subject


def _replaced(subject: Subject, tokens: slice) -> np.ndarray:
  """Other hidden states for some of the tokens."""
  x = subject.x.copy()
  x[:, tokens] = np.random.default_rng(9).normal(size=x[:, tokens].shape)
  return x


def law_causal(subject: Subject):
  """Under a causal mask no token hears of later ones"""
  half = subject.size // 2
  got = subject.layer(x=_replaced(subject, slice(half, None)))[:, :half]
  compare('attend', got, subject.layer()[:, :half], f'after changing tokens from {half} on')


def law_mask_order(subject: Subject):
  """The mask follows the order of the tokens, not their positions"""
  back = subject.positions[:, ::-1]
  base, half = subject.layer(positions=back), subject.size // 2
  got = subject.layer(x=_replaced(subject, slice(half, None)), positions=back)
  compare(
      'attend',
      got[:, :half],
      base[:, :half],
      f'after changing tokens from {half} on',
      positions=back,
  )
  moved = subject.layer(x=_replaced(subject, slice(0, 1)), positions=back)
  change = np.abs(moved - base).max(axis=(0, 2, 3))
  deaf = np.flatnonzero(change[: half + 1] == 0)
  if deaf.size:
    raise Violation(
        f'token {deaf[0]} does not hear token 0, which is before it but at a larger position',
        positions=back[0].tolist(),
    )


def law_packing(subject: Subject):
  """Documents packed into one row give what they give alone"""
  half = subject.size // 2
  if not half:
    return
  positions = np.concatenate([subject.positions[:, :half]] * 2, axis=1)
  segments = np.repeat(np.array([[1, 2]], np.int32), half, axis=1).repeat(BATCH, axis=0)
  packed = subject.layer(x=subject.x[:, : 2 * half], positions=positions, segments=segments)
  for start, which in ((0, 'first'), (half, 'second')):
    own = slice(start, start + half)
    alone = subject.layer(x=subject.x[:, own], positions=positions[:, own])
    compare(
        'attend',
        packed[:, own],
        alone,
        f'of the {which} of two packed documents, against it alone',
        positions=positions,
        segments=segments[0].tolist(),
    )


def law_padding(subject: Subject):
  """Padding before a text changes nothing, whatever the padding holds"""
  half = subject.size // 2
  if not half:
    return
  real = np.repeat(np.array([[0, 1]], np.int32), half, axis=1).repeat(BATCH, axis=0)
  positions = np.asarray(from_mask(real))
  own = slice(half, 2 * half)
  alone = subject.layer(x=subject.x[:, own], positions=positions[:, own])
  x = subject.x[:, : 2 * half].copy()
  for filled in (x[:, :half], np.nan):
    x[:, :half] = filled
    padded = subject.layer(x=x, positions=positions, segments=real)
    if padded[:, :half].any():
      raise Violation('attend is not 0 at padding', segments=real[0].tolist())
    compare(
        'attend',
        padded[:, own],
        alone,
        'of a left-padded text, against it alone',
        positions=positions,
        segments=real[0].tolist(),
    )


def law_hidden(subject: Subject):
  """A token that nobody may see has no influence, even if it is NaN"""
  dense = np.ones((BATCH, 1, subject.size, subject.size), bool)
  dense[..., -1] = False
  if subject.encoding.place is not None:
    raise NotApplicable('`place` reads every token; see the law of padding')
  x = subject.x.copy()
  x[:, -1] = np.nan
  got, want = subject.layer(x=x, dense=dense)[:, :-1], subject.layer(dense=dense)[:, :-1]
  compare('attend', got, want, 'with NaN in the last token, which is hidden')


def law_empty_rows(subject: Subject):
  """A query that may see nothing gets 0, and the others do not notice"""
  dense = np.ones((BATCH, 1, subject.size, subject.size), bool)
  dense[:, :, 0] = False
  got, want = subject.layer(dense=dense), subject.layer()
  if got[:, 0].any():
    raise Violation(f'attend is {np.abs(got[:, 0]).max():.6g}, not 0, where a query sees nothing')
  compare('attend', got[:, 1:], want[:, 1:], 'of the other queries, beside one that sees nothing')


def law_constant_value(subject: Subject):
  """Values that are all 1 come out as 1"""
  if subject.encoding.value is not None:
    raise NotApplicable('`value` adds to the values')
  weights = subject.weights
  ones = {**weights, 'v': weights['v'] * 0, 'v_bias': weights['v_bias'] + 1}
  got = subject.layer(ones)
  compare('attend', got, np.ones_like(got), 'of values that are all 1', positions=subject.positions)


def law_grouped(subject: Subject):
  """Key heads that serve several query heads are those heads repeated"""
  d, weights = subject.dims, subject.weights
  if d.heads == d.kv_heads:
    raise NotApplicable('every query head has a key head of its own: give dims with fewer kv_heads')
  groups = d.heads // d.kv_heads
  repeated = {
      'q': weights['q'],
      'k': np.repeat(weights['k'], groups, axis=1),
      'v': np.repeat(weights['v'], groups, axis=1),
      'v_bias': np.repeat(weights['v_bias'], groups, axis=0),
  }
  full = Dims(d.model, d.heads, d.heads, d.head_dim)
  with refusals(subject.kernel):
    got = layer(
        subject.params,
        repeated,
        subject.row(),
        encoding=subject.encoding,
        dims=full,
        kernel=subject.kernel,
    )
  compare(
      'attend',
      subject.layer(),
      np.asarray(got),
      f'of {d.kv_heads} key heads, against {d.heads}',
      positions=subject.positions,
  )
