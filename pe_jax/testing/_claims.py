# SPDX-License-Identifier: Apache-2.0
"""Laws of the claims: what a record says of itself is what it does."""

import jax
import numpy as np

from pe_jax.attention import attend
from pe_jax.masks import Mask
from pe_jax.testing._compare import compare
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import ROUNDING
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import run_hooks
from pe_jax.testing._subject import BATCH
from pe_jax.testing._subject import Subject


def _largest(one: np.ndarray, two: np.ndarray) -> float:
  """The largest difference; what turned to NaN differs without bound."""
  apart = np.abs(one.astype(np.float64) - two.astype(np.float64))
  return float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))


def law_relative(subject: Subject):
  """`relative`: scores do not change when all positions shift"""
  if not subject.encoding.relative:
    raise NotApplicable('it does not claim to be relative')
  length = np.full(BATCH, subject.positions.max() + 1001, np.int32)
  base = subject.layer(index=subject.everyone, length=length)
  for shift in (7, 1000):
    if subject.positions.max() + shift < subject.limit:
      moved = subject.layer(
          index=subject.everyone, length=length, positions=subject.positions + shift
      )
      compare(
          'attend',
          moved,
          base,
          f'with all positions shifted by {shift}',
          tolerance=ROUNDING + shift * 1e-6,
          positions=subject.positions,
          shift=shift,
      )


def law_absolute(subject: Subject):
  """`absolute`: one token repeated along the row is told apart, and only then"""
  same = np.repeat(subject.x[:, :1], subject.size, axis=1)
  out = subject.layer(x=same, index=subject.everyone)
  seen = _largest(out, out[:, :1])
  if subject.encoding.absolute and subject.size > 1 and seen < 1e-3:
    raise Violation(
        'it claims to be absolute, but a repeated token gets the same output everywhere'
    )
  if not subject.encoding.absolute and subject.encoding.value is None and seen > 1e-3:
    raise Violation(
        f'it does not claim to be absolute, but a repeated token is told apart by {seen:.3g}'
    )


def law_causal_only(subject: Subject):
  """`causal_only`: attention without a causal mask is refused"""
  encoding, d = subject.encoding, subject.dims
  if not encoding.causal_only:
    raise NotApplicable('it does not claim to be causal only')
  tokens = subject.tokens()
  v = np.zeros_like(tokens.k)
  run = lambda mask: jax.eval_shape(
      lambda: attend(
          tokens.q,
          tokens.k,
          v,
          tokens.q_coords,
          tokens.k_coords,
          encoding=encoding,
          params=subject.params,
          mask=mask,
          length=tokens.length,
      )
  )
  run(Mask(causal=True))
  try:
    run(Mask())
  except ValueError:
    return
  raise Violation(f'attend took {encoding!r} without a causal mask', heads=d.heads)


def law_length(subject: Subject):
  """`length_dependent`: `query` and `key` read the length, and only then"""
  if subject.encoding.query is None and subject.encoding.key is None:
    if subject.encoding.length_dependent:
      raise Violation('it claims to read the length, but has neither query nor key')
    raise NotApplicable('it has no query or key')
  tokens = subject.tokens()
  near = subject.hooks(tokens)
  seen = 0.0
  for more in (1, 300, 20_000, 2**20):
    other = subject.hooks(tokens._replace(length=tokens.length + np.int32(more)))
    seen = max(
        seen, *(_largest(other[hook], near[hook]) for hook in ('query', 'key') if hook in near)
    )
  if (seen > 0) != subject.encoding.length_dependent:
    claim = subject.encoding.length_dependent
    raise Violation(
        f'length_dependent={claim}, but other lengths change query or key by {seen:.3g}'
    )


def law_reads_content(subject: Subject):
  """`reads_content`: `bias` or `logits` reads q or k, and only then"""
  encoding = subject.encoding
  if encoding.bias is None and encoding.logits is None:
    if encoding.reads_content:
      raise Violation('it claims to read content, but has neither bias nor logits')
    raise NotApplicable('it has no bias or logits')
  tokens, other = subject.tokens(), subject.tokens(seed=6)
  base, moved = subject.hooks(tokens), subject.hooks(tokens._replace(q=other.q, k=other.k))
  seen = max(_largest(moved[hook], base[hook]) for hook in ('bias', 'logits') if hook in base)
  if (seen > 0) != encoding.reads_content:
    raise Violation(
        f'reads_content={encoding.reads_content}, but other q and k change the logits by {seen:.3g}'
    )


def law_by_distance(subject: Subject):
  """`by_distance`: the bias is a function of key minus query position alone"""
  encoding = subject.encoding
  if not encoding.by_distance or encoding.bias is None:
    raise NotApplicable('it does not claim it, or has no bias')
  tokens = subject.tokens()
  base = subject.hooks(tokens)['bias']
  for t in range(subject.size):
    at = lambda coords, t=t: coords - coords[..., t : t + 1]
    moved = tokens._replace(
        q_coords=jax.tree.map(at, tokens.q_coords), k_coords=jax.tree.map(at, tokens.k_coords)
    )
    got = subject.hooks(moved)['bias'][:, :, t]
    compare(
        'bias',
        got[:, :, None],
        base[:, :, t][:, :, None],
        f'of query {t} moved to position 0 with its keys',
        positions=tokens.positions,
    )


def law_permutation(subject: Subject):
  """Tokens permuted with their positions permute the outputs, unless `order_dependent`"""
  order = np.random.default_rng(8).permutation(subject.size)
  index = tuple(np.take(array, order, axis=1) for array in subject.everyone)
  got = subject.layer(x=subject.x[:, order], positions=subject.positions[:, order], index=index)
  want = subject.layer(index=subject.everyone)[:, order]
  if not subject.encoding.order_dependent:
    compare(
        'attend',
        got,
        want,
        'of permuted tokens, against permuted outputs',
        positions=subject.positions,
        permutation=order.tolist(),
    )
  elif subject.size > 2 and _largest(got, want) < 1e-4:
    raise Violation('order_dependent=True, but permuted tokens give permuted outputs')


def law_max_length(subject: Subject):
  """Past the end of a table is a ValueError where positions are known, NaN under jit"""
  limit = subject.encoding.max_length
  if limit is None:
    raise NotApplicable('it claims no max_length')
  last = np.full((BATCH, subject.size), limit - 1, np.int32)
  for name, array in subject.hooks(subject.tokens(last)).items():
    if not np.isfinite(array.astype(np.float64)).all():
      raise Violation(f'{name} is not finite at the last position', positions=[limit - 1])
  for outside in (limit, -limit):  # a negative one must not count from the end
    positions = last.copy()
    positions[:, -1] = outside
    tokens = subject.tokens(positions)
    found = {
        hook: subject.hooks(tokens)[hook]
        for hook in ('embed', 'query', 'key', 'bias')
        if getattr(subject.encoding, hook) is not None
    }
    if not any(np.isnan(array.astype(np.float64)).any() for array in found.values()):
      raise Violation(f'position {outside} gives numbers under jit, not NaN', positions=[outside])
    if 'embed' in found and np.isnan(found['embed'][:, :-1]).any():
      raise Violation(f'position {outside} of one token makes others NaN', positions=[outside])
    _refuses(subject, tokens, outside)


def _refuses(subject: Subject, tokens, outside: int):
  try:
    run_hooks(subject.params, jax.tree.map(jax.numpy.asarray, tokens), encoding=subject.encoding)
  except ValueError:
    return
  raise Violation(f'position {outside} is no ValueError where it is known', positions=[outside])
