# SPDX-License-Identifier: Apache-2.0
"""Encodings made from encodings: several at once, or one that sees other positions."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax

from pe_jax._bind import bind
from pe_jax._bind import Bound
from pe_jax.base import Arrays
from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.encodings._none import none

Parts = tuple[Encoding, ...]


def compose(*parts: Encoding) -> Encoding:
  """Chains `embed`, `query`, `key` and `logits` of several encodings; sums `bias` and `value`.

  Each part keeps its own arrays, under its index: {'0': {...}, '1': {...}}. When a part has
  `place`, the coordinates are a tuple with one entry per part, and parts without `place` keep the
  positions.

  Args:
    *parts: the encodings, in the order in which they act.

  Returns:
    One encoding. It claims what all its parts allow.

  Raises:
    ValueError: no parts, or something that is not an `Encoding`.

  >>> import pe_jax
  >>> compose(pe_jax.rope(), pe_jax.alibi())
  compose(rope(base=10000.0), alibi())
  """
  if not parts or not all(isinstance(part, Encoding) for part in parts):
    raise ValueError(f'compose{parts} takes one or more encodings, such as rope() and alibi().')

  def hook(name: str, run: Callable) -> Bound | None:
    return bind(run, parts=parts) if any(getattr(part, name) for part in parts) else None

  lengths = [part.max_length for part in parts if part.max_length is not None]
  return Encoding(
      name=f'compose({", ".join(map(repr, parts))})',
      init=bind(_init, parts=parts),
      constants=bind(_constants, parts=parts),
      place=hook('place', _place),
      carry=bind(_carry, parts=parts),
      embed=hook('embed', _embed),
      query=hook('query', bind(_chain, hook='query')),
      key=hook('key', bind(_chain, hook='key')),
      bias=hook('bias', _bias),
      logits=hook('logits', _logits),
      value=hook('value', _value),
      per_head=tuple(f'{i}/{name}' for i, part in enumerate(parts) for name in part.per_head),
      relative=all(part.relative for part in parts),
      absolute=any(part.absolute for part in parts),
      causal_only=any(part.causal_only for part in parts),
      length_dependent=any(part.length_dependent for part in parts),
      order_dependent=any(part.order_dependent for part in parts),
      reads_content=any(part.reads_content for part in parts),
      by_distance=all(part.by_distance for part in parts if part.bias),
      max_length=min(lengths, default=None),
      parts=parts,
      reference='; '.join(part.reference for part in parts if part.reference),
  )


def sites(encoding: Encoding) -> tuple[Encoding, Encoding]:
  """Splits an encoding into what acts on the embedding and what acts in attention.

  A model keeps one copy of the first part, and one copy of the second per layer or for all layers.

  Returns:
    (embedding part, attention part), `none()` for an empty part.

  >>> import pe_jax
  >>> sites(compose(pe_jax.sinusoidal(), pe_jax.rope()))
  (sinusoidal(base=10000.0), rope(base=10000.0))
  """
  parts = _leaves(encoding)
  return (
      _one(tuple(part for part in parts if part.embed)),
      _one(tuple(part for part in parts if not part.embed)),
  )


def _leaves(encoding: Encoding) -> Parts:
  if not encoding.parts:
    return (encoding,)
  return tuple(leaf for part in encoding.parts for leaf in _leaves(part))


def _one(parts: Parts) -> Encoding:
  if not parts:
    return none()
  return parts[0] if len(parts) == 1 else compose(*parts)


def with_positions(encoding: Encoding, fn: Callable[[Any], Any]) -> Encoding:
  """Lets an encoding see fn(positions) instead of the positions.

  Claims that depend on what fn does (relative, by_distance, max_length) are dropped.

  Args:
    encoding: the encoding.
    fn: a function of the positions, defined at module level or made by `bind`.

  Returns:
    The encoding on other positions.

  >>> import pe_jax
  >>> with_positions(pe_jax.rope(), bind(pe_jax.positions.interpolate, factor=4))
  with_positions(rope(base=10000.0), interpolate(factor=4.0))
  """
  if not callable(fn):
    raise ValueError(f'fn={fn!r} is not a function of the positions.')
  placed = encoding.place is not None  # its other hooks read coords, which are made already

  def hook(name: str) -> Callable | None:
    run = getattr(encoding, name)
    if run is None or (placed and name != 'place'):
      return run
    return bind(_moved, run=run, fn=fn, at=_POSITIONS[name])

  shown = fn if isinstance(fn, Bound) else fn.__name__
  return dataclasses.replace(
      encoding,
      name=f'with_positions({encoding}, {shown})',
      **{name: hook(name) for name in _POSITIONS},
      relative=False,
      by_distance=False,
      max_length=None,
      parts=(),
  )


# Where each hook takes its positions, counted from 0.
_POSITIONS = {
    'place': (2,),
    'embed': (2,),
    'query': (2,),
    'key': (2,),
    'bias': (3, 4),
    'logits': (4, 5),
    'value': (2, 3),
}


def _moved(*args, run: Callable, fn: Callable, at: tuple[int, ...]):
  return run(*(fn(arg) if i in at else arg for i, arg in enumerate(args)))


# --- The hooks of a composition ------------------------------------------------------------------


def _init(key, dims: Dims, *, parts: Parts) -> Arrays:
  keys = jax.random.split(key, len(parts))
  return {str(i): part.init(keys[i], dims) for i, part in enumerate(parts)}


def _constants(dims: Dims, *, parts: Parts) -> Arrays:
  return {str(i): part.constants(dims) for i, part in enumerate(parts)}


def _carry(dims: Dims, *, parts: Parts):
  return tuple(part.carry(dims) for part in parts)


def _coords(coords, parts: Parts):
  """Returns the coordinates of every part: its own where one has `place`, else the positions."""
  return coords if any(part.place for part in parts) else (coords,) * len(parts)


def _place(params, x, positions, segments, carry, *, parts: Parts):
  placed = [
      part.place(params[str(i)], x, positions, segments, carry[i])
      if part.place
      else (positions, carry[i])
      for i, part in enumerate(parts)
  ]
  return tuple(zip(*placed))


def _embed(params, x, positions, *, parts: Parts):
  for i, part in enumerate(parts):
    x = part.embed(params[str(i)], x, positions) if part.embed else x
  return x


def _chain(params, x, coords, length, *, parts: Parts, hook: str):
  for i, (part, own) in enumerate(zip(parts, _coords(coords, parts))):
    run = getattr(part, hook)
    x = run(params[str(i)], x, own, length) if run else x
  return x


def _bias(params, q, k, q_coords, k_coords, scale, *, parts: Parts):
  own = zip(parts, _coords(q_coords, parts), _coords(k_coords, parts))
  return sum(
      part.bias(params[str(i)], q, k, q_own, k_own, scale)
      for i, (part, q_own, k_own) in enumerate(own)
      if part.bias
  )


def _logits(params, logits, q, k, q_coords, k_coords, mask, *, parts: Parts):
  own = zip(parts, _coords(q_coords, parts), _coords(k_coords, parts))
  for i, (part, q_own, k_own) in enumerate(own):
    if part.logits:
      logits = part.logits(params[str(i)], logits, q, k, q_own, k_own, mask)
  return logits


def _value(params, weights, q_coords, k_coords, *, parts: Parts):
  own = zip(parts, _coords(q_coords, parts), _coords(k_coords, parts))
  return sum(
      part.value(params[str(i)], weights, q_own, k_own)
      for i, (part, q_own, k_own) in enumerate(own)
      if part.value
  )
