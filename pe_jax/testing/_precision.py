# SPDX-License-Identifier: Apache-2.0
"""Laws of precision: what rounding may do, at all positions and in every dtype."""

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.testing._compare import compare
from pe_jax.testing._compare import NotApplicable
from pe_jax.testing._compare import PHASE
from pe_jax.testing._compare import ROUNDING
from pe_jax.testing._compare import Violation
from pe_jax.testing._run import Tokens
from pe_jax.testing._subject import Subject

FAR = 2**20
_MANY = 4096  # neighbours in bfloat16 are 16 apart there
_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def _wide(tokens: Tokens) -> Tokens:
  """The same numbers in float32."""
  return tokens._replace(
      **{name: getattr(tokens, name).astype(jnp.float32) for name in ('x', 'q', 'k')}
  )


def _tolerance(dtype, position: float) -> float:
  """What rounding of inputs, of the output and of the angle at a position allow."""
  rounding = ROUNDING if dtype == jnp.float32 else 4 * float(jnp.finfo(dtype).eps)
  return rounding + 4 * PHASE * position


def law_half_precision(subject: Subject):
  """In bfloat16 and float16 only the inputs and the output are rounded"""
  for dtype in _DTYPES[1:]:
    # Rows far out, where positions or tables in half precision are off by whole tokens.
    positions = np.minimum(subject.positions * 7 + 1001, subject.limit - 1 - subject.positions)
    tokens = subject.tokens(np.maximum(positions, 0), dtype=dtype)
    got, want = subject.hooks(tokens), subject.hooks(_wide(tokens))
    for hook in got:
      exact = hook == 'bias' and not subject.encoding.reads_content
      compare(
          hook,
          got[hook],
          want[hook],
          f'{jnp.dtype(dtype).name} against float32 arithmetic on the same numbers',
          tolerance=ROUNDING if exact else _tolerance(dtype, 0),
          positions=tokens.positions,
          dtype=jnp.dtype(dtype).name,
      )


def law_reference(subject: Subject):
  """In every dtype, near and far, the hooks are the float64 reference"""
  known = [hook for hook in subject.reference if getattr(subject.encoding, hook) is not None]
  if not known:
    raise NotApplicable('no reference was given')
  for dtype in _DTYPES:
    for far in (0, FAR) if subject.limit > 2 * FAR and dtype == jnp.float32 else (0,):
      tokens = subject.tokens(subject.positions + far, dtype=dtype)
      got, want = subject.hooks(tokens), _reference(subject, tokens)
      for hook in want:
        exact = hook == 'bias' and not subject.encoding.reads_content
        compare(
            hook,
            got[hook],
            want[hook],
            'the hook against its float64 reference',
            tolerance=ROUNDING if exact else _tolerance(dtype, far),
            positions=tokens.positions,
            dtype=jnp.dtype(dtype).name,
        )


def _reference(subject: Subject, tokens: Tokens) -> dict[str, np.ndarray]:
  """Calls the references on float64 copies of what the hooks get."""
  t, params = jax.tree.map(_double, (tokens, subject.params))
  groups = t.q.shape[-2] // t.k.shape[-2]
  k = np.repeat(t.k, groups, axis=-2)
  ones = np.ones(t.x.shape[:2], int)
  carry = jax.tree.map(_double, subject.carry())
  arguments = {
      'embed': (t.x, t.positions),
      'place': (t.x, t.positions, ones, carry),
      'query': (t.q, t.q_coords, t.length),
      'key': (t.k, t.k_coords, t.length),
      'bias': (t.q, k, t.q_coords, t.k_coords, t.scale),
      'logits': (t.logits, t.q, k, t.q_coords, t.k_coords, t.mask),
      'value': (t.weights, t.q_coords, t.k_coords),
  }
  return {
      hook: np.asarray(subject.reference[hook](params, *args), np.float64)
      for hook, args in arguments.items()
      if hook in subject.reference and hook != 'place'
  }


def _double(leaf):
  leaf = np.asarray(leaf)
  return leaf if leaf.dtype == bool else leaf.astype(np.float64)


def law_place_reference(subject: Subject):
  """The coordinates that `place` makes are the float64 reference's"""
  if 'place' not in subject.reference or subject.encoding.place is None:
    raise NotApplicable('no reference of `place` was given')
  tokens = subject.tokens()
  t, params, carry = jax.tree.map(_double, (tokens, subject.params, subject.carry()))
  segments = np.resize([1, 1, 0, 1, 2, 2, 0, 3], subject.positions.shape).astype(np.int32)
  want = subject.reference['place'](params, t.x, t.positions, segments, carry)
  got, _ = subject.place(tokens.x, tokens.positions, segments)
  seen = segments != 0
  for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    one, two = (np.where(seen[:, None] if np.ndim(c) == 3 else seen, c, 0) for c in (one, two))
    compare('place', one, two, 'against its float64 reference', segments=segments[0].tolist())


def law_told_apart(subject: Subject):
  """Positions that differ are told apart, in every dtype"""
  encoding = subject.encoding
  if encoding.place is not None:
    raise NotApplicable('its coordinates come from `place`')
  count = min(_MANY, subject.limit)
  tokens = _line(subject, count)
  single = _lines(subject, tokens)
  if not single:
    raise NotApplicable('no hook reads positions')
  for dtype in _DTYPES:
    cast = {name: getattr(tokens, name).astype(dtype) for name in ('x', 'q', 'k')}
    for hook, rows in _lines(subject, tokens._replace(**cast)).items():
      due = _due(hook, single[hook], rows.dtype)
      if _distinct(rows) < due:
        raise Violation(
            f'{hook} tells {_distinct(rows)} of {count} positions apart, not {due}',
            positions=_first_repeat(rows),
            dtype=jnp.dtype(dtype).name,
        )


def _due(hook: str, single: np.ndarray, dtype) -> int:
  """How many positions must differ: all, where the first ones all do; else as rounding leaves them.

  A bias may well put many distances into one bucket, and a factor that grows slowly may round.
  """
  first = single[:64]
  if hook != 'bias' and _distinct(first) == len(first):
    return len(single)
  return int(0.9 * _distinct(single.astype(dtype)))


def _line(subject: Subject, count: int) -> Tokens:
  """One token, repeated at the positions 0 .. count - 1; one query at 0."""
  tokens, positions = subject.tokens(), subject.spread(np.arange(count)[None])
  repeat = lambda array: np.repeat(array[:1, :1], count, axis=1)
  return tokens._replace(
      x=repeat(tokens.x) * 0,
      positions=positions,
      q=tokens.q[:1, :1],
      k=repeat(tokens.k),
      q_coords=jax.tree.map(lambda p: p[:, :1], positions),
      k_coords=positions,
      logits=np.zeros((1, subject.dims.heads, 1, count), np.float32),
      length=np.array([count], np.int32),
  )


def _lines(subject: Subject, tokens: Tokens) -> dict[str, np.ndarray]:
  """What `embed`, `query`, `key` and `bias` make of every position, one row each."""
  encoding, params = subject.encoding, subject.params
  q = np.broadcast_to(tokens.q, (1, tokens.k.shape[1], *tokens.q.shape[2:]))
  found = _line_hooks(params, tokens, q, encoding=encoding)
  return {hook: np.asarray(array[0]).reshape(array.shape[1], -1) for hook, array in found.items()}


def _run_lines(params, tokens: Tokens, q, *, encoding):
  t, out = tokens, {}
  if encoding.embed is not None:
    out['embed'] = encoding.embed(params, t.x, t.positions)
  if encoding.query is not None:
    out['query'] = encoding.query(params, q, t.k_coords, t.length)
  if encoding.key is not None:
    out['key'] = encoding.key(params, t.k, t.k_coords, t.length)
  if encoding.bias is not None:
    k = jnp.repeat(t.k, t.q.shape[-2] // t.k.shape[-2], axis=-2)
    bias = encoding.bias(params, t.q, k, t.q_coords, t.k_coords, t.scale)
    out['bias'] = jnp.moveaxis(jnp.broadcast_to(bias, t.logits.shape)[:, :, 0], 1, 2)
  return out


_line_hooks = jax.jit(_run_lines, static_argnames='encoding')


def _distinct(rows: np.ndarray) -> int:
  return len({row.tobytes() for row in rows})


def _first_repeat(rows: np.ndarray) -> list[int]:
  seen = {}
  for position, row in enumerate(rows):
    if row.tobytes() in seen:
      return [seen[row.tobytes()], position]
    seen[row.tobytes()] = position
  return []


def law_far(subject: Subject):
  """Past position 2 ** 20 all is finite, and scores err as phases off by p 2 ** -23 would"""
  if subject.limit < 2 * FAR:
    raise NotApplicable(f'positions end at max_length={subject.limit}')
  near, far = subject.tokens(), subject.tokens(subject.positions + FAR)
  got, want = subject.hooks(far), subject.hooks(near)
  for hook, array in got.items():
    if not np.isfinite(array.astype(np.float64)).all():
      raise Violation(f'{hook} is not finite at position {FAR}', positions=[FAR])
  if not subject.encoding.relative or subject.encoding.length_dependent:
    return  # what a shift changes is not known
  if 'bias' in got:
    compare(
        'bias',
        got['bias'],
        want['bias'],
        f'shifted by {FAR}, against near positions',
        positions=far.positions,
    )
  compare(
      'attend',
      subject.layer(positions=subject.positions + FAR),
      subject.layer(),
      f'shifted by {FAR}, against near positions',
      tolerance=4 * PHASE * FAR,
  )
