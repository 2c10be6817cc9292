# SPDX-License-Identifier: Apache-2.0
"""All of attention, for any encoding: the one function to drop into another model."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import kernels
from pe_jax.base import Arrays
from pe_jax.base import assemble
from pe_jax.base import Dims
from pe_jax.base import Encoding
from pe_jax.kernels import _dense
from pe_jax.masks import Mask
from pe_jax.positions import check_countable
from pe_jax.positions import expand

Array = jax.Array


@functools.partial(jax.jit, static_argnames=('encoding', 'kernel'))
def attend(
    q: Array,
    k: Array,
    v: Array,
    q_pos: Any,
    k_pos: Any,
    *,
    encoding: Encoding,
    params: Arrays,
    mask: Mask | None = None,
    scale: float | Array | None = None,
    length: int | Array | None = None,
    softcap: float | Array | None = None,
    kernel: Callable | None = None,
) -> Array:
  """Computes softmax(scale q k^T + bias) v, with the encoding wherever it acts.

  A query that may see nothing gets 0, with zero gradients. A key that no query may see has no
  influence, even if it is NaN.

  Args:
    q: queries, shape [..., T, N, H].
    k: keys, shape [..., S, K, H]; K divides N.
    v: values, shape [..., S, K, H].
    q_pos: positions of the queries, [..., T], or [T] for all rows; where the encoding has `place`,
      the coordinates that it made. Several axes are a tuple of such arrays.
    k_pos: positions or coordinates of the keys, [..., S].
    encoding: the record.
    params: its trained arrays ({} where it has none); constants given here win.
    mask: who may see whom; every query sees every key unless given.
    scale: what q . k is multiplied by, H ** -0.5 unless given.
    length: what length-dependent rules read, a number or shape [...]; by default 1 + the largest
      position of the row's queries that are not padding.
    softcap: bounds the logits by softcap * tanh(logits / softcap), after the bias, before the mask.
    kernel: a function of `pe_jax.kernels`, `kernels.automatic` unless given.

  Returns:
    The output, shape [..., T, N, H], in v's dtype. Logits and softmax are float32.

  Raises:
    ValueError: shapes that do not fit, arrays that are missing or unknown, an encoding that only
      makes sense under a causal mask without one, or what the kernel cannot do. Second and
      forward-mode derivatives (jvp, linearize) take kernel=pe_jax.kernels.dense.

  >>> import pe_jax
  >>> q = k = v = jnp.ones((1, 3, 2, 4))
  >>> attend(q, k, v, jnp.arange(3), jnp.arange(3), encoding=pe_jax.alibi(), params={}).shape
  (1, 3, 2, 4)
  """
  return _run(kernel, q, k, v, q_pos, k_pos, encoding, params, mask, scale, length, softcap)


@functools.partial(jax.jit, static_argnames=('encoding',))
def attention_weights(
    q: Array,
    k: Array,
    v: Array,
    q_pos: Any,
    k_pos: Any,
    *,
    encoding: Encoding,
    params: Arrays,
    mask: Mask | None = None,
    scale: float | Array | None = None,
    length: int | Array | None = None,
    softcap: float | Array | None = None,
) -> Array:
  """Computes the weights that `attend` gives the values, for maps and entropies.

  Args are those of `attend`; v is checked and not read.

  Returns:
    Weights, float32, shape [..., N, T, S]. Rows that see something sum to 1, the others to 0.
  """
  run = functools.partial(_run, _dense.weights)
  by_query = run(q, k, v, q_pos, k_pos, encoding, params, mask, scale, length, softcap)
  return jnp.moveaxis(by_query, -2, -3)


def _run(kernel, q, k, v, q_pos, k_pos, encoding, params, mask, scale, length, softcap):
  """Checks the arguments, fills in what is not given, and runs the kernel on what may be seen."""
  _check_arrays(q, k, v, params)
  scale, softcap = _number('scale', scale), _number('softcap', softcap)
  mask = Mask() if mask is None else mask
  if not isinstance(encoding, Encoding):
    raise ValueError(f'encoding={encoding!r} is no Encoding: call a factory, as in pe_jax.rope().')
  if not isinstance(mask, Mask):
    raise ValueError(f'mask={mask} is no Mask: an array is passed as Mask(dense=array).')
  kernel = kernels.automatic if kernel is None else kernel
  if encoding.causal_only and not mask.causal:
    raise ValueError(
        f'{encoding} has no meaning for keys after the query: pass mask=Mask(causal=True, ...).'
    )
  q_pos = _align(q_pos, q, 'q_pos')
  k_pos = _align(k_pos, k, 'k_pos')
  if encoding.length_dependent and length is None:
    length = _default_length(encoding, q_pos, mask)
  heads, head_dim = q.shape[-2:]
  dims = Dims(model=heads * head_dim, heads=heads, kv_heads=k.shape[-2], head_dim=head_dim)
  rows, columns = _visible(mask, q, k)
  q = jnp.where(rows, q, 0) if rows is not None else q
  k, v = (jnp.where(columns, x, 0) if columns is not None else x for x in (k, v))
  out, _ = kernel(
      q,
      k,
      v,
      q_pos,
      k_pos,
      encoding=encoding,
      params=assemble(encoding, params, dims),
      mask=mask,
      scale=head_dim**-0.5 if scale is None else scale,
      length=length,
      softcap=softcap,
  )
  return jnp.where(rows, out, 0) if rows is not None else out


def _check_arrays(q: Array, k: Array, v: Array, params: Arrays):
  if not isinstance(params, dict):
    raise ValueError(
        f'params={params!r} is no dict: pass encoding.init(key, dims), or {{}} for none.'
    )
  for name, x in {'q': q, 'k': k, 'v': v}.items():
    if not jnp.issubdtype(x.dtype, jnp.floating):
      raise ValueError(f'{name} has dtype {x.dtype}: it must be floating, such as float32.')
  if q.ndim < 3 or k.ndim != q.ndim or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
    raise ValueError(
        f'q, k, v have shapes {q.shape}, {k.shape}, {v.shape}: they must be [..., T, N, H] and '
        'twice [..., S, K, H].'
    )
  if q.shape[:-3] != k.shape[:-3]:
    raise ValueError(f'q and k have batch axes {q.shape[:-3]} and {k.shape[:-3]}: make them equal.')
  if q.shape[-2] % k.shape[-2]:
    raise ValueError(
        f'{q.shape[-2]} query heads are not a multiple of {k.shape[-2]} key heads: every key head '
        'serves the same number of query heads.'
    )


def _number(name: str, given: float | Array | None) -> float | Array | None:
  """Returns an array as float32, a number as it is."""
  if jnp.ndim(given) if given is not None else 0:
    raise ValueError(f'{name} has shape {jnp.shape(given)}: it must be one number.')
  is_array = isinstance(given, (jax.Array, np.ndarray, np.generic))
  return jnp.asarray(given, jnp.float32) if is_array else given


def _align(coords: Any, x: Array, name: str) -> Any:
  """Gives every leaf of the coordinates the batch axes of x, of size 1 where rows share it."""
  batch, tokens = x.shape[:-3], x.shape[-3]

  def align(leaf):
    leaf = jnp.asarray(leaf)
    if leaf.ndim == 0 or leaf.shape[-1] != tokens:
      raise ValueError(f'{name} has shape {leaf.shape}: its last axis must be the {tokens} tokens.')
    check_countable(name, leaf)
    leaf = expand(leaf, len(batch) + 1)
    fits = all(have in (1, want) for have, want in zip(leaf.shape, batch))
    if not fits or leaf.ndim > len(batch) + 2:
      raise ValueError(f'{name} has shape {leaf.shape}, which does not fit the batch axes {batch}.')
    return leaf

  return jax.tree.map(align, coords)


def _default_length(encoding: Encoding, q_pos: Any, mask: Mask) -> Array:
  if not isinstance(q_pos, jax.Array):
    raise ValueError(
        f'{encoding} reads the length, which several coordinates do not tell: give length.'
    )
  if mask.q_segments is not None:
    segments = expand(mask.q_segments, q_pos.ndim)
    q_pos = jnp.where(segments == 0, 0, q_pos)
  return 1 + jnp.max(q_pos, axis=-1)


def _visible(mask: Mask, q: Array, k: Array) -> tuple[Array | None, Array | None]:
  """Finds the queries that see a key [..., T, N, 1] and the keys that are seen [..., S, K, 1]."""
  queries, keys = q.shape[-3], k.shape[-3]
  if mask.sees_all(queries, keys):
    return None, None
  allowed = mask.evaluate(queries, keys)
  if allowed.ndim > q.ndim:
    raise ValueError(f'the mask has shape {allowed.shape}, more axes than q with {q.shape}.')
  allowed = expand(allowed, q.ndim)
  rows, columns = allowed.any(axis=-1), allowed.any(axis=-2)
  if columns.shape[-2] > 1:  # a key head is seen if one of its query heads sees it
    columns = columns.reshape(*columns.shape[:-2], k.shape[-2], -1, columns.shape[-1]).any(axis=-2)
  return tuple(jnp.swapaxes(seen, -1, -2)[..., None] for seen in (rows, columns))
