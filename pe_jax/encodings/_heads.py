# SPDX-License-Identifier: Apache-2.0
"""An encoding on some heads only; the other heads see no positions."""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from pe_jax._bind import bind
from pe_jax._bind import freeze
from pe_jax.base import Encoding
from pe_jax.positions import expand

Array = jax.Array
Heads = tuple[int, ...]

_LEAF = 'on_heads'


def on_heads(encoding: Encoding, *, heads: Heads) -> Encoding:
  """Lets an encoding act on some heads only.

  Args:
    encoding: one that acts in attention.
    heads: numbers of the query heads, from 0. Query heads that share a key head go together.

  Returns:
    The encoding, with a constant `on_heads` of shape [N] that is 1 where it acts.

  Raises:
    ValueError: an encoding of the embedding, which has no heads; no heads, or one below 0.

  >>> import pe_jax
  >>> on_heads(pe_jax.rope(), heads=(0, 1))
  on_heads(rope(base=10000.0), heads=(0, 1))
  """
  heads = freeze(heads, 'heads', 'int')
  if not isinstance(heads, tuple) or not heads or min(heads) < 0:
    raise ValueError(f'heads={heads!r} must list numbers of heads, from 0.')
  if not isinstance(encoding, Encoding) or not encoding.in_attention or encoding.embed:
    raise ValueError(f'{encoding!r} does not act in attention alone: it has no heads to choose.')
  rows = {'query': _rotated, 'key': _rotated, 'bias': _added, 'logits': _changed, 'value': _summed}
  hooks = {
      name: bind(act, hook=getattr(encoding, name))
      for name, act in rows.items()
      if getattr(encoding, name)
  }
  return dataclasses.replace(
      encoding,
      name=f'on_heads({encoding}, heads={heads})',
      constants=bind(_constants, encoding=encoding, heads=heads),
      per_head=(*encoding.per_head, _LEAF),
      parts=(),
      **hooks,
  )


def _constants(dims, *, encoding: Encoding, heads: Heads):
  chosen = [float(head in heads) for head in range(dims.heads)]
  shared = dims.heads // dims.kv_heads
  groups = [set(chosen[start : start + shared]) for start in range(0, dims.heads, shared)]
  if max(heads) >= dims.heads or any(len(group) > 1 for group in groups):
    raise ValueError(
        f'on_heads: heads={heads} of {dims.heads}, of which {shared} share a key head: choose '
        f'heads below {dims.heads}, and all or none of those that share.'
    )
  return {**encoding.constants(dims), _LEAF: jnp.asarray(chosen, jnp.float32)}


def _acts(params, axes: int, heads: int | None = None) -> Array:
  """Returns where the encoding acts, [N, 1, ...] with `axes` axes of size 1, or [K, 1, ...]."""
  chosen = params[_LEAF] > 0
  if heads is not None:
    chosen = chosen[:: chosen.shape[0] // heads]
  return chosen.reshape(-1, *[1] * axes)


def _rotated(params, x, coords, length, *, hook: Callable):
  acts = expand(_acts(params, 1, x.shape[-2]), x.ndim)
  return jnp.where(acts, hook(params, x, coords, length), x)


def _added(params, *args, hook: Callable):
  term = hook(params, *args)
  return jnp.where(expand(_acts(params, 2), term.ndim), term, 0)


def _changed(params, logits, *args, hook: Callable):
  changed = hook(params, logits, *args)
  return jnp.where(expand(_acts(params, 2), logits.ndim), changed, logits)


def _summed(params, *args, hook: Callable):
  term = hook(params, *args)
  return jnp.where(expand(_acts(params, 1), term.ndim), term, 0)
